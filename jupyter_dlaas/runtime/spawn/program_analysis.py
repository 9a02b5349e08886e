"""Analysis of a program before it runs, by its syntax tree: comments and strings do not count."""

from __future__ import annotations

import re
from typing import Final

__all__ = ["expects_run", "uses_torch_distributed"]

_RUN: Final = re.compile(r"\brun\s*\(")
_DISTRIBUTED: Final = re.compile(r"\btorch\.distributed\b|\bdistributed as\b|SyncBatchNorm|\bDistributedDataParallel\b")
_DISTRIBUTED_API: Final = frozenset({"SyncBatchNorm", "DistributedDataParallel"})


def expects_run(source: str) -> bool:
    """Return whether a program calls `run()` of jupyter_dlaas, and not of another module."""
    if "jupyter_dlaas" not in source or _RUN.search(source) is None:
        return False
    import ast  # most programs return above, and guardians start often

    modules, functions, called = set[str](), set[str](), set[str]()
    for node in _nodes(source):
        match node:
            case ast.Import(names=names):
                modules |= {one.asname or one.name for one in names if one.name == "jupyter_dlaas"}
            case ast.ImportFrom(module="jupyter_dlaas", names=names):
                functions |= {one.asname or one.name for one in names if one.name == "run"}
            case ast.Call(func=ast.Attribute(value=ast.Name(id=name), attr="run")):
                called.add(f"{name}.run")
            case ast.Call(func=ast.Name(id=name)):
                called.add(name)
            case _:
                continue
    return not called.isdisjoint(functions | {f"{name}.run" for name in modules})


def uses_torch_distributed(source: str) -> bool:
    """Return whether a program uses torch.distributed itself, so that its learners cannot change while they train."""
    if _DISTRIBUTED.search(source) is None:
        return False
    import ast

    for node in _nodes(source):
        match node:
            case ast.Attribute(value=ast.Name(id="torch"), attr="distributed"):
                return True
            case ast.Name(id=name) | ast.Attribute(attr=name) if name in _DISTRIBUTED_API:
                return True
            case ast.Import(names=names) if any(one.name.startswith("torch.distributed") for one in names):
                return True
            case ast.ImportFrom(module=str(module), names=names):
                found = {f"{module}.{one.name}" for one in names}
                if any(
                    one.startswith("torch.distributed") or one.rpartition(".")[2] in _DISTRIBUTED_API for one in found
                ):
                    return True
            case _:
                continue
    return False


def _nodes(source: str) -> list[object]:
    import ast

    try:
        return list(ast.walk(ast.parse(source)))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return []
