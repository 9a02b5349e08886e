"""What one learner needs, and how a gang of them is laid out."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import lru_cache
from typing import Final

from dlaas_server.core.model.job import Job, Profile, Seat
from jupyter_dlaas.wire.protocol import Placement
from jupyter_dlaas.wire.protocol import PoolPlacement as Layout

__all__ = ["WHOLE", "Layout", "Loan", "Shape", "is_kind", "relaxed", "shape_of"]

WHOLE: Final = 1000
"""Thousandths of a device that is not shared."""
QUIET: Final = 0.05
"""Below this share of a step's time spent in communication, it does not matter where learners sit."""
EVEN: Final = 0.2
"""Below this share of its largest tensor in a model, messages are small and even, and overlap with computing."""


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


def shape_of(job: Job, usual: Layout = Layout.PACK) -> Shape:
    """The shape of one learner of this job. `usual`: how the pool lays out who does not say it."""
    spec = job.spec
    return _shape(
        spec.gpus_per_learner,
        spec.cpus_per_learner,
        spec.memory_bytes_per_learner,
        spec.gpu_kind,
        relaxed(usual, job.profile) if spec.placement is None else spec.placement,
    )


def relaxed(layout: Layout, profile: Profile) -> Layout:
    """The layout of a job of which that was measured: `pack` at once where closeness does not matter.

    What is measured as time counts more than what is inferred from the sizes of tensors (Tiresias' profile).
    """
    if layout != Layout.TOPOLOGY:
        return layout
    if profile.communication is not None:
        return Layout.PACK if profile.communication < QUIET else layout
    return Layout.PACK if profile.skew is not None and profile.skew < EVEN else layout


@lru_cache(maxsize=1024)
def _shape(gpus: int, cpus: float, memory_bytes: int, gpu_kind: str | None, layout: Layout | Placement) -> Shape:
    return Shape(gpus, cpus, memory_bytes, gpu_kind, Layout(layout.value))


def is_kind(kind: str, asked: str) -> bool:
    """Whether a device of this kind is what was asked for: "a100|h100" takes "NVIDIA A100-SXM4-40GB"."""
    has = kind.casefold()
    return any(one and one in has for one in map(str.strip, asked.casefold().split("|")))
