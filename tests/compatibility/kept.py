"""The archives of former releases: what they hold, and where a test unpacks one."""

from __future__ import annotations

import getpass
import json
import sqlite3
import sys
import tarfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.compatibility.make import KEPT, OWNER, PYTHON, ROOT, text_columns

__all__ = ["ARCHIVES", "Kept", "unpack"]

ARCHIVES = sorted(KEPT.glob("*.tar.xz"))


@dataclass(frozen=True)
class Kept:
    """A pool directory that a former release wrote, as if it had been written here."""

    pool: Path
    files: Path
    """Stored files of kinds that the pool does not have."""
    results: dict[str, Any]
    """By name of a program: its result."""
    python: str
    """The Python that wrote it: only that one loads functions that travelled by value."""

    @property
    def is_of_this_python(self) -> bool:
        return self.python == sys.implementation.cache_tag

    def job_dir(self, job: str) -> Path:
        return self.pool / "jobs" / job

    def halted(self, name: str) -> str:
        """Return the job of a program that was halted in mid-training."""
        [found] = [
            path.name
            for path in (self.pool / "jobs").glob(f"{name}-*")
            if '"halted"' in (path / "journal.jsonl").read_text()
        ]
        return found


def unpack(archive: Path, folder: Path, *, pool: Path | None = None, work: Path | None = None) -> Kept:
    """Unpack an archive into `folder`, or its pool into `pool`; jobs have `work` as their working directory."""
    pool, work = pool or folder / "pool", work or folder / "work"
    names = {f"{ROOT}/pool": str(pool), f"{ROOT}/work": str(work), PYTHON: sys.executable, OWNER: getpass.getuser()}
    work.mkdir(parents=True, exist_ok=True)
    with tarfile.open(archive) as packed:
        for entry in packed:
            file = packed.extractfile(entry)
            assert file is not None
            top, _, rest = entry.name.partition("/")
            path = pool / rest if top == "pool" else folder / entry.name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(_put_names(file.read(), names))
    _put_names_into_store(pool / "store.sqlite3", names)
    expected = json.loads((folder / "expected.json").read_text())
    return Kept(pool, folder / "files", expected["results"], expected["python"])


def _put_names(data: bytes, names: dict[str, str]) -> bytes:
    try:
        text = data.decode()
    except UnicodeDecodeError:  # a pickle, an archive or the store
        return data
    for name, value in names.items():
        text = text.replace(name, value)
    return text.encode()


def _put_names_into_store(path: Path, names: dict[str, str]) -> None:
    db = sqlite3.connect(path, isolation_level=None)
    for table, column in text_columns(db):
        for name, value in names.items():
            db.execute(f'UPDATE "{table}" SET "{column}" = replace("{column}", ?, ?)', (name, value))
    db.close()
