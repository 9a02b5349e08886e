"""What four lines would add to a plain training loop, told with the names of the loop itself. Pure."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from jupyter_dlaas.notebook.cells import clean_cell

__all__ = ["four_lines", "trains_alone"]

_GANG: frozenset[str] = frozenset(
    {"dlaas", "distributed", "DistributedDataParallel", "RANK", "WORLD_SIZE", "Accelerator", "Trainer", "lightning"}
)
_BUILTIN: frozenset[str] = frozenset({"range", "len", "print", "enumerate", "zip", "tqdm", "float", "int", "list"})


def four_lines(source: str) -> str:
    """A sentence and four lines for a plain PyTorch loop; "" where there is none, or it uses `dlaas.run()`."""
    tree = _parsed(source)
    if tree is None or _uses_run(tree):
        return ""
    loops = [node for node in ast.walk(tree) if isinstance(node, ast.For) and _steps(node)]
    if not loops:
        return ""
    outer = loops[0]
    inner = next((node for node in ast.walk(outer) if isinstance(node, ast.For) and node is not outer), None)
    optimizer = _steps(outer)[0]
    model = next(_called(outer), "model")
    lines = ["run = dlaas.run()", f"{model}, {optimizer} = run.prepare({model}, {optimizer})"]
    epochs = _count(outer.iter)
    lines.append(f"for {_target(outer)} in run.epochs({epochs or '…'}):")
    if inner is not None:
        lines.append(f"    for {_target(inner)} in run.batches({ast.unparse(inner.iter)}):")
    text = "\n".join(f"    {line}" for line in lines)
    return f"a plain loop: these lines would let it grow, shrink and resume at the step:\n{text}"


def trains_alone(source: str) -> bool:
    """True for a program that knows nothing of other learners."""
    tree = _parsed(source)
    if tree is None:
        return False
    names = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
    names |= {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    names |= {str(node.value) for node in ast.walk(tree) if isinstance(node, ast.Constant)}
    return not names & _GANG


def _parsed(source: str) -> ast.Module | None:
    try:
        return ast.parse(clean_cell(source).source)
    except (SyntaxError, ValueError):
        return None


def _uses_run(tree: ast.AST) -> bool:
    return any(
        isinstance(node, ast.Attribute)
        and isinstance(node.value, ast.Name)
        and (node.value.id, node.attr) == ("dlaas", "run")
        for node in ast.walk(tree)
    )


def _target(loop: ast.For) -> str:
    """As people write it: without brackets around a pair."""
    if isinstance(loop.target, ast.Tuple):
        return ", ".join(ast.unparse(one) for one in loop.target.elts)
    return ast.unparse(loop.target)


def _steps(loop: ast.For) -> list[str]:
    """Names whose `.step()` is called below a loop that also goes backward."""
    calls = [node.func for node in ast.walk(loop) if isinstance(node, ast.Call)]
    methods = [func for func in calls if isinstance(func, ast.Attribute)]
    if not any(func.attr == "backward" for func in methods):
        return []
    steppers = [func.value for func in methods if func.attr == "step"]
    return [one.id for one in steppers if isinstance(one, ast.Name) and "sched" not in one.id]


def _called(loop: ast.For) -> Iterator[str]:
    """Names that are called like a model below a loop."""
    for node in ast.walk(loop):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.args:
            name = node.func.id
            if name not in _BUILTIN and not any(word in name.lower() for word in ("loss", "criterion", "accuracy")):
                yield name


def _count(iterable: ast.expr) -> str:
    """What stands in `range(…)`, also inside of tqdm."""
    for node in ast.walk(iterable):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in ("range", "trange"):
            return ast.unparse(node.args[-1] if len(node.args) < 3 else node.args[1])
    return ""
