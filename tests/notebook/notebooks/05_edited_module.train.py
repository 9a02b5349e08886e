# train.py, made by jupyter_dlaas from the notebook cells that ran, in the order in which they ran.
# Kept is what the training cell needs; `%%train --dry-run` shows what was left out, and why.

# --- cell [2] ---
import importlib, os, time
import shapes

# --- cell [5] ---
importlib.reload(shapes)

# --- cell [6] ---
from shapes import area

new = area(3)

# --- cell [7], the training cell ---
if __name__ == "__main__":
    print(area(2), new, shapes.SIZE)
