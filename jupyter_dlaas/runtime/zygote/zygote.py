"""Zygote of a pool: a fork server with all modules imported, nothing computed and no GPU touched.

`python -P -m jupyter_dlaas.runtime.zygote.zygote SOCKET KIND` with KIND lean or torch. Guardians are forks of it. It is
only an optimisation: a caller that gets no answer starts the guardian directly. In addition to the rules of `preload`,
garbage collection is off, and its objects are frozen before the first fork.
"""

from __future__ import annotations

import fcntl
import gc
import importlib
import json
import os
import select
import signal
import socket
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

from jupyter_dlaas.jobdir.atomic_files import bind
from jupyter_dlaas.jobdir.checkpoint_manifest import Manifest
from jupyter_dlaas.runtime.fencing import watchdog
from jupyter_dlaas.runtime.guardian import entrypoint
from jupyter_dlaas.runtime.guardian.exit_status import Result, reap
from jupyter_dlaas.runtime.spawn import huge_pages, launch, preload
from jupyter_dlaas.runtime.spawn.after_fork import openblas, wake
from jupyter_dlaas.runtime.spawn.forked_ahead import Parked, fork_ahead, wait_as_learner
from jupyter_dlaas.runtime.spawn.spawner import Origin
from jupyter_dlaas.runtime.system.inotify import Watch
from jupyter_dlaas.runtime.system.process import boot_id, identity, marked, stat_of, thread_count
from jupyter_dlaas.wire.codec import decode, encode, prepare
from jupyter_dlaas.wire.journal import (
    FACT_TYPES,
    GenerationLost,
    Goal,
    MemberWanted,
    Wanted,
    fact_from_line,
    fact_to_line,
)
from jupyter_dlaas.wire.learner_messages import prepare_messages
from jupyter_dlaas.wire.protocol import Cause, Failure, JobSpec, Progress, Where
from jupyter_dlaas.wire.step_range import Range

__all__ = ["main"]

IDLE_S: Final = 30 * 60.0
PARK_DELAY_S: Final = 0.03
"""Seconds without a request after which processes are forked ahead again: not while a job that was just given starts.

On a busy zygote, forking ahead would save nothing. Once all of its jobs have ended, it forks ahead at once.
"""
QUIET_S: Final = 0.2
"""Seconds without a job before the long part of a learner's rehearsal: many small jobs may come in a row."""
WATCHDOG_DELAY_S: Final = 0.05
"""Seconds in which a watchdog only waits for its guardian's end: first the job starts, which may end at once."""


class Zygote:
    """Server that answers one request at a time until it is idle for too long or no longer fit to fork."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._seen = preload.places()
        self._parked: Parked | None = None
        self._guardians: set[int] = set()
        """The guardians at work, by pid."""
        self._wake_r, self._wake_w = socket.socketpair()
        self._wake_w.setblocking(False)
        self._wake_r.setblocking(False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(self._wake_w.fileno(), warn_on_full_buffer=False)
        part = path.with_suffix(".new")
        self._listener = bind(socket.SOCK_SEQPACKET, part, listen=64)
        self._park()
        part.rename(path)  # clients that can connect find a zygote that is ready

    def serve(self) -> None:
        """Serve until the zygote ends."""
        last_s = time.monotonic()
        park_at_s: float | None = None
        while time.monotonic() - last_s < IDLE_S and preload.has_memory():
            within_s = 60.0 if park_at_s is None else max(0.0, park_at_s - time.monotonic())
            ready, _, _ = select.select([self._listener, self._wake_r], [], [], within_s)
            if self._wake_r in ready:
                with suppress(BlockingIOError):
                    while self._wake_r.recv(4096):
                        pass
                self._reap()
            if self._listener in ready:
                last_s = time.monotonic()
                caller, _ = self._listener.accept()
                with caller:
                    if not self._answer(caller):
                        break
                park_at_s = last_s + PARK_DELAY_S if self._parked is None else None
            elif park_at_s is not None and (not self._guardians or time.monotonic() >= park_at_s):
                park_at_s = None
                self._park()
        self._path.unlink(missing_ok=True)

    def _reap(self) -> None:
        ended = reap()
        self._guardians.difference_update(ended)
        if self._parked is not None and self._parked.pid in ended:
            self._parked.line.close()
            self._parked = None

    def _answer(self, caller: socket.socket) -> bool:
        """Serve one request. Return False if the zygote must end."""
        caller.settimeout(1.0)
        try:
            request = json.loads(caller.recv(1 << 16))
            if request.get("op") == "end":
                return False
            why_not = preload.unfit(self._seen)
            if why_not is not None:
                caller.send(json.dumps({"error": why_not}).encode())
                return False
            pid = self._give(request["job_dir"], caller)
            stat = stat_of(pid)
            caller.send(json.dumps({"pid": pid, "start": stat.start if stat else 0, "boot": boot_id()}).encode())
        except (OSError, ValueError, KeyError) as error:
            print(f"zygote: a request failed: {error!r}", file=sys.stderr, flush=True)
        return True

    def _give(self, job_dir: str, caller: socket.socket) -> int:
        parked, self._parked = self._parked, None
        pid = None
        if parked is not None:
            with parked.line, suppress(OSError):
                parked.line.sendall(job_dir.encode())
                pid = parked.pid
        if pid is None:
            pid = launch.fork(lambda: _be_guardian(job_dir))
        self._guardians.add(pid)
        return pid

    def _park(self) -> None:
        if preload.unfit(self._seen) is not None:
            return
        self._parked = fork_ahead(_wait_as_guardian)


# -- in forked processes -----------------------------------------------------------------------------------------------


def _wait_as_guardian(line: socket.socket) -> None:
    """Fork a learner and a watchdog ahead, and wait for a job. End if the zygote closes the connection."""
    _leave_zygote(keep=(line.fileno(),))
    me = os.pidfd_open(os.getpid())
    learner = fork_ahead(lambda line: wait_as_learner(line, QUIET_S))
    watcher = fork_ahead(lambda line: _wait_as_watchdog(line, me))
    os.close(me)
    if not select.select([line], [], [], 0)[0]:
        _rehearse_guardian()
    job_dir = line.recv(1 << 16).decode()
    line.close()
    if job_dir:
        _be_guardian(job_dir, learner, watcher)


def _leave_zygote(keep: Sequence[int]) -> None:
    os.setsid()
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    launch.close_all_but(keep)


def _be_guardian(job_dir: str, learner: Parked | None = None, watcher: Parked | None = None) -> None:
    if learner is None:
        _leave_zygote(keep=())
    _join_job(job_dir)

    def start_watchdog(folder: Path) -> int:
        if watcher is not None:
            with watcher.line, suppress(OSError):
                watcher.line.sendall(str(folder).encode())
                return os.pidfd_open(watcher.pid)
        return watchdog.keep(folder)

    origin = Origin(is_warm=True, learner=learner, start_watchdog=start_watchdog)
    sys.exit(entrypoint.guard(Path(job_dir), origin))


def _join_job(job_dir: str) -> None:
    """Give this process the log and the environment of a job's guardian."""
    folder = Path(job_dir)
    launch.redirect(str(folder / "guardian.log"))
    base = json.loads((folder / "environment.json").read_bytes())
    environment = launch.guardian_environment(base, job_dir, launch.package_folder())
    launch.put_on(environment)
    wake(environment | {"OMP_NUM_THREADS": "1"})
    gc.disable()  # this process forks too
    os.chdir("/")


def _wait_as_watchdog(line: socket.socket, guardian: int) -> None:
    launch.close_all_but((line.fileno(), guardian))
    job_dir = line.recv(1 << 16).decode()
    line.close()
    if job_dir:
        select.select([guardian], [], [], WATCHDOG_DELAY_S)
        _join_job(job_dir)
        watchdog.watch(Path(job_dir), guardian)


# -- start of the zygote -----------------------------------------------------------------------------------------------


def _rehearse() -> None:
    """Run once what is slow only the first time: reading annotations, compiling patterns, finding C functions."""
    spec: JobSpec = decode(JobSpec, encode(JobSpec()))
    where = Where(label="", line=1)
    failure = Failure(cause=Cause.UNKNOWN, code="", what="", advice="", where=where)
    wanted = Wanted(revision=0, goal=Goal.RUN, generation=0, members=(MemberWanted(member=0, node=""),))
    decode(Wanted, encode(wanted))
    fact_from_line(fact_to_line(GenerationLost(failure=failure)))
    prepare(*FACT_TYPES.values(), launch.Order, Origin)
    prepare_messages()
    part = Range(epoch=0, first=0, end=1)
    for record in (
        Manifest(step=0, epoch=0, generation=0, at_s=0, seconds=0, bytes=0, sha256="", learners=1, trained=(part,)),
        Result(outcome="ok", code=0, failure=failure),
        Progress(),
    ):
        decode(type(record), encode(record))
    launch.torch_is_used(None, "import this")
    launch.guardian_environment({"A": "b"}, "", "")
    launch.learner_environment({}, job="", generation=0, members=wanted.members, rank=0, store=None)
    marked(str(spec.name))
    Watch().close()
    openblas()
    importlib.import_module("jupyter_dlaas.transfer.results").dump(object())


def _rehearse_guardian() -> None:
    """Use what a guardian's start uses, in a fork that waits for its job: the memory that it uses first is copied."""
    _rehearse()
    environment = dict(os.environ)
    launch.put_on(environment)
    wake(environment)
    gc.disable()


def main(arguments: list[str]) -> int:
    """Run the zygote for the arguments SOCKET and KIND. A second zygote for the same socket ends at once."""
    path, kind = Path(arguments[0]), arguments[1]
    os.umask(0o077)
    lock = os.open(path.with_suffix(".lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return 0
    me = identity(os.getpid())
    assert me is not None
    os.ftruncate(lock, 0)
    os.write(lock, json.dumps({"pid": me.pid, "start": me.start, "boot": me.boot}).encode())
    policy = os.sched_getscheduler(0)
    with suppress(OSError):  # processes of waiting jobs run first
        os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))
    preload.load(kind)
    if kind == preload.TORCH:
        huge_pages.collapse()
    with suppress(OSError):
        os.sched_setscheduler(0, policy, os.sched_param(0))
    if thread_count() != 1:
        print(f"zygote: {thread_count()} threads after the imports; cannot fork safely", file=sys.stderr, flush=True)
        return 4
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    _rehearse()
    gc.collect()
    gc.disable()
    gc.freeze()
    Zygote(path).serve()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
