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
from dlaas_server.core.forecast.start_time import SEEN_MOST, forecast
from dlaas_server.core.model.pool import Pool as Picture
from dlaas_server.core.planning.decisions import Wait
from dlaas_server.core.planning.plan import plan
from dlaas_server.core.scheduling.ordering import Order
from dlaas_server.core.scheduling.scheduler import Policy

__all__ = ["StartEstimator"]

log = logging.getLogger("dlaas.engine")
EVERY_S: Final = 15.0
"""Interval of new estimates while only time changes."""
REST_S: Final = 0.04
"""Minimum interval of new estimates per job examined: ten times the cost of a forecast."""
TELL_S: Final = 500e-6
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
        self._at_s = 0.0
        """Time at which the newest forecast was begun."""
        self._told_s = 0.0
        """Time at which a long queue was last planned as a whole."""

    def look(
        self,
        waiting: int,
        seen: Callable[[], Picture],
        policy: Policy,
        order: Order,
        spread: float,
        factor: float,
        now_s: float,
        *,
        is_crowd: bool = False,
    ) -> float | None:
        """Begin another forecast if the old one is outdated. Return the time of the next check.

        `waiting`: number of waiting jobs; `seen` creates the snapshot if needed; `order`: with learned run lengths.
        """
        if not waiting:
            self.expected, self.offers, self.waits, self._key = {}, {}, (), None
            return None
        if self.task is not None:
            return now_s + EVERY_S
        foretell_s = self._at_s + min(waiting, SEEN_MOST) * REST_S
        due_s = min(foretell_s, self._told_s + waiting * TELL_S) if is_crowd else foretell_s
        if self._key is not None and now_s < due_s:
            return due_s
        picture = seen()
        key = _key(picture, policy)
        if key == self._key and now_s < self._at_s + EVERY_S:
            return self._at_s + EVERY_S
        is_due = self._key is None or now_s >= foretell_s
        self._key, self._told_s, self._at_s = key, now_s, now_s if is_due else self._at_s
        order = copy(order)  # it learns on meanwhile
        found_out = self._find_out(
            picture, policy, order, spread, factor, now_s, is_crowd=is_crowd, is_forecast_due=is_due
        )
        self.task = asyncio.create_task(found_out, name="forecast")
        self.task.add_done_callback(self._done)
        return now_s + EVERY_S

    async def _find_out(
        self,
        picture: Picture,
        policy: Policy,
        order: Order,
        spread: float,
        factor: float,
        now_s: float,
        *,
        is_crowd: bool,
        is_forecast_due: bool,
    ) -> None:
        self.waits = (await asyncio.to_thread(plan, picture, now_s, policy, order)).waits if is_crowd else ()
        if is_crowd:
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
