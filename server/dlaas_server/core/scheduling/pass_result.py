"""Result of one scheduling pass."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from dlaas_server.core.scheduling.gang_request import GangRequest

__all__ = ["IDLE", "PassResult", "Preempted"]


@dataclass(frozen=True, slots=True)
class Preempted:
    """Preemption of a victim for a winner. A victim that is also among the starts migrates to other seats at once."""

    victim: GangRequest
    winner: GangRequest


@dataclass(slots=True)
class PassResult:
    """Decisions of one scheduling pass. `wake_s`: time of the next pass if no event occurs before."""

    starts: Sequence[GangRequest] = ()
    stops: Sequence[Preempted] = ()
    wake_s: float | None = None
    reserved: GangRequest | None = None
    """Holder of the reservation, if other jobs were held back for it."""
    reserved_s: float | None = None


IDLE: Final = PassResult()
