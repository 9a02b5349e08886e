"""Throughput curve of a job: measurements at several sizes, and a curve fitted to them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from math import sqrt
from typing import Final

from dlaas_server.core.model.size_search import Point

__all__ = ["Fit", "evened", "fit"]

MODEL_ERROR: Final = 0.01
"""Relative error of the model that counts as explained."""
TERMS: Final = 3
COMMON_STEPS: Final = 20.0
"""Number of steps at which a size's own spread weighs as much as the common one; fewer are a poor estimate."""


def evened(points: Sequence[Point]) -> list[Point]:
    """Return the points with each spread shrunk towards the common one, the more so the fewer its steps."""
    steps = sum(p.steps for p in points)
    common = sum(p.steps * p.spread for p in points) / steps if steps else 0.0
    return [replace(p, spread=(p.steps * p.spread + COMMON_STEPS * common) / (p.steps + COMMON_STEPS)) for p in points]


@dataclass(frozen=True, slots=True)
class Fit:
    """Seconds per sample with k learners: serial + parallel / k + talk k.

    Amdahl's law is talk = 0, k / (1 + c k) is serial = c; `talk` is the additional all-reduce cost per learner. If
    `is_capped`, it is max(serial, parallel / k): something other than the learners limits the throughput.
    Source of the latter: Williams, Waterman, Patterson, "Roofline", CACM 2009.
    """

    serial: float
    parallel: float
    talk: float
    is_good: bool
    """True if the curve explains the measurements within their errors."""
    is_capped: bool = False

    def rate(self, learners: int) -> float:
        """Return samples per second with this number of learners."""
        if self.is_capped:
            return 1 / max(self.serial, self.parallel / learners)
        return 1 / (self.serial + self.parallel / learners + self.talk * learners)


def fit(points: Sequence[Point]) -> Fit | None:
    """Return the simplest curve that explains the points, else the closest; None without points.

    Weighted least squares of relative errors; no term is negative. A further term must lower the sum by 4 (two standard
    errors).
    """
    best: tuple[float, float, int, list[float]] | None = None
    rows = [_row(p) for p in points]
    weights = [weight for _, weight in rows]
    for count in range(1, min(TERMS, len(points)) + 1):
        for chosen in combinations((1, 0, 2), count):
            solved = _solve([[row[i] for i in chosen] for row, _ in rows], weights)
            if solved is None or any(value < 0 for value in solved):
                continue
            terms = [0.0, 0.0, 0.0]
            for i, value in zip(chosen, solved, strict=True):
                terms[i] = value
            chi2 = sum((weight * (1 - _dot(terms, row))) ** 2 for row, weight in rows)
            if best is None or chi2 + 4 * count < best[0]:
                best = (chi2 + 4 * count, chi2, count, terms)
    if best is None:
        return None
    _, chi2, count, terms = best
    capped = _capped(points)
    if capped is not None and capped[0] + 4 * 2 < chi2 + 4 * count:
        chi2, serial, parallel = capped
        return Fit(serial, parallel, 0.0, is_good=_explains(chi2, len(points) - 2), is_capped=True)
    return Fit(terms[0], terms[1], terms[2], is_good=_explains(chi2, len(points) - count))


def _explains(chi2: float, free: int) -> bool:
    return free > 0 and chi2 <= free + 2.5 * sqrt(2 * free) + 1


def _capped(points: Sequence[Point]) -> tuple[float, float, float] | None:
    """Return (squares, serial, parallel) of the closest capped curve; None for fewer than two points."""
    best: tuple[float, float, float] | None = None
    ordered = sorted(points, key=lambda p: p.learners)
    weights = [1 / (p.error**2 + MODEL_ERROR**2) for p in ordered]
    for at in range(1, len(ordered)):
        serial = _mean([1 / p.rate for p in ordered[at:]], weights[at:])
        parallel = _mean([p.learners / p.rate for p in ordered[:at]], weights[:at])
        chi2 = sum(
            w * (1 - max(serial, parallel / p.learners) * p.rate) ** 2 for w, p in zip(weights, ordered, strict=True)
        )
        if best is None or chi2 < best[0]:
            best = chi2, serial, parallel
    return best


def _mean(values: Sequence[float], weights: Sequence[float]) -> float:
    return sum(v * w for v, w in zip(values, weights, strict=True)) / sum(weights)


def _dot(left: Sequence[float], right: Sequence[float]) -> float:
    return sum(a * b for a, b in zip(left, right, strict=True))


def _row(point: Point) -> tuple[tuple[float, float, float], float]:
    """Return the regression row (predicted / measured per unit of each term) and its weight."""
    k, rate = point.learners, point.rate
    return (rate, rate / k, rate * k), 1 / sqrt(point.error**2 + MODEL_ERROR**2)


def _solve(rows: list[list[float]], weights: list[float]) -> list[float] | None:
    """Return the weighted least-squares solution of `rows` x = 1 by normal equations; None if they are singular."""
    n = len(rows[0])
    matrix = [[0.0] * (n + 1) for _ in range(n)]
    for row, weight in zip(rows, weights, strict=True):
        for i in range(n):
            for j in range(n):
                matrix[i][j] += weight * weight * row[i] * row[j]
            matrix[i][n] += weight * weight * row[i]
    for i in range(n):
        pivot = max(range(i, n), key=lambda r: abs(matrix[r][i]))
        if abs(matrix[pivot][i]) <= 1e-12 * sum(abs(v) for v in matrix[pivot][:n]):
            return None
        matrix[i], matrix[pivot] = matrix[pivot], matrix[i]
        for r in range(n):
            if r != i:
                factor = matrix[r][i] / matrix[i][i]
                matrix[r] = [a - factor * b for a, b in zip(matrix[r], matrix[i], strict=True)]
    return [matrix[i][n] / matrix[i][i] for i in range(n)]
