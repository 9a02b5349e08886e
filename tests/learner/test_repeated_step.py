"""A step that is made again changes the program's own objects once, or the card names what may have changed twice."""

from __future__ import annotations

import collections
import copy
import importlib
import io
import itertools
import threading
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from jupyter_dlaas.learner.checkpoint.namespace import Namespace
from jupyter_dlaas.learner.elastic.gradient_snapshot import Accumulated
from jupyter_dlaas.learner.elastic.step_gate import Gate
from jupyter_dlaas.learner.log_capture import tqdm_bars
from jupyter_dlaas.learner.reporting import progress_bars
from jupyter_dlaas.learner.reporting.progress_bars import Numbered
from jupyter_dlaas.learner.training_run import step_rollback
from jupyter_dlaas.learner.training_run.step_rollback import RepeatedStep


class Meter:
    """As in many programs: counts, and holds what it has seen."""

    def __init__(self) -> None:
        self.count, self.total, self.seen = 0, torch.zeros(()), collections.Counter[str]()
        self.inner: Any = types.SimpleNamespace(tensor=torch.zeros(2), number=0)

    def update(self) -> None:
        self.count += 1
        self.seen["steps"] += 1


class Program:
    """A program of this module whose step is torn: `before` the backward pass, and `after` it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, **script: Any) -> None:
        self.script, self.reports = script, list[str]()
        monkeypatch.setattr(step_rollback, "report", lambda code, text: self.reports.append(text))
        gate = types.SimpleNamespace(on_step=None)
        self.run: Any = types.SimpleNamespace(user_values={}, rank=0, step=4, objects=[], gate=gate)
        self.run.namespace = Namespace(script, (Path(__file__),), [])

    def tear(self, before: Callable[[], object], after: Callable[[], object]) -> None:
        """Make the step twice, of which the first does not count."""
        context: Any = types.SimpleNamespace(script=self.script)
        step = RepeatedStep(self.run, context)
        before()
        step.note()
        after()
        step.undo()
        compare = step.watch_again()
        before()
        assert compare is not None
        compare()
        after()


def nothing() -> None:
    """Neither before nor after."""


AVERAGES: list[tuple[Any, Callable[[Any], object]]] = [
    (nn.Linear(2, 1), lambda one: one.weight.data.mul_(0.9).add_(0.1)),
    ({"w": torch.ones(3)}, lambda one: one.update(w=one["w"] * 0.5)),
    ({"w": torch.ones(3)}, lambda one: one["w"].add_(1.0)),
    (np.ones(4), lambda one: np.add(one, 1.0, out=one)),
    (collections.deque([1, 2], maxlen=2), lambda one: one.append(one[-1] + 1)),
    (types.SimpleNamespace(best=[1.0], wait=0), lambda one: vars(one).update(best=[*one.best, 2.0], wait=one.wait + 1)),
    ([{"n": [{"m": 1}]}], lambda one: one[0]["n"][0].update(m=one[0]["n"][0]["m"] + 1)),
]


def flat(value: Any) -> Any:
    return [p.detach().tolist() for p in value.parameters()] if isinstance(value, nn.Module) else value


@pytest.mark.parametrize(("value", "change"), AVERAGES)
def test_code_after_the_backward_pass_counts_once(
    monkeypatch: pytest.MonkeyPatch, value: Any, change: Callable[[Any], object]
) -> None:
    once, program = copy.deepcopy(value), Program(monkeypatch, kept=value)
    change(once)

    program.tear(nothing, lambda: change(value))

    assert str(flat(value)) == str(flat(once))
    assert program.reports == []


def test_counters_before_the_backward_pass_count_once(monkeypatch: pytest.MonkeyPatch) -> None:
    meter, local, losses = Meter(), 0, [0.1]
    program = Program(monkeypatch, meter=meter, trainer=types.SimpleNamespace(name="x"))
    program.script["history"] = collections.defaultdict(list, loss=[0.1])

    def before() -> None:
        nonlocal local
        meter.update()
        losses.append(0.2)
        local += 1
        program.script["history"]["loss"].append(0.2)

    program.tear(before, nothing)

    assert (meter.count, meter.seen["steps"], local, losses) == (1, 1, 1, [0.1, 0.2])
    assert program.script["history"] == {"loss": [0.1, 0.2]}
    assert program.reports == []


def test_double_counting_before_the_backward_pass_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    meter = Meter()
    program = Program(monkeypatch, meter=meter)

    program.tear(lambda: meter.inner.tensor.add_(1.0), nothing)

    assert meter.inner.tensor.tolist() == [2.0, 2.0]
    assert [one.partition(" may count")[0] for one in program.reports] == [
        "Step 5 is repeated, because a learner was lost in it: `meter.inner.tensor`"
    ]


def test_cached_values_of_a_step_are_not_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    cache, opt = types.SimpleNamespace(features=None, model=nn.Linear(1, 1)), {"deep": [[{"lr": 0.1}]]}
    program = Program(monkeypatch, cache=cache, opt=opt, chance=np.random.default_rng(0))

    def before() -> None:
        cache.features = torch.ones(3)
        cache.model.train(not cache.model.training)
        opt["deep"][0][0]["lr"] = 0.05
        program.script["chance"].random()

    program.tear(before, nothing)

    assert program.reports == []


def test_failure_in_another_thread_precedes_the_optimiser_step() -> None:
    model, noted = nn.Linear(1, 1), list[float]()
    opt, gate, before = torch.optim.SGD(model.parameters(), lr=1.0), Gate(), model.weight.item()
    gate.optimizer("opt", opt)
    gate.on_failure = lambda: noted.append(model.weight.item())
    gate.begin()
    model(torch.ones(1, 1)).sum().backward()
    thread = threading.Thread(target=gate.fail)
    thread.start()
    thread.join()
    assert noted == []

    opt.step()
    opt.step()

    assert noted == [before]
    assert model.weight.item() == before
    assert gate.end() is False


def test_a_program_that_cannot_be_watched_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    program = Program(monkeypatch)
    step = RepeatedStep(program.run, types.SimpleNamespace(script=program.script))  # type: ignore[arg-type]

    def refuse(self: RepeatedStep) -> Any:
        raise LookupError("no look")

    monkeypatch.setattr(RepeatedStep, "_snapshot", refuse)

    assert step.watch_again() is None
    assert "before its backward pass (LookupError: no look) may count it twice" in program.reports[0]


def test_objects_of_a_gang_are_stored_without_its_methods() -> None:
    opt = torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], lr=0.1)
    plan, scaler, gate = torch.optim.lr_scheduler.StepLR(opt, 1), torch.amp.GradScaler("cpu"), Gate()
    before = [dict(vars(one)) for one in (opt, plan, scaler)]
    gate.optimizer("opt", opt)
    gate.scheduler("plan", plan)
    gate.scaler("scaler", scaler)

    gate.release()

    assert [dict(vars(one)) for one in (opt, plan, scaler)] == before


def windows(step: int, opt: torch.optim.Optimizer, loss: torch.Tensor) -> None:
    loss.backward()
    if step % 3 == 2:
        opt.step()
        opt.zero_grad()


def cleared_first(step: int, opt: torch.optim.Optimizer, loss: torch.Tensor) -> None:
    if step % 3 == 0:
        opt.zero_grad()
    loss.backward()
    if step % 3 == 2:
        opt.step()


def as_usual(_: int, opt: torch.optim.Optimizer, loss: torch.Tensor) -> None:
    opt.zero_grad()
    loss.backward()
    opt.step()


def zeroed(_: int, opt: torch.optim.Optimizer, loss: torch.Tensor) -> None:
    opt.zero_grad(set_to_none=False)
    loss.backward()
    opt.step()


def never_cleared(_: int, opt: torch.optim.Optimizer, loss: torch.Tensor) -> None:
    loss.backward()
    opt.step()


def sometimes_cleared(step: int, opt: torch.optim.Optimizer, loss: torch.Tensor) -> None:
    if step % 2:
        opt.zero_grad()
    never_cleared(step, opt, loss)


STYLES = (windows, cleared_first, as_usual, zeroed, never_cleared, sometimes_cleared)


@pytest.mark.parametrize("style", STYLES, ids=[one.__name__ for one in STYLES])
def test_accumulated_gradients_are_those_of_an_unrepeated_run(style: Callable[..., None]) -> None:
    """Beside the style's optimiser another one steps in each step, as in a GAN."""

    def weights(torn: set[int]) -> list[Any]:
        torch.manual_seed(0)
        one, other, data, number = nn.Linear(2, 1), nn.Linear(2, 1), torch.randn(9, 4, 2), [0]
        opts = [torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.5) for model in (one, other)]
        gate, named = Gate(), [("one", one), ("other", other), ("opt", opts[0]), ("other_opt", opts[1])]
        for name, opt in named[2:]:
            gate.optimizer(name, opt)
        accumulated = Accumulated(named, lambda: number[0])
        for step in range(9):
            for is_torn in (True, False) if step in torn else (False,):
                accumulated.keep(may_lose=True)
                number[0] = step + 1
                gate.begin()
                if is_torn:
                    gate.fail()
                style(step, opts[0], one(data[step]).square().mean())
                as_usual(step, opts[1], other(data[step]).square().mean())
                if not gate.end():
                    accumulated.undo()
        return [flat(one), flat(other)]

    expected = weights(set())

    assert [weights({step}) for step in range(9)] == [expected] * 9
    assert weights({0, 4, 5, 8}) == expected


def bar_class() -> Any:
    """Return tqdm as it is in a job, and leave that of this process as it is."""
    std = types.SimpleNamespace(tqdm=type("tqdm", (importlib.import_module("tqdm").tqdm,), {}))
    tqdm_bars._patch(std, None)
    return std.tqdm


class Pass(Numbered):
    """Four batches, of which the third is yielded twice; the first ones were done before a restart."""

    def __init__(self, begin: int = 0) -> None:
        self.begin = begin

    def __len__(self) -> int:
        return 4

    def __iter__(self) -> Iterator[int]:
        for index in range(self.begin, 4):
            for is_torn in (True, False) if index == 2 else (False,):
                self.index, marked = index, progress_bars.mark()
                yield index
                if is_torn:
                    progress_bars.back_to(marked)


@pytest.mark.parametrize("begin", [0, 2, 3])
def test_a_bar_over_batches_counts_a_repeated_step_once(begin: int) -> None:
    counts, bar = list[int](), bar_class()(Pass(begin), file=io.StringIO())

    for _ in bar:
        counts.append(bar.n)

    assert counts == [index for index in range(begin, 4) for _ in range(2 if index == 2 else 1)]
    assert bar.n == bar.total == 4


@pytest.mark.parametrize("wrap", [iter, lambda one: zip(one, itertools.count()), lambda one: (x for x in one)])
def test_bars_over_other_iterables_count_a_repeated_step_once(wrap: Callable[[Any], Any]) -> None:
    kind = bar_class()
    by_hand, bar = kind(total=4, file=io.StringIO()), kind(wrap(Pass()), file=io.StringIO())

    for _ in bar:
        by_hand.update()

    assert (bar.n, by_hand.n) == (4, 4)
    by_hand.close()
    assert progress_bars.mark() == []
