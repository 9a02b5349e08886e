"""Every verb of the command line, in a terminal, before the real engine."""

from __future__ import annotations

import json
from collections.abc import Callable

from tests.whole.site import Site, kill, until

Build = Callable[..., Site]
SLOW = "import time\nfor i in range(2000):\n    print('line', i, flush=True)\n    time.sleep(0.05)\n"


KEEPS = """
import os
import time
import jupyter_dlaas as dlaas

run = dlaas.run()

def train():
    first = process = None
    for epoch in run.epochs(1000):
        if process != os.getpid():  # a new one has the names of the last checkpoint
            first, process = epoch, os.getpid()
        (run.output_dir / "began").write_text(str(first))
        while (run.output_dir / "hold").exists():
            (run.output_dir / "held").touch()
            if run.internals.boundaries.wants_checkpoint:
                (run.output_dir / "heard").touch()
            time.sleep(0.01)
        time.sleep(0.02)

train()
"""


def test_killed_learner_continues_from_a_requested_checkpoint(site: Build) -> None:
    here = site()
    (here.work / "keeps.py").write_text(KEEPS)

    def dlaas(*words: str) -> str:
        return here.terminal("jupyter", "dlaas", *words)

    dlaas("submit", "keeps.py", "--checkpoint-every", "0")
    job = here.job("keeps")
    began = job.directory / "output" / "began"
    until(lambda: began.exists() and job.status == "PROCESSING", "it trains")
    assert "keeps" in dlaas("checkpoint", "keeps")
    until(lambda: "Requested checkpoint written" in dlaas("events", "keeps"), "it is kept")
    kill(next(iter(here.learners(job).values())))
    until(lambda: int(began.read_text() or 0) > 0, "it continues from the requested checkpoint")
    job.cancel()


def test_checkpoint_request_survives_the_death_of_a_learner(site: Build) -> None:
    here = site()
    job = here.submit(KEEPS, name="keeps", checkpoint_every="0")
    began, hold, held, heard = (job.directory / "output" / name for name in ("began", "hold", "held", "heard"))
    until(lambda: began.exists() and job.status == "PROCESSING", "it trains")
    hold.touch()
    until(held.exists, "it is between two boundaries, and comes to none")
    last = until(lambda: here.learners(job), "there is a learner")[0]
    job.checkpoint()
    until(heard.exists, "it heard that a checkpoint is asked for")
    kill(last)
    hold.unlink()
    until(lambda: "Requested checkpoint written" in job.events(), "the next learner keeps it")
    assert any(name.endswith("manifest.json") for name in job.artifacts())
    job.cancel()


def test_every_verb_works(site: Build) -> None:
    here = site()
    (here.work / "slow.py").write_text(SLOW)
    (here.work / "quick.py").write_text("answer = 42\nprint('hello from', __name__)\n")

    def dlaas(*words: str) -> str:
        return here.terminal("jupyter", "dlaas", *words)

    assert "slow-1" in dlaas("submit", "slow.py", "--gpus", "1:2")
    assert "behind-2" in dlaas("submit", "quick.py", "--name", "behind", "--gpus", "2")
    until(lambda: here.job("slow").status == "PROCESSING", "it runs")
    assert "behind-2" in dlaas("queue")
    assert "2 of 2 CPU slots in use" in dlaas("pool")
    assert "Needs 2 CPU slots at once" in dlaas("why", "behind")

    dlaas("scale", "slow", "1")
    until(lambda: "Stays at 2 learners" in dlaas("why", "slow"), "it would restart from the beginning")
    assert "line 0" in dlaas("logs", "slow")
    dlaas("halt", "slow", "--yes")  # a plain loop, which starts over
    until(lambda: here.job("slow").status == "HALTED", "it is halted")
    assert "hello from __main__" in dlaas("logs", "behind", "-f")
    dlaas("resume", "slow")
    until(lambda: here.job("slow").status == "PROCESSING", "it runs again")
    assert here.job("slow").view.size.held == 1, "as it was scaled"
    dlaas("cancel", "slow")
    until(lambda: here.job("slow").status == "CANCELLED", "it is cancelled")

    assert "behind-3" in dlaas("retry", "behind")
    assert "hello from __main__" in dlaas("attach", "behind-3")
    assert "Cancelled." in dlaas("events", "slow")
    assert "answer = 42" in dlaas("source", "behind")
    assert "hello from __main__" in dlaas("report", "behind")
    states = {one["id"]: one["state"] for one in json.loads(dlaas("jobs", "--json"))["jobs"]}
    assert states == {"slow-1": "CANCELLED", "behind-2": "COMPLETED", "behind-3": "COMPLETED"}
    assert " is running: process " in dlaas("engine", "status")
    dlaas("engine", "stop")
    until(lambda: not here.orphans(), "nothing is left", 10)


def test_a_log_of_any_length_is_printed_whole(site: Build) -> None:
    here = site()
    job = here.submit("for i in range(200_000):\n    print('line', i)\n", name="long")
    job.wait(60)

    lines = here.terminal("jupyter", "dlaas", "logs", "long").splitlines()
    assert [line for line in lines if line.startswith("line ")] == [f"line {i}" for i in range(200_000)]
