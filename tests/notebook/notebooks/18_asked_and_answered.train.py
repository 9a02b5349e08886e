# train.py, made by jupyter_dlaas from the notebook cells that ran, in the order in which they ran.
# Kept is what the training cell needs; `%%train --dry-run` shows what was left out, and why.

epochs = 3  # the kernel's value: cell [1], line 1 got it from input()

name = "resnet"  # the kernel's value: cell [2], line 2 got it from input()

# --- cell [3] ---
rates = [0.1 / (n + 1) for n in range(epochs)]

# --- cell [4], the training cell ---
if __name__ == "__main__":
    print(epochs, name, rates)
