"""Gang placement: seats for all learners of a gang, or none."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from itertools import chain, groupby
from math import inf
from operator import attrgetter
from typing import Final

from dlaas_server.core.model.cluster import Seat
from dlaas_server.core.model.resources import WHOLE, Loan, Shape
from dlaas_server.core.placement.fragmentation import Option, State
from dlaas_server.core.placement.free_capacity import FreeCapacity, NodeCapacity, free_of
from dlaas_server.core.placement.shape import Layout, shape_of
from dlaas_server.core.placement.topology import Level, allowed, in_one_group, tightest_part

__all__ = ["FreeCapacity", "Layout", "NodeCapacity", "beside", "fit_count", "free_of", "place", "shape_of"]

NOT_LOOKED: Final[Option] = ((0, 0, 0.0), "", -1)


def fit_count(capacity: FreeCapacity, shape: Shape, most: int) -> int:
    """Return how many learners of this shape fit now, up to `most`."""
    return capacity.fit_count(shape, most)


def place(capacity: FreeCapacity, shape: Shape, learners: int, waited_s: float = inf) -> tuple[Seat, ...] | None:
    """Return seats for a whole gang, taken from `capacity`; None, and nothing taken, if it does not fit.

    `pack`: the tightest node that fits the whole gang; else the tightest rack, area or pool, and in it the node that
    fits most of the gang, repeatedly. `topology`: the same, but until the gang has waited long enough (`waited_s`) only
    as close together as on an empty pool (`topology.py`). `spread`: one learner at a time, on the node with the fewest
    learners. `tetris`: one at a time, on the node whose free resources are most similar to the request. `fgd`: one at a
    time, where fragmentation grows least (`fragmentation.py`). Ties go by name, so that the same pool always gives the
    same plan. A gang that accepts any device kind gets devices of one kind if possible. Lent devices are taken last
    (`sparing`).
    """
    if capacity.lent:
        return sparing(capacity, shape, partial(_place, capacity, shape, learners, waited_s))
    return _place(capacity, shape, learners, waited_s)


def _place(capacity: FreeCapacity, shape: Shape, learners: int, waited_s: float = inf) -> tuple[Seat, ...] | None:
    if learners > 1 and len(capacity.kinds) > 1 and shape.gpus and shape.gpu_kind is None:
        alike = _of_one_kind(capacity, shape, learners, waited_s)
        if alike is not None:
            return alike
    level, layout = Level.POOL, shape.placement
    if layout == Layout.PACK:
        pass
    elif layout == Layout.SPREAD:
        return _one_by_one(capacity, shape, learners, lambda f: (f.learners, -len(f.devices), f.name))
    elif layout == Layout.TETRIS:
        return _one_by_one(capacity, shape, learners, lambda f: (-f.alike(shape), 0, f.name))
    elif layout == Layout.FGD:
        return _gently(capacity, shape, learners)
    elif layout == Layout.TOPOLOGY:
        level = allowed(capacity, shape, learners, waited_s)
    if capacity.has_links:
        linked = in_one_group(capacity, shape, learners)
        if linked is not None:
            return linked
    if level < Level.NODE:
        return None
    whole = capacity.tightest(shape, learners)
    if whole is not None:
        return capacity.take(whole, shape, learners)
    if learners == 1 or level == Level.NODE or capacity.fit_count(shape, learners) < learners:
        return None
    if capacity.has_racks:
        nodes = tightest_part(capacity, shape, learners, level)
        return None if nodes is None else _over(capacity, nodes, shape, learners)
    seats: list[Seat] = []
    while len(seats) < learners:
        left = learners - len(seats)
        free, here = capacity.tightest(shape, left), left
        if free is None:
            free, here = capacity.roomiest(shape, left)
        assert free is not None
        seats += capacity.take(free, shape, here)
    return tuple(seats)


def beside(capacity: FreeCapacity, shape: Shape, learners: int, held: Sequence[Seat]) -> tuple[Seat, ...] | None:
    """Return seats for learners that join those on `held` seats; None, and nothing taken, if they do not fit.

    In layouts that pack, nodes with the most held seats come first.
    """
    if capacity.lent:
        return sparing(capacity, shape, partial(_beside, capacity, shape, learners, held))
    return _beside(capacity, shape, learners, held)


def sparing(
    capacity: FreeCapacity, shape: Shape, choose: Callable[[], tuple[Seat, ...] | None]
) -> tuple[Seat, ...] | None:
    """Return the seats that `choose` takes from `capacity`, using as little leaving and lent capacity as it can.

    The seats are on no more nodes than without this, or than with only those jobs that the pool asked first to leave
    for a waiting job: others leave for a job behind this one. Lending never changes whether seats are found.
    """
    loans = [loan for one in capacity.lent for loan in _rest(capacity, one)]
    found = choose()
    if found is None or all(capacity.has(loan.shape, loan.seats) for loan in loans):
        return found
    capacity.give(shape, found)
    learners, nodes = len(found), _nodes(found)
    freed = [loan for loan in loans if loan.is_for_waiting]
    if shape.placement not in (Layout.PACK, Layout.TOPOLOGY):
        nodes = learners
    elif freed and nodes < learners:
        nodes = max(nodes, _nodes(_with_first(capacity, shape, freed, choose, learners)))
    return _sparing(capacity, shape, loans, choose, learners, nodes)


def _rest(capacity: FreeCapacity, loan: Loan) -> Sequence[Loan]:
    """Return the loan without what no job can get: out of service, on cordoned nodes, or taken already.

    It is split by seats where other jobs have taken some of its CPUs and memory.
    """
    shape = loan.shape
    if not shape.is_share:
        free = {seat.node: node for seat in loan.seats if (node := capacity.named(seat.node)) is not None}
        devices = {(name, device) for name, node in free.items() for _, device in node.devices}
        seats = [
            seat if len(rest) == len(seat.devices) else Seat(seat.node, rest)
            for seat in loan.seats
            if (rest := tuple(d for d in seat.devices if (seat.node, d) in devices))
            or (not seat.devices and seat.node in free)
        ]
        if not capacity.has(shape, seats):
            return [replace(loan, seats=(seat,), shape=_limited(shape, free[seat.node])) for seat in seats]
        if seats != [*loan.seats]:
            loan = replace(loan, seats=tuple(seats))
    elif not capacity.has(shape, loan.seats):
        return ()
    return (loan,)


def _limited(shape: Shape, node: NodeCapacity) -> Shape:
    """Return the shape with no more CPUs and memory than the node has free."""
    cpus, memory_bytes = max(min(shape.cpus, node.cpus), 0.0), max(min(shape.memory_bytes, node.memory_bytes), 0)
    return replace(shape, cpus=cpus, memory_bytes=memory_bytes)


def _with_first(
    capacity: FreeCapacity,
    shape: Shape,
    loans: Sequence[Loan],
    choose: Callable[[], tuple[Seat, ...] | None],
    learners: int,
) -> tuple[Seat, ...]:
    """Return the seats that `choose` would take with all loans of as few jobs as possible, the first ones."""
    jobs = [list(own) for _, own in groupby(loans, key=attrgetter("job"))]
    for loan in loans:
        capacity.claim(loan.shape, loan.seats)
    while capacity.fit_count(shape, learners) < learners or (found := choose()) is None:
        for loan in jobs.pop(0):
            capacity.give(loan.shape, loan.seats)
    capacity.give(shape, found)
    for loan in chain.from_iterable(jobs):
        capacity.give(loan.shape, loan.seats)
    return found


def _sparing(
    capacity: FreeCapacity,
    shape: Shape,
    loans: Sequence[Loan],
    choose: Callable[[], tuple[Seat, ...] | None],
    learners: int,
    nodes: int,
) -> tuple[Seat, ...]:
    """Return the seats that `choose` takes, on at most so many nodes, with as few loans as possible, the first ones.

    All loans are free. With all of them, `choose` takes seats on at most so many nodes.
    """

    def chosen() -> tuple[Seat, ...] | None:
        its = choose() if capacity.fit_count(shape, learners) >= learners else None
        if its is not None and _nodes(its) > nodes:
            capacity.give(shape, its)
            return None
        return its

    for loan in loans:
        capacity.claim(loan.shape, loan.seats)
    given = 0
    while (found := chosen()) is None:  # at last with all loans
        capacity.give(loans[given].shape, loans[given].seats)
        given += 1
    kept = list(loans[given:])
    for loan in reversed(loans[: max(given - 1, 0)]):  # loans that turn out not to be needed
        capacity.give(shape, found)
        capacity.claim(loan.shape, loan.seats)
        fewer = chosen()
        if fewer is None:
            capacity.give(loan.shape, loan.seats)
            capacity.claim(shape, found)
        else:
            found = fewer
            kept.append(loan)
    for loan in kept:
        capacity.give(loan.shape, loan.seats)
    return found


def _nodes(seats: Sequence[Seat]) -> int:
    return len({seat.node for seat in seats})


def _beside(capacity: FreeCapacity, shape: Shape, learners: int, held: Sequence[Seat]) -> tuple[Seat, ...] | None:
    seats: list[Seat] = []
    if shape.placement in (Layout.PACK, Layout.TOPOLOGY):
        for name, _ in sorted(Counter(seat.node for seat in held).items(), key=lambda one: (-one[1], one[0])):
            free = capacity.named(name)
            here = 0 if free is None else free.fits(shape, learners - len(seats))
            if free is not None and here:
                seats += capacity.take(free, shape, here)
    left = learners - len(seats)
    more = _place(capacity, shape, left) if left else ()
    if more is None:
        capacity.give(shape, seats)
        return None
    return (*seats, *more)


def _of_one_kind(capacity: FreeCapacity, shape: Shape, learners: int, waited_s: float) -> tuple[Seat, ...] | None:
    """Return seats on devices of one kind, preferring the kind with the fewest free devices.

    Learners synchronize at each step, so all run at the speed of the slowest device.
    """
    free = Counter(kind for node in capacity for kind, _ in node.devices)
    for kind in sorted(capacity.kinds, key=lambda kind: (free[kind], kind)):
        if shape.is_share or free[kind] >= learners * shape.gpus:
            seats = _place(capacity, replace(shape, gpu_kind=kind), learners, waited_s)
            if seats is not None:
                return seats
    return None


def _over(capacity: FreeCapacity, nodes: list[NodeCapacity], shape: Shape, learners: int) -> tuple[Seat, ...]:
    """Return seats on these nodes, which fit the gang: repeatedly the tightest node that fits the most learners."""
    seats: list[Seat] = []
    while len(seats) < learners:
        left = learners - len(seats)
        fits = [(free.fits(shape, left), free) for free in nodes]
        here = max(count for count, _ in fits)
        free = min((free for count, free in fits if count == here), key=lambda f: (len(f.devices), f.cpus, f.index))
        seats += capacity.take(free, shape, here)
    return tuple(seats)


def _one_by_one(
    capacity: FreeCapacity, shape: Shape, learners: int, key: Callable[[NodeCapacity], tuple[float, int, str]]
) -> tuple[Seat, ...] | None:
    if capacity.fit_count(shape, learners) < learners:
        return None
    seats: list[Seat] = []
    for _ in range(learners):
        seats += capacity.take(min((f for f in capacity.takers(shape) if f.fits(shape, 1)), key=key), shape)
    return tuple(seats)


def _gently(capacity: FreeCapacity, shape: Shape, learners: int) -> tuple[Seat, ...] | None:
    if learners > 1 and capacity.fit_count(shape, learners) < learners:
        return None
    seats: list[Seat] = []
    for _ in range(learners):
        seat = _gentlest(capacity, shape)
        if seat is None:
            capacity.give(shape, seats)
            return None
        capacity.claim(shape, (seat,))
        seats.append(seat)
    capacity.usual.note(shape, learners)
    return tuple(seats)


def _gentlest(capacity: FreeCapacity, shape: Shape) -> Seat | None:
    known, best, where = capacity.usual.options(shape), None, None
    has_rest = bool(shape.disk_mbps or shape.net_mbps)
    last: State | None = None
    for free in capacity.takers(shape):
        state = free.seen or free.state
        if state == last and not has_rest:
            continue  # same state as the previous node, which goes first
        last, option = state, known.get(state, NOT_LOOKED)
        if option is NOT_LOOKED:
            option = known[state] = capacity.usual.option(state, shape)
        if option is not None and (best is None or option[0] < best[0]) and _has_rest(free, shape):
            best, where = option, free
    if best is None or where is None:
        return None
    return Seat(where.name, _devices(where, shape, best))


def _has_rest(free: NodeCapacity, shape: Shape) -> bool:
    return not (shape.disk_mbps or shape.net_mbps) or free.fits(shape, 1) == 1


def _devices(free: NodeCapacity, shape: Shape, option: Option) -> tuple[str, ...]:
    _, kind, part = option
    if part < WHOLE:
        return (min(d for d, milli in free.parts.items() if milli == part and free.order[d][1] == kind),)
    fitting = [d for name, d in free.devices if (free.takes(shape, d) if kind is None else name == kind)]
    return tuple(fitting[: shape.gpus])
