"""Watchdog of a job: ends all processes of a job that no guardian guards any more.

A learner whose native code blocks all Python threads cannot end itself, and the kernel has no timer that starts when
another process ends. So each guardian forks a watchdog, which shares its memory and sleeps until the guardian ends. The
process is also the engine's watchdog.
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

__all__ = ["keep", "watch"]

_LOOK_S: Final = 0.5
_ENGINE_S: Final = 30.0


def keep(job_dir: Path) -> int:
    """Fork the watchdog of this process, the job's guardian, and return its pidfd."""
    me = os.pidfd_open(os.getpid())
    pid = launch.fork(lambda: watch(job_dir, me))
    os.close(me)
    return os.pidfd_open(pid)  # a child keeps its pid until this process reaps it


def watch(job_dir: Path, guardian: int) -> None:
    """Wait for the end of the guardian of this pidfd. If no other takes over in time, kill all processes of the job."""
    os.setsid()
    os.chdir("/")
    signal.set_wakeup_fd(-1)
    for number in (signal.SIGCHLD, signal.SIGTERM):
        signal.signal(number, signal.SIG_DFL)
    launch.close_all_but((guardian,))
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # no process waits for an engine that is started here
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
    # The engine must learn of the job's end. It may be dying as well: its process can outlive those of the job.
    while (engine.is_needed or (engine.is_known and _is_abandoned(job_dir))) and time.monotonic() < end_s:
        time.sleep(_LOOK_S)
        engine.look(time.monotonic())


def _await(guardian: int, engine: EngineWatchdog) -> bool:
    """Sleep until there is an event. Return whether the guardian has ended."""
    due_s = engine.due()
    timeout_s = None if due_s is None else max(0.0, due_s - time.monotonic())
    return guardian in select.select([guardian, *engine.fds()], [], [], timeout_s)[0]


def _others(job_dir: Path) -> bool:
    return any(who.pid != os.getpid() for who, _ in marked(str(job_dir)))


def _is_abandoned(job_dir: Path) -> bool:
    """Return whether the guardian was killed and none has replaced it. One that ends by itself removes its socket."""
    return (job_dir / "guardian.sock").exists() and not _is_guarded(job_dir)


def _is_guarded(job_dir: Path) -> bool:
    """Return whether a guardian listens. The lock is not tried: even a short hold would keep out the next guardian."""
    try:
        connect(socket.SOCK_STREAM, job_dir / "guardian.sock", timeout_s=1.0).close()
    except (TimeoutError, BlockingIOError):
        return True  # a stopped guardian
    except OSError:
        return False
    return True
