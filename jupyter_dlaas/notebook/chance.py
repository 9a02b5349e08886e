"""Where a job's random numbers must be put right, so that they are the notebook's. Pure.

A seeded notebook repeats its numbers; a job that leaves a drawing statement out (a look at a batch, another model's
training) would go on with others. The kernel notes where its random streams are before each cell; where the program
comes to a cell with its streams elsewhere, it puts them there.
"""

from __future__ import annotations

import ast
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

from jupyter_dlaas.notebook.effects import QUIET_MODULES, SHOW_ROOTS, is_seed, verb_of, words
from jupyter_dlaas.notebook.names import root_name, walk
from jupyter_dlaas.notebook.records import ExecutedCell
from jupyter_dlaas.notebook.tracing import DEFINITIONS, Step

__all__ = ["Restore", "restores"]

QUIET_VERBS: Final = words(
    """head tail info describe summary show imshow plot item format join keys values items size numel mean sum max min
    eval train parameters named_parameters state_dict value_counts unique isnull isna to cpu numpy list tuple dict set
    str int float bool range enumerate zip sorted round abs any all isinstance getattr hasattr open read write close
    time perf_counter append extend argmax argmin softmax array asarray tensor zeros ones arange linspace reshape view
    astype is_available device_count get_device_name load read_csv exists mkdir makedirs listdir"""
)
"""Calls that draw no random number, whatever they are called on."""


@dataclass(frozen=True, slots=True)
class Restore:
    """Before this step, the streams go to where they were before this cell ran."""

    index: int
    cell: int
    state: str


def restores(
    cells: Sequence[ExecutedCell], steps: Sequence[Step], kept: Collection[int], goal: int, count: int, now: str | None
) -> list[Restore]:
    """What to put right before the training cell (`count`, with the streams at `now`), in the program's order."""
    starts = {cell.count: cell.chance for cell in cells} | {count: now}
    by_cell: dict[int, list[int]] = {}
    for index in range(goal):
        by_cell.setdefault(steps[index].statement.cell, []).append(index)
    functions = _functions(steps[:goal])
    found: list[Restore] = []
    is_seeded = is_off = False
    for at, after in pairwise([*(cell.count for cell in cells), count]):
        indexes = by_cell.get(at, [])
        runs = [i for i in indexes if i in kept and steps[i].statement.node is not None]
        state = starts.get(at)
        if runs and is_seeded and is_off and state is not None:
            found.append(Restore(runs[0], at, state))
            is_off = False
        seeds = [i for i in runs if _seeds(steps[i], functions)]
        if seeds and not is_seeded:
            is_seeded, is_off = True, False
        drew = state is None or starts.get(after) is None or state != starts.get(after)
        if drew and any(i not in kept and i > (seeds[-1] if seeds else -1) and _may_draw(steps[i]) for i in indexes):
            is_off = True
        if drew and not indexes:  # a job's cell, or one that nobody can read
            is_off = True
    if is_seeded and is_off and now is not None:
        found.append(Restore(goal, count, now))
    return found


def _functions(steps: Sequence[Step]) -> Mapping[str, ast.FunctionDef]:
    nodes = [step.statement.node for step in steps]
    return {node.name: node for node in nodes if isinstance(node, ast.FunctionDef)}


def _seeds(step: Step, functions: Mapping[str, ast.FunctionDef]) -> bool:
    """It sets a global seed, itself or in an own function that it calls."""
    nodes = [step.statement.node, *(functions.get(name) for name in sorted(step.uses))]
    return step.is_setup and any(_is_seeding(part) for node in nodes if node is not None for part in walk(node))


def _is_seeding(node: ast.AST) -> bool:
    """`manual_seed(0)`, `make_deterministic(seed=0)`; a path or a comment that says "seed" is none."""
    if not isinstance(node, ast.Call) or not is_seed(verb := verb_of(node.func)):
        return False
    given = {keyword.arg or "" for keyword in node.keywords} | {
        arg.id for arg in node.args if isinstance(arg, ast.Name)
    }
    return "seed" in verb.lower() or any("seed" in name.lower() for name in given)


def _may_draw(step: Step) -> bool:
    node = step.statement.node
    if node is None or isinstance(node, DEFINITIONS | ast.Import | ast.ImportFrom):
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
