"""Detection of a notebook's training loop: its position, its data and the objects that it trains. Pure.

`find` follows the calls from the training cell to `backward()` and `step()` throughout the notebook.
"""

from __future__ import annotations

import ast
import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from jupyter_dlaas.analysis.call_graph import Call, Frame, Notebook, Scope, argument, last_name, root_of
from jupyter_dlaas.suggest.idioms import (
    BATCHES,
    DATASETS,
    ITERATORS,
    MODEL_CONSTRUCTORS,
    MODEL_NAMES,
    NOT_MODELS,
    is_loss,
    is_phases,
    kind_of,
    range_in,
    unwrapped,
    whose_parameters,
)

__all__ = ["Batches", "NoLoop", "Training", "find", "place"]

LAUNCHERS: Final = {
    "Accelerator": "Accelerate",
    "Fabric": "Lightning Fabric",
    "DistributedDataParallel": "torch.distributed",
    "init_process_group": "torch.distributed",
    "initialize": "",
}


class NoLoop(Exception):
    """Error that no loop can be rewritten. The message is one sentence with the fix."""


@dataclass(frozen=True, slots=True, eq=False)
class Batches:
    """Loop over the training data with its backward pass."""

    way: Call
    loop: ast.For
    data: ast.expr
    only_if: ast.expr | None
    """Condition of the backward pass in a loop that also validates."""
    why_not: str
    """Reason why its data cannot be divided among learners, or ""."""


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Training:
    """One training. Names are valid in the scope of the epoch loop."""

    scope: Scope
    way: tuple[Frame, ...]
    """Calls that lead from the training cell into that scope."""
    epochs: ast.For | None
    batches: tuple[Batches, ...]
    ends: tuple[Call, ...]
    """Call chains to the backward passes."""
    models: tuple[str, ...]
    optimizers: tuple[str, ...]
    schedulers: tuple[str, ...]
    scaler: str

    @property
    def outer(self) -> ast.For:
        """Return the loop before which the objects are prepared."""
        return self.epochs if self.epochs is not None else self.batches[0].loop

    @property
    def objects(self) -> tuple[str, ...]:
        """Return the positional arguments of `run.prepare`."""
        return (*self.models, *self.optimizers)


def find(notebook: Notebook) -> Training:
    """Find the only training of the training cell. Raises NoLoop."""
    ends = notebook.calls(frozenset({"backward"}))
    if not ends:
        raise NoLoop("")
    _refuse_launchers(notebook, ends)
    looped = [(end, loops) for end in ends if (loops := list(_loops(end)))]
    if not looped:
        raise NoLoop(f"{place(ends[0][-1])} runs one backward pass outside of any loop. Use `for epoch in range(N):`.")
    steps = notebook.calls(frozenset({"step", "minimize"}))
    finder = _Finder(notebook, looped, steps)
    return finder.training()


def _refuse_launchers(notebook: Notebook, ends: Sequence[Call]) -> None:
    sheets = {id(frame.scope.sheet): frame.scope.sheet for end in ends for frame in end}
    for sheet in [*sheets.values(), *notebook.sheets]:
        for node in ast.walk(sheet.tree):
            if isinstance(node, ast.Call) and (launcher := LAUNCHERS.get(last_name(node.func), "")):
                raise NoLoop(
                    f"{sheet.label} uses {launcher}, which divides the work itself: it trains unchanged with a fixed "
                    "number of learners. For an elastic job, remove it, then retry."
                )
    for end in ends:
        call = end[-1].call
        if call.args and isinstance(call.func, ast.Attribute) and not isinstance(call.func.value, ast.Call):
            first = call.args[0]
            if isinstance(first, ast.Name) and "loss" in first.id.lower() and not is_loss(call.func.value):
                shown = ast.unparse(call.func)
                raise NoLoop(
                    f"{place(end[-1])}: `{shown}(…)` runs the backward pass inside a library. "
                    "Use `loss.backward()` for a loop that can grow and shrink."
                )


def place(frame: Frame, node: ast.AST | None = None) -> str:
    """Return a place as shown on the page: "cell [7], line 3"."""
    sheet = frame.scope.sheet
    at = getattr(node if node is not None else frame.call, "lineno", 1)
    line = sheet.clean.lines[at - 1] if at <= len(sheet.clean.lines) else at
    return f"{sheet.label}, line {line + sheet.first_line - 1}"


def _loops(way: Call) -> Iterator[tuple[int, ast.For | ast.AsyncFor | ast.While]]:
    """Yield the loops around a call, outermost first, each with its frame."""
    for number, frame in enumerate(way):
        for node in frame.around:
            if isinstance(node, ast.For | ast.AsyncFor | ast.While):
                yield number, node


Loop = tuple[int, ast.For | ast.AsyncFor | ast.While]


class _Finder:
    def __init__(self, notebook: Notebook, looped: Sequence[tuple[Call, list[Loop]]], steps: Sequence[Call]) -> None:
        self.notebook = notebook
        self.looped = looped
        self.steps = steps

    def training(self) -> Training:
        """Return the training. Raises NoLoop."""
        end, loops = self.looped[0]
        number, outer = self._outermost(end, loops)
        key = _key(end, number, outer)
        others = [one for one, chain in self.looped if not any(_key(one, n, loop) == key for n, loop in chain)]
        if others:
            raise NoLoop(
                f"this cell trains twice, at {place(end[number], outer)} and at {_start(others[0])}, but a job has one "
                "position. Put each training into a separate %%train cell."
            )
        ends = tuple(one for one, _ in self.looped)
        scope, way = end[number].scope, end[:number]
        models, optimizers, schedulers, scalers = self._objects(number, outer, key)
        batches = tuple(self._all_batches(number, outer))
        is_single = any(batch.loop is outer for batch in batches)
        if not isinstance(outer, ast.For):
            raise NoLoop(
                f"{place(end[number], outer)}: a `{'while' if isinstance(outer, ast.While) else 'async for'}` loop "
                "has no known length, so it cannot be resumed or show progress. Use "
                "`for epoch in range(N):` with the maximum number of epochs, and `break` to stop earlier."
            )
        return Training(
            scope=scope,
            way=way,
            epochs=None if is_single else outer,
            batches=batches,
            ends=ends,
            models=models,
            optimizers=optimizers,
            schedulers=schedulers,
            scaler=scalers[0] if scalers else "",
        )

    # -- which loop is which ------------------------------------------------------------------------------------------

    def _outermost(self, end: Call, loops: list[Loop]) -> Loop:
        """Return the outermost training loop. Raises NoLoop if each iteration creates a new model or optimiser."""
        for number, loop in loops:
            if is_phases(loop):
                continue
            if made := self._created_inside(end, number, loop):
                raise NoLoop(
                    f"{place(end[number], loop)} creates a new `{made}` in each iteration: these are several "
                    "trainings, but a job has one position. Put one iteration into a %%train cell, one job for each."
                )
            return number, loop
        return loops[0]

    def _created_inside(self, end: Call, number: int, loop: ast.AST) -> str:
        """Return an optimiser that each iteration creates, directly or in a function that it calls; "" for none."""
        for step in self.steps:
            if _key_until(step, number) != _key_until(end, number) or len(step) <= number:
                continue
            if loop not in step[number].around:
                continue
            for text, at in _lifts(step, _stepped(step)):
                scope = step[at].scope
                if at < number or root_of(text) in scope.all_parameters or root_of(text) not in scope.bound():
                    continue
                if not _is_loop_target(step, at, text) and (at > number or _binds_inside(loop, text)):
                    return text
        return ""

    def _all_batches(self, number: int, outer: ast.AST) -> Iterator[Batches]:
        seen: set[int] = set()
        for end, loops in self.looped:
            inside = [(n, loop) for n, loop in loops if n > number or (n == number and _holds(outer, loop))]
            found = next((one for one in reversed(inside) if self._is_data(one[1], end[: one[0] + 1])), None)
            if found is None or id(found[1]) in seen:
                continue
            at, loop = found
            assert isinstance(loop, ast.For)
            seen.add(id(loop))
            data = unwrapped(loop.iter)
            bar = self._bar(data, end[at].scope)
            why_not = self._why_not(bar or data, end[: at + 1], loop)
            if bar is not None and not (outer.lineno < bar.lineno <= loop.lineno or at > number):  # type: ignore[attr-defined]
                why_not = (
                    f"{place(end[at], loop)}: the bar `{ast.unparse(data)}` is created once, outside the loop. "
                    f"Use `for … in tqdm({ast.unparse(bar)}):` inside it, then retry to divide its data."
                )
            yield Batches(end[: at + 1], loop, bar or data, _condition(end, at, loop), why_not)

    def _bar(self, data: ast.expr, scope: Scope) -> ast.expr | None:
        """Return the iterable of `bar` if `bar = tqdm(loader)` is in the same scope."""
        values = scope.values(data.id) if isinstance(data, ast.Name) else []
        inner = unwrapped(values[-1]) if values else None
        return inner if values and inner is not values[-1] else None

    def _is_data(self, loop: ast.AST, way: Call) -> bool:
        if not isinstance(loop, ast.For) or is_phases(loop) or range_in(loop.iter) is not None:
            return False
        node = unwrapped(loop.iter)
        if isinstance(node, ast.Name | ast.Attribute):
            made = self.notebook.value_of(ast.unparse(node), way[-1].scope, way[:-1])
            node = made if isinstance(made, ast.List | ast.Tuple) or (made and range_in(made)) else node
        if range_in(node) is not None or isinstance(node, ast.Constant):
            return False
        if isinstance(node, ast.List | ast.Tuple):
            return not all(isinstance(elt, ast.Constant) for elt in node.elts)
        return not (isinstance(node, ast.Call) and last_name(node.func) in ("count", "arange", "linspace", "reversed"))

    def _why_not(self, data: ast.expr, way: Call, loop: ast.For) -> str:
        """Return why `run.batches` cannot use this iterable, or ""."""
        shown = ast.unparse(data)
        shown = shown if len(shown) <= 60 else f"{shown[:57]}…"
        where = place(way[-1], loop)
        made: ast.expr | None = data
        if isinstance(data, ast.Name | ast.Attribute | ast.Subscript):
            made = self.notebook.value_of(ast.unparse(data), way[-1].scope, way[:-1])
        if made is None:
            return ""
        call = made.value if isinstance(made, ast.Subscript) else made
        name = last_name(call.func) if isinstance(call, ast.Call) else ""
        whole = (
            f"{where} iterates over `{shown}`, {{}}: each learner would process all of it. To divide it, "
            "use a DataLoader over a dataset, or pass the arrays to `run.batches((x, y), 64)`."
        )
        if isinstance(made, ast.List | ast.ListComp | ast.GeneratorExp | ast.Tuple) or name in BATCHES:
            return whole.format("several loaders at once" if name == "zip" else "ready-made batches")
        own = self.notebook.functions.get(name)
        if own is not None:
            is_generator = any(isinstance(node, ast.Yield | ast.YieldFrom) for node in own.nodes())
            return whole.format("a generator") if is_generator else ""
        if isinstance(call, ast.Call) and (ITERATORS.search(ast.unparse(call.func)) or self._is_stream(name)):
            return whole.format("which does not support access by index")
        if DATASETS.search(name) and data is not made:
            return whole.format("a dataset without a batch size")
        if isinstance(data, ast.Call) and "loader" not in name.lower() and name not in self.notebook.classes:
            return whole.format("which does not support access by index")
        return ""

    def _is_stream(self, kind: str) -> bool:
        """Return whether a class of the notebook only yields one batch after the other."""
        methods, bases = self.notebook.classes.get(kind), self.notebook.bases.get(kind, ())
        if methods is None or not set(bases) <= {"object", *self.notebook.classes}:
            return False
        return "__getitem__" not in methods and not any(not self._is_stream(base) for base in bases if base != "object")

    # -- what is trained ----------------------------------------------------------------------------------------------

    def _objects(
        self, number: int, outer: ast.AST, key: tuple[int, ...]
    ) -> tuple[tuple[str, ...], tuple[str, ...], tuple[str, ...], tuple[str, ...]]:
        optimizers: list[str] = []
        schedulers: list[str] = []
        scalers: list[str] = []
        models: list[str] = []
        blind: list[str] = []  # optimisers whose construction was not found
        home = self.looped[0][0]
        scope, way = home[number].scope, home[:number]
        for step in self.steps:
            if not any(_key(step, n, loop) == key for n, loop in _loops(step)):
                continue
            receiver, kind = _stepped(step), ""
            call = step[-1].call
            assert isinstance(call.func, ast.Attribute)
            made = self.notebook.value_of(ast.unparse(call.func.value), step[-1].scope, step[:-1])
            kind = kind_of(made, ast.unparse(call.func.value), call)
            if kind == "scaler":
                _add(scalers, self._lifted(step, ast.unparse(call.func.value), number, outer))
                made = self.notebook.value_of(receiver, step[-1].scope, step[:-1])
                kind = "optimizer"
            if kind or self._wraps_optimizer(made):
                self._refuse_stateless(made, step, receiver)
            if not kind:
                continue
            text = self._lifted(step, receiver, number, outer)
            if kind == "scheduler":
                _add(schedulers, text)
                continue
            if text in optimizers:
                continue
            optimizers.append(text)
            for model in self._models_of(text, scope, way, made, step):
                _add(models, model)
            if not isinstance(made, ast.Call):
                blind.append(text)
        if not optimizers:
            raise NoLoop(
                f"{_start(home)} runs a backward pass, but no optimiser step was found. Use `opt.step()` of a torch "
                "optimiser, then retry."
            )
        if blind or not models:
            for text in self._called(number, outer):
                _add(models, text)
        if not models:
            raise NoLoop(
                f"the module that `{optimizers[0]}` trains was not found. If it is a torch.nn.Module, as "
                f"in `torch.optim.SGD(model.parameters(), lr=0.1)`, write `model, {optimizers[0]} = "
                f"run.prepare(model, {optimizers[0]})` above the loop."
            )
        return tuple(models), tuple(optimizers), tuple(schedulers), tuple(scalers)

    def _lifted(self, way: Call, text: str, number: int, outer: ast.AST) -> str:
        """Translate a name at the optimiser's step to the scope of the outer loop. Raises NoLoop."""
        for shown, at in _lifts(way, text):
            if at == number:
                if _binds_inside(outer, shown):
                    raise NoLoop(
                        f"`{shown}` is rebound inside the loop of {place(way[at], outer)}. Create it once, above "
                        "the loop, then retry."
                    )
                return shown
            scope = way[at].scope
            if at > number and not scope.is_module and root_of(shown) in scope.bound():
                raise NoLoop(
                    f"{place(way[-1])}: `{shown}` is created in each call of `{getattr(scope.node, 'name', '')}`. "
                    "Create it once, above the loop, and pass it on."
                )
        if root_of(text) in {parameter for frame in way[number + 1 :] for parameter in frame.scope.all_parameters}:
            raise NoLoop(
                f"{place(way[number])}: the argument for `{text}` of this call was not found. Pass it by keyword, "
                "then retry."
            )
        return text  # a global

    def _wraps_optimizer(self, made: ast.expr | None) -> bool:
        """Return whether `step` of a class of the notebook calls an optimiser's step."""
        name = last_name(made.func) if isinstance(made, ast.Call) else ""
        method = self.notebook.classes.get(name, {}).get("step")
        return method is not None and any(
            isinstance(node, ast.Call) and last_name(node.func) == "step" for node in method.nodes()
        )

    def _refuse_stateless(self, made: ast.expr | None, way: Call, text: str) -> None:
        name = last_name(made.func) if isinstance(made, ast.Call) else ""
        if name not in self.notebook.classes:
            return
        seen: set[str] = set()
        while name in self.notebook.classes and name not in seen:
            if "state_dict" in self.notebook.classes[name]:
                return
            seen.add(name)
            others = [base for base in self.notebook.bases[name] if base not in self.notebook.classes]
            if others:
                return  # torch's own Optimizer and similar classes
            name = next(iter(self.notebook.bases[name]), "")
        kind = last_name(made.func) if isinstance(made, ast.Call) else ""
        raise NoLoop(
            f"{place(way[-1])}: `{text}` is a {kind}, which has no `state_dict`, so it cannot be resumed. Add "
            "`state_dict` and `load_state_dict` to the class, then retry."
        )

    def _models_of(
        self, optimizer: str, scope: Scope, way: Sequence[Frame], made: ast.expr | None, step: Call
    ) -> Iterator[str]:
        """Yield the modules whose `.parameters()` the optimiser was created with, as named in the loop's scope."""
        found = self.notebook.home(optimizer, scope, way)
        if found is None or not isinstance(found[1], ast.Call):
            return
        home, value_of = found[0], found[1]
        for parameter in whose_parameters(value_of, home):
            text = self._in_scope(parameter, home, scope, way)
            if text is not None:
                yield text

    def _in_scope(self, text: str, home: Scope, scope: Scope, way: Sequence[Frame]) -> str | None:
        """Translate a name from the scope in which the optimiser was created to the loop's scope."""
        for target, value in home.assigned():  # self.model = model
            if not home.is_module and target.startswith("self.") and ast.unparse(value) == text:
                text = target
        if home.node is scope.node:
            return text
        if home.owner and text.startswith("self."):
            if scope.owner == home.owner:
                return text
            for holder in _holders(scope, self.notebook, home.owner):
                return holder + text.removeprefix("self")
        for name in sorted(scope.all_parameters):
            if self._given(name, scope, way) == text:
                return name
        if scope.owner:
            for method in self.notebook.classes[scope.owner].values():
                for target, value in method.assigned():
                    if target.startswith("self.") and isinstance(value, ast.Name):
                        found = self.notebook.home(target, scope, way)
                        own = home.values(text)
                        if found is not None and own and found[1] is own[-1]:
                            return target
        if root_of(text) in scope.bound() and not scope.is_module:
            return None
        return text if home.is_module else None

    def _given(self, name: str, scope: Scope, way: Sequence[Frame]) -> str:
        """Return the argument that the outermost caller passed for a parameter."""
        while way and root_of(name) in scope.all_parameters:
            given = argument(way[-1].call, scope, name)
            if given is None:
                return ""
            name, scope, way = ast.unparse(given), way[-1].scope, way[:-1]
        return name

    def _called(self, number: int, outer: ast.AST) -> Iterator[str]:
        """Yield names that are called like a model on the way to the backward pass."""
        for end, _ in self.looped:
            for at in range(len(end) - 1, number - 1, -1):
                scope = end[at].scope
                for node in scope.nodes():
                    if not isinstance(node, ast.Call) or not (node.args or node.keywords):
                        continue
                    text = ast.unparse(node.func)
                    if not isinstance(node.func, ast.Name | ast.Attribute) or not self._is_model(text, scope, end[:at]):
                        continue
                    with contextlib.suppress(NoLoop):  # a local name of that function
                        yield self._lifted(end[: at + 1], text, number, outer)

    def _is_model(self, text: str, scope: Scope, way: Sequence[Frame]) -> bool:
        last = text.rpartition(".")[2]
        if ("." in text and not text.startswith("self.")) or "(" in text:
            return False
        if text in self.notebook.functions or text in self.notebook.classes or NOT_MODELS.search(last):
            return False
        if scope.owner and last in self.notebook.classes.get(scope.owner, {}):
            return False
        made = self.notebook.value_of(text, scope, way)
        if isinstance(made, ast.Call):
            name = last_name(made.func)
            is_module = name in self.notebook.classes or MODEL_CONSTRUCTORS.search(ast.unparse(made.func))
            return not NOT_MODELS.search(name) and bool(is_module or MODEL_NAMES.search(last))
        return bool(MODEL_NAMES.search(last))


def _holders(scope: Scope, notebook: Notebook, owner: str) -> Iterator[str]:
    """Yield names of the scope that are objects of a class."""
    for text, value in scope.assigned():
        if isinstance(value, ast.Call) and last_name(value.func) == owner:
            yield text
    for sheet in reversed(notebook.sheets):
        for text, value in Scope(sheet, sheet.tree).assigned():
            if isinstance(value, ast.Call) and last_name(value.func) == owner:
                yield text


def _add(to: list[str], text: str) -> None:
    if text not in to:
        to.append(text)


def _key(way: Call, number: int, loop: ast.AST) -> tuple[int, ...]:
    """Return an identity of a loop as reached: in a function that is called twice, there are two loops."""
    return (*_key_until(way, number), id(loop))


def _key_until(way: Call, number: int) -> tuple[int, ...]:
    return tuple(id(frame.call) for frame in way[:number])


def _start(way: Call) -> str:
    number, loop = next(_loops(way))
    return place(way[number], loop)


def _is_loop_target(way: Call, at: int, text: str) -> bool:
    """Return whether a name is a loop target, as in `for opt in optimizers: opt.step()`: nothing is created there."""
    return any(
        isinstance(node, ast.For) and any(isinstance(n, ast.Name) and n.id == text for n in ast.walk(node.target))
        for node in way[at].around
    )


def _holds(outer: ast.AST, inner: ast.AST) -> bool:
    return any(node is inner for node in ast.walk(outer))


def _binds_inside(loop: ast.AST, text: str) -> bool:
    """Return whether the loop itself binds this name."""
    for node in ast.walk(loop):
        is_target = isinstance(node, ast.Name | ast.Attribute | ast.Subscript) and isinstance(node.ctx, ast.Store)
        if is_target and ast.unparse(node) in (text, root_of(text)):
            return True
    return False


def _stepped(step: Call) -> str:
    """Return the object that takes the step: the optimiser also in `scaler.step(opt)`."""
    call = step[-1].call
    assert isinstance(call.func, ast.Attribute)
    receiver = ast.unparse(call.func.value)
    if "scaler" in receiver.lower() and len(call.args) == 1:
        return ast.unparse(call.args[0])
    return receiver


def _lifts(way: Call, text: str) -> Iterator[tuple[str, int]]:
    """Yield a name as it is called in each outer frame, as far as parameters pass it on."""
    at = len(way) - 1
    yield text, at
    while at > 0:
        scope = way[at].scope
        if (scope.owner and root_of(text) == "self") or root_of(text) in scope.all_parameters:
            given = argument(way[at - 1].call, scope, text)
            if given is None or isinstance(given, ast.Call):
                return
            text = ast.unparse(given)
        elif not scope.is_module and root_of(text) in scope.bound():
            return
        at -= 1
        yield text, at


def _condition(end: Call, at: int, loop: ast.For) -> ast.expr | None:
    """Return the condition of the backward pass if it is decided before the loop begins."""
    bound = {node.id for node in ast.walk(loop) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
    around = end[at].around
    for node in around[around.index(loop) + 1 :]:
        if isinstance(node, ast.If) and not _calls(node.test):
            reads = {one.id for one in ast.walk(node.test) if isinstance(one, ast.Name)}
            in_body = any(_holds(statement, end[at].call) for statement in node.body)
            if reads and not reads & bound and in_body:
                return node.test
    return None


def _calls(node: ast.AST) -> bool:
    return any(isinstance(one, ast.Call) for one in ast.walk(node))
