# train.py, made by jupyter_dlaas from the notebook cells that ran, in the order in which they ran.
# Kept is what the training cell needs; `%%train --dry-run` shows what was left out, and why.

# --- cell [1] ---
count = 0
log = []

# --- cell [7] ---
count += 1
log.append(count)


# --- cell [6] ---
def scale(x):
    return x * 2


# --- cell [4] ---
rows = [scale(n) for n in range(3)]

# --- cell [7] ---
count += 1
log.append(count)


# --- cell [6] ---
def scale(x):
    return x * 2


# --- cell [7] ---
count += 1
log.append(count)

# --- cell [8], the training cell ---
if __name__ == "__main__":
    for row in rows:
        print(row, count, log, scale(row))
