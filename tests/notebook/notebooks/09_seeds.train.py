# train.py, made by jupyter_dlaas from the notebook cells that ran, in the order in which they ran.
# Kept is what the training cell needs; `%%train --dry-run` shows what was left out, and why.

# --- cell [1] ---
import os, random, sys
import numpy as np
import torch


# --- cell [2] ---
def seed_everything(seed):
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)


seed_everything(11)

# --- cell [3] ---
os.environ["MY_SETTING"] = "on"
torch.set_default_dtype(torch.float64)
sys.path.append("lib")

# --- cell [4] ---
noise = torch.randn(3)
array = np.random.rand(3)
pick = random.choice(range(100))

# --- cell [5] ---
random.seed(5)

# --- cell [6] ---
later = random.random()

# --- cell [7], the training cell ---
if __name__ == "__main__":
    print(noise, array, pick, later, os.environ["MY_SETTING"], "lib" in sys.path)
