"""The checker finds each violation in a history that has it; a short run of random faults has none."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.chaos.history import Ended, devices_held_twice, of_end, of_lines, of_steps, steps_covered
from tests.selection import exhaustive

UNDISTURBED: dict[str, Any] = {"steps": 20, "weights": [[1.0, 2.0], [0.5]]}


def trained(first: int, last: int, generation: int = 1) -> dict[str, Any]:
    return {"kind": "committed", "generation": generation, "first_step": first, "step": last}


def begins(step: int, generation: int = 1) -> dict[str, Any]:
    return {"kind": "generation", "generation": generation, "step": step}


HALTED_ONCE = [begins(0), trained(0, 12), begins(10, 2), trained(10, 15, 2), trained(15, 20, 2)]
WRITTEN_LATE = [begins(0), trained(0, 7), begins(10, 2), trained(10, 20, 2), trained(7, 12)]
WHOLE = Ended("loop-1", "elastic", "COMPLETED", facts=HALTED_ONCE, end=UNDISTURBED)
TICKS = Ended("plain-1", "plain", "COMPLETED", logs=[["tick 0"], ["tick 0", "tick 1", "tick 2"]])


def test_a_history_without_faults_has_no_violation() -> None:
    assert of_end(WHOLE) + of_steps(WHOLE, 20, UNDISTURBED) + of_lines(TICKS, 3) == []
    assert devices_held_twice({"n1/0": ["a"], "n1/1": ["b", "b"]}) == []


def test_steps_of_a_lost_generation_count_once() -> None:
    assert steps_covered(HALTED_ONCE) == (20, [])
    assert steps_covered(WRITTEN_LATE) == (20, [])


def test_generation_that_none_joined_begins_at_no_step() -> None:
    unchanged = {"kind": "generation", "generation": 2}
    assert steps_covered([begins(0), unchanged, begins(12, 3), trained(0, 12), trained(12, 20, 3)]) == (20, [])


@pytest.mark.parametrize(
    ("facts", "says"),
    [
        ([begins(0), trained(0, 8), trained(10, 20)], "no learner trained steps 8 to 10"),
        ([begins(0), trained(0, 8), begins(9, 2), trained(9, 20, 2)], "no learner trained steps 8 to 9"),
        ([begins(0), trained(0, 19)], "19 of 20 steps"),
        ([begins(0), trained(0, 20), begins(15, 2)], "15 of 20 steps"),
    ],
)
def test_lost_steps_are_found(facts: list[dict[str, Any]], says: str) -> None:
    assert says in " ".join(of_steps(replace(WHOLE, facts=facts), 20, UNDISTURBED))


@pytest.mark.parametrize(
    ("end", "says"),
    [
        (None, "without the file"),
        ({**UNDISTURBED, "steps": 21}, "its counter ended at 21"),
        ({**UNDISTURBED, "weights": [[1.0, 2.1], [0.5]]}, "its weights are not those"),
        ({**UNDISTURBED, "weights": [[1.0, 2.0]]}, "its weights are not those"),
    ],
)
def test_another_result_is_found(end: dict[str, Any] | None, says: str) -> None:
    assert says in " ".join(of_steps(replace(WHOLE, end=end), 20, UNDISTURBED))


@pytest.mark.parametrize(
    "log", [["tick 0", "tick 2"], ["tick 0", "tick 1", "tick 1", "tick 2"], ["tick 0", "tick 1"]], ids=repr
)
def test_lost_and_doubled_lines_are_found(log: list[str]) -> None:
    assert of_lines(replace(TICKS, logs=[log]), 3)


def test_a_wrong_end_and_a_shared_device_are_found() -> None:
    assert of_end(replace(WHOLE, state="FAILED", reason="why")) == ["loop-1 ended FAILED instead of COMPLETED: why"]
    assert of_end(replace(WHOLE, is_cancelled=True))
    assert devices_held_twice({"n1/0": ["b", "a"]}) == ["n1/0 is held by a and b"]


@exhaustive
@pytest.mark.timeout(900)
def test_random_faults_lose_nothing() -> None:
    ended = subprocess.run(
        [sys.executable, "-m", "tests.chaos", "--kills", "40"],
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 0, ended.stdout[-4000:] + ended.stderr[-2000:]
