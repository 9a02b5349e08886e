"""Shapes that public notebooks have and that went wrong once."""

from __future__ import annotations

import ast
import sys

import pytest

from jupyter_dlaas.analysis.model import ExecutedCell, NameFact, TrainingCell
from jupyter_dlaas.capture.preflight import SOURCE_CHARS_MAX
from jupyter_dlaas.suggest.rewrite import suggest
from tests.notebook.cases import codes, facts, job, prelude

DEEP = {
    "elif": "\n".join(("elif" if n else "if") + f" z == {n}:\n    print('loss', {n})" for n in range(400)),
    "sum": "x = " + " + ".join(["z"] * 1500),
    "chain": "x = str(z)" + ".strip()" * 700,
}


def test_name_rebound_by_its_function_is_accepted() -> None:
    made = job("def x(a):\n    return a", "x = x([x, 1])", train="print(x)")

    assert prelude(made) == ["def x(a):", "    return a", "x = x([x, 1])"]


def test_star_import_covers_reexported_names() -> None:
    known = facts(range_of=NameFact(type_name="function", module="fastcore.basics", is_callable=True))
    made = job("from fastai.tabular.all import *", "x = range_of([1])", facts=known)

    assert prelude(made) == ["from fastai.tabular.all import *", "x = range_of([1])"]
    assert codes(made) == []


def test_notebook_function_is_not_covered_by_a_star_import() -> None:
    known = facts(own=NameFact(type_name="function", module="__main__", is_callable=True))
    made = job("from library import *", train="own()", facts=known)

    assert codes(made) == ["not_reproducible"]


def test_flax_random_streams_continue_in_the_job() -> None:
    made = job("from flax import nnx\nrngs = nnx.Rngs(0)", "y = model(x, rngs=rngs)", train="z = net(rngs=rngs)")

    assert prelude(made)[-1] == "y = model(x, rngs=rngs)"


def test_input_in_a_module_imported_below_try_is_refused() -> None:
    made = job("try:\n    import getpass\nexcept ImportError:\n    pass", "key = getpass.getpass()", train="print(key)")

    assert codes(made) == ["not_reproducible"]


def test_foreign_attributes_on_shared_ast_nodes_are_ignored() -> None:
    """`executing`, which formats IPython's tracebacks, sets `parent` on operators, which all trees share."""
    comparison = ast.parse("a == b", mode="eval").body
    assert isinstance(comparison, ast.Compare)
    operator = comparison.ops[0]
    operator.parent = comparison  # type: ignore[attr-defined]  # as `executing` does
    try:
        assert ast.parse("c == d", mode="eval").body.ops[0] is operator  # type: ignore[attr-defined]  # a comparison
        made = job("x = 1", train="for epoch in range(3):\n    if epoch == x: print('loss', epoch)")
    finally:
        del operator.parent  # type: ignore[attr-defined]  # set above

    assert prelude(made) == ["x = 1"]


@pytest.mark.parametrize("source", DEEP.values(), ids=DEEP)
def test_whatever_python_can_run_can_be_read_however_deep(source: str) -> None:
    limit = sys.getrecursionlimit()
    exec(compile(f"z = 5\n{source}", "cell", "exec"), {"print": lambda *_: None})

    made = job("z = 5", train=source)
    assert prelude(made) == ["z = 5"]
    assert codes(made) == []
    assert codes(job("z = 5", source, train="print(z)")) == []
    assert suggest([ExecutedCell(count=1, source="z = 5")], TrainingCell(count=2, source=source)).why
    assert sys.getrecursionlimit() == limit


def test_source_too_slow_to_analyse_is_refused_with_its_cell() -> None:
    huge = "x = [" + "1, " * (SOURCE_CHARS_MAX // 3) + "]"
    made = job("y = 1", huge, train="print(y)")

    assert codes(made) == ["too_long"]
    assert "The longest is cell [2]" in made.errors[0].message
    assert (
        "move its data to a file"
        in suggest([ExecutedCell(count=1, source=huge)], TrainingCell(count=2, source="y")).why
    )


@pytest.mark.parametrize(
    "check",
    [
        "np.testing.assert_allclose(before[0], before[0])",
        "torch.testing.assert_close(before, before, rtol=0)",
        "pd.testing.assert_frame_equal(before, before)",
        "tf.debugging.assert_equal(before, before)",
    ],
)
def test_library_assertion_is_left_out_with_its_model(check: str) -> None:
    """Kept as a change of the library, it brought a model of no use, and a note about that model's training."""
    made = job(
        "import numpy as np, torch, pandas as pd, tensorflow as tf, keras",
        "old = keras.Sequential([keras.layers.Dense(3)])\nold.fit([1.0], [1.0])\n"
        f"before = old.get_weights()\n{check}\nprint('unchanged')",
        "values = [np.e, torch.pi, pd.NA, tf.float32]",
        train="model = keras.Sequential([keras.layers.Dense(1)])\nmodel.fit(values, values)",
    )

    assert not any("old" in line for line in prelude(made))
    assert "earlier_training" not in codes(made)


def test_notebook_assertion_that_mutates_its_argument_is_kept() -> None:
    made = job(
        "def assert_sorted(items):\n    items.sort()",
        "items = [3, 1]",
        "assert_sorted(items)\nprint(1)",
        train="print(items)",
    )

    assert "assert_sorted(items)" in prelude(made)


@pytest.mark.parametrize(
    "look",
    [
        "fig, axes = plt.subplots(1, 3)\nfor a, i in zip(axes, (pred != y).nonzero()):\n    a.imshow(x[i].view(8, 8))",
        "fig, axes = plt.subplots(1, 3)\nfor a, row in zip(axes, x):\n    a.bar(range(8), row)\n    a.set_title(i)",
        "df.hist()",
        "df.boxplot()",
    ],
)
def test_drawing_the_data_changes_nothing(look: str) -> None:
    x = "x, z = map(scale, (raw, other))\ny = x.sum(1)\npred = x.argmax(1)\ndf = pd.DataFrame(x)"
    made = job("import pandas as pd\nimport matplotlib.pyplot as plt", x, look, train="fit(x, z, y, df)")

    assert "map(scale" in made.text
    assert look.splitlines()[-1].strip() not in made.text


def test_looks_do_not_consume_generator_values() -> None:
    made = job("noise = torch.randn(8, generator=g)", "print(noise)\nshape(noise[0])", train="fit(noise)")

    assert "print(noise)" not in made.text


@pytest.mark.parametrize("call", ["t.plot(3)", "t.hist(3)", "t.describe(3)"])
def test_mutating_method_of_a_notebook_class_is_captured(call: str) -> None:
    method = call[2:].partition("(")[0]
    tracker = f"class T:\n    seen = []\n    def {method}(self, x):\n        self.seen.append(x)\nt = T()"
    made = job(tracker, call, train="print(t.seen)")

    assert prelude(made)[-1] == call


def test_an_own_method_that_only_draws_stays_out() -> None:
    tracker = "class T:\n    seen = [1]\n    def plot(self, ax):\n        ax.plot(self.seen)\nt = T()"
    made = job(tracker, "t.plot(axes)", train="print(t.seen)")

    assert "t.plot(axes)" not in made.text


def test_library_may_change_annotated_objects() -> None:
    made = job("rows = {}", "labeller.annotate(rows)", train="print(rows)")

    assert prelude(made) == ["rows = {}", "labeller.annotate(rows)"]
