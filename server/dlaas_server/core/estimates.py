"""How long jobs run, from what is known of them and from what became of others.

All in logarithms: lengths of jobs spread over orders of magnitude, and guesses are wrong by factors.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from math import exp, log, sqrt
from statistics import NormalDist
from typing import Final

__all__ = ["AS_MANY", "NORMAL", "UNSURE", "History", "Spread", "length_s", "width_factor"]

ENOUGH: Final = 8
"""So many values make a mean and a spread worth using."""

UNSURE: Final = 0.3
"""How wrong guesses are taken to be as long as nothing has ended: σ of their logarithm."""
AS_MANY: Final = 2
"""The first guess of a spread counts as so many values."""
PACE: Final = 0.05
WIDEST: Final = log(4)
NARROWEST: Final = -log(1.5)
NORMAL: Final = NormalDist()
OVERDUE: Final = 0.99
"""Where so many of the jobs of this guess would have ended, the guess says nothing any more."""


@dataclass(slots=True)
class Spread:
    """Mean and variance of values that come one by one (Welford)."""

    count: int = 0
    mean: float = 0.0
    _squares: float = 0.0

    def add(self, value: float) -> None:
        """One more value."""
        self.count += 1
        step = value - self.mean
        self.mean += step / self.count
        self._squares += step * (value - self.mean)

    @property
    def variance(self) -> float:
        """Of the values so far."""
        return self._squares / (self.count - 1) if self.count > 1 else 0.0


@dataclass(slots=True)
class History:
    """What became of the pool's jobs: how long they ran, by their size, and how wrong the guesses about them were.

    A guess and the history of jobs of the same size are weighed by how far each was off until now (normal prior, normal
    error, in logarithms): a guess that has always been right is taken as it is, a wild one is drawn to what is usual.
    """

    enough: int = ENOUGH
    lengths: dict[int, Spread] = field(default_factory=dict)
    """Devices of the gang -> log of the seconds that such jobs ran."""
    all_lengths: Spread = field(default_factory=Spread)
    errors: Spread = field(default_factory=Spread)
    """log(actual / guess)."""

    def learn(self, guess_s: float | None, actual_s: float, weight: int) -> None:
        """A job ended after so many seconds of running."""
        if actual_s <= 0:
            return
        self.all_lengths.add(log(actual_s))
        self.lengths.setdefault(weight, Spread()).add(log(actual_s))
        if guess_s:
            self.errors.add(log(actual_s / guess_s))

    def expected_s(self, guess_s: float | None, weight: int) -> float | None:
        """The median length of a job of this size about which this guess was made; None: nothing is known."""
        usual = self._usual(weight)
        if guess_s is None or guess_s <= 0:
            return None if usual is None else exp(usual.mean)
        if usual is None or self.errors.count < ENOUGH:
            return guess_s
        wrong = self.errors.variance + self.errors.mean**2
        trust = usual.variance / (usual.variance + wrong) if wrong else 1.0
        return exp(usual.mean + trust * (log(guess_s) - usual.mean))

    @property
    def spread(self) -> float:
        """How wrong guesses were, as the standard deviation of their logarithm, or a first guess."""
        if self.errors.count < ENOUGH:
            return UNSURE
        return sqrt(self.errors.variance + self.errors.mean**2)

    def doubt(self, weight: int) -> float:
        """How far jobs of this size are from what is expected of them: with evidence, as far as was seen."""
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
    """The length in all below which this share of the jobs end about which so was guessed and that ran so long.

    Log-normal about the guess; of one that overran by far, half end before they ran twice as long (and so on).
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
    """How much wider the next interval has to be than what was drawn, so that this share of them hold.

    `held`: whether each interval that was shown did, oldest first. One that did not makes those after it wider, one
    that did a little narrower, so that in the long run the share is right whatever is wrong with the model.
    Source: Gibbs, Candès, "Adaptive conformal inference under distribution shift", NeurIPS 2021.
    """
    logarithm = 0.0
    for one in held:
        logarithm += PACE * ((not one) - (1 - share))
        logarithm = min(max(logarithm, NARROWEST), WIDEST)
    return exp(logarithm)
