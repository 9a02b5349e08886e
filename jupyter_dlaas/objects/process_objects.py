"""Objects that keep values of the process: context variables, attributes of threads, databases in memory."""

from __future__ import annotations

import contextvars
import hashlib
import sys
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any, Final

from jupyter_dlaas.objects.array_digests import Budget
from jupyter_dlaas.objects.object_aspects import Aspect

__all__ = ["Database", "context_value", "is_finished_cursor", "is_in_memory", "is_thread_local"]

_UNSET: Final = object()
_COMPARED_BYTES: Final = 1 << 26
"""The size in bytes above which a database is compared by its number of changes."""


def is_thread_local(value: object) -> bool:
    """Return whether an object has other attributes in each thread; those of the training's thread are kept."""
    return isinstance(value, threading.local)


def context_value(value: object) -> dict[str, Any] | None:
    """Return the present value of a context variable as an item, none if it is not set; None for other objects."""
    if not isinstance(value, contextvars.ContextVar):
        return None
    found = contextvars.copy_context().get(value, _UNSET)
    return {} if found is _UNSET else {"value": found}


def is_in_memory(value: object) -> bool:
    """Return whether an object is a connection to a database of SQLite that no file holds."""
    sqlite: Any = sys.modules.get("sqlite3")
    if sqlite is None or not isinstance(value, sqlite.Connection):
        return False
    connection: Any = value
    try:
        files = [file for _, _, file in connection.execute("pragma database_list").fetchall()]
    except sqlite.Error:  # closed, or of another thread
        return False
    return not any(Path(file).is_absolute() for file in files)  # a restored one has the name "x"


def is_finished_cursor(value: object) -> bool:
    """Return whether an object is a cursor of SQLite without rows to read."""
    sqlite: Any = sys.modules.get("sqlite3")
    return sqlite is not None and isinstance(value, sqlite.Cursor) and value.description is None


def _content(connection: Any) -> bytes:
    """Return a database with its uncommitted rows, which `serialize` of a restored one would omit."""
    is_restored = any(file for _, _, file in connection.execute("pragma database_list").fetchall())
    if not (is_restored and connection.in_transaction):
        return bytes(connection.serialize())
    sqlite: Any = sys.modules["sqlite3"]
    with closing(sqlite.connect(":memory:")) as other:
        other.executescript("\n".join(connection.iterdump()))
        return bytes(other.serialize())


class Database(Aspect):
    """Tables and rows of a database in memory."""

    can_revert = False

    def read(self, value: Any, budget: Budget) -> tuple[int, int, bytes]:
        pages, size, schema = (
            value.execute(f"pragma {name}").fetchone()[0] for name in ("page_count", "page_size", "schema_version")
        )
        is_small = pages * size <= _COMPARED_BYTES
        content = hashlib.blake2b(_content(value)).digest() if is_small else b""
        return (0, 0, content) if is_small else (schema, value.total_changes, b"")

    def parts(self, value: Any) -> Iterator[tuple[str, Any]]:
        return iter(())

    def carry(self, value: Any, base: Any, now: Any) -> bytes:
        return _content(value)

    def put(self, value: Any, carried: bytes) -> None:
        if value.in_transaction:
            value.commit()
        value.deserialize(carried)

    def copy(self, value: Any) -> bytes:
        return _content(value)

    def size(self, value: Any) -> int:
        return int(value.execute("pragma page_count").fetchone()[0] * value.execute("pragma page_size").fetchone()[0])
