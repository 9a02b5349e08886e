# train.py, made by jupyter_dlaas from the notebook cells that ran, in the order in which they ran.
# Kept is what the training cell needs; `%%train --dry-run` shows what was left out, and why.

import jupyter_dlaas as dlaas

# --- cell [1] ---
import torch
from torch import nn

torch.manual_seed(1)


# --- cell [2] ---
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(3, 1)

    def forward(self, x):
        return self.fc(x)


model, opt, scheduler = dlaas.pushed("model", "opt", "scheduler")

# --- cell [3] ---
x = torch.ones(4, 3)

# --- cell [6], the training cell ---
if __name__ == "__main__":
    for epoch in range(3):
        opt.zero_grad()
        model(x).sum().backward()
        opt.step()
        scheduler.step()
