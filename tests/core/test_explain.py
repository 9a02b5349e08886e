"""Explanations of a waiting job: honest if no bound holds."""

from __future__ import annotations

from dataclasses import replace

from dlaas_server.core.model.job import Job, Profile
from dlaas_server.core.model.pool import Known
from dlaas_server.core.placement.shape import Layout
from dlaas_server.core.planning.plan import DEFAULT, plan
from dlaas_server.core.presentation.explain import NO_BOUND, deciding_events, why_it_waits
from dlaas_server.core.scheduling.policy import Policy, Share
from tests.core.builders import job, node, pool, seats, training

SHARED = Policy(order="fair", shares={"research": Share(guaranteed=2)})


def of(queue: str, one: Job) -> Job:
    return replace(one, spec=replace(one.spec, queue=queue))


def said(waits: Job, runs: Job, policy: Policy) -> list[str]:
    """Sentences that say that no bound holds, or a long one."""
    picture = pool([node(devices=4)], training(runs, *seats("n1", 4)), waits)
    found = why_it_waits(waits, picture, plan(picture, 60.0, policy).waits, policy)
    assert found[0].startswith("It is 1st of 1 in the queue")
    return [text for text in found if "come first" in text]


def test_why_names_events_that_decided_state_and_size() -> None:
    history = [
        (0.0, "submitted", "Submitted by ana."),
        (0.0, "waits", "Waiting: needs 4 GPUs."),
        (60.0, "placed", "Placed 4 learners on n1."),
        (70.0, "scaling", "n1 is being drained by eve: job-1 shrinks from 4 to 2. Scaling 4 → 2, by a drain."),
        (70.0, "training", "Scaled 4 → 2, by a drain, at step 7."),
        (190.0, "checkpoint", "Requested checkpoint written at step 99."),
    ]
    assert deciding_events(history, 190.0) == [
        "2 min 10 s ago: Placed 4 learners on n1.",
        "2 min ago: n1 is being drained by eve: job-1 shrinks from 4 to 2. Scaling 4 → 2, by a drain.",
        "Just now: Requested checkpoint written at step 99.",
    ]
    assert deciding_events(history[:2], 60.0) == ["1 min ago: Submitted by ana."], (
        "the present wait reason replaces the first one"
    )
    back = [*history, (191.0, "preempted", "Preempted: urgent-2 (eve) needs 4 GPUs.")]
    assert deciding_events(back, 200.0) == ["9 s ago: Preempted: urgent-2 (eve) needs 4 GPUs."]
    assert deciding_events([], 1.0) == []


def test_why_names_the_run_time_of_higher_priorities() -> None:
    low, equal = job(2, (4, 4)), job(1, (4, 4))

    [text] = said(low, replace(equal, priority=5), Policy())
    assert text == "Jobs with a higher priority come first until it has waited 2 d 16 h; then it takes precedence once."
    spot = replace(low, spec=replace(low.spec, spot=True))
    [text] = said(spot, replace(equal, priority=5), Policy())
    assert text == f"Jobs with a higher priority always come first, {NO_BOUND}."
    assert said(low, equal, Policy()) == []
    assert said(low, replace(equal, priority=-5), Policy(preempts=False)) == []


def test_why_explains_a_missing_checkpoint_of_a_blocker() -> None:
    high, low = replace(job(2, (4, 4)), priority=5), training(job(1, (4, 4)), *seats("n1", 4))

    def holder(runs: Job, waits: Job = high, policy: Policy = DEFAULT) -> str:
        picture = pool([node(devices=4)], runs, waits)
        [found] = [s for s in why_it_waits(waits, picture, plan(picture, 60.0, policy).waits, policy) if "holds" in s]
        return found

    kept = "; its priority is lower, but it has no checkpoint, so it is not preempted."
    assert holder(low).endswith(
        "; its priority is lower, but it has to write its first checkpoint before it is preempted."
    )
    low = replace(low, is_plain=True)
    assert holder(low) == "job-1 (ana) holds 4 GPUs on n1 for an unknown time" + kept
    assert not holder(low, replace(high, priority=0)).endswith(kept)
    assert not holder(low, policy=Policy(preempts=False)).endswith(kept), "no preemption there"
    assert not holder(replace(low, checkpoint_step=7)).endswith(kept), "it is preempted"
    assert "its priority" not in holder(replace(low, spec=replace(low.spec, spot=True))), "it leaves without"


def test_why_names_jobs_of_unknown_length() -> None:
    first, second, runs = job(2, (4, 4)), job(3, (4, 4)), training(job(1, (4, 4)), *seats("n1", 4))

    def explained(*, has_estimate: bool = False, **known: Known) -> list[str]:
        lengths = {name.replace("_", "-"): one for name, one in known.items()}
        picture = replace(pool([node(devices=4)], runs, first, second), known=lengths)
        waits = plan(picture, 60.0, DEFAULT).waits
        found = why_it_waits(second, picture, waits, DEFAULT, has_estimate=has_estimate)
        return [text for text in found if "No start estimate" in text]

    hint = "is unknown. Set --epochs at submit; completed jobs also improve the estimate."
    assert explained() == [f"No start estimate: the run time of job-2, job-1 {hint}"]
    assert explained(has_estimate=True) == []
    hour = Known(length_s=3600.0)
    assert explained(job_1=hour) == [f"No start estimate: the run time of job-2 {hint}"]
    assert explained(job_1=hour, job_2=hour) == []
    overrun = Known(length_s=60.0, executed_s=90.0)
    assert explained(job_1=overrun, job_2=hour) == [f"No start estimate: the run time of job-1 {hint}"]


def test_why_informs_borrowers_that_owners_go_first() -> None:
    borrower, owner = job(2, (4, 4)), of("research", job(1, (4, 4)))

    [text] = said(borrower, owner, SHARED)
    assert text == f"It would borrow devices. Jobs that use their queue's guarantee always come first, {NO_BOUND}."
    assert said(borrower, job(1, (4, 4)), SHARED) == [], "no job of research is there"
    assert said(borrower, owner, Policy()) == []
    assert said(of("research", job(2, (2, 2))), job(1, (4, 4)), SHARED) == [], "it is an owner itself"


def test_why_explains_accepted_distant_seats() -> None:
    close = Policy(placement=Layout.TOPOLOGY)
    gang = job(2, (4, 4))
    waits = replace(gang, spec=replace(gang.spec, placement=None))

    def explained(profile: Profile, policy: Policy = close) -> list[str]:
        one = replace(waits, profile=profile)
        picture = pool([node(devices=4)], training(job(1, (4, 4)), *seats("n1", 4)), one)
        return [s for s in why_it_waits(one, picture, plan(picture, 60.0, policy).waits, policy) if "any nodes" in s]

    assert explained(Profile(communication=0.02)) == [
        "Its learners may be placed on any nodes: across nodes, they spent only 2% of a step on communication."
    ]
    assert explained(Profile(skew=0.1)) == [
        "Its learners may be placed on any nodes: their tensors are of even size, the largest has 10% of the total."
    ]
    assert explained(Profile(communication=0.3, skew=0.1)) == []
    assert explained(Profile()) == []
    assert explained(Profile(skew=0.1), Policy()) == [], "no job waits for close seats there"


def test_why_names_devices_out_of_service_and_their_reasons() -> None:
    gone = replace(node(devices=1).devices[0], out_of_service="pod ml/job-1-m0 of an ended job is still being removed")
    picture = pool([replace(node(devices=1), devices=(gone,))], job(2))

    text = why_it_waits(picture.jobs["job-2"], picture, plan(picture, 10.0).waits, Policy())

    assert "Out of service: n1/0 (pod ml/job-1-m0 of an ended job is still being removed)." in text
