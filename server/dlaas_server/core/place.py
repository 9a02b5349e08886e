"""Which seats a gang gets. All learners are placed on a scratch copy, taken or dropped as a whole."""

from __future__ import annotations

from collections.abc import Callable

from dlaas_server.core.frees import Free, Frees, Layout, Shape, free_of, is_kind, shape_of
from dlaas_server.core.model import Seat

__all__ = ["Free", "Frees", "Layout", "Shape", "free_of", "is_kind", "place", "room", "shape_of"]


def room(frees: Frees, shape: Shape, most: int) -> int:
    """How many learners of this shape fit now, up to `most`."""
    return frees.room(shape, most)


def place(frees: Frees, shape: Shape, learners: int) -> tuple[Seat, ...] | None:
    """Seats for a whole gang, taken from `frees`; or None, and nothing is taken.

    `pack`: the tightest node that takes the whole gang; else the node that takes the most of it, then the rest alike.
    `spread`: one learner at a time on the node with the fewest learners. `tetris`: one at a time on the node whose free
    resources look most like the demand. Ties go by name, so that the same pool always gives the same plan.
    """
    if shape.placement == Layout.SPREAD:
        return _one_by_one(frees, shape, learners, lambda f: (f.learners, -len(f.devices), f.name))
    if shape.placement == Layout.TETRIS:
        return _one_by_one(frees, shape, learners, lambda f: (-f.alike(shape), 0, f.name))
    whole = frees.tightest(shape, learners)
    if whole is not None:
        return frees.take(whole, shape, learners)
    if learners == 1 or frees.room(shape, learners) < learners:
        return None
    seats: list[Seat] = []
    while len(seats) < learners:
        left = learners - len(seats)
        free, here = frees.tightest(shape, left), left
        if free is None:
            free, here = frees.roomiest(shape, left)
        assert free is not None
        seats += frees.take(free, shape, here)
    return tuple(seats)


def _one_by_one(
    frees: Frees, shape: Shape, learners: int, key: Callable[[Free], tuple[float, int, str]]
) -> tuple[Seat, ...] | None:
    if frees.room(shape, learners) < learners:
        return None
    seats: list[Seat] = []
    for _ in range(learners):
        seats += frees.take(min((f for f in frees.at_least(shape.gpus) if f.fits(shape, 1)), key=key), shape)
    return tuple(seats)
