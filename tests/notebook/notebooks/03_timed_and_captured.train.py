# train.py, made by jupyter_dlaas from the notebook cells that ran, in the order in which they ran.
# Kept is what the training cell needs; `%%train --dry-run` shows what was left out, and why.

# --- cell [1] ---
import math

# --- cell [2] ---
# slow here
points = [math.sqrt(n) for n in range(5)]

# --- cell [3] ---
labels = [n % 2 for n in range(5)]

# --- cell [4] ---
pairs = list(zip(points, labels))

# --- cell [5] ---
width = len(pairs)

# --- cell [7], the training cell ---
if __name__ == "__main__":
    for point, label in pairs:
        print(point, label, width, points)
