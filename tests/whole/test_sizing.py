"""Size changes that the job itself causes: by its throughput, its program, its schedule. Real processes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from jupyter_dlaas.api.jobs import Job
from jupyter_dlaas.wire.codec import DlaasError
from jupyter_dlaas.wire.protocol import Elastic
from tests.autolog.programs import GANG_LIGHTNING, GANG_TRANSFORMERS
from tests.selection import each_nth, exhaustive
from tests.whole.programs import BRIEF, training
from tests.whole.site import Site, kill, until

Build = Callable[..., Site]

# Where a file `epoch` is there, a job waits at the end of the epoch that it names.
WAITS = """
    gate = pathlib.Path("epoch")
    while gate.exists() and run.epoch >= int(gate.read_text() or 0) and not run.should_stop:
        time.sleep(0.01)
"""


def program(asks: str = "pass", *, apart: float = 0.02, together: float = 0.0) -> str:
    """Each learner works on its part of a step for `apart` s in all, as on a device of its own; so two cores show four.

    `together` is what no number of learners makes shorter.
    """
    return training(step_s=f"{apart} / run.world_size + {together}", first=asks, last=WAITS.strip())


def resizes(here: Site, job: Job) -> list[tuple[int, int, str]]:
    return [(one.before, one.after, one.by) for one in here.job(job.id).view.resizes]


def settled(here: Site, job: Job, size: int) -> None:
    until(lambda: here.job(job.id).view.size.held == size and len(here.learners(job)) == size, f"{size} train")


@pytest.mark.parametrize(("apart", "together", "size"), each_nth([(0.12, 0.0, 3), (0.0, 0.03, 1)], 2))
def test_a_job_finds_its_size_by_itself(site: Build, apart: float, together: float, size: int) -> None:
    here = site(slots=3)
    job = here.submit(program(apart=apart, together=together), name="auto", gpus="1:3", elastic="auto")
    until(lambda: resizes(here, job), "it tries another size")
    until(lambda: len(here.job(job.id).view.speeds) >= (3 if size == 3 else 2), "it has tried them")

    settled(here, job, size)
    view = here.job(job.id).view
    assert {by for _, _, by in resizes(here, job)} <= {"auto", "pool"}, "the pool shares out what was wished for"
    assert all(one.idle_s is not None for one in view.resizes)
    assert view.restarts == 0
    assert view.speedup.startswith("1 → 2: ")
    job.cancel()


# A sample takes its time wherever it is, as on devices of their own.
BUSY_SAMPLES = "torch.nn.functional.mse_loss(time.sleep(0.004 * len({of})) or "


@exhaustive
@pytest.mark.parametrize(
    ("source", "of"),
    [(GANG_LIGHTNING, "batch[0]"), (GANG_TRANSFORMERS, "labels")],
    ids=["lightning", "transformers"],
)
def test_framework_job_with_divided_batches_is_autoscaled(site: Build, source: str, of: str) -> None:
    here = site(slots=2)
    source = source.replace("torch.nn.functional.mse_loss(", BUSY_SAMPLES.format(of=of))
    busy = source.replace("epochs=6", "epochs=6000").replace("time.sleep(0.1)", "pass")
    job = here.submit(busy, name="auto", gpus="1:2", elastic="auto")
    until(lambda: len(here.job(job.id).view.speeds) == 2, "it was measured at both sizes", 120)
    settled(here, job, 2)

    view = here.job(job.id).view
    assert resizes(here, job)[0][:2] == (1, 2)
    assert {by for _, _, by in resizes(here, job)} <= {"auto", "pool"}, "the pool shares out what was wished for"
    assert all(one.idle_s is not None for one in view.resizes)
    assert view.restarts == 0
    assert view.speedup.startswith("1 → 2: "), view.speedup
    job.cancel()


def test_a_job_of_its_owner_is_measured_and_never_moves(site: Build) -> None:
    here = site(slots=2)
    job = here.submit(program(apart=0.02), name="mine", gpus="1:2", start_with=1)
    until(lambda: here.job(job.id).view.speeds, "a window was measured")

    assert resizes(here, job) == []
    assert here.job(job.id).view.elastic is Elastic.MANUAL
    job.cancel()


def test_a_program_asks_for_another_size_while_it_trains(site: Build) -> None:
    here = site(slots=3)
    asks = "run.request_gpus(3) if epoch == 5 else run.request_gpus(1) if epoch == 60 else None"
    job = here.submit(program(asks, apart=0.01), name="asks", gpus="1:3", start_with=1)

    until(lambda: len(resizes(here, job)) >= 2, "it grew and shrank")
    settled(here, job, 1)
    assert resizes(here, job)[0] == (1, 3, "program")
    assert here.job(job.id).view.restarts == 0
    job.cancel()


def test_size_request_outside_the_range_raises_in_the_program(site: Build) -> None:
    here = site(slots=2)
    job = here.submit(program("run.request_gpus(7)"), name="greedy", gpus="1:2")

    until(lambda: job.status == "FAILED", "it fails")
    failure = here.job(job.id).view.failure
    assert failure is not None
    assert "takes 1 to 2. Submit it with --gpus 1:7" in failure.what


def test_a_schedule_is_followed_over_deaths_of_engine_and_guardian(site: Build) -> None:
    here = site(slots=3)
    gate: Path = here.work / "epoch"
    gate.write_text("6")  # it waits at the end of epoch 6
    job = here.submit(
        program(apart=0.005), name="plan", gpus="1:3", start_with=1, schedule="epoch 5: 2 gpus, epoch 12: 3 gpus"
    )
    until(lambda: epoch(here, job) >= 6, "six epochs")
    kill(here.engine_pid())
    kill(here.guardian_pid(job))
    gate.unlink()

    settled(here, job, 3)
    assert {by for _, _, by in resizes(here, job)} == {"schedule"}
    job.scale(1)
    settled(here, job, 1)
    assert resizes(here, job)[-1] == (3, 1, "you")
    job.cancel()


@pytest.mark.parametrize("elastic", ["manual", "auto"])
def test_independent_learners_stay_at_one_until_a_user_scales(site: Build, elastic: str) -> None:
    here = site(slots=2)
    source = program(apart=0.02).replace("model, opt = run.prepare(model, opt)", "")
    job = here.submit(source, name="apart", gpus="1:2", elastic=elastic)
    until(
        lambda: [note for note in here.job(job.id).view.notes if "train independently" in note.text], "it is reported"
    )
    settled(here, job, 1)

    view = here.job(job.id).view
    assert (view.size.wish, view.elastic, view.restarts) == (1, Elastic.MANUAL, 0)
    assert "It stays at 1 learner until you scale it." in job.events()
    job.scale(2)
    settled(here, job, 2)
    until(lambda: here.job(job.id).view.progress, "they train")
    assert here.job(job.id).view.size.wish == 2
    job.cancel()


def epoch(here: Site, job: Job) -> int:
    progress = here.job(job.id).view.progress
    return -1 if progress is None else progress.epoch


@pytest.mark.parametrize(
    ("source", "gpus", "says"),
    [
        (program(), "2", "needs a range of sizes, such as --gpus 1:4"),
        ("print(1)\n", "1:2", "measures the steps of run.batches"),
    ],
)
def test_a_job_that_could_never_choose_is_refused_at_submit(site: Build, source: str, gpus: str, says: str) -> None:
    with pytest.raises(DlaasError, match=says):
        site(slots=2).submit(source, name="auto", gpus=gpus, elastic="auto")


def test_scheduled_job_starts_at_its_minimum_size(site: Build) -> None:
    here = site(slots=2)
    later = here.submit(program(), name="later", gpus="1:2", schedule="epoch 90000: 2 gpus")
    sooner = here.submit(program(), name="sooner", gpus="1:2", schedule="epoch 0: 2 gpus, epoch 90000: 1 gpu")

    assert (later.view.size.wish, sooner.view.size.wish) == (1, 2)
    later.cancel()
    sooner.cancel()


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"schedule": "epoch 5: 9 gpus"}, "epoch 5: 9 learners are not within 1 to 2"),
        ({"schedule": "epoch 5: 2 gpus", "elastic": "auto"}, "set only one of them"),
        ({"schedule": "epoch 5: 2 gpus", "epochs": 5}, "does not exist"),
        ({"schedule": "epoch 5: 2 gpus, epoch 5: 1 gpu"}, "epochs must increase"),
    ],
)
def test_a_schedule_that_cannot_be_followed_is_refused_at_submit(
    site: Build, options: dict[str, Any], says: str
) -> None:
    with pytest.raises(DlaasError, match=says):
        site(slots=2).submit(program(), name="plan", gpus="1:2", **options)


def test_job_without_checkpoint_is_not_restarted_to_grow(site: Build) -> None:
    here = site(slots=2)
    first = here.submit(BRIEF.replace("enough", "first"), name="first")
    job = here.submit(BRIEF, name="plain", gpus="1:2")
    until(lambda: job.status == "PROCESSING", "it trains")
    learners = here.learners(job)
    (here.work / "first").touch()
    first.wait()
    then = here.submit("print('trains')\n", name="then")
    until(lambda: then.status == "COMPLETED", "it found the device free")

    assert here.learners(job) == learners, "it continues unchanged"
    assert "another size would restart it from the beginning" in here.job(job.id).view.reason
    job.halt()
    until(lambda: job.status == "HALTED", "it has left")
    job.resume()
    settled(here, job, 2)
    (here.work / "enough").touch()
    assert job.wait().status == "COMPLETED"
    assert resizes(here, job) == []
