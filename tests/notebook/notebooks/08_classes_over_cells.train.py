# train.py, made by jupyter_dlaas from the notebook cells that ran, in the order in which they ran.
# Kept is what the training cell needs; `%%train --dry-run` shows what was left out, and why.

# --- cell [1] ---
import torch
from torch import nn


# --- cell [2] ---
class Base(nn.Module):
    width = 6

    def count(self):
        return sum(p.numel() for p in self.parameters())


# --- cell [3] ---
class Block(Base):
    def __init__(self, size):
        super().__init__()
        self.linear = nn.Linear(size, size)

    def forward(self, x):
        return activation(self.linear(x))


# --- cell [4] ---
activation = torch.relu


# --- cell [5] ---
class Net(Base):
    def __init__(self, blocks: int = 2) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Block(self.width) for _ in range(blocks))

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return x


# --- cell [6] ---
torch.manual_seed(8)
net = Net()


# --- cell [7] ---
def describe(self):
    return f"{type(self).__name__} with {self.count()}"


Net.describe = describe


# --- cell [8] ---
def init(module):
    if isinstance(module, nn.Linear):
        nn.init.ones_(module.weight)


_ = net.apply(init)

# --- cell [9], the training cell ---
if __name__ == "__main__":
    print(net.describe())
    print(net(torch.ones(1, Net.width)))
