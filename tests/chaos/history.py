"""Verdict on a run of faults from a pool's files and its API: is anything lost, done twice, or left behind?

Each function returns sentences, one per violation; none where all is well.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

__all__ = ["Ended", "devices_held_twice", "of_end", "of_lines", "of_steps", "steps_covered"]

_RELATIVE: Final = 1e-3
"""Sums of gradients in another order differ in their last bits, and training carries that on."""


@dataclass
class Ended:
    """Record of one job after its end."""

    job: str
    kind: str
    state: str
    reason: str = ""
    is_cancelled: bool = False
    """A person cancelled it during the run."""
    facts: list[dict[str, Any]] = field(default_factory=list)
    logs: list[list[str]] = field(default_factory=list)
    """Lines of each member, oldest member first."""
    end: dict[str, Any] | None = None
    """What the program wrote as its last act."""


def of_end(job: Ended) -> list[str]:
    """Report an end that its owner did not want."""
    wanted = "CANCELLED" if job.is_cancelled else "COMPLETED"
    return [] if job.state == wanted else [f"{job.job} ended {job.state} instead of {wanted}: {job.reason}"]


def of_lines(job: Ended, lines: int) -> list[str]:
    """Of a program that prints `tick 0`, `tick 1` …, no log has a hole or a line twice, and the last one is whole."""
    found = []
    for member, log in enumerate(job.logs):
        seen = [line for line in log if line.startswith("tick ")]
        if seen != [f"tick {n}" for n in range(len(seen))]:
            found.append(
                f"{job.job}: the log of its learner {member + 1} of {len(job.logs)} has a hole or a line twice"
            )
    if job.state == "COMPLETED" and not any(f"tick {lines - 1}" in log for log in job.logs):
        found.append(f"{job.job}: completed, but no learner printed its last line")
    return found


def steps_covered(facts: Iterable[Mapping[str, Any]]) -> tuple[int, list[str]]:
    """Count the steps of a job that remain, from step 0 on without a gap, and list the gaps behind them.

    A generation begins at a step: whatever an earlier one had trained from there on was lost with it and is trained
    again. What a generation trained may be written down late, after the next one has begun.
    """
    begins: dict[int, int] = {}
    ranges: list[tuple[int, int]] = []
    for fact in facts:
        number = fact.get("generation", 0)
        if fact["kind"] in ("generation", "regrouped") and fact.get("step") is not None:
            begins[number] = fact["step"]
            ranges = [(first, min(end, fact["step"])) for first, end in ranges]
        elif fact["kind"] == "committed":
            later = [step for other, step in begins.items() if other > number]
            ranges.append((fact["first_step"], min([fact["step"], *later])))
    covered, found = 0, []
    for first, end in sorted(one for one in ranges if one[0] < one[1]):
        if first > covered:
            found.append(f"no learner trained steps {covered} to {first}")
        covered = max(covered, end)
    return covered, found


def of_steps(job: Ended, steps: int, undisturbed: Mapping[str, Any]) -> list[str]:
    """Check a loop of `run`: every step counts once, and its weights are those of the undisturbed program."""
    found = [f"{job.job}: {one}" for one in steps_covered(job.facts)[1]]
    if job.state != "COMPLETED":
        return found
    if (covered := steps_covered(job.facts)[0]) != steps:
        found.append(f"{job.job}: completed with {covered} of {steps} steps trained")
    if job.end is None:
        return [*found, f"{job.job}: completed without the file that its program writes last"]
    if job.end["steps"] != undisturbed["steps"]:
        found.append(f"{job.job}: its counter ended at {job.end['steps']}, undisturbed at {undisturbed['steps']}")
    if not _close(_flat(job.end["weights"]), _flat(undisturbed["weights"])):
        found.append(f"{job.job}: its weights are not those of the undisturbed program")
    return found


def devices_held_twice(learners: Mapping[str, Sequence[str]]) -> list[str]:
    """Devices that living learners of several jobs were given at one moment. `learners`: device -> jobs."""
    shared = {device: sorted(set(jobs)) for device, jobs in learners.items() if len(set(jobs)) > 1}
    return [f"{device} is held by {' and '.join(jobs)}" for device, jobs in shared.items()]


def _flat(rows: Sequence[Sequence[float]]) -> list[float]:
    return [value for row in rows for value in row]


def _close(a: Sequence[float], b: Sequence[float]) -> bool:
    if len(a) != len(b):
        return False
    return all(math.isclose(x, y, rel_tol=_RELATIVE, abs_tol=_RELATIVE) for x, y in zip(a, b, strict=True))
