"""A job that only pretends: guardian and learners as a script in virtual time, telling what real ones tell."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Final

from jupyter_dlaas.wire.journal import FACT_TYPES, Fact, FactKind, Goal, MemberWanted, Wanted
from jupyter_dlaas.wire.protocol import Cause, Failure, Progress
from tests.pools.simulated.virtual_clock import Clock

__all__ = ["Fault", "Script", "ScriptedJob"]


BROKEN: Final = Failure(cause=Cause.YOUR_CODE, code="exception", what="scripted failure", advice="fix the script")
KILLED: Final = Failure(cause=Cause.UNKNOWN, code="killed", what="the learner was killed", advice="it is restarted")


def _linear(learners: int) -> float:
    return float(learners)


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """A loss that a script plays: the learner of `rank` dies on reaching `step`, the first `times` times."""

    step: int
    rank: int = 0
    times: int = 1
    code: int | None = 1
    signal: int | None = None
    failure: Failure = BROKEN


@dataclass(frozen=True, slots=True, kw_only=True)
class Script:
    """Behaviour of a simulated job. `speedup(k)`: how many times faster k learners are than one."""

    deploy_s: float = 0.05
    """From act() to a guardian that reads."""
    acknowledge_s: float = 0.0
    """From act() to SEEN where a guardian lives."""
    start_s: float = 0.1
    """From the learners' processes to their user code."""
    step_s: float = 0.1
    """One step with one learner."""
    speedup: Callable[[int], float] = _linear
    steps: int = 100
    steps_per_epoch: int = 10
    checkpoint_every_steps: int = 10
    checkpoint_s: float = 0.02
    store_s: float = 0.05
    ignores_halt: bool = False
    """Never leaves when asked; killed after the grace."""
    is_live: bool = False
    """The gang changes, and survives losses, while it trains."""
    change_s: float = 0.02
    """For how long such a change stops it."""
    joins_lost: int = 0
    """So many of those who come to join it die before they do."""
    faults: tuple[Fault, ...] = ()


class _Phase(StrEnum):
    IDLE = "idle"
    STARTING = "starting"
    TRAINING = "training"
    LEAVING = "leaving"
    STORING = "storing"
    DONE = "done"


class ScriptedJob:
    """One simulated job: what its guardian and its learners do, event by event.

    `tell` takes each fact in order, `say` each line of a learner's log, `note` each line of the metrics, `gone` is
    called when the guardian's process ended. Learners live on without a guardian; the next one reports what
    happened meanwhile, as a real one finds it in the job's directory.
    """

    def __init__(
        self,
        script: Script,
        clock: Clock,
        tell: Callable[[Fact], None],
        say: Callable[[int, str], None],
        note: Callable[[str], None],
        gone: Callable[[], None],
        outputs: tuple[str, ...],
    ) -> None:
        self.script = script
        self.wanted: Wanted | None = None
        self.guardian: int | None = None
        self.members: tuple[MemberWanted, ...] = ()
        self._clock, self._tell, self._say, self._note, self._gone = clock, tell, say, note, gone
        self._outputs = outputs
        self._phase = _Phase.IDLE
        self._is_reading = False  # the guardian came up far enough to read and write
        self._life = (
            0  # timers of an earlier phase of the learners, or of an earlier guardian, find another number here
        )
        self._watch = 0
        self._guardians = 0
        self._facts = 0
        self._unreported: list[Fact] = []
        self._seen = -1
        self._closed_revision: int | None = None
        self._generation = 0
        self._since_s = 0.0
        self._since_step = 0
        self._committed = 0
        self._checkpoint: int | None = None
        self._asked = 0  # checkpoints that were asked for, and taken
        self._left_s: float | None = None
        self._has_left = False
        self._struck: dict[int, int] = {}
        self._joiners: tuple[MemberWanted, ...] = ()
        self._ready_s: float | None = None  # when they are ready, if a change is under way
        self._joins_lost = 0

    # ---- from outside ----------------------------------------------------------------------------------------

    def give(self, wanted: Wanted) -> None:
        """Hand over the document, as act() does; older revisions are dropped."""
        if self.wanted is not None and wanted.revision < self.wanted.revision:
            return
        self.wanted = wanted
        if self.guardian is None:
            self._start_guardian()
        elif self._is_reading:
            self._later_guardian(self.script.acknowledge_s, self._read)

    def kill_guardian(self) -> None:
        """Kill the guardian, as by `kill -9`: learners continue, nothing more is reported."""
        if self.guardian is not None:
            self._end_guardian()

    def kill_learner(self, member: int, failure: Failure = KILLED) -> None:
        """As `kill -9` of one learner."""
        if any(m.member == member for m in self._joiners):
            self._lose_joiner(member, failure)
        elif self.script.is_live and self._phase == _Phase.TRAINING and {member} < {m.member for m in self.members}:
            self._regroup(member, failure)
        elif any(m.member == member for m in self.members):
            self._lose(member, failure, code=None, signal=9)

    def kill_all(self, failure: Failure = KILLED) -> None:
        """As the loss of the machine: every process at once, the guardian too."""
        self.kill_guardian()
        if self.members:
            self._lose(self.members[0].member, failure, code=None, signal=9)

    @property
    def learners(self) -> tuple[MemberWanted, ...]:
        """All whose processes live: who trains, and who is about to join them."""
        return (*self.members, *self._joiners)

    @property
    def step(self) -> int:
        """The step that training has reached now."""
        if self._phase not in (_Phase.TRAINING, _Phase.LEAVING) or not self.members:
            return self._since_step
        done = int((self._clock.now_s() - self._since_s) / self._one_step_s + 1e-9)
        return min(self._since_step + done, self.script.steps)

    @property
    def progress(self) -> Progress:
        """Return the content that a learner would write into progress.json now."""
        step, script = self.step, self.script
        is_training = self._phase == _Phase.TRAINING
        return Progress(
            epoch=step // script.steps_per_epoch,
            step=step,
            steps=script.steps,
            fraction=step / script.steps if script.steps else 1.0,
            steps_per_s=1 / self._one_step_s if is_training else None,
            at_s=self._clock.now_s(),
        )

    # ---- the guardian ----------------------------------------------------------------------------------------

    def _start_guardian(self) -> None:
        self._guardians += 1
        self.guardian = 1000 + self._guardians
        self._later_guardian(self.script.deploy_s, self._come_up)

    def _come_up(self) -> None:
        self._is_reading = True
        assert self.wanted is not None
        if self._closed_revision is not None and self.wanted.revision <= self._closed_revision:
            self._end_guardian()  # closed already, and nothing new is wanted
            return
        took_over = True if self.members or self._unreported else None
        self._fact(FactKind.GUARDIAN_UP, pid=self.guardian, start=0, boot="simulated", took_over=took_over)
        unreported, self._unreported = self._unreported, []
        for fact in unreported:
            self._write(fact)
        self._read()

    def _read(self) -> None:
        assert self.wanted is not None
        if self.wanted.revision > self._seen:
            self._seen, self._closed_revision = self.wanted.revision, None
            self._fact(FactKind.SEEN, revision=self._seen)
        self._consider()

    def _consider(self) -> None:
        """Compare what is wanted with what is, and begin the next thing; without a guardian nothing begins."""
        wanted = self.wanted
        if not self._is_reading or wanted is None:
            return
        if self._phase == _Phase.DONE:
            self._close("completed")
        elif wanted.goal == Goal.STOP:
            self._end_learners(signal=15)
            self._close("stopped")
        elif self._phase in (_Phase.LEAVING, _Phase.STORING):
            return  # what comes after it is considered then
        elif self._phase == _Phase.TRAINING and wanted.checkpoints > self._asked:
            self._asked = wanted.checkpoints
            self._save(self.step)
            self._consider()
        elif wanted.goal == Goal.HALT or wanted.generation > self._generation or self._has_left:
            if wanted.goal == Goal.RUN and self._may_change(wanted):
                self._change(wanted)
            elif self._phase == _Phase.TRAINING:
                self._leave(wanted)
            else:
                self._end_learners(signal=15)
                self._go_on()

    def _go_on(self) -> None:
        """No learner is left and something is wanted: halt, or the next generation."""
        wanted = self.wanted
        assert wanted is not None
        assert not self.members
        if not self._is_reading:
            return
        is_late = self._has_left and wanted.generation <= self._generation  # a halt that was taken back too late
        if wanted.goal == Goal.HALT or is_late:
            has = self._checkpoint is not None
            self._fact(FactKind.HALTED, step=self._checkpoint or 0, has_checkpoint=has)
            self._close("halted")
        elif wanted.goal == Goal.RUN and wanted.generation > self._generation and wanted.members:
            self._start_learners(wanted)

    def _close(self, why: str) -> None:
        self._fact(FactKind.CLOSED, why=why)
        self._closed_revision = self._seen
        self._end_guardian()

    def _end_guardian(self) -> None:
        self.guardian = None
        self._is_reading = False
        self._watch += 1
        self._gone()

    # ---- the learners ----------------------------------------------------------------------------------------

    def _start_learners(self, wanted: Wanted) -> None:
        self._generation, self.members, self._has_left = wanted.generation, wanted.members, False
        self._since_step = self._committed = self._checkpoint or 0
        self._phase = _Phase.STARTING
        for rank, one in enumerate(self.members):
            self._up(one, rank, self._generation)
        self._later(self.script.start_s, self._ready)

    def _up(self, one: MemberWanted, rank: int, generation: int) -> None:
        pid = 100_000 + one.member
        self._fact(FactKind.LEARNER_UP, member=one.member, rank=rank, generation=generation, pid=pid, start=0)

    def _ready(self) -> None:
        for one in self.members:
            self._say(one.member, f"learner {one.member} is ready (simulated)\n")
            self._fact(FactKind.LEARNER_READY, member=one.member, generation=self._generation)
        now = self._clock.now_s()
        idle_s = None if self._left_s is None else now - self._left_s
        self._phase, self._since_s, self._left_s = _Phase.TRAINING, now, None
        live = self.script.is_live or None
        self._fact(FactKind.GENERATION, generation=self._generation, step=self._since_step, idle_s=idle_s, live=live)
        self._train()
        self._consider()

    @property
    def _one_step_s(self) -> float:
        return self.script.step_s / self.script.speedup(max(1, len(self.members)))

    def _fault_at(self, step: int) -> Fault | None:
        for i, fault in enumerate(self.script.faults):
            if fault.step == step and self._struck.get(i, 0) < fault.times:
                self._struck[i] = self._struck.get(i, 0) + 1
                return fault
        return None

    def _next_stop(self, step: int) -> int:
        """Return the next step of a fault, a checkpoint or the end."""
        script = self.script
        stops = [script.steps]
        if script.checkpoint_every_steps:
            stops.append((step // script.checkpoint_every_steps + 1) * script.checkpoint_every_steps)
        for i, fault in enumerate(script.faults):
            if fault.step > step and self._struck.get(i, 0) < fault.times:
                stops.append(fault.step)
        return min(stops)

    def _train(self) -> None:
        step = self._since_step
        if (fault := self._fault_at(step)) is not None:
            self._strike(fault)
            return
        stop = self._next_stop(step)
        self._later((stop - step) * self._one_step_s, lambda: self._reach(stop))

    def _reach(self, step: int) -> None:
        self._since_step, self._since_s = step, self._clock.now_s()
        if step >= self.script.steps:
            self._phase = _Phase.STORING
            self._fact(FactKind.STORING, generation=self._generation)
            self._later(self.script.store_s, self._complete)
            return
        if self.script.checkpoint_every_steps and step % self.script.checkpoint_every_steps == 0:
            self._save(step)
        self._train()

    def _save(self, step: int) -> None:
        self._checkpoint = step
        self._commit(step)
        self._fact(
            FactKind.CHECKPOINT,
            generation=self._generation,
            step=step,
            epoch=step // self.script.steps_per_epoch,
            seconds=self.script.checkpoint_s,
            bytes=1,
            asked=self._asked or None,
        )

    def _commit(self, step: int) -> None:
        """Tell the steps since the last time, cut at the ends of epochs: a record belongs to one epoch."""
        per = self.script.steps_per_epoch
        while self._committed < step:
            first = self._committed
            upto = min(step, (first // per + 1) * per)
            self._fact(FactKind.COMMITTED, generation=self._generation, first_step=first, step=upto, epoch=first // per)
            self._committed = upto
        if self.members:
            self._say(self.members[0].member, f"step {step}\n")
            body = {"t": self._clock.now_s(), "step": step, "epoch": step // per, "values": {"loss": 1 / (1 + step)}}
            self._note(json.dumps(body | {"source": "run"}) + "\n")

    def _complete(self) -> None:
        self._commit(self.script.steps)
        self._end_learners(code=0)
        self._phase = _Phase.DONE
        self._fact(FactKind.COMPLETED, generation=self._generation, results=self._outputs, step=self.script.steps)
        if self._is_reading:
            self._close("completed")

    def _leave(self, wanted: Wanted) -> None:
        """Train to the next step boundary; there a checkpoint is written and the learners leave."""
        step = self.step
        if self.script.ignores_halt:
            self._phase = _Phase.LEAVING
            self._later(wanted.grace_s, lambda: self._left(None))
            return
        stop = min(step + 1, self.script.steps)
        if stop == self.script.steps:
            return  # so near to its end, it ends
        self._phase = _Phase.LEAVING
        at_s = self._since_s + (stop - self._since_step) * self._one_step_s
        self._later(at_s - self._clock.now_s() + self.script.checkpoint_s, lambda: self._left(stop))

    def _left(self, step: int | None) -> None:
        self._left_s = self._clock.now_s()
        if step is not None:
            self._since_step = step
            self._save(step)
        self._end_learners(code=0 if step is not None else None, signal=9 if step is None else None)
        self._has_left = True
        self._go_on()

    def _strike(self, fault: Fault) -> None:
        self._lose(self.members[fault.rank % len(self.members)].member, fault.failure, fault.code, fault.signal)

    def _lose(self, member: int, failure: Failure, code: int | None, signal: int | None) -> None:
        """One learner dies by itself; the guardian ends the others."""
        self._left_s = self._clock.now_s()
        self._say(member, f"learner {member}: {failure.what}\n")
        self._fact(
            FactKind.LEARNER_DOWN,
            member=member,
            generation=self._generation,
            code=code,
            signal=signal,
            failure=failure,
        )
        self.members = tuple(m for m in self.members if m.member != member)
        self._end_learners(signal=15)
        self._fact(FactKind.LOST, generation=self._generation, failure=failure, step=self._checkpoint)
        self._consider()

    def _end_learners(self, code: int | None = None, signal: int | None = None) -> None:
        self._life += 1
        for one in self.learners:
            self._fact(FactKind.LEARNER_DOWN, member=one.member, generation=self._generation, code=code, signal=signal)
        self.members, self._joiners, self._ready_s = (), (), None
        self._phase = _Phase.IDLE

    # ---- changing while they train ---------------------------------------------------------------------------

    def _may_change(self, wanted: Wanted) -> bool:
        there = {m.member for m in self.members}
        stays = self._ready_s is not None or any(m.member in there for m in wanted.members)
        return self.script.is_live and self._phase == _Phase.TRAINING and not self._has_left and stays

    def _change(self, wanted: Wanted) -> None:
        """Start the joining learners while the others train; then switch all at once."""
        now = self._clock.now_s()
        if self._ready_s is None:
            there = {m.member for m in self.members}
            self._joiners = tuple(m for m in wanted.members if m.member not in there)
            self._ready_s = now + (self.script.start_s if self._joiners else 0.0)
            for rank, one in enumerate(wanted.members):
                if one in self._joiners:
                    self._up(one, rank, wanted.generation)
        if now + 1e-9 < self._ready_s:
            self._later_guardian(self._ready_s - now, self._consider)
            return
        for one in self._joiners:
            if self._joins_lost < self.script.joins_lost:
                self._joins_lost += 1
                self._lose_joiner(one.member, KILLED)
            else:
                self._fact(FactKind.LEARNER_READY, member=one.member, generation=wanted.generation)
        self._go_over(wanted)

    def _go_over(self, wanted: Wanted) -> None:
        """For each that was to be there and is not, one stays that was to leave."""
        came, target = self._joiners, {m.member for m in wanted.members}
        leavers = [m for m in self.members if m.member not in target]
        missing = len(target) - (len(self.members) - len(leavers)) - len(came)
        gone = leavers[missing:]
        self._mark(self.step)
        self._joiners, self._ready_s = (), None
        for one in gone:
            self._fact(FactKind.LEARNER_DOWN, member=one.member, generation=self._generation, code=0)
        idle_s = self.script.change_s if came or gone else None
        self.members, self._generation = (*(m for m in self.members if m not in gone), *came), wanted.generation
        self._together(FactKind.GENERATION, idle_s=idle_s)

    def _regroup(self, member: int, failure: Failure) -> None:
        """Handle the death of one learner; the others continue without it."""
        self._mark(self.step)
        self._fact(FactKind.LEARNER_DOWN, member=member, generation=self._generation, signal=9, failure=failure)
        self.members = tuple(m for m in self.members if m.member != member)
        self._together(FactKind.REGROUPED, idle_s=self.script.change_s, failure=failure)
        self._consider()

    def _together(self, kind: FactKind, **fields: object) -> None:
        members = tuple(m.member for m in self.members)
        self._fact(kind, generation=self._generation, step=self._since_step, members=members, live=True, **fields)
        self._train()

    def _mark(self, step: int) -> None:
        """Account for the training until now, by the learners of now."""
        self._commit(step)
        self._since_step, self._since_s = step, self._clock.now_s()

    def _lose_joiner(self, member: int, failure: Failure) -> None:
        generation = self.wanted.generation if self.wanted is not None else self._generation
        self._joiners = tuple(m for m in self._joiners if m.member != member)
        self._fact(FactKind.LEARNER_DOWN, member=member, generation=generation, signal=9, failure=failure)

    # ---- telling ---------------------------------------------------------------------------------------------

    def _later(self, delay_s: float, fn: Callable[[], None]) -> None:
        """Do the next thing of the learners; whatever else was to come is called off."""
        self._life += 1
        life = self._life
        self._clock.call_at(self._clock.now_s() + delay_s, lambda: fn() if life == self._life else None)

    def _later_guardian(self, delay_s: float, fn: Callable[[], None]) -> None:
        watch = self._watch
        self._clock.call_at(self._clock.now_s() + delay_s, lambda: fn() if watch == self._watch else None)

    def _fact(self, kind: FactKind, **fields: object) -> None:
        fact = FACT_TYPES[kind](at_s=self._clock.now_s(), **fields)
        if self._is_reading:
            self._write(fact)
        else:
            self._unreported.append(fact)

    def _write(self, fact: Fact) -> None:
        self._tell(replace(fact, n=self._facts, at_s=self._clock.now_s()))
        self._facts += 1
