"""Decision of one scheduling pass."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from dlaas_server.core.scheduling.gang_request import Ask

__all__ = ["IDLE", "Choice", "Preemption"]


@dataclass(frozen=True, slots=True)
class Preemption:
    """Preemption of a victim for a winner. A victim that is also among the starts migrates to other seats at once."""

    victim: Ask
    winner: Ask


@dataclass(slots=True)
class Choice:
    """Decision of one scheduling pass. `wake_s`: time of the next pass if no event occurs before."""

    starts: Sequence[Ask] = ()
    stops: Sequence[Preemption] = ()
    wake_s: float | None = None
    reserved: Ask | None = None
    reserved_s: float | None = None


IDLE: Final = Choice()
