"""Output streams of the command line: any text can be printed, whatever they are."""

from __future__ import annotations

import codecs
import io
import os
import sys
from typing import Final

__all__ = ["prepare"]

_HANDLER: Final = "dlaas.similar"
_SIMILAR: Final = {
    **dict(zip("·×−–’░▁▂▃▄▅▆▇█", "-x--'._.-=+*%#", strict=True)),
    "…": "...",
    "→": "->",
    "∞": "inf",
}
"""Replacements for characters of our own output that an encoding other than UTF-8 may lack."""


def prepare() -> None:
    """Let standard output and errors print what their encoding lacks, and what is printed while they are closed."""
    codecs.register_error(_HANDLER, _similar)
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:  # closed by the caller, as by `>&-`
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: PTH123, SIM115 - open to the end
        elif isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors=_HANDLER)


def _similar(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    return "".join(_SIMILAR.get(char, "?") for char in error.object[error.start : error.end]), error.end
