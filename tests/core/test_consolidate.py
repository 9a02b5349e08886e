"""One running elastic job is moved where that frees a node for a gang that waits, and pays."""

from __future__ import annotations

import random
from dataclasses import replace

from dlaas_server.core.consolidate import PAYS, Movable, Move, Wanted, consolidation
from dlaas_server.core.model import Node, Seat
from dlaas_server.core.place import Frees, free_of, place
from dlaas_server.core.shapes import Layout, Shape, is_kind
from dlaas_server.core.topology import level_of
from tests.core.builders import node, seats

ONE = Shape(1, 0.0, 0, None, Layout.PACK)
FOUR = Wanted(id="big-9", shape=ONE, learners=4, wait_s=600.0)


def world(nodes: list[Node], *jobs: Movable) -> Frees:
    frees = free_of(nodes, ())
    for job in jobs:
        frees.claim(job.shape, job.seats)
    return frees


def movable(*held: Seat, cost_s: float = 1.0, left_s: float | None = None, name: str = "small-1") -> Movable:
    return Movable(id=name, shape=ONE, seats=held, cost_s=cost_s, left_s=left_s)


def test_a_learner_that_keeps_a_node_from_being_whole_goes_elsewhere() -> None:
    job = movable(*seats("a", 1))
    frees = world([node("a", 4), node("b", 1)], job)

    move = consolidation(frees, [job], FOUR)

    assert move == Move(
        job="small-1", winner="big-9", node="a", seats=(Seat("b", ("b/0",)),), joins=(Seat("b", ("b/0",)),),
        leaves=(Seat("a", ("a/0",)),), cost_gpu_s=1.0, gain_gpu_s=2400.0,
    )  # fmt: skip


def test_nobody_is_moved_for_less_than_it_costs() -> None:
    job = movable(*seats("a", 1), cost_s=FOUR.wait_s * 4)

    assert consolidation(world([node("a", 4), node("b", 1)], job), [job], FOUR) is None


def test_nobody_is_moved_who_ends_before_the_gang_would_start_anyway() -> None:
    job = movable(*seats("a", 1), left_s=300.0)

    assert consolidation(world([node("a", 4), node("b", 1)], job), [job], FOUR) is None


def test_nobody_is_moved_for_a_gang_that_fits_already() -> None:
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
    frees = world([node("a", 4), node("b", 4), node("c", 1)], dear, cheap)

    move = consolidation(frees, [dear, cheap], FOUR)

    assert move is not None
    assert (move.job, move.node) == ("small-2", "b")


def moved(chance: random.Random) -> bool:
    """Whether somebody is moved in a random pool; if so, for everybody's good."""
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
    frees = free_of(nodes, ())
    jobs: list[Movable] = []
    for i, (count, gpus, cost_s) in enumerate(held):
        shape = Shape(gpus, 1.0, 0, "T4" if i % 3 == 2 else None, Layout.SPREAD)
        found = place(frees, shape, count)
        if found is not None:
            jobs.append(Movable(id=f"j-{i}", shape=shape, seats=found, cost_s=cost_s))
    wanted = Wanted(id="w-1", shape=Shape(1, 0.5, 0, kind, Layout.PACK), learners=learners, wait_s=wait_s)
    before = [free.state for free in frees]

    move = consolidation(frees, jobs, wanted)

    assert [free.state for free in frees] == before
    if move is None:
        return False
    job = next(one for one in jobs if one.id == move.job)
    assert frees.has(job.shape, move.joins)  # its replacements join before anybody leaves
    assert len(move.seats) == len(job.seats)
    assert set(move.seats) == (set(job.seats) - set(move.leaves)) | set(move.joins)
    assert all(new == old for new, old in zip(move.seats, job.seats, strict=True) if old not in move.leaves)
    assert level_of(frees, move.seats) <= level_of(frees, job.seats)
    wants_kind = job.shape.gpu_kind
    assert all(wants_kind is None or is_kind(kinds[d], wants_kind) for seat in move.joins for d in seat.devices)
    assert move.gain_gpu_s >= PAYS * move.cost_gpu_s
    frees.claim(job.shape, move.joins)
    frees.give(job.shape, move.leaves)
    whole = place(frees, wanted.shape, wanted.learners)
    assert whole is not None, "the gang starts, and nobody else was touched"
    assert len({seat.node for seat in whole}) == 1
    return True


def test_a_move_makes_nothing_worse_in_any_of_many_pools() -> None:
    assert sum(moved(random.Random(seed)) for seed in range(2000)) > 100
