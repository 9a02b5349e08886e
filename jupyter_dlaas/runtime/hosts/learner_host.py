"""Interface through which a guardian handles learner processes, wherever they run.

A guardian polls `interests()`, sleeps until `due()` at the latest, and calls `turn()`, which reports what happened.
Orders never block. An order for a learner that cannot be reached is carried out once it can.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from jupyter_dlaas.runtime.system.process import Activity, Identity
from jupyter_dlaas.wire.protocol import Failure

__all__ = [
    "Connected",
    "Disconnected",
    "Ended",
    "FileAppeared",
    "HostEvent",
    "LearnerHost",
    "LearnerOrder",
    "LearnerProcess",
    "MessageReceived",
    "NotStarted",
    "Reachable",
    "Started",
    "Unreachable",
]


@dataclass(frozen=True, slots=True)
class LearnerProcess:
    """Identity of a learner's process. Pods of one node share a boot and may repeat a pid, so it names its host."""

    member: int
    host: str
    """Number of the agent that started it; empty for the guardian's own machine."""
    identity: Identity
    node: str | None = None
    pod: str | None = None
    """Node and pod in which it runs, if its agent names them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LearnerOrder:
    """Order to start a learner. The host adds its own paths: the job's directory, the package, the log."""

    member: int
    module: str
    """Module to run, with the job's directory and the member number as its first arguments."""
    arguments: tuple[str, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    files: tuple[str, ...] = ()
    """Paths in the job's directory that must be present before the start."""
    devices: tuple[str, ...] = ()
    """Devices that it may use."""
    gang: tuple[int, ...] = ()
    """Members that start together: none of them before the agents of all have reported."""
    python: str | None = None
    """Minor version of Python that the job's functions require, such as "3.11"; None: any."""


# -- events ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Started:
    """Learner that runs."""

    process: LearnerProcess
    is_adopted: bool = False
    """True if an earlier guardian started it."""
    environment: Mapping[str, str] = field(default_factory=dict)
    """Environment with which an adopted learner was started, as far as known."""

    @property
    def member(self) -> int:
        return self.process.member


@dataclass(frozen=True, slots=True)
class NotStarted:
    """Learner that could not be started."""

    member: int
    reason: str
    is_permanent: bool
    """True if another try would fail in the same way."""
    program: str | None = None
    """Interpreter that could not be executed."""
    failure: Failure | None = None
    """Failure of which the host knows more than the reason."""


@dataclass(frozen=True, slots=True)
class Connected:
    """The learner has opened its control channel; its state follows as a message."""

    member: int


@dataclass(frozen=True, slots=True)
class Disconnected:
    """The learner's control channel is closed. The learner opens it again if it lives."""

    member: int


@dataclass(frozen=True, slots=True)
class MessageReceived:
    """Message of a learner: one line of JSON without its line end. Files that it relies on have arrived before."""

    member: int
    line: bytes


@dataclass(frozen=True, slots=True)
class FileAppeared:
    """A learner's file is in the job's directory."""

    member: int
    path: str


@dataclass(frozen=True, slots=True)
class Ended:
    """Learner that ended. Its messages, log and files have arrived, and what it left behind was killed.

    Both `code` and `signal` are None if the exit status is unknown, as that of a learner that was adopted.
    """

    process: LearnerProcess
    code: int | None = None
    signal: int | None = None
    is_out_of_memory: bool = False
    """True if the system killed a process for lack of memory meanwhile."""
    is_clean: bool = True
    """False if a process that it left behind does not end."""
    failure: Failure | None = None
    """Failure for which its host ended it."""

    @property
    def member(self) -> int:
        return self.process.member


@dataclass(frozen=True, slots=True)
class Unreachable:
    """The learner's host does not answer. This says nothing about the learner."""

    member: int
    reason: str


@dataclass(frozen=True, slots=True)
class Reachable:
    """The learner's host answers."""

    member: int


HostEvent = (
    Started | NotStarted | Connected | Disconnected | MessageReceived | FileAppeared | Ended | Unreachable | Reachable
)


class LearnerHost(Protocol):
    """Place where learners run."""

    @property
    def is_shared(self) -> bool:
        """True if learners share this process's machine: the job's directory, the clock and the loopback address."""

    def adopt(self, known: Mapping[int, Identity], ever: Collection[int], expected: Collection[int]) -> None:
        """Adopt the learners of an earlier guardian.

        `known` are those that ran according to the journal, `ever` all that it names, and `expected` those that may
        have been started without being recorded. `Started` follows for learners that run, and `Ended` for known ones
        that do not.
        """

    def start(self, order: LearnerOrder) -> None:
        """Start a learner. `Started` or `NotStarted` follows."""

    def signal(self, member: int, number: int) -> None:
        """Send a signal to a learner's process; nothing happens if it has ended."""

    def sweep(self, member: int) -> None:
        """Kill a learner and all processes that it started. `Ended` follows if it was alive."""

    def send(self, member: int, line: bytes) -> None:
        """Send a message, one line of JSON with its line end, over the learner's control channel. Lost if closed."""

    def give_up(self, member: int, reason: str) -> None:
        """Count a learner as ended, or as not started, because its host is known to be gone for good."""

    def dismiss(self, member: int) -> None:
        """Release the host of a learner that has ended: no learner is started for this member any more."""

    def deliver(self, member: int, path: str) -> None:
        """Make the current content of a file in the job's directory present for a learner."""

    def activity(self, member: int) -> Activity | None:
        """Return the last known activity of a learner's main thread; None if it is gone or cannot be seen."""

    def processes(self) -> Mapping[int, LearnerProcess]:
        """Return the learners that run as far as known."""

    def interests(self) -> dict[int, int]:
        """Return the descriptors to poll, with their events."""

    def due(self, now: float) -> float | None:
        """Return the time of the next `turn` without a ready descriptor; None if there is none."""

    def turn(self, ready: Collection[int], now: float) -> list[HostEvent]:
        """Continue. Return what happened."""

    def finish(self, within_s: float) -> bool:
        """End all that is left of the job's learners. Return False if a process does not end in this time."""

    def close(self) -> None:
        """Release sockets and descriptors. Learners run on."""
