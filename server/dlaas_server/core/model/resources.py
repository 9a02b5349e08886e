"""Resources of a learner, and loans to spot jobs."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from dlaas_server.core.model.cluster import Seat
from jupyter_dlaas.wire.protocol import PoolPlacement as Layout

__all__ = ["WHOLE", "Loan", "Shape", "is_kind"]

WHOLE: Final = 1000
"""Thousandths of a whole device."""


@dataclass(frozen=True, slots=True)
class Shape:
    """Resources of one learner, and the layout of its gang. Equal shapes fit or fail alike."""

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
    """True if a learner takes part of a device."""
    is_plain: bool = field(init=False, repr=False, compare=False)
    """True if only the number of whole devices of any kind is requested."""

    _hash: int = field(init=False, repr=False, compare=False)
    """Cached hash of the fields in which shapes usually differ; needed at each event."""

    def __hash__(self) -> int:
        return self._hash

    def __post_init__(self) -> None:
        rest = self.cpus or self.memory_bytes or self.disk_mbps or self.net_mbps
        object.__setattr__(self, "_hash", hash((self.gpus, self.cpus, self.memory_bytes, self.milli)))
        object.__setattr__(self, "is_share", self.milli < WHOLE)
        object.__setattr__(self, "is_plain", self.gpu_kind is None and not rest and self.milli == WHOLE)


@dataclass(frozen=True, slots=True)
class Loan:
    """Seats that a spot job gives back together once an ordinary job can use them, or that a job is releasing."""

    job: str
    queue: str
    shape: Shape
    seats: tuple[Seat, ...]
    is_for_waiting: bool = False
    """True if the pool has them released for a waiting job."""

    @property
    def weight(self) -> int:
        """Number of devices; number of learners if no devices are requested."""
        return len(self.seats) * (self.shape.gpus or 1)


def is_kind(kind: str, asked: str) -> bool:
    """Return whether a device of this kind matches the request: "a100|h100" matches "NVIDIA A100-SXM4-40GB"."""
    has = kind.casefold()
    return any(kind and kind in has for kind in map(str.strip, asked.casefold().split("|")))
