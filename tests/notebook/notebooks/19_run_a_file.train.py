# train.py, made by jupyter_dlaas from the notebook cells that ran, in the order in which they ran.
# Kept is what the training cell needs; `%%train --dry-run` shows what was left out, and why.

# --- cell [2] ---
scale = 2.5

# --- prepare.py, run by cell [3] ---
import math

# scaled
values = [math.floor(n * scale) for n in range(4)]

# --- cell [4] ---
values.append(99)

# --- cell [5], the training cell ---
if __name__ == "__main__":
    print(values, scale)
