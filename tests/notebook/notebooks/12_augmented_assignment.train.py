# train.py, made by jupyter_dlaas from the notebook cells that ran, in the order in which they ran.
# Kept is what the training cell needs; `%%train --dry-run` shows what was left out, and why.

# --- cell [1] ---
import numpy as np


class Config:
    lr = 0.1


# --- cell [2] ---
config = Config()
table = {"a": 1}
vector = np.zeros(4)
name = "run"

# --- cell [3] ---
config.lr *= 2
table["a"] += 5
table |= {"b": 2}
vector += 1
vector[1:3] *= 4
name += "-1"

# --- cell [4] ---
view = vector[:2]
view[0] = 9

# --- cell [6], the training cell ---
if __name__ == "__main__":
    print(config.lr, table, vector, name)
