"""Learners that decide on their own data: they end together, or the job says who did what, and where."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from jupyter_dlaas.learner.elastic.collective_tag import Kind, tag_of
from jupyter_dlaas.learner.training_run.divergence import left_at, report_of_epochs, what_diverged
from jupyter_dlaas.wire.journal import FactKind
from jupyter_dlaas.wire.protocol import Cause
from tests.learner.fake_nccl import INSTALL
from tests.learner.live_programs import result
from tests.learner.loop_programs import LOOPS, program
from tests.learner.test_loops import OPTIONS
from tests.runtime.jobs import Job
from tests.selection import covering

Build = Callable[..., Job]


def noting(lines: list[int]) -> Iterator[int]:
    try:
        yield from range(5)
    except GeneratorExit:
        lines.append(left_at())
        raise


def through(inner: Iterator[int]) -> Iterator[int]:
    yield from inner


@pytest.mark.parametrize("bar", [iter, through, enumerate], ids=["plain", "a bar", "enumerate"])
def test_left_loop_reports_its_line(bar: Callable[[Iterator[int]], Any]) -> None:
    lines: list[int] = []

    def returns() -> Any:
        for one in bar(noting(lines)):
            return one
        return None

    for _ in bar(noting(lines)):
        break
    returns()

    assert len(lines) == 2
    assert max(lines) < 0, "in a module"
    assert lines[0] < lines[1]


@pytest.mark.parametrize("bar", [iter, through], ids=["plain", "a bar"])
def test_a_loop_that_an_error_ends_was_not_left(bar: Callable[[Iterator[int]], Any]) -> None:
    lines: list[int] = []

    def fails() -> None:
        for one in bar(noting(lines)):
            raise ValueError(one)

    with pytest.raises(ValueError, match="0"):
        fails()
    next(bar(noting(lines)))

    assert lines == [0, 0]


@pytest.mark.parametrize(
    ("said", "at", "expected"),
    [
        (
            [(7, Kind.GRADIENTS), (8, Kind.GRADIENTS)],
            ["", ""],
            "Learner 1 continued to step 8 of the job without a backward",
        ),
        ([(50, Kind.GRADIENTS), (49, Kind.GRADIENTS)], ["", ""], "Learner 0 continued to step 50"),
        (
            [(7, Kind.GRADIENTS), (7, Kind.LEFT)],
            ["", " at line 12"],
            "Learner 1 left the loop over run.batches at line 12 in epoch 2",
        ),
        ([(7, Kind.LEFT), (8, Kind.GRADIENTS), (7, Kind.LEFT)], [" at", "", " at"], "Learners 0, 2 left the loop"),
        ([(7, Kind.EPOCH), (7, Kind.LATE_GRADIENTS)], ["", ""], "Learner 0 ended epoch 2 before the others"),
        ([(7, Kind.GRADIENTS), (7, Kind.LATE_GRADIENTS)], ["", ""], "find_unused_parameters"),
    ],
)
def test_divergence_report_names_learners_and_their_actions(said: Any, at: list[str], expected: str) -> None:
    words = [tag_of(step, kind) for step, kind in said]
    assert expected in what_diverged(words, step=said[0][0], epoch=2, at=at)


def test_report_of_an_early_stop_gives_the_code() -> None:
    report = report_of_epochs(["", " at cell [3], line 30", ""], 4)
    assert "Learner 1 left the loop over run.epochs at cell [3], line 30 in epoch 4, and the others with it." in report
    assert 'run.log(reduce="mean", loss=loss)["loss"]' in report


def loops(inner: str = "", outer: str = "") -> str:
    """Return a loop that does something in each step, and something at the end of each epoch."""
    source = program(LOOPS["workers"]).replace(
        "run.batches(Points(), BATCH, num_workers=2)", "run.batches(Points(), BATCH)"
    )
    begin = "            step(i)\n"
    assert begin in source
    source = source.replace(begin, f"{begin}            {inner or 'pass'}\n")
    return source.replace(
        "            seen.append(counter)\n", f"            seen.append(counter)\n        {outer or 'pass'}\n"
    )


def ended(job: Build, source: str, size: int = 2, **options: Any) -> Job:
    one = job(source, **(OPTIONS | options))
    one.output("hurry").touch()
    one.run(size)
    return one


@pytest.mark.parametrize(("leaver", "elastic"), covering((rank, way) for rank in (0, 1) for way in ("manual", "off")))
def test_learners_end_together_where_one_stops_early(job: Build, leaver: int, elastic: str) -> None:
    source = loops(outer=f"if epoch == 2 and run.rank == {leaver}: break")
    one = ended(job, source, elastic=elastic)

    assert one.closed() == "completed", one.report()
    assert result(one, "result")["steps"] == 27
    assert f"Learner {leaver} left the loop over run.epochs at train.py, line" in one.log()
    assert "in epoch 2, and the others with it." in one.log()


def test_learners_that_all_stop_early_end_without_a_word(job: Build) -> None:
    one = ended(job, loops(inner="if run.step == 22: break", outer="if epoch == 2: break"))

    assert one.closed() == "completed", one.report()
    assert "left the loop" not in one.log()


def test_learners_that_stop_by_the_mean_stop_alike(job: Build) -> None:
    mean = 'if run.log(reduce="mean", own=float(run.rank + epoch))["own"] > 2: break'
    one = ended(job, loops(outer=mean))

    assert one.closed() == "completed", one.report()
    assert result(one, "result")["steps"] == 27, "epochs 0, 1 and 2"
    assert "left the loop" not in one.log()


OTHER_WAYS = {
    "if run.step == 13 and run.rank == 1: break": "Learner 1 left the loop over run.batches at train.py, line",
    "if run.step == 13 and run.rank == 0: continue": "Learner 0 continued to step 14 of the job without a backward",
    "if run.step == 18 and run.rank == 1: continue": "Learner 1 ended epoch 1 before the others",
    "if run.step == 54 and run.rank == 1: break": "Learner 1 left the loop over run.batches at train.py, line",
}
GANGS = {"live": ("", "manual"), "of fixed size": ("", "off"), "like GPUs": (INSTALL, "manual")}


@pytest.mark.parametrize(("inner", "gang"), covering((inner, gang) for inner in OTHER_WAYS for gang in GANGS))
def test_diverging_learner_fails_the_job_with_the_cause(job: Build, inner: str, gang: str) -> None:
    begins, elastic = GANGS[gang]
    one = ended(job, begins + loops(inner=inner), elastic=elastic)

    failure = one.wait(FactKind.LOST).failure
    assert failure is not None
    assert failure.cause is Cause.YOUR_CODE
    assert OTHER_WAYS[inner] in failure.what
    assert "run.log(reduce" in failure.what
    one.want_nothing()


def test_parameters_that_are_not_averaged_are_reported(job: Build) -> None:
    apart = "critic = nn.Linear(5, 1).double(); other = torch.optim.SGD(critic.parameters(), lr=0.1)"
    step = "critic(x).mean().backward(); other.step()"
    source = loops(inner=step).replace("counter, seen = 0, []", f"{apart}\ncounter, seen = 0, []")
    one = ended(job, source.replace("run.rank", "0"))

    assert one.closed() == "completed", one.report()
    assert one.log().count("SGD trains parameters that were not passed to run.prepare") == 1
