"""Every verb of the command line, in a terminal, before the real engine."""

from __future__ import annotations

import json
from collections.abc import Callable

from tests.whole.site import Site, until

Build = Callable[..., Site]
SLOW = "import time\nfor i in range(2000):\n    print('line', i, flush=True)\n    time.sleep(0.05)\n"


def test_every_verb_does_what_it_says(site: Build) -> None:
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
    until(lambda: here.job("slow").view.size.held == 1, "it shrank")
    assert "line 0" in dlaas("logs", "slow")
    dlaas("halt", "slow")
    until(lambda: here.job("slow").status == "HALTED", "it is halted")
    assert "hello from __main__" in dlaas("logs", "behind", "-f")
    dlaas("resume", "slow")
    until(lambda: here.job("slow").status == "PROCESSING", "it runs again")
    dlaas("cancel", "slow")
    until(lambda: here.job("slow").status == "CANCELLED", "it is cancelled")

    assert "behind-3" in dlaas("retry", "behind")
    assert "hello from __main__" in dlaas("attach", "behind-3")
    assert "Cancelled." in dlaas("story", "slow")
    assert "answer = 42" in dlaas("source", "behind")
    assert "hello from __main__" in dlaas("report", "behind")
    states = {one["id"]: one["state"] for one in json.loads(dlaas("jobs", "--json"))["jobs"]}
    assert states == {"slow-1": "CANCELLED", "behind-2": "COMPLETED", "behind-3": "COMPLETED"}
    assert " runs: process " in dlaas("engine", "status")
    dlaas("engine", "stop")
    until(lambda: not here.orphans(), "nothing is left", 10)
