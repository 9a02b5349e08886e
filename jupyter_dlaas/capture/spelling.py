"""Suggestion of the closest name for a misspelled one. Pure."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from typing import Final

__all__ = ["closest_name"]

_CLOSE: Final = 0.7
"""Minimum similarity of a suggested name: `hist` for `history`, but not `time` for `optimizer`."""


def closest_name(name: str, candidates: Iterable[str]) -> str | None:
    """Return the candidate that is spelled most like the name; None if none is close."""
    close = difflib.get_close_matches(name, sorted(candidates), n=1, cutoff=_CLOSE)
    return close[0] if close else None
