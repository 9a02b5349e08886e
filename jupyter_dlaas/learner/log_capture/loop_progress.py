"""The progress of a program's own loops, from its source and its variables while it runs. Does not affect the program.

`for epoch in range(start, n)`, `for i, batch in enumerate(loader)`, `while step < n`, nested and across functions: the
syntax tree gives the loops around the current line, and their variables give the position.
"""

from __future__ import annotations

import ast
import operator
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Final

from jupyter_dlaas.learner.log_capture.log_position import Spot
from jupyter_dlaas.learner.log_capture.vocabulary import EPOCHS, words_of

__all__ = ["Frame", "Loops", "Program"]

Loop = ast.For | ast.AsyncFor | ast.While
Function = ast.FunctionDef | ast.AsyncFunctionDef
Names = Mapping[str, Any]

_CHARS_MAX: Final = 500_000
_EPOCHS_MAX: Final = 1000
"""The maximum range of a single loop that counts epochs; a longer one counts steps."""
_ITEMS_MAX: Final = 10_000
_BARS: Final = re.compile(r"tqdm|^track$|^progress_bar$|^master_bar$|^progressbar$", re.IGNORECASE)
_TRAINS: Final = re.compile(
    r"(^|_)(train|fit|steps?|update|learn|optimi[sz]e|backprop|sgd|epoch)|backward|minimize|apply_gradients|partial_fit"
)
_RATES: Final = re.compile(r"^(lr|alpha|eta|rate|learning_rate|step_size)$|learning_rate", re.IGNORECASE)
_RANGES: Final = frozenset({"range", "trange", "tnrange", "arange"})
_SIZED: Final = (list, tuple, dict, set, frozenset, str, bytes, range)
_OPERATORS: Final[Mapping[type, Callable[[Any, Any], Any]]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.FloorDiv: operator.floordiv,
}
_FITS: Final = frozenset({"fit", "fit_generator", "partial_fit", "learn"})
_DEFINES: Final = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Import | ast.ImportFrom
_PLAIN: Final = (int, float, str)


@dataclass(frozen=True, slots=True)
class Frame:
    """One level of the stack: the current line, and the variables visible there."""

    program: Program
    line: int
    function: str
    first_line: int
    names: Names
    key: int
    """A key that differs between calls of a function."""


@dataclass(frozen=True, slots=True)
class At:
    """The position in a loop: `done` of `total` iterations are complete."""

    loop: Loop
    done: int
    total: int


class Program:
    """The loops of one file."""

    def __init__(self, text: str, *, entry_alone: bool = False) -> None:
        """Parse the file. `entry_alone`: of module level, only lines under `if __name__ == "__main__":` count."""
        tree = ast.parse(text) if len(text) <= _CHARS_MAX else ast.Module([], [])
        self._tree = tree
        self._body = _entry(tree) if entry_alone else tree.body
        self._known: dict[tuple[int, str], bool] = {}

    @cached_property
    def functions(self) -> Mapping[str, Sequence[Function]]:
        found: dict[str, list[Function]] = {}
        for node in ast.walk(self._tree):
            if isinstance(node, Function):
                found.setdefault(node.name, []).append(node)
        return found

    def body(self, frame: Frame) -> Sequence[ast.stmt]:
        """Return the statements of a frame's function, or of the module."""
        if frame.function == "<module>":
            return self._body
        lines = [(node.lineno, *(one.lineno for one in node.decorator_list)) for node in self._named(frame.function)]
        for node, starts in zip(self._named(frame.function), lines, strict=True):
            if frame.first_line in starts:
                return node.body
        return ()

    def _named(self, name: str) -> Sequence[Function]:
        return self.functions.get(name, ())

    def counted(self, body: Sequence[ast.stmt]) -> list[ast.stmt]:
        """Return the statements with loops that train; if none is known to train, all statements with loops."""
        rounds = [node for node in body if not isinstance(node, _DEFINES) and self._is(node, self._takes_rounds)]
        return [node for node in rounds if self.trains(node)] or rounds

    def trains(self, node: ast.AST) -> bool:
        """Return whether it runs training steps, by names and through the file's own functions."""
        return self._is(node, self._trains)

    def _is(self, node: ast.AST, what: Callable[[ast.AST], bool]) -> bool:
        key = (id(node), what.__name__)
        if key not in self._known:
            self._known[key] = False  # in case a function calls itself
            self._known[key] = any(map(what, ast.walk(node)))
        return self._known[key]

    def _trains(self, node: ast.AST) -> bool:
        match node:
            case ast.Call(func=ast.Name(id=name) | ast.Attribute(attr=name)):
                return _TRAINS.search(name) is not None or any(map(self.trains, self._named(name)))
            case ast.AugAssign(op=ast.Sub() | ast.Add(), value=value):  # `w -= lr * dw`
                return any(isinstance(one, ast.Name) and _RATES.search(one.id) for one in ast.walk(value))
            case _:
                return False

    def _takes_rounds(self, node: ast.AST) -> bool:
        match node:
            case ast.Call(func=ast.Name(id=name) | ast.Attribute(attr=name)):
                return name in _FITS or any(self._is(one, self._takes_rounds) for one in self._named(name))
            case _:
                return isinstance(node, Loop)


@dataclass(slots=True)
class Loops:
    """The positions of a running program's loops, from sample to sample."""

    _totals: dict[tuple[int, int], tuple[int, int, int]] = field(default_factory=dict)
    """Per loop in a call: start, step and length when it was first seen."""
    _fraction: float = 0.0
    _step: int = 0
    _before: int = 0
    """The number of completed trainings, if several run one after another."""
    _each: int = 0
    """The iterations of the longest loop within an epoch."""

    def look(self, stack: Sequence[Frame]) -> Spot | None:
        """Return the training position; None if it is unknown. `stack` is outermost first."""
        known: list[At] = []
        begin, width = 0.0, 1.0
        before, parts = 0, 1
        seen: set[tuple[int, int]] = set()
        for frame in stack:
            body = frame.program.body(frame)
            counted = frame.program.counted(body)
            now = next((at for at, node in enumerate(counted) if _is_in(node, frame.line)), None)
            if not counted:
                continue  # a decorator, for example
            if now is None:
                break
            if len(counted) > 1 and not known:  # one training after another
                begin, width = begin + width * now / len(counted), width / len(counted)
                before, parts = before * len(counted) + now, parts * len(counted)
            loops, program = list(_around(counted[now], frame.line)), frame.program
            trains = program.trains(counted[now])
            found = [self._at(loop, frame, seen) for loop in loops if not trains or program.trains(loop)]
            missing = next((n for n, one in enumerate(found) if one is None), None)
            known += [one for one in found[:missing] if one is not None]
            if missing is not None or (trains and not program.trains(_innermost(counted[now], frame.line))):
                break
        self._totals = {key: value for key, value in self._totals.items() if key in seen}
        if not known:
            return None
        for one in known:
            begin, width = begin + width * one.done / one.total, width / one.total
        self._fraction = max(self._fraction, min(begin, 1.0))
        if before != self._before:
            self._before, self._step, self._each = before, 0, 0
        return self._spot(known, parts)

    def _spot(self, known: Sequence[At], parts: int) -> Spot:
        named = [n for n, one in enumerate(known) if one.total > 1 and _counts_epochs(one.loop)]
        at = named[0] if named else 0 if known[0].total <= _EPOCHS_MAX and isinstance(known[0].loop, ast.For) else None
        if at is None:
            first = known[0]
            step = self._before * first.total + first.done
            return Spot(step=step, steps=parts * first.total, fraction=self._fraction)
        epochs, inner = known[at], known[at + 1] if at + 1 < len(known) else None
        if inner is not None:
            self._each = max(self._each, inner.total)
        step, steps = 0, 1
        for one in known[: at + 1]:
            step, steps = step * one.total + one.done, steps * one.total
        if self._each:  # also while another loop runs, such as validation
            step, steps = step * self._each + (inner.done if inner is not None else 0), steps * self._each
        self._step = max(self._step, self._before * steps + step)
        steps *= parts
        return Spot(step=self._step, done=epochs.done, epochs=epochs.total, steps=steps, fraction=self._fraction)

    def _at(self, loop: Loop, frame: Frame, seen: set[tuple[int, int]]) -> At | None:
        key = (frame.key, loop.lineno)
        seen.add(key)
        if isinstance(loop, ast.While):
            return _of_while(loop, frame.names)
        target, source = _counted(loop)
        value = frame.names.get(target) if target else None
        if target is None or _is_stored(target, loop.body):
            return None
        if key not in self._totals:
            read = [node.id for node in ast.walk(source) if isinstance(node, ast.Name)]
            if any(_is_stored(name, loop.body) for name in read):
                return None
            found = _extent(source, frame.names)
            if found is None:
                return _in_items(loop, source, value, frame.names)
            self._totals[key] = found
        start, step, total = self._totals[key]
        value = _whole(value)
        if value is None or total <= 0:
            return None
        return At(loop, min(max((value - start) // step, 0), total), total)


# ----------------------------------------------------------------------------------------- loops in the syntax tree


def _counted(loop: ast.For | ast.AsyncFor) -> tuple[str | None, ast.expr]:
    """Return the loop's counter variable and the iterable, without progress bars around it."""
    source = _bare(loop.iter)
    match loop.target, source:
        case ast.Tuple(elts=[ast.Name(id=name), *_]), ast.Call(func=ast.Name(id="enumerate"), args=[_, *_]):
            return name, source
        case ast.Tuple(elts=[ast.Name(id=name), *_]), ast.Call(func=ast.Name(id="zip"), args=[_, *_]):
            return name, source
        case ast.Tuple(elts=[ast.Name(id=name), *_]), ast.Call(func=ast.Attribute(attr="items"), args=[]):
            return name, source
        case ast.Name(id=name), _:
            return name, source
        case _:
            return None, source


def _bare(node: ast.expr) -> ast.expr:
    while isinstance(node, ast.Call) and node.args and _BARS.search(_name(node.func)):
        node = node.args[0]
    return node


def _extent(source: ast.expr, names: Names) -> tuple[int, int, int] | None:
    """Return start, step and length of a counting iterable; None if unknown."""
    match source:
        case ast.Call(func=function, args=[_, *_] as args) if _name(function) in _RANGES:
            numbers = [number for one in args if (number := _whole(_value(one, names))) is not None]
            if len(numbers) < len(args) or len(numbers) > 3:
                return None
            try:
                whole = range(*numbers)
            except ValueError:
                return None
            return whole.start, whole.step, len(whole)
        case ast.Call(func=ast.Name(id="zip"), args=[first, *others]):
            found = _extent(_bare(first), names)
            lengths = [length for one in others if (length := _length(_bare(one), names))]
            return (found[0], found[1], min(found[2], *lengths, found[2])) if found else None
        case ast.Call(func=ast.Name(id="enumerate"), args=[inner, *rest], keywords=options):
            begins = rest or [option.value for option in options if option.arg == "start"]
            start = _value(begins[0], names) if begins else 0
            length = _length(_bare(inner), names)
            return (start, 1, length) if type(start) is int and length else None
        case _:
            return None


def _length(node: ast.expr, names: Names) -> int | None:
    extent = _extent(node, names)
    if extent is not None:
        return extent[2]
    found = _value(node, names)
    kind = type(found)
    if kind in _SIZED or (kind.__module__, kind.__name__) == ("torch.utils.data.dataloader", "DataLoader"):
        try:
            return len(found)
        except Exception:  # noqa: BLE001 - a user's dataset, or one without an end
            return None
    shape = getattr(found, "shape", None) if kind.__module__.partition(".")[0] in ("numpy", "torch") else None
    return int(shape[0]) if shape else None


def _in_items(loop: Loop, source: ast.expr, value: Any, names: Names) -> At | None:
    """Return the position in a loop over a list, a tuple or a dict, if its items differ."""
    inner = source.func.value if isinstance(source, ast.Call) and isinstance(source.func, ast.Attribute) else source
    whole = _value(inner, names)
    if type(whole) not in (list, tuple, dict) or not 0 < len(whole) <= _ITEMS_MAX:
        return None
    places = [n for n, one in enumerate(list(whole)) if one is value or (type(one) in _PLAIN and one == value)]
    return At(loop, places[0], len(whole)) if len(places) == 1 else None


def _of_while(loop: ast.While, names: Names) -> At | None:
    """Return the position in `while step < n`, or in `while True` with `if step >= n: break`.

    `step < n` may be one of several conditions.
    """
    tests = loop.test.values if isinstance(loop.test, ast.BoolOp) and isinstance(loop.test.op, ast.And) else [loop.test]
    if isinstance(loop.test, ast.Constant):
        ends = [one.test for one in loop.body if isinstance(one, ast.If) and isinstance(one.body[-1], ast.Break)]
        tests = [turned for one in ends if (turned := _turned(one)) is not None]
    for test in tests:
        match test:
            case ast.Compare(left=ast.Name(id=name), ops=[ast.Lt() | ast.LtE() as op], comparators=[limit]):
                pass
            case ast.Compare(left=limit, ops=[ast.Gt() | ast.GtE() as op], comparators=[ast.Name(id=name)]):
                pass
            case _:
                continue
        done, total = _whole(names.get(name)), _whole(_value(limit, names))
        if done is not None and total is not None and total > 0 and _grows(name, loop):
            total += isinstance(op, ast.LtE | ast.GtE)
            return At(loop, min(max(done, 0), total), total)
    return None


def _turned(test: ast.expr) -> ast.expr | None:
    """Return `step < n` for `step >= n` and `step == n`, and `step <= n` for `step > n`."""
    match test:
        case ast.Compare(ops=[ast.GtE() | ast.Eq()]):
            return ast.Compare(left=test.left, ops=[ast.Lt()], comparators=test.comparators)
        case ast.Compare(ops=[ast.Gt()]):
            return ast.Compare(left=test.left, ops=[ast.LtE()], comparators=test.comparators)
        case _:
            return None


def _grows(name: str, loop: ast.While) -> bool:
    for node in ast.walk(loop):
        match node:
            case ast.AugAssign(target=ast.Name(id=target), op=ast.Add()) if target == name:
                return True
            case ast.Assign(targets=[ast.Name(id=target)], value=ast.BinOp(op=ast.Add(), left=ast.Name(id=left))) if (
                target == left == name
            ):
                return True
    return False


def _value(node: ast.expr, names: Names) -> Any:
    """Return the value of an expression without running the program's code; None if that would be necessary."""
    match node:
        case ast.Constant(value=value):
            return value
        case ast.Name(id=name):
            return names.get(name)
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _OPERATORS:
            one, other = _value(left, names), _value(right, names)
            if type(one) is not int or type(other) is not int or (not other and isinstance(op, ast.FloorDiv)):
                return None
            return _OPERATORS[type(op)](one, other)
        case ast.UnaryOp(op=ast.USub(), operand=inner):
            found = _value(inner, names)
            return -found if type(found) in (int, float) else None
        case ast.Call(func=ast.Name(id="len"), args=[inner], keywords=[]):
            return _length(inner, names)
        case ast.Call(func=ast.Name(id="int"), args=[inner], keywords=[]):
            found = _value(inner, names)
            return int(found) if type(found) in (int, float) else None
        case ast.Attribute(value=inner, attr=attr):
            return _attribute(_value(inner, names), attr)
        case ast.Subscript(value=inner, slice=key):
            whole, at = _value(inner, names), _value(key, names)
            if type(whole) is dict and type(at) in _PLAIN:
                return whole.get(at)
            return whole[at] if type(whole) in (list, tuple) and type(at) is int and at < len(whole) else None
        case ast.List(elts=parts) | ast.Tuple(elts=parts):
            return [_value(part, names) for part in parts]
        case _:
            return None


def _whole(value: Any) -> int | None:
    """Return an int of Python or NumPy as an int; None for other values."""
    if type(value) is int:
        return value
    is_numpy = type(value).__module__ == "numpy" and type(value).__name__.startswith(("int", "uint"))
    return int(value) if is_numpy else None


def _attribute(owner: Any, attr: str) -> Any:
    """Return an attribute stored in an object or its class; properties are not called."""
    try:
        own = object.__getattribute__(owner, "__dict__")
    except AttributeError:
        own = {}
    if type(own) is dict and attr in own:
        return own[attr]
    kinds = (owner if isinstance(owner, type) else type(owner)).__mro__
    return next((vars(kind)[attr] for kind in kinds if attr in vars(kind)), None)


# -------------------------------------------------------------------------------------- loops around the current line


def _entry(tree: ast.Module) -> Sequence[ast.stmt]:
    last = tree.body[-1] if tree.body else None
    return last.body if isinstance(last, ast.If) else tree.body


def _is_in(node: ast.stmt, line: int) -> bool:
    return node.lineno <= line <= (node.end_lineno or node.lineno)


def _around(node: ast.stmt, line: int) -> Iterator[Loop]:
    """Return the loops whose bodies contain a line, outermost first."""
    if isinstance(node, Function | ast.ClassDef):
        return
    if isinstance(node, Loop) and any(_is_in(one, line) for one in node.body):
        yield node
    for part in ast.iter_child_nodes(node):
        inner = part.body if isinstance(part, ast.ExceptHandler | ast.match_case) else [part]
        for one in inner:
            if isinstance(one, ast.stmt) and _is_in(one, line):
                yield from _around(one, line)


def _innermost(node: ast.stmt, line: int) -> ast.stmt:
    """Return the innermost statement at a line."""
    inner = [one for one in ast.walk(node) if isinstance(one, ast.stmt) and _is_in(one, line)]
    return max(inner, key=lambda one: (one.lineno, one.col_offset), default=node)


def _is_stored(name: str, body: Sequence[ast.stmt]) -> bool:
    """Return whether the program assigns the loop's variable within the loop."""
    return any(
        isinstance(node, ast.Name) and node.id == name and isinstance(node.ctx, ast.Store)
        for one in body
        for node in ast.walk(one)
    )


def _counts_epochs(loop: Loop) -> bool:
    if isinstance(loop, ast.While):
        return False
    name, _ = _counted(loop)
    return not EPOCHS.isdisjoint(words_of(name or ""))


def _name(function: ast.expr) -> str:
    if isinstance(function, ast.Attribute):
        return function.attr
    return function.id if isinstance(function, ast.Name) else ""
