"""The pool on this machine, with real guardians and learners, keeps the contract; and what only it has to keep."""

from __future__ import annotations

import asyncio
import errno
import os
import shutil
import signal
import stat
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import psutil
import pytest

import jupyter_dlaas
from dlaas_server.pools.base import JOURNAL, InterpreterMissing, Loss, PoolError, log_of
from dlaas_server.pools.config import PoolConfig
from dlaas_server.pools.devices import CpuSlots
from dlaas_server.pools.local import LocalPool, job_watch
from dlaas_server.pools.local import pool as local_pool
from dlaas_server.pools.local.job_folder import JobFolder
from jupyter_dlaas.runtime.fencing.lock import find_guardian
from jupyter_dlaas.runtime.system.inotify import Watch
from jupyter_dlaas.runtime.system.process import identity, is_alive, marked
from jupyter_dlaas.wire.journal import FactKind, Goal, LineDamaged, Wanted
from jupyter_dlaas.wire.protocol import JobSpec, NotFound, Refused
from tests.pools.contract import PoolContract
from tests.pools.local_rig import PROGRAM, LocalRig
from tests.pools.rig import ENDLESS, facts_of, kinds_of, wanted

pytestmark = pytest.mark.anyio

PACKAGE = Path(jupyter_dlaas.__file__).resolve().parent


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
async def rig(tmp_path: Path) -> AsyncIterator[LocalRig]:
    folder = tmp_path / "pool"
    one = LocalRig(folder, LocalPool(folder, config=PoolConfig(), probe=CpuSlots(4)))
    await one.open()
    yield one
    await one.pool.close()
    one.sweep()


class TestContract(PoolContract):
    """All promises, kept by real processes."""


def node(rig: LocalRig) -> str:
    return rig.pool.nodes()[0].name


async def start(rig: LocalRig, job: str) -> None:
    await rig.pool.act(job, wanted(node=node(rig)))

    async def is_training() -> bool:
        return FactKind.GENERATION in await kinds_of(rig.pool, job)

    await rig.until(is_training, f"{job} trains")


async def stop(rig: LocalRig, job: str) -> None:
    await rig.pool.act(job, wanted(99, (), goal=Goal.STOP, node=node(rig)))

    async def is_closed() -> bool:
        return FactKind.CLOSED in await kinds_of(rig.pool, job) and await rig.pool.is_guarded(job) is False

    await rig.until(is_closed, f"{job} is closed")


# ---- files -----------------------------------------------------------------------------------------------------------


async def test_only_the_owner_can_read_a_job_and_its_environment(rig: LocalRig) -> None:
    job = await rig.job()
    root = rig.root(job)

    assert stat.S_IMODE(root.stat().st_mode) == 0o700
    assert stat.S_IMODE((root / "environment.json").stat().st_mode) == 0o600
    assert rig.pool.directory(job) == str(root)


async def test_a_link_out_of_the_job_is_not_followed(rig: LocalRig, tmp_path: Path) -> None:
    job = await rig.job()
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "secret").write_text("canary")
    output = rig.root(job) / "output"
    output.mkdir(exist_ok=True)
    (output / "link").symlink_to(outside / "secret")
    (output / "folder").symlink_to(outside)
    (output / "inside").symlink_to("../train.py")

    for path in ("output/link", "output/folder/secret"):
        with pytest.raises(Refused):
            await rig.pool.get(job, path, 0, 100)
    assert b"step" in await rig.pool.get(job, "output/inside", 0, 1000)
    assert await rig.pool.files(job, "output") == {}


async def test_nothing_is_written_through_a_link(rig: LocalRig, tmp_path: Path) -> None:
    job = await rig.job()
    outside = tmp_path / "outside"
    outside.mkdir()
    (rig.root(job) / "files" / "folder").symlink_to(outside)

    with pytest.raises(Refused):
        await rig.pool.put(job, "files/folder/x", b"x")
    assert list(outside.iterdir()) == []


async def test_a_pipe_or_a_folder_is_no_file(rig: LocalRig) -> None:
    job = await rig.job()
    output = rig.root(job) / "output"
    output.mkdir(exist_ok=True)
    os.mkfifo(output / "pipe")

    for path in ("output/pipe", "output"):
        with pytest.raises(NotFound):
            await rig.pool.get(job, path, 0, 100)


async def test_full_disk_gives_a_clear_error(rig: LocalRig, monkeypatch: pytest.MonkeyPatch) -> None:
    job = await rig.job()

    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device", "train.py")

    monkeypatch.setattr("dlaas_server.pools.local.job_folder.write_whole", full)
    with pytest.raises(PoolError, match="the disk is full; free some space"):
        await rig.pool.put(job, "train.py", b"x")
    with pytest.raises(PoolError, match="the disk is full"):
        await rig.pool.act(job, wanted(node=node(rig)))
    with pytest.raises(PoolError, match="the disk is full"):
        await rig.pool.create("b-2", "me", JobSpec(), {})
    assert not rig.root("b-2").exists()


async def test_incomplete_directories_of_a_crash_are_removed(rig: LocalRig) -> None:
    (rig.folder / "jobs" / ".making-c-3-1").mkdir()
    (rig.folder / "jobs" / ".removed-c-2-1").mkdir()
    await rig.reopened()

    assert list((rig.folder / "jobs").iterdir()) == []


def test_files_emptied_by_a_power_cut_are_rewritten(tmp_path: Path) -> None:
    folder = JobFolder("a-1", tmp_path / "a-1")
    folder.create("me", JobSpec(name="a"), {"A": "b"})
    (folder.root / "spec.json").write_bytes(b"")
    (folder.root / ".boot").write_text("the boot before the power cut")
    folder.create("me", JobSpec(name="a"), {"A": "b"})

    assert folder.spec().name == "a"
    assert not list(tmp_path.glob(".making-*"))


async def test_jobs_find_nothing_but_our_package_on_their_path(rig: LocalRig) -> None:
    (folder,) = (rig.folder / "runtime").iterdir()

    assert [entry.name for entry in folder.iterdir()] == ["jupyter_dlaas"]
    assert (folder / "jupyter_dlaas").resolve() == PACKAGE


# ---- journal ---------------------------------------------------------------------------------------------------------


async def test_torn_line_waits_and_damaged_line_is_skipped(rig: LocalRig) -> None:
    job = await rig.job()
    journal = rig.root(job) / "journal.jsonl"
    good = b'{"n":0,"at_s":1.0,"kind":"seen","revision":1}\n'
    journal.write_bytes(good + b'{"n":1,"at')

    facts, offset = await rig.pool.facts(job, 0)
    assert ([fact.n for fact in facts], offset) == ([0], len(good))
    journal.write_bytes(good + b"garbage\n" + good)
    facts, end = await rig.pool.facts(job, offset)
    assert ([fact.kind for fact in facts], end) == ([FactKind.DAMAGED, FactKind.SEEN], len(journal.read_bytes()))
    assert isinstance(facts[0], LineDamaged)
    assert (facts[0].why or "").startswith(f"byte {len(good)}: ")


async def test_a_journal_that_was_cut_is_read_again(rig: LocalRig) -> None:
    job = await rig.job()
    (rig.root(job) / "journal.jsonl").write_bytes(b'{"n":0,"at_s":1.0,"kind":"seen","revision":1}\n')

    facts, offset = await rig.pool.facts(job, 1000)
    assert [fact.kind for fact in facts] == [FactKind.DAMAGED, FactKind.SEEN]
    assert (await rig.pool.facts(job, offset)) == ([], offset)


async def test_jobs_on_an_unmounted_disk_are_not_lost(rig: LocalRig) -> None:
    job = await rig.job()
    jobs = rig.folder / "jobs"
    away = jobs.rename(jobs.with_name("away"))

    with pytest.raises(PoolError, match="is its disk mounted"):
        await rig.pool.facts(job, 0)
    jobs.mkdir()
    for asked in (rig.pool.facts(job, 0), rig.pool.end(job, kill=True)):
        with pytest.raises(PoolError, match="was moved or replaced"):
            await asked
    jobs.rmdir()
    away.rename(jobs)
    assert await rig.pool.facts(job, 0) == ([], 0)


# ---- guardians that are hard to find, and jobs without one -----------------------------------------------------------


async def test_a_new_engine_finds_a_guardian_without_its_status_file(rig: LocalRig) -> None:
    job = await rig.job()
    await start(rig, job)
    guardian = rig.guardian(job)
    await rig.pool.close()
    (rig.root(job) / "status.json").unlink()
    await rig.open()

    assert await rig.pool.is_guarded(job)
    assert rig.local._watching().guardian_of(job) == identity(guardian)
    (rig.root(job) / "guardian.sock").unlink()
    assert find_guardian(rig.root(job)) == identity(guardian), "by its lock"
    (rig.root(job) / "guardian.lock").unlink()
    assert find_guardian(rig.root(job)) is None


def remove(root: Path) -> None:
    """As `rm -r`, as often as it takes: the job still writes."""
    while root.exists():
        shutil.rmtree(root, ignore_errors=True)


async def test_a_job_whose_directory_is_gone_can_still_be_ended(rig: LocalRig) -> None:
    job = await rig.job()
    await start(rig, job)
    everybody = [who for who, _ in marked(str(rig.root(job)))]
    remove(rig.root(job))

    assert not await rig.pool.end(job, kill=False), "it has a guardian"
    assert await rig.pool.end(job, kill=True)
    assert len(everybody) >= 3, "guardian, watchdog and learner"
    assert [who for who in everybody if is_alive(who)] == []


async def test_learners_outlive_the_removal_of_their_interpreter(rig: LocalRig, tmp_path: Path) -> None:
    python = tmp_path / "python"
    python.symlink_to(sys.executable)
    await rig.pool.create("a-1", "me", JobSpec(interpreter=str(python)), {"PATH": os.environ["PATH"]})
    await rig.pool.put("a-1", "train.py", PROGRAM.format(steps=ENDLESS, fails_at=-1).encode())
    await start(rig, "a-1")
    python.unlink()
    rig.kill_guardian("a-1")

    async def is_unguarded() -> bool:
        return await rig.pool.is_guarded("a-1") is False

    await rig.until(is_unguarded, "the guardian is gone")
    await rig.pool.act("a-1", wanted(node=node(rig)))

    async def is_held_again() -> bool:
        return (await kinds_of(rig.pool, "a-1")).count(FactKind.GUARDIAN_UP) == 2

    await rig.until(is_held_again, "another guardian, of the engine's Python, holds it")
    rig.kill_learner("a-1", 0)
    await rig.pool.act("a-1", wanted(2, (1,), generation=2, node=node(rig)))

    async def has_failed() -> bool:
        return any(f.kind is FactKind.LEARNER_DOWN and f.member == 1 for f in await facts_of(rig.pool, "a-1"))

    await rig.until(has_failed, "no learner is started with the engine's Python")
    await stop(rig, "a-1")


async def test_damaged_files_are_laid_out_again(rig: LocalRig) -> None:
    job = await rig.job()
    (rig.root(job) / "spec.json").write_text("{")
    (rig.root(job) / "environment.json").unlink()
    await rig.job()

    folder = JobFolder(job, rig.root(job))
    assert folder.spec() == JobSpec()
    assert folder.environment()["SECRET"] == "canary"


async def test_removed_directory_is_reported_despite_open_files(rig: LocalRig) -> None:
    job = await rig.job()
    await start(rig, job)
    remove(rig.root(job))
    rig.news.clear()

    async def is_reported() -> bool:
        return (job, JOURNAL) in rig.news

    await rig.until(is_reported, "its directory is missed")
    assert await rig.pool.end(job, kill=True)


# ---- acts ------------------------------------------------------------------------------------------------------------


async def test_a_learner_gets_the_environment_of_its_seat(rig: LocalRig) -> None:
    names = ("CUDA_VISIBLE_DEVICES", "OMP_NUM_THREADS", "SECRET")
    job = await rig.program("a-1", f"import os\nprint([os.environ.get(n) for n in {names!r}])\n")
    await rig.pool.act(job, wanted(node=node(rig)))

    async def is_closed() -> bool:
        return FactKind.CLOSED in await kinds_of(rig.pool, job)

    await rig.until(is_closed, "the end")
    said = (await rig.pool.read(job, log_of(0), 0, 1000)).data.decode()
    seat = document_of(rig, job).members[0].environment

    assert seat["CUDA_VISIBLE_DEVICES"] == ""
    assert f"['', '{seat['OMP_NUM_THREADS']}', '******']" in said, "it has the secret, and readers of its log have not"


def document_of(rig: LocalRig, job: str) -> Wanted:
    found = JobFolder(job, rig.root(job)).wanted()
    assert found is not None
    return found


async def test_acts_at_the_same_time_start_one_guardian(rig: LocalRig) -> None:
    job = await rig.job()
    await asyncio.gather(*(rig.pool.act(job, wanted(node=node(rig))) for _ in range(5)))
    await start(rig, job)

    assert (await kinds_of(rig.pool, job)).count(FactKind.GUARDIAN_UP) == 1
    await stop(rig, job)


async def test_a_missing_interpreter_is_reported_as_permanent(rig: LocalRig) -> None:
    await rig.pool.create("a-1", "me", JobSpec(interpreter="/nowhere/python"), {})
    await rig.pool.put("a-1", "train.py", b"")

    with pytest.raises(InterpreterMissing, match="/nowhere/python"):
        await rig.pool.act("a-1", wanted(node=node(rig)))


async def test_immediate_death_of_a_guardian_is_reported(rig: LocalRig) -> None:
    await rig.pool.create("a-1", "me", JobSpec(interpreter="/bin/false"), {})
    await rig.pool.put("a-1", "train.py", b"")
    await rig.pool.act("a-1", wanted(node=node(rig)))

    async def is_reported() -> bool:
        return ("a-1", JOURNAL) in rig.news and await rig.pool.is_guarded("a-1") is False

    await rig.until(is_reported, "news of its end")
    assert rig.pool.loss_of("a-1") == Loss(text="It ended with exit code 1", has_exited=True)
    assert rig.pool.loss_of("a-1") == Loss(), "reported once"


async def test_a_guardian_that_stays_after_its_last_word_is_ended(
    rig: LocalRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(local_pool, "EXIT_CHECKS", 3)
    await start(rig, await rig.job())
    guardian = identity(rig.guardian("a-1"))
    assert guardian is not None
    os.kill(guardian.pid, signal.SIGSTOP)
    with (rig.root("a-1") / "journal.jsonl").open("a") as journal:
        journal.write('{"n":99,"at_s":1.0,"kind":"closed"}\n')
    await rig.pool.act("a-1", wanted(2, (1,), generation=2, node=node(rig)))

    assert not is_alive(guardian)
    assert await rig.pool.is_guarded("a-1"), "another guardian was started"


async def test_a_job_with_a_guardian_cannot_be_removed(rig: LocalRig) -> None:
    job = await rig.job()
    await start(rig, job)

    with pytest.raises(PoolError, match="its guardian still runs"):
        await rig.pool.remove(job)
    await stop(rig, job)
    await rig.pool.remove(job)
    assert not rig.root(job).exists()


# ---- watching --------------------------------------------------------------------------------------------------------


async def test_without_inotify_changes_are_polled(rig: LocalRig, monkeypatch: pytest.MonkeyPatch) -> None:
    class Used(Watch):
        def __init__(self) -> None:
            super().__init__()
            self.close()  # as where all instances are in use

    monkeypatch.setattr(job_watch, "Watch", Used)
    await rig.reopened()
    job = await rig.job()
    await start(rig, job)

    async def is_reported() -> bool:
        return {(job, JOURNAL), (job, log_of(0))} <= set(rig.news)

    await rig.until(is_reported, "news of journal and log")
    await stop(rig, job)


async def test_job_named_like_a_learner_works(rig: LocalRig) -> None:
    other, job = await rig.job("learner-0"), await rig.job()
    await start(rig, other)
    await start(rig, job)

    async def is_reported() -> bool:
        return {(other, log_of(0)), (job, log_of(0))} <= set(rig.news)

    await rig.until(is_reported, "news of both logs")
    await stop(rig, other)
    await stop(rig, job)


async def test_link_to_the_directory_is_the_same_pool(rig: LocalRig, tmp_path: Path) -> None:
    job = await rig.job()
    await start(rig, job)
    await rig.pool.close()
    (tmp_path / "link").symlink_to(rig.folder)
    rig.pool = LocalPool(tmp_path / "link", config=PoolConfig(), probe=CpuSlots(4))
    await rig.pool.open(rig.heard, lambda: None)

    assert await rig.pool.is_guarded(job) is True
    assert rig.pool.directory(job) == str(rig.root(job))
    await stop(rig, job)


async def test_overflowing_events_trigger_a_full_check(rig: LocalRig) -> None:
    job = await rig.job()
    await start(rig, job)
    watch = rig.local._watch
    assert watch is not None
    watch._queue = 0
    rig.news.clear()

    async def is_reported() -> bool:
        return {(job, "metrics"), (job, JOURNAL), (job, log_of(0))} <= set(rig.news)

    await rig.until(is_reported, "news of everything")
    await stop(rig, job)


async def test_unwatched_death_of_a_guardian_is_detected(rig: LocalRig) -> None:
    job = await rig.job()
    await start(rig, job)
    await rig.pool.close()
    rig.kill_guardian(job)
    await rig.open()

    async def is_unguarded() -> bool:
        return await rig.pool.is_guarded(job) is False

    await rig.until(is_unguarded, "it is known")
    await rig.pool.act(job, wanted(node=node(rig)))

    async def is_back() -> bool:
        return (await kinds_of(rig.pool, job)).count(FactKind.GUARDIAN_UP) == 2

    await rig.until(is_back, "a new guardian")
    await stop(rig, job)


async def test_concurrent_jobs_leave_nothing_behind(rig: LocalRig) -> None:
    """Once a guardian's end that met another one's start was never noticed."""
    names = [await rig.job(f"a-{number}", steps=1) for number in range(8)]
    watch = rig.local._watch
    assert watch is not None
    await asyncio.gather(*(rig.pool.act(name, wanted(node=node(rig))) for name in names))

    async def all_ended() -> bool:
        kinds = [await kinds_of(rig.pool, name) for name in names]
        return all(FactKind.COMPLETED in some for some in kinds) and watch.guarded() == ()

    await rig.until(all_ended, "all ended")
    assert watch.follows() == ()


def descriptors() -> list[str]:
    return sorted(entry.name for entry in Path("/proc/self/fd").iterdir())


async def test_closing_leaves_no_descriptor_and_no_zombie(rig: LocalRig) -> None:
    await rig.pool.close()
    before, others = descriptors(), set(psutil.Process().children())  # of other tests
    await rig.open()
    for number in range(3):
        await start(rig, await rig.job(f"a-{number}"))
    for number in range(3):
        await stop(rig, f"a-{number}")
    await rig.pool.close()

    assert descriptors() == before
    assert set(psutil.Process().children()) <= others
    await rig.open()


async def test_an_ended_job_is_watched_no_more(rig: LocalRig) -> None:
    job = await rig.job(steps=2)
    await start(rig, job)
    watch = rig.local._watch
    assert watch is not None

    async def is_left_alone() -> bool:
        return watch.follows() == () and watch.guarded() == ()

    await rig.until(is_left_alone, "nothing is watched")
    assert (await facts_of(rig.pool, job))[-1].why == "completed"
