"""Storage below a directory: atomic, resumable, and never outside."""

from __future__ import annotations

import os
from hashlib import sha256
from pathlib import Path

import pytest

from jupyter_dlaas.runtime.link.storage import BytesSource, DirectoryStorage, FileSource, PathRefused, sha256_of

DATA = b"0123456789" * 100
HASH = sha256(DATA).hexdigest()


def store(storage: DirectoryStorage, path: str, data: bytes = DATA, **how: bool) -> None:
    assert storage.begin(path, len(data), sha256(data).hexdigest(), is_executable=how.get("is_executable", False)) == 0
    storage.write(path, sha256(data).hexdigest(), data)
    assert storage.finish(path, sha256(data).hexdigest())


def test_a_file_is_placed_whole_and_recognised_later(tmp_path: Path) -> None:
    storage = DirectoryStorage(tmp_path)
    assert storage.begin("a/b/f", len(DATA), HASH, is_executable=True) == 0
    storage.write("a/b/f", HASH, DATA[:500])
    assert not (tmp_path / "a").exists()
    storage.write("a/b/f", HASH, DATA[500:])
    assert storage.finish("a/b/f", HASH)

    assert (tmp_path / "a/b/f").read_bytes() == DATA
    assert (tmp_path / "a/b/f").stat().st_mode & 0o777 == 0o700
    assert storage.begin("a/b/f", len(DATA), HASH, is_executable=False) is None
    assert DirectoryStorage(tmp_path).begin("a/b/f", len(DATA), HASH, is_executable=False) is None
    assert DirectoryStorage(tmp_path).begin("a/b/f", len(DATA), "0" * 64, is_executable=False) == 0


def test_an_incomplete_file_resumes_in_another_process(tmp_path: Path) -> None:
    former = DirectoryStorage(tmp_path)
    former.begin("f", len(DATA), HASH, is_executable=False)
    former.write("f", HASH, DATA[:300])
    former.close()

    storage = DirectoryStorage(tmp_path)
    assert storage.begin("f", len(DATA), HASH, is_executable=False) == 300
    storage.write("f", HASH, DATA[300:])
    assert storage.finish("f", HASH)
    assert (tmp_path / "f").read_bytes() == DATA


def test_damaged_bytes_are_dropped(tmp_path: Path) -> None:
    storage = DirectoryStorage(tmp_path)
    (tmp_path / "f").write_bytes(b"former")
    storage.begin("f", len(DATA), HASH, is_executable=False)
    storage.write("f", HASH, b"x" * len(DATA))
    assert not storage.finish("f", HASH)

    assert (tmp_path / "f").read_bytes() == b"former"
    assert storage.begin("f", len(DATA), HASH, is_executable=False) == 0


def test_a_newer_version_replaces_one_under_way(tmp_path: Path) -> None:
    storage = DirectoryStorage(tmp_path)
    storage.begin("f", len(DATA), HASH, is_executable=False)
    storage.write("f", HASH, DATA[:300])
    store(storage, "f", b"newer")

    assert (tmp_path / "f").read_bytes() == b"newer"
    assert list((tmp_path / ".link").iterdir()) == []


def test_streams_continue_at_their_size(tmp_path: Path) -> None:
    storage = DirectoryStorage(tmp_path)
    assert storage.stream_size("learner-0/stdout.log") == 0
    assert list(tmp_path.iterdir()) == []
    storage.append("learner-0/stdout.log", b"abc")
    assert DirectoryStorage(tmp_path).stream_size("learner-0/stdout.log") == 3


@pytest.mark.parametrize("kind", ["folder link", "file link", "fifo", "directory", "file as folder"])
def test_nothing_is_written_outside_or_into_special_files(tmp_path: Path, kind: str) -> None:
    root, outside = tmp_path / "root", tmp_path / "outside"
    root.mkdir()
    outside.mkdir()
    (outside / "f").write_bytes(b"untouched")
    match kind:
        case "folder link":
            (root / "a").symlink_to(outside)
        case "file link":
            (root / "a").mkdir()
            (root / "a/f").symlink_to(outside / "f")
        case "fifo":
            (root / "a").mkdir()
            os.mkfifo(root / "a/f")
        case "directory":
            (root / "a/f").mkdir(parents=True)
        case _:
            (root / "a").write_bytes(b"")
    storage = DirectoryStorage(root)

    with pytest.raises(PathRefused):
        storage.stream_size("a/f")
    with pytest.raises(PathRefused):
        storage.append("a/f", b"x")
    with pytest.raises(PathRefused):
        storage.begin("a/f", len(DATA), HASH, is_executable=False)
    assert (outside / "f").read_bytes() == b"untouched"
    assert [path.name for path in outside.iterdir()] == ["f"]


def test_only_accepted_paths_are_written(tmp_path: Path) -> None:
    storage = DirectoryStorage(tmp_path, lambda path: path.startswith("learner-1/"))
    storage.append("learner-1/stdout.log", b"x")
    for path in ("wanted.json", "learner-2/result.json"):
        with pytest.raises(PathRefused, match="not the peer's to write"):
            storage.append(path, b"x")
        with pytest.raises(PathRefused, match="not the peer's to write"):
            storage.begin(path, 1, HASH, is_executable=False)


def test_sources_read_the_same_bytes(tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(DATA)
    source = FileSource(tmp_path / "f")
    (tmp_path / "f").unlink()

    assert source.size() == BytesSource(DATA).size() == len(DATA)
    assert source.read(990, 100) == BytesSource(DATA).read(990, 100) == DATA[990:]
    assert sha256_of(source) == sha256_of(BytesSource(DATA)) == HASH
    source.close()
