"""Run lengths of jobs, estimated from what is known of each job and from finished jobs of the pool.

All computations use logarithms: lengths spread over orders of magnitude, and estimates are wrong by factors.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from math import exp, log, log2, sqrt
from statistics import NormalDist
from typing import Final

__all__ = ["AS_MANY", "NORMAL", "UNSURE", "History", "Spread", "Usual", "length_s", "width_factor"]

ENOUGH: Final = 8
"""Number of values needed for a usable mean and spread."""

UNSURE: Final = 0.3
"""Standard deviation of the logarithm of estimate errors, assumed until enough jobs have ended."""
AS_MANY: Final = 2
"""Weight of the assumed spread, in values."""
PACE: Final = 0.05
WIDEST: Final = log(4)
NARROWEST: Final = -log(1.5)
NORMAL: Final = NormalDist()
OVERDUE: Final = 0.99
"""Share of jobs with the same estimate that would have ended, above which the estimate is ignored."""


@dataclass(slots=True)
class Spread:
    """Running mean and variance (Welford's algorithm)."""

    count: int = 0
    mean: float = 0.0
    _squares: float = 0.0

    def add(self, value: float) -> None:
        """Add a value."""
        self.count += 1
        step = value - self.mean
        self.mean += step / self.count
        self._squares += step * (value - self.mean)

    @property
    def variance(self) -> float:
        """Sample variance of the values; 0 for fewer than two."""
        return self._squares / (self.count - 1) if self.count > 1 else 0.0


BINS: Final = 104
"""Number of bins. A bin is a quarter of an octave; 26 octaves of seconds are two years."""
PER_OCTAVE: Final = 4
FLAT: Final = 0.05
"""Prior share of the jobs that reach a bin and end in it: a flat guess over five octaves."""
SURE: Final = 4
"""Largest estimate error considered, in standard deviations."""
STEPS: Final = [2.0 ** (i / PER_OCTAVE) for i in range(2 * BINS + 1)]


def _bin(length_s: float) -> int:
    return min(int(PER_OCTAVE * log2(length_s)), BINS - 1) if length_s > 1 else 0


@dataclass(frozen=True, slots=True)
class Usual:
    """Length distribution of the pool's jobs by size, and error distribution of their estimates.

    Built from finished jobs and from unfinished ones, which are known to run longer than they have run so far. Without
    these, jobs would look too short. For each bin of lengths it holds the share of jobs that reach it and end in it.
    Sizes with few jobs are shrunk towards all sizes.
    Source: Kaplan, Meier, "Nonparametric estimation from incomplete observations", JASA 1958.
    """

    ends: Mapping[int, Sequence[float]]
    """Devices of the gang -> probability of ending in each bin; key 0 holds all sizes."""
    weights: Sequence[float]
    """Relative likelihood that an estimate is wrong by that many bins, from the most negative on."""

    def mean_s(self, guess_s: float, weight: int) -> float:
        """Return the posterior mean length of jobs of this size with this estimate, for log-normal estimate errors."""
        ends = self.ends.get(weight) or self.ends[0]
        least, first = _bin(guess_s) - len(self.weights) // 2, guess_s * 2.0 ** (-(len(self.weights) // 2) / PER_OCTAVE)
        sum_ = sum_s = 0.0
        for i, likely in enumerate(self.weights):
            probable = likely * ends[min(max(least + i, 0), BINS - 1)]
            sum_ += probable
            sum_s += probable * first * STEPS[i]
        return sum_s / sum_ if sum_ else guess_s


def usual_of(ended: Mapping[int, Sequence[int]], going: Iterable[tuple[int, float]], spread: float) -> Usual:
    """Return the distributions, from finished jobs (devices -> count per bin) and others (devices, ran s)."""
    stays = {weight: [0] * BINS for weight in ended}
    everybody = [0] * BINS
    for weight, ran_s in going:
        last = _bin(ran_s) - 1  # the current bin gives no information yet
        if last >= 0:
            everybody[last] += 1
            if weight in stays:
                stays[weight][last] += 1
    total = [sum(counts) for counts in zip(*ended.values(), strict=True)]
    shares = _shares(total, everybody, [FLAT] * BINS)
    found = {0: _ends(shares)}
    for weight, counts in ended.items():
        found[weight] = _ends(_shares(counts, stays[weight], shares))
    width = min(spread * PER_OCTAVE / log(2), BINS / SURE)
    reach = int(SURE * width)
    return Usual(found, [exp(-((i / width) ** 2) / 2) if i else 1.0 for i in range(-reach, reach + 1)])


def _shares(ends: Sequence[int], stays: Sequence[int], before: Sequence[float]) -> list[float]:
    """Return the share of jobs reaching each bin that ends in it. The prior `before` weighs as much as ENOUGH jobs.

    `ends`, `stays`: number of jobs that ended in each bin, and that were last seen having passed it.
    """
    came = list(accumulate(map(int.__add__, reversed(ends), reversed(stays))))[::-1]
    return [(end + ENOUGH * share) / (many + ENOUGH) for end, many, share in zip(ends, came, before, strict=True)]


def _ends(shares: Sequence[float]) -> list[float]:
    """Return the probability that a job ends in each bin."""
    found, left = [], 1.0
    for share in shares:
        found.append(left * share)
        left *= 1 - share
    return found


@dataclass(slots=True)
class History:
    """History of the pool's finished jobs: their run lengths by size, and the errors of their estimates.

    An estimate and the history of jobs of the same size are weighted by their variance so far (normal prior, normal
    error, in logarithms). An accurate estimate is used as it is, and a poor one is shrunk towards the usual length.
    """

    enough: int = ENOUGH
    lengths: dict[int, Spread] = field(default_factory=dict)
    """Devices of the gang -> logarithm of the seconds that such jobs ran."""
    all_lengths: Spread = field(default_factory=Spread)
    errors: Spread = field(default_factory=Spread)
    """log(actual / estimated length)."""
    usual: Usual | None = None
    """Distributions at the last `look`; None before the first."""
    _ended: dict[int, list[int]] = field(default_factory=dict)
    """Devices of the gang -> number of finished jobs per length bin."""
    _looked: int = 0
    _means: dict[tuple[float, int], float] = field(default_factory=dict)
    """(estimate, devices) -> mean length: many jobs of a pool wait with the same estimate."""

    def learn(self, guess_s: float | None, actual_s: float, weight: int) -> None:
        """Record a finished job that ran for `actual_s` seconds."""
        if actual_s <= 0:
            return
        self.all_lengths.add(log(actual_s))
        self.lengths.setdefault(weight, Spread()).add(log(actual_s))
        self._ended.setdefault(weight, [0] * BINS)[_bin(actual_s)] += 1
        if guess_s:
            self.errors.add(log(actual_s / guess_s))

    def expected_s(self, guess_s: float | None, weight: int) -> float | None:
        """Return the median length of jobs of this size with this estimate; None if nothing is known."""
        usual = self._usual(weight)
        if guess_s is None or guess_s <= 0:
            return None if usual is None else exp(usual.mean)
        if usual is None or self.errors.count < ENOUGH:
            return guess_s
        wrong = self.errors.variance + self.errors.mean**2
        trust = usual.variance / (usual.variance + wrong) if wrong else 1.0
        return exp(usual.mean + trust * (log(guess_s) - usual.mean))

    @property
    def is_due(self) -> bool:
        """True if the number of finished jobs grew by an eighth since the last `look`."""
        return self.errors.count >= max(ENOUGH, self._looked * 9 // 8)

    def look(self, going: Iterable[tuple[int, float]]) -> None:
        """Recompute the distributions. `going`: devices and seconds run so far, of unfinished jobs."""
        self._looked = self.errors.count
        self._means.clear()
        self.usual = usual_of(self._ended, going, self.spread)

    def mean_s(self, guess_s: float | None, weight: int) -> float | None:
        """Return the mean length of jobs of this size with this estimate; before `look`, the estimate."""
        if self.usual is None or not guess_s:
            return guess_s
        found = self._means.get((guess_s, weight))
        if found is None:
            found = self._means[guess_s, weight] = self.usual.mean_s(guess_s, weight)
        return found

    @property
    def spread(self) -> float:
        """Standard deviation of the logarithm of estimate errors; UNSURE until enough jobs have ended."""
        if self.errors.count < ENOUGH:
            return UNSURE
        return sqrt(self.errors.variance + self.errors.mean**2)

    def doubt(self, weight: int) -> float:
        """Return the standard deviation of log length for jobs of this size, combined with the prior UNSURE."""
        usual = self._usual(weight)
        known = 0 if usual is None else usual.count - 1
        seen = 0.0 if usual is None else usual.variance
        return sqrt((known * seen + AS_MANY * UNSURE**2) / (known + AS_MANY))

    def _usual(self, weight: int) -> Spread | None:
        same = self.lengths.get(weight)
        if same is not None and same.count >= self.enough:
            return same
        return self.all_lengths if self.all_lengths.count >= self.enough else None


def length_s(guess_s: float, executed_s: float, spread: float, share: float) -> float:
    """Return the total length below which `share` of the jobs end that had this estimate and ran for `executed_s`.

    The distribution is log-normal around the estimate. After a large overrun, half of the jobs end before they have run
    twice as long, and so on.
    """
    if executed_s > 1e-3:
        if spread <= 0:
            while guess_s <= executed_s:
                guess_s *= 2
            return guess_s
        gone = NORMAL.cdf(log(executed_s / guess_s) / spread)
        if gone > OVERDUE:
            return max(executed_s / max(1 - share, 1e-3), executed_s + 1e-3)
        share = gone + share * (1 - gone)
    return max(guess_s * exp(spread * NORMAL.inv_cdf(min(max(share, 1e-9), 1 - 1e-9))), executed_s + 1e-3)


def width_factor(held: Iterable[bool], share: float = 0.8) -> float:
    """Return the factor by which the next interval must be widened so that `share` of all intervals cover the outcome.

    `held`: whether each published interval covered it, oldest first. A miss widens later intervals, and a hit narrows
    them a little, so the long-run coverage is right whatever the error of the model.
    Source: Gibbs, Candès, "Adaptive conformal inference under distribution shift", NeurIPS 2021.
    """
    logarithm = 0.0
    for is_held in held:
        logarithm += PACE * ((not is_held) - (1 - share))
        logarithm = min(max(logarithm, NARROWEST), WIDEST)
    return exp(logarithm)
