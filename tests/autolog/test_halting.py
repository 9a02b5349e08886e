"""Keras, Lightning and Hugging Face jobs halt at a step, and are killed, and end as if nothing had happened."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from jupyter_dlaas.transfer.results import load
from jupyter_dlaas.wire.journal import FactKind
from jupyter_dlaas.wire.protocol import Cause
from tests.autolog.programs import KERAS, LIGHTNING, SHORT, TF_KERAS, TRANSFORMERS
from tests.runtime.jobs import Job, until
from tests.selection import exhaustive

Build = Callable[..., Job]
DEADLINE_S = 240.0
"""A framework takes up to eight seconds of a core to be imported, four times a test."""

pytestmark = pytest.mark.timeout(900)


def result(job: Job) -> Any:
    return result_of(job, "result")


def result_of(job: Job, name: str) -> Any:
    return load((job.dir / "results" / f"{name}.bin").read_bytes())


def curve(job: Job, name: str) -> list[float]:
    """Return a metric as its readers see it: rows that a restart rewound do not count."""
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


def keras_environment(backend: str) -> dict[str, str]:
    return {"KERAS_BACKEND": backend, "TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": ""}


def go_on(job: Job, where: str, how: str = "") -> None:
    job.output("part").write_text(how)
    job.output("part").rename(job.output(f"go-{where}"))


def halt_and_kill(job: Job, halt_at: str, kill_at: str) -> None:
    """Halt it at one step, resume it, kill it at another, and let it continue to its end."""
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
    """Return the end of the job; a training that failed fails the test at once."""
    until(lambda: job.facts(FactKind.CLOSED)[count - 1 :] or _failed(job), "it ends", DEADLINE_S)
    assert not _failed(job), job.report()
    return job.closed(count)


def _failed(job: Job) -> bool:
    return any(f.failure is not None and f.failure.cause is Cause.YOUR_CODE for f in job.facts(FactKind.LEARNER_DOWN))


def steps(job: Job) -> list[str]:
    return job.lines("steps")


def second_training(job: Job) -> list[int]:
    """Its steps as they were trained."""
    return [int(step) for call, step in map(str.split, steps(job)) if call == "1"]


def left_at(job: Job) -> int:
    """Return the first step of the second training beyond the checkpoint from which a lost learner continued."""
    first_training = len({line for line in steps(job) if line.startswith("0 ")})
    return (job.wait(FactKind.LOST).step or 0) - first_training + 1


def test_keras_continues_at_the_next_batch(job: Build) -> None:
    environment = keras_environment("torch")
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
    assert second_training(one) == [*range(1, 18), *range(left_at(one), 29)], "nothing before its checkpoint"


@exhaustive
def test_tf_keras_continues_in_the_order_of_its_pipeline(job: Build) -> None:
    environment = keras_environment("tensorflow")
    untouched = job(TF_KERAS, outputs=("result",), autolog=False, environment=environment)
    untouched.run()
    one = job(TF_KERAS, outputs=("result",), checkpoint_every_s=0.0001, environment=environment)
    halt_and_kill(one, halt_at="1-8", kill_at="1-15")
    assert end_of(untouched) == "completed"
    plain, resumed = result(untouched), result(one)

    assert resumed == plain
    assert curve(one, "loss") == pytest.approx(plain[0]["loss"])
    assert plain[3] > 0, "the early stop came early"


@exhaustive
@pytest.mark.parametrize("source", [LIGHTNING, KERAS, TRANSFORMERS], ids=["lightning", "keras", "transformers"])
def test_requested_checkpoint_is_written_at_the_next_step(job: Build, source: str) -> None:
    asks = "if (call, step) == (1, 7):\n        __import__('jupyter_dlaas').run().checkpoint()"
    asking = source.replace("def trained(call, step):\n", f"def trained(call, step):\n    {asks}\n")
    one = job(asking, outputs=("result",), checkpoint_every_s=0, environment=keras_environment("torch"))
    one.output("pause").write_text("1-12")
    one.run()
    reach(one, "1-12")
    asked = one.wait(FactKind.CHECKPOINT)
    one.kill_learner(0)
    lost = one.wait(FactKind.LOST)
    go_on(one, "1-12")
    one.run()
    assert end_of(one) == "completed"

    assert lost.step == asked.step
    trained = second_training(one)
    assert trained[:12] == list(range(1, 13))
    assert trained[12:] == list(range(8, trained[-1] + 1)), "what follows the checkpoint, and nothing else"


@exhaustive
def test_repeated_short_trainings_count_once(job: Build) -> None:
    environment = keras_environment("jax")
    one = job(SHORT, outputs=("result",), environment=environment)
    one.output("pause").write_text("3-5")
    one.run()
    reach(one, "3-5")
    one.halt(grace_s=DEADLINE_S)
    go_on(one, "3-5", "stop")
    assert end_of(one) == "halted"
    one.run()
    until(lambda: one.output("between").exists() or _failed(one), "two trainings later", DEADLINE_S)
    one.halt(grace_s=DEADLINE_S)  # in the middle of something that is not ours: nothing is to be waited for
    assert end_of(one, 2) == "halted"
    go_on(one, "between")
    one.run()
    assert end_of(one, 3) == "completed"
    losses, rounds, _ = result(one)

    assert rounds == [1, 2, 3, 4, 5]
    assert curve(one, "loss") == pytest.approx(losses)
    assert len(losses) == 10
    counted = [
        (fact.epoch, step)
        for fact in one.facts(FactKind.COMMITTED)
        for step in range(fact.first_step or 0, fact.step or 0)
    ]
    assert sorted(counted) == [(step // 4, step) for step in range(40)], "each of the four steps of ten epochs, once"


def test_lightning_continues_at_the_next_batch(job: Build) -> None:
    untouched = job(LIGHTNING, outputs=("result",), autolog=False)
    untouched.run()
    one = job(LIGHTNING, outputs=("result",), checkpoint_every_s=0.0001)
    halt_and_kill(one, halt_at="1-9", kill_at="1-10")  # it continues from what it stored when it was resumed
    assert end_of(untouched) == "completed"
    plain, resumed = result(untouched), result(one)

    assert resumed == plain
    for name, place in (("train_loss", 0), ("val_loss", 1), ("early_epoch", 2)):
        assert curve(one, name) == pytest.approx(plain[0]["curves"][place] + plain[1]["curves"][place])
    assert steps(one).count("0 1") == 1, "a training that was through is not made again"
    assert second_training(one) == [*range(1, 11), *range(left_at(one), 25)], "nothing before its checkpoint"


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
