"""Random small notebooks that draw, look and seed: the job has the notebook's values, or each other one is reported."""

from __future__ import annotations

import json
import random
import tempfile
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from jupyter_dlaas.analysis.model import Capture, ExecutedCell, KernelFacts, TrainingCell
from jupyter_dlaas.capture.capture import capture
from jupyter_dlaas.kernel.recorder import _fact as fact
from jupyter_dlaas.learner.training_run import rng_restore
from jupyter_dlaas.transfer import rng_state

NAMES = ("a", "b", "c")
IMPORTS = "import random\nimport numpy as np"
MAKES = (
    "{0} = random.random()",
    "{0} = random.sample(range(100), 3)",
    "{0} = [random.random() for _ in range(2000)]",  # too long to be written into the program
    "{0} = np.random.rand(3)",
    "{0} = np.random.permutation(500).tolist()",
    "{0} = list(range(2000))\nrandom.shuffle({0})",
    "{0} = draw(3)",
    "{0} = []\nfor i in range(3):\n    {0}.append(np.random.rand())",
    "{0} = np.random.default_rng().permutation(2000)",
    "{0} = np.arange(7)",
    "{0} = [{1}, 1]",
    "{0} = [{0}, random.random()]",
    "{1} = {0}",
    "{0} = [{1}]\n{0}.append(random.random())",
    "for {0} in [[3, {1}, 5], [1, 2, 3]]:\n    random.shuffle({0})",
    "d = [random.random() for _ in range(2000)]\n{0} = [d[0], 1]\ndel d",
    "{0} = {{'of': {1}}}",
)
LOOKS = ("print(random.random())", "print(np.random.rand(2).sum())", "seen = [random.random() for _ in range(3)]")
SEEDS = ("random.seed({2})", "np.random.seed({2})", "random.seed({2})\nnp.random.seed({2})", "random.seed()")
DRAW = "def draw(n):\n    return np.random.rand(n).tolist() + [random.random()]"
statements = st.builds(
    str.format,
    st.sampled_from([*MAKES, *MAKES, *LOOKS, *SEEDS]),
    st.sampled_from(NAMES),
    st.sampled_from(NAMES),
    st.integers(0, 3),
)
notebooks = st.lists(st.lists(statements, min_size=1, max_size=4), min_size=1, max_size=5)


def ran(cells: Sequence[str], noted_from: int) -> tuple[list[ExecutedCell], dict[str, Any], str]:
    """Run the cells as a kernel does. Those before `noted_from` ran before the extension was loaded."""
    space: dict[str, Any] = {"__name__": "__main__", "print": lambda *_: None}
    found = []
    for count, source in enumerate(cells, 1):
        random_state = rng_state.written() if count >= noted_from else None
        exec(source, space)
        found.append(ExecutedCell(count=count, source=source, random_state=random_state))
    return found, space, rng_state.written()


def values_of_job(made: Capture, folder: Path) -> dict[str, Any]:
    (folder / "inputs").mkdir()
    (folder / "inputs" / "chance.json").write_text(json.dumps(dict(made.random_state)))
    space: dict[str, Any] = {"__name__": "__main__", "print": lambda *_: None}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rng_restore, "current", lambda: SimpleNamespace(job_dir=folder, seed=7))
        random.seed(11)
        np.random.seed(11)
        exec(compile(made.text, "train.py", "exec"), space)
    return space


@example([["random.seed(0)", "a = random.random()", "a = random.random()"]] * 2, 0)  # both cells end in one state
@example([["a = random.random()", "a = random.random()", "random.seed(0)"]], 0)  # the seed comes too late
@example(  # the last value of a is given, but b holds an earlier one
    [["a = random.random()", "a = [random.random() for _ in range(2000)]", "b = [a, 1]", "a = random.random()"]], 0
)
@example(  # a was a list when it was shuffled
    [["a = random.random()", "a = list(range(2000))", "random.shuffle(a)", "b = [a, 1]", "a = random.random()"]], 0
)
@example(  # the value of b cannot replace the loop, which needs an earlier a
    [["a = random.random()", "a = random.random()", "for b in [[3, a], [1, 2]]:\n    random.shuffle(b)"], ["a = 0"]], 0
)
@given(notebooks, st.integers(0, 4))
def test_a_value_of_the_job_is_the_notebooks_or_reported(notebook: list[list[str]], late: int) -> None:
    random.seed()
    np.random.seed()
    cells = [IMPORTS, DRAW, "\n".join(f"{name} = {at}" for at, name in enumerate(NAMES)), *map("\n".join, notebook)]
    executed, space, now = ran(cells, noted_from=late)
    names = {name: fact(value, None) for name, value in space.items() if name not in {"__name__", "__builtins__"}}
    training = TrainingCell(count=len(cells) + 1, source="result = (a, b, c)")

    made = capture(executed, training, KernelFacts(names=names, random_state=now))
    assert made.is_ready, made.errors
    with tempfile.TemporaryDirectory() as folder:
        job = values_of_job(made, Path(folder))

    reported = {name for problem in made.warnings if problem.code == "drawn_again" for name in problem.names}
    other = [name for name in NAMES if not np.array_equal(_flat(job[name]), _flat(space[name]))]
    if not reported:
        assert other == [], made.text
    if late == 0 and "default_rng" not in made.text and not _looks_before_it_draws(notebook):
        assert not reported, [problem.message for problem in made.warnings]


def _flat(value: Any) -> list[float]:
    if isinstance(value, dict):
        return _flat(list(value.values()))
    if isinstance(value, list | np.ndarray):
        return [number for part in value for number in _flat(part)]
    return [float(value)]


def _looks_before_it_draws(notebook: list[list[str]]) -> bool:
    """Only where a cell looks first, or draws what is bound again, its own draws cannot be put right."""
    return any(sum("rand" in line or "draw" in line for line in cell) > 1 for cell in notebook)
