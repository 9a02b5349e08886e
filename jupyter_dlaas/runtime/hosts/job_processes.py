"""Processes of a job on this machine: those of an earlier guardian, orphans, and what learners leave behind."""

from __future__ import annotations

import os
import time
from collections.abc import Collection, Iterable, Mapping
from contextlib import suppress
from typing import Final

from jupyter_dlaas.runtime.system.process import Identity, kill_round, marked, open_process

__all__ = ["end_processes", "find_living", "reap_orphans"]

ROUND_S: Final = 0.002
STARTED_S: Final = 1.0
"""Seconds within which a process appears that an earlier guardian was starting when it was killed."""


def find_living(
    job_dir: str, known: Mapping[int, Identity], ever: Collection[int], expected: Collection[int]
) -> dict[int, tuple[Identity, int]]:
    """Find the living learners of an earlier guardian: member -> identity and pidfd.

    The journal names them (`known`). If the guardian died after starting a learner and before recording it, the job's
    mark in the process environment finds it: among the processes with the mark of a member that the journal never named
    (`ever`), the oldest is the learner and the others are its children. The `expected` ones may still appear.
    """
    deadline = time.monotonic() + (STARTED_S if expected else 0.0)
    while True:
        candidates = dict(known)
        for process, number in marked(job_dir):
            if number is not None and number not in ever:
                candidates.setdefault(number, process)
        living = {}
        for member, process in sorted(candidates.items()):
            fd = open_process(process, job_dir)
            if fd is not None:
                living[member] = (process, fd)
        if not set(expected) - set(living) - set(ever) or time.monotonic() >= deadline:
            return living
        for _, fd in living.values():
            os.close(fd)
        time.sleep(0.01)


def end_processes(
    job_dir: str,
    within_s: float,
    *,
    member: int | None = None,
    sessions: Iterable[Identity] = (),
    roots: Iterable[int] = (),
    by_log: bool = False,
) -> bool:
    """Kill all processes that a learner, or the job, left behind. Return whether none is left."""
    deadline = time.monotonic() + within_s
    while kill_round(job_dir, member=member, sessions=tuple(sessions), roots=tuple(roots), by_log=by_log):
        if time.monotonic() > deadline:
            return False
        time.sleep(ROUND_S)
    return True


def reap_orphans(spared: Collection[int]) -> None:
    """Reap ended processes that this process started or inherited. Learners (`spared`) are left to their host."""
    with suppress(ChildProcessError):
        while (found := os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)) is not None:
            if found.si_pid in spared:
                return  # the host reaps it in its next turn, and the others follow
            os.waitpid(found.si_pid, os.WNOHANG)
