"""Record of the executed cells for a training cell: how they ended, how long they took, what cannot run again."""

from __future__ import annotations

import builtins
from collections.abc import Callable
from pathlib import Path

import pytest
from IPython.core.interactiveshell import InteractiveShell

from jupyter_dlaas.analysis.model import Capture, ExecutedCell
from jupyter_dlaas.kernel import submit
from jupyter_dlaas.kernel.magics import _loaded, _parser
from jupyter_dlaas.kernel.options import parse
from tests.notebook_e2e.shells import run
from tests.notebook_e2e.shells import shell as new_shell

COUNT = 99


@pytest.fixture(autouse=True)
def _alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JUPYTER_DLAAS_POOL_DIR", str(tmp_path / "pool"))
    monkeypatch.setenv("JUPYTER_DLAAS_WARM", "0")
    monkeypatch.chdir(tmp_path)


def history(one: InteractiveShell) -> tuple[ExecutedCell, ...]:
    return _loaded[one].recorder.cells()


def captured(one: InteractiveShell, goal: str, line: str = "") -> Capture:
    """Capture the training cell with what it needs, as `%%train` would."""
    magics = _loaded[one]
    asked = parse(_parser(magics.train), line)
    return submit.capture_cell(one, history(one), submit.Cell(goal, COUNT), asked, {})


def program(made: Capture) -> list[str]:
    """Return the lines of train.py above the training cell, without comments of ours and blank lines."""
    assert made.errors == ()
    above = made.text.partition('if __name__ == "__main__":')[0].splitlines()
    return [line for line in above if line.strip() and not line.startswith("#")]


def error(made: Capture) -> str:
    (one,) = made.errors
    return one.message


def attempt(one: InteractiveShell, source: str) -> None:
    """Run a cell that raises."""
    assert not one.run_cell(source, store_history=True).success


def load_first(one: InteractiveShell, *cells: Callable[[InteractiveShell], object]) -> None:
    run(one, "%load_ext jupyter_dlaas")
    for cell in cells:
        cell(one)


def load_last(one: InteractiveShell, *cells: Callable[[InteractiveShell], object]) -> None:
    for cell in cells:
        cell(one)
    run(one, "%load_ext jupyter_dlaas")


def plain(source: str) -> Callable[[InteractiveShell], object]:
    return lambda one: run(one, source)


def raises(source: str) -> Callable[[InteractiveShell], object]:
    return lambda one: attempt(one, source)


both = pytest.mark.parametrize("load", [load_first, load_last])


# ---------------------------------------------------------------------------------------------------- what was recorded


@both
def test_nothing_is_lost_wherever_the_extension_is_loaded(load: Callable[..., None]) -> None:
    with new_shell(loaded=False) as one:
        load(one, plain("a = 1"), plain("%time b = a + 1"), plain("c = a + b"))

        assert program(captured(one, "print(c)")) == ["a = 1", "b = a + 1", "c = a + b"]


@both
def test_statements_before_an_error_count_as_run(load: Callable[..., None]) -> None:
    with new_shell(loaded=False) as one:
        load(one, raises("\n\na = 1\nb = [a]\nb.append(1 / 0)\nc = 3"))

        assert program(captured(one, "print(a, b)")) == ["a = 1", "b = [a]"]
        said = error(captured(one, "print(c)"))
    number = 2 if load is load_first else 1
    assert said == (
        f"cell [{COUNT}], line 2, reads `c`, but cell [{number}], line 6, did not define it because "
        "the cell raised an error first. Fix that cell and run it again."
    )


@both
def test_partial_results_of_a_raising_loop_are_used(load: Callable[..., None]) -> None:
    with new_shell(loaded=False) as one:
        load(one, plain("items = []"), raises("for i in range(9):\n    items.append(i)\n    1 / (2 - i)"))

        assert program(captured(one, "print(items)"))[0].startswith("items = [0, 1, 2]  # the kernel's value: ")


def test_a_cell_that_runs_others_has_its_own_duration(tmp_path: Path) -> None:
    (tmp_path / "inner.ipynb").write_text(
        '{"cells": [{"id": "a", "cell_type": "code", "source": "inner = 1", "metadata": {}, "outputs": [], '
        '"execution_count": null}], "metadata": {}, "nbformat": 4, "nbformat_minor": 5}'
    )
    with new_shell() as one:
        run(one, "%run inner.ipynb\nouter = inner")
        run(one, "after = 1")
        found = history(one)

    assert [cell.source for cell in found[1:]] == ["%run inner.ipynb\nouter = inner", "after = 1"]
    assert all(cell.duration_s is not None for cell in found[1:])


def test_a_run_in_an_unknown_home_harms_no_later_cell() -> None:
    with new_shell() as one:
        attempt(one, "%run ~absent-user/prepare.py")
        run(one, "kept = 1")

        assert program(captured(one, "print(kept)")) == ["kept = 1"]


def test_reloaded_extension_keeps_durations_and_errors() -> None:
    with new_shell() as one:
        run(one, "a = 1")
        attempt(one, "b = 2\n1 / 0")
        before = history(one)
        run(one, "%reload_ext jupyter_dlaas")
        run(one, "c = 3")
        after = history(one)

    assert after[: len(before)] == before
    assert [cell.source for cell in after[len(before) :]] == ["%reload_ext jupyter_dlaas", "c = 3"]


# -------------------------------------------------------------------------------------------- what cannot be made again


@pytest.mark.parametrize(
    ("cells", "name", "written"),
    [
        (["n = int(input('how many? '))"], "n", "n = 7  # the kernel's value: cell [2], line 1 got it from input()"),
        (
            ["files = !echo a"],
            "files",
            "files = ['a']  # the kernel's value: cell [2], line 1 got it from a magic's result",
        ),
        (
            ["6 * 7", "n = _"],
            "n",
            "n = 42  # the kernel's value: cell [3], line 1 got it from `_`, an output of the notebook",
        ),
        (
            ["6 * 7", "n = Out[2]"],
            "n",
            "n = 42  # the kernel's value: cell [3], line 1 got it from `Out`, an output of the notebook",
        ),
        (
            ["6 * 7", "text = _i2"],
            "text",
            "text = '6 * 7'  # the kernel's value: cell [3], line 1 got it from `_i2`, an output of the notebook",
        ),
        (
            ["import ipywidgets\nslider = ipywidgets.FloatSlider(0.1)", "slider.value = 0.5\nrate = slider.value"],
            "rate",
            "rate = 0.5  # the kernel's value: cell [2], line 2 got it from a widget or a prompt",
        ),
        (
            ["get_ipython().user_ns['rate'] = 0.5"],
            "rate",
            "rate = 0.5  # the kernel's value: cell [2], line 1 got it from get_ipython(), which a job does not have",
        ),
    ],
)
def test_irreproducible_small_value_is_written_into_the_program(
    monkeypatch: pytest.MonkeyPatch, cells: list[str], name: str, written: str
) -> None:
    monkeypatch.setattr(builtins, "input", lambda *_: "7")
    with new_shell() as one:
        for cell in cells:
            run(one, cell)

        assert program(captured(one, f"print({name})")) == [written]


def test_irreproducible_large_value_is_reported_with_advice(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(builtins, "input", lambda *_: "3")
    with new_shell() as one:
        run(one, "import numpy as np\ntable = np.zeros((int(input()), 2))")
        said = error(captured(one, "print(table)"))

        assert said == (
            f"cell [{COUNT}], line 2, needs `table` (numpy.ndarray, (3, 2), 48 bytes), which the job cannot recreate: "
            "cell [2], line 2 got it from input(). Use --push table to send its current value."
        )
        assert captured(one, "print(table)", "--push table").errors == ()


def test_irreproducible_unsendable_value_is_reported() -> None:
    with new_shell() as one:
        run(one, "import threading\nget_ipython().user_ns['guard'] = threading.Lock()")

        assert error(captured(one, "print(guard)")) == (
            f"cell [{COUNT}], line 2, needs `guard` (_thread.lock), which the job cannot recreate: cell [2], line 2 "
            "got it from get_ipython(), which a job does not have. It is a lock and cannot be sent: create it in the "
            "training cell."
        )


def test_widget_is_reported_with_its_value_attribute() -> None:
    with new_shell() as one:
        run(one, "import ipywidgets\nslider = ipywidgets.FloatSlider(0.1)")

        assert error(captured(one, "print(slider.value)")).endswith(
            "Write slider_value = slider.value in a separate cell, and use that variable."
        )


def test_an_output_in_the_training_cell_itself_is_refused() -> None:
    with new_shell() as one:
        run(one, "6 * 7")

        found = [problem.message for problem in captured(one, "print(_, _i2)").errors]
    assert found == [
        (
            f"cell [{COUNT}], line 2, reads `_`; outputs of the notebook do not exist in a job. "
            "Assign the value to a variable."
        ),
        (
            f"cell [{COUNT}], line 2, reads `_i2`; inputs of the notebook do not exist in a job. "
            "Assign the value to a variable."
        ),
    ]


# --------------------------------------------------------------------------------------------------------- slow to redo


def test_slow_cells_are_reported_with_a_push_of_their_result(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("jupyter_dlaas.capture.preflight.SLOW_S", 0.0)
    with new_shell() as one:
        run(one, "import time")
        run(one, "def clean(x):\n    time.sleep(0.2)\n    return [x] * 1000")
        run(one, "import math\nlimit = 3\ntable = clean(limit)\nshown = table[:2]")
        run(one, "total = sum(table)")
        made = captured(one, "print(table, total)")
        (warning,) = made.warnings

        assert warning.message == (
            "the cells that the job runs again took 0 s here, mostly cell [4] (0 s). "
            "To send their result: --push table."
        )
        assert captured(one, "print(table, total)", "--push table").errors == ()
        assert "table = clean(" not in captured(one, "print(table)", "--push table").text


def test_time_of_a_skipped_training_does_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("jupyter_dlaas.capture.preflight.SLOW_S", 0.1)
    with new_shell() as one:
        run(one, "import time\nimport torch")
        run(one, "net = torch.nn.Linear(1, 1)")
        run(
            one,
            "opt = torch.optim.SGD(net.parameters(), lr=0.1)\n"
            "for _ in range(2):\n    net(torch.ones(1, 1)).sum().backward()\n    opt.step()\n    time.sleep(0.2)",
        )
        found = [
            one.code
            for one in captured(
                one, "for _ in range(2):\n    net(torch.ones(1, 1)).sum().backward()\n    opt.step()"
            ).warnings
        ]

    assert "earlier_training" in found
    assert "slow_prelude" not in found
