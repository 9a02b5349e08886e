"""Limits per user: number of waiting jobs, and priority. Administrators are exempt from both."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from dlaas_server.core.model.job import Job
from dlaas_server.core.model.phrases import count
from jupyter_dlaas.wire.protocol import NotAllowed

__all__ = ["UserLimits"]


@dataclass(frozen=True, slots=True, kw_only=True)
class UserLimits:
    """Limits of each user; None means no limit."""

    queued: int | None = None
    priority: int | None = None

    def check_queued(self, user: str, jobs: Iterable[Job]) -> None:
        """Raise NotAllowed if one more waiting job would exceed the limit. `jobs`: jobs that have not ended."""
        if self.queued is None:
            return
        waiting = sum(1 for job in jobs if job.owner == user and job.waits)
        if waiting >= self.queued:
            raise NotAllowed(
                f"you have {count(waiting, 'waiting job')}; this pool allows {self.queued} per user. "
                "Cancel one, or submit again when one has started"
            )

    def check_priority(self, priority: int) -> None:
        """Raise NotAllowed if the priority is above the limit."""
        if self.priority is not None and priority > self.priority:
            raise NotAllowed(
                f"priority: {priority} exceeds {self.priority}, the maximum for users of this pool. "
                "Ask a pool administrator to raise the job's priority"
            )
