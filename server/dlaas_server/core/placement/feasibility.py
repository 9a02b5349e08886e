"""Feasibility: rejects jobs that could not start even on an empty pool, and bounds the size of those that can."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Self

from dlaas_server.core.model.cluster import Node
from dlaas_server.core.model.job import Job
from dlaas_server.core.model.phrases import count
from dlaas_server.core.model.resources import Shape, is_kind
from dlaas_server.core.placement.free_capacity import FreeCapacity, free_of

__all__ = ["PoolSize", "said", "why_never"]


@dataclass(frozen=True, slots=True)
class PoolSize:
    """Sums of a pool's resources, whatever is in use or out of service."""

    devices: int
    cpus: float
    memory_bytes: int

    @classmethod
    def of(cls, nodes: Sequence[Node]) -> Self:
        """Return the size of a pool with these nodes."""
        return cls(
            sum(len(node.devices) for node in nodes),
            sum(node.cpus for node in nodes),
            sum(node.memory_bytes for node in nodes),
        )

    @property
    def learners_max(self) -> int:
        """Number of learners that request nothing: one for each CPU, or device if there are more of these."""
        return max(int(self.cpus), self.devices, 1)

    def growth(self, job: Job, held: int) -> int:
        """Return by how many learners the job could grow at most towards its wish, if it were alone in the pool.

        Learners that request nothing are limited, too: otherwise nothing would keep a job that accepts thousands of
        them from starting them all.
        """
        spec = job.spec
        bounds = [job.wish]
        if spec.gpus_per_learner:
            bounds.append(self.devices // spec.gpus_per_learner)
        if spec.cpus_per_learner:
            bounds.append(int((self.cpus + 1e-9) // spec.cpus_per_learner))
        if spec.memory_bytes_per_learner:
            bounds.append(self.memory_bytes // spec.memory_bytes_per_learner)
        if len(bounds) == 1:
            bounds.append(self.learners_max)
        return max(min(bounds) - held, 0)


def said(shape: Shape, unit: str) -> str:
    """Return the request of one learner as text: `2 A100 GPUs, 8 CPUs, 32.0 GiB`."""
    parts = [count(shape.gpus, f"{shape.gpu_kind} {unit}" if shape.gpu_kind else unit)] if shape.gpus else []
    parts += [f"{shape.cpus:g} CPUs"] if shape.cpus else []
    parts += [f"{shape.memory_bytes / 2**30:.1f} GiB"] if shape.memory_bytes else []
    return ", ".join(parts) or "no devices"


def why_never(nodes: Sequence[Node], shape: Shape, least: int, unit: str, no_devices: str | None = None) -> str | None:
    """Return why this gang could not start on the empty pool and what to request instead; None if it could.

    `no_devices`: why a pool without devices has none and what to do, if it knows.
    Devices that are out of service and nodes that are cordoned count as usable, since they may come back.
    """
    capacity = _whole_pool(tuple(nodes))
    if not (shape.gpus or shape.cpus or shape.memory_bytes) and least > (most := PoolSize.of(nodes).learners_max):
        return (
            f"requests {count(least, 'learner')} without devices, but the pool has room for only {most}. "
            f"Request at most {most}"
        )
    if capacity.fit_count(shape, least) >= least:
        return None
    kinds = [kind for free in capacity for kind, _ in free.devices]
    total, asked = len(kinds), least * shape.gpus
    if asked > total:
        if not total:
            why = "" if no_devices is None else f" {no_devices}"
            return f"requests {count(asked, 'device')}, but the pool has none.{why} Jobs with --gpus 0 can run"
        return (
            f"requests {count(asked, unit)}, but the pool has only {total}. "
            f"Request at most {total} (--gpus 1:{total} uses what is free)"
        )
    if shape.gpu_kind is not None and shape.gpus:
        reason = _kind_is_short(capacity, kinds, shape, asked, unit)
        if reason is not None:
            return reason
    each = " each" if least > 1 else ""
    requested = f"requests {count(least, 'learner')} with {said(shape, unit)}{each}"
    if (most := capacity.fit_count(shape, least)) > 0:
        fit = "1 fits" if most == 1 else f"{most} fit"
        return f"{requested}, but only {fit} on the pool's nodes. Request at most {most}, or less for each"
    largest = replace(
        shape,
        gpus=max((len(node.devices) for node in nodes if shape.gpus), default=0),
        gpu_kind=None,
        cpus=max((node.cpus for node in nodes if shape.cpus), default=0.0),
        memory_bytes=max((node.memory_bytes for node in nodes if shape.memory_bytes), default=0),
    )
    has = said(largest, unit)
    return f"{requested}, but no node has all of that; the pool's nodes have up to {has}. Request less per learner"


def _kind_is_short(capacity: FreeCapacity, kinds: Sequence[str], shape: Shape, asked: int, unit: str) -> str | None:
    """Return the reason if there are enough devices but too few of the requested kind; else None."""
    kind = shape.gpu_kind or ""
    of_kind = sum(is_kind(one, kind) for one in kinds)
    if not of_kind:
        has = ", ".join(f"{name} ({kinds.count(name)})" for name in sorted(set(kinds)))
        return f"requests the kind '{kind}', but the pool has {has}. Choose one of these, or omit the kind"
    if asked > of_kind:
        return (
            f"requests {count(asked, unit)} of the kind '{kind}', but the pool has {of_kind} and "
            f"{len(kinds) - of_kind} of other kinds. Request at most {of_kind}, or omit the kind"
        )
    return None


@lru_cache(maxsize=4)
def _whole_pool(nodes: tuple[Node, ...]) -> FreeCapacity:
    """Return the capacity of the empty pool with all nodes and devices in service. The caller must not take any."""
    return free_of([_in_service(node) for node in nodes], ())


def _in_service(node: Node) -> Node:
    """Return the node uncordoned, with all devices in service."""
    return replace(node, cordoned=None, devices=tuple(replace(d, out_of_service=None) for d in node.devices))
