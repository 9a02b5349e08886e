"""Effects of statements on gradients: computed for later statements, or used from earlier ones. Pure."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Mapping, Set
from typing import Final, NamedTuple, Protocol

from jupyter_dlaas.analysis.effects import Call, call_of, is_step, walk_now, words
from jupyter_dlaas.analysis.syntax.names import root_name, walk

__all__ = ["NO_GRADIENTS", "Gradients", "gradients_of", "of_call"]

NO_OPTIMISERS: Final = re.compile(r"sched|lr|warm|anneal|prof|env|sim|bar|timer|meter|game|world|agent|writer", re.I)
"""Other objects with a method `step`."""
USES = words("clip_grad_norm_ clip_grad_value_ clip_grad_norm clip_grad_value unscale_")


class Gradients(NamedTuple):
    """Effects of a statement on gradients."""

    makes: bool = False  # computes them for later use: `loss.backward()` without an optimiser's step
    uses: bool = False  # uses those of an earlier statement
    clears: bool = False  # certainly
    adds: bool = False  # adds to those of an earlier statement, which it does not clear before
    updates: bool = False  # uses those that it computes: `loss.backward(); sgd([w], lr)`

    def also(self, other: Gradients) -> Gradients:
        """Combine two effects: gradients that are computed and used leave none for others."""
        makes, uses = self.makes or other.makes, self.uses or other.uses
        return Gradients(
            makes=makes and not uses,
            uses=uses and not makes,
            clears=self.clears or other.clears,
            adds=self.adds or other.adds,
            updates=self.updates or other.updates,
        )


NO_GRADIENTS: Final = Gradients()


class _Function(Protocol):
    @property
    def gradients(self) -> Gradients: ...

    @property
    def calls(self) -> frozenset[str]: ...


def of_call(call: Call, functions: Mapping[str, _Function], methods: Mapping[str, _Function]) -> Gradients:
    """Return the effects of calling one of the notebook's own functions or methods."""
    found, seen, todo = NO_GRADIENTS, set[str](), [call.function or f".{call.verb}"]
    while todo:
        name = todo.pop()
        if name in seen:
            continue
        seen.add(name)
        own = methods.get(name[1:]) if name.startswith(".") else functions.get(name)
        if own is not None:
            found = found.also(own.gradients)
            todo += sorted(own.calls)
    return found


def gradients_of(
    node: ast.AST,
    modules: Set[str] = frozenset(),
    called: Callable[[Call], Gradients] = lambda _: NO_GRADIENTS,
    optimisers: Set[str] = frozenset(),
) -> Gradients:
    """Return the effects of a statement. `called` returns the effects of calling an own function.

    `optimisers`: names of known optimisers.

    `w -= w.grad` and `opt.step()` use gradients, unless a `backward()` precedes them in the same statement.
    """
    made: tuple[int, int] | None = None
    used: list[tuple[int, int]] = []
    added: list[ast.expr] = []
    cleared: list[ast.expr] = []
    steps = updates = False
    functions = {id(part.func) for part in walk_now([node]) if isinstance(part, ast.Call)}
    for part in walk_now([node]):
        if isinstance(part, ast.Call):
            call = call_of(part, is_dropped=True, is_called=False)
            at = (part.lineno, part.col_offset)
            own = called(call)
            updates = updates or own.updates
            if call.verb == "backward" or own.adds:
                added.append(part)
            elif own.clears or call.verb == "zero_grad" or (call.verb == "zero_" and _is_gradient(part.func)):
                cleared.append(part)
            if call.verb == "backward" or own.makes:
                made = min(made or at, at)
            elif own.uses or call.verb in USES or (call.verb == "step" and _takes_step(call, optimisers)):
                used.append(at)
                steps = steps or call.verb == "step"
        elif isinstance(part, ast.Attribute) and part.attr == "grad" and root_name(part) not in modules:
            if isinstance(part.ctx, ast.Store):
                cleared.append(part)
            if isinstance(part.ctx, ast.Load) and id(part) not in functions:
                used.append((part.lineno, part.col_offset))
    branches = _branches(node) if cleared else {}
    return Gradients(
        makes=made is not None and not steps,
        uses=any(made is None or at < made for at in used),
        clears=any(id(part) not in branches for part in cleared),
        adds=any(not any(_precedes(clear, part, branches) for clear in cleared) for part in added),
        updates=updates or (made is not None and any(made < at for at in used)),
    )


def _branches(node: ast.AST) -> Mapping[int, Set[tuple[int, int]]]:
    """Return the branches around parts of a statement that may not run: `if i % 4 == 0: opt.zero_grad()`."""
    found: dict[int, set[tuple[int, int]]] = {}
    for part in walk_now([node]):
        match part:
            case ast.If():
                arms = [part.body, part.orelse]
            case ast.Try():
                arms = [handler.body for handler in part.handlers]
            case _:
                continue
        for number, arm in enumerate(arms):
            for inner in walk_now(arm):
                found.setdefault(id(inner), set()).add((id(part), number))
    return found


def _precedes(clear: ast.expr, other: ast.expr, branches: Mapping[int, Set[tuple[int, int]]]) -> bool:
    """Return whether a part of a statement certainly runs before another: it is above, in no branch of its own."""
    is_above = (clear.lineno, clear.col_offset) < (other.lineno, other.col_offset)
    return is_above and branches.get(id(clear), set()) <= branches.get(id(other), set())


def _takes_step(call: Call, optimisers: Set[str]) -> bool:
    """Return whether a call is an optimiser's step: by its name, its maker, or as it has no argument: `sgd.step()`."""
    receiver = call.receiver or ""
    is_bare = bool(receiver) and not call.arguments and not call.has_number and not NO_OPTIMISERS.search(receiver)
    return is_step(call) or receiver in optimisers or is_bare


def _is_gradient(function: ast.expr) -> bool:
    """Return whether a function belongs to a gradient: `w.grad.zero_`, `w.grad.data.zero_`."""
    return any(isinstance(part, ast.Attribute) and part.attr == "grad" for part in walk(function))
