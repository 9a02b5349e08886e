"""Recovery of a lost or damaged store: jobs are rebuilt from their directories, and no number is reused."""

from __future__ import annotations

import asyncio
import errno
import json
import os
import sqlite3
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path

import pytest

from dlaas_server.core.forecast.track_record import Forecast
from dlaas_server.core.lifecycle.reconcile import wanted
from dlaas_server.core.lifecycle.recovery import StoredJob, recovered
from dlaas_server.core.model.job import Intent, Job, StartEstimate
from dlaas_server.engine import recovery
from dlaas_server.engine.service import main
from dlaas_server.pools.base import PoolError
from dlaas_server.pools.config import PoolConfig
from dlaas_server.pools.local import LocalPool
from dlaas_server.pools.local.job_folder import JobFolder
from dlaas_server.store import Batch, Inserted, Loaded, Store, StoreError, StoreTooNew, schema, sqlite
from dlaas_server.store.sqlite import RESERVE_BYTES
from jupyter_dlaas.runtime.system.process import identity
from jupyter_dlaas.wire.codec import encode
from jupyter_dlaas.wire.journal import (
    FACT_TYPES,
    JOURNAL_FORMAT,
    SPEC_FORMAT,
    Fact,
    FactKind,
    Goal,
    MemberWanted,
    Wanted,
    fact_to_line,
)
from jupyter_dlaas.wire.protocol import Cause, Failure, JobSpec, State
from tests.core.builders import job, with_fact

KILLED = Failure(cause=Cause.YOUR_CODE, code="shape", what="ValueError: no", advice="See the line.")
ESTIMATE = StartEstimate(at_s=1.0, low_s=2.0, high_s=9.0)
RUN = Wanted(
    revision=7,
    goal=Goal.RUN,
    generation=3,
    members=(
        MemberWanted(member=4, node="vm", devices=("vm/0",)),
        MemberWanted(member=5, node="vm", devices=("vm/1",)),
    ),
)


Kinds = tuple[tuple[FactKind, dict[str, object]], ...]


def journal(*kinds: tuple[FactKind, dict[str, object]]) -> list[Fact]:
    return [FACT_TYPES[kind](n=n, at_s=100.0 + n, **fields) for n, (kind, fields) in enumerate(kinds)]


TRAINED: Kinds = (
    (FactKind.GUARDIAN_UP, {"pid": 1}),
    (FactKind.SEEN, {"revision": 7}),
    (FactKind.LEARNER_UP, {"member": 4, "rank": 0, "generation": 3}),
    (FactKind.LEARNER_UP, {"member": 5, "rank": 1, "generation": 3}),
    (FactKind.GENERATION, {"generation": 3, "step": 40}),
    (FactKind.CHECKPOINT, {"generation": 3, "step": 60}),
)
FIRST_LIFE: Kinds = (
    (FactKind.GENERATION, {"generation": 1, "step": 0}),
    (FactKind.CHECKPOINT, {"generation": 1, "step": 40}),
    (FactKind.HALTED, {"step": 40, "has_checkpoint": True}),
    (FactKind.CLOSED, {"why": "halted"}),
)


def taken_up(facts: list[Fact], document: Wanted | None = RUN) -> Job:
    spec = JobSpec(name="t", learners_min=1, learners_max=4)
    found = StoredJob(
        id="t-3", owner="ana", spec=spec, submitted_s=9.0, wanted=document, facts=facts, journal_bytes=99, next_member=2
    )
    return recovered(found, "CPU slot")


def test_recovered_running_job_keeps_its_devices_and_continues() -> None:
    found = taken_up(journal(*FIRST_LIFE, *TRAINED))

    assert (found.state, found.intent, found.is_closed, found.wish) == (State.PROCESSING, Intent.RUN, False, 2)
    assert [(m.member, m.seat.devices) for m in found.gang] == [(4, ("vm/0",)), (5, ("vm/1",))]
    assert (found.next_member, found.checkpoint_step, found.facts_read, found.journal_offset) == (6, 60, 10, 99)
    document = wanted(found)
    assert document is not None
    assert (document.revision, document.generation, len(document.members)) == (7, 3, 2)
    assert with_fact(found, FactKind.COMPLETED, results=("model",)).state is State.COMPLETED


@pytest.mark.parametrize(
    ("end", "document", "state"),
    [
        ([(FactKind.COMPLETED, {"results": ("m",)}), (FactKind.CLOSED, {"why": "completed"})], RUN, State.COMPLETED),
        ([(FactKind.HALTED, {"step": 60, "has_checkpoint": True}), (FactKind.CLOSED, {})], RUN, State.HALTED),
        ([(FactKind.LOST, {"generation": 3, "failure": KILLED}), (FactKind.CLOSED, {})], None, State.FAILED),
        ([(FactKind.CLOSED, {"why": "stopped"})], None, State.FAILED),
    ],
)
def test_recovered_closed_job_has_the_end_of_its_journal(
    end: list[tuple[FactKind, dict[str, object]]], document: Wanted | None, state: State
) -> None:
    found = taken_up(journal(*FIRST_LIFE, *TRAINED, *end), document)

    assert (found.state, found.is_closed, found.members) == (state, True, ())
    assert found.revision == 7
    assert found.checkpoint_step == 60
    assert wanted(found) is None


def test_recovered_leaving_job_still_leaves() -> None:
    failing = taken_up(
        journal(*TRAINED, (FactKind.LOST, {"generation": 3, "failure": KILLED})),
        Wanted(revision=8, goal=Goal.STOP, generation=3),
    )
    assert (failing.state, failing.failure, failing.is_closed) == (State.FAILED, KILLED, False)
    halting = taken_up(journal(*TRAINED), Wanted(revision=8, goal=Goal.HALT, generation=3))
    assert (halting.intent, halting.goal) == (Intent.HALT, Goal.HALT)
    assert with_fact(halting, FactKind.CLOSED, why="halted").state is State.HALTED

    without_document = taken_up(journal(*TRAINED), None)
    document = wanted(without_document)
    assert document is not None
    assert (document.goal, document.revision) == (Goal.HALT, 8)


# -- the store --------------------------------------------------------------------------------------------------------


def lay_out(pool: Path, name: str, facts: list[Fact], document: Wanted | None = RUN) -> Path:
    """Write a job's directory as engines and guardians of all versions do."""
    folder = pool / "jobs" / name
    (folder / "files").mkdir(parents=True)
    about = {"id": name, "spec": encode(JobSpec(name=name.rpartition("-")[0], learners_max=4)), "owner": "ana"}
    (folder / "spec.json").write_text(json.dumps(about))
    (folder / "environment.json").write_text('{"HOME": "/h"}')
    (folder / "train.py").write_text("print(1)\n")
    (folder / "files" / "data").write_bytes(b"\xff\x00")
    (folder / "journal.jsonl").write_bytes(b"".join(map(fact_to_line, facts)))
    if document is not None:
        (folder / "wanted.json").write_text(json.dumps(encode(document)))
    return folder


def load(pool: Path) -> tuple[Loaded, list[dict[str, object]]]:
    """Open the store as an engine does; with the payloads of all jobs."""

    async def act() -> tuple[Loaded, list[dict[str, object]]]:
        store = await Store.open(pool / "store.sqlite3")
        local = LocalPool(pool, config=PoolConfig(), uses_zygote=False)
        await local.open(lambda job, stream: None, lambda: None)
        try:
            found = await recovery.load(store, local, 500.0)
            return found, [dict(await store.payload(job)) for job in found.jobs]
        finally:
            await local.close()
            await store.close()

    return asyncio.run(act())


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:100])


@pytest.mark.parametrize("harm", [Path.unlink, truncate, lambda path: path.write_bytes(b"\xff" * 4096)])
def test_jobs_of_a_lost_store_are_taken_up_once(tmp_path: Path, harm: Callable[[Path], object]) -> None:
    async def begin() -> None:
        store = await Store.open(tmp_path / "store.sqlite3")
        await store.commit(Batch(inserted=[Inserted(job(9), 1, {}, "key", "digest")]))
        await store.commit(Batch(deleted=["job-9"]))
        await store.close()

    asyncio.run(begin())
    harm(tmp_path / "store.sqlite3")
    lay_out(tmp_path, "t-3", journal(*TRAINED))
    lay_out(tmp_path, "u-4", journal(*TRAINED)).joinpath("spec.json").write_text("{")
    first, payloads = load(tmp_path)

    assert {name: found.state for name, found in first.jobs.items()} == {
        "t-3": State.PROCESSING,
        "u-4": State.PROCESSING,
    }
    assert first.last_number == 9, "the number of a job that was deleted is not given again"
    assert payloads[0]["source"] == "print(1)\n"
    assert payloads[0]["environment"] == {"HOME": "/h"}
    assert [(tmp_path / "blobs" / file["sha256"]).read_bytes() for file in payloads[0]["files"]] == [b"\xff\x00"]  # type: ignore[attr-defined]
    (_, notice), *others = first.notices
    assert "2 jobs were recovered from disk: t-3, u-4." in notice
    assert not others
    again, _ = load(tmp_path)
    assert (again.jobs, again.notices) == (first.jobs, first.notices)


def test_stored_fields_are_read_under_their_former_names(tmp_path: Path) -> None:
    async def write() -> None:
        store = await Store.open(tmp_path / "store.sqlite3")
        waiting = replace(job(1), is_wait_recorded=True, start_estimate=ESTIMATE)
        started = Forecast(job="job-0", estimate=ESTIMATE, started_s=5.0)
        await store.commit(Batch(inserted=[Inserted(waiting, 1, {}, "key", "digest")], forecasts=[started]))
        await store.close()

    asyncio.run(write())
    db = sqlite3.connect(tmp_path / "store.sqlite3")
    db.execute("UPDATE jobs SET body = replace(body, 'is_wait_recorded', 'is_told')")
    db.execute("UPDATE jobs SET body = replace(body, 'start_estimate', 'said')")
    db.execute("UPDATE forecasts SET body = replace(body, 'estimate', 'said')")
    db.commit()
    db.close()

    loaded = load(tmp_path)[0]
    assert (loaded.jobs["job-1"].is_wait_recorded, loaded.jobs["job-1"].start_estimate) == (True, ESTIMATE)
    assert [forecast.estimate for forecast in loaded.forecasts] == [ESTIMATE]


def test_damaged_rows_do_not_stop_the_engine(tmp_path: Path) -> None:
    async def begin() -> None:
        store = await Store.open(tmp_path / "store.sqlite3")
        jobs = [job(1), job(2), job(3)]
        payload = {"source": "x", "files": [], "environment": {}}
        await store.commit(Batch(inserted=[Inserted(one, one.number, payload, one.id, "d") for one in jobs]))  # type: ignore[arg-type]
        await store.close()

    asyncio.run(begin())
    lay_out(tmp_path, "job-1", journal(*TRAINED))
    db = sqlite3.connect(tmp_path / "store.sqlite3")
    db.execute("UPDATE jobs SET body = '{' WHERE id != 'job-3'")
    db.execute("INSERT INTO settings (one, body) VALUES (1, '[')")
    db.execute("INSERT INTO forecasts (job, body) VALUES ('job-1', '')")
    db.commit()
    db.close()
    found, _ = load(tmp_path)

    assert {name: one.state for name, one in found.jobs.items()} == {
        "job-1": State.PROCESSING,
        "job-2": State.QUEUED,  # it had no directory, so nothing of it has run
        "job-3": State.QUEUED,
    }
    assert found.last_number == 3


def test_the_directory_of_a_deleted_job_is_removed(tmp_path: Path) -> None:
    async def begin() -> None:
        store = await Store.open(tmp_path / "store.sqlite3")
        await store.commit(Batch(inserted=[Inserted(job(1), 1, {}, "key", "digest")]))
        await store.commit(Batch(deleted=["job-1"]))
        await store.close()

    asyncio.run(begin())
    folder = lay_out(tmp_path, "job-1", journal(*FIRST_LIFE))
    found, _ = load(tmp_path)

    assert not found.jobs
    assert not folder.exists()


def test_a_journal_of_a_newer_format_is_refused(tmp_path: Path) -> None:
    folder = lay_out(tmp_path, "t-3", journal((FactKind.GUARDIAN_UP, {"pid": 1, "format": JOURNAL_FORMAT + 1})))
    with pytest.raises(PoolError, match=rf"{folder}/journal.jsonl has format 2, .* up to 1: .* `pip install --upgrade"):
        JobFolder("t-3", folder).facts(0)
    found, _ = load(tmp_path)
    assert not found.jobs
    assert "Unreadable, so left unchanged: t-3." in found.notices[0][1]


def test_a_spec_of_a_newer_format_is_refused(tmp_path: Path) -> None:
    folder = lay_out(tmp_path, "t-3", journal(*FIRST_LIFE))
    path = folder / "spec.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"format": SPEC_FORMAT + 1}))
    with pytest.raises(PoolError, match=rf"{path} has format 2, .* up to 1: .* `pip install --upgrade"):
        JobFolder("t-3", folder).spec()
    found, _ = load(tmp_path)

    assert not found.jobs
    assert "Unreadable, so left unchanged: t-3." in found.notices[0][1]


def test_stores_of_former_versions_load(tmp_path: Path) -> None:
    db = sqlite3.connect(tmp_path / "store.sqlite3")
    db.executescript(f"{schema.MIGRATIONS[0]} PRAGMA user_version = 1;")
    body = {
        "id": "a-3",
        "number": 3,
        "owner": "ana",
        "submitted_s": 1.0,
        "wish": 1,
        "state": "HALTED",
        "intent": "halt",
    }
    values = ("a-3", 3, "ana", "a", 7, '{"name": "a"}', json.dumps(body | {"intent": "halt", "checkpoint_step": 40}))
    db.execute("INSERT INTO jobs VALUES (?, ?, ?, ?, ?, ?, ?)", values)
    db.execute("INSERT INTO payloads VALUES ('a-3', '{}')")
    db.commit()
    db.close()
    found, _ = load(tmp_path)

    assert (found.jobs["a-3"].state, found.jobs["a-3"].checkpoint_step) == (State.HALTED, 40)
    assert (found.last_number, found.notices) == (3, ())
    (tmp_path / "store.sqlite3").unlink()
    assert load(tmp_path)[0].last_number == 3


def test_a_store_of_a_newer_version_is_refused(tmp_path: Path) -> None:
    db = sqlite3.connect(tmp_path / "store.sqlite3")
    db.execute(f"PRAGMA user_version = {len(schema.MIGRATIONS) + 1}")
    db.close()
    with pytest.raises(StoreTooNew, match="written by a newer jupyter_dlaas"):
        load(tmp_path)


# -- disks ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "frees",
    [
        Batch(deleted=["job-1"]),
        Batch(updated={"job-1": (2, replace(job(1), goal=Goal.HALT, intent=Intent.HALT))}),
        Batch(updated={"job-1": (2, replace(job(1), state=State.CANCELLED, intent=Intent.CANCEL))}),
    ],
    ids=["delete", "halt", "cancel"],
)
def test_jobs_can_be_ended_on_a_full_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, frees: Batch) -> None:
    async def act() -> None:
        store = await Store.open(tmp_path / "store.sqlite3")
        reserve = tmp_path / "store.sqlite3.reserve"
        assert reserve.stat().st_size == RESERVE_BYTES
        await store.commit(Batch(inserted=[Inserted(job(1), 1, {}, "key", "digest")]))

        def write(db: sqlite3.Connection, batch: Batch, full: Iterable[str]) -> None:
            if reserve.exists():
                raise OSError(errno.ENOSPC, "No space left on device")
            real_write(db, batch, full)

        monkeypatch.setattr(sqlite, "_write", write)
        with pytest.raises(StoreError, match="is full: delete ended jobs"):
            await store.commit(Batch(updated={"job-1": (2, job(1))}))
        assert reserve.exists()
        await store.commit(frees)
        assert not reserve.exists()
        await store.close()

    real_write = sqlite._write
    asyncio.run(act())


def refused(pool: Path, capfd: pytest.CaptureFixture[str]) -> str:
    """Start an engine that cannot run; returns the one line that it says."""
    assert main(["--pool-dir", str(pool)]) == 1
    err = capfd.readouterr().err
    assert "Traceback" not in err
    return err.splitlines()[-1]


def test_engine_that_cannot_start_prints_the_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("")
    assert "its directory is not writable" in refused(tmp_path / "file" / "pool", capfd)

    def no_locks(*_: object) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr("fcntl.flock", no_locks)
    assert "its file system does not support locks (No locks available)" in refused(tmp_path / "pool", capfd)


def test_a_removed_lock_file_lets_no_second_engine_in(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    first = identity(os.getppid())
    assert first is not None
    (tmp_path / "engine.json").write_text(json.dumps({"pid": first.pid, "start": first.start, "boot": first.boot}))

    assert main(["--pool-dir", str(tmp_path)]) == 0
    assert "another engine already serves" in capfd.readouterr().err
