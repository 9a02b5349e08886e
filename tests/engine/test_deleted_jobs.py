"""Deleted jobs: no byte of them is left on any page of the store's files."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest

from dlaas_server.core.model.job import Job
from dlaas_server.store import Batch, Inserted, Store
from jupyter_dlaas.wire.codec import Json
from jupyter_dlaas.wire.protocol import JobSpec

SECRET = "canary-0123456789"


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


def inserted(number: int) -> Batch:
    spec = JobSpec()
    job = Job(id=f"a-{number}", number=number, owner="me", spec=spec, submitted_s=0.0, wish=1, unit="GPU", priority=0)
    payload: dict[str, Json] = {"source": "x" * 3000, "files": [], "environment": {"TOKEN": SECRET}}
    return Batch(inserted=[Inserted(job, number, payload, f"key-{number:05}", "digest")])


def is_in_files(folder: Path) -> bool:
    return any(SECRET.encode() in path.read_bytes() for path in folder.iterdir())


@pytest.mark.anyio
async def test_deletion_leaves_no_bytes_of_a_job(tmp_path: Path) -> None:
    store = await Store.open(tmp_path / "store.sqlite3")
    for number in range(1, 6):
        await store.commit(inserted(number))
    assert is_in_files(tmp_path)

    await store.commit(Batch(deleted=[f"a-{number}" for number in range(1, 6)]))

    assert not is_in_files(tmp_path)
    await store.close()


@pytest.mark.anyio
async def test_opening_an_older_store_clears_its_unused_pages(tmp_path: Path) -> None:
    store = await Store.open(tmp_path / "store.sqlite3")
    for number in range(1, 6):
        await store.commit(inserted(number))
    await store.close()
    with sqlite3.connect(tmp_path / "store.sqlite3") as db:  # as versions before secure_delete left it
        db.execute("PRAGMA secure_delete = OFF")
        db.execute("PRAGMA application_id = 0")
        db.execute("DELETE FROM payloads")
        db.execute("DELETE FROM jobs")
    db.close()
    assert is_in_files(tmp_path)

    store = await Store.open(tmp_path / "store.sqlite3")

    assert not is_in_files(tmp_path)
    await store.close()
