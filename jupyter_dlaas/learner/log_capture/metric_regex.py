"""Metrics extracted from printed lines by the user's patterns: `--metric 'loss: ([0-9.]+)'`."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final

__all__ = ["Tee", "find", "listen"]

_ENDS: Final = re.compile(r"[\r\n]")
_LONGEST: Final = 100_000


def find(patterns: Sequence[re.Pattern[str]], line: str) -> dict[str, float]:
    """Return the numbers that the patterns find in a line.

    A named group names its metric; otherwise the last word before the group does (`loss: (…)` -> loss).
    """
    found: dict[str, float] = {}
    for number, pattern in enumerate(patterns, 1):
        match = pattern.search(line)
        if match is None:
            continue
        names = pattern.groupindex or {_name(pattern, number): 1 if pattern.groups else 0}
        for name, group in names.items():
            try:
                found[name] = float(match[group])
            except (TypeError, ValueError):
                continue
    return found


def _name(pattern: re.Pattern[str], number: int) -> str:
    words = re.findall(r"[A-Za-z][A-Za-z0-9_]*", pattern.pattern.partition("(")[0])
    return words[-1] if words else f"metric{number}"


class Tee:
    """A standard stream that passes each complete line to a callback, after writing it."""

    def __init__(self, stream: Any, on_line: Callable[[str], None]) -> None:
        self._stream = stream
        self._write = stream.write
        self._on_line = on_line
        self._rest = ""

    def write(self, text: str) -> int:
        written: int = self._write(text)
        if text == "\n":  # the most frequent case: the end of print()
            line, self._rest = self._rest, ""
            if line:
                self._on_line(line)
        elif "\n" in text or "\r" in text:
            *lines, self._rest = _ENDS.split(self._rest + text)
            for line in lines:
                if line:
                    self._on_line(line)
        elif len(self._rest) < _LONGEST:
            self._rest += text
        return written

    def writelines(self, lines: Iterable[str]) -> None:
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def listen(on_line: Callable[[str], None]) -> None:
    """Call `on_line` for each line that this process prints."""
    sys.stdout = Tee(sys.stdout, on_line)
    sys.stderr = Tee(sys.stderr, on_line)
