"""Results whose class stands only in the training cell: made again from the job's program, without running it."""

from __future__ import annotations

import pickle
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch

from jupyter_dlaas.analysis.model import NameFact, ResultRef
from jupyter_dlaas.kernel import recorder
from jupyter_dlaas.transfer import code_by_value, results
from tests.notebook.cases import codes, facts, job, prelude

PROGRAM = '''
from __future__ import annotations

import torch
from torch import nn

WIDTHS = (2, 3)


class Part(nn.Module):
    def __init__(self) -> Part:
        super().__init__()
        self.linear = nn.Linear(*WIDTHS)

    def forward(self, x):
        return helper(self.linear(x))


# --- cell [2], the training cell ---
if __name__ == "__main__":
    def helper(x):
        return x * FACTOR

    FACTOR = 2

    class Net(Part):
        """Of the training cell."""

        class Settings:
            rate = 0.5

    made = open("never-made", "w")
    model, settings = Net(), Net.Settings()
'''


@pytest.fixture
def main(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """Provide a separate `__main__`, as in a kernel."""
    one = ModuleType("__main__")
    monkeypatch.setitem(sys.modules, "__main__", one)
    return one


def stored(main: ModuleType, program: str, *names: str) -> list[bytes]:
    """Return what a job with this program would return. `main` is empty afterwards."""
    exec(compile(program.replace('open("never-made", "w")', "None"), "train.py", "exec"), vars(main))
    found = [results.dump(vars(main)[name]) for name in names]
    for name in [name for name in vars(main) if not name.startswith("__")]:
        delattr(main, name)
    return found


def test_class_of_the_training_cell_is_restored_without_side_effects(
    main: ModuleType, tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    model, settings = (results.load(data, lambda: PROGRAM) for data in stored(main, PROGRAM, "model", "settings"))

    assert type(model).__name__ == "Net"
    assert model(torch.ones(1, 2)).shape == (1, 3), "with the functions and constants that its methods read"
    assert settings.rate == 0.5
    assert type(settings) is type(model).Settings, "one class for all results of a job"
    assert [name for name in vars(main) if not name.startswith("__")] == []
    assert list(tmp_path.iterdir()) == []


def test_a_class_that_the_kernel_has_is_the_kernels(main: ModuleType) -> None:
    (data,) = stored(main, PROGRAM, "settings")
    exec("class Net:\n    class Settings:\n        rate = 7", vars(main))

    assert results.load(data, lambda: PROGRAM).rate == 7


def test_missing_class_gives_the_error_of_pickle(main: ModuleType) -> None:
    program = "Thing = type('Thing', (), {'__module__': '__main__'})\nthing = Thing()"
    (data,) = stored(main, program, "thing")

    with pytest.raises(AttributeError, match="Can't get attribute 'Thing' on <module '__main__'"):
        results.load(data, lambda: program)


def test_definition_that_raises_counts_as_missing(main: ModuleType) -> None:
    (data,) = stored(main, "class A:\n    pass\na = A()", "a")

    with pytest.raises(AttributeError, match="Can't get attribute 'A'"):
        results.load(data, lambda: "class A(missing):\n    pass")


def test_program_is_fetched_only_for_a_missing_class() -> None:
    def never() -> str:
        raise AssertionError

    assert results.load(results.dump([1, 2]), never) == [1, 2]
    with pytest.raises(pickle.UnpicklingError):
        results.load(b"P\x80\x05no pickle", never)


def test_the_next_job_takes_such_a_result_without_a_warning() -> None:
    known = facts(
        model=NameFact(type_name="Net", result=ResultRef("first-1", "model", after_cell=1), main_names=("Net",))
    )
    made = job("%%train first -o model\nclass Net:\n    pass\nmodel = Net()", train="print(model)", facts=known)

    assert prelude(made)[-1] == 'model = dlaas.result("first-1", "model")'
    assert codes(made) == []


# ---------------------------------------------------------------------------------------------- edited since the submit

NET = "class Net:\n    rate = 1\n    def f(self):\n        return 1\n"
SUB = "class Sub(Net):\n    pass\n"
KIND = "import enum\nclass Kind(enum.Enum):\n    A = 1\n"
EDITS: list[tuple[str, str, str, bool]] = [
    # what it was, the value, what it is now, whether that is another
    (NET, "Net()", NET.replace("return 1", "return 2"), True),
    (NET, "Net()", NET.replace("rate = 1", "rate = 2"), True),
    (NET, "Net()", NET + "    def g(self):\n        return 3\n", True),
    (f"{NET}{SUB}", "Sub()", NET.replace("return 1", "return 2") + SUB, True),
    (f"class Part:\n    n = 1\n{NET}", "[Net(), Part()]", f"class Part:\n    n = 2\n{NET}", True),
    ("def loss(x):\n    return x\n", "{'loss': loss}", "def loss(x):\n    return -x\n", True),
    (
        "from collections import namedtuple\nPoint = namedtuple('Point', 'x y')\n",
        "Point(1, 2)",
        "from collections import namedtuple\nPoint = namedtuple('Point', 'y x')\n",
        True,
    ),
    (KIND, "Kind.A", KIND + "    B = 2\n", True),
    (NET, "Net()", f"# a comment\n{NET}\n\nother = 5\n", False),
    (NET, "Net()", f"def make():\n    class Net:\n        pass\n{NET}", False),
    (f"def helper():\n    return 1\n{NET}", "Net()", f"def helper():\n    return 2\n{NET}", False),
]


@pytest.mark.parametrize("how", ["cell", "%run"])
@pytest.mark.parametrize(("was", "value", "now", "is_edited"), EDITS)
def test_result_of_an_edited_class_is_reported(
    main: ModuleType, was: str, value: str, now: str, is_edited: bool, how: str
) -> None:
    program = f"{was}\n# --- cell [2], the training cell ---\nif __name__ == '__main__':\n    value = {value}\n"
    (data,) = stored(main, program, "value")
    vars(main)["In"] = ["", now if how == "cell" else "%run model.py"]
    exec(compile(now, "model.py", "exec"), vars(main))
    changed: list[frozenset[str]] = []

    results.load(data, lambda: program, changed.append)

    assert bool(changed) is is_edited


AGAIN = """
# --- cell [1] ---
class Net:
    pass
class Holder:
    pass
# --- cell [2] ---
net, holder = Net(), Holder()
holder.parts = {"first": [net]}
# --- cell [3] ---
class Net:
    edited = True
"""


def test_objects_of_a_class_defined_again_are_explained(main: ModuleType, tmp_path: Path) -> None:
    program = tmp_path / "train.py"
    program.write_text(AGAIN)
    vars(main)["__file__"] = str(program)
    exec(AGAIN, vars(main))

    names, errors = results.store(tmp_path / "results", ["net", "holder"], vars(main))
    exec("net.__class__ = Net", vars(main))
    mended, none = results.store(tmp_path / "results", ["net", "holder"], vars(main))

    assert names == []
    assert errors["net"].startswith("`net` is a `Net` from before cell [3] defined `Net` again; create it below that")
    assert errors["holder"].endswith(
        "or run holder.parts['first'][0].__class__ = Net at the beginning of the training cell"
    )
    assert (mended, none) == (["net", "holder"], {})


def test_checkpoints_explain_a_class_defined_again(main: ModuleType) -> None:
    exec(AGAIN, vars(main))

    with pytest.raises(pickle.PicklingError, match="its class Net was defined again since: create it below the last"):
        code_by_value.reduce_code(type(vars(main)["net"]))


def test_results_of_a_class_defined_again_are_reported_first(main: ModuleType) -> None:
    exec(AGAIN, vars(main))
    shell = SimpleNamespace(user_ns=vars(main), user_ns_hidden={}, starting_dir="")
    known = recorder.facts_of(shell, [])  # type: ignore[arg-type]
    cells = [part.partition("\n")[2] for part in AGAIN.split("# ---")[1:]]
    made = job(*cells, train="net.x = Net()", outputs=("net",), facts=known)
    renewed = job(cells[0], cells[2], cells[1], train="net.x = Net()", outputs=("net",), facts=known)
    unneeded = job(*cells, train="net.x = 1", outputs=("net",), facts=known)

    (warning,) = made.warnings
    assert warning.message == (
        "-o net: `net` is a `Net` from before cell [3], line 1 defined `Net` again, and cannot be returned. "
        "Run cell [2] again, or add net.__class__ = Net at the beginning of the training cell."
    )
    assert codes(renewed) == codes(unneeded) == []
