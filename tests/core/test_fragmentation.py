"""Shares of devices, and their fragmentation."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from dlaas_server.core.model.cluster import Seat
from dlaas_server.core.model.resources import WHOLE, Shape
from dlaas_server.core.placement.fragmentation import State, Usual, free_milli, ways
from dlaas_server.core.placement.gang_placement import FreeCapacity, fit_count, free_of, place
from dlaas_server.core.placement.shape import Layout
from tests.core.builders import node

ONE = Shape(1, 0.0, 0, None, Layout.FGD)


def share(milli: int, placement: Layout = Layout.FGD, *, cpus: float = 0.0, kind: str | None = None) -> Shape:
    return Shape(1, cpus, 0, kind, placement, milli=milli)


def usual(*shapes: Shape) -> Usual:
    made = Usual()
    for shape in shapes:
        made.note(shape)
    return made


def state(whole: int, *parts: int, cpus: float = 8.0) -> State:
    return (cpus, 0, (("GPU", whole, tuple(sorted(parts))),))


def total(capacity: FreeCapacity) -> int:
    return sum(free_milli(free.state) for free in capacity)


def test_two_halves_share_one_device() -> None:
    capacity = free_of([node("a", 2)], ())

    first, second = (place(capacity, share(500, layout), 1) for layout in (Layout.PACK, Layout.FGD))

    assert first == second
    assert [device for _, device in capacity[0].devices] == ["a/1"]


def test_share_is_placed_on_the_fullest_device_that_fits() -> None:
    capacity = free_of([node("a", 1), node("b", 1)], ())
    for milli in (300, 800):
        place(capacity, share(milli, Layout.PACK), 1)

    (seat,) = place(capacity, share(200, Layout.PACK), 1) or ()

    assert seat.node == "b"  # full then; a keeps 700


def test_learner_without_cpus_fits_on_a_node_with_too_few() -> None:
    """More CPUs than the node has are taken while a leaving job and its successor both count."""
    capacity = free_of([node("a", 2, cpus=4.0)], ())
    capacity.claim(Shape(0, 6.0, 0, None, Layout.PACK), (Seat("a"),))

    assert fit_count(capacity, ONE, 1) == 1
    assert place(capacity, ONE, 1) == (Seat("a", ("a/0",)),)


def test_a_learner_of_whole_devices_takes_none_that_is_shared() -> None:
    capacity = free_of([node("a", 2)], ())
    place(capacity, share(100), 1)

    assert fit_count(capacity, ONE, 9) == 1
    assert fit_count(capacity, share(300), 9) == 6


def test_a_share_that_is_given_back_makes_the_device_whole() -> None:
    capacity = free_of([node("a", 1)], ())
    seats = place(capacity, share(400), 2) or ()

    capacity.give(share(400), seats[:1])
    assert fit_count(capacity, ONE, 1) == 0
    capacity.give(share(400), seats[1:])
    assert fit_count(capacity, ONE, 1) == 1


def test_too_small_parts_are_lost_for_larger_requests() -> None:
    asked = usual(share(500), ONE)

    assert asked.lost(state(1, 300)) == 300
    assert asked.lost(state(0, 600)) == 300  # of use for one half of those who ask
    assert asked.lost(state(1, cpus=8.0)) == 0


def test_devices_without_cpus_are_lost() -> None:
    assert usual(share(500, cpus=2.0)).lost(state(2, 700, cpus=1.0)) == 2700


def test_a_learner_sits_where_the_fewest_fragments_grow() -> None:
    capacity = free_of([node("a", 4), node("b", 1)], ())
    for _ in range(4):
        capacity.usual.note(replace(ONE, gpus=4))

    (seat,) = place(capacity, ONE, 1) or ()

    assert seat.node == "b"  # a stays whole for those who ask for four


shapes = st.builds(
    lambda milli, gpus, cpus, kind, layout: Shape(1 if milli < WHOLE else gpus, cpus, 0, kind, layout, milli=milli),
    st.sampled_from([100, 250, 300, 500, 700, WHOLE, WHOLE]),
    st.integers(0, 3),
    st.sampled_from([0.0, 1.0, 2.5]),
    st.sampled_from([None, None, "A100", "T4"]),
    st.sampled_from(list(Layout)),
)
steps = st.lists(st.tuples(shapes, st.integers(1, 4)), max_size=25)
pools = st.lists(st.tuples(st.integers(0, 4), st.sampled_from(["A100", "T4"])), min_size=1, max_size=4)


@given(pools, steps)
def test_devices_are_never_overcommitted_and_all_capacity_returns(
    sizes: list[tuple[int, str]], asked: list[tuple[Shape, int]]
) -> None:
    nodes = [node(f"n{i}", devices, cpus=8.0, kind=kind) for i, (devices, kind) in enumerate(sizes)]
    kinds = {d.id: d.kind for one in nodes for d in one.devices}
    capacity = free_of(nodes, ())
    given_out: list[tuple[Shape, tuple[Seat, ...]]] = []
    before = [free.state for free in capacity]
    for shape, learners in asked:
        capacity.usual.note(shape, learners)
        fits, free_before = fit_count(capacity, shape, learners), total(capacity)
        seats = place(capacity, shape, learners)
        assert (seats is not None) == (fits == learners)
        if seats is None:
            assert total(capacity) == free_before
            continue
        given_out.append((shape, seats))
        assert len(seats) == learners
        assert all(len(seat.devices) == shape.gpus for seat in seats)
        assert all(shape.gpu_kind in (None, kinds[d]) for seat in seats for d in seat.devices)
        used: dict[str, int] = {}
        for held, its in given_out:
            for seat in its:
                for device in seat.devices:
                    used[device] = used.get(device, 0) + held.milli
        assert all(milli <= WHOLE for milli in used.values())
        assert total(capacity) == WHOLE * len(kinds) - sum(used.values())
        assert all(free.cpus >= -1e-9 for free in capacity)
    for shape, held_seats in given_out:
        capacity.give(shape, held_seats)
    assert [free.state for free in capacity] == before


@given(st.integers(0, 4), st.lists(st.integers(1, 999), max_size=4), st.lists(shapes, min_size=1, max_size=6))
def test_fragmentation_is_free_capacity_that_fits_no_request(whole: int, parts: list[int], asked: list[Shape]) -> None:
    asked = [replace(shape, gpu_kind=None, gpus=max(shape.gpus, 1)) for shape in asked]
    known, here = usual(*asked), state(whole, *parts)

    assert -1e-6 <= known.lost(here) <= free_milli(here) + 1e-6
    if not any(ways(here, shape) for shape in asked):
        assert abs(known.lost(here) - free_milli(here)) < 1e-6
