"""Collection of unused blobs and old request keys; limits per user."""

from __future__ import annotations

import asyncio
import hashlib
import os
from pathlib import Path

import pytest

from dlaas_server.core.model.cluster import Device, Node
from dlaas_server.core.model.job import Job
from dlaas_server.core.planning.user_limits import UserLimits
from dlaas_server.engine.blobs import Blobs
from dlaas_server.rest.routes import Change
from dlaas_server.store import Batch, Inserted, Store, schema
from jupyter_dlaas.wire.codec import Json
from jupyter_dlaas.wire.protocol import JobSpec, NotAllowed
from tests.engine.driving import engine_on, submit
from tests.pools.simulated.simulated_pool import Script, SimulatedPool
from tests.pools.simulated.virtual_clock import VirtualClock

NAMES = {name: hashlib.sha256(name.encode()).hexdigest() for name in ("shared", "own", "waiting", "old")}


def inserted(number: int, *names: str) -> Batch:
    job = Job(id=f"a-{number}", number=number, owner="me", spec=JobSpec(), submitted_s=0.0, wish=1)
    files: list[Json] = [{"path": f"files/{name}", "text": None, "sha256": NAMES[name]} for name in names]
    payload: dict[str, Json] = {
        "source": "",
        "files": [*files, {"path": "files/t", "text": "x", "sha256": None}],
        "environment": {},
    }
    return Batch(inserted=[Inserted(job, number, payload, f"key-{number:05}", "digest")])


def put(blobs: Blobs, name: str) -> None:
    blobs.folder.mkdir(exist_ok=True)
    blobs.path(NAMES[name]).write_bytes(b"data")
    blobs.hold(NAMES[name])


def kept(blobs: Blobs) -> set[str]:
    there = {path.name for path in blobs.folder.iterdir()}
    return {name for name, sha256 in NAMES.items() if sha256 in there}


async def bytes_that_no_job_needs(folder: Path) -> None:
    store = await Store.open(folder / "store.sqlite3")
    now_s = [0.0]
    blobs = Blobs(folder / "blobs", clock=lambda: now_s[0])
    for name in ("shared", "own", "waiting"):
        put(blobs, name)
    await store.commit(inserted(1, "shared", "own"))
    await store.commit(inserted(2, "shared"))
    blobs.stored([NAMES["shared"], NAMES["own"]])
    now_s[0] += 10.0
    assert await blobs.collect(store) == 0

    await store.commit(Batch(deleted=["a-1"]))
    assert await blobs.collect(store) == 1
    assert kept(blobs) == {"shared", "waiting"}, "a submit that names the bytes may be on its way"

    now_s[0] += 2 * 86_400.0
    await blobs.collect(store)
    assert kept(blobs) == {"shared"}

    await store.commit(Batch(deleted=["a-2"]))
    blobs.hold(NAMES["shared"])  # another submit is about to name them
    await blobs.collect(store)
    assert kept(blobs) == {"shared"}
    await store.close()


def test_uploaded_bytes_leave_with_the_last_job_that_needs_them(tmp_path: Path) -> None:
    asyncio.run(bytes_that_no_job_needs(tmp_path))


async def bytes_of_an_earlier_engine(folder: Path) -> None:
    store = await Store.open(folder / "store.sqlite3")
    put(Blobs(folder / "blobs"), "old")
    put(Blobs(folder / "blobs"), "waiting")
    blobs = Blobs(folder / "blobs")
    os.utime(blobs.path(NAMES["old"]), (0, 0))
    (blobs.folder / ".partial-1").write_bytes(b"x")
    os.utime(blobs.folder / ".partial-1", (0, 0))

    put(blobs, "own")
    await store.commit(inserted(1, "own"))
    again = Blobs(folder / "blobs")

    assert await again.collect(store) == 2
    assert kept(again) == {"own", "waiting"}

    await store.commit(Batch(deleted=["a-1"]))
    assert await again.collect(store) == 1
    assert kept(again) == {"waiting"}, "its submit may be on its way"
    await store.close()


def test_orphaned_blobs_are_removed_after_an_hour(tmp_path: Path) -> None:
    asyncio.run(bytes_of_an_earlier_engine(tmp_path))


async def keys_of_deleted_jobs(folder: Path) -> None:
    store = await Store.open(folder / "store.sqlite3")
    for number in range(1, 8):
        await store.commit(inserted(number))

    await store.commit(Batch(deleted=["a-2", "a-3", "a-4", "a-6", "a-7"]))

    keys = sorted(job for job, _ in (await store.load()).keys.values())
    assert keys == ["a-1", "a-5", "a-6", "a-7"], "the newest, and those of jobs that are there"
    await store.close()


def test_keys_of_deleted_jobs_are_removed_but_the_newest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    statement = schema.DELETE_KEYS.replace(str(schema.KEYS_KEPT), "3")
    monkeypatch.setattr(schema, "COLLECT", (statement, schema.DELETE_FORECASTS))

    asyncio.run(keys_of_deleted_jobs(tmp_path))


async def users_and_their_limits(folder: Path) -> None:
    clock = VirtualClock(1000.0)
    node = Node(name="n1", devices=(Device(id="n1/0", index=0, kind="CPU"),), cpus=1.0)
    engine = await engine_on(folder, SimulatedPool([node], clock, script=Script(steps=10_000)), clock)
    await engine.submit()  # the only device is taken
    await engine.settle()
    engine.lifecycle.user_limits = UserLimits(queued=2, priority=100)

    async def ask(user: str, priority: int = 0) -> str:
        return (await engine.ask(engine.requests.submit(user, submit(priority=priority)))).id

    with pytest.raises(NotAllowed, match="101 exceeds 100"):
        await ask("bob", priority=101)
    jobs = [await ask("bob", priority=100), await ask("bob")]
    with pytest.raises(NotAllowed, match="2 waiting jobs; this pool allows 2 per user"):
        await ask("bob")
    with pytest.raises(NotAllowed, match="Ask a pool administrator"):
        await engine.ask(engine.requests.change("bob", jobs[1], Change(priority=500)))
    for _ in range(3):
        await ask("ana", priority=5000)  # runs the pool
    assert len(engine.lifecycle.jobs) == 6
    await engine.close()


def test_users_have_limits_on_waiting_jobs_and_priority(tmp_path: Path) -> None:
    asyncio.run(users_and_their_limits(tmp_path))
