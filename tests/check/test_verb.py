"""`jupyter dlaas check` as a person, or a CI, runs it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from jupyter_dlaas.analysis.model import MODULE_BYTES_MAX
from jupyter_dlaas.cli import main

GOOD = ["import torch\nmodel = torch.nn.Linear(1, 1)\nx = 1\nprint(x)", "model.fit(x)"]
BAD = ["model = 1", "model.fit(data, weights)"]


def write(path: Path, sources: list[str]) -> str:
    path.parent.mkdir(parents=True, exist_ok=True)
    cells = [{"cell_type": "code", "source": source, "outputs": [], "metadata": {}} for source in sources]
    path.write_text(json.dumps({"nbformat": 4, "nbformat_minor": 5, "metadata": {}, "cells": cells}))
    return str(path)


def run(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    code = main.main(["check", *words])
    said = capsys.readouterr()
    return code, said.out, said.err


def test_complete_notebook_prints_the_magic_and_exits_0(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write(tmp_path / "my net.ipynb", GOOD)

    wanted = (
        f"{path}\n"
        "  cell [2] calls `model.fit`\n"
        "    requires     3 statements of cell [1]\n"
        "    omits        1: 1 output only\n"
        "    type         %%train my_net\n"
    )
    assert run(capsys, path) == (0, wanted, "")


def test_unbound_name_is_reported_with_line_and_exits_1(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, write(tmp_path / "a.ipynb", BAD))

    assert code == 1
    assert "cell [2], line 1, reads `weights`, which no cell above defines. Define `weights` in a cell above." in out
    assert "type " not in out


def test_json_has_each_notebook_with_its_training_cells(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    good, bad = write(tmp_path / "a.ipynb", GOOD), write(tmp_path / "b.ipynb", BAD)

    code, out, _ = run(capsys, good, bad, "--json")

    first, second = json.loads(out)["notebooks"]
    assert code == 1
    assert (first["path"], first["error"]) == (good, None)
    (cell,) = first["cells"]
    assert (cell["cell"], cell["is_training"], cell["why"]) == (2, True, "calls `model.fit`")
    assert cell["kept"][0] == {"cell": 1, "line": 1, "source": "import torch"}
    assert cell["left_out"] == [
        {
            "cell": 1,
            "line": 4,
            "source": "print(x)",
            "kind": "shown",
            "reason": "only shows something",
            "option": "--with-cell 1",
        }
    ]
    assert (cell["unbound"], cell["warnings"]) == ([], [])
    assert second["cells"][0]["unbound"] == ["data", "weights"]


def test_folder_walk_skips_checkpoints_and_survives_broken_files(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write(tmp_path / "deep" / "a.ipynb", GOOD)
    write(tmp_path / ".ipynb_checkpoints" / "a.ipynb", BAD)
    (tmp_path / "broken.ipynb").write_text("{")
    (tmp_path / "gone.ipynb").symlink_to(tmp_path / "nowhere")

    code, out, _ = run(capsys, str(tmp_path))

    assert code == 1
    assert out.endswith("3 notebooks: 1 without errors, 2 that could not be checked\n")
    assert "not a notebook: invalid JSON at line 1" in out
    assert "cannot be read: No such file or directory" in out


def test_any_cell_can_be_checked_explicitly(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, write(tmp_path / "a.ipynb", ["a = 1", "print(a)", "model.fit(a)"]), "--cell", "2")

    assert code == 0
    assert "cell [2] does not look like training" in out
    assert "[3]" not in out


@pytest.mark.parametrize("words", [["nowhere.ipynb"], [".", "--cell", "0"], ["a", "b", "--cell", "1"]])
def test_wrong_usage_ends_with_2(
    words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in "ab":
        write(tmp_path / name, GOOD)

    code, _, said = run(capsys, *words)

    assert code == 2
    assert said.startswith("dlaas: ")


def test_check_runs_nothing_and_needs_no_ipython(tmp_path: Path) -> None:
    marker = tmp_path / "ran"
    (tmp_path / "mine.py").write_text(f"open({str(marker)!r}, 'w')\n")
    touch = f"%matplotlib inline\n!touch {marker}\nimport mine, torch\nopen({str(marker)!r}, 'w')"
    path = write(tmp_path / "a.ipynb", [touch, "model = mine.f()", "model.fit(1)"])
    program = (
        "import sys\nfrom jupyter_dlaas.cli import main\n"
        f"code = main.main(['check', {path!r}])\n"
        "assert code == 0\nassert not {'IPython', 'torch', 'mine', 'pickle'} & set(sys.modules) - before\n"
    )

    done = subprocess.run(
        [sys.executable, "-c", "import sys; before = set(sys.modules)\n" + program],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )

    assert done.returncode == 0, done.stderr
    assert not marker.exists()


def test_results_of_earlier_jobs_are_bound(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sources = ["x = 1", "%%train a --gpus 2 -o model,history\nmodel = x\nhistory = [x]", "model.fit(x)"]

    code, out, _ = run(capsys, write(tmp_path / "a.ipynb", sources))

    assert code == 0, out
    assert "type         %%train a --gpus 2 -o model,history" in out


def test_name_bound_by_input_is_offered_as_a_push(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, write(tmp_path / "a.ipynb", ["n = int(input())", "model = 1", "model.fit(n)"]))

    assert code == 0
    assert "%%train a --push n" in out


@pytest.mark.parametrize(
    "last",
    [
        "scaler = StandardScaler()\nscaler.fit(x)",
        "model.train()",
        "y.backward()",
        "train_test_split(x)",
        "def train():\n    loss.backward()",
        "print(evaluate(model))",
    ],
)
def test_similar_names_are_not_training(last: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first = (
        "def step(m):\n    m.loss().backward()\ndef fit_all(m):\n    step(m)\n"
        "def evaluate(m):\n    return m(1)\nmodel = x = y = 1"
    )

    _, out, _ = run(capsys, write(tmp_path / "a.ipynb", [first, "fit_all(model)", last]))

    assert "cell [2] calls `fit_all`, which trains (cell [1])" in out
    assert "cell [3]" not in out


def test_asked_for_a_suggestion_it_shows_the_cell_s_diff(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    loop = "%%train\nfor epoch in range(9):\n    for x in loader:\n        net(x).backward()\n        opt.step()\n"
    made = "import torch\nloader = data()\nnet = torch.nn.Linear(1, 1)\nopt = torch.optim.SGD(net.parameters())"
    path = write(tmp_path / "a.ipynb", [made, loop])

    _, out, _ = run(capsys, path, "--cell", "2", "--suggest")
    _, plain, _ = run(capsys, path, "--cell", "2")
    _, coded, _ = run(capsys, path, "--cell", "2", "--suggest", "--json")

    assert "\n    @@ -1,5 +1,7 @@\n     %%train\n    -for epoch in range(9):\n" in out
    assert "\n    +for epoch in run.epochs(9):\n    +    for x in run.batches(loader):\n" in out
    assert "run.epochs" not in plain
    (cell,) = json.loads(coded)["notebooks"][0]["cells"]
    assert cell["suggestion"]["cells"][0]["after"].startswith(
        "%%train\nrun = dlaas.run()\nnet, opt = run.prepare(net, opt)\n"
    )


@pytest.mark.parametrize(
    ("cells", "options"),
    [
        (["from sklearn.linear_model import LinearRegression\nmodel = LinearRegression()", "model.fit(1)"], ""),
        (["model = 1", "run = dlaas.run()\nfor epoch in run.epochs(3):\n    model.fit(1)"], " --gpus 1:4"),
        (
            [
                "from torch.nn.parallel import DistributedDataParallel\nmodel = DistributedDataParallel(1)",
                "model.fit(1)",
            ],
            " --gpus 1:4",
        ),
    ],
)
def test_several_gpus_are_suggested_where_learners_would_share_the_work(
    cells: list[str], options: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    _, out, _ = run(capsys, write(tmp_path / "a.ipynb", [cells[0], f"{cells[1]}\nmodel.to_csv('a.csv')"]))

    assert f"type         %%train a{options}\n" in out
    assert ("each of up to 4 learners" in out) is bool(options)


def test_trainings_in_modules_beside_the_notebook_are_found(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sources = [
        "import own.engine as engine\nnet = engine.Net()\ndata = [1]",
        "!ls",
        "engine.do_it(net, data)",
        "net(1)",
    ]
    path = write(tmp_path / "a.ipynb", sources)
    engine = tmp_path / "own" / "engine.py"
    engine.parent.mkdir()
    engine.write_text("def do_it(net, data):\n    for x in data:\n        net(x).backward()\n        net.opt.step()")

    assert "cell [3] calls `engine.do_it`, which trains" in run(capsys, path)[1]
    assert "cell [4], line 1" not in run(capsys, path, "--cell", "3")[1]
    assert "trained `net` here" in run(capsys, path, "--cell", "4")[1]

    (tmp_path / "own" / "data.py").write_text(f"# {'x' * MODULE_BYTES_MAX}")
    assert "no training cell found" in run(capsys, path)[1], "beyond the budget"

    (tmp_path / "own" / "data.py").unlink()
    engine.write_text("def do_it(net, data):\n    return net(data)\n(")
    assert "no training cell found" in run(capsys, path)[1]
