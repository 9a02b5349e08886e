"""The words of capture: what goes in (cells, facts of the kernel) and what comes out (`Capture`). Frozen records."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

__all__ = [
    "Capture",
    "ExecutedCell",
    "Kept",
    "KernelFacts",
    "LeftOut",
    "LineRef",
    "Literal",
    "NameFact",
    "OwnModule",
    "Problem",
    "ResultRef",
    "TrainingCell",
    "line_map",
    "size_text",
]

_RANGES_MAX: Final = 2000
"""What `JobSpec.cells` may hold."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecutedCell:
    """One execution of one cell; the same cell executed twice is two of these."""

    count: int  # the execution count, as in In [7]
    source: str  # raw, as the user typed it, magics and all
    raised: bool = False
    raised_line: int | None = None  # in `source`, from 1; None: not known
    duration_s: float | None = None  # None: ran before anybody looked at the clock
    cell_id: str | None = None  # the notebook's id of the cell, where the front end sends one
    chance: str | None = None  # where the random streams were when the cell began; None: not known
    directory: str | None = None  # the kernel's when the cell began; None: not known
    ended_s: float | None = None  # Unix time; None: not known


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingCell:
    """The cell under `%%train` and what its line asks of the capture."""

    count: int
    source: str  # without the %%train line
    first_line: int = 2  # the line of the page's cell where `source` begins
    above: str = ""  # the page's lines above it, where they are known
    outputs: tuple[str, ...] = ()  # -o
    push: tuple[str, ...] = ()  # --push
    with_cells: tuple[int, ...] = ()  # --with-cell
    learners_max: int = 1  # more than one: every learner runs every line


@dataclass(frozen=True, slots=True)
class ResultRef:
    """A name's value is what an earlier job brought back with -o."""

    job: str
    name: str
    after_cell: int | None = None  # assigned when this execution count was the newest; None: just now
    is_restored: bool = False  # its state was loaded into the object that the name was bound to before


@dataclass(frozen=True, slots=True, kw_only=True)
class NameFact:
    """What the kernel knows about one variable, gathered without changing it."""

    type_name: str  # "torch.Tensor", "list"
    size_bytes: int | None = None
    literal: str | None = None  # source text of a small plain value
    shape: str | None = None  # "(1797, 64)", shown beside the type
    cannot_travel: str | None = None  # why --push must refuse it: "an open file", "a lock"
    is_callable: bool = False
    is_immutable: bool = False  # numbers, strings, functions, classes, modules, devices: a call cannot change them
    module: str | None = None  # where a function or class comes from
    main_names: tuple[str, ...] = ()  # classes and functions of the notebook that the object is made of
    result: ResultRef | None = None
    has_text: bool = False  # text, or a container of text: the order of a set of these differs between processes
    has_weights: bool = False  # it holds models or optimisers; known where some name is a result
    of_before_reload: str = ""  # the class or function of an own module, "helpers.Net", that was reloaded since
    shares: tuple[str, ...] = ()  # other variables that hold the same weights or optimisers; known of what is pushed


@dataclass(frozen=True, slots=True)
class OwnModule:
    """A module that was imported from below the working directory."""

    name: str  # "helpers.data"
    path: str  # relative to the working directory
    is_edited: bool = False  # the file is newer than what the kernel imported


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelFacts:
    """What capture must know of the kernel. Without it (`jupyter dlaas check`) values cannot be judged, names can."""

    names: Mapping[str, NameFact] = field(default_factory=dict)
    own_modules: tuple[OwnModule, ...] = ()
    edited_elsewhere: tuple[OwnModule, ...] = ()  # modules of other directories that were edited since; they stay there
    files: Mapping[str, str] = field(default_factory=dict)  # the text of files that `%run` names
    chance: str | None = None  # where the random streams are now
    directory: str | None = None  # the kernel's current one, where the job begins; None: not known
    hash_seed: str | None = None  # the kernel's, which the job has too; None: Python drew one, and the job has another
    started_in: str | None = None  # the kernel's first one
    modified: Mapping[str, float] = field(default_factory=dict)  # Unix times of files that cells read, by their paths
    missing: frozenset[str] = frozenset()  # files that cells read and that are not there any more


@dataclass(frozen=True, slots=True)
class LineRef:
    """Where a line of train.py comes from."""

    line: int  # in train.py, from 1
    cell: str  # "cell [7]"
    cell_line: int  # in the cell as the page shows it, from 1


@dataclass(frozen=True, slots=True)
class Kept:
    cell: str
    line: int
    source: str
    reason: str


@dataclass(frozen=True, slots=True)
class LeftOut:
    cell: str
    line: int
    source: str
    kind: str  # "unneeded", "shown", "saved", "magic", "trained", "raised", "pushed", "literal", "job"
    reason: str
    option: str = ""  # what to type to bring it in; "" where nothing can


@dataclass(frozen=True, slots=True)
class Literal:
    """A small plain value written into train.py because the statement that made it cannot run again."""

    name: str
    source: str
    reason: str


@dataclass(frozen=True, slots=True)
class Problem:
    """What, where, and what to type. `code` is stable; `message` is for people and has all three."""

    code: str
    message: str
    cell: str = ""
    line: int = 0
    names: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Capture:
    """A training cell made into a program, or the reasons why it cannot be one."""

    text: str  # train.py
    lines: tuple[LineRef, ...]
    kept: tuple[Kept, ...]
    left_out: tuple[LeftOut, ...]
    pushed: tuple[str, ...]  # one graph, in this order
    results: tuple[ResultRef, ...]
    literals: tuple[Literal, ...]
    modules: tuple[OwnModule, ...]  # files to copy with the job
    unbound: tuple[str, ...]  # needed, and bound by nothing
    errors: tuple[Problem, ...]
    warnings: tuple[Problem, ...]
    chance: Mapping[int, str] = field(default_factory=dict)  # cell -> where the random streams were when it began

    @property
    def is_ready(self) -> bool:
        """Nothing stands against submitting this program."""
        return not self.errors

    def where(self, line: int) -> str | None:
        """The place in the notebook of a line of train.py, as in "cell [7], line 3"."""
        for ref in self.lines:
            if ref.line == line:
                return f"{ref.cell}, line {ref.cell_line}"
        return None


def size_text(size_bytes: int) -> str:
    """A size for people: "12.4 MB"."""
    size, unit = float(size_bytes), "bytes"
    for larger in ("kB", "MB", "GB"):
        if size < 1000:
            break
        size, unit = size / 1000, larger
    return f"{size:.0f} {unit}" if unit == "bytes" else f"{size:.1f} {unit}"


def line_map(lines: Sequence[LineRef]) -> dict[str, str]:
    """`JobSpec.cells`: "12-30" -> "cell [7]:3". Of very long programs the last part, where the training cell is."""
    runs: list[list[LineRef]] = []
    for ref in lines:
        last = runs[-1][-1] if runs else None
        if last and (ref.cell, ref.line - ref.cell_line) == (last.cell, last.line - last.cell_line):
            runs[-1].append(ref)
        else:
            runs.append([ref])
    return {f"{run[0].line}-{run[-1].line}": f"{run[0].cell}:{run[0].cell_line}" for run in runs[-_RANGES_MAX:]}
