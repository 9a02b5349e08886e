"""Notebooks that train on a GPU, each with a difficulty of its own: run as they are and with `%%train`, and compared.

Not run without a GPU. Also the notebooks of the corpus that use a GPU if there is one.
"""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.corpus.__main__ import text_of
from tests.corpus.reading import read
from tests.corpus.running import Result, Runner
from tests.gpu.one_gpu import divide_gpu

torch = pytest.importorskip("torch")
pytestmark = [pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU"), pytest.mark.timeout(300)]
HERE = Path(__file__).with_name("notebooks")
CORPUS = Path(__file__).parents[1] / "corpus" / "notebooks"
NOTEBOOKS = [*sorted(HERE.glob("*.cells")), *(p for p in sorted(CORPUS.glob("*.cells")) if "cuda" in p.read_text())]
AT_A_TIME = 4
REPORTED = {"lstm_with_dropout": "from a state of cuDNN that cannot be read"}
"""Notebooks whose jobs have other numbers, with the text that names the reason before the start."""
OPTIONAL = re.compile(r"^(?:import|from) (accelerate|cupy|jax|lightning|timm|transformers|triton)\b", re.MULTILINE)


@pytest.fixture(scope="module", params=[1, 2], ids=["once", "twice"])
def times(request: pytest.FixtureRequest) -> int:
    """Return the number of times that the training cell is run."""
    return int(request.param)


@pytest.fixture(scope="module")
def result_of(times: int, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[Path], Result]]:
    """Return the findings about a notebook. All run in the background, several at a time."""
    runner = Runner(tmp_path_factory.mktemp("gpu"), times=times)
    divide_gpu(runner.pool, AT_A_TIME)
    with ThreadPoolExecutor(AT_A_TIME) as threads:
        found = {path: threads.submit(runner.run, read(path)) for path in NOTEBOOKS if not missing(path)}
        yield lambda path: found[path].result()
        threads.shutdown(cancel_futures=True)
    runner.close()


def missing(path: Path) -> list[str]:
    """Return the frameworks of a notebook that are not installed."""
    return [name for name in OPTIONAL.findall(path.read_text()) if importlib.util.find_spec(name) is None]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_job_on_the_gpu_reproduces_the_notebook(path: Path, times: int, result_of: Callable[[Path], Result]) -> None:
    if names := missing(path):
        pytest.skip(f"no {names[0]} here")
    notebook, result = read(path), result_of(path)
    found = text_of(result)

    assert result.ran, found
    assert result.trained, found
    assert result.kernel_changed == [], found
    if (text := REPORTED.get(path.stem)) is not None:
        assert any(text in note for _, note in result.notes), found
        assert result.same is False, found
        return
    is_reported = "not_returned" in {code for code, _ in result.notes}  # the card names what to add to -o
    if notebook.repeats == "no" or (times > 1 and (result.not_brought or is_reported)):
        assert result.same is not False or is_reported, found
    else:
        assert result.same is True, found
        assert result.compared > 0
