"""Validation of a size request that a program makes while it runs."""

from __future__ import annotations

from jupyter_dlaas.wire.protocol import Elastic, JobSpec, NotAllowed

__all__ = ["learners_for"]


def learners_for(spec: JobSpec, gpus: int) -> int:
    """Return the number of learners for this many GPUs (or CPU slots). Raises NotAllowed with the accepted range."""
    said = f"run.request_gpus({gpus!r})"
    if isinstance(gpus, bool) or not isinstance(gpus, int):
        raise NotAllowed(f"{said}: give a whole number, as in run.request_gpus(4)")
    each = max(spec.gpus_per_learner, 1)
    low, high = spec.learners_min * each, spec.learners_max * each
    if low == high:
        raise NotAllowed(f"{said}: this job takes exactly {low}. Submit it with --gpus {low}:{max(gpus, low + each)}")
    if spec.elastic is Elastic.OFF:
        raise NotAllowed(f"{said}: this job was submitted with --elastic off, so its size never changes")
    if not low <= gpus <= high:
        bounds = f"{min(low, max(gpus, 1))}:{max(high, gpus)}"
        raise NotAllowed(f"{said}: this job takes {low} to {high}. Submit it with --gpus {bounds}")
    if gpus % each:
        raise NotAllowed(f"{said}: each learner takes {each}; request a multiple of {each}")
    return gpus // each
