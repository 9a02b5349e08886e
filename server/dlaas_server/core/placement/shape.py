"""Shape of a learner: its resources, and the layout of its gang."""

from __future__ import annotations

from functools import lru_cache
from typing import Final

from dlaas_server.core.model.job import Job, Profile
from dlaas_server.core.model.resources import Shape
from jupyter_dlaas.wire.protocol import Placement
from jupyter_dlaas.wire.protocol import PoolPlacement as Layout

__all__ = ["Layout", "relaxed", "shape_of"]

QUIET: Final = 0.05
"""Share of step time in communication below which the distance between learners does not matter."""
EVEN: Final = 0.2
"""Share of the largest tensor in a model below which messages are small, even, and overlap with computation."""


def shape_of(job: Job, usual: Layout = Layout.PACK) -> Shape:
    """Return the shape of one learner of this job. `usual`: layout for jobs that do not set their own."""
    spec = job.spec
    return _shape(
        spec.gpus_per_learner,
        spec.cpus_per_learner,
        spec.memory_bytes_per_learner,
        spec.gpu_kind,
        relaxed(usual, job.profile) if spec.placement is None else spec.placement,
    )


def relaxed(layout: Layout, profile: Profile) -> Layout:
    """Return the layout for a job with this profile: `pack` instead of `topology` if closeness does not matter.

    Measured communication time takes precedence over the skew of tensor sizes (Tiresias' profile).
    """
    if layout != Layout.TOPOLOGY:
        return layout
    if profile.communication is not None:
        return Layout.PACK if profile.communication < QUIET else layout
    return Layout.PACK if profile.skew is not None and profile.skew < EVEN else layout


@lru_cache(maxsize=1024)
def _shape(gpus: int, cpus: float, memory_bytes: int, gpu_kind: str | None, layout: Layout | Placement) -> Shape:
    return Shape(gpus, cpus, memory_bytes, gpu_kind, Layout(layout.value))
