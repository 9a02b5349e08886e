"""Places where a job must restore the random state, so that it draws the notebook's random numbers. Pure.

A job that omits a drawing statement (a look at a batch, another model's training) would continue with other numbers,
and so would a job of a notebook without a seed. The kernel records the random state before each cell. If the program
reaches a cell that drew there with another state, it restores the recorded one. Within a cell, the program must contain
the statements that draw before a kept one.
"""

from __future__ import annotations

import ast
import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, Final

from jupyter_dlaas.analysis.effects import QUIET_MODULES, SHOW_ROOTS, is_seed, verb_of, words
from jupyter_dlaas.analysis.model import ExecutedCell
from jupyter_dlaas.analysis.steps import Step
from jupyter_dlaas.analysis.syntax.constants import DEFINITIONS
from jupyter_dlaas.analysis.syntax.names import root_name, walk
from jupyter_dlaas.capture.nondeterminism import LIBRARIES, Kind, Scan

__all__ = ["Restore", "Streams", "follow"]

QUIET_VERBS: Final = words(
    """head tail info describe summary show imshow plot item format join keys values items size numel mean sum max min
    eval train parameters named_parameters state_dict value_counts unique isnull isna to cpu numpy list tuple dict set
    str int float bool range enumerate zip sorted round abs any all isinstance getattr hasattr open read write close
    time perf_counter append extend argmax argmin softmax array asarray tensor zeros ones arange linspace reshape view
    astype is_available device_count get_device_name load read_csv exists mkdir makedirs listdir"""
)
"""Calls that draw no random number, whatever their object."""


_ALL: Final = frozenset({"", *LIBRARIES})
"""All random streams; "" if it is unknown which."""


_LAYERS: Final = "keras.layers"
"""The generators of Keras layers, which have the seeds of their creation (`rng_state.LAYERS`)."""
_WEIGHTS: Final = ("torch.nn.", "torchvision.", "keras.", "tensorflow.", "transformers.", "fastai.", "lightning.")
"""Libraries whose calls may create layers with random initial weights."""


@dataclass(frozen=True, slots=True)
class Restore:
    """Restoration, before this step, of the random state from before this cell."""

    index: int
    cell: int
    state: str


@dataclass(slots=True)
class Streams:
    """Treatment of the random streams throughout the program."""

    restores: list[Restore] = field(default_factory=list)  # in the program's order
    uses_new_numbers: bool = False  # the training uses new random numbers: the notebook sets no seed
    seeded: set[str] = field(default_factory=set)  # streams that the notebook has seeded
    missing: frozenset[int] = frozenset()
    """Omitted steps that may have drawn from a stream before a kept step of their cell did: they must be kept, too."""
    elsewhere: dict[int, frozenset[str]] = field(default_factory=dict)
    """Kept steps at which some library's stream certainly differs from the notebook's, and the libraries."""


def follow(
    cells: Sequence[ExecutedCell],
    steps: Sequence[Step],
    kept: Collection[int],
    goal: int,
    count: int,
    now: str | None,
    scan: Scan,
    lost: Collection[int] = (),
) -> Streams:
    """Return what to restore before the training cell (`count`, with the streams at `now`), in the program's order.

    `lost`: omitted steps that must not be kept although they draw.
    """
    states = {cell.count: cell.random_state for cell in cells} | {count: now}
    by_cell: dict[int, list[int]] = {}
    for index in range(goal):
        by_cell.setdefault(steps[index].statement.cell, []).append(index)
    seeding = _Seeding(steps[:goal], scan)
    found = Streams()
    off, surely = set(_ALL), set(_ALL)  # the job begins with its own random state
    seeded = found.seeded
    for at, after in pairwise([*(cell.count for cell in cells), count]):
        indexes = by_cell.get(at, [])
        text, state, drew = states.get(at), _parts(states.get(at)), _drew(states.get(at), states.get(after))
        runs = [i for i in indexes if i in kept and steps[i].statement.node is not None]
        drew = drew.union(*(seeding.of(steps[i]) for i in runs))  # after a new seed, equal states prove nothing
        wrong = off & drew & state.keys()
        if text is not None and wrong and _draws_from(wrong, [steps[i] for i in runs], seeding):
            found.restores.append(Restore(runs[0], at, text))
            off -= state.keys()
            surely -= state.keys()
        if text is not None and drew & state.keys():
            found.missing |= _drawn_before(indexes, runs, steps, seeding, scan)
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
                surely |= drew if i in lost else _surely_drawn(steps[i], i, scan) & drew
        if not indexes:  # a cell that ran as a job, or cannot be parsed
            off |= drew
    if seeded and off & {*seeded, _LAYERS} and now is not None:
        found.restores.append(Restore(goal, count, now))
    found.uses_new_numbers = bool(found.restores) and not seeded
    return found


def _drawn_before(
    indexes: Sequence[int], kept: Collection[int], steps: Sequence[Step], seeding: _Seeding, scan: Scan
) -> frozenset[int]:
    """Return the omitted steps of a cell that may draw before a kept one. Trainings are too long to run for that."""
    missing: set[int] = set()
    before: set[int] = set()
    for i in indexes:
        step = steps[i]
        if i not in kept:
            if step.statement.ran == "yes" and not (step.trains or step.fits) and _may_advance(step, i, scan):
                before.add(i)
        elif seeding.of(step) >= _ALL and seeding.is_steady(step):
            before.clear()
        elif before and _may_advance(step, i, scan):
            missing |= before
    return frozenset(missing)


def _may_advance(step: Step, index: int, scan: Scan) -> bool:
    """Return whether a step may advance a random stream: a known draw, initial weights, an own function or class."""
    if any(draw.kind is Kind.STREAM for draw in scan.draws.get(index, ())) or _iterates(step, scan.loaders):
        return True
    node = step.statement.node
    if node is None or isinstance(node, DEFINITIONS | ast.Import | ast.ImportFrom):
        return False
    for part in ast.walk(node):
        if isinstance(part, ast.Call) and not _is_quiet(part):
            name = scan.dotted(part.func)
            if name.startswith(_WEIGHTS) or name.partition(".")[0] in scan.own_packages:
                return True
            if not name and isinstance(part.func, ast.Name):
                return True
    return False


def _parts(text: str | None) -> Mapping[str, Any]:
    """Return the states of the single streams in the kernel's record."""
    if text is None:
        return {}
    try:
        found = json.loads(text)
    except ValueError:
        return {"": text}
    return found if isinstance(found, dict) else {"": text}


def _drew(before: str | None, after: str | None) -> frozenset[str]:
    """Return the streams of which a cell has drawn, as far as known, else all of them."""
    if before is None or after is None:
        return _ALL
    if before == after:
        return frozenset()
    first, second = _parts(before), _parts(after)
    found = {name for name in first.keys() | second.keys() if first.get(name) != second.get(name)}
    layers, drawn = first.get(_LAYERS, {}), second.get(_LAYERS, {})
    if all(layers[name] == drawn[name] for name in layers.keys() & drawn.keys()):
        found.discard(_LAYERS)  # the cell only creates layers
    return frozenset(found)


def _surely_drawn(step: Step, index: int, scan: Scan) -> frozenset[str]:
    """Return the streams from which an omitted step has drawn, if its cell drew from them at all."""
    if step.trains or step.fits:
        return _ALL
    libraries = frozenset(draw.library for draw in scan.draws.get(index, ()) if draw.kind is Kind.STREAM)
    return libraries | ({"torch"} if scan.loaders and _iterates(step, scan.loaders) else frozenset())


def _iterates(step: Step, loaders: Collection[str]) -> bool:
    """Return whether a step iterates over a data loader: `next(iter(loader))`, `for x, y in enumerate(loader): …`."""
    for part in walk(step.statement.node) if step.statement.node is not None else ():
        sources = [part.iter] if isinstance(part, ast.For | ast.comprehension) else []
        if isinstance(part, ast.Call) and verb_of(part.func) in {"iter", "enumerate", "tqdm", "zip", "list"}:
            sources = part.args
        if any(isinstance(source, ast.Name) and source.id in loaders for source in sources):
            return True
    return False


def _draws_from(libraries: Collection[str], steps: Sequence[Step], seeding: _Seeding) -> bool:
    """Return whether a step may draw from one of these streams before another step has seeded it."""
    left = set(libraries)
    for step in steps:
        seeded = seeding.of(step)
        if not seeded and left and _may_draw(step):
            return True
        left -= seeded if seeding.is_steady(step) else frozenset()
    return False


class _Seeding:
    """Steps that set a global seed, directly or in an own function that they call."""

    def __init__(self, steps: Sequence[Step], scan: Scan) -> None:
        self.scan = scan
        nodes = [step.statement.node for step in steps]
        self.functions = {node.name: node for node in nodes if isinstance(node, ast.FunctionDef)}

    def of(self, step: Step) -> frozenset[str]:
        """Return the streams that a step seeds."""
        return frozenset().union(*(self._libraries(call) for call in self._calls(step)))

    def is_steady(self, step: Step) -> bool:
        """Return whether the seed is the same on each run: not `random.seed()`, nor `seed(time.time())`."""
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
            case ["cupy", *_]:  # its position cannot be read: the kernel records no state of it
                return frozenset()
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
        return any(self.scan.is_irreproducible(part) for part in inner)


def _is_seeding(node: ast.Call) -> bool:
    """Return whether a call seeds: `manual_seed(0)`, `make_deterministic(seed=0)`, not `Generator().manual_seed(0)`."""
    if not is_seed(verb := verb_of(node.func)) or isinstance(getattr(node.func, "value", None), ast.Call):
        return False
    given = {keyword.arg or "" for keyword in node.keywords} | {
        arg.id for arg in node.args if isinstance(arg, ast.Name)
    }
    return "seed" in verb.lower() or any("seed" in name.lower() for name in given)


def _may_draw(step: Step) -> bool:
    node = step.statement.node
    if node is None:
        return (
            True  # a cell that ran as a job, after which the kernel's streams continued, or one that cannot be parsed
        )
    if isinstance(node, DEFINITIONS | ast.Import | ast.ImportFrom):
        return False
    return step.may_draw or any(
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
