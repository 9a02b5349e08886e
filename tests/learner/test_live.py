"""A gang changes its size while it trains, and survives the loss of learners, without reading a checkpoint."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from jupyter_dlaas.jobdir.atomic_files import write_whole
from jupyter_dlaas.runtime.system.process import is_alive
from jupyter_dlaas.wire.journal import FactKind
from jupyter_dlaas.wire.protocol import Cause
from tests.learner.fake_nccl import INSTALL
from tests.learner.fault_matrix import warmed
from tests.learner.live_programs import LIVE, assert_each_sample_once, result, trains
from tests.runtime.jobs import Job, make_job, until
from tests.selection import each_nth, exhaustive

Build = Callable[..., Job]
EPOCHS = 60
OPTIONS: dict[str, Any] = {
    "learners_min": 1,
    "learners_max": 4,
    "framework": "torch",
    "outputs": ("history", "losses", "weights"),
    "checkpoint_every_s": 0.0,
}


ON_CPU = "import os\nos.environ['CUDA_VISIBLE_DEVICES'] = ''\n"
ON_ONE_EACH = "import os\nos.environ['CUDA_VISIBLE_DEVICES'] = os.environ['DLAAS_MEMBER']\n"


def where(what: str, begins: str, gpus: int = 0, *marks: pytest.MarkDecorator) -> Any:
    few = pytest.mark.skipif(f"__import__('torch').cuda.device_count() < {gpus}", reason="needs a GPU per learner")
    none = pytest.mark.skipif("not __import__('torch').cuda.is_available()", reason="needs a GPU")
    return pytest.param(begins, id=what, marks=[*marks, *([few] if gpus > 1 else [none] if gpus else [])])


GPUS = (where("one GPU for all", "", 1), where("a GPU each", ON_ONE_EACH, 4))
also_like_gpus = pytest.mark.parametrize(
    "live", [where("CPU", ON_CPU), where("like GPUs", ON_CPU + INSTALL), *GPUS], indirect=True
)


@pytest.fixture(params=[where("CPU", ON_CPU), where("like GPUs", ON_CPU + INSTALL, 0, exhaustive), *GPUS])
def live(job: Build, request: pytest.FixtureRequest) -> Job:
    """Create a job of this program, whose first learners are not started yet."""
    return job(request.param + LIVE, **OPTIONS)


@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory, zygotes: Path) -> dict[str, Any]:
    """Return what one undisturbed learner trains."""
    one = warmed(make_job(tmp_path_factory.mktemp("alone") / "job", LIVE, **OPTIONS), zygotes)
    one.output("hurry").touch()
    one.run(1)
    assert one.closed() == "completed"
    found: dict[str, Any] = result(one, "weights")
    return found


def ended(job: Job) -> str:
    """Let it come to its end."""
    job.output("hurry").touch()
    return job.closed()


def assert_whole(job: Job, weights: dict[str, Any], epochs: int = EPOCHS) -> None:
    """All was trained as if nothing had happened: sums in another order are all that may differ."""
    assert_each_sample_once(job, samples=101, epochs=epochs)
    found = result(job, "weights")
    for name, value in weights.items():
        assert found[name].numpy() == pytest.approx(value.numpy(), abs=1e-9), name
    assert len(result(job, "history")["loss"]) == epochs
    assert result(job, "losses") == pytest.approx([0.1 * 0.9 ** (n + 1) for n in range(epochs)])
    assert not list(job.dir.glob("checkpoints/step-*")), "no checkpoint was needed"


@contextmanager
def reported_epoch(job: Job, epoch: int) -> Iterator[None]:
    """Report this epoch to everyone who reads the job's progress."""
    over = threading.Event()

    def lie() -> None:
        while not over.wait(0.001):
            write_whole(job.dir / "progress.json", json.dumps({"epoch": epoch}).encode())

    liar = threading.Thread(target=lie)
    liar.start()
    try:
        yield
    finally:
        over.set()
        liar.join()


def test_joiner_rehearsed_in_a_later_epoch_trains_the_present_one(live: Job, weights: dict[str, Any]) -> None:
    """Reported progress may be ahead of the learners: a leaver reported it, or a step is made again."""
    live.run(1)
    trains(live, 0, steps=12)
    with reported_epoch(live, 50):
        live.resize(0, fresh=1)
        trains(live, 1, size=2)
    live.resize(1)
    trains(live, 1, size=1)

    assert ended(live) == "completed", live.report()
    assert_whole(live, weights)


def test_lists_filled_by_a_rehearsal_are_emptied(job: Build, weights: dict[str, Any]) -> None:
    """It rehearses in a later epoch than the first, in which the others are, and comes by all that follows a pass."""
    slowly = LIVE.replace("time.sleep(0.0", "time.sleep(0.2 if run.world_size == 1 and epoch == 0 else 0.0")
    one = job(slowly, **OPTIONS)
    with reported_epoch(one, 50):
        one.run(1)
        trains(one, 0, steps=2)
        one.resize(0, fresh=1)
        trains(one, 1, size=2)
    one.resize(1)
    trains(one, 1, size=1)

    assert ended(one) == "completed", one.report()
    assert_whole(one, weights)


@also_like_gpus
def test_a_gang_grows_and_shrinks_while_it_trains(live: Job, weights: dict[str, Any]) -> None:
    one = live
    one.run(1)
    trains(one, 0)
    one.resize(0, fresh=1)
    trains(one, 1, size=2)
    one.resize(0, 1, fresh=2)
    trains(one, 3, size=4)
    one.resize(0, 2)
    trains(one, 2, size=2)
    one.resize(2)
    trains(one, 2, size=1)

    assert ended(one) == "completed"
    assert_whole(one, weights)
    facts = one.facts(FactKind.GENERATION)
    assert [fact.members for fact in facts[1:]] == [(0, 1), (0, 1, 2, 3), (0, 2), (2,)]
    assert {fact.code for fact in one.facts(FactKind.LEARNER_DOWN)} == {0}, "who was no longer wanted left by itself"
    assert all(fact.idle_s is not None for fact in facts[1:])


@also_like_gpus
@pytest.mark.parametrize("victim", each_nth([0, 1, 2], 3))
def test_a_killed_learner_costs_the_others_one_step(live: Job, weights: dict[str, Any], victim: int) -> None:
    one = live
    one.run(3)
    trains(one, 2)
    one.kill_learner(victim)
    survivor = (victim + 1) % 3
    trains(one, survivor, size=2)

    assert ended(one) == "completed"
    assert_whole(one, weights)
    found = one.facts(FactKind.REGROUPED)
    assert [fact.members for fact in found] == [tuple(m for m in (0, 1, 2) if m != victim)]
    assert found[0].idle_s is not None


@pytest.mark.parametrize("device", [where("CPU", ON_CPU), where("like GPUs", ON_CPU + INSTALL), *GPUS])
def test_learner_killed_in_a_forward_pass_costs_one_step(job: Build, weights: dict[str, Any], device: str) -> None:
    slow_forward = LIVE.replace(
        "loss.backward()", "time.sleep(0.0 if (out / 'hurry').exists() else 0.2); loss.backward()"
    )
    one = job(device + slow_forward, **OPTIONS)
    one.run(3)
    trains(one, 2, steps=2)
    one.kill_learner(0)
    trains(one, 1, size=2)

    assert ended(one) == "completed"
    assert_whole(one, weights)


def test_two_learners_killed_at_once_leave_the_third_one_training(live: Job, weights: dict[str, Any]) -> None:
    live.run(3)
    trains(live, 2)
    live.kill_learner(0)
    live.kill_learner(2)
    trains(live, 1, size=1)

    assert ended(live) == "completed"
    assert_whole(live, weights)


def test_gang_whose_last_member_dies_beside_leavers_is_lost(job: Build) -> None:
    """Learners that were let go still live, but train no more: the job must not wait for them."""
    slow = "import atexit, time\natexit.register(lambda: time.sleep(2.0))\n"
    one = job(ON_CPU + slow + LIVE, **OPTIONS)
    one.run(3)
    trains(one, 2)
    one.resize(0)
    until(lambda: [f for f in one.facts(FactKind.GENERATION) if f.members == (0,)], "one learner trains")
    assert len(one.facts(FactKind.LEARNER_DOWN)) < 2, "a learner that was let go still lives"
    one.kill_learner(0)

    lost = one.wait(FactKind.LOST)
    assert lost.generation == one.generation
    assert lost.failure.code == "killed"


def test_changed_gang_that_ended_unguarded_is_complete(job: Build) -> None:
    one = job(ON_CPU + LIVE, **OPTIONS)
    one.run(2)
    trains(one, 1)
    one.resize(0, 1, fresh=1)
    trains(one, 2, size=3)
    learners = [one.learner(member) for member in range(3)]
    one.kill_guardian()
    one.output("hurry").touch()
    until(lambda: not any(map(is_alive, learners)), "they have trained to the end")
    one.start_guardian()

    assert one.closed() == "completed"


@pytest.mark.parametrize("victim", each_nth([2, 0], 2))
def test_learner_killed_during_a_resize_costs_no_sample(live: Job, weights: dict[str, Any], victim: int) -> None:
    """One of those who train, or the one who is about to join."""
    live.run(2)
    trains(live, 1)
    live.resize(0, 1, fresh=1)
    until(lambda: [f for f in live.facts(FactKind.LEARNER_UP) if f.member == 2], "the new one is there")
    live.kill_learner(victim)
    trains(live, 1, steps=5)

    assert ended(live) == "completed"
    assert_whole(live, weights)
    assert all(fact.member == victim for fact in live.facts(FactKind.LEARNER_DOWN) if fact.failure is not None)


@pytest.mark.parametrize("when", ["calm", "change"])
def test_a_killed_guardian_is_replaced_and_the_gang_still_changes(
    live: Job, weights: dict[str, Any], when: str
) -> None:
    live.run(2)
    trains(live, 1)
    if when == "change":
        live.resize(0, 1, fresh=1)
    live.kill_guardian()
    live.wake()
    trains(live, 1, steps=3)
    if when == "calm":
        live.resize(0, 1, fresh=1)
    trains(live, 2, size=3)
    live.resize(0)
    trains(live, 0, size=1)

    assert ended(live) == "completed"
    assert_whole(live, weights)


def test_resized_gang_halts_and_continues_from_its_checkpoint(live: Job, weights: dict[str, Any]) -> None:
    live.run(1)
    trains(live, 0)
    live.resize(0, fresh=2)
    trains(live, 2, size=3)
    live.halt()
    assert live.closed() == "halted"
    live.output("hurry").touch()
    live.run(2)

    assert live.closed(2) == "completed"
    found = result(live, "weights")
    for name, value in weights.items():
        assert found[name].numpy() == pytest.approx(value.numpy(), abs=1e-9), name


def test_resize_at_the_end_ends_with_the_job(live: Job, weights: dict[str, Any]) -> None:
    live.output("hurry").touch()
    live.run(1)
    trains(live, 0, steps=9 * EPOCHS - 3)
    live.resize(0, fresh=1)

    assert ended(live) == "completed"
    assert_whole(live, weights)


def test_user_error_in_one_learner_fails_the_job(job: Build) -> None:
    one = job(LIVE.replace("loss.backward()", "loss.backward(); 1 / (run.step < 12 or run.rank < 1)"), **OPTIONS)
    one.run(2)

    lost = one.wait(FactKind.LOST)
    assert lost.failure is not None
    assert lost.failure.cause is Cause.YOUR_CODE
    assert "division by zero" in lost.failure.what
    assert not one.facts(FactKind.REGROUPED)
