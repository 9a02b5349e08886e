"""Goodput model of a Pollux job: a speed model fitted to its measurements, and its best batch.

Goodput is progress per second: steps of the smallest batch per second, weighed by what a larger batch is worth.
Source: Qiao et al., "Pollux", OSDI 2021, section 3. Fitted in closed form over a grid of overlaps, where the paper
searches with gradients.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

import numpy as np
from numpy.typing import NDArray

__all__ = ["Limits", "Measured", "Model", "fit"]

Measured = Mapping[tuple[int, int, int], tuple[float, float]]
"""(nodes, GPUs, local batch) -> seconds per step, and the part of synchronisation."""

Floats = NDArray[np.float64]
GAMMAS: Final = (1.0, 1.25, 1.5, 2.0, 2.5, 3.0, 4.0, 6.0, 10.0)
"""Overlap of computation and synchronisation: 1 none, 10 almost complete."""
LEAST_S: Final = 1e-8
BATCHES: Final = 50


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of the batch, in samples."""

    batch_least: int
    batch_most: int
    local_least: int
    local_most: int


@dataclass(frozen=True, slots=True, eq=False)
class _Choices:
    """Possible batches on some placements. Shapes: (batches, placements), or (placements,) for GPUs."""

    counts: NDArray[np.int64]
    many: NDArray[np.bool_]
    """True for placements on several nodes."""
    local: Floats
    passes: Floats
    batch: Floats
    allowed: NDArray[np.bool_]


@lru_cache(maxsize=256)
def _choices(nodes: tuple[int, ...], gpus: tuple[int, ...], limits: Limits) -> _Choices:
    counts = np.asarray(gpus)
    low = np.maximum(limits.batch_least, limits.local_least * counts).astype(float)
    fits = low <= limits.batch_most
    low = np.minimum(low, limits.batch_most)
    shares = np.linspace(0.0, 1.0, BATCHES)[:, None]
    per_gpu = low * (limits.batch_most / low) ** shares / counts
    passes = np.ceil(per_gpu / limits.local_most - 1e-8) - 1
    # One GPU sees how its gradients vary only over two passes.
    alone = (counts == 1) & (per_gpu > limits.batch_least + 1e-8)
    passes = np.where(alone, np.maximum(passes, 1), passes)
    local = np.ceil(per_gpu / (passes + 1) - 1e-8)
    allowed = (local >= limits.local_least) & (local <= limits.local_most) & fits
    return _Choices(counts, np.asarray(nodes) > 1, local, passes, counts * local * (passes + 1), allowed)


@dataclass(frozen=True, slots=True)
class Model:
    """Speed model: a step takes (compute^gamma + network^gamma)^(1/gamma); accumulation passes need no network.

    Computing takes `fixed_s` + `sample_s` per sample; the network takes a constant and a slope over GPUs beyond two,
    `across` nodes or `within` one.
    """

    fixed_s: float
    sample_s: float
    across: tuple[float, float]
    within: tuple[float, float]
    gamma: float

    def best(
        self, nodes: Sequence[int], gpus: Sequence[int], noise: tuple[float, float], limits: Limits
    ) -> tuple[Floats, NDArray[np.int64], NDArray[np.int64]]:
        """Return for each placement the largest goodput, its local batch, and its passes without synchronisation.

        Shapes: all (placements,). Where GPUs are too many for the largest batch, the goodput is 0.
        """
        choices = _choices(tuple(nodes), tuple(gpus), limits)
        square, variance = noise
        batch = choices.batch
        below = variance * limits.batch_least / batch + square
        gain = np.where(below > 0, (variance + square) / np.where(below > 0, below, 1.0), batch / limits.batch_least)
        goodput = np.where(choices.allowed, gain / _step_s(self, choices), 0.0)
        at = np.argmax(goodput, axis=0), np.arange(len(gpus))
        return goodput[at], choices.local[at].astype(np.int64), choices.passes[at].astype(np.int64)


@lru_cache(maxsize=1024)
def _step_s(model: Model, choices: _Choices) -> Floats:
    """Return the seconds of a step by batch and placement; constant until the job measures something new."""
    gamma, counts = model.gamma, choices.counts
    pass_s = model.fixed_s + model.sample_s * choices.local
    beyond = np.maximum(counts - 2, 0)
    across, within = model.across, model.within
    network_s = np.where(choices.many, across[0] + across[1] * beyond, within[0] + within[1] * beyond)
    network_s = np.where(counts > 1, network_s, LEAST_S)
    step_s: Floats = (pass_s**gamma + network_s**gamma) ** (1 / gamma) + choices.passes * pass_s
    return step_s


def fit(measured: Measured) -> Model:
    """Return the model closest to the measurements, in logarithms; unmeasured parts are unconstrained."""
    keys = np.array(list(measured), dtype=float)
    nodes, gpus, local = keys[:, 0], keys[:, 1], keys[:, 2]
    step_s = np.array([s for s, _ in measured.values()])
    pass_s = np.maximum(step_s - np.array([s for _, s in measured.values()]), LEAST_S)
    if len(set(local)) == 1:
        fixed_s = float(pass_s.mean()) / 2  # one batch shows nothing about others: half of the time is assumed fixed
        sample_s = float((pass_s / local).mean()) / 2
    else:
        fixed_s, sample_s = _line(local, pass_s, 0.0)
    best: tuple[float, Model] | None = None
    computed_s = fixed_s + sample_s * local
    for gamma in GAMMAS:
        network_s = np.maximum(step_s**gamma - pass_s**gamma, LEAST_S**gamma) ** (1 / gamma)
        within = _network(gpus, network_s, (nodes == 1) & (gpus > 1))
        across = _network(gpus, network_s, nodes > 1)
        if not (nodes > 1).any():
            across = (max(across[0], 1.1 * within[0]), max(across[1], 1.1 * within[1]))
        beyond = np.maximum(gpus - 2, 0)
        said_s = np.where(nodes > 1, across[0] + across[1] * beyond, within[0] + within[1] * beyond)
        said_s = np.where(gpus > 1, said_s, LEAST_S)
        wrong = np.log((computed_s**gamma + said_s**gamma) ** (1 / gamma) / step_s)
        error = float(np.sqrt((wrong**2).mean())) + 1e-3 * (gamma - 1) ** 2
        if best is None or error < best[0]:
            best = error, Model(fixed_s, sample_s, across, within, gamma)
    assert best is not None
    return best[1]


def _network(gpus: Floats, network_s: Floats, where: NDArray[np.bool_]) -> tuple[float, float]:
    if not where.any():
        return LEAST_S, LEAST_S
    constant, slope = _line(np.maximum(gpus[where] - 2, 0), network_s[where], 1e-2)
    return max(constant, LEAST_S), max(slope, LEAST_S)


def _line(x: Floats, y: Floats, flat: float) -> tuple[float, float]:
    """Return a, b >= 0 of y = a + b x with the least relative error; `flat` limits the slope if little is known."""
    u, v = 1 / y, x / y
    uu, uv, vv, u1, v1 = float(u @ u), float(u @ v), float(v @ v), float(u.sum()), float(v.sum())
    vv += flat * vv / len(x)
    det = uu * vv - uv * uv
    if det > 1e-12 * uu * vv:
        a, b = (vv * u1 - uv * v1) / det, (uu * v1 - uv * u1) / det
        if a >= 0 and b >= 0:
            return a, b
    level = u1 / uu
    slope = v1 / vv if vv else 0.0
    wrong = (float(((level * u - 1) ** 2).sum()), float(((slope * v - 1) ** 2).sum()))
    return (level, 0.0) if wrong[0] <= wrong[1] else (0.0, slope)
