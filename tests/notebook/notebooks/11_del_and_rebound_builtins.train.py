# train.py, made by jupyter_dlaas from the notebook cells that ran, in the order in which they ran.
# Kept is what the training cell needs; `%%train --dry-run` shows what was left out, and why.

# --- cell [1] ---
data = list(range(5))
sum = 40
id = 7

# --- cell [2] ---
double = [n * 2 for n in data]
sum = sum + 2

# --- cell [4] ---
first, *rest = double
del rest[0]

# --- cell [5] ---
input = {"x": id}

# --- cell [7] ---
big = max(double)

# --- cell [8], the training cell ---
if __name__ == "__main__":
    print(double, first, rest, sum, input, max(1, 2), big)
