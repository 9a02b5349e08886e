"""One notebook, as it is and with `%%train` on its training cell: does it train as a job, with the same numbers?

Nothing is marked in the notebook: what a name holds is read before and after the training cell, and whatever the cell
bound or changed that has numbers in it (weights, arrays, estimators, losses) is asked back with `-o` and compared.
Numbers that are others each time the notebook itself is run (times, unseeded ones, orders of sets) are found by running
it again, in another process with another hash seed.
"""

from __future__ import annotations

import itertools
import re
import time
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from jupyter_core.utils import ensure_event_loop

from jupyter_dlaas.wire.protocol import JobView
from tests.corpus.comparing import Comparison, compare
from tests.corpus.figures import Leaf
from tests.corpus.forking import Nursery
from tests.corpus.kernels import CellRaised, Room, room, variables
from tests.corpus.reading import Notebook
from tests.notebook_e2e.rooms import Outcome, Pool

__all__ = ["Result", "Runner"]

TIMEOUT_S: Final = 300.0
_ADVICE: Final = re.compile(r"(--with-cell \d+) to run that cell")
_WARNED: Final = frozenset({"ids", "digests", "has_weights", "drivers", "figures", "random"})
"""Names that are compared in another way, or continue from the job's end: results include the random streams."""


@dataclass(kw_only=True)
class Result:
    """Findings about one notebook."""

    path: str
    cell: int = 0
    ran: bool = False
    """The notebook itself ran, up to its training cell and with it."""
    trained: bool = False
    """The job completed."""
    error: str = ""
    """Why one of them did not."""
    repeats: bool | None = None
    """All that is compared is the same when the notebook is run again with another hash seed. False: some numbers are
    not. Then `same` is about all numbers if the job has those of the second run, which has the hash seed of the job's
    kernel; otherwise about the rest, and None where nothing of interest is left."""
    same: bool | None = None
    identical: bool = False
    largest_difference: float = 0.0
    compared: int = 0
    """Arrays and numbers that were held against each other."""
    differing: list[str] = field(default_factory=list)
    unsteady: list[str] = field(default_factory=list)
    """Numbers that the notebook itself does not repeat."""
    names: list[str] = field(default_factory=list)
    not_brought: dict[str, str] = field(default_factory=dict)
    advice_taken: str = ""
    """With this option, which the job itself named, the numbers are the same."""
    metrics: list[str] = field(default_factory=list)
    progress: str = ""
    notes: list[tuple[str, str]] = field(default_factory=list)
    kernel_changed: list[str] = field(default_factory=list)
    """What `%%train` left behind in the kernel, beside the names that it was to bring."""
    job: str = ""
    directory: str = ""
    seconds: dict[str, float] = field(default_factory=dict)

    @property
    def shows(self) -> bool:
        """A curve or progress, without a changed line."""
        return bool(self.metrics or self.progress)

    @property
    def is_good(self) -> bool:
        """It trains as a job, and the numbers are the notebook's where that repeats its own."""
        is_right = self.same is True or (self.same is None and self.repeats is False)
        return self.trained and is_right and not self.kernel_changed


@dataclass
class _Own:
    """Values of the notebook itself."""

    names: list[str]
    drivers: list[str]
    weighty: frozenset[str]
    figures: dict[str, Leaf]


class Runner:
    """Runs notebooks in one pool, which ends with `close`. May be used from several threads."""

    def __init__(self, folder: Path, *, timeout_s: float = TIMEOUT_S, forks: bool = False, times: int = 1) -> None:
        """`forks`: kernels are forks of one process per framework, which saves importing it twice per notebook.

        `times`: how often the training cell is run, in the notebook and as a job, each time in the same kernel.
        """
        self.times = times
        self.pool = Pool(folder)
        self.timeout_s = timeout_s
        self._nursery = Nursery(folder, variables(folder)) if forks else None
        self._count = itertools.count(1)

    def close(self) -> None:
        if self._nursery is not None:
            self._nursery.close()
        self.pool.close()

    def run(self, notebook: Notebook) -> Result:
        """Never raises for what a notebook may do: the result reports that."""
        result = Result(path=str(notebook.path), cell=notebook.training)
        with _timed(result, "all"), closing(ensure_event_loop()):  # the kernels' clients make one in each thread
            try:
                with _timed(result, "notebook"):
                    own = self._as_it_is(notebook)
                result.ran = True
            except (CellRaised, AssertionError) as error:
                result.error = f"the notebook itself: {error}"
                return result
            try:
                self._with_job(notebook, own, result)
            except (CellRaised, AssertionError) as error:
                result.error = str(error)
        return result

    def _with_job(self, notebook: Notebook, own: _Own, result: Result) -> None:
        names = [name for name in own.names if name not in own.drivers] or own.drivers
        if self.times > 1 or not own.weighty & set(names):  # who trains on needs the optimiser as well
            names = own.names
        with _timed(result, "job"):
            found = self._as_job(notebook, names, notebook.options, result)
        wanted = _of(own.figures, [name for name in names if name not in result.not_brought])
        compared = compare(wanted, found)
        steady = {*wanted, *found}
        if not compared.is_same:
            with _timed(result, "again"):
                again = self._as_it_is(notebook, names)
            result.unsteady = list(compare(_of(own.figures, names), _of(again.figures, names)).differing)
            result.repeats = not {*wanted, *found} & set(result.unsteady)
            like_again = compare(_of(again.figures, [name for name in names if name not in result.not_brought]), found)
            if like_again.is_same:
                compared = like_again
            else:
                steady -= set(result.unsteady)
                weights = [path for path in wanted if _name(path) in own.weighty]
                if not any(path in steady for path in weights or wanted):
                    steady = set()  # what is left are counts and the like
                compared = compare(_only(wanted, steady), _only(found, steady))
        self._tell(result, compared)
        advice = {text for code, note in result.notes if code == "earlier_training" for text in _ADVICE.findall(note)}
        if result.same is False and advice and not notebook.options:
            options = " ".join(sorted(advice))
            other = Result(path=result.path)
            found = self._as_job(notebook, names, options, other)
            advised = compare(_only(wanted, steady), _only(found, steady))
            if advised.is_same:
                result.advice_taken = options
                self._tell(result, advised)

    @staticmethod
    def _tell(result: Result, compared: Comparison) -> None:
        result.same = compared.is_same if compared.compared else None
        result.repeats = True if result.same and result.repeats is None else result.repeats
        result.identical = compared.is_identical
        result.largest_difference = compared.largest
        result.compared = compared.compared
        result.differing = list(compared.differing)

    # -------------------------------------------------------------------------------------------------- the two ways

    def _as_it_is(self, notebook: Notebook, names: list[str] | None = None) -> _Own:
        with self._room(notebook, is_first=names is None) as here:
            for cell in notebook.order:
                here.run(notebook.cells[cell - 1], cell)
            before = here.look()
            for _ in range(self.times):
                here.run(notebook.source, notebook.training)
            after = here.look()
            if names is None:
                names = [n for n, seen in after["digests"].items() if seen and seen != before["digests"].get(n)]
            figures = here.look(names)["figures"]
        return _Own(names, after["drivers"], frozenset(after["has_weights"]), figures)

    def _as_job(self, notebook: Notebook, names: list[str], options: str, result: Result) -> dict[str, Leaf]:
        with self._room(notebook) as here:
            here.run("%load_ext jupyter_dlaas", 0)
            for cell in notebook.order:
                here.run(notebook.cells[cell - 1], cell)
            before = here.look()
            training = _train_cell(notebook.source, names, options)
            said = [here.run(training, notebook.training) for _ in range(self.times)][-1]
            after = here.look()
            result.kernel_changed = _changed(before, after, names, after["drivers"])
            view = self._view_of(said)
            self._describe(view, result)
            result.names = names
            result.not_brought = {name: "not brought back" for name in names if name not in view.results}
            # State is loaded into the object that is there: what is neither another object nor another state stayed.
            same = [
                name
                for name in after["has_weights"]
                if all(after[what][name] == before[what].get(name) for what in ("ids", "digests"))
            ]
            result.not_brought |= {name: "not loaded here" for name in names if name in same}
            figures: dict[str, Leaf] = here.look([n for n in names if n not in result.not_brought])["figures"]
        return figures

    def _view_of(self, said: Outcome) -> JobView:
        return self.pool.client.without_start().job(said.job["id"])

    def _describe(self, view: JobView, result: Result) -> None:
        client = self.pool.client.without_start()
        result.job, result.directory = view.id, view.directory
        result.trained = view.state == "COMPLETED"
        result.metrics = sorted(client.curves(view.id))
        progress = view.progress
        if progress is not None and (progress.fraction is not None or progress.step or progress.epoch):
            result.progress = f"epoch {progress.epoch}/{progress.epochs}, step {progress.step}, {progress.fraction}"
        result.notes = [(note.code, note.text) for note in view.notes]

    @contextmanager
    def _room(self, notebook: Notebook, *, is_first: bool = False) -> Iterator[Room]:
        work = self.pool.folder / f"room-{next(self._count)}" / "work"
        work.parent.mkdir(parents=True)
        notebook.lay_out(work)
        text = "\n".join(notebook.cells)
        with room(self.pool.folder, work, self.timeout_s, self._nursery, text, is_first=is_first) as one:
            yield one


def _train_cell(source: str, names: list[str], options: str) -> str:
    outputs = f" -o {','.join(names)}" if names else ""
    head, _, body = source.partition("\n") if source.startswith("%%train") else ("%%train", "", source)
    return f"{head} {options}{outputs} --wait\n{body}"


def _changed(before: dict[str, Any], after: dict[str, Any], names: list[str], holders: list[str]) -> list[str]:
    """Return the changes beside the names that were requested, and the state of what holds their objects."""
    asked = set(names)
    found = [what for what in before if what not in _WARNED and before[what] != after[what]]
    for kind, apart in (("ids", asked), ("digests", asked | {*holders})):
        one, other = before[kind], after[kind]
        found += [f"{kind}: {n}" for n in sorted({*one, *other} - apart) if one.get(n) != other.get(n)]
    return found


def _name(path: str) -> str:
    return re.split(r"[.\[]", path, maxsplit=1)[0]


def _of(figures: Mapping[str, Leaf], names: list[str]) -> dict[str, Leaf]:
    return {path: leaf for path, leaf in figures.items() if _name(path) in names}


def _only(figures: Mapping[str, Leaf], paths: set[str]) -> dict[str, Leaf]:
    return {path: leaf for path, leaf in figures.items() if path in paths}


@contextmanager
def _timed(result: Result, what: str) -> Iterator[None]:
    start_s = time.monotonic()
    try:
        yield
    finally:
        result.seconds[what] = round(time.monotonic() - start_s, 2)
