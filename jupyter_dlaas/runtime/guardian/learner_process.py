"""Learner processes as the guardian knows them: identity, reported state and exit status."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from jupyter_dlaas.jobdir.journal_replay import JournalState
from jupyter_dlaas.runtime.hosts.learner_host import LearnerProcess, Started
from jupyter_dlaas.runtime.system.process import Identity, uptime_s
from jupyter_dlaas.wire.learner_messages import (
    ChangeAgreement,
    FailureReport,
    GenerationSteps,
    LearnerMessage,
    LearnerState,
    StopAgreement,
)
from jupyter_dlaas.wire.protocol import Failure

__all__ = ["Learner", "place_of", "taken_over"]


@dataclass(slots=True)
class Learner:
    """Learner that was ordered, is alive, or has ended."""

    member: int
    generation: int
    rank: int
    process: Identity
    """Its process; pid 0 until its host has started it."""
    node: str | None = None
    pod: str | None = None
    """Node and pod of its process, if its host names them."""
    is_alive: bool = False
    """True from the order to start it until its end."""
    is_connected: bool = False
    """True if its control channel is open."""
    environment: Mapping[str, str] = field(default_factory=dict)
    """Environment of an adopted learner, as far as known."""
    is_adopted: bool = False
    """True if an earlier guardian started it."""
    is_ready: bool = False
    uses_run: bool = False
    trains_from: int | None = None
    """Step at which its training loop began."""
    began_s: float | None = None
    """Uptime of the machine at that time."""
    shares_clock: bool = True
    """True if it runs on this machine, so that its uptime is comparable."""
    is_asked: bool = False
    """True if it was asked to leave or end: its exit status then says nothing about a failure."""
    is_limited: bool = False
    """True if it agreed to wait at its next step boundary."""
    proposed: int = 0
    """Number of the last proposal that was sent over the control channel."""
    is_stop_sent: bool = False
    """True if the boundary to stop at was sent over the control channel."""
    promise: StopAgreement | None = None
    trains_as: int = -1
    """Generation that the learner reports. It keeps the old one through changes that did not affect it."""
    may_change: bool = False
    """True if it can change to other process groups while it trains."""
    membership_epoch: int = 0
    """Membership epoch that it trains in; -1 while it joins and is in no group yet."""
    built: int = -1
    is_waiting: bool = False
    is_held: bool = False
    stranded: int = -1
    """Membership epoch of the group that no longer answers it."""
    missed: int = -1
    """Newest membership epoch whose group it could not build or enter."""
    agreed: ChangeAgreement | None = None
    idle_s: float | None = None
    trained: tuple[GenerationSteps, ...] = ()
    orders_sent: set[object] = field(default_factory=set)
    """Orders that were sent over the control channel."""
    failure: Failure | None = None
    """Failure for which this guardian ended it, or that it reported because its disk was full."""
    is_done: bool = False
    """True if it reached the end of its program."""
    code: int | None = None
    signal: int | None = None
    """Exit code or signal of the ended process; both None if unknown, as for an adopted learner."""
    is_out_of_memory: bool = False
    """True if the system killed a process for lack of memory while it ran."""

    def __post_init__(self) -> None:
        self.trains_as = self.generation

    def run_as(self, process: LearnerProcess) -> None:
        """Take the process that its host has started."""
        self.process, self.node, self.pod = process.identity, process.node, process.pod

    def connect(self) -> None:
        """Begin with a new control channel: all orders are sent again."""
        self.is_connected, self.promise, self.proposed, self.is_stop_sent = True, None, 0, False
        self.orders_sent = set()

    def listen(self, message: LearnerMessage) -> None:
        """Record what a learner reports. Its state is complete in each message, also for a new guardian."""
        if isinstance(message, LearnerState):
            self._listen_to_state(message)
        elif isinstance(message, FailureReport):
            self.failure = message.failure
        elif isinstance(message, ChangeAgreement):
            self.agreed = message
        elif isinstance(message, StopAgreement):
            self.promise = message

    def _listen_to_state(self, state: LearnerState) -> None:
        self.uses_run = self.uses_run or state.uses_run
        self.is_limited = self.is_limited or state.is_limited
        self.may_change = self.may_change or state.may_change
        self.membership_epoch = _newer(state.membership_epoch, self.membership_epoch)
        self.trains_as = _newer(state.generation, self.trains_as)
        self.built = _newer(state.built_epoch, self.built)
        self.stranded = _newer(state.stranded_epoch, self.stranded)
        self.missed = _newer(state.missed_epoch, self.missed)
        self.is_waiting, self.is_held = state.is_waiting, state.is_held
        self.idle_s, self.trained = state.idle_s, state.trained or self.trained
        if state.step is None:
            return
        if self.shares_clock:
            self.began_s = state.up_s
        elif self.trains_from != state.step:
            self.began_s = uptime_s()
        self.trains_from = state.step


def _newer(reported: int | None, known: int) -> int:
    return known if reported is None else reported


def place_of(member: int, earlier: JournalState) -> tuple[int, int]:
    """Return a learner's generation and rank by the journal: after its gang's last change, else as it was started."""
    fact = earlier.up.get(member)
    if fact is None:
        return 0, 0
    if member in earlier.order:
        return earlier.together, earlier.order.index(member)
    return fact.generation or 0, fact.rank or 0


def taken_over(found: Started, earlier: JournalState) -> Learner:
    """Return the learner that an earlier guardian has started, whose journal is `earlier`."""
    member, environment = found.process.member, found.environment
    if member in earlier.up:
        generation, rank = place_of(member, earlier)
    else:
        generation, rank = int(environment.get("DLAAS_GENERATION", "0")), int(environment.get("RANK", "0"))
    return Learner(
        member,
        generation,
        rank,
        found.process.identity,
        is_alive=True,
        is_ready=member in earlier.ready,
        is_adopted=True,
        environment=environment,
        membership_epoch=-1 if environment.get("DLAAS_JOINS") == "1" else 0,  # until the learner reports it
    )
