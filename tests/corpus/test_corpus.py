"""Our own notebooks, one difficulty each: run as they are and with `%%train` on their training cell, and compared.

All of it is real: kernels, one pool with its engine, jobs. The notebooks run two at a time while the tests wait for
them in turn; what is special about one is said at the top of its file (see `reading`).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Final

import pytest

from tests.corpus.__main__ import text_of
from tests.corpus.reading import Notebook, read
from tests.corpus.running import Result, Runner
from tests.selection import exhaustive

NOTEBOOKS = sorted(Path(__file__).with_name("notebooks").glob("*.cells"))
NAMES = [path.stem for path in NOTEBOOKS]
QUICK = frozenset(
    re.findall(
        r"\w+",
        """cells_run_twice jax_optax keras_fit_tensorflow lightning_module no_seed own_generators pushed_model
        seed_then_shown tqdm_bar transformers_trainer""",
    )
)
"""What `make test` trains: each source of randomness, a push, cells run twice, and the heavy frameworks once."""
ONCE = frozenset({"torch_gradual_unfreezing", "torch_scheduler"})
"""Notebooks whose training cell raises when it is run again: OneCycleLR refuses more steps than it was made for, and an
optimiser the same parameters in a second group."""
REPORTED: Final = {"keras_gradient_tape": "changed `dataset`, which cannot be returned"}
"""Notebooks whose second job has other numbers than a second run in the notebook, with the text that names the reason.

A pipeline of tf.data counts its passes for the order of its samples, and nothing can read or set the count.
"""
each_notebook = pytest.mark.parametrize("path", NOTEBOOKS, ids=NAMES)
each_training = pytest.mark.parametrize(
    "path", [pytest.param(path, id=path.stem, marks=() if path.stem in QUICK else exhaustive) for path in NOTEBOOKS]
)
Ask = Callable[[Path], Result]


@pytest.fixture(scope="module")
def runner(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Runner]:
    one = Runner(tmp_path_factory.mktemp("corpus"), forks=True)
    yield one
    one.close()


@pytest.fixture(scope="module")
def result_of(runner: Runner, request: pytest.FixtureRequest) -> Iterator[Ask]:
    """Return the findings about a notebook. Those of this session run in the background, in the order of its tests."""
    found: dict[Path, Future[Result]] = {}
    with ThreadPoolExecutor(2) as threads:

        def start(path: Path) -> Future[Result]:
            if path not in found:
                found[path] = threads.submit(runner.run, read(path))
            return found[path]

        asked = test_job_reproduces_the_notebook_and_leaves_the_kernel_alone.__name__
        for item in request.session.items:
            if isinstance(item, pytest.Function) and item.originalname == asked:
                start(NOTEBOOKS[NAMES.index(item.callspec.id)])
        yield lambda path: start(path).result()
        threads.shutdown(cancel_futures=True)


@each_notebook
def test_check_binds_every_name_without_false_warnings(path: Path) -> None:
    notebook = read(path)
    report = notebook.checked()
    (cell,) = report.cells

    assert report.error is None
    assert cell.is_training, "not known as training"
    assert (cell.unbound, cell.errors) == ((), ())
    assert tuple(said.code for said in cell.warnings) == notebook.warns


@pytest.mark.timeout(400)
@each_training
def test_job_reproduces_the_notebook_and_leaves_the_kernel_alone(path: Path, result_of: Ask) -> None:
    notebook, result = read(path), result_of(path)
    found = text_of(result)

    assert result.ran, found
    assert result.trained, found
    assert result.kernel_changed == [], found
    assert result.repeats is (notebook.repeats == "yes"), found
    if notebook.repeats == "no":
        assert result.same is not False, found
    else:
        assert result.same is True, found
        assert result.advice_taken == ""
        assert result.compared > 0


@pytest.fixture(scope="module")
def twice(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Runner]:
    one = Runner(tmp_path_factory.mktemp("twice"), forks=True, times=2)
    yield one
    one.close()


@pytest.mark.timeout(400)
@pytest.mark.parametrize(
    "path",
    [
        pytest.param(
            p,
            id=p.stem,
            marks=() if p.stem in {"torch_contrastive", "torch_gan"} else exhaustive,
        )
        for p in NOTEBOOKS
        if p.stem not in ONCE
    ],
)
def test_a_training_cell_run_twice_has_the_notebook_s_numbers(path: Path, twice: Runner) -> None:
    notebook = read(path)
    result = twice.run(notebook)
    found = text_of(result)

    assert result.ran, found
    assert result.trained, found
    assert result.kernel_changed == [], found
    if (text := REPORTED.get(path.stem)) is not None:
        assert any(text in note for _, note in result.notes), found
        assert result.same is False, found
    elif notebook.repeats != "no" and not result.not_brought:  # the card says what is not returned, and why
        assert result.same is True, found


@pytest.mark.timeout(900)
def test_most_notebooks_show_curves_or_progress_unchanged(
    result_of: Ask, request: pytest.FixtureRequest, record_property: Callable[[str, object], None]
) -> None:
    trained = NOTEBOOKS if request.config.getoption("exhaustive") else [p for p in NOTEBOOKS if p.stem in QUICK]
    results = [result_of(path) for path in trained]
    silent = [Path(one.path).stem for one in results if not one.shows]
    share = 1 - len(silent) / len(results)
    record_property("report", f"{share:.0%} of {len(results)} notebooks show a curve or progress; not: {silent or '-'}")

    assert share >= 0.85


def test_fresh_start_after_notebook_training_is_distinguished(runner: Runner) -> None:
    notebook = read(NOTEBOOKS[NAMES.index("earlier_training")])
    result = runner.run(replace(notebook, options=""))

    assert (result.same, result.advice_taken) == (True, notebook.options)


def test_other_numbers_are_seen(runner: Runner, tmp_path: Path) -> None:
    path = tmp_path / "counts_its_runs.cells"
    counter = tmp_path / "runs.txt"
    counter.write_text("")
    path.write_text(
        f"# %%\nimport torch\nw = torch.ones(3)\n# %% train\nfor step in range(2):\n    w *= 2\n"
        f"import sys\nif sys.argv[0].endswith('train.py'):\n    w += 1e-6\nopen({str(counter)!r}, 'a').write('x')\n"
    )
    result = runner.run(read(path))

    assert counter.read_text() == "xxx", "as it is, as a job, and again since they differ"
    assert (result.trained, result.same, result.differing) == (True, False, ["w"])


def test_set_order_dependent_values_are_not_reproducible(runner: Runner, tmp_path: Path) -> None:
    path = tmp_path / "vocabulary.cells"
    path.write_text(
        "# %%\nimport numpy as np\nletters = list(set('abcdefghijklmnop'))\n# %% train\nw = np.zeros(16)\n"
        "for step in range(2):\n    w += [ord(letter) for letter in letters]\n"
    )
    result = runner.run(read(path))

    assert (result.trained, result.repeats, result.same) == (True, False, True)
    assert result.unsteady == ["w"]


def test_other_numbers_are_seen_beside_those_that_do_not_repeat(runner: Runner, tmp_path: Path) -> None:
    path = tmp_path / "timed.cells"
    path.write_text(
        "# %%\nimport torch, time, sys\nw = torch.ones(3)\n# %% train\nstart = time.time()\nfor step in range(2):\n"
        "    w *= 2\ntook = torch.tensor([time.time() - start])\nif sys.argv[0].endswith('train.py'):\n    w += 1e-6\n"
    )
    result = runner.run(read(path))

    assert (result.trained, result.repeats, result.same) == (True, False, False)
    assert result.differing == ["w"]
    assert not result.is_good


def test_there_are_fifty_notebooks_and_ten_that_mix() -> None:
    mixed = [name for name in NAMES if name.startswith("mix_")]

    assert len(mixed) >= 10
    assert len(NAMES) - len(mixed) >= 50


def test_raising_notebook_is_reported_with_its_cell(runner: Runner) -> None:
    raising = Notebook(path=Path("x.cells"), cells=("x = 1", "x.fit()"), training=2, order=(1,))
    result = runner.run(raising)

    assert not result.ran
    assert "cell 2: AttributeError" in result.error
