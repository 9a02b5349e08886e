"""A store on a disk that is really full: jobs can be halted, cancelled and deleted, whoever takes the freed space."""

from __future__ import annotations

import asyncio
import os
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest

from dlaas_server.core.model.job import Intent
from dlaas_server.pools.local.job_folder import JobFolder
from dlaas_server.store import Batch, Event, Inserted, Store, StoreError
from jupyter_dlaas.jobdir.journal_file import Journal, read_facts
from jupyter_dlaas.wire.journal import Goal, JobClosed, JobHalted, LearnerDown, MemberWanted, Wanted, WantedSeen
from jupyter_dlaas.wire.protocol import JobSpec, State
from tests.core.builders import job

JOBS = 6


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "disk"
    folder.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=8m,mode=700", "tmpfs", folder], check=True)
    yield folder
    subprocess.run(["umount", "--lazy", folder], check=True)


def fill(disk: Path) -> None:
    """Take all free space, as a program that writes without end."""
    fd = os.open(disk / "filler", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    for size in (1 << 16, 1 << 12, 1):
        with suppress(OSError):
            while True:
                os.write(fd, bytes(size))
    os.close(fd)


def changed(number: int, row: int, **fields: object) -> Batch:
    event = Event(row, 1.0, f"job-{number}", "halt", "You asked for a halt: checkpoint, then the devices are freed.")
    return Batch(updated={f"job-{number}": (row, replace(job(number), **fields))}, events=[event])  # type: ignore[arg-type]


async def filled(disk: Path) -> Store:
    store = await Store.open(disk / "store.sqlite3")
    for number in range(1, JOBS + 1):
        await store.commit(Batch(inserted=[Inserted(job(number), number, {}, f"key-{number}", "digest")]))
    fill(disk)
    return store


def test_jobs_leave_a_full_disk_while_others_fill_it(disk: Path) -> None:
    async def act() -> None:
        store = await filled(disk)
        for row in range(10, 60):
            await store.commit(changed(1, row, step=row))
            fill(disk)
        for payload in ({"source": "x" * (1 << 19)}, {}):
            new = Inserted(job(JOBS + 1), 60, payload, "key", "digest")
            with pytest.raises(StoreError, match="is full: delete ended jobs"):
                await store.commit(Batch(inserted=[new]))
        for number in (2, 3):
            await store.commit(changed(number, 60 + number, goal=Goal.HALT, intent=Intent.HALT))
            fill(disk)
        await store.commit(changed(4, 70, state=State.CANCELLED, intent=Intent.CANCEL))
        await store.commit(Batch(deleted=["job-5"]))
        fill(disk)
        await store.commit(changed(6, 80, goal=Goal.HALT, intent=Intent.HALT))
        await store.close()

        again = await Store.open(disk / "store.sqlite3")
        jobs = (await again.load()).jobs
        await again.close()
        assert sorted(jobs) == ["job-1", "job-2", "job-3", "job-4", "job-6"]
        assert [str(jobs[f"job-{n}"].intent) for n in (1, 2, 3, 4, 6)] == ["run", "halt", "halt", "cancel", "halt"]
        assert jobs["job-1"].step == 59

    asyncio.run(act())


def test_a_killed_engine_starts_again_on_a_full_disk(disk: Path) -> None:
    async def act() -> None:
        store = await filled(disk)
        for part in ("", "-wal", ".reserve"):  # as a kill leaves them: the log is not written into the store
            (disk / f"store.sqlite3{part}").rename(disk / f"killed.sqlite3{part}")
        fill(disk)
        again = await Store.open(disk / "killed.sqlite3")
        await again.commit(changed(1, 10, goal=Goal.HALT, intent=Intent.HALT))
        jobs = (await again.load()).jobs
        assert len(jobs) == JOBS
        assert jobs["job-1"].goal is Goal.HALT
        await again.close()
        await store.close()

    asyncio.run(act())


def test_a_journal_takes_the_facts_of_a_leaving_job(disk: Path) -> None:
    path = disk / "journal.jsonl"
    journal = Journal(path)
    for number in range(200):
        journal.append(WantedSeen(revision=number))
    fill(disk)
    for member in range(50):
        journal.append(LearnerDown(member=member, generation=1, code=0))
    journal.append(JobHalted(step=8, has_checkpoint=True))
    journal.append(JobClosed(why="halted"))

    assert journal.flush(), "nothing waits for space"
    assert isinstance(read_facts(path)[0][-1], JobClosed)
    info = path.stat()
    assert 512 * info.st_blocks < info.st_size + 8192, "the rest of the reserved space is given back"
    journal.close()


def test_document_is_delivered_on_a_full_disk(disk: Path) -> None:
    folder = JobFolder("a-1", disk / "a-1")
    folder.create("ana", JobSpec(name="a"), {})
    documents = [Wanted(revision=n, goal=goal, generation=1, grace_s=30.0) for n, goal in enumerate(Goal)]
    folder.write_wanted(replace(documents[0], members=(MemberWanted(member=0, node="n1"),)))
    fill(disk)
    for document in (*documents, *reversed(documents)):
        folder.write_wanted(document)
        assert folder.wanted() == document
