"""What a statement hands over to optimisers, by its text. Pure."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable

from jupyter_dlaas.notebook.effects import objects_in, verb_of, walk_now, words

__all__ = ["optimised_names"]

PARAMETERS = words("parameters named_parameters trainable_parameters")
VARIABLES = words("trainable_variables trainable_weights")
OPTIMISERS = re.compile(
    r"^(SGD|ASGD|AdamW?|Nadam|NAdam|RAdam|Adamax|Adagrad|Adadelta|Adafactor|RMSprop|RMSProp|Rprop|LBFGS|Lion|LARS|LAMB)$"
    r"|Optimi[sz]er$"
)


def optimised_names(nodes: Iterable[ast.AST]) -> frozenset[str]:
    """What optimisers are given: `model` of `model.parameters()`, `w` of `SGD([w])`, `params` of `opt.init(params)`."""
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
            case _:
                continue
    return frozenset(found) - {"self"}


def _is_optimiser(node: ast.expr) -> bool:
    """`opt`, `self.optimizer`, `tx`: optax's name for one."""
    name = verb_of(node)
    return name == "tx" or "opt" in name.lower()
