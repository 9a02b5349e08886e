"""Pruning of thousands of waiting jobs: decisions are the same as without it."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dlaas_server.core.model.job import Job
from dlaas_server.core.model.pool import Known, Pool
from dlaas_server.core.planning.decisions import Plan
from dlaas_server.core.planning.plan import plan
from dlaas_server.core.planning.pruning import pruned
from dlaas_server.core.scheduling.gang_request import length_level
from dlaas_server.core.scheduling.ordering import ORDERS
from dlaas_server.core.scheduling.policy import Share
from dlaas_server.core.scheduling.scheduler import Policy
from jupyter_dlaas.wire.protocol import Elastic
from tests.core.builders import carried_out, job, node, pool, seats, training
from tests.selection import each_nth

LENGTHS = (None, 30.0, 3000.0, 40_000.0)
SHARES = {"a": Share(guaranteed=3), "b": Share(weight=2.0)}


def some(chance: Random, first: int, many: int, now_s: float) -> tuple[list[Job], dict[str, Known]]:
    """Jobs of a few kinds, submitted before now in the order of their numbers; and what is known of each."""
    came = sorted(now_s - chance.choice([0.0, 1.0, 1e3, 1e5, 1e6]) * chance.random() for _ in range(many))
    kinds = [_kind(chance) for _ in range(chance.randint(1, 3))]
    jobs, known = [], {}
    for number, submitted_s in enumerate(came, start=first):
        like, its = chance.choice(kinds)
        one = replace(like, id=f"job-{number}", number=number, submitted_s=submitted_s)
        jobs.append(one)
        known[one.id] = its if chance.random() < 0.5 else _another(its, chance)
    return jobs, known


def _kind(chance: Random) -> tuple[Job, Known]:
    least, more = chance.choice([1, 1, 2, 3]), chance.choice([0, 0, 1, 3])
    like = job(
        0,
        (least, least + more),
        gpus=chance.choice([1, 1, 2]),
        wish=least + more,
        priority=chance.choice([0, 0, 0, 1]),
        elastic=chance.choice([Elastic.MANUAL, Elastic.AUTO, Elastic.OFF]),
    )
    spec = replace(like.spec, queue=chance.choice("ab"), spot=chance.random() < 0.2)
    length_s = chance.choice(LENGTHS)
    return replace(like, spec=spec), Known(length_s=length_s, usual_s=length_s, restart_s=chance.choice([0.0, 3.0]))


def _another(known: Known, chance: Random) -> Known:
    """Return the same knowledge for a job of another length."""
    length_s = (known.length_s or 1000.0) * chance.choice([0.3, 0.6, 1.0, 2.0])
    mean_s = length_s * chance.choice([0.1, 1.0, 10.0]) if chance.random() < 0.5 else None
    return replace(known, length_s=length_s, usual_s=length_s * chance.choice([0.3, 1.0, 3.0]), mean_s=mean_s)


def long_queue(seed: int, policy: Policy) -> tuple[Pool, float]:
    """Return a pool with running jobs, requeued jobs, and many waiting ones."""
    chance = Random(seed)
    nodes = [node(f"n{i}", chance.randint(1, 5)) for i in range(chance.randint(1, 2))]
    now_s = 2e6
    jobs, known = some(chance, 1, chance.randint(0, 6), now_s - 5e5)
    picture = replace(pool(nodes, *jobs), known=known)
    for _ in range(chance.randint(0, 2)):
        picture = carried_out(picture, now_s - 5e5, policy)
    jobs, more = some(chance, 100, chance.randint(30, 90), now_s)
    picture = replace(picture, jobs={**picture.jobs, **{one.id: one for one in jobs}}, known=known | more)
    if chance.random() < 0.3:  # some leave, and some have just made room
        picture = carried_out(picture, now_s - 1.0, policy)
    if chance.random() < 0.3:
        picture = replace(picture, nodes=(replace(picture.nodes[0], cordoned="cordoned by ana"), *picture.nodes[1:]))
    return picture, now_s


def decided(found: Plan) -> tuple[object, ...]:
    """Return the decisions, without places of waiting jobs and the next wake-up."""
    return found.starts, found.preempts, found.resizes, tuple(wait for wait in found.waits if not wait.place)


@pytest.mark.parametrize("order", each_nth([*ORDERS], 2))
@given(st.integers(0, 1 << 32), st.booleans())
def test_jobs_behind_enough_equals_do_not_change_the_plan(order: str, seed: int, preempts: bool) -> None:
    policy = Policy(order=order, preempts=preempts, shares=SHARES)
    picture, now_s = long_queue(seed, policy)

    assert decided(plan(pruned(picture, now_s, policy), now_s, policy)) == decided(plan(picture, now_s, policy))


@given(st.integers(0, 1 << 32))
def test_jobs_that_ran_before_are_always_kept(seed: int) -> None:
    picture, now_s = long_queue(seed, Policy())
    close = pruned(picture, now_s, Policy())

    assert all(name in close.jobs for name, one in picture.jobs.items() if one.members or one.queued_s)
    assert pruned(close, now_s, Policy()) == close


def test_per_length_one_more_equal_job_than_fits_is_kept() -> None:
    many = [job(number, submitted_s=float(number)) for number in range(1, 1001)]
    known = {one.id: Known(length_s=100.0 + one.number) for one in many}  # all different, of three levels
    close = pruned(replace(pool([node(devices=4)], *many), known=known), 2e3, Policy())

    assert Counter(length_level(known[name].length_s) for name in close.jobs) == {3: 5, 4: 5, 5: 5}
    assert min(one.number for one in close.jobs.values() if known[one.id].length_s == 101.0) == 1


def test_late_job_keeps_its_reservation_behind_shorter_equals() -> None:
    """It cannot start now either; but who would be in its way then has to wait."""
    now_s = 700_000.0
    there = training(job(1, (2, 2), submitted_s=now_s - 100), *seats("n1", 2))
    late = job(2, (4, 4), submitted_s=1.0)
    shorter = [job(number, (4, 4), submitted_s=now_s - 1) for number in range(3, 9)]
    long = job(9, submitted_s=now_s - 2)
    known = {late.id: Known(length_s=16_000.0), long.id: Known(length_s=1e7), there.id: Known(length_s=1000.0)}
    known |= {one.id: Known(length_s=4200.0 + one.number) for one in shorter}
    picture = replace(pool([node(devices=4)], there, late, *shorter, long), known=known)
    policy = Policy(preempts=False)
    close = pruned(picture, now_s, policy)

    assert late.id in close.jobs
    assert len(close.jobs) < len(picture.jobs)
    assert plan(close, now_s, policy).starts == plan(picture, now_s, policy).starts == ()


def test_jobs_without_devices_are_always_kept() -> None:
    many = [job(number, gpus=0) for number in range(1, 20)]

    assert len(pruned(pool([node()], *many), 1.0, Policy()).jobs) == 19
