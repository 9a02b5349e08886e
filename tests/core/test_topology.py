"""Locality of gangs: close seats first, more distant ones after a wait."""

from __future__ import annotations

from dataclasses import replace
from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dlaas_server.core.model.cluster import Node, Seat
from dlaas_server.core.model.job import Profile
from dlaas_server.core.model.resources import Shape
from dlaas_server.core.placement.gang_placement import FreeCapacity, fit_count, free_of, place
from dlaas_server.core.placement.shape import Layout, relaxed
from dlaas_server.core.placement.topology import FIRST_S, Level, allowed, level_of, levels, relaxes_after_s
from tests.core.builders import node

ONE = Shape(1, 0.0, 0, None, Layout.TOPOLOGY)


def at(name: str, devices: int, area: str = "", rack: str = "", *, groups: int = 0) -> Node:
    """Return a node in a rack, with its devices in equal link groups."""
    made = node(name, devices)
    linked = [replace(d, link=f"g{d.index * groups // devices}" if groups else "") for d in made.devices]
    return replace(made, area=area, rack=rack, devices=tuple(linked))


def busy(nodes: list[Node], **taken: int) -> FreeCapacity:
    """Return the capacity with these numbers of devices in use."""
    capacity = free_of(nodes, ())
    for name, count in taken.items():
        capacity.claim(ONE, tuple(Seat(name, (f"{name}/{i}",)) for i in range(count)))
    return capacity


def names(seats: tuple[Seat, ...] | None) -> list[str] | None:
    return None if seats is None else [seat.node for seat in seats]


TWO_RACKS = [at("a", 4, "x", "1"), at("b", 4, "x", "1"), at("c", 4, "x", "2"), at("d", 4, "y", "3")]


def test_gang_waits_for_one_node_then_takes_a_rack() -> None:
    capacity = busy(TWO_RACKS, a=1, b=1, c=1, d=1)

    assert place(capacity, ONE, 4, 0.0) is None
    assert place(capacity, ONE, 4, FIRST_S - 1) is None
    assert set(names(place(capacity, ONE, 4, FIRST_S)) or ()) == {"a", "b"}


def test_each_next_level_is_waited_for_twice_as_long() -> None:
    assert [relaxes_after_s(steps) for steps in range(4)] == [0, 120, 360, 840]


def test_gang_without_a_rack_takes_an_area_then_any_nodes() -> None:
    nodes = [at("a", 4, "x", "1"), at("b", 4, "x", "2"), at("c", 4, "y", "3")]
    capacity = busy(nodes, a=2, b=2, c=2)

    assert place(capacity, ONE, 4, relaxes_after_s(2) - 1) is None
    assert names(place(capacity, ONE, 4, relaxes_after_s(2))) == ["a", "a", "b", "b"]
    capacity = busy(nodes, a=2, b=3, c=2)
    assert place(capacity, ONE, 4, relaxes_after_s(3) - 1) is None
    assert set(names(place(capacity, ONE, 4, relaxes_after_s(3))) or ()) == {"a", "c"}


def test_no_wait_for_locality_that_an_empty_pool_lacks() -> None:
    assert set(names(place(busy(TWO_RACKS), ONE, 8, 0.0)) or ()) == {"a", "b"}
    assert set(names(place(busy(TWO_RACKS), ONE, 12, 0.0)) or ()) == {"a", "b", "c"}
    assert len(place(busy(TWO_RACKS), ONE, 16, 0.0) or ()) == 16


def test_a_gang_that_waits_holds_nothing() -> None:
    capacity = busy(TWO_RACKS, a=1, b=1, c=1, d=1)

    place(capacity, ONE, 4, 0.0)

    assert capacity.devices == 12


def test_devices_that_are_linked_go_together() -> None:
    capacity = busy([at("a", 8, groups=2), at("b", 4, groups=2)], a=1)

    seats = place(capacity, ONE, 3, 0.0) or ()

    assert level_of(capacity, seats) is Level.LINK
    assert {d for seat in seats for d in seat.devices} == {"a/1", "a/2", "a/3"}  # the tightest group that takes three


def test_packing_takes_the_tightest_rack_at_once() -> None:
    capacity = busy(TWO_RACKS, a=1, b=1, c=1, d=1)

    assert set(names(place(capacity, replace(ONE, placement=Layout.PACK), 5)) or ()) == {"a", "b"}


def test_a_pool_without_racks_has_two_levels() -> None:
    assert levels(free_of([node("a", 4), node("b", 4)], ())) == (Level.NODE, Level.POOL)


@pytest.mark.parametrize(
    ("share", "skew", "layout"),
    [
        (0.01, None, Layout.PACK),
        (0.30, None, Layout.TOPOLOGY),
        (None, 0.1, Layout.PACK),
        (None, 0.7, Layout.TOPOLOGY),
        (0.30, 0.1, Layout.TOPOLOGY),
        (None, None, Layout.TOPOLOGY),
    ],
)
def test_gang_with_little_communication_does_not_wait_for_locality(
    share: float | None, skew: float | None, layout: Layout
) -> None:
    profile = Profile(communication=share, skew=skew)

    assert relaxed(Layout.TOPOLOGY, profile) is layout
    assert relaxed(Layout.SPREAD, profile) is Layout.SPREAD


pools = st.lists(
    st.tuples(st.integers(0, 6), st.sampled_from("xy"), st.sampled_from("12"), st.sampled_from([0, 0, 2])),
    min_size=1,
    max_size=6,
)


@given(pools, st.lists(st.integers(0, 6), min_size=6, max_size=6), st.integers(1, 12), st.integers(1, 2))
def test_seats_are_never_further_apart_than_allowed(
    sizes: list[tuple[int, str, str, int]], taken: list[int], learners: int, gpus: int
) -> None:
    nodes = [at(f"n{i}", n, area, rack, groups=g) for i, (n, area, rack, g) in enumerate(sizes)]
    used = {f"n{i}": min(count, sizes[i][0]) for i, count in enumerate(taken[: len(sizes)])}
    shape = replace(ONE, gpus=gpus)
    worst = -1
    for steps in range(5):
        capacity = busy(nodes, **used)
        free_before, fits = capacity.devices, fit_count(capacity, shape, learners)
        limit = allowed(capacity, shape, learners, relaxes_after_s(steps))
        seats = place(capacity, shape, learners, relaxes_after_s(steps))
        if seats is None:
            assert capacity.devices == free_before
            assert worst < 0, "who fits fits later, too"
            continue
        devices = [d for seat in seats for d in seat.devices]
        assert len(seats) == learners == fits
        assert len(devices) == len(set(devices)) == learners * gpus == free_before - capacity.devices
        assert level_of(capacity, seats) <= limit
        worst = level_of(capacity, seats)
    assert (place(busy(nodes, **used), shape, learners, inf) is not None) == (
        fit_count(busy(nodes, **used), shape, learners) == learners
    )
