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
from collections.abc import Collection, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Final

from jupyter_dlaas.failures import diagnosis
from jupyter_dlaas.jobdir import layout
from jupyter_dlaas.jobdir.atomic_files import read_json
from jupyter_dlaas.jobdir.checkpoint_manifest import KEPT
from jupyter_dlaas.jobdir.journal_replay import members_in
from jupyter_dlaas.jobdir.log_index import LOG
from jupyter_dlaas.runtime.fencing.discovery_files import STATUS, Presence
from jupyter_dlaas.runtime.fencing.lock import Lock
from jupyter_dlaas.runtime.guardian.decide import Act, Seen, decide
from jupyter_dlaas.runtime.guardian.exit_status import has_completed, read_result, was_let_go
from jupyter_dlaas.runtime.guardian.hang_detection import Hangs, limit_s
from jupyter_dlaas.runtime.guardian.journal_writer import JournalWriter
from jupyter_dlaas.runtime.guardian.learner_orders import LearnerOrders
from jupyter_dlaas.runtime.guardian.learner_process import Learner, place_of, taken_over
from jupyter_dlaas.runtime.guardian.log_follower import Following
from jupyter_dlaas.runtime.guardian.membership_shell import MembershipCoordinator
from jupyter_dlaas.runtime.guardian.rendezvous import Rendezvous
from jupyter_dlaas.runtime.guardian.shutdown import TERM_S, GracefulShutdown
from jupyter_dlaas.runtime.hosts.agent_settings import read_lost, read_settings
from jupyter_dlaas.runtime.hosts.host_choice import agent_host, own_host
from jupyter_dlaas.runtime.hosts.job_files import prune_checkpoints, start_files
from jupyter_dlaas.runtime.hosts.job_processes import reap_orphans
from jupyter_dlaas.runtime.hosts.learner_host import (
    Connected,
    Disconnected,
    Ended,
    HostEvent,
    LearnerHost,
    MessageReceived,
    NotStarted,
    Started,
)
from jupyter_dlaas.runtime.hosts.resource_limits import explained
from jupyter_dlaas.runtime.link.transport import wait
from jupyter_dlaas.runtime.spawn.spawner import Origin, Spawner
from jupyter_dlaas.runtime.system.process import Identity, boot_id, own
from jupyter_dlaas.wire import learner_messages as wire
from jupyter_dlaas.wire.codec import Invalid, decode
from jupyter_dlaas.wire.journal import Goal, MemberWanted, Wanted, is_retried
from jupyter_dlaas.wire.protocol import Failure, JobSpec
from jupyter_dlaas.wire.secret_masking import mask_of

__all__ = ["Guardian"]

LAST_WORDS_S: Final = 0.3
"""Seconds between a gang's failure and SIGTERM, in which its other learners may still report their own failures."""
FINISH_S: Final = 30.0
"""Seconds within which all processes of a job must end. One that is stuck in the kernel ends later."""
HELLO_S: Final = 10.0
"""Seconds in which adopted learners may connect. Only a membership change or a shutdown waits for them meanwhile."""
REMOTE_HELLO_S: Final = 30.0
"""The same for learners beside agents, which dial a new guardian with pauses."""


class Guardian:
    """Imperative shell around `decide`: observes the job's state and carries out the action."""

    def __init__(self, job_dir: Path, lock: Lock, origin: Origin) -> None:
        self.job_dir, self._lock = job_dir, lock
        body = json.loads((job_dir / "spec.json").read_bytes())
        self._job: str = body["id"]
        self._spec = decode(JobSpec, body["spec"], unknown="ignore")
        self._base: Mapping[str, str] = json.loads((job_dir / "environment.json").read_bytes())
        source = (job_dir / "train.py").read_text(encoding="utf-8", errors="replace")
        self._orders = LearnerOrders(self._job, self._spec, self._base, source)
        kinds = {"may_change": self._orders.may_change, "is_torch": self._orders.is_torch}
        self._spawner = Spawner(job_dir, self._base, origin, **kinds)
        memory = self._spec.memory_bytes_per_learner
        self._journal = JournalWriter(job_dir, mask_of(self._base), lambda failure: explained(failure, memory))
        self._earlier = self._journal.earlier
        self._me = own(os.getpid())
        self._wanted: Wanted | None = None
        self._learners: dict[int, Learner] = {}
        self._generation = self._earlier.generation
        is_settled = self._earlier.lost >= self._generation
        self._failed: list[tuple[int, Failure]] = [] if is_settled else list(self._earlier.failed)
        self._unsure: list[tuple[int, Failure]] = []
        """Failures that wait for adopted learners to connect: only these know whether the gang can continue."""
        self._is_completed = self._earlier.is_completed
        self._logs = Following(job_dir, mask_of(self._base))
        agents = read_settings(job_dir)
        self._store = Rendezvous(self._spawner, None if agents is None else agents.own_address)
        self._presence = Presence(job_dir, lock, time.monotonic())
        self._host: LearnerHost
        if agents is None:
            callers = self._presence.callers
            self._host = own_host(self._job, job_dir, self._spec, self._spawner, callers, diagnosis.oom_kills)
        else:
            self._host = agent_host(self._job, job_dir, agents, self._journal.guardians + 1, _log)
        self._membership = self._new_membership()
        self._shutdown = GracefulShutdown(self._host, self._store.end)
        self._hangs = Hangs(self._host, self._journal, limit_s(self._base), set_s=self._spec.hang_after_s)
        self._hellos_by = 0.0
        self._is_closed = False
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
        interests = {self._presence.wake.fileno(): select.POLLIN, self._chld_r.fileno(): select.POLLIN}
        interests |= self._presence.callers.interests() | self._host.interests()
        logs = self._logs.fd(now)
        if logs is not None:
            interests[logs] = select.POLLIN
        ready = wait(interests, min(self._due(now) - now, 3600.0))
        if self._presence.wake.fileno() in ready:
            self._woken()
        self._drain_children()
        if not self._host.is_shared:
            self._presence.callers.refuse()  # liveness probes
        self._observe(ready)
        self._logs.look(ready)
        reap_orphans({process.identity.pid for process in self._host.processes().values()})
        self._hangs.look([one for one in self._alive() if not one.is_asked], time.monotonic())
        self._journal.journal.flush()
        self._look_after()
        if not self._is_closed:
            self._go_on()
            self._keep()
            self._spawner.park(time.monotonic())

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

    def _due(self, now: float) -> float:
        parts = (self._shutdown.due(), self._logs.due(now), self._hangs.due(now), self._host.due(now))
        times = [self._presence.due(now), *(at for at in (*parts, self._spawner.due()) if at is not None)]
        if now < self._hellos_by:
            times.append(self._hellos_by)
        if not self._journal.journal.flush():
            times.append(now + 1.0)
        return min(times)

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
        for member, failure in read_lost(self.job_dir).items() if not self._host.is_shared else ():
            if member in self._learners and (one := self._learners[member]).is_alive:
                _log(f"learner {member} is lost: {failure.what}")
                one.failure = one.failure or failure
                self._host.give_up(member, failure.what)

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
            if is_main and one.uses_run and one.is_connected and order not in one.orders_sent:
                one.orders_sent.add(order)
                self._host.send(one.member, wire.to_line(wire.CheckpointRequest(number=wanted.checkpoints)))

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
        return has_completed(first[0], read_result(self.job_dir, first[0].member))

    def _go_on(self) -> None:
        """Carry out actions until the next one needs to wait for an event."""
        while self._unsure and not self._is_expecting():
            self._count(*self._unsure.pop(0))
        for _ in range(8):
            act = decide(self._wanted, seen := self._picture())
            if seen.is_broken and not seen.alive:
                self._store.end()
                finished = [one.member for one in self._learners.values() if one.is_done]
                self._journal.lost(self._generation, diagnosis.choose(self._failed, finished))
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
        return MembershipCoordinator(self._learners, self._host, self._journal, self._join, self._store.where)

    def _join(self, wanted: Wanted, member: int) -> None:
        """Start a learner that joins the gang while it trains."""
        rank = next(rank for rank, one in enumerate(wanted.members) if one.member == member)
        self._write_status(joining=[member])
        self._start_one(wanted.members, rank, None, joins=True)

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
        known = {
            member: Identity(fact.pid, fact.start, fact.boot or boot_id())
            for member, fact in earlier.up.items()
            if fact.pid is not None and fact.start is not None
        }
        # The journal may be lost: the job is new only if no learner has a directory.
        is_new = not self._journal.journal.earlier and not waiting and not layout.has_learners(self.job_dir)
        if not is_new:
            self._host.adopt(known, earlier.ever, waiting | joining)
        living = set(self._host.processes())
        self._journal.guardian_up(self._me, bool(living or earlier.up))
        self._store.adopt(status)
        self._hellos_by = time.monotonic() + (HELLO_S if self._host.is_shared else REMOTE_HELLO_S) if living else 0.0
        if any(member in earlier.order or earlier.has_begun(member) for member in living):
            self._generation = earlier.together  # later generations were only starting to join
            if self._orders.may_change and all(is_retried(failure) for _, failure in self._failed):
                self._unsure, self._failed = self._failed, []  # connected survivors may continue
        self._observe(())
        unseen = waiting - living - earlier.ever if self._host.is_shared else ()  # agents report what became of them
        for member in sorted(unseen):
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
        where = self._store.announced(self._alive()[0].environment)
        for rank, one in enumerate(wanted.members):
            if one.member not in self._learners and one.member not in self._earlier.ever:
                self._start_one(wanted.members, rank, where)

    def _take_over(self, found: Started) -> Learner:
        one = taken_over(found, self._earlier)
        one.shares_clock = self._host.is_shared
        if one.member not in self._earlier.up and one.membership_epoch >= 0:
            self._generation = max(self._generation, one.generation)
        return one

    def _lost_meanwhile(self, member: int, who: Identity) -> Learner:
        """Return a learner that ended while no guardian watched."""
        generation, rank = place_of(member, self._earlier)
        gone = Learner(member, generation, rank, who, is_ready=member in self._earlier.ready)
        gone.is_asked = was_let_go(read_result(self.job_dir, member), member, self._wanted)
        return gone

    def _start(self) -> None:
        """Start the wanted generation: all learners, and then their rendezvous store, for which they can wait."""
        wanted = self._wanted
        assert wanted is not None
        self._generation, self._failed, self._is_completed = wanted.generation, [], False
        self._shutdown = GracefulShutdown(self._host, self._store.end)
        self._store.end()
        self._learners = {}
        self._membership = self._new_membership()
        where = self._store.open() if self._orders.is_torch and len(wanted.members) > 1 else None
        self._write_status(starting=[m.member for m in wanted.members])
        for rank in range(len(wanted.members)):
            self._start_one(wanted.members, rank, where)
        if where is not None:
            self._store.run()

    def _start_one(
        self, members: tuple[MemberWanted, ...], rank: int, where: tuple[str, int] | None, *, joins: bool = False
    ) -> None:
        wanted = members[rank]
        generation = self._wanted.generation if joins and self._wanted is not None else self._generation
        one = Learner(wanted.member, generation, rank, Identity(0, 0, boot_id()), is_alive=True)
        one.membership_epoch = -1 if joins else 0
        one.shares_clock = self._host.is_shared
        self._learners[wanted.member] = one
        files = () if self._host.is_shared else start_files(self.job_dir, joins=joins)
        self._host.start(
            self._orders.order(members, rank, generation=generation, store=where, joins=joins, files=files)
        )

    # -- shutdown ------------------------------------------------------------------------------------------------------

    def _leave(self) -> None:
        """Bring the learners to a step boundary, a checkpoint and exit. Called repeatedly until they are gone."""
        assert self._wanted is not None
        if not self._is_expecting():  # only connected learners can report what to save or change
            self._shutdown.leave(self._membership.call_off(self._alive()), self._wanted.grace_s, time.monotonic())

    def _is_expecting(self) -> bool:
        """Return whether adopted learners are still expected to connect."""
        return time.monotonic() < self._hellos_by and any(
            one.is_adopted and not one.is_connected for one in self._alive()
        )

    def _end(self) -> None:
        """End the learners without a checkpoint: their work no longer counts."""
        grace_s = self._wanted.grace_s if self._wanted is not None else TERM_S
        self._shutdown.end(self._alive(), LAST_WORDS_S if self._failed else 0.0, min(grace_s, TERM_S), time.monotonic())

    # -- messages and ends of learners ---------------------------------------------------------------------------------

    def _observe(self, ready: Collection[int]) -> None:
        """Record what happened to the learners."""
        events = self._host.turn(ready, time.monotonic())
        for event in events:
            self._see(event)
        if any(isinstance(event, Started | NotStarted | Ended) for event in events):
            self._write_status()

    def _see(self, event: HostEvent) -> None:
        if isinstance(event, Started | NotStarted | Ended) and self._is_over(event.member):
            self._host.sweep(event.member)  # its host was counted as lost; it must not continue beside its successor
            self._host.dismiss(event.member)
            return
        match event:
            case Started():
                self._see_start(event)
            case NotStarted(member) if member in self._learners:
                self._see_no_start(event)
            case Ended():
                self._see_end(event)
            case Connected(member) if member in self._learners:
                self._learners[member].connect()
            case Disconnected(member) if member in self._learners:
                self._learners[member].is_connected = False
            case MessageReceived(member, line) if member in self._learners:
                self._take_in(self._learners[member], wire.learner_messages([line], _log))
            case _:
                return

    def _see_start(self, event: Started) -> None:
        process = event.process
        one = self._learners.get(process.member)
        if one is None:
            one = self._learners[process.member] = self._take_over(event)
        one.run_as(process)
        if not (event.is_adopted and process.member in self._earlier.up):
            self._journal.up(one)
        self._logs.begin(one.member)

    def _is_over(self, member: int) -> bool:
        """Return whether the end of this member's learner is recorded. A member number is never used again."""
        if member in self._learners:
            return not self._learners[member].is_alive
        return member in self._earlier.ever and member not in self._earlier.up

    def _see_no_start(self, event: NotStarted) -> None:
        _log(f"learner {event.member} could not be started: {event.reason}")
        one = self._learners[event.member]
        one.is_alive, one.code = False, 127
        reason = diagnosis.not_started(event.reason, event.program if event.is_permanent else None)
        one.failure = one.failure or event.failure or reason
        self._journal.up(one)
        self._see_down(one)

    def _see_end(self, event: Ended) -> None:
        member = event.process.member
        one = self._learners.get(member)
        if one is None:
            one = self._learners[member] = self._lost_meanwhile(member, event.process.identity)
        one.is_alive = one.is_connected = False
        one.code, one.signal, one.is_out_of_memory = event.code, event.signal, event.is_out_of_memory
        one.failure = one.failure or event.failure
        one.is_asked |= one.is_adopted and was_let_go(read_result(self.job_dir, member), member, self._wanted)
        if self._wanted is not None and self._wanted.goal is not Goal.RUN and not self._alive():
            self._finish_host(2.0)  # the last seat is free once this learner's end is recorded
        self._see_down(one)
        self._failed += [] if self._is_complete() else self._membership.unmended(self._wanted)
        self._host.dismiss(member)

    def _take_in(self, one: Learner, messages: list[wire.LearnerMessage]) -> None:
        for message in messages:
            if self._hangs.receive(one, message, time.monotonic()):
                continue
            one.listen(message)
            if isinstance(message, wire.CheckpointWritten):
                self._journal.checkpoints()
                if not self._host.is_shared:
                    prune_checkpoints(self.job_dir, KEPT)
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
            not self._orders.expects_run
            and all(one.is_ready and not one.uses_run for one in gang)
            and self._journal.checkpoint_step() is None  # otherwise a framework's loop resumes from it and reports when
        ):
            self._journal.together(self._generation, None)

    def _finish_host(self, within_s: float) -> bool:
        """End all processes of the job, also those without a mark. Return whether none is left."""
        self._store.end()
        self._lock.end_watchdog()
        return self._host.finish(within_s)

    def _close(self, act: Act) -> None:
        """Kill all remaining processes, record the outcome and close the journal."""
        if not self._finish_host(FINISH_S):
            # It is stuck in the kernel (for example on a dead network disk), executes no more code, and ends later.
            _log("a process of the job does not end; giving up on it")
        if act is Act.COMPLETE:
            gang = (one for one in self._learners.values() if one.generation == self._generation)
            first = next((one for one in gang if one.rank == 0), None)
            self._journal.completed(self._generation, read_result(self.job_dir, first.member) if first else None)
        elif act is Act.HALTED:
            self._journal.halted(self._generation)
        # Remove the discovery files before the final fact: a client that then finds no socket starts the next guardian.
        self._presence.close()
        self._journal.closed({Act.COMPLETE: "completed", Act.HALTED: "halted"}.get(act, "stopped"))
        while not self._journal.journal.flush():
            time.sleep(1.0)
        self._is_closed = True

    def _see_down(self, one: Learner) -> None:
        self._logs.end(one.member)
        failure = self._journal.down(one)
        one.is_done = has_completed(one, read_result(self.job_dir, one.member))
        if failure is None or one.generation < self._generation:
            return
        if self._orders.may_change and self._is_expecting() and not self._membership.is_elastic:
            self._unsure.append((one.member, failure))
        else:
            self._count(one.member, failure)

    def _count(self, member: int, failure: Failure) -> None:
        """Mark the gang as broken by a member's failure, unless the others continue without it.

        A failure of a learner that has not joined yet never breaks the gang on its own account.
        """
        is_joiner = member in self._learners and self._learners[member].membership_epoch < 0
        if (not is_retried(failure) and not is_joiner) or not self._membership.lost(member, failure):
            self._failed.append((member, failure))

    # -- status file ---------------------------------------------------------------------------------------------------

    def _write_status(self, starting: Collection[int] = (), joining: Collection[int] = ()) -> None:
        """Write the status file, with the members (`starting`, `joining`) whose processes may appear at any moment."""
        learners = {one.member: one.process for one in self._alive() if one.process.pid}
        ordered = [one for one in self._alive() if not one.process.pid]
        under_way = {
            "starting": sorted({*starting, *(one.member for one in ordered if one.membership_epoch >= 0)}),
            "joining": sorted({*joining, *(one.member for one in ordered if one.membership_epoch < 0)}),
        }
        under_way = {name: members for name, members in under_way.items() if members}
        self._presence.write_status(self._me, learners, self._store.process, self._store.port, **under_way)


def _log(text: str) -> None:
    print(f"guardian: {text}", file=sys.stderr, flush=True)
