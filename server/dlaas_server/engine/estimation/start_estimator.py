"""Start estimates of waiting jobs, and the places of a long queue, computed beside the loop.

A forecast runs the pool forward dozens of times: 10 ms for a short queue, a third of a second for a hundred jobs. In a
longer queue, only the first hundred get an estimate.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from copy import copy
from typing import Final

from dlaas_server.core.forecast.size_offers import offers
from dlaas_server.core.forecast.start_time import SIMULATED_JOBS_MAX, forecast
from dlaas_server.core.model.pool import Pool as Picture
from dlaas_server.core.planning.decisions import Wait
from dlaas_server.core.planning.plan import plan
from dlaas_server.core.scheduling.ordering import Order
from dlaas_server.core.scheduling.scheduler import Policy

__all__ = ["StartEstimator"]

log = logging.getLogger("dlaas.engine")
REFRESH_S: Final = 15.0
"""Interval of new estimates while only time changes."""
FORECAST_INTERVAL_PER_JOB_S: Final = 0.04
"""Minimum interval of new estimates per job examined: ten times the cost of a forecast."""
PLAN_INTERVAL_PER_JOB_S: Final = 500e-6
"""Minimum interval per waiting job between plans of a whole long queue: ten times the cost of such a plan."""

Span = tuple[float, float]


class StartEstimator:
    """Newest start estimates. `changed` is called in the event loop when there are new ones."""

    def __init__(self, changed: Callable[[], None]) -> None:
        self.expected: Mapping[str, Span] = {}
        """Job -> earliest and latest expected start."""
        self.offers: Mapping[str, int] = {}
        """Job -> smaller number of learners with which it would start at once."""
        self.waits: Sequence[Wait] = ()
        """Waits of a long queue; a short one is handled by the turn itself."""
        self.has_news = False
        """True if there are new estimates that no turn has used yet."""
        self.task: asyncio.Task[None] | None = None
        self._changed = changed
        self._key: object = None
        self._version: object = None
        """Version of the state of which `_key` was computed."""
        self._at_s = 0.0
        """Time at which the newest forecast was begun."""
        self._planned_s = 0.0
        """Time at which a long queue was last planned as a whole."""

    def update(
        self,
        waiting: int,
        take_picture: Callable[[], Picture],
        policy: Policy,
        order: Order,
        spread: float,
        factor: float,
        now_s: float,
        version: object,
        *,
        is_pruned: bool = False,
    ) -> float | None:
        """Begin another forecast if the old one is outdated. Return the time of the next check.

        `waiting`: number of waiting jobs; `take_picture` creates the snapshot if needed; `order`: with learned run
        lengths; `version`: a value that changes with the snapshot, so that an unchanged one is not taken again;
        `is_pruned`: the plan of this turn examined only a part of the queue.
        """
        if not waiting:
            self.expected, self.offers, self.waits, self._key, self._version = {}, {}, (), None, None
            return None
        if self.task is not None:
            return now_s + REFRESH_S
        forecast_due_s = self._at_s + min(waiting, SIMULATED_JOBS_MAX) * FORECAST_INTERVAL_PER_JOB_S
        due_s = (
            min(forecast_due_s, self._planned_s + waiting * PLAN_INTERVAL_PER_JOB_S) if is_pruned else forecast_due_s
        )
        if self._key is not None and now_s < due_s:
            return due_s
        if version == self._version and now_s < self._at_s + REFRESH_S:
            return self._at_s + REFRESH_S
        picture = take_picture()
        key, self._version = _key(picture, policy), version
        if key == self._key and now_s < self._at_s + REFRESH_S:
            return self._at_s + REFRESH_S
        is_due = self._key is None or now_s >= forecast_due_s
        self._key, self._planned_s, self._at_s = key, now_s, now_s if is_due else self._at_s
        order = copy(order)  # the original may learn more run lengths meanwhile
        estimation = self._estimate(
            picture, policy, order, spread, factor, now_s, is_pruned=is_pruned, is_forecast_due=is_due
        )
        self.task = asyncio.create_task(estimation, name="forecast")
        self.task.add_done_callback(self._done)
        return now_s + REFRESH_S

    async def _estimate(
        self,
        picture: Picture,
        policy: Policy,
        order: Order,
        spread: float,
        factor: float,
        now_s: float,
        *,
        is_pruned: bool,
        is_forecast_due: bool,
    ) -> None:
        self.waits = (await asyncio.to_thread(plan, picture, now_s, policy, order)).waits if is_pruned else ()
        if is_pruned:
            self.has_news = True
            self._changed()
        if is_forecast_due:
            self.expected = await asyncio.to_thread(forecast, picture, now_s, policy, spread, factor, order=order)
            self.offers = await asyncio.to_thread(offers, picture, now_s, policy, order)
            self.has_news = True

    def _done(self, task: asyncio.Task[None]) -> None:
        self.task = None
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("start estimate failed: %s", error, exc_info=error)
        self._changed()


def _key(picture: Picture, policy: Policy) -> object:
    """Return what a forecast depends on besides time and measured rates."""
    jobs = sorted((j.id, j.state, j.intent, j.goal, len(j.gang), j.priority, j.wish) for j in picture.jobs.values())
    return tuple(jobs), picture.nodes, policy
