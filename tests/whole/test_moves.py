"""Migration of a gang while it trains: no step is lost or repeated, and the weights are the same.

Real engine, guardians, learners and `kill -9`; the nodes are this machine's CPU slots under two names.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from jupyter_dlaas.api.jobs import Job
from jupyter_dlaas.jobdir.journal_file import read_facts
from jupyter_dlaas.transfer.results import load
from jupyter_dlaas.wire.journal import FactKind, GenerationStarted
from tests.learner.coverage import check
from tests.learner.live_programs import LIVE
from tests.runtime.jobs import make_job
from tests.selection import each_nth, exhaustive
from tests.whole.site import Site, kill, until

Build = Callable[..., Site]
SAMPLES, EPOCHS = 101, 30
SLEEPS = "import time\ntime.sleep(1000)\n"
# A joining learner waits in its rehearsal until the file `come` is there; with `fail` it raises an error of its own.
# Two jobs draw the same order of samples, so that their weights can be compared.
WAIT = """
            while run.internals.is_joining and not (out / "come").exists():
                assert not (out / "fail").exists(), "no data on this node"
                time.sleep(0.01)
            opt.zero_grad()
"""
GATED = LIVE.replace("            opt.zero_grad()\n", WAIT.lstrip("\n"))
GATED = (
    GATED.replace("EPOCHS = 101, 12, 60", f"EPOCHS = 101, 12, {EPOCHS}")
    .replace("me = os", "out.mkdir(exist_ok=True)\nme = os")
    .replace(".run()", ".run(); run.internals.seed = 7")
)
TOGETHER = "Its 2 learners fit on one node ({}) now and train faster there."


@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Weights trained by one undisturbed learner."""
    options: dict[str, Any] = {
        "learners_max": 2,
        "framework": "torch",
        "outputs": ("weights",),
        "checkpoint_every_s": 0.0,
    }
    alone = make_job(tmp_path_factory.mktemp("alone") / "job", GATED, **options)
    alone.output("hurry").touch()
    alone.run(1)
    assert alone.closed() == "completed", alone.report()
    return weights_in(alone.dir)


def apart(here: Site) -> tuple[Job, Job, Job]:
    """Submit a gang of two on two nodes of two, and the jobs beside it: on n1, on n2."""
    beside = [here.submit(SLEEPS, name=name, gpus="1", placement="spread") for name in ("left", "right")]
    until(lambda: [nodes_of(here, one) for one in beside] == [["n1"], ["n2"]], "there is a job on each node")
    gang = here.submit(GATED, name="gang", gpus="2", outputs="weights", framework="torch", checkpoint_every=0)
    until(lambda: steps(gang) > 8, f"the gang trains\n{gang.events()}")
    assert nodes_of(here, gang) == ["n1", "n2"]
    return gang, beside[0], beside[1]


def nodes_of(here: Site, job: Job) -> list[str]:
    return sorted(one.node for one in here.job(job.id).view.learners)


def steps(job: Job) -> int:
    return max((path.read_text().count("\n") for path in job.directory.glob("output/live-*")), default=0)


def facts(job: Job) -> Sequence[Any]:
    return read_facts(job.directory / "journal.jsonl")[0]


def go(job: Job, what: str) -> None:
    folder = job.directory / "output"
    folder.mkdir(exist_ok=True)
    (folder / what).touch()


def weights_in(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = load((folder / "results" / "weights.bin").read_bytes())
    return found


def assert_whole(here: Site, gang: Job, weights: dict[str, Any]) -> None:
    """Assert that the gang ends with the weights of one undisturbed learner."""
    go(gang, "hurry")
    gang.wait(90)
    check(facts(gang), gang.directory / "output", range(SAMPLES), EPOCHS)
    assert not list(gang.directory.glob("checkpoints/step-*")), "no checkpoint was needed"
    assert here.job(gang.id).view.restarts == 0
    for name, value in weights_in(gang.directory).items():
        assert value.numpy() == pytest.approx(weights[name].numpy(), abs=1e-9), name


def moves(here: Site, job: Job) -> list[tuple[int, int, str]]:
    return [(one.before, one.after, one.by) for one in here.job(job.id).view.resizes]


@exhaustive
def test_gang_consolidates_on_one_node_despite_an_engine_kill(site: Build, weights: dict[str, Any]) -> None:
    here = site(slots=2, nodes=2)
    gang, left, right = apart(here)
    before = here.learners(gang)
    left.cancel()
    until(lambda: here.job(gang.id).view.state_label == "Processing · moving", "it is being moved")
    assert here.job(gang.id).view.reason == TOGETHER.format("n1")
    kill(here.engine_pid())
    go(gang, "come")
    until(lambda: here.job(gang.id).view.transition is None and nodes_of(here, gang) == ["n1", "n1"], "it has moved")

    stayed = dict(before.items() & here.learners(gang).items())
    assert len(stayed) == 1, "who sat there trains on: the same process"
    assert moves(here, gang) == [(2, 2, "pool")]
    assert here.job(gang.id).view.resizes[0].idle_s is not None
    events = gang.events()
    assert f"{TOGETHER.format('n1')} Moving, by the pool." in events
    assert "Moved, by the pool, at step " in events
    right.cancel()
    assert_whole(here, gang, weights)
    assert {one.code for one in facts(gang) if one.kind is FactKind.LEARNER_DOWN} == {0}, "all left by themselves"


def test_gang_moves_for_a_job_that_needs_a_whole_node(site: Build, weights: dict[str, Any]) -> None:
    here = site(slots=2, nodes=2)
    gang, left, right = apart(here)
    go(gang, "come")
    whole = here.submit(SLEEPS, name="whole", learners="1", gpus_per_learner=2)
    until(lambda: here.job(whole.id).view.place, "it waits")
    left.cancel()
    until(lambda: left.status == "CANCELLED", "the left one is gone")
    assert moves(here, gang) == []
    right.cancel()
    until(lambda: whole.status == "PROCESSING", f"it has a node\n{gang.events()}")

    [node] = nodes_of(here, whole)
    assert set(nodes_of(here, gang)) == {"n1", "n2"} - {node}
    assert moves(here, gang) == [(2, 2, "pool")]
    assert (
        f"Makes room on {node} for the waiting job {whole.id}; it fits there afterwards. Moving, by the pool."
        in gang.events()
    )
    assert gang.status == "PROCESSING"
    whole.cancel()
    assert_whole(here, gang, weights)


@pytest.mark.parametrize("how", each_nth(["killed", "its own error"], 2))
def test_migration_without_joining_learners_is_abandoned_at_no_cost(
    site: Build, weights: dict[str, Any], how: str
) -> None:
    here = site(slots=2, nodes=2)
    gang, left, right = apart(here)
    before = here.learners(gang)
    left.cancel()
    new = until(lambda: here.learners(gang).keys() - before.keys(), "a learner is to join")
    [joiner] = new
    if how == "killed":
        kill(here.learners(gang)[joiner])
    else:
        go(gang, "fail")
    until(lambda: moves_given_up(gang), f"it is given up\n{gang.events()}")

    assert nodes_of(here, gang) == ["n1", "n2"]
    assert here.learners(gang) == before, "the same processes train on"
    begun = [one for one in facts(gang) if isinstance(one, GenerationStarted)]
    assert begun[-1].step is None, "they did not stop at a step"
    assert moves(here, gang) == []
    right.cancel()
    assert_whole(here, gang, weights)


def moves_given_up(gang: Job) -> bool:
    return "1 joining learner did not start; the job continues at its previous size." in gang.events()
