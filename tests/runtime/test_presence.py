"""A guardian makes again the files by which it is found, and yields to another one that holds its lock."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from jupyter_dlaas.jobdir.atomic_files import send_datagram
from jupyter_dlaas.jobdir.journal_file import Journal, read_facts
from jupyter_dlaas.runtime.fencing import discovery_files
from jupyter_dlaas.runtime.fencing.discovery_files import LOOK_S, RETRY_S, STATUS, WAKE, Presence
from jupyter_dlaas.runtime.fencing.lock import LOCK, SOCKET, Lock
from jupyter_dlaas.runtime.system.process import Identity
from jupyter_dlaas.wire.journal import WantedSeen

ME = Identity(7, 70, "boot")
LEARNERS = {0: Identity(8, 80, "boot")}


def take(path: Path) -> int:
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    return fd


@pytest.fixture
def shown(tmp_path: Path) -> Iterator[Presence]:
    path = tmp_path / LOCK
    made = Presence(tmp_path, Lock(path, take(path)), 0.0)
    made.write_status(ME, LEARNERS, None)
    yield made
    made.close()


@pytest.mark.parametrize("name", [WAKE, SOCKET, STATUS, LOCK])
def test_a_file_that_was_removed_comes_back(shown: Presence, tmp_path: Path, name: str) -> None:
    (tmp_path / name).unlink()
    assert shown.look(LOOK_S - 1)
    assert not (tmp_path / name).exists(), "it is not looked for all the time"
    assert shown.look(LOOK_S)

    assert (tmp_path / name).exists()
    assert send_datagram(tmp_path / WAKE, b"!")
    assert shown.wake.recv(10) == b"!"
    assert json.loads((tmp_path / STATUS).read_bytes())["learners"] == {"0": {"pid": 8, "start": 80}}
    with pytest.raises(BlockingIOError):
        take(tmp_path / LOCK)


def test_guardian_yields_to_the_holder_of_the_lock(shown: Presence, tmp_path: Path) -> None:
    (tmp_path / LOCK).unlink()
    other = take(tmp_path / LOCK)

    assert not shown.look(LOOK_S)
    os.close(other)


def test_guardian_without_a_directory_continues(shown: Presence, tmp_path: Path) -> None:
    shutil.rmtree(tmp_path)

    assert shown.look(LOOK_S)
    assert shown.due(LOOK_S) == LOOK_S + RETRY_S, "the directory may come back"


def test_a_status_that_could_not_be_written_is_written_later(
    shown: Presence, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as full:
        full.setattr(discovery_files, "write_whole", lambda *_: os.open("/dev/null/no", os.O_RDONLY))
        shown.write_status(ME, {}, None)
    assert shown.due(1.0) == 1.0 + RETRY_S
    assert shown.look(1.0 + RETRY_S)

    assert json.loads((tmp_path / STATUS).read_bytes())["learners"] == {}
    assert shown.due(2.0) == LOOK_S


# -- the journal -------------------------------------------------------------------------------------------------------


def test_a_journal_that_was_removed_is_written_again(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    journal = Journal(path)
    journal.append(WantedSeen(revision=1))
    path.unlink()
    journal.append(WantedSeen(revision=2))
    journal.renew()
    journal.append(WantedSeen(revision=3))

    assert [(fact.n, getattr(fact, "revision", None)) for fact in read_facts(path)[0]] == [(0, 1), (1, 2), (2, 3)]
    journal.close()


def test_foreign_journal_lines_damage_no_fact(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    journal = Journal(path)
    journal.append(WantedSeen(revision=1))
    with path.open("ab") as other:
        other.write(b"half a line")
    journal.append(WantedSeen(revision=2))
    journal.close()

    assert path.read_bytes().splitlines()[1] == b"half a line"
    assert [getattr(fact, "revision", None) for fact in Journal(path).earlier] == [1, 2]


def test_a_lost_journal_gives_no_number_again_that_was_read(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "journal.jsonl")
    journal.number_from(40)
    first = journal.append(WantedSeen(revision=1))
    journal.number_from(7)

    assert (first.n, journal.append(WantedSeen(revision=2)).n) == (40, 41)
    journal.close()
