"""The format of the files in difficulties/, and what runs them: each case in a fork of one clean process.

== the promise, as a sentence
@ file data/a.txt text of a file beside the notebook (¶: a line break)
first cell
--
second cell  #-        (a statement that must stay behind; "#?" where both are right; all others go along)
>>
the training cell, which binds `seen`
@ order 2 1            (where the cells ran in another order than they stand)
"""

from __future__ import annotations

import json
import os
import sys
import traceback
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

__all__ = ["Case", "cases_of", "in_fork"]


@dataclass(frozen=True, slots=True)
class Case:
    name: str
    cells: tuple[str, ...]
    train: str
    order: tuple[int, ...]  # from 1
    files: tuple[tuple[str, str], ...] = ()

    @property
    def ran(self) -> list[str]:
        return [self.cells[n - 1] for n in self.order]


@dataclass(slots=True)
class _Draft:
    name: str
    cells: list[list[str]] = field(default_factory=lambda: [[]])
    train: list[str] | None = None
    order: tuple[int, ...] = ()
    files: list[tuple[str, str]] = field(default_factory=list)

    def add(self, line: str) -> None:
        match line.split(" ", 3):
            case ["--"]:
                self.cells.append([])
            case [">>"]:
                self.train = []
            case ["@", "order", *numbers]:
                self.order = tuple(int(n) for n in " ".join(numbers).split())
            case ["@", "file", path, text]:
                self.files.append((path, text.replace("¶", "\n")))
            case _:
                (self.cells[-1] if self.train is None else self.train).append(line)

    def case(self) -> Case:
        cells = tuple("\n".join(lines) for lines in self.cells)
        assert self.train, f"{self.name}: no training cell"
        order = self.order or tuple(range(1, len(cells) + 1))
        return Case(self.name, cells, "\n".join(self.train), order, tuple(self.files))


def cases_of(folder: Path) -> list[Case]:
    drafts: list[_Draft] = []
    for path in sorted(folder.glob("*.cells")):
        for line in path.read_text().splitlines():
            if line.startswith("== "):
                drafts.append(_Draft(line[3:]))
            else:
                drafts[-1].add(line)
    return [draft.case() for draft in drafts]


def in_fork(work: Callable[[], Any], directory: Path) -> Any:
    """Run `work` in a fork of this process, in a directory of its own. Return its result; {"error": …} if it raised."""
    directory.mkdir(parents=True, exist_ok=True)
    answer = directory.with_suffix(".answer.json")
    child = os.fork()
    if child == 0:
        code = 1
        try:
            os.chdir(directory)
            sys.stdout = sys.stderr = Path(os.devnull).open("w")  # noqa: SIM115  # until the process ends
            try:
                found = work()
            except BaseException:  # noqa: BLE001  # reported to the test
                found = {"error": traceback.format_exc()}
            answer.write_text(json.dumps(found))
            code = 0
        finally:
            os._exit(code)
    os.waitpid(child, 0)
    return json.loads(answer.read_text())


def in_kernel(case: Case) -> dict[str, Any]:
    """Run the cells in a real shell, capture, run the training cell. Return what it saw, and the job's contents."""
    import types

    from IPython.core.interactiveshell import InteractiveShell

    from jupyter_dlaas.analysis.model import TrainingCell
    from jupyter_dlaas.capture.capture import capture
    from jupyter_dlaas.kernel.recorder import Recorder, facts_of

    for path, text in case.files:
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        Path(path).write_text(text)
    sys.modules["__main__"] = space = types.ModuleType("__main__")
    sys.path.insert(0, "")
    shell = InteractiveShell.instance(user_module=space)
    shell.builtin_trap.activate()
    vars(shell)["enable_gui"] = lambda gui=None: None  # what a kernel has, and a bare shell has not
    recorder = Recorder(shell)
    for source in case.ran:
        shell.run_cell(source, store_history=True)
    cells = recorder.cells()
    training = TrainingCell(count=shell.execution_count, source=case.train)
    made = capture(cells, training, facts_of(shell, cells))
    unseen = capture(cells, training)
    directory = str(Path.cwd())
    result = shell.run_cell(case.train, store_history=True)
    assert result.success, result.error_in_exec
    return {
        "capture": asdict(made),
        "unbound_unseen": unseen.unbound,
        "seen": repr(shell.user_ns["seen"]),
        "directory": directory,
        "environment": dict(os.environ),
    }


def in_job(kernel: dict[str, Any]) -> dict[str, Any]:
    """Run the program as `__main__`, in the directory and environment that the kernel had at submit."""
    import types

    text, directory = kernel["capture"]["text"], kernel["directory"]
    os.chdir(directory)
    os.environ.clear()
    os.environ.update(kernel["environment"])
    sys.path.insert(0, directory)
    sys.modules["__main__"] = space = types.ModuleType("__main__")
    Path("train.py").write_text(text)
    exec(compile(text, "train.py", "exec", dont_inherit=True), space.__dict__)
    return {"seen": repr(space.__dict__["seen"])}


def main(folder: Path, work: Path) -> dict[str, Any]:
    import builtins
    import importlib

    for name in ("IPython.core.interactiveshell", "jupyter_dlaas.capture.capture", "jupyter_dlaas.kernel.recorder"):
        importlib.import_module(name)  # once, for all forks
    builtins.input = lambda prompt="": "3"  # the user at the keyboard
    found = {}
    for number, case in enumerate(cases_of(folder)):
        kernel = in_fork(partial(in_kernel, case), work / f"kernel{number}")
        job = {} if "error" in kernel else in_fork(partial(in_job, kernel), work / f"job{number}")
        found[case.name] = {"kernel": kernel, "job": job}
    return found


if __name__ == "__main__":
    Path(sys.argv[3]).write_text(json.dumps(main(Path(sys.argv[1]), Path(sys.argv[2]))))
