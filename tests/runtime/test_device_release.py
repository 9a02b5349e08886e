"""A device is free only when no process of the job is left, also none that hides."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from jupyter_dlaas.wire.journal import FactKind
from tests.runtime.jobs import Job, until

Build = Callable[..., Job]

DAEMON = """
import os, sys, time
out = os.environ["DLAAS_JOB_DIR"] + "/output/"
clock = (
    "import sys, time\\n"
    "with open(sys.argv[1], 'w') as file:\\n"
    "    while True:\\n"
    "        file.seek(0)\\n"
    "        file.write(f'{time.clock_gettime(time.CLOCK_BOOTTIME):020.6f}')\\n"
    "        file.flush()\\n"
    "        time.sleep(0.0005)\\n"
)
if os.fork() == 0:  # a daemon by the book: a session of its own, no parent, and no mark in its environment
    os.setsid()
    if os.fork() == 0:
        os.execve(sys.executable, [sys.executable, "-S", "-E", "-c", clock, out + "clock"], {})
    os._exit(0)
os.wait()
while not (os.path.exists(out + "clock") and open(out + "clock").read()):
    time.sleep(0.01)
open(out + "up", "w").close()
"""


@pytest.mark.parametrize(
    ("ending", "fact"),
    [("", FactKind.COMPLETED), ("time.sleep(1000)", FactKind.LEARNER_DOWN)],
    ids=["completed", "halted"],
)
def test_hidden_processes_end_before_the_last_seat_is_released(job: Build, ending: str, fact: FactKind) -> None:
    one = job(DAEMON + ending)
    one.run()
    until(one.output("up").exists, one.report)
    if ending:
        one.halt()

    released = one.wait(fact)
    one.closed()
    until(lambda: not one.processes(), "the guardian itself is gone")

    assert float(one.output("clock").read_text()) <= released.up_s + 0.001  # facts are stamped in milliseconds
