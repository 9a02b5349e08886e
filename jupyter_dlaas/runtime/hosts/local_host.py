"""Learners on this machine that share the job's directory: children of this process, or adopted ones."""

from __future__ import annotations

import os
import select
import socket
import time
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from jupyter_dlaas.jobdir.atomic_files import bind
from jupyter_dlaas.runtime.fencing.lock import SOCKET
from jupyter_dlaas.runtime.hosts.learner_host import (
    Connected,
    Disconnected,
    Ended,
    Heard,
    HostEvent,
    LearnerOrder,
    LearnerProcess,
    NotStarted,
    Started,
)
from jupyter_dlaas.runtime.spawn.launch import ProgramUnusable
from jupyter_dlaas.runtime.system.json_lines import Lines
from jupyter_dlaas.runtime.system.process import (
    Activity,
    Identity,
    activity_of,
    has_ended,
    kill_round,
    open_process,
    own,
    send,
)
from jupyter_dlaas.wire.learner_messages import Dismiss, to_line

__all__ = ["LocalHost", "Spawn"]

Spawn = Callable[[LearnerOrder], int]
"""Function that starts a learner as a child of this process and returns its pid. Raises OSError."""
SWEEP_S: Final = 2.0
"""Seconds within which the processes that a learner left behind must end."""


@dataclass(slots=True)
class _Learner:
    """Learner process that runs."""

    process: LearnerProcess
    pidfd: int
    is_child: bool
    oom_kills: int
    line: Lines | None = None


class LocalHost:
    """Host of learners on this machine.

    Learners connect to a Unix socket in the job's directory. The kernel says which process has connected, so a
    connection needs no name.
    """

    def __init__(
        self,
        job_dir: Path,
        spawn: Spawn,
        *,
        name: str = "",
        known: Mapping[int, Identity] | None = None,
        oom_kills: Callable[[], int] = lambda: 0,
        on_stranger: Callable[[Lines], None] | None = None,
    ) -> None:
        """Serve the learners of a job. Adopt those of the `known` ones that are alive.

        `on_stranger` takes over the connections of processes that are no learner; without it, they are dismissed.
        """
        self._job_dir, self._spawn, self._name, self._oom_kills = job_dir, spawn, name, oom_kills
        self._on_stranger = on_stranger or _dismiss
        self._listener = bind(socket.SOCK_STREAM, job_dir / SOCKET, listen=128)
        self._listener.setblocking(False)
        self._learners: dict[int, _Learner] = {}
        self._events: list[HostEvent] = []
        self._is_closed = False
        for member, who in sorted((known or {}).items()):
            pidfd = open_process(who, str(job_dir))
            if pidfd is not None:
                self._add(member, who, pidfd, is_child=False)

    def _add(self, member: int, who: Identity, pidfd: int, *, is_child: bool) -> None:
        process = LearnerProcess(member, self._name, who)
        self._learners[member] = _Learner(process, pidfd, is_child, self._oom_kills())
        self._events.append(Started(process, is_adopted=not is_child))

    # -- orders --------------------------------------------------------------------------------------------------------

    def start(self, order: LearnerOrder) -> None:
        missing = [path for path in order.files if not (self._job_dir / path).exists()]
        if missing:
            self._events.append(NotStarted(order.member, f"{missing[0]} is missing", is_permanent=True))
            return
        try:
            pid = self._spawn(order)
        except OSError as error:
            is_permanent = isinstance(error, ProgramUnusable)
            self._events.append(NotStarted(order.member, str(error), is_permanent))
            return
        # A child keeps its pid until this process reaps it.
        self._add(order.member, own(pid), os.pidfd_open(pid), is_child=True)

    def signal(self, member: int, number: int) -> None:
        if member in self._learners:
            send(self._learners[member].process.identity, number)

    def sweep(self, member: int) -> None:
        self._kill_all(member)

    def send(self, member: int, line: bytes) -> None:
        learner = self._learners.get(member)
        if learner is not None and learner.line is not None:
            learner.line.send(line)

    def deliver(self, member: int, path: str) -> None:
        """Do nothing: the learner reads the job's directory."""

    def hang_up(self, member: int) -> None:
        """Close a learner's control channel. The learner opens it again, and repeats its state."""
        learner = self._learners.get(member)
        if learner is not None and learner.line is not None:
            learner.line.close()
            learner.line = None
            self._events.append(Disconnected(member))

    def close_channel(self) -> None:
        """Close all control channels for good. Learners then save and exit after a while."""
        with suppress(FileNotFoundError):
            (self._job_dir / SOCKET).unlink()
        self._listener.close()  # first, so that no learner connects again to what is about to close
        for member in list(self._learners):
            self.hang_up(member)

    # -- observations --------------------------------------------------------------------------------------------------

    def activity(self, member: int) -> Activity | None:
        learner = self._learners.get(member)
        return None if learner is None else activity_of(learner.process.identity)

    def processes(self) -> dict[int, LearnerProcess]:
        return {member: learner.process for member, learner in self._learners.items()}

    def interests(self) -> dict[int, int]:
        found = {self._listener.fileno(): select.POLLIN} if self._listener.fileno() >= 0 else {}
        for learner in self._learners.values():
            found[learner.pidfd] = select.POLLIN
            if learner.line is not None:
                found[learner.line.fd] = select.POLLIN | (select.POLLOUT if learner.line.has_more else 0)
        return found

    def due(self, now: float) -> float | None:
        return now if self._events else None

    def turn(self, ready: Collection[int], now: float) -> list[HostEvent]:
        if self._listener.fileno() in ready:
            self._accept()
        for learner in list(self._learners.values()):
            self._listen(learner, ready)
            if has_ended(learner.pidfd):
                self._see_end(learner)
        events, self._events = self._events, []
        return events

    def close(self) -> None:
        if self._is_closed:
            return
        self._is_closed = True
        self.close_channel()
        for learner in self._learners.values():
            os.close(learner.pidfd)

    # -- control channels ----------------------------------------------------------------------------------------------

    def _accept(self) -> None:
        """Assign new connections to the learners whose processes have opened them."""
        with suppress(BlockingIOError):
            while self._listener.fileno() >= 0:
                sock, _ = self._listener.accept()
                line = Lines(sock)
                pid = line.peer_pid()
                learner = next((one for one in self._learners.values() if one.process.identity.pid == pid), None)
                if learner is None:
                    self._on_stranger(line)
                    continue
                self.hang_up(learner.process.member)
                learner.line = line
                self._events.append(Connected(learner.process.member))
                self._read(learner, line)

    def _listen(self, learner: _Learner, ready: Collection[int]) -> None:
        line = learner.line
        if line is not None and line.fd in ready:
            line.write()
            self._read(learner, line)

    def _read(self, learner: _Learner, line: Lines) -> None:
        member = learner.process.member
        self._events += [Heard(member, text) for text in line.read()]
        if not line.is_open:
            line.close()
            learner.line = None
            self._events.append(Disconnected(member))

    # -- ends ----------------------------------------------------------------------------------------------------------

    def _see_end(self, learner: _Learner) -> None:
        member = learner.process.member
        self._accept()  # its only message may arrive together with its end
        if learner.line is not None:
            self._read(learner, learner.line)
        self.hang_up(member)
        is_clean = self._kill_all(member)
        code = signal = None
        if learner.is_child:
            ended = os.waitstatus_to_exitcode(os.waitpid(learner.process.identity.pid, 0)[1])
            code, signal = (ended, None) if ended >= 0 else (None, -ended)
        os.close(learner.pidfd)
        del self._learners[member]
        is_out_of_memory = self._oom_kills() > learner.oom_kills
        self._events.append(Ended(learner.process, code, signal, is_out_of_memory, is_clean))

    def _kill_all(self, member: int) -> bool:
        """Kill all processes of a member. Return whether none is left."""
        deadline = time.monotonic() + SWEEP_S
        sessions = (self._learners[member].process.identity,) if member in self._learners else ()
        while kill_round(str(self._job_dir), member=member, sessions=sessions):
            if time.monotonic() > deadline:
                return False
            time.sleep(0.002)
        return True


def _dismiss(line: Lines) -> None:
    """Tell a process that it belongs to no learner of this job."""
    line.send(to_line(Dismiss()))
    line.close()
