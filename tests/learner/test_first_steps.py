"""A training whose optimiser moves no model that the job returns or has prepared says so; all others say nothing."""

from __future__ import annotations

import copy
import sys
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from jupyter_dlaas.learner.training_run import weight_update_check
from jupyter_dlaas.learner.training_run.weight_update_check import FirstSteps
from jupyter_dlaas.wire.journal import FactKind
from tests.learner.test_watching import Build, ran


@pytest.fixture(autouse=True)
def _to_stderr(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(weight_update_check, "report", lambda _, text: print(f"[{text}]", file=sys.stderr))


def checked(**script: Any) -> FirstSteps:
    """Run a check in a job that returns all of these names."""
    context: Any = SimpleNamespace(spec=SimpleNamespace(outputs=tuple(script)), script=script)
    return FirstSteps(context)


def train(check: FirstSteps, model: nn.Module, opt: torch.optim.Optimizer, steps: int) -> None:
    for _ in range(steps):
        opt.zero_grad()
        model(torch.ones(1, 2)).sum().backward()
        opt.step()
        check.stepped(opt)


def sgd(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.1)


SAID = "[The optimiser moves no weight of model: it was made over another model than the one that is trained."


def test_an_optimiser_over_another_model_is_reported_while_it_trains(capsys: pytest.CaptureFixture[str]) -> None:
    model = nn.Linear(2, 1)
    check, opt = checked(model=model), sgd(nn.Linear(2, 1))

    train(check, model, opt, 9)
    assert capsys.readouterr().err == ""
    train(check, model, opt, 1)
    assert capsys.readouterr().err.startswith(SAID)
    train(check, model, opt, 20)
    check.end()
    assert capsys.readouterr().err == "", "once"


def test_a_short_training_is_reported_at_its_end(capsys: pytest.CaptureFixture[str]) -> None:
    model, other = nn.Linear(2, 1), nn.Linear(2, 1)
    check = checked(model=model)

    train(check, other, sgd(other), 2)
    assert capsys.readouterr().err == ""
    check.end()

    assert capsys.readouterr().err.startswith(SAID)


def test_training_of_the_returned_model_gives_no_warning(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    model = nn.Linear(2, 1)
    check, opt = checked(model=model), sgd(model)
    train(check, model, opt, 1)
    monkeypatch.setattr(check, "_weights", None)

    train(check, model, opt, 20)
    check.end()

    assert capsys.readouterr().err == ""


def test_two_optimisers_that_take_turns_say_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    critic, model = nn.Linear(2, 1), nn.Linear(2, 1)
    check, first, second = checked(model=model), sgd(critic), sgd(model)

    train(check, critic, first, 25)
    train(check, model, second, 1)
    check.end()

    assert capsys.readouterr().err == ""


def test_model_bound_only_at_the_end_gives_no_warning(capsys: pytest.CaptureFixture[str]) -> None:
    old, new = nn.Linear(2, 1), nn.Linear(2, 1)
    script = {"model": old}
    check = checked(**script)
    check._context.script.update(script)

    train(check, new, sgd(new), 20)
    check._context.script["model"] = new
    check.end()

    assert capsys.readouterr().err == ""


def test_returned_moving_average_gives_no_warning(capsys: pytest.CaptureFixture[str]) -> None:
    model = nn.Linear(2, 1)
    average = copy.deepcopy(model)
    check = checked(average=average)

    train(check, model, sgd(model), 20)
    average.weight.data.lerp_(model.weight.data, 0.5)
    check.end()

    assert capsys.readouterr().err == ""


def test_job_without_a_model_result_gives_no_warning(capsys: pytest.CaptureFixture[str]) -> None:
    model = nn.Linear(2, 1)
    check = checked(history=[1.0])

    for _ in range(12):
        train(check, model, sgd(model), 12)
    check.end()

    assert capsys.readouterr().err == ""


def test_log_and_journal_of_a_job_say_it(job: Build) -> None:
    program = """
        import torch
        model = torch.nn.Linear(2, 1)
        opt = torch.optim.SGD({over}.parameters(), lr=0.1)
        for _ in range(3):
            opt.zero_grad()
            model(torch.ones(1, 2)).sum().backward()
            opt.step()
        """

    apart = ran(job, program.format(over="torch.nn.Linear(2, 1)"), deadline_s=300.0, outputs=("model",))
    right = ran(job, program.format(over="model"), deadline_s=300.0, outputs=("model",))

    assert SAID in apart.log()
    assert [one.note.text[:30] for one in apart.facts(FactKind.REPORT) if one.note is not None] == [SAID[1:31]]
    assert SAID not in right.log()
    assert right.facts(FactKind.REPORT) == []
