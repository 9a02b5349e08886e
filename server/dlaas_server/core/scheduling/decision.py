"""What a pass of the scheduler decided."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from dlaas_server.core.scheduling.gang_request import Ask

__all__ = ["IDLE", "Choice", "Preemption"]


@dataclass(frozen=True, slots=True)
class Preemption:
    """This job gives its seats up for that one; if it is among those that start, it goes on elsewhere at once."""

    victim: Ask
    winner: Ask


@dataclass(slots=True)
class Choice:
    """What a pass decided. `wake_s`: pass again then, though nothing else happens."""

    starts: Sequence[Ask] = ()
    stops: Sequence[Preemption] = ()
    wake_s: float | None = None
    reserved: Ask | None = None
    reserved_s: float | None = None


IDLE: Final = Choice()
