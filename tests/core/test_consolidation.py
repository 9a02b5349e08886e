"""Consolidation: one running elastic job moves to free a node for a waiting gang, or to fewer nodes, if it pays."""

from __future__ import annotations

import random
from dataclasses import replace

from dlaas_server.core.model.cluster import Node, Seat
from dlaas_server.core.model.resources import Shape, is_kind
from dlaas_server.core.placement.gang_placement import FreeCapacity, free_of, place
from dlaas_server.core.placement.shape import Layout
from dlaas_server.core.placement.topology import Level, level_of
from dlaas_server.core.rebalancing.consolidation import HORIZON_S, PAYS, Movable, Move, Wanted, consolidation, together
from tests.core.builders import node, seats

ONE = Shape(1, 0.0, 0, None, Layout.PACK)
FOUR = Wanted(id="big-9", shape=ONE, learners=4, wait_s=600.0)


def world(nodes: list[Node], *jobs: Movable) -> FreeCapacity:
    capacity = free_of(nodes, ())
    for job in jobs:
        capacity.claim(job.shape, job.seats)
    return capacity


def movable(*held: Seat, cost_s: float = 1.0, left_s: float | None = None, name: str = "small-1") -> Movable:
    return Movable(id=name, shape=ONE, seats=held, cost_s=cost_s, left_s=left_s)


def test_learner_that_fragments_a_node_is_migrated() -> None:
    job = movable(*seats("a", 1))
    capacity = world([node("a", 4), node("b", 1)], job)

    move = consolidation(capacity, [job], FOUR)

    assert move == Move(
        job="small-1", winner="big-9", node="a", seats=(Seat("b", ("b/0",)),), joins=(Seat("b", ("b/0",)),),
        leaves=(Seat("a", ("a/0",)),), cost_gpu_s=1.0, gain_gpu_s=2400.0,
    )  # fmt: skip


def test_no_migration_below_its_cost() -> None:
    job = movable(*seats("a", 1), cost_s=FOUR.wait_s * 4)

    assert consolidation(world([node("a", 4), node("b", 1)], job), [job], FOUR) is None


def test_nearly_finished_job_is_migrated_only_if_it_pays() -> None:
    for left_s, gain in ((0.3, None), (300.0, 1200.0), (900.0, 2400.0)):
        job = movable(*seats("a", 1), left_s=left_s)
        move = consolidation(world([node("a", 4), node("b", 1)], job), [job], FOUR)
        assert (None if move is None else move.gain_gpu_s) == gain


def test_no_migration_for_a_gang_that_fits_already() -> None:
    job = movable(*seats("a", 1))

    assert consolidation(world([node("a", 4), node("b", 4)], job), [job], FOUR) is None


def test_the_replacement_needs_free_devices_first() -> None:
    job = movable(*seats("a", 1))

    assert consolidation(world([node("a", 4)], job), [job], FOUR) is None


def test_a_job_is_not_torn_apart_for_another() -> None:
    job = movable(*seats("a", 2))

    assert consolidation(world([node("a", 5), node("b", 1)], job), [job], FOUR) is None
    assert consolidation(world([node("a", 5), node("b", 2)], job), [job], FOUR) is not None


def test_of_several_the_cheapest_moves() -> None:
    dear, cheap = movable(*seats("a", 1), cost_s=9.0), movable(*seats("b", 1), cost_s=2.0, name="small-2")
    capacity = world([node("a", 4), node("b", 4), node("c", 1)], dear, cheap)

    move = consolidation(capacity, [dear, cheap], FOUR)

    assert move is not None
    assert (move.job, move.node) == ("small-2", "b")


def moved(chance: random.Random) -> bool:
    """Return whether a job is migrated in a random pool; check that this pays for all."""
    pool = [
        (chance.randint(1, 6), chance.choice(["A100", "T4"]), chance.choice("xy")) for _ in range(chance.randint(2, 5))
    ]
    held = [
        (chance.randint(1, 3), chance.randint(1, 2), chance.choice([0.1, 5.0, 500.0]))
        for _ in range(chance.randint(0, 6))
    ]
    learners, kind, wait_s = chance.choice(pool)[0], chance.choice([None, "A100"]), chance.choice([1.0, 900.0])
    nodes = [replace(node(f"n{i}", n, kind=k, cpus=8.0), rack=rack) for i, (n, k, rack) in enumerate(pool)]
    kinds = {d.id: d.kind for one in nodes for d in one.devices}
    capacity = free_of(nodes, ())
    jobs: list[Movable] = []
    for i, (count, gpus, cost_s) in enumerate(held):
        shape = Shape(gpus, 1.0, 0, "T4" if i % 3 == 2 else None, Layout.SPREAD)
        found = place(capacity, shape, count)
        if found is not None:
            jobs.append(Movable(id=f"j-{i}", shape=shape, seats=found, cost_s=cost_s))
    wanted = Wanted(id="w-1", shape=Shape(1, 0.5, 0, kind, Layout.PACK), learners=learners, wait_s=wait_s)
    before = [free.state for free in capacity]

    move = consolidation(capacity, jobs, wanted)

    assert [free.state for free in capacity] == before
    if move is None:
        return False
    job = next(one for one in jobs if one.id == move.job)
    assert capacity.has(job.shape, move.joins)  # its replacements join before anybody leaves
    assert len(move.seats) == len(job.seats)
    assert set(move.seats) == (set(job.seats) - set(move.leaves)) | set(move.joins)
    assert all(new == old for new, old in zip(move.seats, job.seats, strict=True) if old not in move.leaves)
    assert level_of(capacity, move.seats) <= level_of(capacity, job.seats)
    wants_kind = job.shape.gpu_kind
    assert all(wants_kind is None or is_kind(kinds[d], wants_kind) for seat in move.joins for d in seat.devices)
    assert move.gain_gpu_s >= PAYS * move.cost_gpu_s
    capacity.claim(job.shape, move.joins)
    capacity.give(job.shape, move.leaves)
    whole = place(capacity, wanted.shape, wanted.learners)
    assert whole is not None, "the gang starts, and no other job was touched"
    assert len({seat.node for seat in whole}) == 1
    return True


def test_a_move_makes_nothing_worse_in_any_of_many_pools() -> None:
    assert sum(moved(random.Random(seed)) for seed in range(2000)) > 100


# -- for its own sake --------------------------------------------------------------------------------------------------


def test_learners_on_two_nodes_consolidate_on_one() -> None:
    job = movable(*seats("a", 1), *seats("b", 1))
    capacity = world([node("a", 1), node("b", 3)], job)

    move = together(capacity, job)

    assert move is not None
    assert (move.node, move.leaves, move.joins) == ("b", seats("a", 1), (Seat("b", ("b/1",)),))
    assert move.seats == (Seat("b", ("b/1",)), Seat("b", ("b/0",)))


def test_no_consolidation_below_its_cost_or_shortly_before_the_end() -> None:
    for job in (
        movable(*seats("a", 1), *seats("b", 1), cost_s=HORIZON_S),
        movable(*seats("a", 1), *seats("b", 1), cost_s=1.0, left_s=10.0),
    ):
        assert together(world([node("a", 1), node("b", 3)], job), job) is None


def test_live_migration_keeps_at_least_one_learner() -> None:
    job = movable(*seats("a", 1), *seats("b", 1))
    capacity = world([node("a", 1), node("b", 1), node("c", 2)], job)

    assert together(capacity, replace(job, stays=1)) is None
    move = together(capacity, job)
    assert move is not None
    assert move.seats == seats("c", 2)


def test_gang_too_large_for_a_node_consolidates_in_a_rack() -> None:
    job = movable(*seats("a", 2), *seats("b", 1))
    nodes = [replace(node(name, 2), rack=rack) for name, rack in (("a", "1"), ("b", "2"), ("c", "1"))]

    move = together(world(nodes, job), job)

    assert move is not None
    assert (move.level, move.joins) == (Level.RACK, (Seat("c", ("c/0",)),))


def test_devices_that_are_linked_are_closer_than_a_node() -> None:
    one = node("a", 4)
    linked = replace(one, devices=tuple(replace(d, link="xxyy"[d.index]) for d in one.devices))
    job = movable(Seat("a", ("a/1",)), Seat("a", ("a/2",)))

    move = together(world([linked], job), job)

    assert move is not None
    assert (move.level, move.seats) == (Level.LINK, (Seat("a", ("a/1",)), Seat("a", ("a/0",))))


def gathered_in(chance: random.Random) -> bool:
    """Return whether the first job of a random pool consolidates; check that its size and other jobs stay."""
    nodes = [replace(node(f"n{i}", chance.randint(1, 5)), rack=chance.choice("xy")) for i in range(4)]
    capacity = free_of(nodes, ())
    jobs: list[Movable] = []
    for i in range(chance.randint(1, 4)):
        shape = Shape(chance.randint(1, 2), 0.0, 0, None, Layout.SPREAD)
        found = place(capacity, shape, chance.randint(1, 4))
        if found is not None:
            jobs.append(Movable(id=f"j-{i}", shape=shape, seats=found, cost_s=0.1, stays=chance.randint(0, 1)))
    if not jobs:
        return False
    job, before = jobs[0], [free.state for free in capacity]

    move = together(capacity, job)

    assert [free.state for free in capacity] == before
    if move is None:
        return False
    assert capacity.has(job.shape, move.joins)  # free seats, and they join before any learner leaves
    assert len(move.seats) == len(job.seats)
    assert set(move.seats) == (set(job.seats) - set(move.leaves)) | set(move.joins)
    assert sum(seat in job.seats for seat in move.seats) >= job.stays
    assert level_of(capacity, move.seats) == move.level < level_of(capacity, job.seats)
    capacity.claim(job.shape, move.joins)
    capacity.give(job.shape, move.leaves)
    again = together(capacity, replace(job, seats=move.seats))
    assert again is None or again.level < move.level
    return True


def test_consolidation_keeps_sizes_and_never_touches_other_jobs() -> None:
    assert sum(gathered_in(random.Random(seed)) for seed in range(2000)) > 100
