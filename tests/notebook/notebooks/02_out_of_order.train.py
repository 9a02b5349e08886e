# train.py, made by jupyter_dlaas from the notebook cells that ran, in the order in which they ran.
# Kept is what the training cell needs; `%%train --dry-run` shows what was left out, and why.

# --- cell [1] ---
base = 10
factor = 3

# --- cell [2] ---
parts = [base + n for n in range(4)]

# --- cell [3] ---
total = sum(parts) * factor

# --- cell [4] ---
factor = 5  # ran before the cell above it used the old value

# --- cell [5], the training cell ---
if __name__ == "__main__":
    print(total, base, factor)
