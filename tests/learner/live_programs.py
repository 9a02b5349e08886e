"""A training program for changes while it trains, and the checker of what it trained."""

from __future__ import annotations

from collections.abc import Collection
from textwrap import dedent
from typing import Any

from jupyter_dlaas.transfer.results import load
from jupyter_dlaas.wire.journal import FactKind
from tests.learner.coverage import check
from tests.runtime.jobs import DEADLINE_S, Job, until

# Each learner writes which samples it trained in which step, and in which group. It takes its time until the file
# `hurry` is there.
LIVE = dedent(
    """
    import os, pathlib, time
    import torch
    from torch import nn
    import jupyter_dlaas as dlaas
    from jupyter_dlaas.learner.elastic import state_transfer as carrying
    carrying._LEAST = 64  # so that these few weights go the way of large ones
    out = pathlib.Path(os.environ["DLAAS_JOB_DIR"]) / "output"
    me = os.environ["DLAAS_MEMBER"]
    torch.manual_seed(0)
    SAMPLES, BATCH, EPOCHS = 101, 12, 60
    data = torch.randn(SAMPLES, 5, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    labels = (data.sum(1) > 0).long()
    model = nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, 2)).double()
    opt = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    scheduler = torch.optim.lr_scheduler.StepLR(opt, 1, 0.9)
    losses = []
    if __name__ == "__main__":
        run = dlaas.run()
        model, opt, scheduler = run.prepare(model, opt, scheduler=scheduler)
        for epoch in run.epochs(EPOCHS):
            for x, y, i in run.batches((data, labels, torch.arange(SAMPLES)), BATCH):
                mine = i.tolist() if run.internals.gang.weight and not run.internals.is_joining else []
                row = [run.internals.boundaries.membership_epoch, run.step, epoch, run.world_size]
                with open(out / f"live-{me}", "a") as file:
                    print(*row, ",".join(map(str, mine)), file=file)
                opt.zero_grad()
                loss = nn.functional.cross_entropy(model(x), y)
                loss.backward()
                opt.step()
                time.sleep(0.0 if (out / "hurry").exists() else 0.03)
            scheduler.step()
            run.log(loss=loss, size=run.world_size)
            losses.append(scheduler.get_last_lr()[0])
        history = run.history
        weights = {name: value.clone() for name, value in model.state_dict().items()}
    """
)

FAULTS = dedent(
    """
    def fault():
        do = out / f"do-{me}"
        if not do.exists():
            return
        what = do.read_text()
        do.unlink()
        if what == "hang":
            import threading
            threading.Event().wait()
        elif what == "hold":
            import ctypes
            ctypes.PyDLL(None).pause()
        elif what == "block":
            import signal, threading
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            threading.Event().wait()
        elif what == "compute":
            end = time.monotonic() + 4
            while time.monotonic() < end:
                torch.ones(100, 100) @ torch.ones(100, 100)
        elif what == "sleep":
            time.sleep(4)
        elif what == "call":
            import subprocess, sys
            spin = "import time; end = time.monotonic() + 4\\nwhile time.monotonic() < end: pass"
            subprocess.run([sys.executable, "-c", spin])
        elif what == "raise":
            raise ValueError("this one only")
        elif what == "exit":
            raise SystemExit(0)
        elif what == "kill worker":
            import multiprocessing
            os.kill(multiprocessing.active_children()[0].pid, 9)
    """
).lstrip()
"""`fault()` does what the file `do-MEMBER` says."""

DEATHS = dedent(
    """
    import json
    from jupyter_dlaas.learner.control import boundaries as halting
    from jupyter_dlaas.learner.training_run import membership as regrouping
    def die(phase):
        todo = out / f"die-{me}"
        words = todo.read_text().split() if todo.exists() else [""]
        if words[0] == phase:
            todo.unlink()
            status = json.loads((out.parent / "status.json").read_text())
            number = 19 if words[1] == "stop" else 9
            for who in words[1 + (number == 19):]:
                os.kill(status["pid"] if who == "guardian" else status["learners"][who]["pid"], number)
    on_message, enter = halting.Boundaries._on_message, regrouping.LearnerMembership._enter
    def hear(self, message):
        phase = message.KIND
        die(phase if phase != "switch" else "recover" if message.boundary is None else "commit")
        on_message(self, message)
    def go(self, *arguments):
        die("switch")
        content = enter(self, *arguments)
        die("entered")
        return content
    halting.Boundaries._on_message, regrouping.LearnerMembership._enter = hear, go
    """
).lstrip()
"""A process is killed when a learner comes to a phase of a change: the file `die-MEMBER` holds "PHASE MEMBER…" or
"PHASE guardian"; "PHASE stop MEMBER…" stops them. Spawn: it rehearses; build, propose, commit, recover: it hears of it;
switch: it enters the new group; entered: it is in it, with the others' state."""

# The same, where a learner does in its next step what the file `do-MEMBER` says.
FAULTY = LIVE.replace("opt.zero_grad()", "fault(); opt.zero_grad()").replace("losses = []\n", "losses = []\n" + FAULTS)

# The same, where a process is killed when a learner comes to a phase of a change.
PHASES = FAULTY.replace("losses = []\n", "losses = []\n" + DEATHS, 1).replace(
    "fault();", "fault(); run.internals.is_joining and die('spawn');"
)


def result(job: Job, name: str) -> Any:
    return load((job.dir / "results" / f"{name}.bin").read_bytes())


def trains(job: Job, member: int, steps: int = 2, size: int | None = None, *, deadline_s: float = DEADLINE_S) -> None:
    """Wait until a learner has trained some more steps (with so many learners)."""

    def count() -> int:
        rows = [line.split(" ") for line in job.lines(f"live-{member}") if line.count(" ") == 4]
        return sum(1 for row in rows if row[4] and (size is None or row[3] == str(size)))

    before = count()
    until(lambda: count() >= before + steps, lambda: f"member {member} trains\n{job.report()}", deadline_s)
    job.wait(FactKind.GENERATION, deadline_s=deadline_s)  # else who dies next would die of a start


def assert_each_sample_once(job: Job, samples: int, epochs: int, *, without: Collection[int] = ()) -> None:
    """By the journal. That each step changed the weights once is seen at the weights."""
    check(job.facts(), job.dir / "output", [one for one in range(samples) if one not in without], epochs)
