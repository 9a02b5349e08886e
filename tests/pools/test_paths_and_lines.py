"""Paths inside a job, and facts out of bytes: what holds for every input."""

from __future__ import annotations

import posixpath
import threading
from dataclasses import replace
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from dlaas_server.pools.journal_lines import facts_in
from dlaas_server.pools.local.job_folder import JobFolder
from dlaas_server.pools.paths import safe_parts
from jupyter_dlaas.jobdir.journal_file import facts_of
from jupyter_dlaas.wire.journal import Fact, FactKind, LearnerAwaited, WantedSeen, fact_to_line
from jupyter_dlaas.wire.protocol import Refused

pieces = st.sampled_from(["..", ".", "", "a", "files", "/", "\0", "é", "a" * 256, "\ud800"])


@given(st.lists(pieces, max_size=6).map("/".join) | st.text(max_size=40))
def test_a_path_is_refused_or_stays_inside(path: str) -> None:
    try:
        parts = safe_parts(path)
    except Refused:
        return
    inside = posixpath.normpath(posixpath.join("/job", *parts))
    assert inside == "/job/" + "/".join(parts)
    assert "\0" not in path


GOLDEN = facts_of((Path(__file__).parents[1] / "wire" / "golden" / "journal.jsonl").read_bytes())
records = st.builds(replace, st.sampled_from(GOLDEN), n=st.integers(0, 99))
facts = st.lists(records, max_size=8)


@given(facts, st.data())
def test_reader_gets_each_fact_once_at_any_offset(written: list[Fact], data: st.DataObject) -> None:
    journal = b"".join(map(fact_to_line, written))
    cuts = sorted(data.draw(st.lists(st.integers(0, len(journal)), max_size=5)))
    found: list[Fact] = []
    offset = 0
    for size in [*cuts, len(journal)]:
        if size > offset:
            some, offset = facts_in(journal[offset:size], offset)
            found += some

    assert found == written
    assert offset == len(journal)


def test_facts_after_a_torn_line_are_read() -> None:
    seen = WantedSeen(n=7, at_s=1.0, revision=3)
    found, end = facts_in(b'{"n":6,"at_' + fact_to_line(seen) + b"\xff\xfe\n\n" + fact_to_line(seen), 100)

    assert [fact.kind for fact in found] == [FactKind.DAMAGED, FactKind.SEEN, FactKind.DAMAGED, FactKind.SEEN]
    assert found[1] == found[3] == seen
    assert end == 100 + len(b'{"n":6,"at_') + 2 * len(fact_to_line(seen)) + 4


def test_a_fact_with_any_text_can_be_read_again() -> None:
    fact = LearnerAwaited(n=0, at_s=1.0, why="a\0b \ud800 ü")

    (found,), _ = facts_in(fact_to_line(fact), 0)
    assert isinstance(found, LearnerAwaited)
    assert found.why == r"a\x00b \ud800 ü"


def test_size_of_a_closed_journal_ends_with_its_closing_line(tmp_path: Path) -> None:
    """Another guardian may write at any moment, here after each line that closes the job."""
    up, closed = (next(one for one in GOLDEN if one.kind is kind) for kind in (FactKind.GUARDIAN_UP, FactKind.CLOSED))
    path, folder = tmp_path / "journal.jsonl", JobFolder("a-1", tmp_path)
    path.touch()
    closed_at: set[int] = {-1}

    def write() -> None:
        with path.open("ab", buffering=0) as journal:
            for _ in range(1000):
                closed_at.add(journal.tell() + len(fact_to_line(closed)))
                journal.write(fact_to_line(closed))
                journal.write(fact_to_line(up))

    writer = threading.Thread(target=write)
    writer.start()
    found = {folder.closed_bytes()}
    while writer.is_alive():
        found.add(folder.closed_bytes())
    writer.join()

    assert found <= closed_at
