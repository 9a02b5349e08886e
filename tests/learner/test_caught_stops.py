"""Programs that catch the request to stop, or handle SIGTERM: a halt succeeds, and nothing hangs silently."""

from __future__ import annotations

import signal
from collections.abc import Callable
from typing import Final

import pytest

from jupyter_dlaas.runtime.guardian.exit_status import read_result
from jupyter_dlaas.wire.journal import FactKind
from tests.runtime.jobs import Job, until

Build = Callable[..., Job]

HEAD: Final = """
import contextlib, os, pathlib, signal, sys, threading, time
from concurrent.futures import ThreadPoolExecutor
import numpy as np
import jupyter_dlaas as dlaas

out = pathlib.Path(os.environ["DLAAS_JOB_DIR"]) / "output"
run = dlaas.run()
seen = []

def loop():
    for epoch in run.epochs(4):
        for batch in run.batches(np.arange(40), 4, shuffle=False):
            seen.append(int(batch[0]))
            begun()

def begun():
    (out / "up").touch()
    while len(seen) >= 13 and not (out / "go").exists() and not run.should_stop:
        time.sleep(0.01)
"""
CAUGHT: Final = {
    "except in a while loop": """
while True:
    try:
        loop()
        break
    except:
        pass
""",
    "except within an epoch": """
for epoch in run.epochs(4):
    try:
        for batch in run.batches(np.arange(40), 4, shuffle=False):
            seen.append(int(batch[0]))
            begun()
    except BaseException:
        continue
""",
    "suppress": """
with contextlib.suppress(BaseException):
    loop()
""",
    "return in finally": """
def train():
    try:
        loop()
    finally:
        return
train()
""",
    "exit in except": """
try:
    loop()
except BaseException:
    sys.exit(3)
""",
    "another error in except": """
try:
    loop()
except BaseException as error:
    raise ValueError("not trained") from error
""",
    "thread": """
thread = threading.Thread(target=loop)
thread.start()
thread.join()
""",
    "pool of threads": """
with ThreadPoolExecutor(1) as pool, contextlib.suppress(BaseException):
    pool.submit(loop).result()
""",
    "ignored signal": """
signal.signal(signal.SIGTERM, signal.SIG_IGN)
loop()
""",
}
END: Final = """
(out / "seen").write_text(" ".join(map(str, seen)))
"""
PLAIN: Final = """
import contextlib, os, pathlib, signal, sys, time

out = pathlib.Path(os.environ["DLAAS_JOB_DIR"]) / "output"
def step():
    (out / "up").touch()
    time.sleep(0.01)
"""
GOES_ON: Final = {
    "except": (
        "while True:\n    try: step()\n    except: pass\n",
        "caught the request to stop and continues in train.py",
    ),
    "finally": ("while True:\n    try: step()\n    finally: continue\n", "caught the request"),
    "own handler": (
        "signal.signal(signal.SIGTERM, lambda *_: None)\nwhile True: step()\n",
        "handles SIGTERM itself and continues in train.py",
    ),
    "ignored": ("signal.signal(signal.SIGTERM, signal.SIG_IGN)\nwhile True: step()\n", "handles SIGTERM itself"),
}
ENDS: Final = {
    "suppress": "with contextlib.suppress(BaseException):\n    while True: step()\n",
    "except": "try:\n    while True: step()\nexcept SystemExit:\n    (out / 'saved').touch()\n",
    "own handler": """
stops = []
signal.signal(signal.SIGTERM, lambda *_: stops.append(1))
while not stops: step()
""",
}


def begun(one: Job) -> None:
    one.run()
    until(lambda: one.output("up").exists(), one.report)


@pytest.mark.parametrize("case", CAUGHT)
def test_halt_of_a_loop_that_catches_it_loses_nothing(plain_job: Build, case: str) -> None:
    one = plain_job(HEAD + CAUGHT[case] + END)
    begun(one)

    one.halt()

    assert one.closed() == "halted", one.report()
    assert one.wait(FactKind.HALTED).has_checkpoint
    down = one.wait(FactKind.LEARNER_DOWN)
    assert (down.signal, down.failure) == (None, None)
    one.output("go").touch()
    one.run()
    assert one.closed(2) == "completed"
    assert one.lines("seen")[0] == " ".join(str(4 * (step % 10)) for step in range(40))


@pytest.mark.parametrize("case", ["except in a while loop", "thread"])
def test_cancel_of_a_loop_that_catches_it_ends_the_job(plain_job: Build, case: str) -> None:
    one = plain_job(HEAD + CAUGHT[case] + END)
    begun(one)

    one.stop(grace_s=0.5)

    assert one.closed() == "stopped"


@pytest.mark.parametrize("case", GOES_ON)
def test_a_program_that_continues_despite_a_halt_is_reported(plain_job: Build, case: str) -> None:
    source, text = GOES_ON[case]
    one = plain_job(PLAIN + source)
    begun(one)

    one.halt()

    until(lambda: text in one.log() and "It is killed when its grace period ends." in one.log(), one.report)
    one.stop(grace_s=0.0)
    assert one.closed() == "stopped"
    assert one.wait(FactKind.LEARNER_DOWN).signal == signal.SIGKILL


@pytest.mark.parametrize("case", ENDS)
def test_a_halted_program_that_ends_normally_is_not_completed(plain_job: Build, case: str) -> None:
    one = plain_job(PLAIN + ENDS[case])
    begun(one)

    one.halt()

    assert one.closed() == "halted"
    result = read_result(one.dir, 0)
    assert result is not None
    assert result.is_stopped
    assert not one.facts(FactKind.LOST)


def test_a_program_that_signals_itself_completes(plain_job: Build) -> None:
    source = "signal.signal(signal.SIGTERM, lambda *_: None)\nos.kill(os.getpid(), signal.SIGTERM)\n"
    one = plain_job(PLAIN + source)
    one.run()

    assert one.closed() == "completed"


def test_own_handlers_are_returned_as_they_were_set(plain_job: Build) -> None:
    one = plain_job(
        PLAIN + "def own(*_): pass\n"
        "assert signal.signal(signal.SIGTERM, own).__name__ == 'on_term'\n"
        "assert signal.signal(signal.SIGTERM, signal.SIG_DFL) is own\n"
        "assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL\n"
    )
    one.run()

    assert one.closed() == "completed", one.report()


def test_a_long_save_in_a_finally_is_not_reported(plain_job: Build) -> None:
    source = "try:\n    while True: step()\nfinally:\n    time.sleep(3)\n    (out / 'saved').touch()\n"
    one = plain_job(PLAIN + source)
    begun(one)

    one.halt()

    assert one.closed() == "halted"
    assert one.output("saved").exists()
    assert one.log() == ""


def test_an_exit_handler_that_hangs_after_a_halt_is_named(plain_job: Build) -> None:
    one = plain_job(PLAIN + "import atexit\natexit.register(time.sleep, 1000)\nwhile True: step()\n")
    begun(one)

    one.halt()

    until(lambda: "[The program has finished. The job waits until its grace period ends" in one.log(), one.report)
    one.stop(grace_s=0.0)
    assert one.closed() == "stopped"


def test_exit_in_the_loop_completes_the_job(plain_job: Build) -> None:
    one = plain_job(HEAD + "for epoch in run.epochs(4):\n    if epoch == 2: sys.exit()\n")
    one.run()

    assert one.closed() == "completed"
