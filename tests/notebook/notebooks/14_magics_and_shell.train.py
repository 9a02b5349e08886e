# train.py, made by jupyter_dlaas from the notebook cells that ran, in the order in which they ran.
# Kept is what the training cell needs; `%%train --dry-run` shows what was left out, and why.

# --- cell [2] ---
folder = "here"
if folder:
    pass
    count = 3

# --- cell [4] ---
number = int("3") + len(listing)

# --- cell [6] ---
shout = folder.upper()

# --- cell [7], the training cell ---
if __name__ == "__main__":
    print(count, shout, number, listing)
