# train.py, made by jupyter_dlaas from the notebook cells that ran, in the order in which they ran.
# Kept is what the training cell needs; `%%train --dry-run` shows what was left out, and why.

# --- cell [1] ---
from math import *
from string import *

# --- cell [2] ---
radius = 2
area = pi * radius**2

# --- cell [3] ---
alphabet = ascii_lowercase[:3]

# --- cell [4], the training cell ---
if __name__ == "__main__":
    print(area, alphabet, floor(area))
