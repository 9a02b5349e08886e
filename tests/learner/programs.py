"""Training programs for tests, and the checker that counts what they trained."""

from __future__ import annotations

from collections import Counter
from textwrap import dedent

from jupyter_dlaas.wire.journal import FactKind
from tests.runtime.jobs import Job

# Writes one line for each step that it has finished: which samples, in which generation, by whom.
# It waits where a test wants to act: at the steps that are named in the file `pause`, until the file `go-STEP` exists.
RECORDER = dedent(
    """
    import os, pathlib, time
    out = pathlib.Path(os.environ["DLAAS_JOB_DIR"]) / "output"
    me = os.environ["DLAAS_MEMBER"]
    generation = os.environ["DLAAS_GENERATION"]
    def record(step, epoch, samples):
        with open(out / f"steps-{me}", "a") as file:
            file.write(f"{generation} {step} {epoch} {','.join(map(str, samples))}\\n")
        pauses = (out / "pause").read_text().split() if (out / "pause").exists() else []
        if str(step) in pauses:
            (out / f"at-{step}-{me}").touch()
            go = out / f"go-{step}"
            while not go.exists() or (go.read_text() == "stop" and not run.internals.boundaries.is_stopping):
                time.sleep(0.005)
    """
)

PLAIN = RECORDER + dedent(
    """
    import jupyter_dlaas as dlaas
    SAMPLES, BATCH, EPOCHS = 23, 4, 3
    seen, best, table = [], 0, {}
    alias = seen
    run = dlaas.run()
    run.state.setdefault("sum", 0)
    if __name__ == "__main__":
        for epoch in run.epochs(EPOCHS):
            run.log(rate=1 / (1 + epoch))
            total = 0
            for batch in run.batches(list(range(SAMPLES)), BATCH):
                total += sum(batch)
                best = max(best, *batch)
                table[str(run.step)] = len(batch)
                run.state["sum"] += sum(batch)
                run.log(batch=sum(batch))
                record(run.step, epoch, batch)
            run.log(total=total)
            seen.append(total)
        history = run.history
        result = {"seen": seen, "best": best, "table": table, "sum": run.state["sum"], "alias": alias is seen}
    """
)

TORCH = RECORDER + dedent(
    """
    import torch
    from torch import nn
    import jupyter_dlaas as dlaas
    torch.manual_seed(0)
    SAMPLES, BATCH, EPOCHS = 53, 8, 3
    class Points(torch.utils.data.Dataset):
        def __init__(self):
            g = torch.Generator().manual_seed(1)
            self.x = torch.randn(SAMPLES, 5, generator=g, dtype=torch.float64)
            self.y = (self.x.sum(1) > 0).long()
        def __len__(self):
            return SAMPLES
        def __getitem__(self, i):
            with open(out / f"read-{me}", "a") as file:
                file.write(f"{generation} {i}\\n")
            return self.x[i], self.y[i], i
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, 2)).double()
        def forward(self, x):
            return self.layers(x)
    model = Net()
    opt = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    scheduler = torch.optim.lr_scheduler.StepLR(opt, 1, 0.7)
    losses = []
    run = dlaas.run()
    model, opt, scheduler = run.prepare(model, opt, scheduler=scheduler)
    if __name__ == "__main__":
        for epoch in run.epochs(EPOCHS):
            for x, y, i in run.batches(Points(), BATCH):
                opt.zero_grad()
                loss = nn.functional.cross_entropy(model(x), y)
                loss.backward()
                opt.step()
                gang = run.internals.gang
                record(run.step, epoch, i.tolist() if len(i) and gang is None or gang.weight else [])
            scheduler.step()
            run.log(reduce="mean", loss=loss)
            losses.append(scheduler.get_last_lr()[0])
        history = run.history
        weights = model.state_dict()
    """
)


def trained(job: Job) -> dict[int, Counter[int]]:
    """Per epoch how often each sample counts, by the journal: what a later start took back does not count."""
    done: dict[tuple[str, int], list[int]] = {}
    epochs: dict[tuple[str, int], int] = {}
    key: tuple[str, int]
    for path in sorted(job.dir.glob("output/steps-*")):
        for line in path.read_text().splitlines():
            generation, step, epoch, samples = line.split(" ")
            key = (generation, int(step) - 1)
            done.setdefault(key, []).extend(int(one) for one in samples.split(",") if one)
            epochs[key] = int(epoch)
    counting: dict[int, str] = {}
    for fact in job.facts(FactKind.GENERATION, FactKind.COMMITTED):
        if fact.kind is FactKind.GENERATION:
            counting = {at: by for at, by in counting.items() if at < (fact.step or 0)}
        else:
            assert fact.first_step is not None
            assert fact.step is not None
            for at in range(fact.first_step, fact.step):
                assert at not in counting, f"step {at} was committed twice"
                counting[at] = str(fact.generation)
                assert epochs[str(fact.generation), at] == fact.epoch
    assert sorted(counting) == list(range(len(counting))), "a step is missing"
    result: dict[int, Counter[int]] = {}
    for number, by in counting.items():
        key = (by, number)
        result.setdefault(epochs[key], Counter()).update(done[key])
    return result


def assert_each_sample_once(job: Job, samples: int, epochs: int) -> None:
    assert trained(job) == {epoch: Counter(range(samples)) for epoch in range(epochs)}
