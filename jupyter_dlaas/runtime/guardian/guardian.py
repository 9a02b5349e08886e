"""Guardian of one job: carries out the wanted document and writes what happened to the journal.

The process has one thread and one event loop that never blocks outside `poll`, because it must be able to fork. It may
be killed at any moment. The next guardian replays the journal, adopts the living learners and continues (see
server/WIRE.md).
"""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Final

from jupyter_dlaas.failures import diagnosis
from jupyter_dlaas.jobdir import layout
from jupyter_dlaas.jobdir.atomic_files import read_json
from jupyter_dlaas.jobdir.journal_replay import JournalState, members_in
from jupyter_dlaas.jobdir.log_index import LOG
from jupyter_dlaas.runtime.fencing.discovery_files import STATUS, Presence
from jupyter_dlaas.runtime.fencing.lock import Lock
from jupyter_dlaas.runtime.guardian.decide import Act, Seen, decide
from jupyter_dlaas.runtime.guardian.exit_status import read_result, reap, was_let_go
from jupyter_dlaas.runtime.guardian.hang_detection import Hangs, limit_s
from jupyter_dlaas.runtime.guardian.journal_writer import JournalWriter
from jupyter_dlaas.runtime.guardian.learner_process import Learner, find_living
from jupyter_dlaas.runtime.guardian.log_follower import Following
from jupyter_dlaas.runtime.guardian.membership_shell import MembershipCoordinator
from jupyter_dlaas.runtime.guardian.rendezvous import Rendezvous
from jupyter_dlaas.runtime.guardian.resource_limits import Limits
from jupyter_dlaas.runtime.guardian.shutdown import TERM_S, GracefulShutdown, sweep
from jupyter_dlaas.runtime.spawn import launch
from jupyter_dlaas.runtime.spawn.program_analysis import expects_run
from jupyter_dlaas.runtime.spawn.spawner import Origin, Spawner
from jupyter_dlaas.runtime.system.json_lines import Lines
from jupyter_dlaas.runtime.system.process import Identity, boot_id, environment_of, has_ended, own
from jupyter_dlaas.wire import learner_messages as wire
from jupyter_dlaas.wire.codec import Invalid, decode
from jupyter_dlaas.wire.journal import Goal, MemberWanted, Wanted, is_retried
from jupyter_dlaas.wire.protocol import Failure, JobSpec
from jupyter_dlaas.wire.secret_masking import mask_of

__all__ = ["Guardian"]

LAST_WORDS_S: Final = 0.3
"""Seconds between a gang's failure and SIGTERM, in which its other learners may still report their own failures."""
HELLO_S: Final = 10.0
"""Seconds in which adopted learners may connect. Only a membership change or a shutdown waits for them meanwhile."""


class Guardian:
    """Imperative shell around `decide`: observes the job's state and carries out the action."""

    def __init__(self, job_dir: Path, lock: Lock, origin: Origin) -> None:
        self.job_dir = job_dir
        body = json.loads((job_dir / "spec.json").read_bytes())
        self._job: str = body["id"]
        self._spec = decode(JobSpec, body["spec"], unknown="ignore")
        self._base: Mapping[str, str] = json.loads((job_dir / "environment.json").read_bytes())
        source = (job_dir / "train.py").read_text(encoding="utf-8", errors="replace")
        self._is_torch = launch.torch_is_used(self._spec.framework, source)
        # Code that never calls run() trains as soon as it is ready. Other code reports when its training loop begins.
        self._expects_run = expects_run(source)
        self._may_change = launch.may_change(self._spec, source)
        kinds = {"may_change": self._may_change, "is_torch": self._is_torch}
        self._spawner = Spawner(self._job, job_dir, self._base, origin, **kinds)
        self._limits = Limits(self._job, self._spec)
        self._journal = JournalWriter(job_dir, mask_of(self._base), self._limits.explained)
        self._earlier = self._journal.earlier
        self._me = own(os.getpid())
        self._wanted: Wanted | None = None
        self._learners: dict[int, Learner] = {}
        self._sessions: set[Identity] = set()
        """Process sessions that learners started and that were not seen empty after the learners ended."""
        self._generation = self._earlier.generation
        is_settled = self._earlier.lost >= self._generation
        self._failed: list[tuple[int, Failure]] = [] if is_settled else list(self._earlier.failed)
        self._unsure: list[tuple[int, Failure]] = []
        """Failures that wait for adopted learners to connect: only these know whether the gang can continue."""
        self._is_completed = self._earlier.is_completed
        self._logs = Following(job_dir, mask_of(self._base))
        self._store = Rendezvous(self._spawner)
        self._membership = self._new_membership()
        self._shutdown = GracefulShutdown()
        self._hangs = Hangs(self._journal, limit_s(self._base), set_s=self._spec.hang_after_s)
        self._hellos_by = 0.0
        self._statuses: dict[int, int] = {}
        self._is_closed = False
        self._presence = Presence(job_dir, lock, time.monotonic())
        self._chld_r, self._chld_w = socket.socketpair()
        for end in (self._chld_r, self._chld_w):
            end.setblocking(False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(self._chld_w.fileno(), warn_on_full_buffer=False)

    # -- event loop ----------------------------------------------------------------------------------------------------

    def run(self) -> None:
        """Guard the job until it is closed."""
        self._read_wanted()
        wanted = self._wanted
        closed = self._earlier.closed_revision
        if wanted is None or (closed is not None and wanted.revision <= closed):
            return  # closed already, and the wanted document is not newer
        self._adopt()
        self._journal.seen(wanted.revision)
        self._go_on()
        while not self._is_closed:
            self._turn()

    def _turn(self) -> None:
        now = time.monotonic()
        poll = select.poll()
        sockets: dict[int, Callable[[], None]] = {
            self._presence.wake.fileno(): self._woken,
            self._presence.listener.fileno(): self._presence.accept,
            self._chld_r.fileno(): self._drain_children,
        }
        for one in self._learners.values():
            if one.pidfd is not None:
                poll.register(one.pidfd, select.POLLIN)
            if one.line is not None:
                poll.register(one.line.fd, select.POLLIN | (select.POLLOUT if one.line.has_more else 0))
        for fd in (*sockets, *self._presence.caller_fds()):
            poll.register(fd, select.POLLIN)
        logs = self._logs.fd(now)
        if logs is not None:
            poll.register(logs, select.POLLIN)
        due_s = self._due(now)
        ready = {fd for fd, _ in poll.poll(None if due_s is None else max(0.0, min(due_s - now, 3600.0)) * 1000 + 0.5)}
        for fd, act in sockets.items():
            if fd in ready:
                act()
        self._listen(ready)
        self._logs.look(ready)
        self._statuses |= reap()
        self._see_ends()
        self._hangs.look([one for one in self._alive() if not one.is_asked], time.monotonic())
        self._limits.look(self._alive(), time.monotonic())
        self._journal.journal.flush()
        self._look_after()
        if not self._is_closed:
            self._go_on()
            self._keep()

    def _look_after(self) -> None:
        """Maintain this guardian's lock, socket and status files, and read the wanted document without a datagram."""
        now = time.monotonic()
        if now < self._presence.due(now):
            return
        if not self._presence.look(now):
            _log("another guardian holds the job's lock; exiting")
            self._is_closed = True
            return
        self._journal.journal.renew()
        self._woken()

    def _due(self, now: float) -> float | None:
        dues = (self._shutdown.due(), self._logs.due(now), self._hangs.due(now), self._limits.due())
        times = [at for at in dues if at is not None]
        times.append(self._presence.due(now))
        if now < self._hellos_by:
            times.append(self._hellos_by)
        if not self._journal.journal.flush():
            times.append(now + 1.0)
        return min(times, default=None)

    def _drain_children(self) -> None:
        with suppress(BlockingIOError):
            while self._chld_r.recv(4096):
                pass

    # -- wanted and observed state -------------------------------------------------------------------------------------

    def _woken(self) -> None:
        with suppress(BlockingIOError):
            while True:
                self._presence.wake.recv(4096)
        if self._read_wanted() and self._wanted is not None:
            self._journal.seen(self._wanted.revision)

    def _read_wanted(self) -> bool:
        body = read_json(self.job_dir / "wanted.json")
        if body is None:
            return False
        try:
            wanted = decode(Wanted, body, unknown="ignore")
        except Invalid as error:
            _log(f"wanted.json is damaged: {error}")
            return False
        self._journal.journal.number_from(wanted.facts_read)
        if self._wanted is not None and wanted.revision <= self._wanted.revision:
            return False
        self._wanted = wanted
        return True

    def _keep(self) -> None:
        """Request a checkpoint from the first rank until one exists that was begun after the last request."""
        wanted = self._wanted
        if wanted is None or wanted.checkpoints <= self._journal.kept:
            return
        order = ("checkpoint", wanted.checkpoints)
        for one in self._alive():
            is_main = one.rank == 0 if self._membership.first is None else one.member == self._membership.first
            # A learner that has not called run() yet does not handle the request.
            if is_main and one.uses_run and one.line is not None and order not in one.orders_sent:
                one.orders_sent.add(order)
                one.line.send(wire.to_line(wire.CheckpointRequest(number=wanted.checkpoints)))

    def _alive(self) -> list[Learner]:
        return [one for one in self._learners.values() if one.is_alive]

    def _picture(self) -> Seen:
        alive = [one for one in self._learners.values() if one.is_alive]
        return Seen(
            generation=self._generation,
            alive=len(alive),
            is_broken=bool(self._failed),
            # A learner that waits at a boundary for an earlier guardian's commit cannot continue: then all leave.
            is_leaving=self._shutdown.is_leaving or any(one.is_limited for one in alive),
            is_complete=not alive and self._is_complete(),
            may_change=self._wanted is not None and self._membership.may_become(self._wanted),
            is_changing=self._membership.is_committed and not self._membership.is_over,
        )

    def _is_complete(self) -> bool:
        """Return whether the gang finished: its rank 0 ended with outcome "ok" and no learner failed."""
        if self._is_completed:
            return True
        first = [one for one in self._learners.values() if one.generation == self._generation and one.rank == 0]
        if not first or self._failed:
            return False
        result = read_result(self.job_dir, first[0].member)
        return result is not None and result.outcome == "ok"

    def _go_on(self) -> None:
        """Carry out actions until the next one needs to wait for an event."""
        while self._unsure and not self._is_expecting():
            self._count(*self._unsure.pop(0))
        for _ in range(8):
            seen = self._picture()
            act = decide(self._wanted, seen)
            if seen.is_broken and not seen.alive:
                self._store.end()
                self._journal.lost(self._generation, diagnosis.choose(self._failed))
                self._failed = []
                continue
            if act is not Act.CHANGE:
                self._mend()
            if act is Act.START:
                self._start()
            elif act is Act.CHANGE:
                if not self._change():
                    return
            elif act is Act.LEAVE:
                self._leave()
                return
            elif act is Act.END:
                self._end()
                return
            elif act is Act.WAIT:
                return
            else:
                self._close(act)
                return

    # -- membership changes --------------------------------------------------------------------------------------------

    def _new_membership(self) -> MembershipCoordinator:
        return MembershipCoordinator(self._learners, self._journal, self._join, self._store.where)

    def _join(self, wanted: Wanted, member: int) -> None:
        """Start a learner that joins the gang while it trains."""
        rank = next(rank for rank, one in enumerate(wanted.members) if one.member == member)
        self._write_status(joining=[member])
        self._start_one(wanted.members, rank, None, joins=True)
        self._write_status()

    def _change(self) -> bool:
        """Advance the change of the gang to the wanted generation. Return True once it is complete."""
        wanted = self._wanted
        assert wanted is not None
        self._generation = self._membership.change(wanted, self._generation)
        return self._generation == wanted.generation and not self._membership.is_committed

    def _mend(self) -> None:
        """Let the survivors of a loss continue at once without the lost learners."""
        if self._membership.is_elastic and not self._shutdown.is_leaving and not self._failed:
            self._membership.mend(self._generation)

    # -- adoption and start --------------------------------------------------------------------------------------------

    def _adopt(self) -> None:
        """Take over from an earlier guardian.

        Find its living learners, record those that ended meanwhile, and write this guardian's identity to the journal.
        """
        earlier = self._earlier
        status = read_json(self.job_dir / STATUS) or {}
        # The earlier guardian was killed while it started these learners, so each may still appear.
        waiting, joining = members_in(status.get("starting")), members_in(status.get("joining"))
        deadline = time.monotonic() + (1.0 if waiting or joining else 0.0)
        # The journal may be lost: the job is new only if no learner has a directory.
        is_new = not self._journal.journal.earlier and not waiting and not any(self.job_dir.glob("learner-*"))
        living = {} if is_new else find_living(str(self.job_dir), earlier.up, earlier.ever)
        while (waiting | joining) - set(living) - earlier.ever and time.monotonic() < deadline:
            time.sleep(0.01)
            living = find_living(str(self.job_dir), earlier.up, earlier.ever)
        self._journal.guardian_up(self._me, bool(living or earlier.up))
        ends = status.get("store")
        if isinstance(ends, dict) and isinstance(ends.get("pid"), int) and isinstance(ends.get("start"), int):
            self._store.process = Identity(ends["pid"], ends["start"], str(status.get("boot")))
        self._hellos_by = time.monotonic() + HELLO_S if living else 0.0
        if any(member in earlier.order or earlier.has_begun(member) for member in living):
            self._generation = earlier.together  # later generations were only starting to join
            if self._may_change and all(is_retried(failure) for _, failure in self._failed):
                self._unsure, self._failed = self._failed, []  # connected survivors may continue
        for member, (process, fd) in living.items():
            self._take(member, process, fd, earlier)
        for member, fact in earlier.up.items():
            if member not in living and fact.pid is not None and fact.start is not None:
                process = Identity(fact.pid, fact.start, fact.boot or "")
                gone = Learner(member, fact.generation or 0, fact.rank or 0, process, is_ready=member in earlier.ready)
                self._learners[member] = gone
                gone.is_asked = was_let_go(read_result(self.job_dir, member), member, self._wanted)
                self._sweep(gone)
                self._see_down(gone)
        for member in sorted(waiting - set(living) - earlier.ever):
            self._see_unknown(member)
        for member in earlier.members - set(earlier.up):  # only their rank is needed
            rank = earlier.ranks.get(member, 0)
            gone = Learner(member, earlier.generation, rank, Identity(0, 0, ""))
            self._learners[member] = gone
        self._journal.checkpoints()
        self._write_status()
        self._finish_start()

    def _see_unknown(self, member: int) -> None:
        """Record a learner that an earlier guardian may have started and that is not alive. A log shows that it ran."""
        wanted = self._wanted
        ranks = [rank for rank, one in enumerate(wanted.members) if one.member == member] if wanted else []
        if wanted is None or not ranks or not (layout.learner_folder(self.job_dir, member) / LOG).exists():
            return
        self._generation = max(self._generation, wanted.generation)
        gone = Learner(member, wanted.generation, ranks[0], Identity(0, 0, boot_id()))
        self._journal.up(gone)
        self._learners[member] = gone
        self._see_down(gone)

    def _finish_start(self) -> None:
        """Start the remaining learners of a generation whose start an earlier guardian did not finish."""
        wanted = self._wanted
        if wanted is None or wanted.generation != self._generation or not self._alive() or self._failed:
            return
        environment = environment_of(self._alive()[0].process.pid)
        port = environment.get("MASTER_PORT", "0")
        where = (environment.get("MASTER_ADDR", ""), int(port)) if self._store.process is not None else None
        for rank, one in enumerate(wanted.members):
            if one.member not in self._learners and one.member not in self._earlier.ever:
                self._start_one(wanted.members, rank, where)
        self._write_status()

    def _take(self, member: int, process: Identity, fd: int, earlier: JournalState) -> None:
        fact = earlier.up.get(member)
        if fact is None:
            environment = environment_of(process.pid)
            generation, rank = int(environment.get("DLAAS_GENERATION", "0")), int(environment.get("RANK", "0"))
            if environment.get("DLAAS_JOINS") != "1":
                self._generation = max(self._generation, generation)
        elif member in earlier.order:
            generation, rank = earlier.together, earlier.order.index(member)
        else:
            generation, rank = fact.generation or 0, fact.rank or 0
        one = Learner(member, generation, rank, process, fd, is_ready=member in earlier.ready, is_adopted=True)
        one.oom_kills = diagnosis.oom_kills()
        joins = environment_of(process.pid).get("DLAAS_JOINS") == "1"
        one.membership_epoch = -1 if joins else 0  # until the learner reports it
        if fact is None:
            self._journal.up(one)
        self._learners[member] = one
        self._sessions.add(process)
        self._logs.begin(member)

    def _start(self) -> None:
        """Start the wanted generation: the rendezvous store first, then all learners."""
        wanted = self._wanted
        assert wanted is not None
        self._generation, self._failed, self._is_completed = wanted.generation, [], False
        self._shutdown = GracefulShutdown()
        self._store.end()
        self._learners = {}
        self._membership = self._new_membership()
        where = self._store.start() if self._is_torch and len(wanted.members) > 1 else None
        self._write_status(starting=[m.member for m in wanted.members])
        for rank in range(len(wanted.members)):
            self._start_one(wanted.members, rank, where)
        self._write_status()

    def _start_one(
        self, members: tuple[MemberWanted, ...], rank: int, where: tuple[str, int] | None, *, joins: bool = False
    ) -> None:
        wanted = members[rank]
        generation = self._wanted.generation if joins and self._wanted is not None else self._generation
        try:
            pid = self._spawner.learner(members, rank, generation=generation, store=where, joins=joins)
        except OSError as error:
            _log(f"learner {wanted.member} could not be started: {error}")
            lost = Learner(wanted.member, generation, rank, Identity(0, 0, boot_id()), status=127 << 8)
            lost.failure = diagnosis.not_started(error, is_permanent=isinstance(error, launch.ProgramUnusable))
            self._journal.up(lost)
            self._learners[wanted.member] = lost
            self._see_down(lost)
            return
        fd = os.pidfd_open(pid)  # a child keeps its pid until this process reaps it
        process = own(pid)
        one = Learner(wanted.member, generation, rank, process, fd, oom_kills=diagnosis.oom_kills())
        one.membership_epoch = -1 if joins else 0
        self._limits.begin(one, wanted.devices)
        self._learners[wanted.member] = one
        self._sessions.add(process)
        self._journal.up(one)
        self._logs.begin(wanted.member)

    # -- shutdown ------------------------------------------------------------------------------------------------------

    def _leave(self) -> None:
        """Bring the learners to a step boundary, a checkpoint and exit. Called repeatedly until they are gone."""
        assert self._wanted is not None
        if not self._is_expecting():  # only connected learners can report what to save or change
            self._shutdown.leave(self._membership.call_off(self._alive()), self._wanted.grace_s, time.monotonic())

    def _is_expecting(self) -> bool:
        """Return whether adopted learners are still expected to connect."""
        return time.monotonic() < self._hellos_by and any(one.is_adopted and one.line is None for one in self._alive())

    def _end(self) -> None:
        """End the learners without a checkpoint: their work no longer counts."""
        grace_s = self._wanted.grace_s if self._wanted is not None else TERM_S
        self._shutdown.end(self._alive(), LAST_WORDS_S if self._failed else 0.0, min(grace_s, TERM_S), time.monotonic())

    # -- messages and ends of learners ---------------------------------------------------------------------------------

    def _listen(self, ready: set[int]) -> None:
        for line, received in self._presence.introductions():  # their messages affect the next action
            self._introduce(line, wire.learner_messages(received, _log))
        for one in list(self._learners.values()):
            if one.line is not None and one.line.fd in ready:
                one.line.write()
                self._take_in(one, wire.learner_messages(one.line.read(), _log))
                if not one.line.is_open:
                    one.line.close()
                    one.line = None

    def _introduce(self, line: Lines, messages: list[wire.LearnerMessage]) -> None:
        """Assign a new connection to a learner by the peer pid that the kernel reports, not by what the peer claims."""
        pid = line.peer_pid()
        one = next((one for one in self._alive() if one.process.pid == pid), None)
        if one is None and any(isinstance(message, wire.JobZygoteReady) for message in messages):
            self._spawner.adopt(line.detach())
            return
        if one is None:
            line.send(wire.to_line(wire.Dismiss()))
            line.close()
            return
        if one.line is not None:
            one.line.close()
        one.line, one.promise, one.proposed, one.is_stop_sent, one.orders_sent = line, None, 0, False, set()
        self._take_in(one, messages)

    def _take_in(self, one: Learner, messages: list[wire.LearnerMessage]) -> None:
        for message in messages:
            if self._hangs.receive(one, message, time.monotonic()):
                continue
            one.listen(message)
            if isinstance(message, wire.CheckpointWritten):
                self._journal.checkpoints()
            elif isinstance(message, wire.Throughput):
                self._journal.pace(one.generation, message)
            elif isinstance(message, wire.LearnerState):
                self._journal.of_program(message)
            if not one.is_ready:
                one.is_ready = True
                self._journal.ready(one)
            if isinstance(message, wire.LearnerState) and message.is_storing:
                self._see_together()  # in a short training, the begin and end messages arrive together
                self._journal.storing(one.generation)
        self._see_together()

    def _see_together(self) -> None:
        self._membership.begin(is_new=not any(one.is_adopted for one in self._learners.values()))
        gang = [one for one in self._learners.values() if one.generation == self._generation]
        if self._journal.has_begun(self._generation) or not gang:
            return
        if all(one.trains_from is not None for one in gang):
            first = min(gang, key=lambda one: one.rank)
            began_s = max((one.began_s for one in gang if one.began_s is not None), default=None)
            self._journal.together(self._generation, first.trains_from, began_s, live=self._membership.is_elastic)
        elif (
            not self._expects_run
            and all(one.is_ready and not one.uses_run for one in gang)
            and self._journal.checkpoint_step() is None  # otherwise a framework's loop resumes from it and reports when
        ):
            self._journal.together(self._generation, None)

    def _see_ends(self) -> None:
        for one in list(self._learners.values()):
            if one.pidfd is None:
                continue
            # The state "Z" in /proc appears too early: the main thread can be dead while other threads still run.
            if not has_ended(one.pidfd):
                continue
            self._statuses |= reap()
            one.status = self._statuses.pop(one.process.pid, None)
            if one.line is not None:  # its last messages may arrive together with its end
                self._take_in(one, wire.learner_messages(one.line.read(), _log))
            one.close()
            self._sweep(one)
            self._limits.end(one)
            self._see_down(one)
            self._write_status()
        mine = {one.process.pid for one in self._alive()}
        self._statuses = {pid: s for pid, s in self._statuses.items() if pid in mine}

    def _sweep(self, one: Learner) -> None:
        """Kill processes that a learner left behind (data workers, own programs), so that its devices are free."""
        is_clean, ended = sweep(str(self.job_dir), (one.process,), 2.0, member=one.member)
        self._statuses |= ended
        (self._sessions.discard if is_clean else self._sessions.add)(one.process)
        if self._wanted is not None and self._wanted.goal is not Goal.RUN and not self._alive():
            self._sweep_job(2.0)  # the last seat is free once this learner's end is recorded

    def _sweep_job(self, within_s: float) -> bool:
        """Kill all processes of the job, also those without a mark. Return whether none is left."""
        self._store.end()
        is_heir = self._journal.guardians > 0  # inherited processes have no guardian parent
        return sweep(str(self.job_dir), self._sessions, within_s, roots=(os.getpid(),), by_log=is_heir)[0]

    def _close(self, act: Act) -> None:
        """Kill all remaining processes, record the outcome and close the journal."""
        if not self._sweep_job(30.0):
            # The process is stuck in the kernel (for example on a dead network disk). It executes no more code and ends
            # later.
            _log("a process of the job does not end; giving up on it")
        if act is Act.COMPLETE:
            gang = (one for one in self._learners.values() if one.generation == self._generation)
            first = next((one for one in gang if one.rank == 0), None)
            self._journal.completed(self._generation, read_result(self.job_dir, first.member) if first else None)
        elif act is Act.HALTED:
            self._journal.halted()
        self._limits.close()
        # Remove the discovery files before the final fact: a client that then finds no socket starts the next guardian.
        self._presence.close()
        self._journal.closed({Act.COMPLETE: "completed", Act.HALTED: "halted"}.get(act, "stopped"))
        while not self._journal.journal.flush():
            time.sleep(1.0)
        self._is_closed = True

    def _see_down(self, one: Learner) -> None:
        self._logs.end(one.member)
        failure = self._journal.down(one)
        result = read_result(self.job_dir, one.member)
        one.is_done = result is not None and result.outcome == "ok"
        if failure is None or one.generation < self._generation:
            return
        if self._may_change and self._is_expecting() and not self._membership.is_elastic:
            self._unsure.append((one.member, failure))
        else:
            self._count(one.member, failure)

    def _count(self, member: int, failure: Failure) -> None:
        """Mark the gang as broken by a member's failure, unless the others continue without it.

        A failure of a learner that has not joined yet never breaks the gang on its own account.
        """
        is_joiner = member in self._learners and self._learners[member].membership_epoch < 0
        if (not is_retried(failure) and not is_joiner) or not self._membership.lost(failure):
            self._failed.append((member, failure))

    # -- status file ---------------------------------------------------------------------------------------------------

    def _write_status(self, **under_way: list[int]) -> None:
        """Write the status file. `starting` and `joining` list members whose processes may appear at any moment."""
        learners = {one.member: one.process for one in self._alive()}
        self._presence.write_status(self._me, learners, self._store.process, **under_way)


def _log(text: str) -> None:
    print(f"guardian: {text}", file=sys.stderr, flush=True)
