"""Progress of plain loops, from their ranges, counters and lists, without a line of ours in them."""

from __future__ import annotations

import sys
import weakref
from pathlib import Path
from textwrap import dedent, indent
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from jupyter_dlaas.learner.log_capture.log_position import Spot
from jupyter_dlaas.learner.log_capture.loop_progress import Frame, Loops, Program
from jupyter_dlaas.learner.log_capture.loop_sampler import Sampler, names_in
from jupyter_dlaas.learner.log_capture.recorder import Recorder, Source
from jupyter_dlaas.learner.training_run.run import Run
from tests.learner.test_watching import Build, progress, ran


def spots(source: str, **names: Any) -> list[Spot | None]:
    """Run a program's text and look wherever it calls `look()`."""
    text = dedent(source)
    program, loops, found = Program(text), Loops(), list[Spot | None]()

    def look() -> None:
        frame: Any = sys._getframe(1)
        stack = []
        while frame.f_code.co_filename == "train.py":
            code, seen = frame.f_code, {**frame.f_globals, **frame.f_locals}
            stack.append(Frame(program, frame.f_lineno, code.co_name, code.co_firstlineno, seen, id(frame)))
            frame = frame.f_back
        found.append(loops.look(stack[::-1]))

    step = lambda *_: None  # noqa: E731 - stands for `opt.step` and the like
    exec(compile(text, "train.py", "exec"), {"look": look, "step": step, **names})
    return found


def epochs(source: str, **names: Any) -> list[tuple[int | None, int | None, float | None]]:
    return [
        (one.done, one.epochs, None if one.fraction is None else round(one.fraction, 3))
        for one in spots(source, **names)
        if one is not None
    ]


QUARTERS = [(0, 4, 0.0), (1, 4, 0.25), (2, 4, 0.5), (3, 4, 0.75)]


@pytest.mark.parametrize(
    "head",
    [
        "for epoch in range(n):",
        "for epoch in range(1, n + 1):",
        "for epoch in range(start, start + 4):",
        "for e in range(0, 8, 2):",
        "for epoch in range(3, -1, -1):",
        "for epoch in tqdm(range(n)):",
        "for epoch in trange(n, desc='epochs'):",
        "for epoch, _ in enumerate(range(n)):",
        "for epoch, _ in enumerate(range(n), start=1):",
        "for epoch, _ in zip(range(n), range(9)):",
        "for epoch, _ in zip(range(9), items):",
        "for epoch in np.arange(n):",
        "for epoch in range(args.epochs):",
        "for epoch in range(config['epochs']):",
        "for epoch in range(Config.epochs):",
        "for epoch in range(len(items)):",
        "for epoch in range(n * 2 // 2):",
        "for epoch in range(int(size)):",
        "for rate in [0.1, 0.2, 0.3, 0.4]:",
        "for item in items:",
        "for name, item in table.items():",
    ],
)
def test_loop_reports_iteration_and_total(head: str) -> None:
    names = {
        "n": 4,
        "start": 6,
        "size": 4.5,
        "args": SimpleNamespace(epochs=4),
        "config": {"epochs": 4},
        "Config": type("Config", (), {"epochs": 4}),
        "items": ["a", "b", "c", "d"],
        "table": dict.fromkeys("abcd", 1),
        "tqdm": iter,
        "np": np,
        "trange": lambda n, **_: range(n),
    }
    found = epochs(f"{head}\n    look()\n    step()", **names)

    assert found == QUARTERS


@pytest.mark.parametrize(
    "text",
    [
        "t = 0\nwhile t < n:\n    look()\n    step()\n    t += 1",
        "t = 0\nwhile n > t:\n    look()\n    step()\n    t = t + 1",
        "t = 0\nwhile t <= n - 1 and not done:\n    look()\n    step()\n    t += 1",
        "t = 0\nwhile True:\n    look()\n    step()\n    t += 1\n    if t >= n:\n        break",
        "t = 0\nwhile 1:\n    look()\n    step()\n    t += 1\n    if t == n: break",
        "t = 0\nwhile t < n:\n    for batch in batches:\n        look()\n        step()\n        t += 1",
    ],
)
def test_while_loop_reports_steps_by_its_counter(text: str) -> None:
    found = spots(text, n=4, done=False, batches=iter("abcd"))

    assert [(one.step, one.steps, one.fraction) for one in found if one is not None] == [
        (0, 4, 0.0), (1, 4, 0.25), (2, 4, 0.5), (3, 4, 0.75)
    ]  # fmt: skip


def test_loops_in_loops_and_functions_count_together() -> None:
    source = """
    def train_epoch(loader):
        for i, batch in enumerate(loader):
            look()
            step()

    def train(epochs):
        for epoch in range(epochs):
            train_epoch([1, 2])
            validate([1, 2, 3, 4])

    def validate(loader):
        for i, batch in enumerate(loader):
            look()

    train(2)
    """

    found = [one for one in spots(source) if one is not None]
    assert [one.fraction for one in found] == [0, 0.25, *[0.25] * 4, 0.5, 0.75, *[0.75] * 4]
    assert [(one.done, one.epochs) for one in found] == [(0, 2)] * 6 + [(1, 2)] * 6
    assert [(one.step, one.steps) for one in found[:2]] == [(0, 4), (1, 4)]


def test_the_steps_of_an_epoch_stay_while_it_validates() -> None:
    source = """
    for epoch in range(2):
        for i, batch in enumerate([1, 2]):
            look()
            step()
        for i, batch in enumerate([1, 2, 3]):
            look()
    """

    assert [(one.step, one.steps) for one in spots(source) if one is not None] == [
        (0, 4), (1, 4), (1, 4), (1, 4), (1, 4), (2, 4), (3, 4), (3, 4), (3, 4), (3, 4)
    ]  # fmt: skip


def test_functions_around_a_loop_hide_nothing() -> None:
    source = """
    def timed(function):
        def call(*given):
            return function(*given)
        return call

    @timed
    def train(n):
        for epoch in range(n):
            look()
            step()

    class Trainer:
        epochs = 4
        def fit(self):
            for epoch in range(self.epochs):
                look()
                step()

    train(4)
    Trainer().fit()
    """

    assert [fraction for *_, fraction in epochs(source)] == [n / 8 for n in range(8)]


def test_folds_count_as_a_whole_and_epochs_per_fold() -> None:
    source = "for fold in range(2):\n    for epoch in range(4):\n        look()\n        step()"

    assert epochs(source) == [(e, 4, (fold * 4 + e) / 8) for fold in range(2) for e in range(4)]


def test_successive_trainings_each_count_their_part() -> None:
    loop = "for epoch in range(2):\n    look()\n    step()\n"

    found = [one for one in spots(loop + loop) if one is not None]
    assert [one.fraction for one in found] == [0.0, 0.25, 0.5, 0.75]
    assert [(one.step, one.steps) for one in found] == [(0, 4), (1, 4), (2, 4), (3, 4)]


def test_preparation_and_evaluation_loops_do_not_count() -> None:
    other = "for i in range(4):\n    look()\n"

    assert epochs(f"{other}for epoch in range(2):\n    look()\n    step()\n{other}") == [(0, 2, 0.0), (1, 2, 0.5)]
    assert [fraction for *_, fraction in epochs(other)] == [0.0, 0.25, 0.5, 0.75], "there is no training: all count"


class Broken:
    """Says how many rounds there are by code that must not run for a look."""

    asked = 0

    @property
    def n(self) -> int:
        self.asked += 1
        return 4


@pytest.mark.parametrize(
    "text",
    [
        "for batch in loader():\n    look()\n    step()",
        "while True:\n    look()\n    step()\n    break",
        "for epoch in range(n()):\n    look()\n    step()",
        "for epoch in range(4):\n    epoch = 7\n    look()\n    step()",
        "for a in ['x', 'x']:\n    look()\n    step()",
        "for group in groups():\n    for epoch in range(4):\n        look()\n        step()",
        "for epoch in range(broken.n):\n    look()\n    step()",
        "left = 3\nwhile left > 0:\n    look()\n    step()\n    left -= 1",
        "m = 4\nfor epoch in range(m):\n    m = 99\n    look()\n    step()",
    ],
)
def test_totals_that_need_running_code_are_not_reported(text: str) -> None:
    broken = Broken()
    found = spots(text, loader=lambda: iter([1, 2]), n=lambda: 4, groups=lambda: iter([1, 2]), broken=broken)

    assert set(found) == {None}
    assert broken.asked == ("broken" in text)


def test_a_range_keeps_the_length_that_it_began_with() -> None:
    text = "def rest():\n    global n\n    n = 99\nfor epoch in range(n):\n    look()\n    step()\n    rest()"

    assert epochs(text, n=4) == QUARTERS


def test_loop_end_applies_to_lines_without_a_position() -> None:
    shown: list[tuple[Any, ...]] = []
    run: Any = SimpleNamespace(
        show=lambda *spot: shown.append(spot),
        is_looping=False,
        names_logged=set(),
        record=lambda *_, **__: None,
    )
    one = Recorder(run)
    one.progress(Source.LOG, 3, None, 3, None, None)
    one.loops(Spot(step=3, done=3, epochs=10, steps=10, fraction=0.3))
    one.progress(Source.LOG, 4, None, 4, None, None)
    one.progress(Source.LOG, 5, 20, 5, 20, 0.25)
    one.loops(Spot(step=5, done=5, epochs=10, steps=10, fraction=0.5))

    assert shown == [(3, None, 3, None, None), (3, 10, 3, None, 0.3), (4, 10, 4, None, 0.4), (5, 20, 5, 20, 0.25)]
    assert Run is not None


PLAIN = """
import time
w = 5.0
def train(n):
    global w
    for epoch in range(n):
        for i, x in enumerate([1.0] * 4):
            w -= 0.01 * w
            time.sleep(0.05)
{body}
"""


@pytest.mark.parametrize(
    ("body", "epochs"),
    [
        ("train(12)", 12),
        ("for e in range(12):\n    train(1)", 12),
        ("t = 0\nwhile t < 48:\n    lr = 0.1\n    w -= lr * w\n    time.sleep(0.05)\n    t += 1", None),
    ],
)
def test_plain_loop_shows_its_progress(job: Build, body: str, epochs: int | None) -> None:
    one = ran(job, PLAIN.format(body=body))
    found = progress(one)

    assert found["epochs"] == epochs
    assert 0 < found["fraction"] <= 1.0
    assert found["steps"] in (12, 48)
    assert indent(body, "") in (one.dir / "train.py").read_text()


def seen() -> dict[str, Any] | None:
    """Return what a sample sees in the function that calls this."""
    return names_in(sys._getframe(1))


def test_a_look_keeps_no_object_of_the_program_alive() -> None:
    class Batch:
        pass

    def train() -> Any:
        batch = Batch()
        found = weakref.ref(batch)
        first = "batch" in (seen() or {})
        second = "batch" in (seen() or {})
        del batch
        return first, second, found()

    assert train() == (True, True, None)


def test_functions_that_read_their_locals_are_left_alone() -> None:
    def train() -> Any:
        kept = locals()
        first = 1
        return seen() is None, dict(kept), first

    assert train() == (sys.version_info < (3, 13), {}, 1)


def test_error_in_an_observation_ends_the_observation_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    context: Any = SimpleNamespace(job_dir=tmp_path, spec=SimpleNamespace(cells={}))
    sampler = Sampler(context)
    monkeypatch.setattr(sys, "__stderr__", sys.stderr)
    monkeypatch.setattr(sampler, "_stack", lambda: 1 / 0)

    sampler.look()
    sampler.look()

    assert capsys.readouterr().err == "[loop progress is not shown: ZeroDivisionError: division by zero]\n"
