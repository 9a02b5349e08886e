"""Profiles of six trainings measured by Pollux' authors: time per step by placement and batch, progress by epoch.

A job's *progress* is counted in steps of its smallest batch: a larger batch makes more of it per step, the less the
more its gradients agree. Source: Qiao et al., "Pollux", OSDI 2021; the rules of interpolation are those of the
simulator that comes with the paper (see `traces/README.md`).
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, Final

from scipy.interpolate import LinearNDInterpolator

from dlaas_server.sim.trace.formats import read
from dlaas_server.sim.trace.trace import PolluxPlacement, PolluxScaling, PolluxValidation

__all__ = ["APPLICATIONS", "Profile", "Times", "profile_of"]

FOLDER: Final = Path(__file__).parent.parent / "traces" / "pollux_profiles"
APPLICATIONS: Final[Mapping[str, tuple[int, int | None]]] = {
    "bert": (2, None),
    "cifar10": (100, None),
    "deepspeech2": (80, None),
    "imagenet": (90, None),
    "ncf": (10, None),
    "yolov3": (50, 8),
}
"""Application -> epochs of a whole training; the largest batch of one GPU, unless it is the largest measured."""

Times = tuple[float, float]
"""Seconds per step, and the part of synchronisation."""


@dataclass(slots=True, eq=False)
class Profile:
    """Profile of an application. Batches in samples: `local` on one GPU in one pass, `batch` on all in one step."""

    name: str
    epochs: int
    placements: Mapping[str, tuple[list[int], list[Times]]]
    """GPUs per node, as digits -> local batches, ascending, and their measurements."""
    surface: tuple[list[tuple[float, float, float]], list[Times]]
    """(nodes, GPUs, local batch), and its measurement."""
    validation: Mapping[int, Sequence[PolluxValidation]]
    """Batch -> measurements after each epoch; by ascending batch."""
    local_least: int
    local_most: int
    _surface: Any = None
    _times: dict[tuple[tuple[int, ...], int], Times] = field(default_factory=dict)

    @property
    def batch_least(self) -> int:
        """Return the batch in which progress is counted."""
        return min(self.validation)

    @property
    def batch_most(self) -> int:
        """Return the largest measured batch."""
        return max(self.validation)

    def times(self, placement: tuple[int, ...], local: int) -> Times:
        """Return the seconds of one step with these GPUs on each node."""
        placement = min(placement[i:] + placement[:i] for i in range(len(placement)))
        found = self._times.get((placement, local))
        if found is None:
            measured = self.placements.get("".join(map(str, placement)))
            found = (
                _between(*measured, local)
                if measured is not None
                else self._on_surface(min(len(placement), 16), sum(placement), local)
            )
            self._times[placement, local] = found
        return found

    def _on_surface(self, nodes: int, gpus: int, local: int) -> Times:
        if self._surface is None:
            self._surface = LinearNDInterpolator(*self.surface)
        step_s, sync_s = self._surface([nodes, gpus, local])[0]
        if step_s != step_s:
            raise ValueError(f"{self.name}: {gpus} GPUs on {nodes} nodes with batch {local} lie outside of the profile")
        return float(step_s), float(sync_s)

    def progress(self, epoch: int) -> float:
        """Return the progress at the end of this many epochs."""
        return min(rows[epoch - 1].progress for rows in self.validation.values()) if epoch else 0.0

    def noise(self, batch: float, epoch: int) -> tuple[float, float]:
        """Return square and variance of the gradient during an epoch."""
        low, high = self._around(batch)
        below, above = self.validation[low][epoch], self.validation[high][epoch]
        share = (batch - low) / (high - low) if high > low else 0.0
        return (
            below.grad_sqr + share * (above.grad_sqr - below.grad_sqr),
            below.grad_var + share * (above.grad_var - below.grad_var),
        )

    def iterations(self, batch: float, epoch: int) -> float:
        """Return the steps of this many epochs plus one."""
        low, high = self._around(batch)
        below, above = self.validation[low][epoch].iteration, self.validation[high][epoch].iteration
        return below + (batch - low) / (high - low) * (above - below) if high > low else below

    def _around(self, batch: float) -> tuple[int, int]:
        sizes = list(self.validation)
        assert sizes[0] <= batch <= sizes[-1], f"{self.name}: a batch of {batch} lies outside of the profile"
        at = bisect_left(sizes, batch)
        return (sizes[at], sizes[at]) if sizes[at] == batch else (sizes[at - 1], sizes[at])


def _between(locals_: Sequence[int], times: Sequence[Times], local: int) -> Times:
    """Interpolate measurements linearly; `local` must lie within their range."""
    assert locals_[0] <= local <= locals_[-1], f"a local batch of {local} lies outside of the profile"
    at = bisect_left(locals_, local)
    if locals_[at] == local:
        return times[at]
    share = (local - locals_[at - 1]) / (locals_[at] - locals_[at - 1])
    (step_a, sync_a), (step_b, sync_b) = times[at - 1], times[at]
    return step_a + share * (step_b - step_a), sync_a + share * (sync_b - sync_a)


@cache
def profile_of(name: str) -> Profile:
    """Return the profile of an application, from the files that come with the simulator."""
    folder = FOLDER / name
    placed = [r for _, r in read(folder / "placements.csv")[1] if isinstance(r, PolluxPlacement)]
    scaled = [r for _, r in read(folder / "scalability.csv")[1] if isinstance(r, PolluxScaling)]
    validation = {
        int(path.stem.split("-")[1]): [r for _, r in read(path)[1] if isinstance(r, PolluxValidation)]
        for path in folder.glob("validation-*.csv")
    }
    epochs, most = APPLICATIONS[name]
    return Profile(
        name=name,
        epochs=epochs,
        placements=_by_placement(placed),
        surface=_surface_of(placed, scaled),
        validation=dict(sorted(validation.items())),
        local_least=min(r.local_batch for r in placed),
        local_most=most or max(r.local_batch for r in placed),
    )


def _by_placement(placed: Sequence[PolluxPlacement]) -> dict[str, tuple[list[int], list[Times]]]:
    found: dict[str, dict[int, Times]] = {}
    for row in placed:
        found.setdefault(row.placement, {})[row.local_batch] = (row.step_time_s, row.sync_time_s)
    return {name: (sorted(rows), [rows[local] for local in sorted(rows)]) for name, rows in found.items()}


def _surface_of(
    placed: Sequence[PolluxPlacement], scaled: Sequence[PolluxScaling]
) -> tuple[list[tuple[float, float, float]], list[Times]]:
    """Merge placements of equal nodes and GPUs by their mean, and add measurements on more nodes."""
    groups: dict[tuple[float, float, float], list[Times]] = {}
    for row in placed:
        key = (len(row.placement), sum(map(int, row.placement)), row.local_batch)
        groups.setdefault(key, []).append((row.step_time_s, row.sync_time_s))
    points = sorted(groups)
    values = [
        (sum(s for s, _ in groups[p]) / len(groups[p]), sum(s for _, s in groups[p]) / len(groups[p])) for p in points
    ]
    points += [(r.nodes, r.replicas, r.local_batch) for r in scaled]
    values += [(r.step_time_s, r.sync_time_s) for r in scaled]
    return points, values
