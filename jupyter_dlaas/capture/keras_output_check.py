"""Check for Keras models that `-o` cannot return, before the job starts instead of after its work. Pure.

Keras stores a model of the user's own class by its configuration, which it knows only if the class provides it, or if
`__init__` takes plain values and passes all others on.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence

from jupyter_dlaas.analysis.effects import verb_of
from jupyter_dlaas.analysis.model import Problem, TrainingCell
from jupyter_dlaas.analysis.steps import Step, Trace
from jupyter_dlaas.analysis.syntax.names import root_name

__all__ = ["check_keras_outputs"]

_KERAS = ("keras", "tensorflow")
_BASES = frozenset({"Model", "Layer", "Sequential"})
_MAKES_PLAIN = frozenset({"int", "float", "str", "bool", "len", "list", "tuple", "dict", "range", "min", "max", "sum"})
_PLAIN_ROOTS = frozenset({"np", "numpy", "math", "pd", "pandas", "random", "os", "time"})


def check_keras_outputs(trace: Trace, training: TrainingCell) -> tuple[Problem, ...]:
    """Warn of `-o` names of a Keras class that cannot be recreated from its configuration."""
    if not training.outputs:
        return ()
    made = {name: (step, call) for step in trace.steps for name, call in _makings(step)}
    classes = {
        step.statement.node.name: step.statement.node
        for step in trace.steps
        if isinstance(step.statement.node, ast.ClassDef)
    }
    imported = {name for step in trace.steps for name in _keras_names(step)}
    found = []
    for name in training.outputs:
        step, call = made.get(name, (None, None))
        kind = classes.get(verb_of(call.func)) if call is not None else None
        if step is None or call is None or kind is None or not _is_keras(kind, classes, imported):
            continue
        others = {other: one for other, (_, one) in made.items()}
        if _has(kind, "get_config", classes) or not _is_lost(kind, call, others, classes):
            continue
        names = [
            argument.id for argument in _arguments(call) if isinstance(argument, ast.Name) and argument.id in others
        ]
        parts = [one for one in names if _may_be_model(others[one])]
        also = f", or its models: -o {','.join(parts)}" if parts else ""
        text = (
            f"-o {name}: Keras cannot recreate a `{kind.name}`, which has no get_config. Add "
            f"`{name}_weights = {name}.get_weights()` at the end of the cell and use -o {name}_weights{also}."
        )
        label, line = f"cell [{training.count}]", training.first_line - 1
        found.append(Problem("keras_config", text, label, line, (name,)))
    return tuple(found)


def _makings(step: Step) -> Iterator[tuple[str, ast.Call]]:
    node = step.statement.node
    for part in ast.walk(node) if node is not None and not isinstance(node, ast.FunctionDef | ast.ClassDef) else ():
        if isinstance(part, ast.Assign) and isinstance(part.value, ast.Call):
            yield from ((target.id, part.value) for target in part.targets if isinstance(target, ast.Name))


def _keras_names(step: Step) -> Iterator[str]:
    """Yield names that an import binds to parts of Keras."""
    node = step.statement.node
    if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] in _KERAS:
        yield from (one.asname or one.name for one in node.names)
    elif isinstance(node, ast.Import):
        for name in node.names:
            if name.name.partition(".")[0] in _KERAS:
                yield name.asname or name.name.partition(".")[0]


def _is_keras(kind: ast.ClassDef, classes: dict[str, ast.ClassDef], imported: set[str], depth: int = 0) -> bool:
    for base in kind.bases:
        if isinstance(base, ast.Name) and base.id in classes and depth < len(classes):
            if _is_keras(classes[base.id], classes, imported, depth + 1):
                return True
        elif verb_of(base) in _BASES and root_name(base) in imported:
            return True
    return False


def _method(kind: ast.ClassDef, name: str, classes: dict[str, ast.ClassDef]) -> ast.FunctionDef | None:
    found = next(
        (statement for statement in kind.body if isinstance(statement, ast.FunctionDef) and statement.name == name),
        None,
    )
    bases = [one.id for one in kind.bases if isinstance(one, ast.Name) and one.id in classes and one.id != kind.name]
    return found or next((one for base in bases if (one := _method(classes[base], name, classes))), None)


def _has(kind: ast.ClassDef, name: str, classes: dict[str, ast.ClassDef]) -> bool:
    return _method(kind, name, classes) is not None


def _is_lost(kind: ast.ClassDef, call: ast.Call, made: dict[str, ast.Call], classes: dict[str, ast.ClassDef]) -> bool:
    init = _method(kind, "__init__", classes)
    if init is None:
        return False
    return init.args.kwarg is None or any(
        isinstance(argument, ast.Call)
        or (isinstance(argument, ast.Name) and argument.id in made and _may_be_model(made[argument.id]))
        for argument in _arguments(call)
    )


def _arguments(call: ast.Call) -> Sequence[ast.expr]:
    return [*call.args, *(keyword.value for keyword in call.keywords)]


def _may_be_model(call: ast.Call) -> bool:
    return verb_of(call.func) not in _MAKES_PLAIN and root_name(call.func) not in _PLAIN_ROOTS
