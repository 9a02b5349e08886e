"""Names whose objects a training cell has changed in place are found, wherever the change is; others are not."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from jupyter_dlaas.learner.process import changed_names
from jupyter_dlaas.learner.process.changed_names import ObjectContents

SETUP = """
import collections, datetime, enum, functools, itertools, threading
import numpy as np, pandas as pd, torch

Point = collections.namedtuple("Point", "at items")

class Log(list):
    def __iter__(self):
        raise AssertionError

class Phase(enum.Enum):
    WARM, COLD = 1, 2

class Meter:
    runs, names = 0, []
    def __init__(self):
        self.seen, self.lock, self.inner = [], threading.Lock(), None
    def see(self, value):
        self.seen.append(value)

def fit(value, into=[]):
    into.append(value)

def made():
    log = []
    def note(value):
        log.append(value)
    return note, log

note, log = made()
meter, numbers, table = Meter(), [1.0], {"loss": []}
held = Meter()
held.inner = Meter()
calls = [held.see]
bound = functools.partial(fit, into=[])
recent, counts, groups = collections.deque([1], maxlen=2), collections.Counter(), collections.defaultdict(list)
array, tensor, frame = np.zeros(2), torch.zeros(2), pd.DataFrame({"loss": [1.0]})
large, weights = np.zeros(100_000), torch.nn.Linear(2, 1)
many = list(range(200_000))
loader, lines = torch.utils.data.DataLoader([1, 2]), iter([1, 2])
point, lines_seen, state = Point(1, []), Log(), {"phase": Phase.WARM, "day": datetime.date(2026, 1, 1)}
chance = np.random.default_rng(0)
"""
CHANGES = {
    "numbers.append(2)": {"numbers"},
    "table['loss'].append(1)": {"table"},
    "meter.see(1)": {"meter"},
    "held.inner.see(1)": {"held", "calls"},
    "calls[0](1)": {"held", "calls"},
    "note(1)": {"note", "log"},
    "fit(1)": {"fit", "bound"},
    "fit.count = 1": {"fit", "bound"},
    "bound(1)": {"bound"},
    "Meter.runs += 1": {"Meter"},
    "Meter().names.append(1)": {"Meter"},
    "recent.append(2)": {"recent"},
    "counts['a'] += 1": {"counts"},
    "groups['a'].append(1)": {"groups"},
    "array += 1": {"array"},
    "tensor.add_(1)": {"tensor"},
    "frame.loc[1] = [2.0]": {"frame"},
    "point.items.append(1)": {"point"},
    "lines_seen.append(1)": {"lines_seen"},
    "state['phase'] = Phase.COLD": {"state"},
    "state['day'] = datetime.date(2026, 1, 2)": {"state"},
    "many.append(1)": {"many"},
    "numbers = [2]; meter = Meter()": set[str](),
    "meter.see(1); meter.seen.clear()": set[str](),
    "list(loader); next(lines); chance.random(); weights(tensor); sum(numbers); dict(table)": set[str](),
}


@pytest.mark.parametrize("cell", CHANGES)
def test_names_of_changed_objects_are_found(cell: str) -> None:
    space: dict[str, Any] = {"__name__": "__main__"}
    exec(SETUP, space)
    contents = ObjectContents(space)
    exec(cell, space)

    assert set(contents.changed(space)) == CHANGES[cell]


def test_names_that_refer_to_returned_objects_are_not_found() -> None:
    space: dict[str, Any] = {"__name__": "__main__"}
    exec(SETUP, space)
    contents = ObjectContents(space, {id(space["log"]), id(space["held"].inner)})
    exec("note(1); held.inner.see(1); meter.see(1)", space)

    assert contents.changed(space) == ["meter"]


def test_names_are_compared_up_to_a_number_of_objects(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(changed_names, "_OBJECTS_MAX", 100)
    space = {name: [number] * 30 for number, name in enumerate("abcdef")}
    contents = ObjectContents(space)
    for items in space.values():
        items.append(-1)

    assert contents.changed(space) == ["a", "b", "c", "d"]


def test_values_of_an_own_module_are_compared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "own_steps.py").write_text("import json\nhistory = []\ndef step():\n    history.append(1)\n")
    monkeypatch.syspath_prepend(tmp_path)
    space: dict[str, Any] = {"__name__": "__main__"}
    exec("import json, own_steps", space)
    contents = ObjectContents(space)
    assert contents.changed(space) == []
    space["own_steps"].step()
    monkeypatch.delitem(sys.modules, "own_steps")

    assert contents.changed(space) == ["own_steps"]


def test_code_of_the_program_does_not_run() -> None:
    called: list[str] = []

    class Loud:
        def __init__(self) -> None:
            self.seen: list[int] = []

        def __getattr__(self, name: str) -> Any:
            called.append(name)
            raise AttributeError(name)

        def __eq__(self, other: object) -> bool:
            called.append("__eq__")
            return True

        __hash__ = None  # type: ignore[assignment]

        def __reduce_ex__(self, protocol: Any) -> Any:
            called.append("__reduce_ex__")
            return super().__reduce_ex__(protocol)

        @property
        def size(self) -> int:
            called.append("size")
            return 1

    Loud.__module__ = "__main__"
    loud = Loud()
    contents = ObjectContents({"loud": loud})
    loud.seen.append(2)

    assert contents.changed({"loud": loud}) == ["loud"]
    assert called == []
