"""Connections to databases: rows written to a file exist already, those in memory are gone with the kernel. Pure."""

from __future__ import annotations

import ast
from collections.abc import Mapping, Set
from typing import Final

from jupyter_dlaas.analysis.effects import Call, reach, verb_of, words
from jupyter_dlaas.analysis.syntax.names import walk

__all__ = ["Databases"]

_CONNECT: Final = words("connect create_engine create_async_engine duckdb.connect")
_WRITES: Final = words("execute executemany executescript commit rollback to_sql")


class Databases:
    """Connections to databases that persist, such as files and servers."""

    def __init__(self) -> None:
        self.persistent: set[str] = set()

    def note(self, node: ast.stmt, imported: Mapping[str, str]) -> None:
        """Record a connection that a statement binds."""
        match node:
            case ast.Assign(targets=[ast.Name(id=name)], value=value):
                is_connection = isinstance(value, ast.Call) and _persists(value, imported)
                (self.persistent.add if is_connection else self.persistent.discard)(name)
            case ast.With(items=items):
                for item in items:
                    bound, made = item.optional_vars, item.context_expr
                    if isinstance(bound, ast.Name) and isinstance(made, ast.Call) and _persists(made, imported):
                        self.persistent.add(bound.id)
            case _:
                return

    def writes(self, call: Call, objects: Mapping[str, Set[str]]) -> bool:
        """Return whether a call may write rows that persist."""
        if call.verb not in _WRITES or not self.persistent:
            return False
        names = call.args if call.verb == "to_sql" else {call.receiver or ""}
        return not reach(names, objects).isdisjoint(self.persistent)


def _persists(call: ast.Call, imported: Mapping[str, str]) -> bool:
    if verb_of(call.func) not in _CONNECT:
        return False
    module = imported.get(getattr(getattr(call.func, "value", None), "id", ""), "")
    given = [*call.args, *(option.value for option in call.keywords)]
    if not given and module == "duckdb":
        return False
    texts = [part.value for one in given for part in walk(one) if isinstance(part, ast.Constant)]
    return not any(isinstance(text, str) and (":memory:" in text or text == "sqlite://") for text in texts)
