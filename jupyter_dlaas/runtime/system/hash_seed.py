"""The seed of Python's hash function: the order of a set of strings depends on it, so all processes of a job share one.

A job keeps it in its environment, as PYTHONHASHSEED. It is the notebook's own where that was started with one: the
random seed of a process that was started without can neither be set nor passed on.
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
    """The seed of a process with this environment: what it names where Python takes that, else the default."""
    return _valid(environment.get(VARIABLE)) or DEFAULT


def own_hash_seed() -> str | None:
    """The seed with which this very process was started; None where Python drew one.

    `os.environ` does not tell: notebooks set the variable there, which changes nothing in a running process.
    """
    if not sys.flags.hash_randomization:
        return "0"
    return None if sys.flags.ignore_environment else _valid(_at_start())


def _at_start() -> str | None:
    try:
        entries = Path("/proc/self/environ").read_bytes().split(b"\0")
    except OSError:  # no Linux: as it was when this module was loaded
        return _STARTED_WITH
    name = f"{VARIABLE}=".encode()
    return next((os.fsdecode(entry.removeprefix(name)) for entry in entries if entry.startswith(name)), None)


def _valid(text: str | None) -> str | None:
    is_number = text is not None and text.isascii() and text.isdigit() and len(text) <= 20
    return str(int(text)) if is_number and text is not None and int(text) <= _MAX else None
