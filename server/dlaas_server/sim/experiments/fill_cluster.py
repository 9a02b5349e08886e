"""Filling a pool with pods that stay: how much of its GPUs is allocated when so much has been asked for.

Pods come in a seeded random order until the stated share of all GPUs has been requested; nobody leaves; who finds no
room is turned away. Where the list is too short, more are drawn from it at random.
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
"""Percent of all GPUs that have been asked for: where the reference was read."""


@dataclass(frozen=True, slots=True)
class Filled:
    """How full the pool is. All in percent of its GPUs."""

    arrived: int
    allocated: float
    fragmented: float
    """Free, but of no use for what is usually asked for, on average over that."""


class Filler(Protocol):
    """Who seats pods, one at a time."""

    def put(self, shape: Shape) -> bool:
        """Seat one pod; False where it finds no room."""
        ...

    def states(self) -> Iterable[State]:
        """What is free on each node."""
        ...


@dataclass(slots=True)
class ByPlacement:
    """A placement of the core. What is usual it learns from those whom it seated."""

    specs: Sequence[NodeSpec]
    layout: Layout
    frees: FreeCapacity = field(init=False)

    def __post_init__(self) -> None:
        self.frees = free_of(nodes_of(self.specs), ())

    def put(self, shape: Shape) -> bool:
        """Seat one pod."""
        return place(self.frees, shape, 1) is not None

    def states(self) -> Iterable[State]:
        """What is free on each node."""
        return (free.state for free in self.frees)


def shapes_of(trace: Trace, specs: Sequence[NodeSpec], layout: Layout) -> dict[str, Shape]:
    """What each pod of the list asks for, by name. Raises Unrunnable where a job is no single pod."""
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
    """How full the pool is at each of the marks. Raises Unrunnable where nobody asks for a GPU, or none is there."""
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
    """The table that the command prints."""
    head = f"{trace.name}, {name}, {gpus} GPUs: percent of all GPUs, after so much was asked for"
    lines = [head, f"  {'asked for':<12}{'allocated':>12}{'fragmented':>12}"]
    return "\n".join([*lines, *(f"  {f.arrived:>7} %{f.allocated:>14.2f}{f.fragmented:>12.2f}" for f in filled)])


def filled_json(trace: Trace, name: str, gpus: int, seed: int, filled: Sequence[Filled]) -> dict[str, object]:
    """The same for programs."""
    rows = [
        {"arrived_pct": f.arrived, "allocated_pct": round(f.allocated, 3), "fragmented_pct": round(f.fragmented, 3)}
        for f in filled
    ]
    head = {"trace": trace.name, "format": trace.format, "policy": name, "gpus": gpus, "seed": seed}
    return {**head, "filled": rows}
