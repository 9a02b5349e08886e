"""Hang detection: which learner hangs, and which busy learner the others wait for. A hang is handled like a loss.

A learner that makes no step is left alone as long as it moves (validates, saves or computes) or waits for others.
"""

from __future__ import annotations

import signal
import statistics
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from jupyter_dlaas.runtime.guardian.journal_writer import JournalWriter
from jupyter_dlaas.runtime.guardian.learner_process import Learner
from jupyter_dlaas.runtime.guardian.stragglers import Stragglers
from jupyter_dlaas.runtime.hosts.learner_host import LearnerHost
from jupyter_dlaas.runtime.system.process import Activity
from jupyter_dlaas.wire.learner_messages import Heartbeat, LearnerMessage, StepTimes
from jupyter_dlaas.wire.protocol import Cause, Failure, Where

__all__ = ["Hangs", "Pulse", "Verdict", "judge", "limit_s", "waits"]

LOOK_S: Final = 0.5
_LIMIT_S: Final = 30.0
"""Minimum time in seconds without progress before a learner counts as hung, unless `--hang-after` sets another."""
_STEPS: Final = 10.0
"""Multiple of the learner's usual step time that it may spend without progress."""
_STOPPED_S: Final = 3.0
"""Seconds after which a stopped process (SIGSTOP) counts as hung in a gang: it makes no step by itself."""
_SILENT_S: Final = 1.2
"""Seconds without a heartbeat after which the guardian reads the process's activity from the system."""
_SLOW: Final = 4
"""Factor on the limit while a learner joins (downloads, imports)."""
_ALONE: Final = 20
"""Factor on the limit of a learner that no other waits for: it may wait for something that only its owner knows."""
_LATE_S: Final = 2.0
_AWAITED_S: Final = 5.0
_DYING_S: Final = 2.0
"""Seconds from SIGABRT, on which Python writes its stack to the log, to SIGKILL."""


def limit_s(environment: Mapping[str, str]) -> float:
    """Return the minimum time in seconds without progress, which `DLAAS_HANG_S` in the job's environment overrides."""
    return float(environment.get("DLAAS_HANG_S", _LIMIT_S))


@dataclass(slots=True)
class Pulse:
    """Progress of one learner. Times are by the guardian's monotonic clock."""

    step_s: float
    """Time at which it began the current step."""
    moved_s: float
    """Time at which it was last seen to move."""
    received_s: float
    step: int | None = None
    """Last reported step; None if no training loop runs."""
    is_held: bool = False
    """True if it waits for an order of the guardian."""
    membership_epoch: int = 0
    """Membership epoch of its process group."""
    collectives: int = 0
    """Number of collectives that it has started in this epoch."""
    collective_s: float = 0.0
    """Time at which this number last changed."""
    at: str = ""
    """Place in the user's program."""
    where: Where | None = None
    """Place in the user's program with its source lines."""
    stopped_s: float | None = None
    """Time since which its process is stopped; None if it is not."""
    suspect_to: int | None = None
    """Step up to which it may hang in the same place as another learner of its gang that was ended for a hang."""
    activity: Activity | None = None
    usual: deque[float] = field(default_factory=lambda: deque(maxlen=31))
    """Seconds per step of recent steps."""

    def receive(self, beat: Heartbeat, now: float) -> None:
        """Record a heartbeat."""
        if beat.step is not None and beat.step != self.step:
            if self.step is not None and beat.step > self.step:
                self.usual.append((now - self.step_s) / (beat.step - self.step))
            self.step, self.step_s = beat.step, now
        if beat.is_moving:
            self.moved_s = now
        self.received_s, self.stopped_s = now, None
        self.is_held = beat.awaits_guardian
        if beat.collectives_started != self.collectives:
            self.collectives, self.collective_s = beat.collectives_started, now
        self.at, self.where = beat.place, beat.where

    def look(self, activity: Activity | None, now: float) -> None:
        """Record the system's view of a process that sends no heartbeats."""
        if activity is not None and activity.is_stopped:
            self.stopped_s = now if self.stopped_s is None else self.stopped_s
            return
        self.stopped_s = None
        if activity is None or activity.is_out_of_reach or activity != self.activity:
            self.moved_s = now
        self.activity = activity

    def is_silent(self, now: float) -> bool:
        """Return whether no heartbeat arrived for longer than its interval."""
        return now - self.received_s >= _SILENT_S

    @property
    def progress_s(self) -> float:
        """Time of its last step or movement."""
        return max(self.step_s, self.moved_s)

    def still_s(self, now: float) -> float:
        """Return the seconds since its last step or movement."""
        return now - self.progress_s

    @property
    def is_suspect(self) -> bool:
        """True if it has not passed the step at which another learner hung."""
        return self.suspect_to is not None and self.step is not None and self.step <= self.suspect_to

    def limit_s(self, least_s: float) -> float:
        """Return the seconds that it may spend without progress."""
        return max(least_s, _STEPS * statistics.median(self.usual)) if self.usual else least_s


@dataclass(frozen=True, slots=True)
class Verdict:
    """Learners to end, each with a reason, and the learner that the others wait for."""

    hung: Mapping[int, str]
    is_mutual: bool = False
    """True if all learners of the gang hang at once."""
    awaited: tuple[int, str] | None = None


def judge(
    pulses: Mapping[int, Pulse], joining: Iterable[int], now: float, least_s: float, *, is_set: bool = False
) -> Verdict:
    """Return the hung learners of a gang. Pure.

    `joining` holds the members that are not in the process group yet. `is_set` says that the job's owner set the limit.

    A learner that has started more collectives in an epoch than another waits for that one. If all hang, no single
    learner is to blame: some skip a collective that all must take part in, or start it in another order. Therefore no
    learner is ended before the others were seen to move again or to hang as well. A survivor that then stands still
    where another hung is judged to hang with it.
    """
    joining, waiting = frozenset(joining), waits(pulses, now)
    gang = pulses.keys() - joining
    is_gang = len(gang) > 1 or any(pulses[member].is_suspect for member in gang)
    are_all_stopped = all(one.stopped_s is not None for one in pulses.values())
    hung: dict[int, str] = {}
    alone = 1 if is_set else _ALONE
    for member, one in sorted(pulses.items()):
        limit_s = one.limit_s(least_s) * (_SLOW if member in joining else 1 if is_gang else alone)
        if one.stopped_s is not None:
            # If all processes are stopped at once, the user did it on purpose.
            if now - one.stopped_s >= (alone * least_s if are_all_stopped else _STOPPED_S):
                hung[member] = "its process was stopped (SIGSTOP) and did not continue"
        elif member not in waiting and one.still_s(now) >= limit_s:
            hung[member] = f"it hung: no step and no progress for {one.still_s(now):.0f} s{_at(one)}"
    if hung:
        about = {m for m in gang - waiting if pulses[m].still_s(now) >= pulses[m].limit_s(least_s) - 2 * LOOK_S}
        if is_gang and about == gang and not any(pulses[m].stopped_s is not None for m in gang):
            return Verdict(
                {m: f"it waits for the other learners{_at(pulses[m])}" for m in sorted(gang)}, is_mutual=True
            )
        others = [pulses[m] for m in gang - waiting - hung.keys() if pulses[m].stopped_s is None]
        hung = {m: why for m, why in hung.items() if m not in gang or _is_alone(pulses[m], others, least_s)}
    if hung:
        return Verdict(hung)
    late = [
        (member, one)
        for member, one in sorted(pulses.items())
        if member in gang - waiting
        and now - one.step_s >= max(min(_AWAITED_S, least_s), one.limit_s(0.0))
        and _keeps_waiting(one, [pulses[other] for other in waiting], now)
    ]
    return Verdict(hung, awaited=(late[0][0], late[0][1].at) if late else None)


def _is_alone(one: Pulse, others: Iterable[Pulse], least_s: float) -> bool:
    """Return whether all others progressed after this learner exceeded its limit. Always True for a stopped process."""
    until_s = one.progress_s + one.limit_s(least_s)
    return one.stopped_s is not None or all(other.progress_s > until_s for other in others)


def _keeps_waiting(one: Pulse, waiting: Iterable[Pulse], now: float) -> bool:
    """Return whether another learner waits for this one.

    A report counts only if it is not newer than this learner's last heartbeat: between heartbeats, every learner seems
    to lag behind.
    """
    return any(
        other.is_held or one.is_silent(now) or (_is_ahead(other, one) and other.collective_s <= one.received_s)
        for other in waiting
    )


def _is_ahead(one: Pulse, other: Pulse) -> bool:
    """Return whether a learner has started more collectives than another one of the same group."""
    return one.membership_epoch == other.membership_epoch and one.collectives > other.collectives


def waits(pulses: Mapping[int, Pulse], now: float) -> set[int]:
    """Return the members that wait for an order, or for a learner with fewer collectives in the same epoch.

    The last count of a silent learner is out of date, so all learners that send heartbeats count as waiting for it.
    """
    least: dict[int, int] = {}
    for one in pulses.values():
        collectives = -1 if one.is_silent(now) else one.collectives
        least[one.membership_epoch] = min(collectives, least.get(one.membership_epoch, collectives))
    return {
        member
        for member, one in pulses.items()
        if one.is_held or (not one.is_silent(now) and one.collectives > least[one.membership_epoch])
    }


def _is_watched(one: Learner) -> bool:
    """Return whether a learner is watched for hangs: it trains, joins, or was adopted and has not connected.

    A joining learner has no steps yet but must not block the others' change; nor must an adopted one that stays silent.
    """
    is_newcomer = one.membership_epoch < 0 and one.may_change
    return one.trains_from is not None or is_newcomer or (one.is_adopted and not one.is_connected)


def _at(one: Pulse) -> str:
    return f" at {one.at}" if one.at else ""


_HUNG: Final = Failure(
    cause=Cause.HANG,
    code="hang",
    what="",
    advice="It probably waits for a lock, a queue, a connection or another process. If this line may take that long, "
    "allow more time with --hang-after.",
)
_MUTUAL: Final = Failure(
    cause=Cause.YOUR_CODE,
    code="deadlock",
    what="all learners wait for each other",
    advice="Only some learners execute an operation that all must execute together: look for an `if run.is_main` or "
    "`if run.rank` around a run.log(reduce=…) or a backward(), or for a loop that is longer in one learner. "
    "The end of each log shows where the learner was.",
)


class Hangs:
    """Imperative shell around `judge`: checks the learners every half second while any of them is watched."""

    def __init__(
        self, host: LearnerHost, journal: JournalWriter, least_s: float, *, set_s: float | None = None
    ) -> None:
        """Set the limit: `least_s` is the default in seconds, `set_s` the value that the job's owner chose."""
        self._host, self._journal = host, journal
        self._least_s, self._is_set = least_s if set_s is None else set_s, set_s is not None
        self._pulses: dict[int, Pulse] = {}
        self._kill_at: dict[int, float] = {}
        self._look_s = 0.0
        self._awaited: int | None = None
        self._stragglers = Stragglers()
        self._slow: int | None = None

    def receive(self, one: Learner, message: LearnerMessage, now: float) -> bool:
        """Handle a message about a learner's progress. Return whether it was one."""
        if isinstance(message, StepTimes):
            self._stragglers.receive(
                one.member,
                message.compute_s,
                message.step_s,
                message.steps,
                now,
                wait_s=message.wait_s,
                skew=message.skew,
            )
            return True
        if not isinstance(message, Heartbeat):
            return False
        self._pulse(one, now).receive(message, now)
        return True

    def due(self, now: float) -> float | None:
        """Return the time of the next check."""
        return max(self._look_s + LOOK_S, now) if self._pulses else None

    def look(self, alive: Sequence[Learner], now: float) -> None:
        """End learners that hang and record the learner that the others wait for.

        `alive` holds the learners that were not asked to leave.
        """
        if now - self._look_s < LOOK_S:
            return
        late_s, self._look_s = now - self._look_s - LOOK_S, now
        for pulse in self._pulses.values() if late_s > _LATE_S else ():
            # This process, or the whole machine, was suspended meanwhile.
            pulse.step_s, pulse.moved_s, pulse.received_s = (
                at_s + late_s for at_s in (pulse.step_s, pulse.moved_s, pulse.received_s)
            )
        members = {one.member: one for one in alive if _is_watched(one) or (self._is_set and one.is_ready)}
        self._pulses = {member: self._pulse(one, now) for member, one in members.items()}
        for member, pulse in self._pulses.items():
            if pulse.is_silent(now):
                pulse.look(self._host.activity(member), now)
            if pulse.membership_epoch != members[member].membership_epoch:
                pulse.membership_epoch, pulse.collectives, pulse.moved_s = members[member].membership_epoch, 0, now
            if members[member].is_waiting:
                pulse.moved_s = now  # it has rehearsed and joins on the guardian's order
        for member in waits(self._pulses, now):
            self._pulses[member].moved_s = now  # its time starts when the learners it waits for catch up
        joining = [one.member for one in alive if one.membership_epoch < 0]
        verdict = judge(self._pulses, joining, now, self._least_s, is_set=self._is_set)
        for member, why in verdict.hung.items():
            self._end(members[member], why, verdict.is_mutual, now)
        for member, at_s in list(self._kill_at.items()):
            if member not in members:
                del self._kill_at[member]
            elif now >= at_s:
                self._host.signal(member, signal.SIGKILL)
        self._report_awaited(verdict)
        training = {one.member: one.trains_as for one in alive if one.trains_from is not None}
        self._report_slow(list(training), now)
        profile = self._stragglers.profile(training, now)
        if profile is not None:
            self._journal.profile(max(training.values()), profile)

    def _pulse(self, one: Learner, now: float) -> Pulse:
        return self._pulses.setdefault(one.member, Pulse(step_s=now, moved_s=now, received_s=now))

    def _end(self, one: Learner, why: str, is_mutual: bool, now: float) -> None:
        if one.member in self._kill_at:
            return
        pulse = self._pulses[one.member]
        failure = _MUTUAL if is_mutual else replace(_HUNG, what=f"learner {one.member} was ended: {why}")
        one.failure = replace(failure, where=pulse.where)
        is_stopped = pulse.stopped_s is not None
        if pulse.step is not None and not is_stopped:
            for other in self._pulses.values():
                other.suspect_to = max(pulse.step, other.step or 0)
        self._host.signal(one.member, signal.SIGKILL if is_stopped else signal.SIGABRT)
        self._kill_at[one.member] = now + _DYING_S

    def _report_awaited(self, verdict: Verdict) -> None:
        member, at = verdict.awaited if verdict.awaited is not None else (None, "")
        if member != self._awaited:
            self._awaited = member
            self._journal.awaited(member, at)

    def _report_slow(self, members: Sequence[int], now: float) -> None:
        found = self._stragglers.slow(members, now)
        if (found.member if found is not None else None) != self._slow:
            self._slow = found.member if found is not None else None
            self._journal.slow(found)
