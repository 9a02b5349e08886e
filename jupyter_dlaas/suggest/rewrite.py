"""Rewriting of a plain loop as an elastic one: adds the few lines that let a job grow, shrink and resume. Pure.

Takes cells and returns a `Suggestion`. Only changed lines are touched: formatting and comments stay unchanged.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from jupyter_dlaas.analysis.call_graph import Notebook, Scope, Sheet, last_name, modules_used, names_used
from jupyter_dlaas.analysis.cells import UNREADABLE, clean_cell, lines_of
from jupyter_dlaas.analysis.loss_reduction import Kind, kind_of
from jupyter_dlaas.analysis.model import ExecutedCell, TrainingCell
from jupyter_dlaas.analysis.syntax.syntax_depth import deep_trees
from jupyter_dlaas.capture.preflight import check_size
from jupyter_dlaas.suggest.edits import Edits, Rewritten, end_of, start_of
from jupyter_dlaas.suggest.idioms import range_in
from jupyter_dlaas.suggest.training_loop import Batches, NoLoop, Training, find, place

__all__ = ["Suggestion", "suggest"]

METRICS: Final = re.compile(
    r"loss|acc|auc|f1|err|mse|mae|perplexity|ppl|score|iou|dice|reward|bleu|psnr", re.IGNORECASE
)
COLLECTION_NAMES: Final = re.compile(r"(losses|accs|accuracies|errors|errs|scores|rewards|metrics)$", re.IGNORECASE)
LOGGED_MAX: Final = 4
FRAMEWORKS: Final = (
    (frozenset({"keras", "tensorflow"}), frozenset({"fit", "train_on_batch"}), "Keras"),
    (frozenset({"lightning", "pytorch_lightning"}), frozenset({"fit"}), "Lightning"),
    (frozenset({"transformers", "trl", "setfit"}), frozenset({"train"}), "the Hugging Face Trainer"),
)
"""Modules of a framework, the methods that train with it, and its name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Suggestion:
    """Changes to the cells, or a sentence that explains why there are none."""

    cells: tuple[Rewritten, ...] = ()
    why: str = ""
    hints: tuple[str, ...] = ()
    """Limits of the changes, shown beside the diff."""

    def diff(self, context: int = 2) -> str:
        """Return the diffs of all cells."""
        return "\n".join(cell.diff(context) for cell in self.cells)


@deep_trees()
def suggest(cells: Sequence[ExecutedCell], training: TrainingCell) -> Suggestion:
    """Suggest changes that make the training cell elastic. `cells`: the executed ones. Never raises for user input."""
    if too_long := check_size(cells, training):
        return Suggestion(why=too_long[0].message)
    try:
        return _suggest(cells, training)
    except NoLoop as no:
        return Suggestion(why=str(no))
    except RecursionError:
        return Suggestion(
            why="the cell is nested too deeply to be parsed; split its expression into several statements."
        )


def _suggest(cells: Sequence[ExecutedCell], training: TrainingCell) -> Suggestion:
    notebook = Notebook.of(cells, training)
    if notebook is None:
        cleaned = clean_cell(training.source)
        what = f" ({cleaned.error}, line {cleaned.error_line + training.first_line - 1})" if cleaned.error else ""
        return Suggestion(why=f"cell [{training.count}] is not valid Python{what}. Fix it, then retry.")
    if _uses_run(notebook):
        return Suggestion(why="it already uses dlaas.run(): nothing to change.")
    try:
        found = find(notebook)
    except NoLoop as no:
        return Suggestion(why=str(no) or _other_framework(notebook))
    return _Writer(notebook, found).suggestion()


def _uses_run(notebook: Notebook) -> bool:
    """Return whether the training cell, or a function that it calls, already uses `dlaas.run()`."""
    calls = notebook.calls(frozenset({"run", "epochs", "batches"}))
    return any(
        ast.unparse(call[-1].call.func) in ("dlaas.run", "jupyter_dlaas.run", "run.epochs", "run.batches")
        for call in calls
    )


def _other_framework(notebook: Notebook) -> str:
    """Explain what applies to a training without a backward pass, by its framework."""
    used = modules_used(notebook.sheets)
    methods = {
        node.func.attr
        for node in ast.walk(notebook.training.tree)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)
    }
    for modules, verbs, name in FRAMEWORKS:
        if used & modules and methods & verbs:
            return f"{name} keeps its own position: the job can halt at a step and resume without any changes."
    if "jax" in used or any(_has_tape(sheet.tree) for sheet in notebook.sheets):
        return (
            "only PyTorch loops can be rewritten. Here, `for epoch in run.epochs(N):` with "
            "`run = dlaas.run()` above it, and the values to keep in `run.state`, allow a resume at an epoch."
        )
    for node in ast.walk(notebook.training.tree):
        if isinstance(node, ast.Call) and re.match(r"(train|fit)(_|$)", last_name(node.func)):
            return (
                f"no PyTorch loop found in `{ast.unparse(node.func)}(…)`: it is defined in a module or a "
                "library. If the file is yours, move the function to a cell, then retry."
            )
    return "no PyTorch loop with `loss.backward()` in this cell or in the functions that it calls."


def _has_tape(tree: ast.AST) -> bool:
    """Return whether the code uses TensorFlow's `GradientTape`."""
    return any(
        "GradientTape" in (getattr(node, "id", None), getattr(node, "attr", None), getattr(node, "name", None))
        for node in ast.walk(tree)
    )


# ------------------------------------------------------------------------------------------------------------ writer


class _Writer:
    def __init__(self, notebook: Notebook, found: Training) -> None:
        self.notebook, self.found = notebook, found
        self.edits: dict[int, Edits] = {}
        self.hints: list[str] = []
        taken = names_used(notebook.sheets)
        self.run = next(name for name in ("run", "job_run", "dlaas_run", "dlaas_job_run") if name not in taken)
        self.outer_sheet = found.scope.sheet
        scopes = {id(batch.way[-1].scope.node) for batch in found.batches if not batch.why_not} | {id(found.scope.node)}
        self.loss = kind_of(notebook, found.ends)
        self.is_global = len(scopes) > 1 or found.scope.is_module

    def suggestion(self) -> Suggestion:
        """Return the suggestion. Raises NoLoop."""
        found = self.found
        shared = [batch for batch in found.batches if not batch.why_not]
        if found.epochs is None and not shared:
            raise NoLoop(found.batches[0].why_not)
        self._begin()
        if found.epochs is not None:
            self._epochs(found.epochs)
        for one in shared:
            self._batches(one)
        self._log()
        self._save()
        self._add_hints(shared)
        cells = tuple(
            edits.rewritten()
            for edits in sorted(self.edits.values(), key=lambda e: self.notebook.sheets.index(e.sheet))
        )
        for cell in cells:
            if not _parses(cell.after, cell.before):
                raise NoLoop(f"{cell.label} cannot be edited line by line: write the loop on separate lines.")
        return Suggestion(cells=cells, hints=tuple(self.hints))

    def _of(self, scope: Scope) -> Edits:
        return self.edits.setdefault(id(scope.sheet), Edits(scope.sheet))

    # -- run and prepare ----------------------------------------------------------------------------------------------

    def _begin(self) -> None:
        found = self.found
        outer, scope = found.outer, found.scope
        begin = self._bar_line(outer) or outer.lineno
        self._new_line(scope, outer.lineno, begin, self._prepare(), is_last=True)
        if self.is_global and not scope.is_module:
            top = self._top_statement()
            module = Scope(self.notebook.training, self.notebook.training.tree)
            self._new_line(module, top.lineno, top.lineno, f"{self.run} = dlaas.run()", is_last=False)
        else:
            self._new_line(scope, outer.lineno, begin, f"{self.run} = dlaas.run()", is_last=False)

    def _new_line(self, scope: Scope, like: int, before: int, text: str, *, is_last: bool) -> None:
        """Insert a line above another one and its comments, with the same indentation."""
        lines = lines_of(scope.sheet.clean.source)
        indent = lines[like - 1][: len(lines[like - 1]) - len(lines[like - 1].lstrip())]
        at = before
        while at > 1 and lines[at - 2].startswith(f"{indent}#"):
            at -= 1
        edits = self._of(scope)
        if is_last:
            edits.insert(at, indent + text)
        else:
            edits.lines.insert(0, (at, indent + text))

    def _top_statement(self) -> ast.stmt:
        """Return the training cell's own statement that leads to the loop."""
        frame = self.found.way[0]
        for node in self.notebook.training.tree.body:
            if any(one is frame.call for one in ast.walk(node)):
                return node
        raise AssertionError("the way begins in the training cell")

    def _prepare(self) -> str:
        found = self.found
        many = len(found.schedulers) > 1
        objects = [*found.objects, *(found.schedulers if many else ())]
        named = [f"scheduler={found.schedulers[0]}"] if len(found.schedulers) == 1 else []
        back = [*objects, *(found.schedulers if not many else ())]
        if found.scaler:
            named.append(f"scaler={found.scaler}")
            back.append(found.scaler)
        if self.loss is Kind.SUM:
            named.append('loss="sum"')
        call = f"{self.run}.prepare({', '.join([*objects, *named])})"
        own = found.scope.bound() | found.scope.all_parameters
        is_own = found.scope.is_module or all(one.partition(".")[0].partition("[")[0] in own for one in back)
        return f"{', '.join(back)} = {call}" if is_own else call  # an assignment in a function would hide the global

    # -- loops --------------------------------------------------------------------------------------------------------

    def _bar_line(self, outer: ast.For) -> int | None:
        """Return the line of `bar = tqdm(range(n))` above the loop."""
        bar = self._bar(outer)
        return bar.lineno if bar is not None else None

    def _bar(self, outer: ast.For) -> ast.expr | None:
        if outer is not self.found.epochs or not isinstance(outer.iter, ast.Name):
            return None
        values = self.found.scope.values(outer.iter.id)
        value = values[-1] if values else None
        if not isinstance(value, ast.Call) or range_in(value) is None or last_name(value.func) in ("range", "list"):
            return None
        return value if value.lineno < outer.lineno else None

    def _epochs(self, loop: ast.For) -> None:
        scope = self.found.scope
        edits = self._of(scope)
        whole: ast.expr = self._bar(loop) or loop.iter
        counted = range_in(whole)
        if counted is None:
            self._epochs_of_list(loop)
            return
        start, count = self._counts(counted, loop)
        epochs = f"{self.run}.epochs({count})"
        if last_name(counted.func) in ("trange", "tnrange"):
            epochs = self._bar_of(counted, epochs, count, scope)
        edits.replace(counted, epochs)
        bar = whole if whole is not counted and isinstance(whole, ast.Call) else None
        while bar is not None and bar.args and bar.args[0] is not counted:
            bar = bar.args[0] if isinstance(bar.args[0], ast.Call) else None
        is_tqdm = bar is not None and "tqdm" in ast.unparse(bar.func)
        if bar is not None and is_tqdm and not any(keyword.arg == "total" for keyword in bar.keywords):
            self._total(edits, bar, count)
        if start != "0":
            self._offset(edits, loop, start)

    def _counts(self, counted: ast.Call, loop: ast.For) -> tuple[str, str]:
        """Return the first number and the count of a counted loop."""
        args = counted.args
        texts = [self._text(arg) for arg in args]
        if any(isinstance(one, ast.Starred) for one in args) or (len(args) == 3 and texts[2] != "1"):
            shown = self._text(counted)
            raise NoLoop(
                f"{self._where(loop)}: `{shown}` does not count epochs one by one. Use `range(N)`, then retry."
            )
        if len(args) == 1:
            return "0", texts[0]
        first, last = args[0], args[1]
        if texts[0] == "0":
            return "0", texts[1]
        if isinstance(first, ast.Constant) and isinstance(last, ast.Constant):
            return texts[0], str(last.value - first.value)  # type: ignore[operator]
        if isinstance(last, ast.BinOp) and isinstance(last.op, ast.Add):
            if ast.unparse(last.right) == ast.unparse(first):
                return texts[0], self._text(last.left)
            if ast.unparse(last.left) == ast.unparse(first):
                return texts[0], self._text(last.right)
        shown = texts[0] if not isinstance(first, ast.BinOp | ast.IfExp) else f"({texts[0]})"
        ending = texts[1] if not isinstance(last, ast.IfExp) else f"({texts[1]})"
        return texts[0], f"{ending} - {shown}"

    def _epochs_of_list(self, loop: ast.For) -> None:
        """Rewrite `for epoch in epochs` over a range or a list that was created above."""
        scope = self.found.scope
        name = ast.unparse(loop.iter)
        made = self.notebook.value_of(name, scope, self.found.way) if isinstance(loop.iter, ast.Name) else None
        inner = made.args[0] if isinstance(made, ast.Call) and last_name(made.func) == "list" and made.args else made
        if made is None or (range_in(inner) is None and not isinstance(inner, ast.List)):  # type: ignore[arg-type]
            raise NoLoop(
                f"{self._where(loop)}: the length of `{name}` is unknown. Use `for epoch in range(N):`, then retry."
            )
        edits = self._of(scope)
        edits.replace(loop.iter, f"{self.run}.epochs(len({name}))")
        if isinstance(loop.target, ast.Name) and _reads(loop, loop.target.id):
            self._first_in_body(edits, loop, f"{loop.target.id} = {name}[{loop.target.id}]")

    def _bar_of(self, counted: ast.Call, epochs: str, count: str, scope: Scope) -> str:
        """Return the loop's iterable with the progress bar of `trange(n, desc="…")` kept, if `tqdm` has a name here."""
        name = ast.unparse(counted.func)
        options = [f"{keyword.arg}={self._text(keyword.value)}" for keyword in counted.keywords if keyword.arg]
        if isinstance(counted.func, ast.Attribute):
            bar = f"{ast.unparse(counted.func.value)}.tqdm"
        elif "tqdm" in names_used(self.notebook.sheets):
            bar = "tqdm"
        else:
            if self._bar(self.found.outer) is not None:
                raise NoLoop(f"{self._where(counted)}: use `tqdm(range(N))` instead of `{name}`, then retry.")
            return epochs
        return f"{bar}({', '.join([epochs, f'total={count}', *options])})"

    def _total(self, edits: Edits, bar: ast.Call, count: str) -> None:
        line, column = end_of(edits.sheet, bar)
        before = lines_of(edits.sheet.clean.source)[line - 1][: column - 1].rstrip()
        comma = " " if before.endswith(",") else ", "
        edits.put(line, len(before) if before else column - 1, f"{comma}total={count}")

    def _offset(self, edits: Edits, loop: ast.For, start: str) -> None:
        if isinstance(loop.target, ast.Name) and _reads(loop, loop.target.id):
            self._first_in_body(edits, loop, f"{loop.target.id} += {start}")

    def _first_in_body(self, edits: Edits, loop: ast.For, text: str) -> None:
        first = loop.body[0]
        if first.lineno == loop.lineno:
            raise NoLoop(f"{self._where(loop)}: write the loop's body on separate lines, then retry.")
        lines = lines_of(edits.sheet.clean.source)
        at = first.lineno
        decorators = getattr(first, "decorator_list", [])
        at = min([at, *(decorator.lineno for decorator in decorators)])
        indent = lines[first.lineno - 1][: len(lines[first.lineno - 1]) - len(lines[first.lineno - 1].lstrip())]
        while at - 1 > loop.iter.end_lineno and lines[at - 2].startswith(f"{indent}#"):
            at -= 1
        edits.insert(at, indent + text)

    def _batches(self, one: Batches) -> None:
        text = self._text(one.data, one.way[-1].scope.sheet)
        shared = f"{self.run}.batches({text})"
        if one.only_if is not None:
            test = self._text(one.only_if, one.way[-1].scope.sheet)
            shared = f"{shared} if {test} else {text}"
            shared = shared if one.data is one.loop.iter else f"({shared})"
        self._of(one.way[-1].scope).replace(one.data, shared)

    # -- log and save -------------------------------------------------------------------------------------------------

    def _log(self) -> None:
        """Add one `run.log(…)` per epoch, with the loop's metrics, else with the last batch's loss."""
        found = self.found
        if found.epochs is not None:
            names, after = self._epoch_metrics(found.epochs)
            if names and after is not None and after.lineno != found.epochs.lineno:
                logged = ", ".join(f"{name}={value}" for name, value in names.items())
                self._after(found.scope, after, f"{self.run}.log({logged})")
                return
        shared = [batch for batch in found.batches if not batch.why_not]
        one = shared[0] if shared else None
        loop, scope = (one.loop, one.way[-1].scope) if one is not None else (found.epochs, found.scope)
        assert loop is not None, "a training has a loop"
        losses = [name for end in found.ends if (name := _loss_of(end[-1].call)) is not None]
        bound = scope.bound()
        named = {name if METRICS.search(name) else "loss": name for name in losses if name in bound}
        logged = ", ".join(f"{name}={value}" for name, value in named.items())
        if not logged or loop.orelse or loop.body[-1].lineno == loop.lineno:
            return
        text = f"{self.run}.log({logged})"
        if one is None:
            self._after(scope, loop.body[-1], text)
        elif one.only_if is None:
            self._after(scope, loop, text)
        else:
            self._after(scope, loop, f"if {self._text(one.only_if, scope.sheet)}: {text}")

    def _epoch_metrics(self, loop: ast.For) -> tuple[dict[str, str], ast.stmt | None]:
        """Return names that look like metrics and are bound in each epoch, and the statement that binds the last."""
        found: dict[str, str] = {}
        after: ast.stmt | None = None
        sums: dict[str, str] = {}
        inner = {id(batch.loop) for batch in self.found.batches}
        has_batches = bool(self.found.batches) and any(id(node) in inner for node in loop.body)
        seen_loop = not has_batches
        lists = _lists(self.found.scope)
        for node in loop.body:
            if id(node) in inner:
                seen_loop = True
                sums = {name: name for name in _summed(node)}
                after = node if not found else after
                continue
            if not isinstance(node, ast.Assign) or not seen_loop:
                continue
            for target in node.targets:
                for elt in target.elts if isinstance(target, ast.Tuple) else [target]:
                    if isinstance(elt, ast.Name) and METRICS.search(elt.id) and elt.id not in lists:
                        if COLLECTION_NAMES.search(elt.id) or not self._is_number(node.value, elt, target):
                            continue
                        found[elt.id] = elt.id
                        after = node
        if not found and sums:
            for name, text in self._means(loop, sums):
                found[name] = text
        chosen = dict(list(found.items())[:LOGGED_MAX])
        return chosen, after

    def _is_number(self, value: ast.expr, one: ast.Name, target: ast.expr) -> bool:
        """Return whether a value may be a number: no list, string or object, and not the initial zero of a sum."""
        place_in = target.elts.index(one) if isinstance(target, ast.Tuple) else None
        if isinstance(value, ast.Call):
            name = last_name(value.func)
            own = self.notebook.functions.get(name)
            if own is not None:
                return _returns_number(own, place_in)
            known = name[:1].isupper() or name in ("zeros", "append", "cat", "stack", "figure", "empty")
            return place_in is None and not known
        return place_in is None and isinstance(value, ast.BinOp | ast.Attribute | ast.Subscript | ast.Name | ast.IfExp)

    def _means(self, loop: ast.For, sums: dict[str, str]) -> Iterator[tuple[str, str]]:
        """Yield sums over the batches as the loop itself divides them: `running_loss / len(loader)`."""
        inner = [batch.loop for batch in self.found.batches]
        for node in loop.body:
            if any(node is one for one in inner):
                continue
            for part in ast.walk(node):
                if isinstance(part, ast.BinOp) and isinstance(part.op, ast.Div) and isinstance(part.left, ast.Name):
                    name = part.left.id
                    if name in sums and METRICS.search(name):
                        del sums[name]
                        yield name, ast.unparse(part)
        for name in [one for one in sums if METRICS.search(one)]:
            yield name, name

    def _after(self, scope: Scope, node: ast.stmt, text: str) -> None:
        """Insert a line directly below a statement, with its indentation."""
        lines = lines_of(scope.sheet.clean.source)
        indent = lines[node.lineno - 1][: len(lines[node.lineno - 1]) - len(lines[node.lineno - 1].lstrip())]
        self._of(scope).insert((node.end_lineno or node.lineno) + 1, indent + text)

    def _save(self) -> None:
        """Restrict files that each learner would write to the main learner."""
        found = self.found
        frames = [found.scope, *(batch.way[-1].scope for batch in found.batches if not batch.why_not)]
        scopes = {id(frame.node): frame for frame in frames}
        if self.is_global:
            scopes[id(self.notebook.training.tree)] = Scope(self.notebook.training, self.notebook.training.tree)
        for scope in scopes.values():
            for node in scope.nodes():
                if not isinstance(node, ast.Expr) or not isinstance(node.value, ast.Call):
                    continue
                if ast.unparse(node.value.func) != "torch.save":
                    continue
                if scope is found.scope and node.lineno < found.outer.lineno:
                    continue
                line, column = start_of(scope.sheet, node)
                is_alone = not lines_of(scope.sheet.clean.source)[line - 1][:column].strip()
                text = f"if {self.run}.is_main: " if is_alone else f"{self.run}.is_main and "
                self._of(scope).put(line, column, text)

    # -- hints --------------------------------------------------------------------------------------------------------

    def _add_hints(self, shared: Sequence[Batches]) -> None:
        found = self.found
        for batch in found.batches:
            if batch.why_not:
                self.hints.append(batch.why_not)
        if not found.batches:
            self.hints.append(
                "There are no batches to divide: the job resumes at the epoch, and all learners compute the same "
                "values. With a loop over run.batches(…), more learners would train faster."
            )
        for one in shared:
            for node in ast.walk(one.loop):
                if isinstance(node, ast.Break):
                    self.hints.append(
                        f"{place(one.way[-1], node)}: all learners must `break` at the same step: make it depend on "
                        "the number of steps, or on a value that is the same in all of them: "
                        f'{self.run}.log(reduce="mean", loss=loss)["loss"].'
                    )
                    break
            if self.loss is Kind.MIXED:
                self.hints.append(
                    f"{place(found.ends[0][-1])}: the loss adds a sum over samples to a mean. Averaged over learners, "
                    "the sum weighs less than with one: divide it by the number of samples."
                )
            if _sums_samples(one.loop):
                self.hints.append(
                    f"{place(one.way[-1], one.loop)}: with several learners, each sums only its own samples; divide "
                    "by the number of samples it processed, not by the length of the dataset."
                )

    def _text(self, node: ast.expr, sheet: Sheet | None = None) -> str:
        """Return the source of an expression as the user wrote it."""
        source = (sheet or self.outer_sheet).clean.source
        found = ast.get_source_segment(source, node)
        return found if found is not None and "\n" not in found else ast.unparse(node)

    def _where(self, node: ast.AST) -> str:
        line = self.outer_sheet.clean.lines[node.lineno - 1] + self.outer_sheet.first_line - 1  # type: ignore[attr-defined]
        return f"{self.outer_sheet.label}, line {line}"


def _parses(after: str, before: str) -> bool:
    """Return whether the rewritten cell is valid Python below the line of its magic."""
    head = before.partition("\n")[0]
    if clean_cell(before).kind == "job":
        after = after[after.index(head) + len(head) + 1 :]
    try:
        return clean_cell(after).kind == "python"
    except UNREADABLE:
        return False


def _reads(loop: ast.For, name: str) -> bool:
    return any(
        isinstance(node, ast.Name) and node.id == name and isinstance(node.ctx, ast.Load)
        for part in loop.body
        for node in ast.walk(part)
    )


def _loss_of(backward: ast.Call) -> str | None:
    """Return `loss` of `loss.backward()`, `(loss / 4).backward()` or `scaler.scale(loss).backward()`."""
    assert isinstance(backward.func, ast.Attribute)
    node = backward.func.value
    while not isinstance(node, ast.Name):
        if isinstance(node, ast.BinOp):
            node = node.left
        elif isinstance(node, ast.Call) and last_name(node.func) == "scale" and node.args:
            node = node.args[0]
        else:
            return None
    return node.id


def _lists(scope: Scope) -> set[str]:
    """Return the names that hold lists, or functions that compute a loss."""
    found = {text for text, value in scope.assigned() if isinstance(value, ast.List | ast.Dict | ast.ListComp)}
    for node in scope.nodes():
        if (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Attribute)
            and node.func.attr in ("append", "extend")
        ):
            found.add(ast.unparse(node.func.value))
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            found.add(node.func.id)  # `accuracy(model)`: a function of that name
    return found


def _summed(loop: ast.AST) -> list[str]:
    """Return the names to which a loop adds, in the order of the page."""
    found = [
        node.target.id
        for node in ast.walk(loop)
        if isinstance(node, ast.AugAssign) and isinstance(node.op, ast.Add) and isinstance(node.target, ast.Name)
    ]
    return list(dict.fromkeys(found))


def _returns_number(function: Scope, at: int | None) -> bool:
    """Return whether a function's result, or its part at an index, is not a list."""
    lists = _lists(function)
    for node in function.nodes():
        if isinstance(node, ast.Return) and node.value is not None:
            value: ast.expr = node.value
            if at is not None:
                if not isinstance(value, ast.Tuple) or at >= len(value.elts):
                    return False
                value = value.elts[at]
            if isinstance(value, ast.List | ast.ListComp | ast.Dict | ast.Tuple) or ast.unparse(value) in lists:
                return False
    return True


def _sums_samples(loop: ast.For) -> bool:
    """Return whether a loop sums over samples: `running_loss += loss.item() * x.size(0)`."""
    for node in ast.walk(loop):
        if (
            isinstance(node, ast.AugAssign)
            and isinstance(node.value, ast.BinOp)
            and isinstance(node.value.op, ast.Mult)
        ):
            parts = list(ast.walk(node.value))
            called = {last_name(part.func) for part in parts if isinstance(part, ast.Call)}
            named = {part.attr for part in parts if isinstance(part, ast.Attribute)}
            named |= {part.id for part in parts if isinstance(part, ast.Name)}
            if "item" in called and (called & {"size", "len"} or named & {"shape", "batch_size"}):
                return True
    return False
