"""Checkpoint requests to jobs that block others."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from dlaas_server.core.model.job import Job
from dlaas_server.core.planning.checkpoint_requests import checkpoint_requests
from dlaas_server.core.planning.plan import DEFAULT, plan
from dlaas_server.core.scheduling.policy import Policy, Share
from tests.core.builders import job, node, pool, seats, training

FAIR = Policy(order="fair", shares={"research": Share(guaranteed=4)})


def of(queue: str, one: Job) -> Job:
    return replace(one, spec=replace(one.spec, queue=queue))


def asked(*jobs: Job, policy: Policy = DEFAULT) -> Mapping[str, str]:
    picture = pool([node(devices=4)], *jobs)
    return checkpoint_requests(picture, plan(picture, 200.0, policy).waits, policy)


def test_job_without_checkpoint_gets_a_request_before_preemption() -> None:
    runs, urgent = training(job(1, (4, 4)), *seats("n1", 4)), job(3, (2, 2), priority=100)

    assert asked(runs, job(2, (2, 2)), urgent) == {"job-1": "job-3"}
    assert asked(runs, job(2, (2, 2))) == {}, "no job goes first"
    assert asked(runs, urgent, policy=Policy(preempts=False)) == {}
    assert asked(runs) == {}, "no job waits"


def test_checkpoint_is_requested_only_if_it_helps() -> None:
    runs, urgent = training(job(1, (4, 4)), *seats("n1", 4)), job(2, (2, 2), priority=100)

    assert asked(replace(runs, checkpoint_step=7), urgent) == {}
    assert asked(replace(runs, is_plain=True), urgent) == {}, "nothing of it could be gone on with"
    assert asked(replace(runs, awaits_checkpoint=True), urgent) == {}, "it was asked already"
    assert asked(replace(runs, spec=replace(runs.spec, spot=True)), urgent) == {}, "it writes one as it goes"


def test_borrower_gets_a_checkpoint_request_for_the_owner() -> None:
    borrows, owner = training(of("vision", job(1, (4, 4))), *seats("n1", 4)), of("research", job(2, (2, 2)))

    assert asked(borrows, owner, policy=FAIR) == {"job-1": "job-2"}
    assert asked(borrows, owner) == {}, "shares count in fair only"
    assert asked(borrows, of("vision", job(2, (2, 2))), policy=FAIR) == {}, "of its own queue"
    assert asked(borrows, of("default", job(2, (2, 2))), policy=FAIR) == {}, "nothing is guaranteed to it"
    assert asked(replace(borrows, priority=5), owner, policy=FAIR) == {}, "of a lower priority"


def test_spot_devices_do_not_count_against_the_queue_share() -> None:
    lent = training(of("research", job(1, (2, 2))), *seats("n1", 2))
    lent = replace(lent, spec=replace(lent.spec, spot=True))
    borrows = training(of("vision", job(2, (2, 2))), *seats("n1", 4)[2:])

    assert asked(lent, borrows, of("research", job(3, (4, 4))), policy=FAIR) == {"job-2": "job-3"}


def test_of_several_owners_one_is_named_whose_priority_is_enough() -> None:
    borrows = replace(training(job(1, (4, 4)), *seats("n1", 4)), priority=5)
    low, high = of("research", job(2, (2, 2))), replace(of("media", job(3, (1, 1))), priority=5)
    shares = {"research": Share(guaranteed=2), "media": Share(guaranteed=2)}

    assert asked(borrows, low, high, policy=Policy(order="fair", shares=shares)) == {"job-1": "job-3"}


def test_checkpoint_requests_cover_only_reclaimable_devices() -> None:
    own, owner = training(of("media", job(1, (3, 3))), *seats("n1", 3)), of("research", job(2, (2, 2)))
    half = Policy(order="fair", shares={"research": Share(guaranteed=2), "media": Share(guaranteed=2)})

    assert asked(own, owner, policy=half) == {}, "its queue would have less than is its own"
    wide = of("research", job(2, (3, 3)))
    all_of_it = training(of("vision", job(1, (4, 4))), *seats("n1", 4))
    assert asked(all_of_it, wide, policy=half) == {}, "with it, the owner's queue would borrow, too"
