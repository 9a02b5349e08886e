"""Golden table of numbers, units and times, written alike by server, terminal and page."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import pytest

from dlaas_server.core.model import phrases
from jupyter_dlaas.display import formatting

TABLE: Final[dict[str, list[list[Any]]]] = json.loads(
    (Path(__file__).parents[1] / "golden" / "formats.json").read_text(encoding="utf-8")
)
WRITERS: Final[list[tuple[str, Callable[..., str]]]] = [
    ("duration", phrases.duration),
    ("duration", formatting.duration),
    ("progress", formatting.percent),
    ("bytes", formatting.bytes_text),
    ("count", phrases.count),
    ("ordinal", phrases.ordinal),
    ("number", lambda value: formatting.number(float(value))),
]


@pytest.mark.parametrize(("table", "write"), WRITERS)
def test_python_writes_the_golden_formats(table: str, write: Callable[..., str]) -> None:
    rows = TABLE[table]

    assert [[*row[:-1], write(*row[:-1])] for row in rows] == rows
