"""Preemption: protection of running jobs, and the choice of victims."""

from __future__ import annotations

from dlaas_server.core.placement.free_capacity import FreeCapacity
from dlaas_server.core.scheduling.fair_share import FairShare
from dlaas_server.core.scheduling.gang_request import GangRequest
from dlaas_server.core.scheduling.ordering import new_order
from dlaas_server.core.scheduling.policy import Policy, Share
from dlaas_server.core.scheduling.preemption import Preemption, victims_for
from dlaas_server.core.scheduling.running_set import RunningSet
from dlaas_server.core.scheduling.starvation_guard import StarvationGuard
from dlaas_server.core.scheduling.timers import RETRY, VICTIM, Timers
from tests.core.scheduler_parts import capacity, gang, running


def preemption_of(
    free: FreeCapacity, timers: Timers, *jobs: GangRequest, order: str = "las", now_s: float = 0.0, **fields: object
) -> Preemption:
    policy, made = Policy(order=order, **fields), new_order(order)  # type: ignore[arg-type]
    fair_share = FairShare(policy.shares) if order == "fair" else None
    running_jobs = RunningSet(tracks_nodes=False)
    guard = StarvationGuard(policy, made, timers)
    preemption = Preemption(free, policy, made, running_jobs, guard, timers, fair_share)
    for job in jobs:
        running_jobs.add(job, now_s)
        if fair_share is not None:
            fair_share.add(job)
        preemption.see_priority(job.priority, now_s)
        preemption.watch(job, now_s)
    return preemption


def test_victims_are_the_shortest_sufficient_prefix_on_useful_nodes() -> None:
    free = capacity(2, 4)
    small, large = running(gang(0, gpus=2), free), running(gang(1, gpus=4), free)

    assert victims_for(gang(9, gpus=4), free, [small, large]) == [large]
    assert victims_for(gang(9, gpus=2), free, [small, large]) == [small]
    assert victims_for(gang(9, 3, gpus=4), free, [small, large]) == []


def test_running_job_is_protected_for_multiples_of_its_restart_cost() -> None:
    free, timers = capacity(1), Timers()
    job = running(gang(0, restart_s=3.0), free)
    preemption = preemption_of(free, timers, job)

    assert not job.is_victim
    assert (VICTIM, job) in list(timers.due(10 * 3.0))
    preemption.end_protection(job)
    assert preemption.preempt_for(gang(1, priority=1), 30.0) == (job.seats, [job])


def test_higher_priority_preempts_the_youngest_job_of_the_lowest() -> None:
    free, timers = capacity(3), Timers()
    jobs = [running(gang(number, priority=priority), free) for number, priority in ((0, 1), (1, 0), (2, 0))]
    jobs[2].began_s = 1.0
    preemption = preemption_of(free, timers, *jobs, order="fifo-skip", now_s=5.0)

    seats, victims = preemption.preempt_for(gang(9, priority=1), 5.0)

    assert (seats, victims) == (jobs[2].seats, [jobs[2]])


def test_orders_by_age_preempt_no_equal_priority() -> None:
    free, timers = capacity(1), Timers()
    job = running(gang(0), free)
    preemption = preemption_of(free, timers, job, order="fifo-skip")

    assert not preemption.is_possible
    assert preemption.preempt_for(gang(1), 5.0) == (None, [])
    assert job.seats


def test_patience_comes_before_preemption_by_rank() -> None:
    free, timers = capacity(1), Timers()
    preemption = preemption_of(free, timers)
    request = gang(1, restart_s=2.0)

    assert not preemption.has_been_patient(request, 50.0)
    assert list(timers.due(100.0)) == [(RETRY, request)]
    assert preemption.has_been_patient(request, 100.0)


def test_queue_within_its_guarantee_reclaims_from_the_youngest_borrower() -> None:
    free, timers, shares = capacity(3), Timers(), {"a": Share(guaranteed=1), "b": Share(guaranteed=1)}
    jobs = [running(gang(number, queue="b"), free) for number in range(3)]
    preemption = preemption_of(free, timers, *jobs, order="fair", shares=shares)

    seats, victims = preemption.preempt_for(gang(9, queue="a"), 5.0)

    assert (seats, victims) == (jobs[2].seats, [jobs[2]])
    assert preemption.preempt_for(gang(9, 2, queue="a"), 5.0) == (None, [])
