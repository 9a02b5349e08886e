"""Context managers around the batches: after a halt in their body, their ends restore what they found at first."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import numpy as np
import pytest

from tests.learner.in_process import SETUP, run_with_halts, start

HEAD: Final = f"""{SETUP}
import contextlib
data, seen, calls = torch.ones(20, 1), [], []
model, other = nn.Linear(1, 1), nn.Linear(1, 1)
opt = torch.optim.SGD(model.parameters(), lr=0.1)
run = dlaas.run()
group = opt.param_groups[0]
def rate(): return group["lr"]

@contextlib.contextmanager
def lr(x):
    old = group["lr"]
    group["lr"] = x
    yield
    group["lr"] = old

@contextlib.contextmanager
def evaluating(net):
    was = net.training
    net.eval()
    try: yield
    finally: net.train(was)

@contextlib.contextmanager
def watched(net):
    handle = net.register_forward_hook(lambda *_: calls.append(1))
    yield
    handle.remove()

class Rate:
    def __init__(self, x): self.x = x
    def __enter__(self):
        self.old = group["lr"]
        group["lr"] = self.x
        return self
    def __exit__(self, *_): group["lr"] = self.old

class Slots(Rate):
    __slots__ = ("x", "old")

above = Rate(0.5)
"""
LOOP: Final = """
for epoch in run.epochs(3):
    seen.append((epoch, state()))
    with {}:
        for batch in run.batches(data, 5):
            seen.append((run.step, state()))
            model(batch)
    seen.append(state())
result = seen
"""
IN_FUNCTION: Final = "def train():" + LOOP.replace("\n", "\n    ") + "\ntrain()\nresult = seen"
ENTERED: Final = """
for epoch in run.epochs(3):
    with contextlib.ExitStack() as stack:
        stack.enter_context(lr(0.5))
        for batch in run.batches(data, 5): seen.append(rate())
    seen.append(rate())
result = seen
"""
DECORATED: Final = """
@lr(0.5)
def train():
    for batch in run.batches(data, 5): seen.append(rate())
for epoch in run.epochs(3):
    train()
    seen.append(rate())
result = seen
"""
TWICE: Final = """
for epoch in run.epochs(3):
    with Rate(0.5) as first:
        for batch in run.batches(data, 10): seen.append((rate(), first.x))
    with Rate(0.3) as second:
        for batch in run.batches(data, 10): seen.append((rate(), second.x))
    seen.append((rate(), first.old, second.old))
result = seen
"""
PATCHED: Final = """
from unittest import mock
class Settings: gain = 1
settings, table = Settings(), {"gain": 1}
def base(by):
    Settings.gain += by
    settings.level = getattr(settings, "level", 0) + by
    table["gain"] += by
def values(): return (settings.gain, settings.level, dict(table))
def train(epoch):
    base(1 + epoch)
    level = mock.patch.object(settings, "level", 8)
    with mock.patch.object(Settings, "gain", 9), level, mock.patch.dict(table, gain=7):
        for batch in run.batches(data, 5): seen.append(values())
    with contextlib.ExitStack() as stack:
        stack.enter_context(mock.patch.object(settings, "level", 5))
        for batch in run.batches(data, 10): seen.append(values())
    mock.patch.multiple(settings, level=6)(decorated)()
    seen.append(values())
def decorated():
    for batch in run.batches(data, 10): seen.append(values())
for epoch in run.epochs(3): train(epoch)
result = seen
"""
STACKED: Final = """
def train():
    with contextlib.ExitStack() as stack:
        stack.callback({})
        group["lr"] = 0.5
        for batch in run.batches(data, 5): seen.append(rate())
for epoch in run.epochs(3): train()
"""
ABOVE: Final = "with lr(0.5):" + LOOP.replace("\n", "\n    ") + "\nresult = (seen, rate())"
KEPT: Final = {
    "generator": (LOOP.format("lr(0.5)"), "rate()"),
    "value derived from the state": (LOOP.format("lr(rate() * 2)"), "rate()"),
    "generator in a function": (IN_FUNCTION.format("lr(0.5)"), "rate()"),
    "two models": (LOOP.format("evaluating(model), evaluating(other)"), "(model.training, other.training)"),
    "hook": (LOOP.format("watched(model)"), "(len(model._forward_hooks), len(calls))"),
    "object": (LOOP.format("Rate(0.5)"), "rate()"),
    "object with a name": (IN_FUNCTION.format("Rate(0.5) as named"), "rate()"),
    "object with slots": (LOOP.format("Slots(0.5)"), "rate()"),
    "object above the loop": (LOOP.format("above"), "(rate(), above.x)"),
    "one after another": (TWICE, "0"),
    "exit stack": (ENTERED, "0"),
    "decorator": (DECORATED, "0"),
    "patches": (PATCHED, "0"),
    "above the loop": (ABOVE.format("contextlib.nullcontext()"), "rate()"),
    "random streams": (LOOP.format("torch.random.fork_rng()"), "torch.rand(1).item()"),
    "settings": (LOOP.format("np.errstate(under='raise')"), "np.geterr()['under']"),
}
"""By name: a loop, and the state that its context managers change."""


@pytest.fixture(scope="module", autouse=True)
def _few_objects() -> Iterator[None]:
    """Search only new objects for context managers, as in learners, which are forked with frozen objects."""
    gc.freeze()
    yield
    gc.unfreeze()


@pytest.mark.parametrize("name", KEPT)
def test_ends_of_context_managers_restore_the_former_values(tmp_path: Path, name: str) -> None:
    loop, state = KEPT[name]
    source = f"{HEAD}\ndef state(): return {state}\n{loop}"
    with np.errstate():
        alone = run_with_halts(tmp_path / "alone", source)["result"]
        halted = run_with_halts(tmp_path / "halted", source, (6, 3))["result"]
    assert halted == alone


def test_decorator_made_of_a_manager_is_not_reported(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    start(tmp_path, HEAD + DECORATED, stop_at=2)
    assert "would restart" not in capfd.readouterr().err


@pytest.mark.parametrize("entered", ["lr(0.5), lr(0.3)", "Rate(0.5), Rate(0.3)"])
def test_nested_managers_of_one_kind_are_reported(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], entered: str
) -> None:
    start(tmp_path, f"{HEAD}\nstate = rate\n{LOOP.format(entered)}", stop_at=2)
    said = capfd.readouterr().err
    assert f"cannot keep `with {entered.partition('(')[0]}()` (it is entered more than once at the same time" in said
    assert "keep the values that its end restores in variables of the loop" in said


def test_a_manager_that_cannot_be_found_again_is_reported(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    source = f"{HEAD}\nstate = rate\n"
    start(tmp_path, source + LOOP.format("lr(0.5)"), stop_at=2)
    start(tmp_path, source + LOOP.format("Rate(0.5)"))
    assert "`with lr()` was not entered again before this step" in capfd.readouterr().err


@pytest.mark.parametrize(
    ("given", "name"),
    [
        ("group.__setitem__, 'lr', rate()", "dict.__setitem__"),
        ("lambda old=rate(): group.update(lr=old)", "train.<locals>.<lambda>"),
    ],
)
def test_values_given_to_an_exit_stack_are_reported(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], given: str, name: str
) -> None:
    start(tmp_path, HEAD + STACKED.format(given), stop_at=2)
    said = capfd.readouterr().err
    assert f"cannot keep `stack.callback({name})` (the end of its with statement calls it with values from" in said
    assert "restore them from variables of the loop in `finally:` instead" in said


def test_callbacks_of_an_exit_stack_without_values_are_quiet(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    start(tmp_path, HEAD + STACKED.format("lambda: calls.append(1)"), stop_at=2)
    assert "stack.callback" not in capfd.readouterr().err
