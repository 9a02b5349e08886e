"""Sizes of running jobs: growth, and shrinking for others."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from dlaas_server.core.elasticity.allocation import Gang, sized
from dlaas_server.core.model.cluster import Node, Seat
from dlaas_server.core.model.resources import Shape
from dlaas_server.core.placement.free_capacity import FreeCapacity, free_of
from dlaas_server.core.placement.gang_placement import place
from dlaas_server.core.placement.shape import Layout
from tests.core.builders import node, seats

ONE = Shape(1, 0.0, 0, None, Layout.PACK)
LINEAR = {k: float(k) for k in range(1, 17)}


def amdahl(serial: float, most: int = 16) -> dict[int, float]:
    return {k: k / (1 + serial * (k - 1)) for k in range(1, most + 1)}


def gang(number: int = 1, has: tuple[Seat, ...] = (), **fields: object) -> Gang:
    return replace(Gang(id=f"g{number}", number=number, shape=ONE, rates=LINEAR, seats=has), **fields)  # type: ignore[arg-type]


def left(nodes: Sequence[Node], gangs: Sequence[Gang]) -> FreeCapacity:
    capacity = free_of(nodes, ())
    for one in gangs:
        capacity.claim(one.shape, one.seats)
    return capacity


def sizes(nodes: Sequence[Node], gangs: Sequence[Gang], waiting: Sequence[Gang] = ()) -> dict[str, int]:
    changes = sized(left(nodes, gangs), gangs, waiting)
    return {one.id: len(changes.get(one.id, one.seats)) for one in (*gangs, *waiting)}


def test_waiting_job_gets_its_minimum_size_from_a_running_one() -> None:
    running = gang(1, seats("n1", 4), least=1)

    assert sizes([node(devices=4)], [running], [gang(2, least=2)]) == {"g1": 2, "g2": 2}


def test_job_with_the_smallest_loss_shrinks() -> None:
    scales = gang(1, seats("n1", 2))
    stalls = gang(2, seats("n2", 2), rates=amdahl(0.8))

    assert sizes([node("n1", 2), node("n2", 2)], [scales, stalls], [gang(3)]) == {"g1": 2, "g2": 1, "g3": 1}


def test_lower_priority_takes_nothing_from_a_higher_one() -> None:
    running = gang(1, seats("n1", 4), priority=1)

    assert sizes([node(devices=4)], [running], [gang(2)]) == {"g1": 4, "g2": 0}


def test_no_job_shrinks_if_that_would_not_suffice() -> None:
    running = gang(1, seats("n1", 4), least=3)

    assert sizes([node(devices=4)], [running], [gang(2, least=2)]) == {"g1": 4, "g2": 0}


def test_free_devices_go_where_they_gain_the_most() -> None:
    scales, stalls = gang(1, seats("n1", 1)), gang(2, seats("n2", 1), rates=amdahl(0.5))

    assert sizes([node("n1", 3), node("n2", 1)], [scales, stalls]) == {"g1": 3, "g2": 1}


def test_of_equals_the_one_nearest_to_its_end_grows() -> None:
    long, short = gang(1, seats("n1", 1), left_s=9e4), gang(2, seats("n2", 1), left_s=9e3)

    assert sizes([node("n1", 2), node("n2", 2)], [long, short])["g2"] > 2


def test_nearly_finished_job_is_not_resized() -> None:
    assert sizes([node(devices=4)], [gang(1, seats("n1", 1), left_s=20.0, cost_s=30.0)]) == {"g1": 1}


def test_devices_move_only_for_a_clear_gain() -> None:
    holds, wants = gang(1, seats("n1", 3)), gang(2, seats("n2", 1))

    assert sizes([node("n1", 3), node("n2", 1)], [holds, wants]) == {"g1": 2, "g2": 2}
    near = gang(1, seats("n1", 3)), gang(2, seats("n2", 2))
    assert sizes([node("n1", 3), node("n2", 2)], near) == {"g1": 3, "g2": 2}


def test_move_whose_cost_exceeds_its_gain_is_skipped() -> None:
    holds, wants = gang(1, seats("n1", 3), cost_s=400.0), gang(2, seats("n2", 1), cost_s=400.0)

    assert sizes([node("n1", 3), node("n2", 1)], [holds, wants]) == {"g1": 3, "g2": 1}


def test_a_size_at_which_it_is_slower_is_passed_over() -> None:
    rates = {1: 1.0, 2: 0.9, 4: 3.0}

    assert sizes([node(devices=2)], [gang(1, seats("n1", 1), rates=rates)]) == {"g1": 1}
    assert sizes([node(devices=4)], [gang(1, seats("n1", 1), rates=rates)]) == {"g1": 4}


def test_learners_leave_the_node_where_they_are_few() -> None:
    spread = gang(1, (*seats("n2", 1), *seats("n1", 3)), least=3)

    assert sized(left([node("n1", 3), node("n2", 1)], [spread]), [spread], [gang(2)])["g1"] == seats("n1", 3)


def test_resized_job_is_repacked_onto_fewer_nodes() -> None:
    nodes = [node("n1", 2), node("n2", 4)]
    found = sized(left(nodes, [one := gang(1, seats("n1", 2), rates={1: 1.0, 2: 2.0, 4: 4.0}, may_move=True)]), [one])

    assert {seat.node for seat in found["g1"]} == {"n2"}


def test_learners_without_devices_shrink_and_grow_by_their_cpus() -> None:
    shape = Shape(0, 1.0, 0, None, Layout.PACK)
    running = gang(1, (Seat("n1"),) * 4, shape=shape)

    assert sizes([node(devices=0, cpus=4.0)], [running], [gang(2, shape=shape, rates={1: 1.0})]) == {"g1": 3, "g2": 1}


# -- what always holds ------------------------------------------------------------------------------------------------

curves = st.one_of(
    st.floats(0.0, 1.0).map(amdahl),
    st.lists(st.floats(0.1, 10.0), min_size=16, max_size=16).map(lambda found: dict(enumerate(found, start=1))),
)


@st.composite
def pictures(draw: st.DrawFn) -> tuple[list[Node], list[Gang], list[Gang]]:
    nodes = [node(f"n{i}", draw(st.integers(1, 6))) for i in range(draw(st.integers(1, 4)))]
    capacity, gangs = free_of(nodes, ()), []
    for number in range(draw(st.integers(1, 8))):
        least = draw(st.integers(1, 4))
        size = draw(st.integers(least, 6))
        made = gang(
            number,
            place(capacity, ONE, size) or () if draw(st.booleans()) else (),
            least=least,
            rates={k: rate for k, rate in draw(curves).items() if k >= least},
            priority=draw(st.integers(0, 2)),
            left_s=draw(st.none() | st.floats(0.0, 1e5)),
            cost_s=draw(st.sampled_from([0.0, 1.0, 30.0])),
            may_move=draw(st.booleans()),
        )
        gangs.append(made)
    waiting = sorted((one for one in gangs if not one.seats), key=lambda g: (-g.priority, g.number))
    return nodes, [one for one in gangs if one.seats], waiting


@given(pictures())
def test_sizes_stay_within_bounds_and_devices_are_exclusive(
    picture: tuple[list[Node], list[Gang], list[Gang]],
) -> None:
    nodes, running, waiting = picture
    changes = sized(left(nodes, running), running, waiting)
    now = {one.id: changes.get(one.id, one.seats) for one in (*running, *waiting)}
    held = Counter(device for there in now.values() for seat in there for device in seat.devices)

    assert all(count == 1 for count in held.values())
    assert set(held) <= {device.id for one in nodes for device in one.devices}
    for one in running:
        assert len(now[one.id]) in one.rates
        assert len(now[one.id]) >= one.least
    for one in waiting:
        assert not now[one.id] or len(now[one.id]) >= one.least


@given(pictures())
def test_a_plan_that_is_applied_and_planned_again_changes_nothing(
    picture: tuple[list[Node], list[Gang], list[Gang]],
) -> None:
    nodes, running, waiting = picture
    changes = sized(left(nodes, running), running, waiting)
    after = [replace(one, seats=changes.get(one.id, one.seats)) for one in (*running, *waiting)]
    runs, waits = [one for one in after if one.seats], [one for one in after if not one.seats]

    assert sized(left(nodes, runs), runs, waits) == {}


@given(pictures(), st.randoms())
def test_the_order_of_a_listing_decides_nothing(picture: tuple[list[Node], list[Gang], list[Gang]], chance) -> None:  # type: ignore[no-untyped-def]
    nodes, running, waiting = picture
    shuffled, mixed = running[:], nodes[:]
    chance.shuffle(shuffled)
    chance.shuffle(mixed)

    assert sized(left(nodes, running), running, waiting) == sized(left(mixed, shuffled), shuffled, waiting)


@given(pictures())
def test_no_job_waits_while_an_equal_one_could_shrink_enough(
    picture: tuple[list[Node], list[Gang], list[Gang]],
) -> None:
    nodes, running, waiting = picture
    changes = sized(left(nodes, running), running, waiting)
    now = {one.id: changes.get(one.id, one.seats) for one in (*running, *waiting)}
    free = sum(len(one.devices) for one in nodes) - sum(map(len, now.values()))
    for one in waiting:
        if not now[one.id]:
            others = [o for o in (*running, *waiting) if now[o.id] and o.priority <= one.priority]
            assert one.least > free + sum(len(now[o.id]) - o.least for o in others)
