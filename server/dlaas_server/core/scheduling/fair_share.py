"""Fair share: devices in use by each queue, compared with the queue's share. Only used in order `fair`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Final

from dlaas_server.core.scheduling.gang_request import GangRequest
from dlaas_server.core.scheduling.lateness import Lateness
from dlaas_server.core.scheduling.policy import Share

__all__ = ["FairShare"]

NO_SHARE: Final = Share()


class FairShare:
    """Usage of all queues. A queue may borrow what others leave idle; they reclaim it up to their guarantee."""

    def __init__(self, shares: Mapping[str, Share]) -> None:
        self._shares = shares
        self.spot_usage: Mapping[str, float] = {}
        """Queue -> usage that its spot jobs add, at the spot price."""
        self._used: dict[str, int] = {}
        """Queue -> devices in use."""

    def add(self, request: GangRequest) -> None:
        """Count a job that starts."""
        self._used[request.queue] = self._used.get(request.queue, 0) + request.weight

    def remove(self, request: GangRequest) -> None:
        """Discount a job that no longer runs."""
        self._used[request.queue] -= request.weight

    def usage(self, queue: str) -> float:
        """Return the queue's usage divided by the size of its share."""
        return (self._used.get(queue, 0) + self.spot_usage.get(queue, 0.0)) / self._share(queue).size

    def is_entitled(self, request: GangRequest) -> bool:
        """Return whether the queue stays within its guaranteed share if this job starts."""
        return self._used.get(request.queue, 0) + request.weight <= self._share(request.queue).guaranteed

    def is_borrowing(self, queue: str) -> bool:
        """Return whether the queue uses more than its guaranteed share."""
        return self._used[queue] > self._share(queue).guaranteed

    def borrowers(self, request: GangRequest, running: Iterable[GangRequest]) -> Iterator[GangRequest]:
        """Yield victims from other queues that exceed their guarantee, lowest priority and youngest first.

        Only jobs whose queue still uses at least its guarantee without them are victims.
        """
        left = dict(self._used)
        for job in sorted(running, key=lambda job: (job.priority, -job.began_s, -job.number)):
            over = left[job.queue] - self._share(job.queue).guaranteed
            may_go = job.is_victim or (job.lateness is Lateness.STARVING and job.is_preemptible)
            if may_go and job.priority <= request.priority and job.queue != request.queue and over >= job.weight:
                left[job.queue] -= job.weight
                yield job

    def _share(self, queue: str) -> Share:
        return self._shares.get(queue, NO_SHARE)
