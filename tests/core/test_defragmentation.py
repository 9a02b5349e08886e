"""Defragmentation: enough devices are free, but not on one node, so a small job continues elsewhere."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from dlaas_server.core.lifecycle.plan_outcomes import preempted
from dlaas_server.core.model.cluster import Seat
from dlaas_server.core.model.pool import Known
from dlaas_server.core.model.resources import Shape
from dlaas_server.core.placement.gang_placement import FreeCapacity, Layout, free_of, place
from dlaas_server.core.planning.plan import plan
from dlaas_server.core.scheduling.defragmentation import Migration, find_migration
from dlaas_server.core.scheduling.gang_request import GangRequest
from dlaas_server.core.scheduling.scheduler import Policy, Scheduler
from tests.core.builders import job, node, pool, training

HOUR = 3600.0
PATIENT_S = 105.0


def request(number: int, gpus: int, *, length: float | None = HOUR, priority: int = 0, at: float = 0.0) -> GangRequest:
    shape = Shape(gpus, 0.0, 0, None, Layout.PACK)
    return GangRequest(number, shape, 1, at, length, usual_s=length, priority=priority, restart_s=1.0, id=f"j{number}")


def in_pieces(small: GangRequest, policy: Policy | None = None) -> Scheduler:
    """Of two nodes of four devices one has `small`, the other a job of two; a job of four waits since 5 s."""
    on = Scheduler(free_of([node("n0"), node("n1")], ()), policy or Policy())
    first = request(1, 3)
    for one in (first, request(2, 2, priority=1), small):
        on.enqueue(one, 0.0)
        on.decide(0.0)
    on.remove(first, 5.0)
    on.enqueue(request(9, 4, at=5.0), 5.0)
    return on


def numbers(on: Scheduler) -> list[int]:
    return [one.number for one in on.queue_order()]


def test_small_job_moves_for_a_job_needing_a_whole_node() -> None:
    small = request(3, 1)
    on = in_pieces(small)
    assert on.decide(5.0).starts == [], "often a job is about to end"

    found = on.decide(PATIENT_S)

    assert [(one.victim.number, one.winner.number) for one in found.stops] == [(3, 9)]
    assert [(one.number, one.seats[0].node) for one in found.starts] == [(3, "n1"), (9, "n0")]
    assert (small.executed_s, small.since_s) == (PATIENT_S, PATIENT_S + 1.0), "it lost no work, and one restart"
    assert on.decide(PATIENT_S).starts == ()


def test_a_job_that_soon_ends_is_not_moved() -> None:
    assert in_pieces(request(3, 1, length=PATIENT_S + 9.0)).decide(PATIENT_S).stops == []


def test_overrunning_job_is_migrated_at_its_expected_end() -> None:
    small = request(3, 1, length=PATIENT_S + 9.0)
    on = in_pieces(small)
    next_s = on.decide(PATIENT_S).wake_s

    assert next_s is not None
    assert PATIENT_S + 9.0 < next_s < PATIENT_S + 9.01
    assert [(one.victim.number, one.winner.number) for one in on.decide(next_s).stops] == [(3, 9)]


def test_a_job_of_a_higher_priority_is_not_moved() -> None:
    assert in_pieces(request(3, 1, priority=1)).decide(PATIENT_S).stops == []


def test_no_migration_for_a_job_behind_a_reservation() -> None:
    on = in_pieces(request(3, 1), Policy(age_s=10.0))
    on.enqueue(
        replace(request(8, 4, length=None, at=5.0), queue="b"), 5.0
    )  # no job moves for it: its length is unknown

    assert on.decide(PATIENT_S).stops == []
    assert numbers(on) == [8, 9]


def test_migration_starts_once_the_reservation_ahead_is_gone() -> None:
    on = in_pieces(request(3, 1), Policy(age_s=10.0))
    first = replace(request(8, 4, length=None, at=5.0), queue="b")
    on.enqueue(first, 5.0)
    assert on.decide(PATIENT_S).stops == []

    first.estimate_s = first.usual_s = 100 * HOUR  # now it is known to be long: it is late no more, and behind
    on.update_estimate(first, PATIENT_S)

    assert [(one.victim.number, one.winner.number) for one in on.decide(PATIENT_S).stops] == [(3, 9)]
    assert numbers(on) == [8]


def test_job_started_in_this_pass_is_not_migrated() -> None:
    small = request(3, 1)
    on = in_pieces(small)
    small.began_s = PATIENT_S

    assert on.decide(PATIENT_S).stops == []


def test_migration_has_a_reason_and_starts_nothing_early() -> None:
    def runs(number: int, gpus: int, *devices: str) -> object:
        return replace(training(job(number, gpus=gpus), Seat(devices[0][:2], devices)), checkpoint_step=5)

    small, other = runs(3, 1, "n0/0"), runs(2, 2, "n1/0", "n1/1")
    known = {name: Known(length_s=HOUR, executed_s=500.0, restart_s=1.0) for name in ("job-2", "job-3", "job-9")}
    picture = replace(pool([node("n0"), node("n1")], small, other, job(9, gpus=4)), known=known)  # type: ignore[arg-type]
    found = plan(picture, 600.0)

    assert [one.reason for one in found.preempts] == ["job-9 (ana) needs 4 GPUs on one node; this job fits elsewhere"]
    assert found.starts == ()

    back = replace(job(3), queued_s=600.0, checkpoint_step=5)
    assert preempted(small, found.preempts[0].reason, 600.0)[0].preempted  # type: ignore[arg-type]
    then = plan(replace(picture, jobs={**picture.jobs, "job-3": back}), 601.0)
    assert {one.job: {seat.node for seat in one.seats} for one in then.starts} == {"job-3": {"n1"}, "job-9": {"n0"}}


def free_devices(capacity: FreeCapacity) -> set[str]:
    return {device for free in capacity for _, device in free.devices}


@given(
    st.lists(st.tuples(st.integers(1, 4), st.booleans()), max_size=16),
    st.lists(st.integers(0, 15), max_size=12),
    st.integers(2, 4),
)
def test_migration_seats_are_exclusive_and_atomic(came: list[tuple[int, bool]], left: list[int], gpus: int) -> None:
    capacity = free_of([node(f"n{i}") for i in range(4)], ())
    running: dict[int, GangRequest] = {}
    for number, (its_gpus, may_stop) in enumerate(came):
        one = request(number, its_gpus)
        seats = place(capacity, one.shape, 1)
        if seats is not None:
            one.seats, one.is_victim, running[number] = seats, may_stop, one
    for number in left:
        if number in running:
            gone = running.pop(number)
            capacity.give(gone.shape, gone.seats)
    on: dict[str, dict[int, GangRequest]] = {}
    for one in running.values():
        on.setdefault(one.seats[0].node, {})[one.number] = one
    before, newcomer = free_devices(capacity), request(99, gpus)
    if capacity.fit_count(newcomer.shape, 1):
        return

    found = find_migration(newcomer, capacity, on, 1.0, 10.0)

    if not isinstance(found, Migration):
        assert free_devices(capacity) == before
        return
    seats, mover = found.seats, found.mover
    assert mover.is_victim
    held = [one.seats for one in running.values() if one is not mover]
    used = [device for some in (*held, found.mover_seats, seats) for seat in some for device in seat.devices]
    assert len(used) + len(free_devices(capacity)) == len({*used, *free_devices(capacity)}) == 16
    assert len(seats[0].devices) == gpus
