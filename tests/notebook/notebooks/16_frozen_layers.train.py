# train.py, made by jupyter_dlaas from the notebook cells that ran, in the order in which they ran.
# Kept is what the training cell needs; `%%train --dry-run` shows what was left out, and why.

# --- cell [1] ---
import torch
from torch import nn

torch.manual_seed(3)

# --- cell [2] ---
body = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
model = nn.Sequential(body, nn.Linear(4, 2))

# --- cell [3] ---
weights = list(body.parameters())
for p in weights:
    p.requires_grad = False

# --- cell [4] ---
head = model[1]
head.weight.data.zero_()
with torch.no_grad():
    for name, p in model.named_parameters():
        if name.endswith("bias"):
            p.fill_(0.5)

# --- cell [5] ---
trainable = [p for p in model.parameters() if p.requires_grad]
opt = torch.optim.Adam(trainable, lr=1e-3)

# --- cell [6] ---
model.eval()

# --- cell [8], the training cell ---
if __name__ == "__main__":
    model.train()
    loss = model(torch.ones(2, 4)).sum()
    loss.backward()
    opt.step()
