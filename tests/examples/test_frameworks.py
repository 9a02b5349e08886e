"""The examples of other frameworks train; halted while they train, they continue and end as if undisturbed."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from jupyter_dlaas.transfer.results import load
from jupyter_dlaas.wire.journal import FactKind
from tests.runtime.jobs import Job, until
from tests.selection import each_nth, exhaustive

EXAMPLES = Path(__file__).parents[2] / "examples" / "frameworks"
DEADLINE_S = 240.0
"""A framework takes up to eight seconds of a core to be imported, three times a test."""
PACE = "__import__('time').sleep(0 if (run.output_dir / 'hurry').exists() else 0.02)"
"""Each step takes a while until the job has halted once: a quick machine would train all of it before it is asked."""
ENVIRONMENT = {"TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": "", "KERAS_BACKEND": "tensorflow"}

pytestmark = pytest.mark.timeout(900)
Build = Callable[..., Job]


def accuracy(job: Job) -> Any:
    return load((job.dir / "results" / "accuracy.bin").read_bytes())


def steps_done(job: Job) -> int:
    try:
        return int(json.loads((job.dir / "progress.json").read_text())["step"])
    except (OSError, ValueError):
        return 0


def test_each_example_is_tried_here() -> None:
    tried = {"jax_digits", "sklearn_digits", "keras_digits", "lightning_digits", "huggingface_digits"}

    assert {path.stem for path in EXAMPLES.glob("*.py")} == tried | {"fsdp2_digits", "plain_python"}


def paced(source: str) -> str:
    """Return the example with one more line in its loop over batches."""
    found, loops = re.subn(r"^( *)for .* in run\.batches\(.*:\n", rf"\g<0>\1    {PACE}\n", source, flags=re.MULTILINE)
    assert loops == 1
    return found


def halted_and_resumed(job: Build, source: str) -> Job:
    """Let it leave in the middle and continue."""
    one = job(source, outputs=("accuracy",), environment=ENVIRONMENT)
    one.run()
    until(lambda: steps_done(one) > 20, f"it trains\n{one.report()}", DEADLINE_S)
    one.halt(grace_s=DEADLINE_S)
    assert one.closed(deadline_s=DEADLINE_S) == "halted", one.report()
    assert one.wait(FactKind.HALTED).has_checkpoint
    left = steps_done(one)
    one.output("hurry").touch()
    one.run()
    assert one.closed(2, deadline_s=DEADLINE_S) == "completed", one.report()
    assert steps_done(one) > left
    return one


@pytest.mark.parametrize("name", each_nth(["huggingface", "sklearn", "keras", "lightning"], 4))
def test_an_example_trains_as_it_is(job: Build, name: str) -> None:
    one = job((EXAMPLES / f"{name}_digits.py").read_text(), outputs=("accuracy",), environment=ENVIRONMENT)
    one.run()

    assert one.closed(deadline_s=DEADLINE_S) == "completed", one.report()
    assert accuracy(one) > 0.9


@exhaustive
@pytest.mark.parametrize("name", ["jax", "sklearn"])
def test_a_loop_of_run_ends_as_an_undisturbed_one(job: Build, name: str) -> None:
    source = (EXAMPLES / f"{name}_digits.py").read_text()
    untouched = job(source, outputs=("accuracy",), environment=ENVIRONMENT)
    untouched.run()
    assert untouched.closed(deadline_s=DEADLINE_S) == "completed", untouched.report()

    assert accuracy(halted_and_resumed(job, paced(source))) == accuracy(untouched) > 0.9


@exhaustive
@pytest.mark.parametrize("name", ["keras", "lightning", "huggingface"])
def test_unchanged_framework_loop_halts_and_continues(job: Build, name: str) -> None:
    source = (EXAMPLES / f"{name}_digits.py").read_text()
    assert "dlaas" not in source

    assert accuracy(halted_and_resumed(job, source)) > 0.9


def test_sharded_weights_go_on_at_another_number_of_learners(job: Build) -> None:
    source = paced((EXAMPLES / "fsdp2_digits.py").read_text())
    one = job(source, outputs=("accuracy",), environment=ENVIRONMENT, framework="torch")
    one.run(learners=2)
    until(lambda: steps_done(one) > 20, f"it trains\n{one.report()}", DEADLINE_S)
    one.halt(grace_s=DEADLINE_S)
    assert one.closed(deadline_s=DEADLINE_S) == "halted", one.report()
    left = steps_done(one)
    one.output("hurry").touch()
    one.run(learners=1)

    assert one.closed(2, deadline_s=DEADLINE_S) == "completed", one.report()
    assert steps_done(one) > left
    assert accuracy(one) > 0.9


@exhaustive
def test_lost_gang_continues_from_complete_sharded_weights(job: Build) -> None:
    source = (EXAMPLES / "fsdp2_digits.py").read_text()
    one = job(source, outputs=("accuracy",), environment=ENVIRONMENT, framework="torch", checkpoint_every_s=0.01)
    one.run(learners=1)
    until(lambda: steps_done(one) > 20, f"it trains\n{one.report()}", DEADLINE_S)
    one.run(learners=2)
    grown = one.wait(FactKind.GENERATION, 2, DEADLINE_S)
    assert grown.step, one.report()
    asked = until(
        lambda: [f for f in one.facts(FactKind.CHECKPOINT) if f.generation == 2], "one is asked for", DEADLINE_S
    )
    assert asked[0].epoch == 10, "none is written by time, where all must take part"
    one.kill_learner(2)
    assert one.wait(FactKind.LOST, deadline_s=DEADLINE_S).step
    one.run(learners=2)

    assert one.closed(deadline_s=DEADLINE_S) == "completed", one.report()
    assert accuracy(one) > 0.9


def test_any_program_halts_on_request_and_finds_its_files(job: Build) -> None:
    source = (EXAMPLES / "plain_python.py").read_text()
    one = job(source, outputs=("step", "place"))
    one.run()
    one.wait(FactKind.LEARNER_READY)
    one.halt(grace_s=DEADLINE_S)
    assert one.closed(deadline_s=DEADLINE_S) == "halted", one.report()
    one.run()

    assert one.closed(2, deadline_s=DEADLINE_S) == "completed", one.report()
    assert load((one.dir / "results" / "step.bin").read_bytes()) == 1_000_000
