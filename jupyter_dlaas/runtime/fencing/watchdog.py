"""Who sees to it that no process of a job is left when nobody guards it any more.

A learner whose native code lets no thread of Python run cannot end itself, and the kernel knows no timer that begins
when another process ends. So each guardian forks a keeper, which shares its memory and sleeps until the guardian's end.
It is the engine's watchdog, too.
"""

from __future__ import annotations

import os
import select
import signal
import socket
import time
from pathlib import Path
from typing import Final

from jupyter_dlaas.jobdir.atomic_files import connect
from jupyter_dlaas.runtime.fencing.engine_watchdog import EngineWatchdog
from jupyter_dlaas.runtime.spawn import launch
from jupyter_dlaas.runtime.system.orphan_ttl import last_s
from jupyter_dlaas.runtime.system.process import kill_round, marked

__all__ = ["keep"]

_LOOK_S: Final = 0.5
_ENGINE_S: Final = 30.0


def keep(job_dir: Path) -> None:
    """Fork the keeper of this process, the job's guardian."""
    me = os.pidfd_open(os.getpid())
    launch.fork(lambda: _keep(job_dir, me))
    os.close(me)


def _keep(job_dir: Path, guardian: int) -> None:
    """Wait for its end. If no other one takes over for too long, end whatever is left of the job."""
    os.setsid()
    os.chdir("/")
    signal.set_wakeup_fd(-1)
    for number in (signal.SIGCHLD, signal.SIGTERM):
        signal.signal(number, signal.SIG_DFL)
    launch.close_all_but((guardian,))
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for an engine that is started here
    engine = EngineWatchdog(job_dir.parent.parent, time.monotonic())
    while not _await(guardian, engine):
        engine.look(time.monotonic())
    end_s = time.monotonic() + last_s()
    while _others(job_dir) and not _is_guarded(job_dir):
        engine.look(time.monotonic())
        if time.monotonic() >= end_s:
            kill_round(str(job_dir))
        time.sleep(_LOOK_S)
    engine.look(time.monotonic())
    end_s = time.monotonic() + _ENGINE_S
    while engine.is_needed and time.monotonic() < end_s:  # the job has ended, and the engine must know
        time.sleep(_LOOK_S)
        engine.look(time.monotonic())


def _await(guardian: int, engine: EngineWatchdog) -> bool:
    """Sleep until there is something to look at; whether the guardian has ended."""
    due_s = engine.due()
    timeout_s = None if due_s is None else max(0.0, due_s - time.monotonic())
    return guardian in select.select([guardian, *engine.fds()], [], [], timeout_s)[0]


def _others(job_dir: Path) -> bool:
    return any(who.pid != os.getpid() for who, _ in marked(str(job_dir)))


def _is_guarded(job_dir: Path) -> bool:
    """Whether a guardian listens. Its lock is not tried: who takes it, if only to look, keeps the next one out."""
    try:
        connect(socket.SOCK_STREAM, job_dir / "guardian.sock", timeout_s=1.0).close()
    except (TimeoutError, BlockingIOError):
        return True  # one that is stopped
    except OSError:
        return False
    return True
