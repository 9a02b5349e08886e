"""Learners on this machine that share the job's directory: children of this process, or adopted ones."""

from __future__ import annotations

import os
import select
import socket
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from jupyter_dlaas.jobdir.atomic_files import bind
from jupyter_dlaas.runtime.fencing.callers import Callers
from jupyter_dlaas.runtime.fencing.lock import SOCKET
from jupyter_dlaas.runtime.hosts.job_processes import end_processes, find_living
from jupyter_dlaas.runtime.hosts.learner_host import (
    Connected,
    Disconnected,
    Ended,
    HostEvent,
    LearnerOrder,
    LearnerProcess,
    MessageReceived,
    NotStarted,
    Started,
)
from jupyter_dlaas.runtime.hosts.resource_limits import Limits
from jupyter_dlaas.runtime.spawn.launch import ProgramUnusable
from jupyter_dlaas.runtime.system.json_lines import Lines
from jupyter_dlaas.runtime.system.process import (
    Activity,
    Identity,
    activity_of,
    environment_of,
    has_ended,
    own,
    send,
)
from jupyter_dlaas.wire.codec import Invalid
from jupyter_dlaas.wire.learner_messages import Dismiss, JobZygoteReady, learner_message, to_line

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

    is_shared = True

    def __init__(
        self,
        job_dir: Path,
        spawn: Spawn,
        *,
        name: str = "",
        callers: Callers | None = None,
        limits: Limits | None = None,
        oom_kills: Callable[[], int] = lambda: 0,
        on_zygote: Callable[[socket.socket], None] | None = None,
    ) -> None:
        """Serve the learners of a job.

        `callers` are the connections of an owner that maintains the socket itself. `on_zygote` takes over the
        connection of the job's zygote.
        """
        self._job_dir, self._spawn, self._name, self._oom_kills = job_dir, spawn, name, oom_kills
        self._limits, self._on_zygote = limits, on_zygote
        self._callers = Callers(_listener(job_dir)) if callers is None else callers
        self._learners: dict[int, _Learner] = {}
        self._sessions: set[Identity] = set()
        """Process sessions that learners started and that were not seen empty after the learners ended."""
        self._has_adopted = False
        self._events: list[HostEvent] = []
        self._is_closed = False

    def adopt(self, known: Mapping[int, Identity], ever: Collection[int], expected: Collection[int]) -> None:
        self._has_adopted = True
        living = find_living(str(self._job_dir), known, ever, expected)
        for member, (who, pidfd) in living.items():
            self._add(member, who, pidfd, environment_of(who.pid))
            if self._limits is not None:
                self._limits.adopt(member, who)
        for member, who in sorted(known.items()):
            if member not in living:
                process = LearnerProcess(member, self._name, who)
                is_clean = self._kill_all(member, who)
                self._events.append(Ended(process, is_out_of_memory=self._oom_kills() > 0, is_clean=is_clean))

    def _add(self, member: int, who: Identity, pidfd: int, environment: Mapping[str, str] | None) -> None:
        """Take in a learner; `environment` is None for a child of this process."""
        process, is_child = LearnerProcess(member, self._name, who), environment is None
        self._learners[member] = _Learner(process, pidfd, is_child, self._oom_kills())
        self._sessions.add(who)
        self._events.append(Started(process, is_adopted=not is_child, environment=environment or {}))

    # -- orders --------------------------------------------------------------------------------------------------------

    def start(self, order: LearnerOrder) -> None:
        missing = [path for path in order.files if not (self._job_dir / path).exists()]
        if missing:
            self._events.append(NotStarted(order.member, f"{missing[0]} is missing", is_permanent=True))
            return
        try:
            pid = self._spawn(order)
        except OSError as error:
            program = error.filename if isinstance(error, ProgramUnusable) else None
            reason = error.strerror or str(error)
            self._events.append(NotStarted(order.member, reason, program is not None, program))
            return
        who = own(pid)
        self._add(order.member, who, os.pidfd_open(pid), None)  # a child keeps its pid until this process reaps it
        if self._limits is not None:
            self._limits.begin(order.member, who, order.devices)

    def signal(self, member: int, number: int) -> None:
        if member in self._learners:
            send(self._learners[member].process.identity, number)

    def sweep(self, member: int) -> None:
        self._kill_all(member)

    def give_up(self, member: int, reason: str) -> None:
        """Do nothing: this machine is here."""

    def dismiss(self, member: int) -> None:
        """Do nothing: this machine stays."""

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
        self._callers.close()  # first, so that no learner connects again to what is about to close
        for member in list(self._learners):
            self.hang_up(member)

    # -- observations --------------------------------------------------------------------------------------------------

    def activity(self, member: int) -> Activity | None:
        learner = self._learners.get(member)
        return None if learner is None else activity_of(learner.process.identity)

    def processes(self) -> dict[int, LearnerProcess]:
        return {member: learner.process for member, learner in self._learners.items()}

    def interests(self) -> dict[int, int]:
        found = self._callers.interests()
        for learner in self._learners.values():
            found[learner.pidfd] = select.POLLIN
            if learner.line is not None:
                found[learner.line.fd] = select.POLLIN | (select.POLLOUT if learner.line.has_more else 0)
        return found

    def due(self, now: float) -> float | None:
        return now if self._events else None if self._limits is None else self._limits.due()

    def turn(self, ready: Collection[int], now: float) -> list[HostEvent]:
        self._callers.accept()
        self._meet_callers()
        for learner in self._learners.values():
            self._listen(learner, ready)
        # The state "Z" in /proc appears too early: the main thread can be dead while other threads still run.
        for learner in [learner for learner in self._learners.values() if has_ended(learner.pidfd)]:
            self._see_end(learner)
        if self._limits is not None:
            self._limits.look(now)
        events, self._events = self._events, []
        return events

    def finish(self, within_s: float) -> bool:
        roots, sessions = (os.getpid(),), self._sessions
        by_log = self._has_adopted  # inherited processes have no guardian parent
        is_over = end_processes(str(self._job_dir), within_s, sessions=sessions, roots=roots, by_log=by_log)
        if self._limits is not None:
            self._limits.close()
        return is_over

    def close(self) -> None:
        if self._is_closed:
            return
        self._is_closed = True
        self.close_channel()
        for learner in self._learners.values():
            os.close(learner.pidfd)

    # -- control channels ----------------------------------------------------------------------------------------------

    def _meet_callers(self) -> None:
        """Assign connections to the learners whose processes have opened them, by the pid that the kernel reports."""
        for line, received in self._callers.introductions():
            pid = line.peer_pid()
            learner = next((one for one in self._learners.values() if one.process.identity.pid == pid), None)
            if learner is not None:
                member = learner.process.member
                self.hang_up(member)
                learner.line = line
                self._events += [Connected(member), *(MessageReceived(member, text) for text in received)]
            elif self._on_zygote is not None and any(_is_zygote(text) for text in received):
                self._on_zygote(line.detach())
            else:
                line.send(to_line(Dismiss()))  # it belongs to no learner of this job
                line.close()

    def _listen(self, learner: _Learner, ready: Collection[int]) -> None:
        line = learner.line
        if line is not None and line.fd in ready:
            line.write()
            self._read(learner, line)

    def _read(self, learner: _Learner, line: Lines) -> None:
        member = learner.process.member
        self._events += [MessageReceived(member, text) for text in line.read()]
        if not line.is_open:
            line.close()
            learner.line = None
            self._events.append(Disconnected(member))

    # -- ends ----------------------------------------------------------------------------------------------------------

    def _see_end(self, learner: _Learner) -> None:
        member = learner.process.member
        self._callers.accept()  # its only message may arrive together with its end
        self._meet_callers()
        if learner.line is not None:
            self._read(learner, learner.line)
        self.hang_up(member)
        del self._learners[member]
        is_clean = self._kill_all(member, learner.process.identity)
        code = signal = None
        if learner.is_child:
            with suppress(ChildProcessError):  # another process has reaped it
                ended = os.waitstatus_to_exitcode(os.waitpid(learner.process.identity.pid, 0)[1])
                code, signal = (ended, None) if ended >= 0 else (None, -ended)
        os.close(learner.pidfd)
        is_out_of_memory = self._oom_kills() > learner.oom_kills
        failure = None if self._limits is None else self._limits.end(member)
        self._events.append(Ended(learner.process, code, signal, is_out_of_memory, is_clean, failure))

    def _kill_all(self, member: int, who: Identity | None = None) -> bool:
        """Kill all processes of a member, so that its devices are free. Return whether none is left."""
        if who is None and member in self._learners:
            who = self._learners[member].process.identity
        sessions = () if who is None else (who,)
        is_clean = end_processes(str(self._job_dir), SWEEP_S, member=member, sessions=sessions)
        if who is not None and member not in self._learners:
            (self._sessions.discard if is_clean else self._sessions.add)(who)
        return is_clean


def _listener(job_dir: Path) -> socket.socket:
    listener = bind(socket.SOCK_STREAM, job_dir / SOCKET, listen=128)
    listener.setblocking(False)
    return listener


def _is_zygote(text: bytes) -> bool:
    try:
        return isinstance(learner_message(text), JobZygoteReady)
    except Invalid:
        return False
