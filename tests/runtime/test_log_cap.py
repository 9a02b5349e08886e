"""Long logs: head and tail are kept, offsets stay, and readers learn what is missing."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from dlaas_server.pools.base import Chunk
from dlaas_server.pools.local.logs import read_log
from jupyter_dlaas.jobdir.log_cap import LogCap, log_size, read_cut
from jupyter_dlaas.jobdir.log_index import INDEX, LOG, LogIndex, read_index
from jupyter_dlaas.wire.secret_masking import NO_MASK, Mask, mask_of

HEAD, TAIL, STEP = 1000, 3000, 8192


def line(number: int) -> bytes:
    return b"line %06d\n" % number


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path


def capped(folder: Path) -> LogCap:
    return LogCap(folder, head=HEAD, tail=TAIL, step=STEP)


def write(folder: Path, first: int, end: int, cap: LogCap | None = None) -> None:
    for number in range(first, end):
        with (folder / LOG).open("ab") as file:
            file.write(line(number))
        if cap is not None:
            cap.look()


def read(folder: Path, offset: int, limit: int = 1 << 20, mask: Mask = NO_MASK) -> Chunk:
    fd = os.open(folder / LOG, os.O_RDONLY)
    try:
        return read_log(fd, folder, offset, limit, mask, is_live=False)
    finally:
        os.close(fd)


def whole(folder: Path, limit: int = 700) -> tuple[list[bytes], list[tuple[int, int]]]:
    """Return the lines that a reader gets from the beginning on, and the gaps that it sees."""
    data, gaps, at = b"", [], 0
    while (chunk := read(folder, at, limit)).data:
        if chunk.start > at:
            gaps.append((at, chunk.start))
        data, at = data + chunk.data, chunk.end
    assert at == chunk.size
    return data.splitlines(), gaps


@pytest.mark.parametrize("has_ended", [False, True])
def test_head_and_tail_of_a_long_log_are_kept(folder: Path, has_ended: bool) -> None:
    cap = capped(folder)
    write(folder, 0, 5000, cap)
    if has_ended:
        cap.finish()

    lines, gaps = whole(folder)

    assert lines[:83] == [line(number)[:-1] for number in range(83)]
    assert lines[-250:] == [line(number)[:-1] for number in range(4750, 5000)]
    assert sum(b"middle of this log was dropped" in one for one in lines) == 1
    assert len(gaps) == 1
    assert read(folder, 0).size == 5000 * len(line(0)), "offsets are those of the whole log"
    assert read(folder, -24).data == line(4998) + line(4999)
    cut = read_cut(folder)
    assert log_size((folder / LOG).stat().st_size, cut) == 5000 * len(line(0))
    if has_ended:
        assert (folder / LOG).stat().st_size < HEAD + TAIL + 2 * STEP


def test_dropped_part_takes_no_room_while_the_learner_runs(folder: Path) -> None:
    cap = LogCap(folder, head=1 << 16, tail=1 << 16, step=1 << 16)
    for _ in range(64):
        with (folder / LOG).open("ab") as file:
            file.write(line(1) * 10_000)
        cap.look()

    assert (folder / LOG).stat().st_blocks * 512 < 1 << 20


def test_short_log_stays_whole(folder: Path) -> None:
    cap = capped(folder)
    write(folder, 0, 900, cap)
    before = (folder / LOG).read_bytes()
    cap.finish()

    assert (folder / LOG).read_bytes() == before
    assert read_cut(folder) is None


def test_next_guardian_continues_dropping_the_log(folder: Path) -> None:
    write(folder, 0, 3000, capped(folder))
    write(folder, 3000, 6000)  # no reader has read the first part

    capped(folder).finish()

    lines, gaps = whole(folder)
    assert len(gaps) == 1
    assert lines[-1] == line(5999)[:-1]
    assert (folder / LOG).stat().st_size < HEAD + TAIL + 2 * STEP


def test_secrets_are_masked_on_both_sides_of_the_gap(folder: Path) -> None:
    cap = capped(folder)
    write(folder, 0, 5000, cap)
    cap.finish()
    end = read(folder, 0).end
    mask = mask_of({"A_TOKEN": "line 000000", "B_TOKEN": "line 004999"})

    assert read(folder, 0, mask=mask).data.startswith(b"***********\nline 000001\n")
    assert read(folder, end + 200, mask=mask).data.endswith(b"line 004998\n***********\n")


def test_index_of_a_log_is_thinned(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("jupyter_dlaas.jobdir.log_index._INDEX_BYTES_MAX", 2000)
    index = LogIndex(folder)
    for number in range(1000):
        with (folder / LOG).open("ab") as file:
            file.write(line(number))
        assert index.look(float(number))
    index.close()

    entries = read_index(folder / INDEX)
    assert (folder / INDEX).stat().st_size <= 2000
    assert entries[0] == (0, 0.0)
    assert entries[-1] == (999 * len(line(0)), 999.0)
    assert entries == sorted(entries)
