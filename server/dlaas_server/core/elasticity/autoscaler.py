"""Autoscaler: search for the best size of one job by trial, first doubling, then bisecting.

A few steps suffice if two sizes clearly differ; otherwise it stays to measure more. It is called once per window. The
search state holds all knowledge, so that it can be stored with the job. The pool is not consulted: `low` and `high`
limit the wish.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Final

from dlaas_server.core.elasticity.objective import NOTHING, Condition, Work
from dlaas_server.core.elasticity.throughput_curve import evened, fit
from dlaas_server.core.model.size_search import PATIENCE_S, Point, Search, Window

__all__ = ["learn", "look"]

HALF_LIFE_S: Final = 300.0
"""Half-life of a measurement's weight."""
DRIFT: Final = 0.08
"""Relative deviation from which a window, if also beyond three standard errors, contradicts earlier measurements."""
DRIFTS: Final = 2
"""Number of contradicting windows in a row after which the job counts as changed."""
ENOUGH_ERROR: Final = 0.02
"""Relative standard error with which sizes near the best one are compared."""
ENOUGH_STEPS: Final = 20.0
"""Number of steps after which two sizes are compared by their measurements, certain or not."""
SURE: Final = 2.5
"""Number of standard errors by which two sizes clearly differ."""
REFUSED: Final = 3
"""Number of whole windows at a size below the wish after which the search continues with the granted size."""
REFUSED_S: Final = 60.0
HORIZON_S: Final = 600.0
COSTS: Final = 5.0
"""Factor by which a change must exceed its cost, within the horizon or the remaining run time."""
WIDE: Final = 4
"""Ratio of sizes that distinguishes one curve from another."""
GAP: Final = 4
"""Gap between sizes that can hide a better size."""
REFINES: Final = 5
"""Maximum number of sizes tried after the doubling."""
KEPT_POINTS_MAX: Final = 64


def look(
    search: Search,
    window: Window,
    condition: Condition,
    *,
    low: int,
    high: int,
    wish: int,
    work: Work = NOTHING,
    left_s: float | None = None,
) -> tuple[Search, int, str]:
    """Add a window. Return the search, the size that the job should have now, and the reason for a change.

    `wish`: the last requested size; `left_s`: remaining run time, if known.
    """
    now_s, held = window.at_s, window.learners
    if held != wish:
        return _not_granted(search, window, wish)
    search = replace(search, not_granted=0, cap=None if now_s >= search.cap_until_s else search.cap)
    high = max(low, min(high, search.cap or high))
    search, has_drifted = learn(search, window)
    if left_s is not None and left_s < 10 * COSTS * search.idle_s:
        return search, wish, ""
    if has_drifted:
        search = replace(search, is_settled=False, refines=0, patience_s=PATIENCE_S)
    elif search.is_settled and now_s >= search.again_s:
        kept = tuple(p for p in search.points if p.learners == held)
        search = replace(search, points=kept, is_settled=False, refines=0, patience_s=2 * search.patience_s)
    state = _State(search, condition, work, low, high, held)
    if search.is_settled:
        return _watched(state, wish, left_s)
    size, why = state.next_size()
    if size is None:
        best, why = state.best()
        return replace(search, is_settled=True, again_s=now_s + search.patience_s), best, why if best != held else ""
    refines = search.refines + (1 if state.is_bracketed and size != held else 0)
    return replace(search, refines=refines), size, why


def _not_granted(search: Search, window: Window, wish: int) -> tuple[Search, int, str]:
    """Handle a size that the pool did not grant: after a while, continue with the granted size."""
    search = learn(search, window)[0]
    refused = search.not_granted + (window.steps >= ENOUGH_STEPS)
    if refused < REFUSED or window.learners > wish:
        return replace(search, not_granted=refused), wish, ""
    search = replace(search, not_granted=0, cap=window.learners, cap_until_s=window.at_s + REFUSED_S, is_settled=False)
    return search, window.learners, f"{wish} learners were not available."


def learn(search: Search, window: Window) -> tuple[Search, bool]:
    """Merge the window into the measurements of its size. Return also whether it shows that the job has changed."""
    new = Point(
        learners=window.learners, rate=window.rate, spread=window.spread, steps=float(window.steps), at_s=window.at_s
    )
    old = search.at(window.learners)
    others = tuple(p for p in search.points if p.learners != window.learners)
    if old is None:
        return replace(search, points=_sorted((*others, new)), off=0), False
    spread = max(new.spread, old.spread)  # the spread of few steps is a poor estimate
    error = (replace(new, spread=spread).error ** 2 + replace(old, spread=spread).error ** 2) ** 0.5
    if abs(new.rate / old.rate - 1) > max(DRIFT, 3 * error):
        if search.off + 1 >= DRIFTS:
            return replace(search, points=(new,), off=0), True
        return replace(search, off=search.off + 1), False
    weight = old.steps * 0.5 ** (max(window.at_s - old.at_s, 0.0) / HALF_LIFE_S)
    total = weight + new.steps
    joined = replace(
        new,
        rate=total / (weight / old.rate + new.steps / new.rate),
        spread=(weight * old.spread + new.steps * new.spread) / total,
        steps=total,
    )
    return replace(search, points=_sorted((*others, joined)), off=0), False


def _sorted(points: tuple[Point, ...]) -> tuple[Point, ...]:
    newest = sorted(points, key=lambda p: -p.at_s)[:KEPT_POINTS_MAX]
    return tuple(sorted(newest, key=lambda p: p.learners))


def _watched(state: _State, wish: int, left_s: float | None) -> tuple[Search, int, str]:
    """Change a settled size only for a certain gain that exceeds the cost of the change."""
    best, why = state.best()
    present_value, best_value = state.value(wish), state.value(best)
    if best == wish or present_value <= 0:
        return state.search, wish, ""
    gain = best_value / present_value - 1
    horizon_s = HORIZON_S if left_s is None else min(HORIZON_S, left_s)
    if gain <= max(state.error(wish) + state.error(best), 0.01) or gain * horizon_s < COSTS * state.search.idle_s:
        return state.search, wish, ""
    return state.search, best, why


class _State:
    """A search at one moment, with derived values."""

    def __init__(self, search: Search, condition: Condition, work: Work, low: int, high: int, held: int) -> None:
        self.search, self.low, self.high, self.held = search, low, high, held
        self._condition, self._work = condition, work
        self.points = evened([p for p in search.points if low <= p.learners <= high])
        self.fit = fit(self.points)
        is_good = self.fit is not None and self.fit.is_good and len(self.points) >= 4
        self.is_wide = bool(self.points) and self.points[-1].learners >= WIDE * self.points[0].learners
        self.is_explained = is_good and (self.is_wide or self.points[0].learners == low)
        self.is_bracketed = False

    def rate(self, learners: int) -> float:
        """Return the rate by the fit if it explains all measurements, else measured or interpolated linearly."""
        if self.is_explained and self.fit is not None:
            return self.fit.rate(learners)
        return _interpolated(self.points, learners)

    def value(self, learners: int) -> float:
        return self._condition(learners, self.rate(learners), self._work)

    def error(self, learners: int) -> float:
        """Return the relative error of the rate at the nearest measured size."""
        near = min(self.points, key=lambda p: (abs(p.learners - learners), p.learners), default=None)
        return 1.0 if near is None else near.error / (2.0 if self.is_explained else 1.0)

    def measured(self) -> int:
        """Return the best measured size."""
        return max(self.points, key=lambda p: (self._worth(p), -p.learners)).learners

    def best(self) -> tuple[int, str]:
        """Return the best size by all knowledge, and the reason."""
        if not self.is_explained:
            size = self.measured()
            return size, f"{size} is the best of the sizes tried."
        size = max(range(self.low, self.high + 1), key=lambda k: (self.value(k), -k))
        return size, f"{size} is the best size on the scaling curve."

    def next_size(self) -> tuple[int | None, str]:
        """Return the next size, `held` to continue measuring, or None if nothing is left to find out."""
        best, _ = self.best()
        most, least = self.points[-1].learners, self.points[0].learners
        if self._is_unsure():
            return self.held, ""
        if most < self.high and self._looks_up(best, most):
            return min(2 * most, self.high), f"Trying {min(2 * most, self.high)}."
        if least > self.low and best <= least:
            return max(least // 2, self.low), f"Trying {max(least // 2, self.low)}."
        self.is_bracketed = True
        if not self.is_wide and least > self.low:
            return max(least // 2, self.low), f"Trying {max(least // 2, self.low)} to complete the scaling curve."
        if self.search.refines >= REFINES:
            return None, ""
        if self._is_inexact(best):
            return self.held, ""
        return self._by_fit(best) if self.is_explained else self._between()

    def _here(self) -> Point | None:
        return next((p for p in self.points if p.learners == self.held), None)

    def _is_unsure(self) -> bool:
        """Return whether more steps are needed to distinguish the present size from the best other one."""
        here, others = self._here(), [p for p in self.points if p.learners != self.held]
        if here is None or not others or here.steps >= ENOUGH_STEPS:
            return False
        rival = max(others, key=lambda p: (self._worth(p), -p.learners))
        apart = abs(self._worth(here) / self._worth(rival) - 1) if self._worth(rival) > 0 else 0.0
        return bool(apart < SURE * (here.error**2 + rival.error**2) ** 0.5)

    def _is_inexact(self, best: int) -> bool:
        """Return whether the present size may be the best one but was not measured precisely enough."""
        here = self._here()
        if here is None or here.error <= ENOUGH_ERROR or self.held == self.low:
            return False
        return bool(self.value(best) <= self._worth(here) * (1 + SURE * here.error))

    def _worth(self, point: Point) -> float:
        return self._condition(point.learners, point.rate, self._work)

    def _looks_up(self, best: int, most: int) -> bool:
        """Return whether larger sizes are tried: while they are better, and once more after the first that is not.

        A gang that no longer fits one machine is slower at first, and faster again when it is larger.
        """
        if best >= most:
            return True
        beyond = sum(1 for p in self.points if p.learners > self.measured())
        return beyond < 2

    def _by_fit(self, best: int) -> tuple[int | None, str]:
        if not any(abs(p.learners - best) <= max(1, 0.06 * best) for p in self.points):
            return best, f"Trying {best}, the best size on the scaling curve."
        return self._hidden()

    def _hidden(self) -> tuple[int | None, str]:
        """Return the middle of a wide gap beside the best size, if a better size is possible there.

        A smooth curve may explain measurements on both sides of a peak.
        """
        best = self.measured()
        top = self._worth(next(p for p in self.points if p.learners == best))
        for lower, upper in self._gaps(best):
            if upper - lower < GAP:
                continue
            middle = (lower + upper) // 2
            hope = self._condition(middle, self._rate_bound(middle), self._work)
            if hope > top * (1 + self.error(best) + self.error(lower)):
                return middle, f"Trying {middle}, between two measured sizes."
        return None, ""

    def _rate_bound(self, size: int) -> float:
        """Return the largest possible rate at `size` if added learners bring at most what those before them brought."""
        below = [p for p in self.points if p.learners < size][-2:]
        bound = min(p.rate / p.learners * size for p in below)
        if len(below) == 2:
            bound = min(bound, _line(below[0], below[1], size))
        return max(bound, _interpolated(self.points, size))

    def _between(self) -> tuple[int | None, str]:
        """Bisect the gap beside the best size that may hide a better one."""
        best = self.measured()
        top, is_rough = self.value(best), self._is_rough()
        candidates: list[tuple[float, int]] = []
        for lower, upper in self._gaps(best):
            if upper - lower < 2 or (upper - lower == 2 and best > 2 and is_rough):
                continue
            middle = (lower + upper) // 2
            hope = self._condition(middle, self._rate_bound(middle), self._work)
            if is_rough or hope * (1 + self.error(best)) > top:
                candidates.append((hope, middle))
        if not candidates:
            return None, ""
        size = max(candidates)[1]
        return size, f"Trying {size}, between two measured sizes."

    def _gaps(self, best: int) -> Iterator[tuple[int, int]]:
        sizes = [p.learners for p in self.points]
        at = sizes.index(best)
        if at > 0:
            yield sizes[at - 1], best
        if at + 1 < len(sizes):
            yield best, sizes[at + 1]

    def _is_rough(self) -> bool:
        """Return whether throughput rises faster again after rising more slowly, so a gap may hide a better size."""
        for a, b, c in zip(self.points, self.points[1:], self.points[2:], strict=False):
            if b.rate < _interpolated([a, c], b.learners) * (1 - 3 * b.error - 0.03):
                return True
        return False


def _line(a: Point, b: Point, learners: int) -> float:
    return a.rate + (b.rate - a.rate) * (learners - a.learners) / (b.learners - a.learners)


def _interpolated(points: list[Point], learners: int) -> float:
    """Return the rate at a size: measured or interpolated; beyond the measured sizes, that of the outermost one."""
    below = [p for p in points if p.learners <= learners][-1:]
    above = [p for p in points if p.learners >= learners][:1]
    if below and above and below[0] is not above[0]:
        return _line(below[0], above[0], learners)
    return (below or above)[0].rate
