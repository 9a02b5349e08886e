"""Lines between a guardian and the agents of its learners: one record per kind, as JSON. Standard library only.

Every line of an agent that reports a state holds the complete state, because a new guardian starts without any.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar, Final

from jupyter_dlaas.wire.codec import decode_by_kind, encode, rule

__all__ = [
    "ActivityReport",
    "AgentLine",
    "ControlChannel",
    "Dismissal",
    "GuardianLine",
    "LearnerLine",
    "LearnerState",
    "SignalOrder",
    "StartOrder",
    "SweepOrder",
    "agent_line",
    "guardian_line",
    "pack_line",
]

# -- from the guardian -------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class StartOrder:
    """Order to start the learner. `number` makes a repeated order harmless."""

    KIND: ClassVar = "start"
    number: int
    module: str
    arguments: tuple[str, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class SignalOrder:
    """Signal for the learner's process."""

    KIND: ClassVar = "signal"
    number: int = field(metadata=rule(least=1, most=64))


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepOrder:
    """Order to kill the learner and all processes that it started."""

    KIND: ClassVar = "sweep"


@dataclass(frozen=True, slots=True, kw_only=True)
class Dismissal:
    """Order to end the agent, and the learner with it."""

    KIND: ClassVar = "dismiss"


# -- from the agent ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class LearnerState:
    """State of the agent's learner. Sent when it changes, and to each new guardian."""

    KIND: ClassVar = "state"
    host: str = ""
    """Number of the agent, another one for each agent that is started."""
    python: str | None = None
    """Minor version of the agent's Python, such as "3.11", which will run the learner."""
    image: str | None = None
    node: str | None = None
    pod: str | None = None
    """Container image, node and pod of the agent, where it knows them."""
    started: int = 0
    """Number of the last order to start that was carried out; 0 if there was none."""
    pid: int | None = None
    start: int | None = None
    boot: str | None = None
    """Identity of the process; None if it could not be started."""
    not_started: str | None = None
    """Reason why it could not be started."""
    is_permanent: bool = False
    program: str | None = None
    """Interpreter that could not be executed."""
    environment: Mapping[str, str] = field(default_factory=dict)
    """Variables of its order that a new guardian needs."""
    has_ended: bool = False
    code: int | None = None
    signal: int | None = None
    is_out_of_memory: bool = False
    is_stopped: bool = False
    """True if the agent's pod was being ended when the learner ended."""
    is_clean: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class ActivityReport:
    """Activity of the learner's main thread."""

    KIND: ClassVar = "activity"
    ticks: int
    state: str


# -- from both ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class LearnerLine:
    """Message from or to the learner, as it is on its control channel."""

    KIND: ClassVar = "line"
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ControlChannel:
    """The learner has opened or closed its control channel."""

    KIND: ClassVar = "channel"
    is_open: bool


GuardianLine = StartOrder | SignalOrder | SweepOrder | Dismissal | LearnerLine
AgentLine = LearnerState | ActivityReport | LearnerLine | ControlChannel
_GUARDIAN: Final[dict[str, type]] = {kind.KIND: kind for kind in GuardianLine.__args__}
_AGENT: Final[dict[str, type]] = {kind.KIND: kind for kind in AgentLine.__args__}


def pack_line(record: GuardianLine | AgentLine) -> bytes:
    """Return a record as a line."""
    return json.dumps({"t": record.KIND, **encode(record)}, separators=(",", ":")).encode()


def guardian_line(text: bytes) -> GuardianLine:
    """Return the guardian's record. Raise UnknownKind or Invalid."""
    found: GuardianLine = decode_by_kind(text, _GUARDIAN, tag="t", where="line")
    return found


def agent_line(text: bytes) -> AgentLine:
    """Return the agent's record. Raise UnknownKind or Invalid."""
    found: AgentLine = decode_by_kind(text, _AGENT, tag="t", where="line")
    return found
