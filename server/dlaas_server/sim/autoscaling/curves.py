"""Scaling curves for judging autoscalers: exact throughput over the number of learners."""

from __future__ import annotations

import csv
import random
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from dlaas_server.core.elasticity.objective import Condition, best_size

__all__ = ["Curve", "drawn", "formulas", "measured"]

PROFILES: Final = Path(__file__).parent.parent / "traces" / "pollux_profiles"


@dataclass(frozen=True, slots=True)
class Curve:
    """Steps per second at each size from 1 on, with a constant batch."""

    name: str
    family: str
    rates: tuple[float, ...]

    @property
    def high(self) -> int:
        """Return the largest size."""
        return len(self.rates)

    def best(self, condition: Condition) -> int:
        """Return the size with the best true value of this condition (the oracle)."""
        return best_size(dict(enumerate(self.rates, start=1)), condition)

    def faster(self, factor: float) -> Curve:
        """Return the same shape on another device."""
        return replace(self, rates=tuple(rate * factor for rate in self.rates))


def _amdahl(serial: float) -> Callable[[float], float]:
    return lambda k: k / (1 + serial * (k - 1))


def _hyperbola(c: float) -> Callable[[float], float]:
    return lambda k: k / (1 + c * k)


FORMULAS: Final[tuple[tuple[str, str, Callable[[float], float]], ...]] = (
    ("linear", "linear", lambda k: k),
    *(("Amdahl 0.02–0.3", f"Amdahl {p}", _amdahl(p)) for p in (0.02, 0.05, 0.1, 0.15, 0.2, 0.25, 0.3)),
    *(("k/(1 + ck)", f"k/(1 + {c}k)", _hyperbola(c)) for c in (0.02, 0.05, 0.1, 0.2, 0.3)),
    ("saturating at 4", "saturating at 4", lambda k: min(k, 4.0)),
    ("falling after 8", "falling after 8, steadily", lambda k: k if k <= 8 else max(16 - k, 0.5)),
    ("falling after 8", "falling after 8, as 1/k", lambda k: k if k <= 8 else 64 / k),
)


def formulas(high: int) -> list[Curve]:
    """Return the curves given by formulas, up to this size."""
    return [
        Curve(f"{name}, up to {high}", family, tuple(rate(k) for k in range(1, high + 1)))
        for family, name, rate in FORMULAS
    ]


def _of_nodes(local: float, each: float, remote: float, node: float) -> Callable[[float], float]:
    """Return a curve for nodes of 4, constant batch per learner: a step takes 1 plus synchronisation, `local` on
    one node, `remote` over several, and `each` and `node` more with each learner.

    Source: Qiao et al., "Pollux", OSDI 2021, equations 10 and 11, nothing overlapping.
    """

    def rate(k: float) -> float:
        if k == 1:
            return 1.0
        return k / (1 + (local + each * (k - 2) if k <= 4 else remote + node * (k - 2)))

    return rate


def _falling(after: int, power: float) -> Callable[[float], float]:
    return lambda k: k if k <= after else after * (after / k) ** power


def _sinking(after: int, slope: float) -> Callable[[float], float]:
    return lambda k: k if k <= after else max(after - slope * (k - after), 0.5)


def _flat(after: int) -> Callable[[float], float]:
    return lambda k: min(k, float(after))


def drawn(high: int, seed: int, each: int = 6) -> list[Curve]:
    """Return curves of the same families with random parameters: rules are chosen on these, as those that they
    are judged on are not to be looked at. Nodes of 4 stand for the measured ones.
    """
    chance = random.Random(f"{seed} {high}")  # noqa: S311  # no secret
    found: list[tuple[str, str, Callable[[float], float]]] = []
    for _ in range(each):
        p, c, after = chance.uniform(0.02, 0.3), chance.uniform(0.02, 0.3), chance.randint(2, 12)
        local, remote = chance.uniform(0.0, 0.3), chance.uniform(0.0, 3.0)
        more, node = chance.uniform(0.0, 0.03), chance.uniform(0.0, 0.06)
        power, slope, end = chance.uniform(0.3, 1.5), chance.uniform(0.3, 1.5), chance.randint(3, 14)
        found += [
            ("Amdahl", f"Amdahl {p:.3f}", _amdahl(p)),
            ("k/(1 + ck)", f"k/(1 + {c:.3f}k)", _hyperbola(c)),
            ("saturating", f"saturating at {after}", _flat(after)),
            ("falling", f"falling after {end}, by {slope:.2f}", _sinking(end, slope)),
            ("falling", f"falling after {end}, as 1/k^{power:.2f}", _falling(end, power)),
            ("nodes of 4", f"nodes of 4, {local:.2f}, {remote:.2f}", _of_nodes(local, more, remote, node)),
        ]
    return [
        Curve(f"{name}, up to {high}", family, tuple(rate(k) for k in range(1, high + 1)))
        for family, name, rate in found
    ]


def measured(folder: Path = PROFILES) -> list[Curve]:
    """Return the curves that Pollux' authors measured on nodes of 4 GPUs, per application and batch per GPU.

    Samples per second relative to those of one GPU. Batches that were not measured at every size up to 12 are left out.
    """
    found: list[Curve] = []
    for path in sorted(folder.glob("*/placements.csv")):
        times: dict[int, dict[int, tuple[int, float]]] = {}
        with path.open(newline="", encoding="utf-8") as file:
            for row in csv.DictReader(file):
                nodes, gpus = len(row["placement"]), sum(map(int, row["placement"]))
                sizes = times.setdefault(int(row["local_bsz"]), {})
                sizes[gpus] = min(sizes.get(gpus, (99, 0.0)), (nodes, float(row["step_time"])))
        for batch, sizes in sorted(times.items()):
            high = next(k - 1 for k in range(1, 18) if k not in sizes)
            if high >= 12:
                one_s = sizes[1][1]
                rates = tuple(k * one_s / sizes[k][1] for k in range(1, high + 1))
                found.append(Curve(f"{path.parent.name}, batch {batch}", f"Pollux: {path.parent.name}", rates))
    return found
