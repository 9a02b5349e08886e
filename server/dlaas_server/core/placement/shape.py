"""What one learner needs, and how a gang of them is laid out."""

from __future__ import annotations

from functools import lru_cache
from typing import Final

from dlaas_server.core.model.job import Job, Profile
from dlaas_server.core.model.resources import Shape
from jupyter_dlaas.wire.protocol import Placement
from jupyter_dlaas.wire.protocol import PoolPlacement as Layout

__all__ = ["Layout", "relaxed", "shape_of"]

QUIET: Final = 0.05
"""Below this share of a step's time spent in communication, it does not matter where learners sit."""
EVEN: Final = 0.2
"""Below this share of its largest tensor in a model, messages are small and even, and overlap with computing."""


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
