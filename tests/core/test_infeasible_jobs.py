"""Jobs that an idle pool could not run (a node is out of service): they wait and block no other job."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dlaas_server.core.model.cluster import Node, Seat
from dlaas_server.core.model.job import Job
from dlaas_server.core.model.pool import Known, Pool
from dlaas_server.core.placement.gang_placement import free_of, shape_of
from dlaas_server.core.planning.plan import plan
from dlaas_server.core.scheduling.lateness import Lateness
from dlaas_server.core.scheduling.ordering import ORDERS
from dlaas_server.core.scheduling.scheduler import Policy
from jupyter_dlaas.wire.protocol import Elastic
from tests.core.builders import job, node, pool, seats, training
from tests.core.test_pruning import SHARES, decided, long_queue
from tests.selection import each_nth

NOW_S = 1e6
FIT = 4
LONG_S = 1e7


def broken(one: Node) -> Node:
    return replace(one, devices=tuple(replace(d, out_of_service="Xid 79") for d in one.devices))


def picture(late: Lateness, *others: Job, nodes: tuple[Node, ...] = ()) -> Pool:
    """Return a gang of eight on a pool with four devices in service, late by this much beyond 100 s; and others."""
    large = job(1, (8, 8), submitted_s=NOW_S - 100.0 * (late or 0.5) - 1.0)
    of = nodes or (node("n0"), replace(node("n1"), cordoned="cordoned by ana"))
    there = pool(of, large, *others)
    return replace(there, known={name: Known(length_s=10.0, restart_s=1.0) for name in there.jobs})


@pytest.mark.parametrize("late", Lateness)
@pytest.mark.parametrize("order", ORDERS)
def test_others_start_while_it_waits_however_long_it_did(order: str, late: Lateness) -> None:
    others = [job(number, submitted_s=NOW_S - 1.0) for number in range(2, 2 + FIT)]
    policy = Policy(order=order, age_s=100.0)
    there = picture(late, *others)
    long = {one.id: Known(length_s=LONG_S) for one in others}

    for known in (there.known, {**there.known, **long}):
        found = plan(replace(there, known=known), NOW_S, policy)
        assert [start.job for start in found.starts] == [one.id for one in others]


def test_reason_names_the_missing_node_instead_of_other_jobs() -> None:
    (wait,) = plan(picture(Lateness.LATE, training(job(2), *seats("n0", 1))), NOW_S).waits
    (small,) = plan(pool([broken(node("n0")), node("n1", 1)], job(1, gpus=2)), NOW_S).waits
    (cpus,) = plan(pool([node("n0", cpus=2.0), node("n1", cpus=2.0)], job(1, (2, 2), cpus=3.0)), NOW_S).waits

    assert wait.reason == "Needs 8 GPUs at once; the pool has 4 in service."
    assert small.reason == "Needs 2 GPUs; the pool has 1 in service."
    assert cpus.reason == "Needs 2 learners at once, each with 1 GPU, 3 CPUs; 0 would fit on the devices in service."


def test_no_preemption_for_devices_out_of_service() -> None:
    lower = replace(training(job(2, gpus=2), Seat("n0", ("n0/0", "n0/1"))), checkpoint_step=5)
    there = pool([broken(node("n0", 2)), node("n1", 1)], lower, job(3, gpus=2, priority=1), job(4, priority=1))

    found = plan(there, NOW_S)

    assert found.preempts == ()
    assert [start.job for start in found.starts] == ["job-4"]


def test_reservation_returns_with_the_node() -> None:
    policy = Policy(age_s=100.0)
    runs = training(job(2, submitted_s=5.0), *seats("n0", 1))
    there = picture(Lateness.OVERDUE, runs, job(3, submitted_s=NOW_S - 1.0))
    assert [start.job for start in plan(there, NOW_S, policy).starts] == ["job-3"]

    back = replace(there, nodes=(node("n0"), node("n1")))

    assert plan(back, NOW_S, policy).starts == ()


@pytest.mark.parametrize("elastic", [Elastic.MANUAL, Elastic.AUTO])
def test_running_job_grows_meanwhile(elastic: Elastic) -> None:
    grows = training(job(2, (1, 4), elastic=elastic, submitted_s=5.0), *seats("n0", 1))

    found = plan(picture(Lateness.STARVING, replace(grows, checkpoint_step=5)), NOW_S, Policy(age_s=100.0))

    assert [(one.job, len(one.seats)) for one in found.resizes] == [("job-2", 4)]


def test_oldest_starving_job_that_could_fit_has_the_turn() -> None:
    starving = job(2, (4, 4), submitted_s=NOW_S - 100.0 * Lateness.STARVING - 0.5)
    higher = job(3, priority=1, submitted_s=NOW_S - 1.0)

    found = plan(picture(Lateness.STARVING, starving, higher), NOW_S, Policy(age_s=100.0))

    assert [start.job for start in found.starts] == ["job-2"]


def unfit(there: Pool, policy: Policy) -> set[str]:
    capacity = free_of(there.nodes, ())
    return {
        name
        for name, one in there.jobs.items()
        if one.waits
        and capacity.fit_count(shape_of(one, policy.placement), one.spec.learners_min) < one.spec.learners_min
    }


@pytest.mark.parametrize("order", each_nth([*ORDERS], 2))
@given(st.integers(0, 1 << 32), st.booleans(), st.booleans())
def test_it_is_decided_as_if_it_were_not_there(order: str, seed: int, preempts: bool, is_broken: bool) -> None:
    policy = Policy(order=order, preempts=preempts, shares=SHARES)
    there, now_s = long_queue(seed, policy)
    if is_broken:
        there = replace(there, nodes=(broken(there.nodes[0]), *there.nodes[1:]))
    gone = unfit(there, policy)
    left = replace(there, jobs={name: one for name, one in there.jobs.items() if name not in gone})

    assert decided(plan(there, now_s, policy)) == decided(plan(left, now_s, policy))
