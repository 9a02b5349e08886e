"""Zygote of one job: a fork of its first learner, made after the imports and before any user code.

A guardian that was started directly or by a lean zygote has no torch, so each joining learner would import it again,
which takes seconds. Therefore the first learner imports what all of them need before it reads the user's program, and
leaves a fork of itself behind. This job zygote computes nothing and waits; the processes that it forks become children
of the guardian. It is only an optimisation: if there is none, or it does not answer, a direct start does the same. It
ends with its guardian, or when memory is short.
"""

from __future__ import annotations

import gc
import os
import select
import socket
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Final

from jupyter_dlaas.jobdir.atomic_files import connect
from jupyter_dlaas.runtime.spawn import after_fork, launch, preload
from jupyter_dlaas.runtime.spawn.launch import Order
from jupyter_dlaas.runtime.system.process import JOB_MARK, stat_of
from jupyter_dlaas.wire.learner_messages import JobZygoteReady, to_line

__all__ = ["FLAG", "MARK", "JobZygote", "leave_behind"]

FLAG: Final = "--nursery"
"""Argument with which a learner leaves a job zygote behind."""
MARK: Final = "DLAAS_NURSERY"
"""Variable in the environment that /proc shows of a job zygote, whose command line is that of the copied learner."""
ANSWER_S: Final = 3.0
"""Seconds that the guardian waits for an answer, and does nothing else meanwhile.

A fork takes some 20 ms, on an overloaded machine seconds; there, importing again would take far longer still.
"""
READY: Final = "ready"
"""Last word of the line in the guardian's log after which learners start from this zygote."""
_LOOK_S: Final = 60.0


class JobZygote:
    """Guardian's connection to the job zygote."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock

    def start(self, order: Order, passed: int | None = None) -> int | None:
        """Fork a process that carries out the order, and return its pid. It is a child of the caller.

        `passed` becomes descriptor 3.

        Return None if the zygote is gone or does not answer. It is then given up, and a process that it still forks
        ends at once.
        """
        mine, theirs = socket.socketpair()
        with mine:
            mine.settimeout(ANSWER_S)
            try:
                with theirs:
                    fds = [theirs.fileno()] if passed is None else [theirs.fileno(), passed]
                    socket.send_fds(self._sock, [b"f"], fds)
                pid = int(mine.recv(32))
            except (OSError, ValueError):  # gone, silent, or unfit to fork
                return None
            stat = stat_of(pid)
            is_mine = stat is not None and stat.parent == os.getpid()
            return pid if is_mine and launch.give(mine, order) else None

    def close(self) -> None:
        """Close the connection, so that the zygote ends."""
        self._sock.close()


# -- in the first learner ----------------------------------------------------------------------------------------------


def leave_behind(job_dir: Path) -> None:
    """Import what learners import and leave a job zygote behind. Runs in a learner before any user code.

    Errors here are not reported: the user's own import raises them again, with a line of the user's program.
    """
    os.environ.pop(preload.PADDING, None)
    environment, seen = dict(os.environ), preload.places()
    os.environ.update(preload.QUIET)
    try:
        preload.load(preload.TORCH)
        is_loaded = True
    except Exception:  # noqa: BLE001 - anybody's modules
        is_loaded = False
    launch.put_on(environment)
    after_fork.openblas.cache_clear()  # a lean zygote has filled the cache already
    if is_loaded and preload.unfit(seen) is None:
        after_fork.openblas()
        gc.freeze()
        with suppress(OSError):
            _fork_away(lambda: _serve(job_dir, seen))
    after_fork.set_threads(environment.get("OMP_NUM_THREADS"))


def _fork_away(child: Callable[[], None]) -> int | None:
    """Run `child` in a fork that becomes a child of the guardian, the subreaper of its orphaned descendants.

    Return its pid; None if the fork failed. Raise OSError.
    """
    reader, writer = os.pipe()

    def between() -> None:
        os.close(reader)
        with suppress(OSError):
            os.write(writer, str(launch.fork(child)).encode())

    try:
        pid = launch.fork(between)
    finally:
        os.close(writer)
    try:
        os.waitpid(pid, 0)  # from now on, the grandchild is the guardian's child
        text = os.read(reader, 32)
    finally:
        os.close(reader)
    return int(text) if text else None


# -- in the job zygote -------------------------------------------------------------------------------------------------


def _serve(job_dir: Path, seen: Mapping[str, int]) -> None:
    """Fork processes on the guardian's request until the guardian is gone."""
    os.setsid()
    launch.close_all_but(())
    launch.redirect(str(job_dir / "guardian.log"))
    # The mark of the copied learner is left out, because ending that learner would end this process too.
    after_fork.show_environment({JOB_MARK: str(job_dir), MARK: "1"})
    gc.disable()
    os.chdir("/")
    try:
        sock = connect(socket.SOCK_STREAM, job_dir / "guardian.sock", timeout_s=5.0)
        sock.sendall(to_line(JobZygoteReady()))
    except OSError:
        return
    print(f"job zygote {os.getpid()}: {READY}", file=sys.stderr, flush=True)
    while preload.has_memory():
        if not select.select([sock], [], [], _LOOK_S)[0]:
            continue
        try:
            said, fds, _, _ = socket.recv_fds(sock, 1, 2)
        except OSError:
            return
        if not said:
            return
        why_not = preload.unfit(seen)
        if why_not is not None:
            print(f"job zygote: {why_not}", file=sys.stderr, flush=True)
            return
        _answer(fds)


def _answer(fds: list[int]) -> None:
    with socket.socket(fileno=fds[0]) as line, suppress(OSError):
        passed = fds[1] if len(fds) > 1 else None
        pid = _fork_away(lambda: _wait(line, passed))
        if pid is not None:
            line.sendall(str(pid).encode())
    for fd in fds[1:]:
        os.close(fd)


def _wait(line: socket.socket, passed: int | None) -> None:
    launch.close_all_but([fd for fd in (line.fileno(), passed) if fd is not None])
    launch.await_order(line, passed)
