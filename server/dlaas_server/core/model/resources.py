"""Resources of a learner, and what is lent to spot jobs."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from dlaas_server.core.model.cluster import Seat
from jupyter_dlaas.wire.protocol import PoolPlacement as Layout

__all__ = ["WHOLE", "Loan", "Shape", "is_kind"]

WHOLE: Final = 1000
"""Thousandths of a device that is not shared."""


@dataclass(frozen=True, slots=True)
class Shape:
    """What one learner needs, and how a gang of them is laid out. Equal shapes fit or fail alike."""

    gpus: int
    cpus: float
    memory_bytes: int
    gpu_kind: str | None
    placement: Layout
    disk_mbps: float = 0.0
    net_mbps: float = 0.0
    milli: int = WHOLE
    """Thousandths that a learner takes of its one device; WHOLE: all of each of its devices."""

    is_share: bool = field(init=False, repr=False, compare=False)
    """A learner takes part of a device, and others the rest."""
    is_plain: bool = field(init=False, repr=False, compare=False)
    """Only the number of devices counts, and no share of one is asked for."""

    _hash: int = field(init=False, repr=False, compare=False)
    """Of what shapes differ in most; needed at each event."""

    def __hash__(self) -> int:
        return self._hash

    def __post_init__(self) -> None:
        rest = self.cpus or self.memory_bytes or self.disk_mbps or self.net_mbps
        object.__setattr__(self, "_hash", hash((self.gpus, self.cpus, self.memory_bytes, self.milli)))
        object.__setattr__(self, "is_share", self.milli < WHOLE)
        object.__setattr__(self, "is_plain", self.gpu_kind is None and not rest and self.milli == WHOLE)


@dataclass(frozen=True, slots=True)
class Loan:
    """Seats that a spot job gives back together, as soon as an ordinary job can use them."""

    job: str
    queue: str
    shape: Shape
    seats: tuple[Seat, ...]

    @property
    def weight(self) -> int:
        """Devices; learners where no devices are asked for."""
        return len(self.seats) * (self.shape.gpus or 1)


def is_kind(kind: str, asked: str) -> bool:
    """Whether a device of this kind is what was asked for: "a100|h100" takes "NVIDIA A100-SXM4-40GB"."""
    has = kind.casefold()
    return any(one and one in has for one in map(str.strip, asked.casefold().split("|")))
