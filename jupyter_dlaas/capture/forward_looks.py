"""Omitted calls of a model, such as `print(model(x).shape)`, that changed it: BatchNorm, lazy layers, cuDNN. Pure.

They are reported and not repeated: most only look at a shape, and a loop over the validation data would run again.
"""

from __future__ import annotations

import ast
from typing import Final

from jupyter_dlaas.analysis.effects import walk_now
from jupyter_dlaas.analysis.model import KernelFacts, Problem
from jupyter_dlaas.analysis.steps import Step, Trace
from jupyter_dlaas.analysis.syntax.names import walk
from jupyter_dlaas.capture.slicer import Slice

__all__ = ["check_looks"]

_MODES: Final = {"eval": False, "train": True}


def check_looks(trace: Trace, found: Slice, goal: int, facts: KernelFacts | None) -> tuple[Problem, ...]:
    """Warn of the first omitted call of each model that changed it."""
    training: dict[str, bool] = {}  # whether a model is in training mode
    lazy: set[str] = set()
    classes: set[str] = set()  # the notebook's own classes with lazy layers
    problems: dict[str, Problem] = {}
    for index, step in enumerate(trace.steps[:goal]):
        if step.statement.node is None or step.statement.ran == "no":
            continue
        if index not in found.kept and not (step.trains or step.fits or step.is_definition):
            for name in sorted(_called(step.statement.node) - problems.keys()):
                fact = facts.names.get(name) if facts is not None else None
                why = ""
                if name in lazy:
                    why = f"created the weights of the lazy layers of `{name}`"
                elif fact is not None and fact.has_running_statistics and training.get(name, True):
                    why = f"updated the running statistics (BatchNorm) of `{name}`"
                elif fact is not None and fact.has_cudnn_dropout and training.get(name, True):
                    why = f"drew dropout for `{name}` from a state of cuDNN that cannot be read"
                if why and _is_kept(trace, found, name, index):
                    problems[name] = _problem(step, name, why, is_lazy=name in lazy)
        _note(step, training, lazy, classes)
    return tuple(problems.values())


def _problem(step: Step, name: str, why: str, *, is_lazy: bool) -> Problem:
    place = step.statement
    way = f" To look without a change, call {name}.eval() first." if not is_lazy else ""
    text = (
        f"{place.label}, line {place.line} (`{place.head}`) {why}; the job omits this line. "
        f"To run it in the job, too: --with-cell {place.cell}.{way}"
    )
    return Problem("look_omitted", text, place.label, place.line, (name,))


def _called(node: ast.stmt) -> frozenset[str]:
    calls = (part.func for part in walk_now([node]) if isinstance(part, ast.Call))
    return frozenset(function.id for function in calls if isinstance(function, ast.Name))


def _is_kept(trace: Trace, found: Slice, name: str, index: int) -> bool:
    """Return whether the job creates the object that a name held at a step."""
    binding = max((i for i in range(index) if name in trace.steps[i].flow.binds), default=None)
    return binding is not None and binding in found.kept


def _note(step: Step, training: dict[str, bool], lazy: set[str], classes: set[str]) -> None:
    """Record modes, and the names that hold lazy layers."""
    node = step.statement.node
    for call in step.calls:
        if call.receiver and call.is_direct and call.verb in _MODES:
            training[call.receiver] = _MODES[call.verb]
    if node is None:
        return
    made = {part.id for part in walk(node) if isinstance(part, ast.Name)}
    made |= {part.attr for part in walk(node) if isinstance(part, ast.Attribute)}
    is_lazy = any(name.startswith("Lazy") for name in made) or not classes.isdisjoint(made)
    for name in step.flow.binds:
        training.pop(name, None)
        (classes if isinstance(node, ast.ClassDef) else lazy).discard(name)
        if is_lazy and isinstance(node, ast.ClassDef):
            classes.add(name)
        elif is_lazy and isinstance(node, ast.Assign):
            lazy.add(name)
    lazy -= _called(node)  # from now on they are usual ones
