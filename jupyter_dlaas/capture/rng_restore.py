"""Where a job's random numbers must be put right, so that they are the notebook's. Pure.

A job that leaves a drawing statement out (a look at a batch, another model's training) would go on with other numbers,
and so does one of a notebook that sets no seed. The kernel notes where its random streams are before each cell; where
the program comes to a cell that drew there with its streams elsewhere, it puts them there.
"""

from __future__ import annotations

import ast
import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, Final

from jupyter_dlaas.analysis.dataflow import DEFINITIONS, Step
from jupyter_dlaas.analysis.effects import QUIET_MODULES, SHOW_ROOTS, is_seed, verb_of, words
from jupyter_dlaas.analysis.model import ExecutedCell
from jupyter_dlaas.analysis.names import root_name, walk
from jupyter_dlaas.capture.nondeterminism import LIBRARIES, Kind, Scan

__all__ = ["Restore", "Streams", "follow"]

QUIET_VERBS: Final = words(
    """head tail info describe summary show imshow plot item format join keys values items size numel mean sum max min
    eval train parameters named_parameters state_dict value_counts unique isnull isna to cpu numpy list tuple dict set
    str int float bool range enumerate zip sorted round abs any all isinstance getattr hasattr open read write close
    time perf_counter append extend argmax argmin softmax array asarray tensor zeros ones arange linspace reshape view
    astype is_available device_count get_device_name load read_csv exists mkdir makedirs listdir"""
)
"""Calls that draw no random number, whatever they are called on."""


_ALL: Final = frozenset({"", *LIBRARIES})
"""All random streams; "" where it is not known which."""


@dataclass(frozen=True, slots=True)
class Restore:
    """Before this step, the streams go to where they were before this cell ran."""

    index: int
    cell: int
    state: str


@dataclass(slots=True)
class Streams:
    """What becomes of the random streams on the way through the program."""

    restores: list[Restore] = field(default_factory=list)  # in the program's order
    is_anew: bool = False  # the training draws numbers of its own: nothing in the notebook is seeded
    seeded: set[str] = field(default_factory=set)  # streams that the notebook has set to a known place
    elsewhere: dict[int, frozenset[str]] = field(default_factory=dict)
    """Kept steps at which some library's stream surely is not where it was in the notebook, and the libraries."""


def follow(
    cells: Sequence[ExecutedCell],
    steps: Sequence[Step],
    kept: Collection[int],
    goal: int,
    count: int,
    now: str | None,
    scan: Scan,
) -> Streams:
    """What to put right before the training cell (`count`, with the streams at `now`), in the program's order."""
    states = {cell.count: cell.chance for cell in cells} | {count: now}
    by_cell: dict[int, list[int]] = {}
    for index in range(goal):
        by_cell.setdefault(steps[index].statement.cell, []).append(index)
    seeding = _Seeding(steps[:goal], scan)
    found = Streams()
    off, surely = set(_ALL), set(_ALL)  # the job begins with numbers of its own
    seeded = found.seeded
    for at, after in pairwise([*(cell.count for cell in cells), count]):
        indexes = by_cell.get(at, [])
        text, state, drew = states.get(at), _parts(states.get(at)), _drew(states.get(at), states.get(after))
        runs = [i for i in indexes if i in kept and steps[i].statement.node is not None]
        drew = drew.union(*(seeding.of(steps[i]) for i in runs))  # equal states say nothing where a seed was set again
        wrong = off & drew & state.keys()
        if text is not None and wrong and _draws_from(wrong, [steps[i] for i in runs], seeding):
            found.restores.append(Restore(runs[0], at, text))
            off -= state.keys()
            surely -= state.keys()
        for i in indexes:
            libraries = seeding.of(steps[i]) if i in runs else frozenset()
            if libraries and seeding.is_steady(steps[i]):
                off -= libraries
                surely -= libraries
                seeded |= libraries
            elif libraries:
                off |= libraries
                surely |= libraries
            elif i in runs:
                found.elsewhere[i] = frozenset(surely & drew)
            elif _may_draw(steps[i]):
                off |= drew
                surely |= _surely_drawn(steps[i], i, scan) & drew
        if not indexes:  # a job's cell, or one that nobody can read
            off |= drew
    if seeded & off and now is not None:
        found.restores.append(Restore(goal, count, now))
    found.is_anew = bool(found.restores) and not seeded
    return found


def _parts(text: str | None) -> Mapping[str, Any]:
    """The states of the single streams in what the kernel noted."""
    if text is None:
        return {}
    try:
        found = json.loads(text)
    except ValueError:
        return {"": text}
    return found if isinstance(found, dict) else {"": text}


def _drew(before: str | None, after: str | None) -> frozenset[str]:
    """The streams of which something was drawn in a cell, as far as that is known; else all of them."""
    if before is None or after is None:
        return _ALL
    if before == after:
        return frozenset()
    first, second = _parts(before), _parts(after)
    return frozenset(name for name in first.keys() | second.keys() if first.get(name) != second.get(name))


def _surely_drawn(step: Step, index: int, scan: Scan) -> frozenset[str]:
    """The streams from which a step that is left out has drawn, if the cell drew from them at all."""
    if step.trains or step.fits:
        return _ALL
    libraries = frozenset(draw.library for draw in scan.draws.get(index, ()) if draw.kind is Kind.STREAM)
    return libraries | ({"torch"} if scan.loaders and _goes_over(step, scan.loaders) else frozenset())


def _goes_over(step: Step, loaders: Collection[str]) -> bool:
    """`next(iter(loader))`, `for x, y in enumerate(loader): …`."""
    for part in walk(step.statement.node) if step.statement.node is not None else ():
        sources = [part.iter] if isinstance(part, ast.For | ast.comprehension) else []
        if isinstance(part, ast.Call) and verb_of(part.func) in {"iter", "enumerate", "tqdm", "zip", "list"}:
            sources = part.args
        if any(isinstance(source, ast.Name) and source.id in loaders for source in sources):
            return True
    return False


def _draws_from(libraries: Collection[str], steps: Sequence[Step], seeding: _Seeding) -> bool:
    """Some step may draw from one of these streams before another one has seeded it."""
    left = set(libraries)
    for step in steps:
        seeded = seeding.of(step)
        if not seeded and left and _may_draw(step):
            return True
        left -= seeded if seeding.is_steady(step) else frozenset()
    return False


class _Seeding:
    """Which steps set which global seed, themselves or in an own function that they call."""

    def __init__(self, steps: Sequence[Step], scan: Scan) -> None:
        self.scan = scan
        nodes = [step.statement.node for step in steps]
        self.functions = {node.name: node for node in nodes if isinstance(node, ast.FunctionDef)}

    def of(self, step: Step) -> frozenset[str]:
        """The streams that a step seeds."""
        return frozenset().union(*(self._libraries(call) for call in self._calls(step)))

    def is_steady(self, step: Step) -> bool:
        """The seed is the same when the step runs again: not `random.seed()`, nor `seed(time.time())`."""
        return not any(self._is_fresh(call) for call in self._calls(step))

    def _calls(self, step: Step) -> list[ast.Call]:
        if not step.is_setup:
            return []
        nodes = [step.statement.node, *(self.functions.get(name) for name in sorted(step.uses))]
        parts = (part for node in nodes if node is not None for part in walk(node))
        return [part for part in parts if isinstance(part, ast.Call) and _is_seeding(part)]

    def _libraries(self, call: ast.Call) -> frozenset[str]:
        name = self.scan.dotted(call.func)
        match name.split("."):
            case ["random", *_]:
                return frozenset({"", "random"})
            case ["numpy", *_]:
                return frozenset({"", "numpy.random"})
            case ["torch", "cuda" | "mps" | "xpu" | "Generator", *_]:
                return frozenset()
            case ["torch", *_]:
                return frozenset({"", "torch"})
            case ["tensorflow", "random" | "compat" | "set_random_seed", *_]:
                return frozenset({"", "tensorflow"})
            case _:
                return _ALL

    def _is_fresh(self, call: ast.Call) -> bool:
        name = self.scan.dotted(call.func)
        if name in {"torch.seed", "torch.random.seed"}:
            return True
        given = [*call.args, *(option.value for option in call.keywords)]
        if name in {"random.seed", "numpy.random.seed"} and all(
            isinstance(arg, ast.Constant) and arg.value is None for arg in given
        ):
            return True
        inner = (part for arg in given for part in walk(arg) if isinstance(part, ast.Call))
        return any(self.scan.draws_anew(part) for part in inner)


def _is_seeding(node: ast.Call) -> bool:
    """Recognise `manual_seed(0)` and `make_deterministic(seed=0)`; no path, no `Generator().manual_seed(0)`."""
    if not is_seed(verb := verb_of(node.func)) or isinstance(getattr(node.func, "value", None), ast.Call):
        return False
    given = {keyword.arg or "" for keyword in node.keywords} | {
        arg.id for arg in node.args if isinstance(arg, ast.Name)
    }
    return "seed" in verb.lower() or any("seed" in name.lower() for name in given)


def _may_draw(step: Step) -> bool:
    node = step.statement.node
    if node is None:
        return True  # a job's cell, whose end the streams of the kernel went on from, or one that nobody can read
    if isinstance(node, DEFINITIONS | ast.Import | ast.ImportFrom):
        return False
    return any(
        (isinstance(part, ast.Call) and not _is_quiet(part))
        or (isinstance(part, ast.For | ast.AsyncFor | ast.comprehension) and not isinstance(part.iter, ast.Call))
        for part in ast.walk(node)
    )


def _is_quiet(call: ast.Call) -> bool:
    function = call.func
    if isinstance(function, ast.Name):
        return function.id in SHOW_ROOTS or function.id in QUIET_VERBS
    root = root_name(function)
    is_shown = root is not None and (root in SHOW_ROOTS or root in QUIET_MODULES)
    return is_shown or (isinstance(function, ast.Attribute) and function.attr in QUIET_VERBS)
