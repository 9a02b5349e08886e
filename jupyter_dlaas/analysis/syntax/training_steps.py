"""Text of functions that may take training steps, and names that denote training. Pure."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator
from typing import Final

from jupyter_dlaas.analysis.syntax.names import root_name, walk
from jupyter_dlaas.analysis.syntax.rate_updates import rate_update

__all__ = ["may_train", "names_training", "own_calls"]

_LIBRARY: Final = re.compile(r"(fit|train|finetune|fine_tune|pretrain)(_\w+)?|run_training")
"""Functions that are imported."""
_THINGS: Final = re.compile(
    r"train_.*(splits?|data\w*|load\w*|sets?|transforms?|x|y|test)$|.*(step|fn|mode|args|state)$|fit_.*(transform|predict)"
)
_MAY_TRAIN: Final = re.compile(
    r"(run|fit|train|step|start|learn|optimi[sz]e|minimi[sz]e|execute|launch|main|solve|search|submit|apply_|backward"
    r"|manual_backward|grad|value_and_grad|jacrev|partial_fit|fine_?tune|pretrain|exec$|eval$)"
)
"""Beginnings of the names of functions of libraries that may train."""
_MODES: Final = frozenset({"train", "eval"})
"""Methods that set a mode where they get no argument; `eval` of a model, not the built-in function."""
_TEXT: Final = frozenset({"startswith", "start", "search"})
"""Methods of texts, matches and patterns."""
_SELF: Final = frozenset({"self", "cls"})


def names_training(name: str) -> bool:
    """Return whether a name denotes training: `fit_to_data`, `train_and_evaluate`; not `train_test_split`."""
    return _LIBRARY.fullmatch(name) is not None and not _THINGS.match(name)


def may_train(function: ast.AST, is_own: Callable[[str, str], bool]) -> bool:
    """Return whether the text of a function may take training steps, without the notebook's functions that it calls.

    `is_own`: returns whether a function ("", name) or a method of the same object ("self", name) is the notebook's.
    """
    for part in walk(function):
        if isinstance(part, ast.Attribute) and part.attr == "grad":
            return True
        if isinstance(part, ast.Call):
            is_method, name = _called(part)
            if not (name and is_own("self" if is_method else "", name)) and _trains(part):
                return True
    return bool(rate_update(function))


def own_calls(function: ast.AST) -> Iterator[tuple[bool, str]]:
    """Yield what a function calls by name: functions, and methods of its own object (True)."""
    for part in walk(function):
        if isinstance(part, ast.Call):
            is_method, name = _called(part)
            if name:
                yield is_method, name


def _called(call: ast.Call) -> tuple[bool, str]:
    match call.func:
        case ast.Name(id=name):
            return False, name
        case ast.Attribute(value=ast.Name(id=owner), attr=name) if owner in _SELF:
            return True, name
        case _:
            return False, ""


def _trains(call: ast.Call) -> bool:
    """Return whether a call of a library may train, by its name."""
    match call.func:
        case ast.Name(id=name):
            return _MAY_TRAIN.match(name) is not None
        case ast.Attribute(attr=name) if name in _MODES:
            is_inherited = isinstance(call.func.value, ast.Call) or root_name(call.func) in _SELF
            is_given = bool(call.args or call.keywords)
            return is_given and (name == "train" or is_inherited)
        case ast.Attribute(attr=name):
            return name not in _TEXT and _MAY_TRAIN.match(name) is not None
        case _:
            return True
