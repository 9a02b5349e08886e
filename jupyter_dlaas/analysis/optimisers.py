"""Objects that a statement passes to optimisers, from its text. Pure."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Set

from jupyter_dlaas.analysis.effects import objects_in, verb_of, walk_now, words

__all__ = ["is_optimiser_class", "optimised_names"]

PARAMETERS = words("parameters named_parameters trainable_parameters")
VARIABLES = words("trainable_variables trainable_weights")
NO_WRAPPERS = re.compile(r"LR$|sched|warm|anneal|trainer|engine|module|env|callback|logger|plateau", re.IGNORECASE)
"""Constructors of objects around an optimiser that are not optimisers."""
OPTIMISERS = re.compile(
    r"^(SGD|ASGD|AdamW?|Nadam|NAdam|RAdam|Adamax|Adagrad|Adadelta|Adafactor|RMSprop|RMSProp|Rprop|LBFGS|Lion|LARS|LAMB)$"
    r"|Optimi[sz]er$"
)


def optimised_names(
    nodes: Iterable[ast.AST], kinds: Set[str] = frozenset(), optimisers: Set[str] = frozenset()
) -> frozenset[str]:
    """Return the objects passed to optimisers: `model` of `model.parameters()`, `w` of `SGD([w])`, `params` of
    `opt.init(params)`.

    `kinds`: optimisers among the notebook's own classes; `optimisers`: known ones, which others may wrap.
    """
    found: set[str] = set()
    for node in walk_now(nodes):
        match node:
            case ast.Call(func=ast.Attribute(value=inner, attr=verb)) if verb in PARAMETERS:
                found |= objects_in(inner)
            case ast.Attribute(value=inner, attr=attr) if attr in VARIABLES:
                found |= objects_in(inner)
            case ast.Call(func=ast.Attribute(value=inner, attr="init"), args=[given, *_]) if _is_optimiser(inner):
                found |= objects_in(given)
            case ast.Call(args=[given, *_], func=function) if OPTIMISERS.search(verb_of(function)):
                found |= objects_in(given)
            case ast.Call(func=function, args=args, keywords=keywords):
                passed = frozenset[str]().union(*map(objects_in, [*args, *(keyword.value for keyword in keywords)]))
                verb = verb_of(function)
                is_around = verb[:1].isupper() and not passed.isdisjoint(optimisers) and not NO_WRAPPERS.search(verb)
                if verb in kinds or is_around:
                    found |= passed
            case _:
                continue
    return frozenset(found) - {"self"}


def is_optimiser_class(node: ast.ClassDef, kinds: Set[str]) -> bool:
    """Return whether a class of the notebook is an optimiser, by its base or its methods."""
    if any(OPTIMISERS.search(verb_of(base)) or verb_of(base) in kinds for base in node.bases):
        return True
    methods = {part.name: part for part in node.body if isinstance(part, ast.FunctionDef)}
    takes_steps = "step" in methods and any(
        isinstance(part, ast.Call) and verb_of(part.func) == "step" for part in ast.walk(methods["step"])
    )
    return "step" in methods and not NO_WRAPPERS.search(node.name) and ("zero_grad" in methods or takes_steps)


def _is_optimiser(node: ast.expr) -> bool:
    """Return whether a name denotes an optimiser: `opt`, `self.optimizer`, and `tx` as in optax."""
    name = verb_of(node)
    return name == "tx" or "opt" in name.lower()
