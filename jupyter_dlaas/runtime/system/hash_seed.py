"""Seed of Python's hash function. The order of a set of strings depends on it, so a job's processes share one.

A job keeps it in its environment as PYTHONHASHSEED. It is the notebook's seed if the notebook was started with one: the
random seed of a process that was started without can neither be read nor passed on.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Final

__all__ = ["DEFAULT", "VARIABLE", "hash_seed_of", "own_hash_seed"]

VARIABLE: Final = "PYTHONHASHSEED"
DEFAULT: Final = "0"
_MAX: Final = 2**32 - 1
_STARTED_WITH: Final = os.environ.get(VARIABLE)


def hash_seed_of(environment: Mapping[str, str]) -> str:
    """Return the seed of a process with this environment: the named one if Python accepts it, otherwise the default."""
    return _valid(environment.get(VARIABLE)) or DEFAULT


def own_hash_seed() -> str | None:
    """Return the seed with which this process was started; None if Python drew a random one.

    `os.environ` does not show it: notebooks set the variable there, which changes nothing in a running process.
    """
    if not sys.flags.hash_randomization:
        return "0"
    return None if sys.flags.ignore_environment else _valid(_at_start())


def _at_start() -> str | None:
    try:
        entries = Path("/proc/self/environ").read_bytes().split(b"\0")
    except OSError:  # not Linux: use the value from when this module was loaded
        return _STARTED_WITH
    name = f"{VARIABLE}=".encode()
    return next((os.fsdecode(entry.removeprefix(name)) for entry in entries if entry.startswith(name)), None)


def _valid(text: str | None) -> str | None:
    is_number = text is not None and text.isascii() and text.isdigit() and len(text) <= 20
    return str(int(text)) if is_number and text is not None and int(text) <= _MAX else None
