# train.py, made by jupyter_dlaas from the notebook cells that ran, in the order in which they ran.
# Kept is what the training cell needs; `%%train --dry-run` shows what was left out, and why.

# --- cell [1] ---
import random

random.seed(4)

# --- cell [2] ---
samples = []
by_label = {}

# --- cell [3] ---
for n in range(20):
    value = random.random()
    if value > 0.5:
        samples.append((n, value))
        print("kept", n)

# --- cell [4] ---
for n, value in samples:
    by_label.setdefault(n % 3, []).append(value)

# --- cell [5] ---
with open("numbers.txt") as file:
    for word in file.read().split():
        samples.append((int(word), 0.0))

# --- cell [6] ---
try:
    samples.remove("missing")
except ValueError:
    samples.append(("missing", -1.0))

# --- cell [7] ---
random.shuffle(samples)

# --- cell [9], the training cell ---
if __name__ == "__main__":
    for n, value in samples:
        print(n, value, by_label)
