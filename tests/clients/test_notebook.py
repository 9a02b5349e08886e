"""*Train this notebook*: from the posted cells to a submit, without a kernel."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from dlaas_server.jupyter_extension.notebook_submit import Notebook, folder_of, interpreter_of, make
from dlaas_server.rest.routes import Cell, NotebookSubmit
from jupyter_dlaas.wire.protocol import Refused
from tests.clients.conftest import Server
from tests.clients.test_server import ask

CELLS = (
    "%matplotlib inline\nimport torch\nimport own",
    "model = torch.nn.Linear(2, 1)\nopt = torch.optim.SGD(model.parameters(), lr=0.1)\nmodel.train()",
    "%%time\nfor step in range(3):\n    loss = model(torch.ones(1, 2)).sum()\n    loss.backward()\n    opt.step()",
    "%%time\n\nprint(own.X)\nresult = float(loss)",
)


def asked(cells: Sequence[str | Cell], **changes: Any) -> NotebookSubmit:
    made = tuple(one if isinstance(one, Cell) else Cell(source=one, id=f"id-{n}") for n, one in enumerate(cells, 1))
    given: dict[str, Any] = {"key": "k" * 8, "path": "deep/digits.ipynb", "cells": made, "kernel_name": "python3"}
    return NotebookSubmit(**(given | changes))


def notebook(folder: Path) -> Notebook:
    return Notebook(folder, sys.executable, {"A": "b", "JUPYTER_TOKEN": "secret"})


def test_the_cells_become_one_program_with_their_lines(tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text("X = 1\n")
    submit, packed = make(asked(CELLS), notebook(tmp_path))

    head, main = submit.source.split('if __name__ == "__main__":')
    assert "model = torch.nn.Linear(2, 1)" in head
    assert "loss.backward()" in main
    assert "result = float(loss)" in main
    spec = submit.spec
    assert (spec.name, spec.framework, spec.directory) == ("digits", "torch", str(tmp_path))
    assert (spec.origin.notebook, spec.origin.cell_id) == ("deep/digits.ipynb", "id-3")
    assert ([one.path for one in submit.files], packed.uploads) == (["files/own.py"], {})
    assert dict(submit.environment) == {"A": "b"}
    lines = submit.source.splitlines()
    where = {text: place(spec.cells, n) for n, text in enumerate(lines, 1)}
    assert where["import own"] == "cell [1], line 3"
    assert where["    " * 2 + "loss.backward()"] == "cell [3], line 4"
    assert where["    result = float(loss)"] == "cell [4], line 4"


def place(cells: Any, line: int) -> str | None:
    for span, start in cells.items():
        first, last = map(int, span.split("-"))
        if first <= line <= last:
            cell, _, at = start.rpartition(":")
            return f"{cell}, line {int(at) + line - first}"
    return None


def test_tags_choose_the_cells(tmp_path: Path) -> None:
    cells = [Cell(source="x = 1"), Cell(source="y = 2", tags=("notrain",)), Cell(source="z = 3")]
    submit, _ = make(asked(cells), notebook(tmp_path))
    assert "y = 2" not in submit.source
    assert "x = 1" in submit.source

    submit, _ = make(asked([Cell(source="x = 1"), Cell(source="y = 2", tags=("train",))]), notebook(tmp_path))
    assert "x = 1" not in submit.source
    assert "y = 2" in submit.source

    with pytest.raises(Refused, match="no code cell to run"):
        make(asked([Cell(source="y = 2", tags=("notrain",))]), notebook(tmp_path))


def test_problems_are_reported_with_cell_and_line(tmp_path: Path) -> None:
    with pytest.raises(Refused, match=r"cell \[2\], line 1, reads `nothing`"):
        make(asked(["x = 1", "y = nothing"]), notebook(tmp_path))


def test_a_notebook_stays_below_the_server_s_folder(tmp_path: Path) -> None:
    (tmp_path / "deep").mkdir()
    (tmp_path / "out").symlink_to("/")

    assert folder_of(str(tmp_path), "deep/a.ipynb") == (tmp_path / "deep").resolve()
    for path in ("../a.ipynb", "deep/../../a.ipynb", "out/etc/a.ipynb", "nowhere/a.ipynb", "", "a\\b"):
        with pytest.raises(Refused):
            folder_of(str(tmp_path), path)
    with pytest.raises(Refused, match="not store notebooks in a folder"):
        folder_of(None, "a.ipynb")


def kernel(*argv: str, language: str = "python") -> SimpleNamespace:
    return SimpleNamespace(argv=list(argv), language=language)


def test_the_interpreter_is_the_kernel_s(tmp_path: Path) -> None:
    async def find(*argv: str) -> str:
        return await interpreter_of("mine", kernel(*argv), sys.executable)

    assert asyncio.run(find("python", "-m", "ipykernel_launcher")) == sys.executable
    assert asyncio.run(find(sys.executable, "-m", "ipykernel_launcher")) == sys.executable


@pytest.mark.parametrize(
    ("argv", "language", "says"),
    [
        (("R", "--slave"), "R", "the kernel mine is not Python"),
        (
            ("conda", "run", "python"),
            "python",
            "starts through 'conda', which is not a Python interpreter on this machine",
        ),
        (("/nowhere/python3",), "python", "is not a Python interpreter on this machine"),
    ],
)
def test_another_kernel_is_refused_in_words(argv: tuple[str, ...], language: str, says: str) -> None:
    with pytest.raises(Refused, match=says):
        asyncio.run(interpreter_of("mine", kernel(*argv, language=language), sys.executable))


@pytest.mark.parametrize(("prints", "says"), [("echo 3 10", "runs Python 3.10; jobs"), ("exit 1", "does not run")])
def test_an_old_or_broken_python_is_refused_in_words(prints: str, says: str, tmp_path: Path) -> None:
    fake = tmp_path / "python3"
    fake.write_text(f"#!/bin/sh\n{prints}\n")
    fake.chmod(0o755)

    with pytest.raises(Refused, match=says):
        asyncio.run(interpreter_of("mine", kernel(str(fake)), sys.executable))


def post(server: Server, **changes: Any) -> tuple[int, dict[str, Any]]:
    body = {
        "key": "12345678",
        "path": "digits.ipynb",
        "cells": [{"source": "x = 1", "tags": [], "id": "a"}, {"source": "print(x)", "tags": [], "id": "b"}],
        "kernel_name": "python3",
        "spec": {"learners_max": 2},
    }
    status, _, said = ask(server, "dlaas/notebook", "POST", body=json.dumps(body | changes).encode())
    return status, json.loads(said)


def test_the_server_submits_a_notebook(server: Server) -> None:
    status, view = post(server)

    assert (status, view["id"]) == (201, "fake-1")
    sent = json.loads((server.pool.fake / "submit.json").read_text())
    assert (sent["key"], sent["spec"]["learners_max"], sent["spec"]["name"]) == ("12345678", 2, "digits")
    assert sent["spec"]["directory"].endswith("/work")
    assert "JUPYTER_TOKEN" not in sent["environment"]


@pytest.mark.parametrize(
    ("changes", "status", "code"),
    [
        ({"kernel_name": "absent"}, 422, "refused"),
        ({"path": "../../etc/a.ipynb"}, 422, "refused"),
        ({"cells": []}, 422, "refused"),
        ({"cells": [{"source": "y = x"}]}, 422, "refused"),
        ({"cells": 3}, 400, "invalid"),
        ({"more": 1}, 400, "invalid"),
        ({"key": "short"}, 400, "invalid"),
    ],
)
def test_a_wrong_notebook_is_refused_with_a_code(
    changes: dict[str, Any], status: int, code: str, server: Server
) -> None:
    got, said = post(server, **changes)

    assert (got, said["error"]["code"]) == (status, code)


def test_server_reports_required_code_and_missing_names(server: Server) -> None:
    cells = [{"source": source, "id": f"id-{n}"} for n, source in enumerate(("x = 1", "", "model.fit(x)"), 1)]
    body = json.dumps({"path": "digits.ipynb", "cells": cells}).encode()

    status, _, said = ask(server, "dlaas/notebook/check", "POST", body=body)

    found = json.loads(said)
    assert (status, found["error"], found["notes"]) == (200, None, [])
    (cell,) = found["cells"]
    assert (cell["cell"], cell["id"], cell["why"], cell["kept_cells"]) == (3, "id-3", "calls `model.fit`", [1])
    (error,) = cell["errors"]
    assert (error["code"], error["id"], error["line"]) == ("undefined_name", "id-3", 1)
    assert "reads `model`, which no cell above defines" in error["text"]
    assert cell["type"] == ""


def test_looking_at_a_notebook_runs_nothing(server: Server, tmp_path: Path) -> None:
    mark = tmp_path / "ran"
    body = json.dumps({"path": "a.ipynb", "cells": [{"source": f"open({str(mark)!r}, 'w')\nmodel.fit(1)"}]}).encode()

    assert ask(server, "dlaas/notebook/check", "POST", body=body)[0] == 200
    assert not mark.exists()
