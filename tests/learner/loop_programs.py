"""Training loops as people write them, each of which must train on one learner and on a changing gang the same."""

from __future__ import annotations

from textwrap import dedent, indent

__all__ = ["LOOPS", "program"]

_FRAME = """
import os, pathlib, time
import torch
from torch import nn
import jupyter_dlaas as dlaas
out = pathlib.Path(os.environ["DLAAS_JOB_DIR"]) / "output"
me = os.environ["DLAAS_MEMBER"]
torch.manual_seed(0)
SAMPLES, BATCH, EPOCHS = 101, 12, 6
data = torch.randn(SAMPLES, 5, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
labels = (data.sum(1) > 0).long()
model = nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, 2)).double()
opt = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
class Points(torch.utils.data.Dataset):
    def __len__(self):
        return SAMPLES
    def __getitem__(self, i):
        return data[i], labels[i], i
class Stream(torch.utils.data.IterableDataset):
    def __iter__(self):
        info = torch.utils.data.get_worker_info()
        first, step = (info.id, info.num_workers) if info else (0, 1)
        for i in range(first, SAMPLES, step):
            yield data[i], labels[i], i
class Bad(Points):
    def __getitem__(self, i):
        if i in (3, 50, 77):
            raise ValueError(f"sample {i} is broken")
        return super().__getitem__(i)
def step(i):
    inner = run.internals
    mine = i.tolist() if inner.gang is None or (inner.gang.weight and not inner.is_joining) else []
    row = [inner.boundaries.membership_epoch, run.step, epoch, run.world_size, ",".join(map(str, mine))]
    with open(out / f"live-{me}", "a") as file:
        print(*row, file=file)
    time.sleep(0.0 if (out / "hurry").exists() else 0.1)
def loss_of(x, y):
    return nn.functional.cross_entropy(model(x), y)
def flat(module):
    return torch.cat([p.detach().flatten() for p in module.parameters()])
counter, seen = 0, []
if __name__ == "__main__":
    run = dlaas.run()
    run.state.setdefault("steps", 0)
"""

_ALL = "(data, labels, torch.arange(SAMPLES))"
_TRAIN = """
    opt.zero_grad()
    loss_of(x, y).backward()
    opt.step()
"""


def _loop(
    train: str = _TRAIN,
    *,
    before: str = "",
    prepare: str = "model, opt = run.prepare(model, opt)",
    batches: str = f"run.batches({_ALL}, BATCH)",
    each: str = "x, y, i",
    then: str = "",
    seen: str = "counter",
) -> str:
    """Return a loop over epochs and batches that counts its steps, and keeps in `seen` what it saw in each."""
    counts = 'counter += 1\nrun.state["steps"] += 1'
    inner = "\n".join(filter(None, ("step(i)", _flat(train), counts, _flat(then), f"seen.append({seen})")))
    outer = f"{prepare}\nfor epoch in run.epochs(EPOCHS):\n    for {each} in {batches}:\n"
    return f"{_flat(before)}\n{outer}{indent(inner, ' ' * 8)}"


def _flat(lines: str) -> str:
    return dedent(lines).strip()


LOOPS: dict[str, str] = {
    "workers": _loop(batches="run.batches(Points(), BATCH, num_workers=2)"),
    "iterable": _loop(batches="run.batches(Stream(), BATCH)"),
    "iterable with workers": _loop(batches="run.batches(Stream(), BATCH, num_workers=2)"),
    "bad samples": _loop(batches="run.batches(Bad(), BATCH, skip_bad=True)"),
    "accumulation": _loop(
        "(loss_of(x, y) / 3).backward()",
        batches=f"enumerate(run.batches({_ALL}, BATCH))",
        each="number, (x, y, i)",
        then="""
        if (number + 1) % 3 == 0:
            opt.step()
            opt.zero_grad()
        """,
        seen="number",
    ),
    "accumulation by a counter of its own": _loop(
        "(loss_of(x, y) / 4).backward()",
        then="""
        if counter % 4 == 0:
            opt.step()
            opt.zero_grad()
        """,
    ),
    "scaler, clipping and a schedule per step": _loop(
        """
        opt.zero_grad()
        scaler.scale(loss_of(x, y)).backward()
        scaler.unscale_(opt)
        nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        scaler.step(opt)
        scaler.update()
        scheduler.step()
        """,
        before="""
        scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(opt, 9 * EPOCHS)
        scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=5)
        """,
        prepare="model, opt, scheduler, scaler = run.prepare(model, opt, scheduler=scheduler, scaler=scaler)",
        seen="(scaler.get_scale(), scheduler.get_last_lr()[0])",
    ),
    "batch normalisation of what is the same everywhere": _loop(
        before="""
        class Counting(nn.Module):
            def __init__(self):
                super().__init__()
                self.layer = nn.Linear(5, 2).double()
                self.norm = nn.BatchNorm1d(1, momentum=None, affine=False).double()
            def forward(self, x):
                self.norm(torch.tensor([[run.step], [run.step + 1]], dtype=torch.float64))
                return self.layer(x)
        model = Counting()
        opt = torch.optim.SGD(model.parameters(), lr=0.1)
        """,
    ),
    "parameters without a part": _loop(
        before="""
        class Branches(nn.Module):
            def __init__(self):
                super().__init__()
                self.branches = nn.ModuleList([nn.Linear(5, 2).double() for _ in range(3)])
            def forward(self, x):
                return self.branches[run.step % 2](x)
        model = Branches()
        opt = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=0.1)
        """,
        prepare='model, opt = run.prepare(model, opt, ddp={"find_unused_parameters": True})',
    ),
    "layers unfrozen in an epoch": _loop(
        "if epoch == 1:\n    model.requires_grad_(True)\n" + _flat(_TRAIN),
        before="model[0].requires_grad_(False)",
    ),
    "a closure that is called several times": _loop(
        """
        def closure():
            opt.zero_grad()
            loss = loss_of(x, y)
            loss.backward()
            return loss
        opt.step(closure)
        """,
        before="""
        class Twice(torch.optim.SGD):
            def step(self, closure):
                for _ in range(2):
                    loss = closure()
                    super().step()
                return loss
        opt = Twice(model.parameters(), lr=0.05, momentum=0.9)
        """,
    ),
    "two optimisers": _loop(
        """
        for one in (opt, other):
            model.zero_grad()
            loss_of(x, y).backward()
            one.step()
        """,
        before="""
        other = torch.optim.Adam(model[2].parameters(), lr=0.01)
        opt = torch.optim.SGD(model[0].parameters(), lr=0.1, momentum=0.9)
        """,
        prepare="model, opt, other = run.prepare(model, opt, other)",
    ),
    "resized buffers, layers unfrozen and another default device": _loop(
        """
        if epoch == 1:
            model.requires_grad_(True)
        opt.zero_grad()
        (loss_of(x, y) * factor).backward()
        opt.step()
        torch.mul(x, 2.0, out=doubled.resize_(0))
        rows.resize_(run.step % 5 + 1, 2)
        """,
        before="""
        doubled, rows, numbers = torch.empty(0, dtype=torch.float64), torch.zeros(1), torch.arange(SAMPLES)
        factor = nn.Parameter(torch.ones((), dtype=torch.float64))
        opt.add_param_group({"params": [factor], "lr": 0.01})
        model[0].requires_grad_(False)
        torch.set_default_device("meta")
        """,
        batches="run.batches((data, labels, numbers), BATCH)",
        seen="(tuple(rows.shape), doubled.shape == x.shape)",
    ),
    "exact steps under another default device": """
numbers = torch.arange(SAMPLES)
torch.set_default_device("meta")
model, opt = run.prepare(model, opt, shards=8)
for epoch in run.epochs(EPOCHS):
    for batch in run.batches((data, labels, numbers), BATCH):
        step(torch.cat([torch.empty(0, dtype=torch.long, device="cpu"), *(part[2] for part, _ in batch.own.values())]))
        seen.append(run.train_step(lambda part: loss_of(*part[:2]), batch).item())
        run.state["steps"] += 1
""",
    "what a loop keeps beside its model": """
import collections, copy
class Meter:
    def __init__(self):
        self.count, self.sizes = 0, collections.Counter()
    def update(self, loss):
        assert loss == loss
        self.count += 1
        self.sizes["steps"] += 1
average, shadow = copy.deepcopy(model), {k: p.detach().clone() for k, p in model.named_parameters()}
swa = torch.optim.swa_utils.AveragedModel(model)
schedule = torch.optim.lr_scheduler.ExponentialLR(opt, 0.99)
recent, total = collections.deque(maxlen=5), Meter()
model, opt = run.prepare(model, opt)
def follow():
    for old, p in zip(average.parameters(), model.parameters()):
        old.data.mul_(0.9).add_(p.data, alpha=0.1)
    for name, p in model.named_parameters():
        shadow[name] = 0.9 * shadow[name] + 0.1 * p.detach()
    swa.update_parameters(model)
    schedule.step()
def train_epoch():
    meter, steps, after = Meter(), 0, [0]
    for x, y, i in run.batches((data, labels, torch.arange(SAMPLES)), BATCH):
        step(i)
        loss = loss_of(x, y)
        steps += 1
        meter.update(loss.item())
        total.update(loss.item())
        recent.append(run.step)
        opt.zero_grad()
        loss.backward()
        opt.step()
        follow()
        after[0] += 1
    return meter.count, dict(meter.sizes), steps, after[0]
for epoch in run.epochs(EPOCHS):
    seen.append((train_epoch(), list(recent), total.count, schedule.last_epoch, opt.param_groups[0]["lr"]))
    averages = [flat(average), torch.cat([p.flatten() for p in shadow.values()]), flat(swa.module)]
    seen.append((int(swa.n_averaged), [[round(float(value), 6) for value in one] for one in averages]))
""",
}


def program(loop: str) -> str:
    """Return the whole program of one of `LOOPS`."""
    end = """
    weights = {name: value.clone() for name, value in model.state_dict().items()}
    result = {"counter": counter, "seen": seen, "steps": run.state["steps"]}
    """
    return _FRAME + indent(dedent(loop).strip(), "    ") + "\n" + indent(dedent(end), "    ")
