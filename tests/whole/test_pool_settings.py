"""Pool settings changed while jobs train: a node is drained, a queue reclaims its share, start estimates are scored.

Real engines, learners and `kill -9`; the nodes are this machine's CPU slots under two names.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial

from tests.whole.programs import end_brief, submit_brief, training, trains, waiting_at
from tests.whole.site import Site, kill, until

Build = Callable[..., Site]


def nodes_of(here: Site, job: str) -> list[str]:
    return sorted(one.node for one in here.job(job).view.learners)


def sits_on(here: Site, job: str, *nodes: str) -> bool:
    return nodes_of(here, job) == list(nodes)


def trains_with(here: Site, job: str, learners: int) -> bool:
    view = here.job(job).view
    return view.state == "PROCESSING" and view.size.held == learners and view.transition is None


def alone(here: Site, job: str) -> dict[int, int]:
    """Return the only living learner; {} if there is not exactly one."""
    found = here.learners(job)
    return found if len(found) == 1 else {}


def test_drain_shrinks_elastic_jobs_despite_an_engine_kill(site: Build) -> None:
    here = site(slots=2, nodes=2)
    jobs = [
        here.submit(training(step_s=0.02), name=name, gpus="1:2", placement="spread").id for name in ("left", "right")
    ]
    for job in jobs:
        until(partial(trains_with, here, job, 2), f"{job} trains on both nodes")
        assert nodes_of(here, job) == ["n1", "n2"]
    before = {job: here.learners(job) for job in jobs}

    def dlaas(*words: str) -> str:
        return here.terminal("jupyter", "dlaas", *words)

    preview = dlaas("drain", "n1", "--dry-run")
    assert preview.startswith("n1: 2 jobs shrink.\n")
    assert all(f"{job} shrinks from 2 to 1 learner and continues" in preview for job in jobs)
    assert all(trains_with(here, job, 2) for job in jobs), "a preview does nothing"

    assert "n1 is being drained." in dlaas("drain", "n1")
    kill(here.engine_pid())
    for job in jobs:
        until(partial(trains_with, here, job, 1), f"{job} trains on with one")
        until(partial(sits_on, here, job, "n2"), "the other one has left")
        left = until(partial(alone, here, job), "one learner is left")
        assert left.items() <= before[job].items(), "who trained there trains on: the same process"
        view = here.job(job).view
        assert [(one.before, one.after, one.by) for one in view.resizes] == [(2, 1, "drain")]
        assert (view.restarts, view.generation) == (0, 2)
        assert f"n1 is being drained by {view.owner}: {job} shrinks from 2 to 1" in here.job(job).events()
    assert [node.cordoned is not None for node in here.client.pool().nodes] == [True, False]

    third = here.submit("print('hi')\n", name="third", gpus="1").id
    until(lambda: here.job(third).view.place, "the third waits")
    assert "n1 is being drained by" in here.job(third).view.reason
    dlaas("uncordon", "n1")
    until(lambda: here.job(third).status == "COMPLETED", "the third found its place")
    for job in jobs:
        until(partial(trains_with, here, job, 2), f"{job} grows back")
        assert [one.by for one in here.job(job).view.resizes] == ["drain", "pool"]
        here.job(job).cancel()
    until(lambda: not here.orphans(), "no process is left", 20)


def test_gang_waiting_for_a_cordoned_node_preempts_no_job(site: Build) -> None:
    here = site(slots=2, nodes=2)
    here.terminal("jupyter", "dlaas", "pool", "--order", "fifo")
    here.terminal("jupyter", "dlaas", "cordon", "n1")
    large = here.submit("print('hi')\n", name="large", gpus="4").id
    until(lambda: here.job(large).view.place, "it waits")
    assert "Needs 4 " in here.job(large).view.reason
    assert "the pool has 2 in service. n1 is cordoned by" in here.job(large).view.reason

    grows = here.submit(training(step_s=0.02), name="grows", gpus="1:2").id
    until(partial(trains_with, here, grows, 2), "who comes after it takes all that is in service")
    here.job(grows).scale(1)
    until(partial(trains_with, here, grows, 1), "it gave one back")
    small = here.submit("print('hi')\n", name="small", gpus="1").id
    until(lambda: here.job(small).status == "COMPLETED", "another one runs, too")

    here.terminal("jupyter", "dlaas", "uncordon", "n1")
    here.job(grows).cancel()
    until(lambda: here.job(large).status == "COMPLETED", "the gang had all four")


def test_drained_job_that_cannot_shrink_moves_and_continues(site: Build) -> None:
    here = site(slots=1, nodes=2)
    job = here.submit(training(step_s=0.05), name="single", gpus="1", checkpoint_every="1s")
    trains(job, 8)
    [node] = nodes_of(here, job.id)
    other = {"n1": "n2", "n2": "n1"}[node]
    until(lambda: here.client.drain(node, is_dry_run=True).jobs[0].way == "move", "it has a checkpoint")
    assert f"single-1 moves 1 learner to {other}" in here.terminal("jupyter", "dlaas", "drain", node, "--dry-run")

    here.terminal("jupyter", "dlaas", "drain", node)
    until(lambda: nodes_of(here, job.id) == [other] and trains_with(here, job.id, 1), "it trains elsewhere", 90)
    view = here.job(job.id).view
    assert [(one.before, one.after, one.by) for one in view.resizes] == [(1, 1, "drain")]
    assert (view.restarts, view.resizes[0].step > 8) == (0, True)
    job.cancel()


def test_queue_reclaims_its_share_from_a_borrower_at_a_checkpoint(site: Build) -> None:
    here = site(slots=2)

    def dlaas(*words: str) -> str:
        return here.terminal("jupyter", "dlaas", *words)

    assert "research  2           1       0      0" in dlaas("queue", "set", "research", "--guaranteed", "2")
    assert "Order: fair, with preemption." in dlaas("pool", "--order", "fair")
    kill(here.engine_pid())
    borrower = here.submit(training(step_s=0.2), name="borrower", gpus="2", checkpoint_every="1s")
    trains(borrower)

    owner = submit_brief(here, "owner", "2", queue="research")
    waiting, _ = waiting_at(borrower)
    assert "Preempted: owner-2" in waiting.reason
    assert "takes back for its queue research what default had borrowed of it. Nothing was lost" in waiting.reason
    end_brief(here, owner)
    until(lambda: borrower.status == "PROCESSING", "the borrower continues", 60)
    assert here.job(borrower.id).view.restarts == 0
    borrower.cancel()


def test_start_estimate_is_scored_when_the_job_starts(site: Build) -> None:
    here = site(slots=2)
    first = here.submit(training(epochs=40, step_s=0.05), name="first", gpus="2")
    trains(first)
    second = here.submit("print('done')\n", name="second", gpus="2")
    until(lambda: "Expected to start in" in second.view.reason, "it has a start estimate")
    assert "Waiting: needs 2 CPU slots at once" in second.events()
    kill(here.engine_pid())

    second.wait(90)
    events = second.events()
    assert "Its start estimate was " in events
    assert "; it waited " in events
    pool = json.loads(here.terminal("jupyter", "dlaas", "pool", "--json"))
    assert pool["track_record"].startswith("The last start estimate ")
    kill(here.engine_pid())
    assert here.client.pool().track_record == pool["track_record"], "it is kept"
