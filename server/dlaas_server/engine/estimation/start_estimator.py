"""When those who wait are expected to start, and in a crowd also in which place: worked out beside the loop.

A forecast runs the pool forward dozens of times: 10 ms for a short queue, a third of a second for a hundred jobs. Of a
longer queue the first hundred are told.
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

__all__ = ["Foreteller"]

log = logging.getLogger("dlaas.engine")
EVERY_S: Final = 15.0
"""So often estimates are renewed while nothing but time changes."""
REST_S: Final = 0.04
"""So long for each job that is looked at they are not renewed, whatever changes: ten times what a forecast takes."""
TELL_S: Final = 500e-6
"""So long for each job that waits a crowd is not told anew: ten times what a whole plan takes."""

Span = tuple[float, float]


class Foreteller:
    """Keeps the newest forecast. `changed` is called in the event loop when there is another one."""

    def __init__(self, changed: Callable[[], None]) -> None:
        self.expected: Mapping[str, Span] = {}
        """Job -> between which times it is expected to start."""
        self.offers: Mapping[str, int] = {}
        """Job -> with how many learners, fewer than it asks for, it would start at once."""
        self.waits: Sequence[Wait] = ()
        """In a crowd, what those who wait are told; else a turn does that."""
        self.has_news = False
        """There is a forecast that nobody was told of yet."""
        self.task: asyncio.Task[None] | None = None
        self._changed = changed
        self._key: object = None
        self._at_s = 0.0
        """When the newest forecast was begun, …"""
        self._told_s = 0.0
        """… and when a crowd was last told."""

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
        """Begin another forecast if the old one does not hold any more. Returns when to look again.

        `waiting`: how many jobs wait; `seen` makes the picture, where one is needed; `order`: with what it learnt.
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
    """What a forecast depends on beside time and measured rates."""
    jobs = sorted((j.id, j.state, j.intent, j.goal, len(j.gang), j.priority, j.wish) for j in picture.jobs.values())
    return tuple(jobs), picture.nodes, policy
