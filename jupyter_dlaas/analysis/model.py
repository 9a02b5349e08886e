"""Data model of capture: its inputs (cells, facts of the kernel) and its output (`Capture`). Frozen records."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from jupyter_dlaas.analysis.call_effects import Behaviour

__all__ = [
    "MODULE_BYTES_MAX",
    "Capture",
    "EarlierJob",
    "ExecutedCell",
    "Kept",
    "KernelFacts",
    "LineRef",
    "Literal",
    "ModuleState",
    "NameFact",
    "OmittedStatement",
    "OwnModule",
    "Problem",
    "ResultRef",
    "TrainingCell",
    "line_map",
    "size_text",
]

MODULE_BYTES_MAX: Final = 1_000_000  # total size of the user's modules that are analysed
_RANGES_MAX: Final = 2000
"""Maximum number of ranges in `JobSpec.cells`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecutedCell:
    """One execution of one cell; a cell that was executed twice has two records."""

    count: int  # execution count, as in In [7]
    source: str  # raw text as typed, including magics
    raised: bool = False
    raised_line: int | None = None  # in `source`, from 1; None: unknown
    raised_in: str = ""  # the expression of that line that raised the error; "": unknown
    interrupted: bool = False  # an interrupt arrived while it ran; if it raised nothing, its code caught it
    duration_s: float | None = None  # None: executed before recording began
    cell_id: str | None = None  # the notebook's id of the cell, if the front end sends one
    random_state: str | None = None  # random state at the start of the cell; None: unknown
    directory: str | None = None  # the kernel's directory at the start of the cell; None: unknown
    ended_s: float | None = None  # Unix time; None: unknown
    has_value: bool | None = None  # its last expression had a value, which IPython showed; None: unknown


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingCell:
    """Cell under `%%train`, with the options of its line that affect capture."""

    count: int
    source: str  # without the %%train line
    first_line: int = 2  # line of the page's cell at which `source` begins
    above: str = ""  # lines of the page's cell above it, if known
    outputs: tuple[str, ...] = ()  # -o
    push: tuple[str, ...] = ()  # --push
    with_cells: tuple[int, ...] = ()  # --with-cell
    learners_max: int = 1  # if more than one, every learner runs every line


@dataclass(frozen=True, slots=True)
class ResultRef:
    """Reference to a result of an earlier job's -o that a name holds."""

    job: str
    name: str
    after_cell: int | None = None  # newest execution count at the assignment; None: just now
    after_line: int | None = None  # line of that cell that was running, as in `job.wait()`; None: the cell had ended
    is_restored: bool = False  # its state was loaded into the previous object of the name
    parts: frozenset[str] = frozenset()  # other names whose objects received state as parts of it


@dataclass(frozen=True, slots=True, kw_only=True)
class EarlierJob:
    """Job that was submitted from this kernel and has completed, or has not ended yet."""

    job: str
    cell: int  # execution count of its training cell
    outputs: tuple[str, ...] = ()  # -o
    unstored: frozenset[str] = frozenset()  # names of -o that it could not store, or that could not be loaded here
    altered: frozenset[str] = frozenset()  # names of earlier cells whose objects it trained or changed in place
    bound: frozenset[str] = frozenset()  # names that its cell binds
    loaded: frozenset[str] = frozenset()  # names whose objects received its state as parts of a result
    computes_gradients: bool = False  # and has not returned them
    is_completed: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class NameFact:
    """Facts about one variable of the kernel, collected without changing it."""

    type_name: str  # "torch.Tensor", "list"
    size_bytes: int | None = None
    literal: str | None = None  # source text of a small plain value
    shape: str | None = None  # "(1797, 64)", shown beside the type
    cannot_travel: str | None = None  # reason why --push refuses it: "an open file", "a lock"
    is_callable: bool = False
    is_immutable: bool = False  # numbers, strings, functions, classes, modules, devices: a call cannot change them
    module: str | None = None  # module of a function or class
    main_names: tuple[str, ...] = ()  # classes and functions of the notebook that the object consists of
    result: ResultRef | None = None
    has_text: bool = False  # strings, or containers of strings: the order of a set of these differs between processes
    has_weights: bool = False  # it holds models or optimisers; known if some name is a result
    has_running_statistics: bool = False  # a torch module whose forward pass in training mode updates statistics
    has_cudnn_dropout: bool = False  # a torch module whose forward pass in training mode draws from cuDNN's own state
    former_class: str = ""  # class of the notebook that was defined again since the object was created
    of_before_reload: str = ""  # class or function, "helpers.Net", of a module of the user that was reloaded since
    shares: tuple[str, ...] = ()  # other variables with the same weights or optimisers; known for pushed names
    requires_grad: bool = False  # a tensor that a training may change


@dataclass(frozen=True, slots=True)
class OwnModule:
    """Module that was imported from below the working directory."""

    name: str  # "helpers.data"
    path: str  # relative to the working directory
    is_edited: bool = False  # the file is newer than the imported version


@dataclass(frozen=True, slots=True)
class ModuleState:
    """State inside a module of the user."""

    changing: frozenset[str] = frozenset()  # functions, classes and (".method") methods that change it when called
    imports: frozenset[str] = frozenset()  # full names that the module imports
    calls: Mapping[str, frozenset[str]] = field(default_factory=dict)  # the same kinds of names -> what each calls
    behaviours: Mapping[str, Behaviour] = field(default_factory=dict)  # the same kinds of names -> effects of a call
    exports: tuple[str, ...] = ()  # names that a star import binds
    # name -> module and name of the definition, of functions and classes that another module defines
    origins: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    shared: Mapping[str, frozenset[str]] = field(default_factory=dict)  # name -> other modules that name the object so


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelFacts:
    """State of the kernel that capture needs. Without it (`jupyter dlaas check`) names are checked, but not values."""

    names: Mapping[str, NameFact] = field(default_factory=dict)
    own_modules: tuple[OwnModule, ...] = ()
    edited_elsewhere: tuple[
        OwnModule, ...
    ] = ()  # modules in other directories that were edited since; they are not sent
    files: Mapping[str, str] = field(default_factory=dict)  # text of the files of `%run`
    random_state: str | None = None  # current random state
    directory: str | None = None  # the kernel's current directory, which is the job's; None: unknown
    hash_seed: str | None = None  # of the kernel and the job; None: chosen at random by Python, so the job's differs
    started_in: str | None = None  # the kernel's initial directory
    modified: Mapping[str, float] = field(default_factory=dict)  # Unix times of files that cells read, by path
    missing: frozenset[str] = frozenset()  # files that cells read and that no longer exist
    module_states: Mapping[str, ModuleState] = field(default_factory=dict)  # of the user's imported modules
    jobs: tuple[EarlierJob, ...] = ()  # in the order of submission; without those that failed


@dataclass(frozen=True, slots=True)
class LineRef:
    """Origin of a line of train.py."""

    line: int  # in train.py, from 1
    cell: str  # "cell [7]"
    cell_line: int  # in the cell as shown on the page, from 1


@dataclass(frozen=True, slots=True)
class Kept:
    cell: str
    line: int
    source: str
    reason: str


@dataclass(frozen=True, slots=True)
class OmittedStatement:
    cell: str
    line: int
    source: str
    kind: str  # "unneeded", "shown", "saved", "magic", "trained", "raised", "pushed", "literal", "job"
    reason: str
    option: str = ""  # option that includes it; "" if none does


@dataclass(frozen=True, slots=True)
class Literal:
    """Small plain value written into train.py because the statement that created it cannot run again."""

    name: str
    source: str
    reason: str


@dataclass(frozen=True, slots=True)
class Problem:
    """Problem with its place and its fix. `code` is stable; `message` is for users and contains all three."""

    code: str
    message: str
    cell: str = ""
    line: int = 0
    names: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Capture:
    """Training cell converted to a program, or the reasons why that is not possible."""

    text: str  # train.py
    lines: tuple[LineRef, ...]
    kept: tuple[Kept, ...]
    left_out: tuple[OmittedStatement, ...]
    pushed: tuple[str, ...]  # one graph, in this order
    results: tuple[ResultRef, ...]
    literals: tuple[Literal, ...]
    modules: tuple[OwnModule, ...]  # files to copy with the job
    unbound: tuple[str, ...]  # needed, but not defined
    errors: tuple[Problem, ...]
    warnings: tuple[Problem, ...]
    random_state: Mapping[int, str] = field(default_factory=dict)  # cell -> random state at its start
    reached: tuple[str, ...] = ()  # names that the training cell reads, and names whose objects these hold
    altered: tuple[str, ...] = ()  # names whose objects from earlier cells it trains or changes in place
    bound: tuple[str, ...] = ()  # names that it binds
    computes_gradients: bool = False
    clears_gradients_first: bool = False  # before it uses gradients of earlier cells or adds to them

    @property
    def is_ready(self) -> bool:
        """Return whether the program can be submitted."""
        return not self.errors

    def where(self, line: int) -> str | None:
        """Return the place in the notebook of a line of train.py, such as "cell [7], line 3"."""
        for ref in self.lines:
            if ref.line == line:
                return f"{ref.cell}, line {ref.cell_line}"
        return None


def size_text(size_bytes: int) -> str:
    """Format a size for users: "12.4 MB"."""
    size, unit = float(size_bytes), "bytes"
    for larger in ("kB", "MB", "GB"):
        if size < 1000:
            break
        size, unit = size / 1000, larger
    return f"{size:.0f} {unit}" if unit == "bytes" else f"{size:.1f} {unit}"


def line_map(lines: Sequence[LineRef]) -> dict[str, str]:
    """Return `JobSpec.cells`: "12-30" -> "cell [7]:3". For very long programs the last part, with the training cell."""
    runs: list[list[LineRef]] = []
    for ref in lines:
        last = runs[-1][-1] if runs else None
        if last and (ref.cell, ref.line - ref.cell_line) == (last.cell, last.line - last.cell_line):
            runs[-1].append(ref)
        else:
            runs.append([ref])
    return {f"{run[0].line}-{run[-1].line}": f"{run[0].cell}:{run[0].cell_line}" for run in runs[-_RANGES_MAX:]}
