"""The watchdog of an engine, with small programs in the engine's place and the clock in the test's hand."""

from __future__ import annotations

import fcntl
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from jupyter_dlaas.runtime.fencing.engine_watchdog import DELAY_S, ENGINE, LOOK_S, OFF, EngineWatchdog
from jupyter_dlaas.runtime.system.process import JOB_MARK, environment_of
from tests.runtime.jobs import until

PROGRAM = """
import json, os, sys, time
folder = sys.argv[2]
stat = open("/proc/self/stat").read().rpartition(")")[2].split()
boot = open("/proc/sys/kernel/random/boot_id").read().strip()
open(folder + "/engine.sock", "w").close()
with open(folder + "/part", "w") as file:
    json.dump({"pid": os.getpid(), "start": int(stat[19]), "boot": boot}, file)
os.replace(folder + "/part", folder + "/engine.json")
time.sleep(600)
"""
BEGIN_S = 1000.0


def record(pool: Path) -> dict[str, Any]:
    path = pool / "engine.json"
    return json.loads(path.read_bytes()) if path.exists() else {}


@pytest.fixture
def pool(tmp_path: Path) -> Iterator[Path]:
    """Return a pool's directory. The engine that is left in it ends with the test."""
    yield tmp_path
    with suppress(ProcessLookupError, ChildProcessError, KeyError):
        os.kill(record(tmp_path)["pid"], signal.SIGKILL)
        os.waitpid(record(tmp_path)["pid"], 0)


Engine = subprocess.Popen[bytes]


def start(pool: Path, *more: str, **environment: str) -> Engine:
    command = [sys.executable, "-I", "-S", "-c", PROGRAM, ENGINE, str(pool), *more]
    process = subprocess.Popen(command, cwd=pool, env=environment)
    until(lambda: record(pool).get("pid") == process.pid, "the engine is up")
    return process


def kill(engine: Engine) -> None:
    engine.kill()
    engine.wait()


def test_a_killed_engine_is_started_again_as_it_was(pool: Path) -> None:
    engine = start(pool, "--idle-s", "7", MINE="yes", PATH=os.environ["PATH"])
    watchdog = EngineWatchdog(pool, BEGIN_S)
    assert (len(watchdog.fds()), watchdog.due()) == (1, None)
    kill(engine)

    watchdog.look(BEGIN_S + 10)
    assert watchdog.fds() == []
    assert record(pool)["pid"] == engine.pid, "a client goes first"
    assert watchdog.due() == BEGIN_S + 10 + DELAY_S
    watchdog.look(BEGIN_S + 10 + DELAY_S)

    again = record(pool)["pid"]
    assert again != engine.pid
    assert not watchdog.is_needed
    assert len(watchdog.fds()) == 1
    assert environment_of(again)["MINE"] == "yes"
    assert Path(f"/proc/{again}/cmdline").read_bytes().endswith(b"--idle-s\x007\x00")
    assert Path(f"/proc/{again}/cwd").readlink() == pool


@pytest.mark.parametrize("why", ["it ended by itself", "it is switched off"])
def test_an_engine_that_is_to_be_away_stays_away(pool: Path, why: str) -> None:
    engine = start(pool, **({OFF: "0"} if why == "it is switched off" else {}))
    watchdog = EngineWatchdog(pool, BEGIN_S)
    if why == "it ended by itself":
        (pool / "engine.sock").unlink()
    kill(engine)
    for wait_s in (0.0, 10.0, 100.0):
        watchdog.look(BEGIN_S + wait_s)

    assert record(pool)["pid"] == engine.pid
    assert not watchdog.is_needed
    assert watchdog.due() == BEGIN_S + 100 + LOOK_S


def test_foreign_engine_is_watched(pool: Path) -> None:
    kill(start(pool))
    (pool / "engine.sock").unlink()
    watchdog = EngineWatchdog(pool, BEGIN_S)
    assert watchdog.fds() == []
    other = start(pool)
    watchdog.look(BEGIN_S + LOOK_S)

    assert len(watchdog.fds()) == 1
    kill(other)


def test_of_many_watchdogs_one_starts_an_engine(pool: Path) -> None:
    engine = start(pool)
    first, second = EngineWatchdog(pool, BEGIN_S), EngineWatchdog(pool, BEGIN_S)
    kill(engine)
    first.look(BEGIN_S)
    second.look(BEGIN_S)
    lock = os.open(pool / "watchdog.lock", os.O_RDWR | os.O_CREAT)
    fcntl.flock(lock, fcntl.LOCK_EX)
    first.look(BEGIN_S + 2)
    assert record(pool)["pid"] == engine.pid, "another one is at it"
    os.close(lock)
    first.look(BEGIN_S + 4)
    again = record(pool)["pid"]
    second.look(BEGIN_S + 4)

    assert again != engine.pid
    assert record(pool)["pid"] == again
    assert not second.is_needed


GUARDIAN = """
import signal, sys
from pathlib import Path
from jupyter_dlaas.runtime.fencing import watchdog
watchdog.keep(Path(sys.argv[1]))
signal.pause()
"""


def test_watchdog_of_a_killed_guardian_outlasts_a_dying_engine(pool: Path) -> None:
    """Engine, guardian and learners are killed together, and the engine's process is the last one to end."""
    engine, job_dir = start(pool), pool / "jobs" / "a-1"
    job_dir.mkdir(parents=True)
    (job_dir / "guardian.sock").touch()  # one that ends by itself removes it
    guardian = subprocess.Popen([sys.executable, "-c", GUARDIAN, str(job_dir)])
    children = Path(f"/proc/{guardian.pid}/task/{guardian.pid}/children")
    watchdog = int(until(children.read_text, "the watchdog is up"))
    guardian.kill()
    guardian.wait()
    waiting = Path(f"/proc/{watchdog}/wchan")
    until(lambda: not waiting.exists() or "nanosleep" in waiting.read_text(), "it has looked for other processes")

    kill(engine)

    until(lambda: record(pool)["pid"] != engine.pid, "another engine is up")
    (job_dir / "guardian.sock").unlink()
    until(lambda: not waiting.exists(), "the watchdog ends with the job")


ENDING = """
import sys
from pathlib import Path
from jupyter_dlaas.runtime.fencing.lock import hold
from jupyter_dlaas.runtime.system.process import marked
lock = hold(Path(sys.argv[1]))
before = len(marked(sys.argv[1]))
lock.end_watchdog()
lock.end_watchdog()
print(before, len(marked(sys.argv[1])))
"""


def test_an_ending_guardian_is_the_last_process_of_its_job(tmp_path: Path) -> None:
    environment = {**os.environ, JOB_MARK: str(tmp_path)}
    said = subprocess.check_output([sys.executable, "-c", ENDING, str(tmp_path)], env=environment, text=True)
    assert said.split() == ["2", "1"]
