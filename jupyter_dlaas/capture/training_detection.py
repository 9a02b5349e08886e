"""Detection of training statements: gradient steps, `fit`, own functions that contain either. Pure.

Nothing is executed, so this uses names and the bodies of the notebook's own functions.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Sequence

from jupyter_dlaas.analysis.cells import JOB_MAGIC, clean_cell, statements_of
from jupyter_dlaas.analysis.dataflow import Tracer
from jupyter_dlaas.analysis.effects import FITS, VIEWS, Call, is_step, reach, words
from jupyter_dlaas.analysis.model import ExecutedCell
from jupyter_dlaas.analysis.steps import Step
from jupyter_dlaas.analysis.syntax.constants import DEFINITIONS
from jupyter_dlaas.analysis.syntax.names import root_name, walk
from jupyter_dlaas.analysis.syntax.rate_updates import rate_update
from jupyter_dlaas.analysis.syntax.syntax_depth import deep_trees
from jupyter_dlaas.analysis.syntax.training_steps import names_training
from jupyter_dlaas.analysis.trained_objects import only_hands_on

__all__ = ["Watcher", "looks_like_training", "training_cells"]

TRAIN_CALLS = words(
    """train fit train_model fit_model train_loop training_loop run_training train_epoch train_one_epoch train_network
    train_step"""
)
GRADIENTS = words("grad value_and_grad gradient jacrev")
ABOUT = words("partial jit pmap vmap compile wraps getsource getsourcelines signature help print display")
RUNS = words("epochs batches")
LOOPS = ast.For | ast.AsyncFor | ast.While
OPTIONS = words("epochs max_epochs n_epochs num_epochs batch_size steps_per_epoch validation_data eval_set callbacks")
PREPARES = re.compile(
    r"scal(er|ar)|(?<!auto)encod(?!er_?dec)|imput|vectori[sz]|binari[sz]|normali[sz]|tokeni[sz]|pca|tsne|umap|datagen|generator|select"
    r"|discreti[sz]|transformer$|preproc|^(sc|le|ohe|tfidf|cv|vec)\d*$",
    re.IGNORECASE,
)
_TEXT = re.compile(r"\.backward\(|\.fit\(|\.train_on_batch\(|apply_gradients\(|\.minimize\(|\btrain\w*\(")


def looks_like_training(text: str) -> bool:
    """Return whether a cell that Python cannot parse looks like training."""
    return _TEXT.search(text) is not None


@deep_trees()
def training_cells(cells: Sequence[ExecutedCell]) -> list[str]:
    """Return for each cell, in order of execution, what makes it a training; "" if it trains nothing."""
    tracer = Tracer()
    watcher = Watcher(tracer)
    found = []
    for cell in cells:
        if clean_cell(cell.source).kind == "broken" and looks_like_training(cell.source):
            found.append("looks like training")
            continue
        steps = [tracer.step(one) for one in statements_of(cell, f"cell [{cell.count}]", {})]
        is_job = any(step.statement.kind == "job" for step in steps)
        found.append(f"%%{JOB_MAGIC}" if is_job else watcher.why(steps))
    return found


class Watcher:
    """Detector that follows the steps beside a `Tracer` and finds the training cells, with the reasons."""

    def __init__(self, tracer: Tracer) -> None:
        self.tracer = tracer
        self.kinds: dict[str, str] = {}  # name -> function that created it: `sc = preprocessing.Scaler()`
        self.places: dict[str, str] = {}  # own function -> "cell [3]"
        self.gradients: set[str] = set()  # functions that compute gradients
        self.updates: set[str] = set()  # functions that update weights or tables by a learning rate
        self.loops: set[str] = set()  # own functions that contain a loop
        self.imported: set[str] = set()  # names that come from a library
        self.trainers: set[str] = set()  # `fit = partial(ppo.train, …)`
        self.ready: set[str] = (
            set()
        )  # compiled objects or objects with data: their `train()` trains instead of setting a mode

    def why(self, steps: Sequence[Step]) -> str:
        """Return a phrase that says what makes a cell a training; "" for a cell that trains nothing.

        Call it directly after the tracer has processed these steps.
        """
        for step in steps:
            self._remember(step)
        has_step = any(call.verb == "step" for step in steps for call in step.calls)
        for step in steps:
            node = step.statement.node
            if node is None or isinstance(node, DEFINITIONS | ast.Import | ast.ImportFrom):
                continue
            has_loop = step.is_block and any(isinstance(part, LOOPS) for part in walk(node))
            for call in step.calls:
                if found := self._why_call(call, is_alone=not (has_loop or has_step)):
                    return found
                if call.receiver and (call.verb.startswith("append_") or (call.verb == "compile" and call.arguments)):
                    self.ready.add(call.receiver)
            if (receiver := _chained(node)) or (receiver := _given_by_train(node)) in self.ready:
                return f"calls `{receiver}.train`"
            if found := self._why_gradients(step, has_loop=has_loop):
                return found
        return ""

    def _remember(self, step: Step) -> None:
        node = step.statement.node
        self.imported -= step.flow.binds
        self.trainers -= step.flow.binds
        self.ready -= step.flow.kills
        if isinstance(node, ast.ImportFrom):
            self.imported |= step.flow.binds
        elif isinstance(node, ast.Assign) and len(node.targets) == 1 and isinstance(node.targets[0], ast.Name):
            name = node.targets[0].id
            self.kinds.pop(name, None)
            if isinstance(node.value, ast.Call):
                self.kinds[name] = _verb(node.value.func)
                if self.kinds[name] == "partial" and node.value.args and self._is_trainer(node.value.args[0]):
                    self.trainers.add(name)
                if _computes_gradients(node) or any(n in self.gradients for n in _names(node.value)):
                    self.gradients.add(name)
        elif isinstance(node, DEFINITIONS):
            self.places[node.name] = step.statement.label
            if rate_update(node):
                self.updates.add(node.name)
            if _computes_gradients(node) or node.name in self.updates:
                self.gradients.add(node.name)
            if any(isinstance(part, LOOPS) for part in walk(node)):
                self.loops.add(node.name)

    def _why_call(self, call: Call, *, is_alone: bool) -> str:
        tracer = self.tracer
        if tracer.trainings.only_computes(call) and not self._learns(call):
            return ""
        if call.function is not None and call.function not in ABOUT and self._trains(call.function):
            return f"calls `{call.function}`, which trains{self._in(call.function)}"
        if call.verb in ABOUT:
            return ""
        if tracer.trainings.imported_trainer(call) is not None:
            return f"calls `{f'{call.receiver}.' if call.receiver else ''}{call.verb}`, which trains"
        if is_step(call) and not (call.verb == "backward" and is_alone):
            shown = f"{call.receiver}.{call.verb}" if call.receiver else call.verb
            return f"takes training steps (`{shown}`)"
        if call.receiver and call.receiver not in tracer.modules and tracer.trainings.runs_training(call):
            return f"calls `{call.receiver}.{call.verb}`, which trains"
        for name in sorted(() if only_hands_on(call) else call.args):
            if name in tracer.behaviours and self._trains(name):
                return f"passes `{name}`, which trains{self._in(name)}"
        if call.receiver is None:
            is_likely = call.function in TRAIN_CALLS or call.function in self.trainers or self._is_library(call.verb)
            return f"calls `{call.function}`" if is_likely else ""
        if call.verb in RUNS and call.receiver == "run":
            return f"uses `run.{call.verb}`"
        method = tracer.methods.get(call.verb)
        if method is not None and method.trains and self._is_own(call.receiver):
            return f"calls `{call.receiver}.{call.verb}`, which trains"
        return f"calls `{call.receiver}.{call.verb}`" if self._fits(call, call.receiver) else ""

    def _learns(self, call: Call) -> bool:
        """Return whether a method `fit` of the notebook changes its object, as one of a model written by hand does."""
        method = self.tracer.trainings.own_method(call)
        return method is not None and call.verb in FITS - {"train"} and "self" in method.touched_params

    def _fits(self, call: Call, receiver: str) -> bool:
        kind = self.kinds.get(receiver, receiver)
        is_module = receiver in self.tracer.modules
        if not is_module and self.tracer.trainings.is_training(call):
            return True
        if call.verb == "train" and not is_module:
            return receiver in self.ready and call.is_dropped  # else it sets a mode
        if call.verb == "optimize" and any(key == "n_trials" for key, _ in call.arguments):
            return True  # a study of Optuna
        if is_module:
            return names_training(call.verb) and bool(call.arguments)
        if call.verb not in FITS:
            return False
        if any(key in OPTIONS for key, _ in call.arguments):
            return True
        return not (PREPARES.search(kind) or PREPARES.search(receiver))

    def _trains(self, name: str) -> bool:
        """Return whether a name, or an own function that it refers to, takes training steps."""
        own, late = self.tracer.behaviours, self.tracer.late
        seen, waiting = {name}, [name]
        while waiting:
            one = waiting.pop()
            if one in own:
                if own[one].trains or any(map(self._is_library, own[one].calls)):
                    return True
                new = late.get(one, frozenset()) - seen
                seen |= new
                waiting += new
        return False

    def _is_library(self, function: str) -> bool:
        """Return whether a function is imported: `fit_to_data` of `from flowjax.train import fit_to_data`."""
        return function in self.imported and names_training(function)

    def _is_trainer(self, function: ast.expr) -> bool:
        """Return whether an expression is `ppo.train` of a library, or a function that trains."""
        if isinstance(function, ast.Attribute):
            return root_name(function) in self.tracer.modules and names_training(function.attr)
        return isinstance(function, ast.Name) and (self._is_library(function.id) or self._trains(function.id))

    def _is_own(self, receiver: str) -> bool:
        kind = self.kinds.get(receiver)
        return kind is None or kind in self.tracer.classes.names or kind in self.tracer.behaviours

    def _why_gradients(self, step: Step, *, has_loop: bool) -> str:
        """Return why a loop trains that computes gradients (JAX) or updates weights by a learning rate (NumPy)."""
        if has_loop and step.statement.node is not None and (update := rate_update(step.statement.node)):
            return f"updates weights by a learning rate (`{update}`)"
        if not self.gradients:
            return ""
        own = {call.function for call in step.calls if call.function} | (step.flow.reads if has_loop else set())
        for name in sorted(own):
            found = reach([name], self.tracer.late) & self.gradients
            if found and (has_loop or name in self.loops):
                does = "computes gradients" if found - self.updates else "updates values by a learning rate"
                return f"calls `{name}` in a loop, which {does}{self._in(name)}"
        return ""

    def _in(self, name: str) -> str:
        return f" ({self.places[name]})" if name in self.places else ""


def _chained(node: ast.AST) -> str:
    """Return the root of `inference.append(x).train()`; a mode is set on a model, its constructor or `to(device)`."""
    for part in walk(node):
        match part:
            case ast.Call(
                func=ast.Attribute(
                    attr="train", value=ast.Call(func=ast.Attribute(value=ast.Name(id=root), attr=verb), args=[_, *_])
                )
            ) if verb not in VIEWS and not verb[:1].isupper():
                return root
    return ""


def _given_by_train(node: ast.AST) -> str:
    """Return the root of `estimator = inference.train()`; setting a mode returns the model itself."""
    match node:
        case ast.Assign(
            targets=[ast.Name(id=name)],
            value=ast.Call(func=ast.Attribute(attr="train", value=ast.Name(id=root))),
        ) if name != root:
            return root
    return ""


def _computes_gradients(node: ast.AST) -> bool:
    return any(isinstance(part, ast.Call) and _verb(part.func) in GRADIENTS for part in walk(node))


def _names(node: ast.AST) -> list[str]:
    return [part.id for part in walk(node) if isinstance(part, ast.Name)]


def _verb(function: ast.expr) -> str:
    if isinstance(function, ast.Attribute):
        return function.attr
    return function.id if isinstance(function, ast.Name) else ""
