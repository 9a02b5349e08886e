"""Requests to the engine's loop: one record per verb, with plain values only.

Reading and checking of files and uploaded bytes happens before a request is posted. Requests that change a job, and
those of the pool's administrators, are kept in the event table. The row has the time.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from jupyter_dlaas.wire.codec import Json
from jupyter_dlaas.wire.protocol import Elastic, JobSpec, PoolOrder, PoolPlacement

__all__ = [
    "CancelJob",
    "ChangeJob",
    "ChangePool",
    "CordonNode",
    "DeleteJob",
    "DrainNode",
    "ExpireJobs",
    "HaltJob",
    "JobRequest",
    "PoolRequest",
    "RemoveQueue",
    "RequestCheckpoint",
    "ResumeJob",
    "SetQueue",
    "SubmitJob",
    "UnansweredRequest",
    "UncordonNode",
    "UserRequest",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class SubmitJob:
    """Submit a job. The same `key` of the same user yields the same job."""

    by: str
    key: str
    digest: str
    """Digest of the whole request: another request must not use the same key."""
    spec: JobSpec
    wish: int
    """Requested number of learners."""
    payload: Mapping[str, Json]
    """Source, files and environment. They are stored once, beside the event table, since they may hold secrets."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _OfJob:
    """Request that changes one job."""

    by: str
    """User, or the part of the pool that makes the request, such as "its time limit of 2 h"."""
    job: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangeJob(_OfJob):
    """Change requested size, priority and elastic mode, atomically. A field that is None keeps its value."""

    kind: ClassVar = "change_job"
    learners: int | None = None
    priority: int | None = None
    elastic: Elastic | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class HaltJob(_OfJob):
    """Write a checkpoint and release the devices."""

    kind: ClassVar = "halt_job"


@dataclass(frozen=True, slots=True, kw_only=True)
class ResumeJob(_OfJob):
    """Return a halted job to the queue."""

    kind: ClassVar = "resume_job"


@dataclass(frozen=True, slots=True, kw_only=True)
class CancelJob(_OfJob):
    """End a job without its results."""

    kind: ClassVar = "cancel_job"


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestCheckpoint(_OfJob):
    """Write a checkpoint at the next step."""

    kind: ClassVar = "request_checkpoint"


@dataclass(frozen=True, slots=True, kw_only=True)
class DeleteJob:
    """Delete an ended job with all its rows."""

    by: str
    job: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpireJobs:
    """Delete ended jobs beyond the retention limits."""

    jobs: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class CordonNode:
    """Place no new learners on a node."""

    kind: ClassVar = "cordon_node"
    by: str
    node: str


@dataclass(frozen=True, slots=True, kw_only=True)
class UncordonNode:
    """Allow learners on a node again, and end a drain."""

    kind: ClassVar = "uncordon_node"
    by: str
    node: str


@dataclass(frozen=True, slots=True, kw_only=True)
class DrainNode:
    """Cordon a node and move its jobs away. `plan`: plan of the reviewed preview; a different plan is refused."""

    kind: ClassVar = "drain_node"
    by: str
    node: str
    plan: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SetQueue:
    """Create a queue or change its share. A field that is None keeps its value."""

    kind: ClassVar = "set_queue"
    by: str
    queue: str
    weight: float | None = None
    guaranteed: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoveQueue:
    """Remove a queue without unfinished jobs."""

    kind: ClassVar = "remove_queue"
    by: str
    queue: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangePool:
    """Change the pool's scheduling policy. A field that is None keeps its value."""

    kind: ClassVar = "change_pool"
    by: str
    order: PoolOrder | None = None
    preemption: bool | None = None
    placement: PoolPlacement | None = None
    spot_price: float | None = None
    spot_notice_s: float | None = None


JobRequest = ChangeJob | HaltJob | ResumeJob | CancelJob | RequestCheckpoint
"""Requests that change one job."""
PoolRequest = CordonNode | UncordonNode | DrainNode | SetQueue | RemoveQueue | ChangePool
"""Requests of the pool's administrators."""
UnansweredRequest = (
    JobRequest | DeleteJob | ExpireJobs | CordonNode | UncordonNode | SetQueue | RemoveQueue | ChangePool
)
"""Requests that return nothing."""
UserRequest = SubmitJob | DrainNode | UnansweredRequest
