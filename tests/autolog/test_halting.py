"""Keras, Lightning and Hugging Face jobs halt at a step, and are killed, and end as if nothing had happened."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from jupyter_dlaas.facts import FactKind
from jupyter_dlaas.learner.results import load
from jupyter_dlaas.protocol import Cause
from tests.autolog.programs import KERAS, LIGHTNING, TRANSFORMERS
from tests.runtime.jobs import Job, until

Build = Callable[..., Job]
DEADLINE_S = 120.0


def result(job: Job) -> Any:
    return load((job.dir / "results" / "result.bin").read_bytes())


def curve(job: Job, name: str) -> list[float]:
    """A metric as its readers see it: what a restart took back does not count."""
    kept: list[tuple[int, dict[str, float]]] = []
    for line in (job.dir / "metrics.jsonl").read_text().splitlines():
        record = json.loads(line)
        if "rewind" in record:
            kept = [one for one in kept if one[0] <= record["rewind"]]
        else:
            kept.append((record["step"], record["values"]))
    return [values[name] for _, values in kept if name in values]


def reach(job: Job, where: str) -> None:
    until(lambda: job.output(f"at-{where}").exists() or _failed(job), where, DEADLINE_S)
    assert not _failed(job), job.report()


def go_on(job: Job, where: str, how: str = "") -> None:
    job.output("part").write_text(how)
    job.output("part").rename(job.output(f"go-{where}"))


def halt_and_kill(job: Job, halt_at: str, kill_at: str) -> None:
    """Halt it at one step, resume it, kill it at another, and let it go on to its end."""
    job.output("pause").write_text(f"{halt_at} {kill_at}")
    job.run()
    reach(job, halt_at)
    job.halt(grace_s=DEADLINE_S)
    go_on(job, halt_at, "stop")
    assert end_of(job) == "halted"
    assert job.wait(FactKind.HALTED).has_checkpoint, job.report()
    job.run()
    reach(job, kill_at)
    job.kill_learner(1)
    job.wait(FactKind.LOST)
    go_on(job, kill_at)
    job.run()
    assert end_of(job, 2) == "completed"


def end_of(job: Job, count: int = 1) -> str:
    """How it ended; a training that failed says so at once."""
    until(lambda: job.facts(FactKind.CLOSED)[count - 1 :] or _failed(job), "it ends", DEADLINE_S)
    assert not _failed(job), job.report()
    return job.closed(count)


def _failed(job: Job) -> bool:
    return any(fact.failure is not None and fact.failure.cause is Cause.YOUR_CODE for fact in job.facts())


def steps(job: Job) -> list[str]:
    return job.lines("steps")


@pytest.mark.parametrize("backend", ["torch", "tensorflow"])
def test_keras_goes_on_at_the_next_batch(job: Build, backend: str) -> None:
    environment = {"KERAS_BACKEND": backend, "TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": ""}
    untouched = job(KERAS, outputs=("result",), autolog=False, environment=environment)
    untouched.run()
    one = job(KERAS, outputs=("result",), checkpoint_every_s=0.0001, environment=environment)
    halt_and_kill(one, halt_at="1-10", kill_at="1-17")
    assert end_of(untouched) == "completed"
    plain, resumed = result(untouched), result(one)

    assert resumed == plain
    assert curve(one, "loss") == pytest.approx([value for part in plain["history"] for value in part["loss"]])
    assert curve(one, "val_mae") == pytest.approx([value for part in plain["history"] for value in part["val_mae"]])
    assert steps(one).count("0 1") == 1, "a training that was through is not made again"
    assert [line for line in steps(one) if line.startswith("1 ")] == [
        *(f"1 {step}" for step in range(1, 18)),
        *(f"1 {step}" for step in range(17, 29)),  # the step in flight is trained again, no other
    ]


@pytest.mark.parametrize("package", ["lightning.pytorch", "pytorch_lightning"])
def test_lightning_goes_on_at_the_next_batch(job: Build, package: str) -> None:
    program = LIGHTNING.replace("PACKAGE", package)
    untouched = job(program, outputs=("result",), autolog=False)
    untouched.run()
    one = job(program, outputs=("result",), checkpoint_every_s=0.0001)
    halt_and_kill(one, halt_at="1-9", kill_at="1-17")
    assert end_of(untouched) == "completed"
    plain, resumed = result(untouched), result(one)

    assert resumed == plain
    for name, place in (("train_loss", 0), ("val_loss", 1)):
        assert curve(one, name) == pytest.approx(plain[0]["curves"][place] + plain[1]["curves"][place])
    assert steps(one).count("0 1") == 1, "a training that was through is not made again"
    assert [line for line in steps(one) if line.startswith("1 ")] == [
        *(f"1 {step}" for step in range(1, 18)),
        *(f"1 {step}" for step in range(17, 25)),  # the step in flight is trained again, no other
    ]


def test_transformers_go_on_at_the_next_step(job: Build) -> None:
    untouched = job(TRANSFORMERS, outputs=("result",), autolog=False)
    untouched.run()
    one = job(TRANSFORMERS, outputs=("result",), checkpoint_every_s=0.0001)
    halt_and_kill(one, halt_at="1-3", kill_at="1-12")
    assert end_of(untouched) == "completed"
    plain, resumed = result(untouched), result(one)

    assert resumed == plain
    for name in ("loss", "eval_loss"):
        logged = [entry[name] for part in plain[:2] for entry in part["history"] if name in entry]
        assert curve(one, name) == pytest.approx(logged)
    assert steps(one).count("0 1") == 1, "a training that was through is not made again"
