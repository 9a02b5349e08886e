"""A program that trains for as long as its test needs, and how far it is."""

from __future__ import annotations

import re

from jupyter_dlaas.api.jobs import Job
from jupyter_dlaas.wire.protocol import JobView
from tests.whole.site import Site, until

# It takes its time until the file `hurry` is in its directory.
TRAINING = """
import pathlib, time
import torch
import jupyter_dlaas as dlaas
torch.manual_seed(0)
data = torch.randn(64, 4)
model = torch.nn.Linear(4, 1)
opt = torch.optim.SGD(model.parameters(), lr=0.01)
run = dlaas.run()
model, opt = run.prepare(model, opt)
seen = 0
for epoch in run.epochs({epochs}):
    {first}
    for batch in run.batches(data, 16):
        opt.zero_grad()
        loss = model(batch).square().mean()
        loss.backward()
        opt.step()
        seen += 1
        time.sleep(0 if pathlib.Path("hurry").exists() else {step_s})
    run.log(loss=loss)
    {last}
print("trained steps", seen, flush=True)
"""
# It runs until the file `enough` is in its directory.
BRIEF = "import pathlib, time\nwhile not pathlib.Path('enough').exists():\n    time.sleep(0.01)\n"


def training(epochs: int = 100_000, step_s: float | str = 0.01, *, first: str = "pass", last: str = "pass") -> str:
    """Four steps an epoch. `step_s` may be an expression; `first` and `last` are done in each epoch."""
    return TRAINING.format(epochs=epochs, step_s=step_s, first=first, last=last)


def hurry(here: Site) -> None:
    (here.work / "hurry").touch()


def step_of(job: Job) -> int:
    progress = job.view.progress
    return progress.step if progress else 0


def trains(job: Job, beyond: int = 4) -> None:
    until(lambda: step_of(job) > beyond, f"{job.id} trains")


def submit_brief(here: Site, name: str, gpus: str, **options: str) -> Job:
    """Submit an ordinary job and wait until it runs; `end_brief` ends it."""
    job = here.submit(BRIEF, name=name, gpus=gpus, **options)
    until(lambda: job.status == "PROCESSING", f"{name} runs", 90)
    return job


def end_brief(here: Site, job: Job) -> None:
    (here.work / "enough").touch()
    job.wait(60)


def waiting_at(job: Job) -> tuple[JobView, int]:
    """Wait until the job is back in the queue. Return its view, and the step from which it continues."""
    until(lambda: job.status == "QUEUED", f"{job.id} is back in the queue", 20)
    view = job.last_view
    found = re.search(r"Nothing was lost: it continues from step (\d+)", view.reason)
    assert found is not None, view.reason
    assert int(found[1]) > 0
    return view, int(found[1])


def assert_in_order(events: str, *entries: str) -> None:
    """Assert that the events has these entries, in this order."""
    places = [events.rindex(entry) for entry in entries]
    assert places == sorted(places), events
