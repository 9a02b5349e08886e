"""Imports that no statement reads: those with possible side effects are included."""

from __future__ import annotations

import pytest

from tests.notebook.cases import job, prelude


@pytest.mark.parametrize(
    "line",
    [
        "from sklearn.experimental import enable_iterative_imputer",
        "import panda_gym",
        "import pybullet_envs.bullet",
        "import extra_envs as _",
        "from registry import register_all",
    ],
)
def test_an_import_that_may_register_something_comes_along(line: str) -> None:
    assert prelude(job(f"{line}\nx = 1")) == [line, "x = 1"]


@pytest.mark.parametrize(
    "line",
    [
        "import matplotlib.pyplot as plt",
        "import seaborn as sns, pandas",
        "from sklearn.svm import SVC",
        "import os",
    ],
)
def test_a_plain_import_stays_in_the_notebook(line: str) -> None:
    assert prelude(job(f"{line}\nx = 1")) == ["x = 1"]


def test_an_import_that_ran_twice_comes_once() -> None:
    assert prelude(job("import panda_gym\nx = 1", "import panda_gym")) == ["import panda_gym", "x = 1"]


def test_repeated_import_is_placed_where_it_is_needed() -> None:
    cells = ("import shapes\nfrom shapes import area", "import importlib\nimportlib.reload(shapes)")
    made = job(*cells, "from shapes import area", train="print(area)")

    assert prelude(made)[-1] == "from shapes import area"
    assert prelude(made).count("from shapes import area") == 1
