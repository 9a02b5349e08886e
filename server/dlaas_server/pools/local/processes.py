"""Processes of a job, found without its guardian: by mark, descent and session. Blocking."""

from __future__ import annotations

import time
from contextlib import suppress
from pathlib import Path
from typing import Final

from jupyter_dlaas.jobdir.journal_file import read_facts
from jupyter_dlaas.jobdir.journal_replay import replay
from jupyter_dlaas.runtime.fencing.lock import find_guardian
from jupyter_dlaas.runtime.system.process import Identity, boot_id, is_alive, kill_round, marked, stat_of

__all__ = ["end_processes", "is_deserted"]

KILL_S: Final = 10.0
LEAVE_S: Final = 2.0
"""Time for a watchdog, which checks twice a second whether it is the last process, to exit."""
_LOOK_S: Final = 0.05


def is_deserted(root: Path, within_s: float = LEAVE_S) -> bool:
    """Return whether no process of the job is left: none has its mark, holds its lock or listens on its socket.

    Waits for watchdogs, not for learners.
    """
    deadline = time.monotonic() + within_s
    while True:
        left = marked(str(root))
        if not left and find_guardian(root) is None:
            return True
        if any(member is not None for _, member in left) or time.monotonic() > deadline:
            return False
        time.sleep(_LOOK_S)


def end_processes(root: Path, guardian: Identity | None) -> bool:
    """Kill all processes of the job, including its guardian. Return whether none is left."""
    sessions = _sessions(root)
    roots = (guardian.pid,) if guardian is not None and is_alive(guardian) else ()
    deadline = time.monotonic() + KILL_S
    while kill_round(str(root), roots=roots, sessions=tuple(sessions), by_log=True):
        roots = ()
        if time.monotonic() > deadline:
            return False
        time.sleep(_LOOK_S)
    return is_deserted(root)


def _sessions(root: Path) -> set[Identity]:
    """Return the sessions of learners that are alive or whose end was not recorded."""
    living = {who for who, _ in marked(str(root)) if (stat := stat_of(who.pid)) is not None and stat.session == who.pid}
    with suppress(OSError):
        for fact in replay(read_facts(root / "journal.jsonl")[0]).up.values():
            if fact.pid is not None and fact.start is not None:
                living.add(Identity(fact.pid, fact.start, fact.boot or boot_id()))
    return living
