"""Numbers out of printed lines: what `--metric 'loss: ([0-9.]+)'` asks for."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Sequence
from typing import Any

__all__ = ["Tee", "find", "listen"]


def find(patterns: Sequence[re.Pattern[str]], line: str) -> dict[str, float]:
    """The numbers that the patterns find in a line.

    A named group gives the metric its name; else the word before the group in the pattern does (`loss: (…)` -> loss).
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
    """Standard output that shows each whole line to somebody, after it was written."""

    def __init__(self, stream: Any, on_line: Callable[[str], None]) -> None:
        self._stream = stream
        self._on_line = on_line
        self._rest = ""

    def write(self, text: str) -> int:
        written: int = self._stream.write(text)
        if "\n" in text or "\r" in text:
            *lines, self._rest = re.split(r"[\r\n]", self._rest + text)
            for line in lines:
                if line:
                    self._on_line(line)
        elif len(self._rest) < 100_000:
            self._rest += text
        return written

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def listen(patterns: Sequence[str], on_values: Callable[[dict[str, float]], None]) -> None:
    """Watch what this process prints. Raises re.error for a bad pattern."""
    compiled = [re.compile(pattern) for pattern in patterns]

    def on_line(line: str) -> None:
        values = find(compiled, line)
        if values:
            on_values(values)

    sys.stdout = Tee(sys.stdout, on_line)
    sys.stderr = Tee(sys.stderr, on_line)
