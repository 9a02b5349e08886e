"""Pools that exist, by name or directory, and the sentence for one that does not. Standard library only."""

from __future__ import annotations

import difflib
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Final

__all__ = ["DEFAULT_POOL", "holds_pool", "is_for_pool", "missing_pool_text"]

DEFAULT_POOL: Final = "local"
"""Name of the pool that is created on first use."""
_POOL_FILES: Final = ("store.sqlite3", "config.toml", "engine.log")
"""Files of which any marks a directory as a pool."""
_LISTED_MAX: Final = 10


def holds_pool(directory: Path) -> bool:
    """Return whether a directory holds a pool: its store, its configuration or its engine's log."""
    return any((directory / name).exists() for name in _POOL_FILES)


def is_for_pool(directory: Path) -> bool:
    """Return whether a directory holds a pool or is empty, apart from hidden files."""
    try:
        return holds_pool(directory) or all(path.name.startswith(".") for path in directory.iterdir())
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError:  # not readable, which its use reports
        return True


def missing_pool_text(directory: Path, pools_folder: Path, named_by: str) -> str:
    """Return the error for a pool that does not exist: the closest pool, all pools, and how to create this one.

    `pools_folder` contains the pools that have names. `named_by` is the option or variable that names the pool.
    """
    is_named = directory.parent == pools_folder
    by = "" if named_by == "pool" else f", which {named_by} names"
    others = _pools_in(directory.parent, has_default=is_named)
    close = difflib.get_close_matches(directory.name, others, n=1)
    create = "jupyter dlaas pool use local --pool"
    if is_named:
        name = directory.name
        hint = f" Did you mean {close[0]!r}?" if close else ""
        if holds_pool(Path(name)):
            hint = f" For the pool in the directory {name}, use --pool ./{name}/."
        return f"there is no pool {name!r}{by}.{hint} Your pools: {_listed(others)}. To create it: {create} {name}"
    hint = f" Did you mean {directory.parent / close[0]}/?" if close else ""
    if directory.exists():
        own = shlex.quote(f"{directory / 'dlaas'}/")
        return f"{directory}{by and f'{by},'} holds no pool but other files.{hint} To create one below: {create} {own}"
    return f"there is no pool in {directory}{by}.{hint} To create it: {create} {shlex.quote(f'{directory}/')}"


def _pools_in(folder: Path, *, has_default: bool) -> list[str]:
    try:
        found = {path.name for path in folder.iterdir() if holds_pool(path)}
    except OSError:
        found = set()
    return sorted({*found, DEFAULT_POOL} if has_default else found)


def _listed(names: Sequence[str]) -> str:
    more = len(names) - _LISTED_MAX
    return ", ".join(names[:_LISTED_MAX]) + (f" and {more} more" if more > 0 else "")
