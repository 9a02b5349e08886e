"""Golden journal: a line of each kind, as the first version with this format wrote it."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest

from jupyter_dlaas.wire.codec import Invalid
from jupyter_dlaas.wire.journal import FACT_TYPES, FactKind, WantedSeen, fact_from_line, fact_to_line

LINES = (Path(__file__).parent / "golden" / "journal.jsonl").read_bytes().splitlines(keepends=True)


def test_the_golden_journal_has_each_kind_with_all_its_fields() -> None:
    facts = [fact_from_line(line) for line in LINES]

    assert {fact.kind for fact in facts} == set(FactKind) == set(FACT_TYPES)
    for fact in facts:
        assert not [f.name for f in dataclasses.fields(fact) if getattr(fact, f.name) is None], fact.kind


@pytest.mark.parametrize("line", LINES, ids=[json.loads(line)["kind"] for line in LINES])
def test_a_line_is_written_as_it_was_read(line: bytes) -> None:
    fact = fact_from_line(line)

    assert type(fact) is FACT_TYPES[fact.kind]
    assert fact_to_line(fact) == line


def test_a_field_of_a_later_version_is_ignored() -> None:
    assert fact_from_line(b'{"n":1,"at_s":2.0,"kind":"seen","revision":3,"later":1}') == WantedSeen(
        n=1, at_s=2.0, revision=3
    )


@pytest.mark.parametrize(
    ("line", "text"),
    [
        (b'{"n":1,"at_s":2.0,"kind":"later"}', "kind: 'later' is not valid; use one of"),
        (b'{"n":1,"at_s":2.0}', "kind: is missing"),
        (b'{"at_s":2.0,"kind":"seen","revision":3}', "n: is missing"),
        (b'{"n":1,"at_s":2.0,"kind":"seen"}', "revision: is missing"),
        (b'{"n":1,"at_s":2.0,"kind":"seen","revision":"3"}', "revision: must be a whole number, not '3'"),
        (b"[1]", "body: must be an object"),
    ],
)
def test_a_line_that_is_no_fact_is_refused_by_name(line: bytes, text: str) -> None:
    with pytest.raises(Invalid, match=f"^{text}"):
        fact_from_line(line)
