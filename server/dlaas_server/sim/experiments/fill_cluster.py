"""Pool filled with pods that never end: share of GPUs allocated at each level of demand.

Pods arrive in a seeded random order until the stated share of all GPUs has been requested; none leaves, and a pod that
does not fit is rejected. If the list is too short, more are drawn from it at random.
Source: the experiments of Weng et al., USENIX ATC 2023.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final, Protocol

from dlaas_server.core.model.resources import WHOLE, Shape
from dlaas_server.core.placement.fragmentation import State, Usual
from dlaas_server.core.placement.gang_placement import FreeCapacity, Layout, free_of, place
from dlaas_server.sim.replay.event_loop import Unrunnable
from dlaas_server.sim.replay.production import nodes_of, shape_in
from dlaas_server.sim.trace.trace import NodeSpec, Trace, TraceJob

__all__ = ["MARKS", "ByPlacement", "Filled", "Filler", "fill", "filled_json", "filled_table", "shapes_of"]

MARKS: Final = (50, 80, 90, 95, 100, 110, 120, 130)
"""Demand in percent of all GPUs at which the reference was read."""


@dataclass(frozen=True, slots=True)
class Filled:
    """Fill level of the pool, in percent of its GPUs."""

    arrived: int
    allocated: float
    fragmented: float
    """Free, but unusable for the usual requests, on average over these."""


class Filler(Protocol):
    """Placement of pods, one at a time."""

    def put(self, shape: Shape) -> bool:
        """Place one pod. Return False if it does not fit."""
        ...

    def states(self) -> Iterable[State]:
        """Return the free capacity of each node."""
        ...


@dataclass(slots=True)
class ByPlacement:
    """Placement of the core, which learns the usual requests from the placed pods."""

    specs: Sequence[NodeSpec]
    layout: Layout
    frees: FreeCapacity = field(init=False)

    def __post_init__(self) -> None:
        self.frees = free_of(nodes_of(self.specs), ())

    def put(self, shape: Shape) -> bool:
        """Place one pod."""
        return place(self.frees, shape, 1) is not None

    def states(self) -> Iterable[State]:
        """Return the free capacity of each node."""
        return (free.state for free in self.frees)


def shapes_of(trace: Trace, specs: Sequence[NodeSpec], layout: Layout) -> dict[str, Shape]:
    """Return the request of each pod of the list, by name. Raises Unrunnable if a job has several pods."""
    shapes: dict[str, Shape] = {}
    seen: dict[Shape, Shape] = {}
    for job in trace.jobs:
        if job.learners != 1:
            raise Unrunnable(f"job {job.id} has {job.learners} learners: a pool is filled with single pods only")
        shape = shape_in(job, specs, layout)
        shapes[job.id] = seen.setdefault(shape, shape)
    return shapes


def _arrivals(trace: Trace, seed: int) -> Iterator[TraceJob]:
    chance = random.Random(seed)  # noqa: S311  # no secret
    pods = list(trace.jobs)
    chance.shuffle(pods)
    yield from pods
    while True:
        yield chance.choice(trace.jobs)


def fill(
    trace: Trace, specs: Sequence[NodeSpec], filler: Filler, shapes: dict[str, Shape], seed: int
) -> tuple[Filled, ...]:
    """Return the fill levels at each mark. Raises Unrunnable if no pod requests a GPU or the pool has none."""
    capacity = WHOLE * sum(spec.gpus for spec in specs)
    if not capacity or not any(shape.gpus for shape in shapes.values()):
        raise Unrunnable("the pool has no GPUs, or no pod asks for one: there is nothing to fill")
    usual = Usual()
    for shape in shapes.values():
        usual.note(shape)
    arrived = allocated = 0
    found: list[Filled] = []
    pods = _arrivals(trace, seed)
    for mark in MARKS:
        while 100 * arrived < mark * capacity:
            shape = shapes[next(pods).id]
            milli = shape.gpus * shape.milli
            arrived += milli
            if filler.put(shape):
                allocated += milli
        lost = sum(usual.lost(state) for state in filler.states())
        found.append(Filled(mark, 100 * allocated / capacity, 100 * lost / capacity))
    return tuple(found)


def filled_table(trace: Trace, name: str, gpus: int, filled: Sequence[Filled]) -> str:
    """Return the table that the command prints."""
    head = f"{trace.name}, {name}, {gpus} GPUs: percent of all GPUs, after so much was asked for"
    lines = [head, f"  {'asked for':<12}{'allocated':>12}{'fragmented':>12}"]
    return "\n".join([*lines, *(f"  {f.arrived:>7} %{f.allocated:>14.2f}{f.fragmented:>12.2f}" for f in filled)])


def filled_json(trace: Trace, name: str, gpus: int, seed: int, filled: Sequence[Filled]) -> dict[str, object]:
    """Return the same as JSON."""
    rows = [
        {"arrived_pct": f.arrived, "allocated_pct": round(f.allocated, 3), "fragmented_pct": round(f.fragmented, 3)}
        for f in filled
    ]
    head = {"trace": trace.name, "format": trace.format, "policy": name, "gpus": gpus, "seed": seed}
    return {**head, "filled": rows}
