"""`check` reads the files that `%run` names, where they lie beside the notebook."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from jupyter_dlaas.cli.check import run

TRAIN = "for epoch in range(2):\n    net(data).sum().backward()"


def notebook(folder: Path, *sources: str) -> str:
    cells = [{"cell_type": "code", "source": source, "metadata": {}, "outputs": []} for source in sources]
    path = folder / "a.ipynb"
    path.write_text(json.dumps({"cells": cells, "metadata": {}, "nbformat": 4, "nbformat_minor": 5}))
    return str(path)


def test_names_of_a_file_beside_the_notebook_are_bound(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "parts.py").write_text("import torch\nnet = torch.nn.Linear(2, 1)\ndata = torch.ones(3, 2)\n")

    assert run([notebook(tmp_path, "%run parts.py", TRAIN)], None, as_json=False) == 0
    assert "only" not in said(capsys)


def test_names_of_a_missing_file_may_be_bound(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run([notebook(tmp_path, "%run parts.py", TRAIN)], None, as_json=False)

    assert "which only cell [1], line 1 (%run parts.py) can define" in said(capsys)


def test_names_of_a_file_that_a_cell_writes_are_bound(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    wrote = "%%writefile parts.py\nimport torch\nnet = torch.nn.Linear(2, 1)\ndata = torch.ones(3, 2)\n"

    assert run([notebook(tmp_path, wrote, "%run parts.py", TRAIN)], None, as_json=False) == 0
    assert "can define" not in said(capsys)


def said(capsys: pytest.CaptureFixture[str]) -> str:
    return capsys.readouterr().out
