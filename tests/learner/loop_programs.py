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
    mine = i.tolist() if run._gang is None or (run._gang.weight and not run._is_joining) else []
    row = [run._boundaries.round, run.step, epoch, run.world_size, ",".join(map(str, mine))]
    with open(out / f"live-{me}", "a") as file:
        print(*row, file=file)
    time.sleep(0.0 if (out / "hurry").exists() else 0.1)
def loss_of(x, y):
    return nn.functional.cross_entropy(model(x), y)
counter, seen = 0, []
if __name__ == "__main__":
    run = dlaas.run()
    run.state.setdefault("steps", 0)
"""

_ALL = "(data, labels, torch.arange(SAMPLES))"


def _plain(batches: str) -> str:
    return f"""
    model, opt = run.prepare(model, opt)
    for epoch in run.epochs(EPOCHS):
        for x, y, i in run.batches({batches}):
            step(i)
            opt.zero_grad()
            loss_of(x, y).backward()
            opt.step()
            counter += 1
            run.state["steps"] += 1
            seen.append(counter)
    """


LOOPS: dict[str, str] = {
    "workers": _plain("Points(), BATCH, num_workers=2"),
    "iterable": _plain("Stream(), BATCH"),
    "iterable with workers": _plain("Stream(), BATCH, num_workers=2"),
    "bad samples": _plain("Bad(), BATCH, skip_bad=True"),
    "accumulation": f"""
    model, opt = run.prepare(model, opt)
    for epoch in run.epochs(EPOCHS):
        for number, (x, y, i) in enumerate(run.batches({_ALL}, BATCH)):
            step(i)
            (loss_of(x, y) / 3).backward()
            counter += 1
            run.state["steps"] += 1
            if (number + 1) % 3 == 0:
                opt.step()
                opt.zero_grad()
            seen.append(number)
    """,
    "accumulation by a counter of its own": f"""
    model, opt = run.prepare(model, opt)
    for epoch in run.epochs(EPOCHS):
        for x, y, i in run.batches({_ALL}, BATCH):
            step(i)
            (loss_of(x, y) / 4).backward()
            counter += 1
            run.state["steps"] += 1
            if counter % 4 == 0:
                opt.step()
                opt.zero_grad()
            seen.append(counter)
    """,
    "scaler, clipping and a schedule per step": f"""
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(opt, 9 * EPOCHS)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=5)
    model, opt, scheduler, scaler = run.prepare(model, opt, scheduler=scheduler, scaler=scaler)
    for epoch in run.epochs(EPOCHS):
        for x, y, i in run.batches({_ALL}, BATCH):
            step(i)
            opt.zero_grad()
            scaler.scale(loss_of(x, y)).backward()
            scaler.unscale_(opt)
            nn.utils.clip_grad_norm_(model.parameters(), 0.5)
            scaler.step(opt)
            scaler.update()
            scheduler.step()
            counter += 1
            run.state["steps"] += 1
            seen.append((scaler.get_scale(), scheduler.get_last_lr()[0]))
    """,
    "batch normalisation of what is the same everywhere": f"""
    class Counting(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer, self.norm = nn.Linear(5, 2).double(), nn.BatchNorm1d(1, momentum=None, affine=False).double()
        def forward(self, x):
            self.norm(torch.tensor([[run.step], [run.step + 1]], dtype=torch.float64))
            return self.layer(x)
    model = Counting()
    opt = torch.optim.SGD(model.parameters(), lr=0.1)
    model, opt = run.prepare(model, opt)
    for epoch in run.epochs(EPOCHS):
        for x, y, i in run.batches({_ALL}, BATCH):
            step(i)
            opt.zero_grad()
            loss_of(x, y).backward()
            opt.step()
            counter += 1
            run.state["steps"] += 1
            seen.append(counter)
    """,
    "parameters without a part": f"""
    class Branches(nn.Module):
        def __init__(self):
            super().__init__()
            self.branches = nn.ModuleList([nn.Linear(5, 2).double() for _ in range(3)])
        def forward(self, x):
            return self.branches[run.step % 2](x)
    model = Branches()
    opt = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=0.1)
    model, opt = run.prepare(model, opt, ddp={{"find_unused_parameters": True}})
    for epoch in run.epochs(EPOCHS):
        for x, y, i in run.batches({_ALL}, BATCH):
            step(i)
            opt.zero_grad()
            loss_of(x, y).backward()
            opt.step()
            counter += 1
            run.state["steps"] += 1
            seen.append(counter)
    """,
    "two optimisers": f"""
    other = torch.optim.Adam(model[2].parameters(), lr=0.01)
    opt = torch.optim.SGD(model[0].parameters(), lr=0.1, momentum=0.9)
    model, opt, other = run.prepare(model, opt, other)
    for epoch in run.epochs(EPOCHS):
        for x, y, i in run.batches({_ALL}, BATCH):
            step(i)
            for one in (opt, other):
                model.zero_grad()
                loss_of(x, y).backward()
                one.step()
            counter += 1
            run.state["steps"] += 1
            seen.append(counter)
    """,
}


def program(loop: str) -> str:
    """The whole program of one of `LOOPS`."""
    end = """
    weights = {name: value.clone() for name, value in model.state_dict().items()}
    result = {"counter": counter, "seen": seen, "steps": run.state["steps"]}
    """
    return _FRAME + indent(dedent(loop).strip(), "    ") + "\n" + indent(dedent(end), "    ")
