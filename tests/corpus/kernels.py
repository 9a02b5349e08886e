"""Real kernels for the corpus: cells are run in them as by a page, and between the cells they are looked at."""

from __future__ import annotations

import pickle
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from jupyter_client.manager import KernelManager

from tests.corpus.forking import Nursery
from tests.notebook_e2e.rooms import Kernel, Outcome, environment

__all__ = ["CellRaised", "Room", "room", "variables"]

FIGURES = Path(__file__).with_name("figures.py")


STEADY: Final = {
    "JUPYTER_DLAAS_WARM": "1",
    "OMP_NUM_THREADS": "1",  # the order in which numbers are added up depends on how many there are
    "MPLBACKEND": "module://matplotlib_inline.backend_inline",
}


def variables(site: Path) -> dict[str, str]:
    """Return the environment of all kernels of a pool, except for the hash seed."""
    whole = {**environment(site), **STEADY}
    whole.pop("PYTHONHASHSEED", None)
    return whole


def hash_seed(*, is_first: bool) -> str:
    """Return the hash seed: the first run's differs from that of the job's kernel and of the run compared with it.

    Else numbers that depend on the order of a set would seem to repeat.
    """
    return "1" if is_first else "2"


class CellRaised(Exception):
    """A cell of the notebook raised, or took too long."""

    def __init__(self, cell: int, outcome: Outcome) -> None:
        super().__init__(f"cell {cell}: {outcome.ename}: {outcome.evalue}"[:600])
        self.outcome = outcome


class Room:
    """One kernel in a folder of its own."""

    def __init__(self, kernel: Kernel, folder: Path, timeout_s: float) -> None:
        self.kernel = kernel
        self.folder = folder
        self.timeout_s = timeout_s

    def run(self, source: str, cell: int) -> Outcome:
        """Run the cells. Raises CellRaised, as a notebook stops at a cell that raises."""
        outcome = self.kernel.run(source, timeout_s=self.timeout_s, cell_id=f"cell-{cell}", fails=True)
        if outcome.status != "ok":
            raise CellRaised(cell, outcome)
        return outcome

    def look(self, names: list[str] | None = None) -> dict[str, Any]:
        """Return the values of names (None: digests of all), and what a job must leave alone. Leaves no trace there."""
        answer = self.folder / "look.pickle"
        asked = f"__import__('runpy').run_path({str(FIGURES)!r})['look'](globals(), {names!r}, {str(answer)!r})"
        client = self.kernel.client
        said = client.execute_interactive(
            asked,
            silent=True,
            store_history=False,
            allow_stdin=False,
            timeout=self.timeout_s,
            output_hook=lambda _: None,
        )["content"]
        assert said["status"] == "ok", "\n".join(said.get("traceback", [])) or said
        found: dict[str, Any] = pickle.loads(answer.read_bytes())
        answer.unlink()
        return found


@contextmanager
def room(
    site: Path, work: Path, timeout_s: float, nursery: Nursery | None = None, text: str = "", *, is_first: bool = True
) -> Iterator[Room]:
    """Open a kernel whose pool is the site's, in the working directory `work`; a fork, if there is a nursery.

    `is_first`: the notebook's first run (see `hash_seed`).
    """
    log = work.parent / "kernel.log"
    manager: Any = KernelManager(transport="ipc", ip=str(log.with_suffix("")))
    if nursery is None:
        manager.kernel_spec.argv = [sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}"]
        with log.open("wb") as file:
            whole = {**variables(site), "PYTHONHASHSEED": hash_seed(is_first=is_first)}
            manager.start_kernel(cwd=str(work), env=whole, stdout=file, stderr=file)
    else:
        manager = nursery.kernel(text, work, variables(site), log, hash_seed(is_first=is_first))
    kernel = Kernel(manager)
    try:
        yield Room(kernel, work.parent, timeout_s)
    finally:
        kernel.close()
