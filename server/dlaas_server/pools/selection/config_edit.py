"""Edit of one table of a `config.toml` that leaves comments and all other keys as they are. Pure."""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Mapping, Sequence
from typing import Any, Final

__all__ = ["NotEditable", "with_table"]

Value = str | bool
_HEADER: Final = re.compile(r"\s*\[")
_SIMPLE: Final = re.compile(r"""\s*(?:"(?:[^"\\]|\\.)*"|'[^']*'|true|false|[\w.+:-]+)\s*(#.*)?$""")
"""A value on one line, and the comment behind it."""


class NotEditable(ValueError):
    """The table is written in a way that this module does not edit, such as an inline table."""


def with_table(text: str, table: str, values: Mapping[str, Value | None]) -> str:
    """Return the text with these values in a top-level table. None removes a key.

    Raises NotEditable, and TOMLDecodeError if the text is not valid.
    """
    expected: dict[str, Any] = tomllib.loads(text)
    own = dict(expected.get(table, {}))
    for key, value in values.items():
        if value is None:
            own.pop(key, None)
        else:
            own[key] = value
    expected[table] = own
    edited = "".join(_edited(text.splitlines(keepends=True), table, values))
    try:
        is_as_expected = tomllib.loads(edited) == expected
    except tomllib.TOMLDecodeError:
        is_as_expected = False
    if not is_as_expected:
        raise NotEditable(table)
    return edited


def _edited(lines: Sequence[str], table: str, values: Mapping[str, Value | None]) -> list[str]:
    header = re.compile(rf"\s*\[\s*{re.escape(table)}\s*\]\s*(#.*)?$")
    start = next((n for n, line in enumerate(lines) if header.match(line.rstrip("\r\n"))), None)
    if start is None:
        added = [_line(key, value) for key, value in values.items() if value is not None]
        return [*_closed(lines), *(["\n"] if lines else []), f"[{table}]\n", *added]
    end = next((n for n in range(start + 1, len(lines)) if _HEADER.match(lines[n])), len(lines))
    body, left = list(lines[start + 1 : end]), dict(values)
    kept: list[str] = []
    for line in body:
        key = _key_of(line)
        if key not in left:
            kept.append(line)
            continue
        value = left.pop(key)
        if value is not None:
            kept.append(_line(key, value, _comment(line)))
    added = [_line(key, value) for key, value in left.items() if value is not None]
    at = next((n + 1 for n in reversed(range(len(kept))) if _is_complete(kept[n])), 0)
    above = _closed([*lines[: start + 1], *kept[:at]])
    return [*above, *added, *kept[at:], *lines[end:]]


def _closed(lines: Sequence[str]) -> list[str]:
    """Return lines of which also the last one ends with a line break."""
    return [line if line.endswith("\n") else f"{line}\n" for line in lines]


def _key_of(line: str) -> str:
    found = re.match(r"""\s*(["']?)([\w-]+)\1\s*=""", line)
    return found[2] if found is not None else ""


def _is_complete(line: str) -> bool:
    """Return whether a line holds a key with its whole value."""
    return bool(_key_of(line)) and _SIMPLE.match(line.partition("=")[2].rstrip("\r\n")) is not None


def _comment(line: str) -> str:
    """Return the comment behind a simple value, with the blanks before it."""
    found = _SIMPLE.match(line.partition("=")[2].rstrip("\r\n"))
    return f"  {found[1]}" if found is not None and found[1] else ""


def _line(key: str, value: Value, comment: str = "") -> str:
    # The strings of JSON are basic strings of TOML, except for DEL.
    written = json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    return f"{key} = {written}{comment}\n"
