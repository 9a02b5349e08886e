"""Run by test_notebooks.py as a process of its own: a notebook in a real IPython shell, then the capture.

Reads {"sources": [...], "train": ..., "push": [...], "outputs": [...], "answers": [...]} and writes what the capture
made and the fingerprints of the names that the training cell reads.
"""

from __future__ import annotations

import ast
import builtins
import json
import sys
import types
from dataclasses import asdict
from pathlib import Path
from typing import Any

from IPython.core.interactiveshell import InteractiveShell

from jupyter_dlaas.analysis.cells import clean_cell
from jupyter_dlaas.analysis.model import TrainingCell
from jupyter_dlaas.analysis.syntax.names import flow_of
from jupyter_dlaas.capture.capture import capture
from jupyter_dlaas.kernel.recorder import Recorder, facts_of
from jupyter_dlaas.transfer.pushed_objects import write_pushed
from tests.notebook.fingerprint import fingerprint


def names_read(source: str) -> list[str]:
    block = ast.If(test=ast.Constant(True), body=ast.parse(clean_cell(source).source).body, orelse=[])
    return sorted(flow_of(block).reads)


def main(asked: dict[str, Any]) -> dict[str, Any]:
    answers = iter(asked["answers"])
    builtins.input = lambda prompt="": next(answers)  # the user at the keyboard
    space = types.ModuleType("__main__")
    sys.modules["__main__"] = space
    shell = InteractiveShell.instance(user_module=space)
    recorder = Recorder(shell)
    for source in asked["sources"]:
        shell.run_cell(source, store_history=True)
    cells = recorder.cells()
    before = (set(shell.user_ns), Path.cwd())
    training = TrainingCell(
        count=shell.execution_count,
        source=asked["train"],
        outputs=tuple(asked["outputs"]),
        push=tuple(asked["push"]),
    )
    made = capture(cells, training, facts_of(shell, cells))
    if made.pushed:
        write_pushed(Path("pushed.bin"), {name: shell.user_ns[name] for name in made.pushed})
    assert (set(shell.user_ns), Path.cwd()) == before, "capture changed the kernel"
    recorder.close()
    names = [name for name in names_read(asked["train"]) if name in shell.user_ns]
    return {
        "capture": asdict(made),
        "values": {name: fingerprint(shell.user_ns[name]) for name in names},
        "raised": [cell.count for cell in cells if cell.raised],
    }


if __name__ == "__main__":
    done = main(json.loads(Path(sys.argv[1]).read_text()))
    Path(sys.argv[2]).write_text(json.dumps(done))
