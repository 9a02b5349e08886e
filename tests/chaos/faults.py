"""Faults put into a running pool: SIGKILL and SIGSTOP of each process that takes part, alone and in pairs."""

from __future__ import annotations

import os
import random
import signal
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Final

from tests.chaos.pool import API_ERRORS, ChaosPool
from tests.whole.site import is_gone

__all__ = ["FAULTS", "clicks", "inject"]

Find = Callable[[ChaosPool, str, random.Random], list[int]]


def _engine(pool: ChaosPool, job: str, chance: random.Random) -> list[int]:
    pid = pool.engine_pid()
    return [] if pid is None else [pid]


def _guardian(pool: ChaosPool, job: str, chance: random.Random) -> list[int]:
    pid = pool.guardian_pid(job)
    return [] if pid is None else [pid]


def _learner(pool: ChaosPool, job: str, chance: random.Random) -> list[int]:
    pids = pool.learner_pids(job)
    return [chance.choice(pids)] if pids else []


def _gang(pool: ChaosPool, job: str, chance: random.Random) -> list[int]:
    return pool.learner_pids(job)


def _zygote(pool: ChaosPool, job: str, chance: random.Random) -> list[int]:
    pids = pool.zygote_pids()
    return [chance.choice(pids)] if pids else []


def _rendezvous(pool: ChaosPool, job: str, chance: random.Random) -> list[int]:
    pid = pool.status(job).get("store", {}).get("pid")
    return [] if pid is None or is_gone(pid) else [pid]


def _server(pool: ChaosPool, job: str, chance: random.Random) -> list[int]:
    return [one.pid for one in pool.site.servers if one.poll() is None]


def _together(*finds: Find) -> Find:
    return lambda pool, job, chance: [pid for find in finds for pid in find(pool, job, chance)]


FAULTS: Final[Mapping[str, tuple[float, Find]]] = {
    "engine": (3.0, _engine),
    "guardian": (3.0, _guardian),
    "learner": (3.0, _learner),
    "gang": (1.0, _gang),
    "zygote": (1.0, _zygote),
    "rendezvous": (0.5, _rendezvous),
    "Jupyter server": (1.0, _server),
    "engine and guardian": (1.0, _together(_engine, _guardian)),
    "engine and learner": (1.0, _together(_engine, _learner)),
    "guardian and learner": (1.0, _together(_guardian, _learner)),
    "engine, guardian and learner": (1.0, _together(_engine, _guardian, _learner)),
}
"""What is hit: how often in proportion, and which processes of a job that is."""


def inject(pool: ChaosPool, job: str, chance: random.Random) -> str | None:
    """Kill or stop something of a job's; what was done, or None where there was nothing to hit."""
    name = chance.choices([*FAULTS], [weight for weight, _ in FAULTS.values()])[0]
    pids = FAULTS[name][1](pool, job, chance)
    if not pids:
        return None
    if chance.random() < 0.2:
        seconds = chance.uniform(0.1, 3.0)
        _send(pids, signal.SIGSTOP)
        threading.Timer(seconds, _send, (pids, signal.SIGCONT)).start()
        return f"{name} of {job} stopped for {seconds:.1f} s"
    _send(pids, signal.SIGKILL)
    return f"{name} of {job} killed"


def clicks(pool: ChaosPool, job: str, chance: random.Random) -> str | None:
    """Act as a user meanwhile: another size, halt and resume, a checkpoint. Lost if no engine answers."""
    what = chance.choice(["resize", "resize", "checkpoint", "halt and resume"])
    with suppress(*API_ERRORS):
        if what == "resize":
            pool.request("PATCH", f"/dlaas/jobs/{job}", {"learners": chance.randint(1, 3)})
        elif what == "checkpoint":
            pool.request("POST", f"/dlaas/jobs/{job}/checkpoint", {})
        else:
            pool.request("POST", f"/dlaas/jobs/{job}/halt", {})
            time.sleep(chance.uniform(0.0, 0.5))
            pool.request("POST", f"/dlaas/jobs/{job}/resume", {})
        return f"{what} of {job}"
    return None


def _send(pids: list[int], number: int) -> None:
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, number)
