# train.py, made by jupyter_dlaas from the notebook cells that ran, in the order in which they ran.
# Kept is what the training cell needs; `%%train --dry-run` shows what was left out, and why.

size = 4  # the kernel's value: no cell that is known bound it

# --- cell [1] ---
words = ["fit", "step", "epoch", "loss"]

# --- cell [2] ---
long = [size for word in words if (size := len(word)) > 3]

# --- cell [3] ---
lengths = {word: len(word) for word in words}
nested = [[row * col for col in range(2)] for row in range(3)]

# --- cell [4] ---
command = {"run": "train", "epochs": 3, "extra": True}
match command:
    case {"run": "train", "epochs": int(epochs), **others}:
        mode = "training"
    case {"run": kind}:
        mode = kind
    case _:
        mode = None

# --- cell [5] ---
if (half := epochs // 2) > 0:
    plan = list(range(half))
else:
    plan = []

# --- cell [6] ---
total = 0
while (step := total + 2) < 9:
    total = step

# --- cell [7], the training cell ---
if __name__ == "__main__":
    print(long, size, lengths, nested, mode, epochs, others, plan, total, half)
