"""Small notebooks whose loop is written the way people write loops. Each has four epochs of eight batches of eight.

They run as they are and as `suggest` rewrites them. `LEDGER` is the notebook's first cell: its dataset notes each
sample that is asked for, and optimisers note each step.
"""

from __future__ import annotations

from typing import Final

EPOCHS: Final = 4
BATCHES: Final = 8
SAMPLES: Final = 64

LEDGER: Final = """\
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset
from tqdm import tqdm

torch.manual_seed(0)
asked, steps = [], []

class Noted(Dataset):
    def __init__(self):
        self.x = torch.randn(64, 4)
        self.y = self.x @ torch.tensor([[1.0], [-2.0], [0.5], [3.0]]) + 0.1
    def __len__(self):
        return len(self.x)
    def __getitem__(self, n):
        asked.append(n)
        return self.x[n], self.y[n]

def watched(optimizer):
    optimizer.register_step_post_hook(lambda *_: steps.append(1))
    return optimizer

def error_of(model):
    with torch.no_grad():
        return F.mse_loss(model(train_set.x), train_set.y).item()

train_set = Noted()
train_loader = DataLoader(train_set, batch_size=8, shuffle=True)
"""

OBJECTS: Final = """\
net = nn.Linear(4, 1)
loss_fn = nn.MSELoss()
opt = watched(torch.optim.SGD(net.parameters(), lr=0.05))
"""

PROGRAMS: Final[dict[str, tuple[str, ...]]] = {
    "plain": (
        OBJECTS,
        """\
for epoch in range(4):
    for x, y in train_loader:
        opt.zero_grad()
        loss = loss_fn(net(x), y)  # mean over the batch
        loss.backward()
        opt.step()
""",
    ),
    "from_one": (
        OBJECTS,
        """\
shown = []
for epoch in range(1, 4 + 1):
    running_loss = 0.0
    for i, (x, y) in enumerate(tqdm(train_loader, desc="é"), 1):
        opt.zero_grad()
        loss = loss_fn(net(x), y)
        loss.backward()
        opt.step()
        running_loss += loss.item()
    shown.append((epoch, i))
    print(f"epoch {epoch}: {running_loss / len(train_loader):.3f}")
assert shown == [(1, 8), (2, 8), (3, 8), (4, 8)]
""",
    ),
    "bar": (
        OBJECTS,
        """\
bar = tqdm(range(4),)
for _ in bar:
    for step, batch in enumerate(train_loader):
        x, y = batch
        loss = loss_fn(net(x), y)
        loss.backward()
        opt.step()
        opt.zero_grad()
    bar.set_description(f"{loss.item():.2f}")
assert bar.n == bar.total == 4
""",
    ),
    "trange": (
        OBJECTS,
        """\
from tqdm import trange
# four times
for epoch in trange(4, desc="epochs"):
    for x, y in train_loader:
        loss = loss_fn(net(x), y); opt.zero_grad(); loss.backward(); opt.step()
""",
    ),
    "function": (
        OBJECTS,
        '''\
def train(model, loader, optimizer, criterion, epochs=2):
    """All epochs."""
    history = []
    for epoch in range(epochs):
        model.train()
        total = 0
        for x, y in loader:
            optimizer.zero_grad()
            loss = criterion(model(x), y)
            loss.backward()
            optimizer.step()
            total += loss.item()
        train_loss = total / len(loader)
        history.append(train_loss)
    return history
''',
        "history = train(net, train_loader, opt, loss_fn, epochs=4)\nassert len(history) == 4",
    ),
    "one_epoch_function": (
        OBJECTS,
        """\
def train_loop(dataloader, model, loss_fn, optimizer):
    for batch, (X, y) in enumerate(dataloader):
        loss = loss_fn(model(X), y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if batch % 4 == 0:
            print(f"loss: {loss.item():>7f}")
""",
        """\
epochs = 4
for t in range(epochs):
    print(f"Epoch {t+1}")
    train_loop(train_loader, net, loss_fn, opt)
print("Done!")
""",
    ),
    "function_of_functions": (
        OBJECTS,
        """\
def train_step(x, y):
    opt.zero_grad()
    loss = loss_fn(net(x), y)
    loss.backward()
    opt.step()
    return loss.item()

def one_epoch(loader):
    for x, y in loader:
        loss = train_step(x, y)
    return loss

def fit(epochs):
    for epoch in range(epochs):
        epoch_loss = one_epoch(train_loader)
        print(epoch, epoch_loss)
""",
        "fit(4)",
    ),
    "trainer": (
        OBJECTS,
        """\
class Trainer:
    def __init__(self, model, lr):
        self.model = model
        self.optimizer = watched(torch.optim.SGD(self.model.parameters(), lr=lr))

    def train_epoch(self, loader):
        self.model.train()
        for x, y in loader:
            self.optimizer.zero_grad()
            loss = F.mse_loss(self.model(x), y)
            loss.backward()
            self.optimizer.step()
        return loss.item()

    def fit(self, loader, epochs):
        for e in range(epochs):
            loss = self.train_epoch(loader)
            print(e, loss)
""",
        "trainer = Trainer(net, 0.05)\ntrainer.fit(train_loader, 4)",
    ),
    "validated": (
        OBJECTS,
        """\
val_loader = DataLoader([(x, y) for x, y in zip(train_set.x, train_set.y)], batch_size=16)

def evaluate(model):
    model.eval()
    with torch.no_grad():
        return sum(loss_fn(model(x), y).item() for x, y in val_loader) / len(val_loader)
""",
        """\
best = float("inf")
for epoch in range(4):
    net.train()
    for x, y in train_loader:
        opt.zero_grad()
        loss = loss_fn(net(x), y)
        loss.backward()
        opt.step()
    val_loss = evaluate(net)
    for x, y in val_loader:
        assert not net.training and loss_fn(net(x), y) >= 0
    if val_loss < best:
        best = val_loss
        torch.save(net.state_dict(), "best.pt")
net.load_state_dict(torch.load("best.pt"))
""",
    ),
    "phases": (
        OBJECTS
        + 'loaders = {"train": train_loader, "val": DataLoader(list(zip(train_set.x, train_set.y)), batch_size=16)}\n',
        """\
def train_model(model, criterion, optimizer, scheduler, num_epochs=25):
    for epoch in range(num_epochs):
        for phase in ['train', 'val']:
            model.train(phase == 'train')
            running_loss = 0.0
            for inputs, labels in loaders[phase]:
                optimizer.zero_grad()
                with torch.set_grad_enabled(phase == 'train'):
                    loss = criterion(model(inputs), labels)
                    if phase == 'train':
                        loss.backward()
                        optimizer.step()
                running_loss += loss.item()
            if phase == 'train':
                scheduler.step()
            epoch_loss = running_loss / len(loaders[phase])
    return model
""",
        """\
net = train_model(net, loss_fn, opt, torch.optim.lr_scheduler.StepLR(opt, step_size=3), num_epochs=4)
""",
    ),
    "scheduler": (
        OBJECTS + "scheduler = torch.optim.lr_scheduler.StepLR(opt, step_size=3, gamma=0.1)\n",
        """\
for epoch in range(4):
    for x, y in train_loader:
        opt.zero_grad()
        loss = loss_fn(net(x), y)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(net.parameters(), 5.0)
        opt.step()
    scheduler.step()
assert opt.param_groups[0]["lr"] < 0.01
""",
    ),
    "scaler": (
        OBJECTS + 'scaler = torch.amp.GradScaler("cpu", enabled=False)\n',
        """\
for epoch in range(4):
    for x, y in train_loader:
        opt.zero_grad()
        with torch.autocast("cpu", enabled=False):
            loss = loss_fn(net(x), y)
        scaler.scale(loss).backward()
        scaler.step(opt)
        scaler.update()
""",
    ),
    "main": (
        """\
def main():
    global net
    net = nn.Linear(4, 1)
    optimizer = watched(torch.optim.SGD(net.parameters(), lr=0.05))
    def step(x, y):
        optimizer.zero_grad()
        loss = F.mse_loss(net(x), y)
        loss.backward()
        optimizer.step()
        return loss
    for epoch in range(1, 5):
        for x, y in DataLoader(train_set, batch_size=8, shuffle=True):
            loss = step(x, y)
        print(epoch, loss.item())

if __name__ == "__main__":
    main()
""",
    ),
    "closure": (
        OBJECTS,
        """\
for epoch in range(4):
    for x, y in train_loader:
        def closure():
            opt.zero_grad()
            loss = loss_fn(net(x), y)
            loss.backward()
            return loss
        opt.step(closure)
""",
    ),
    "timed": (
        OBJECTS,
        """\
%%time
%matplotlib inline
for epoch in range(4):
    for x, y in train_loader:
        opt.zero_grad()
        loss_fn(net(x), y).backward()
        opt.step()
""",
    ),
}
"""Each sample once per epoch, 32 steps, the error falls. `net` is the model."""
