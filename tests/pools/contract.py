"""Contract of a pool with the engine. Each adapter's test module gives a `rig` and runs all of it.

A new adapter (isolated, kubernetes) writes a `Rig` (`rig.py`) and a subclass of `PoolContract`; nothing here knows an
adapter.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from dlaas_server.pools.base import JOURNAL, METRICS, PROGRESS, log_of
from jupyter_dlaas.wire.journal import FactKind, Goal
from jupyter_dlaas.wire.protocol import JobSpec, NotFound, Refused
from tests.pools.reachability_contract import ReachabilityContract
from tests.pools.rig import DOWN, UP, Rig, facts_of, members_of

LEADING_OUT = [
    "../x",
    "files/../../x",
    "/etc/passwd",
    "files//x",
    "files/./x",
    "",
    "files/",
    "files/a\0b",
    "files/" + "a" * 300,
]


class PoolContract(ReachabilityContract):
    """The promises. `rig` comes from the module that inherits them."""

    # ---- the pool --------------------------------------------------------------------------------------------

    async def test_pool_describes_itself(self, rig: Rig) -> None:
        assert rig.pool.name
        assert rig.pool.unit in ("GPU", "CPU slot")
        assert rig.pool.isolation

    async def test_devices_have_ids_of_their_own_and_stay_in_order(self, rig: Rig) -> None:
        ids = [(node.name, device.id) for node in rig.pool.nodes() for device in node.devices]

        assert ids
        assert len(set(ids)) == len(ids)
        assert ids == [(node.name, device.id) for node in rig.pool.nodes() for device in node.devices]

    # ---- files -----------------------------------------------------------------------------------------------

    async def test_a_job_that_was_never_made_is_not_found(self, rig: Rig) -> None:
        pool = rig.pool
        for ask in (
            lambda: self.act(rig, "missing-1"),
            lambda: pool.put("missing-1", "train.py", b""),
            lambda: pool.is_guarded("missing-1"),
            lambda: pool.facts("missing-1", 0),
            lambda: pool.streams("missing-1"),
            lambda: pool.read("missing-1", JOURNAL, 0, 10),
            lambda: pool.time_of("missing-1", 0, 0),
            lambda: pool.files("missing-1", "files"),
            lambda: pool.get("missing-1", "train.py", 0, 10),
        ):
            with pytest.raises(NotFound):
                await ask()

    async def test_a_job_cannot_be_a_path(self, rig: Rig) -> None:
        for name in ("../a-1", "a/../../b", "/tmp", "", "..", "."):
            with pytest.raises((NotFound, Refused)):
                await rig.pool.get(name, "train.py", 0, 10)

    async def test_repeated_create_changes_nothing(self, rig: Rig) -> None:
        job = await rig.job()
        before = await rig.pool.get(job, "spec.json", 0, 10_000)
        await rig.pool.create(job, "ana", JobSpec(name="other"), {"A": "b"})

        assert await rig.pool.get(job, "spec.json", 0, 10_000) == before

    async def test_a_file_is_read_as_it_was_put(self, rig: Rig) -> None:
        job = await rig.job()
        await rig.pool.put(job, "files/own/module.py", b"old")
        await rig.pool.put(job, "files/own/module.py", b"0123456789")

        assert await rig.pool.get(job, "files/own/module.py", 0, 100) == b"0123456789"
        assert await rig.pool.get(job, "files/own/module.py", 4, 3) == b"456"
        assert await rig.pool.get(job, "files/own/module.py", 100, 3) == b""
        assert await rig.pool.files(job, "files") == {"own/module.py": 10}

    async def test_a_large_file_comes_from_the_disk(self, rig: Rig, tmp_path: Path) -> None:
        job = await rig.job()
        source = tmp_path / "large"
        source.write_bytes(b"x" * 1_000_000)
        await rig.pool.put_file(job, "inputs/pushed.bin", str(source))

        assert await rig.pool.files(job, "inputs") == {"pushed.bin": 1_000_000}
        assert await rig.pool.get(job, "inputs/pushed.bin", 0, 2_000_000) == source.read_bytes()

    @pytest.mark.parametrize("path", LEADING_OUT)
    async def test_a_path_that_leads_out_is_refused(self, rig: Rig, path: str) -> None:
        job = await rig.job()
        for ask in (
            lambda: rig.pool.put(job, path, b"x"),
            lambda: rig.pool.get(job, path, 0, 10),
            lambda: rig.pool.files(job, path),
        ):
            with pytest.raises(Refused):
                await ask()

    @pytest.mark.parametrize("path", ["journal.jsonl", "wanted.json", "environment.json", "output/x", "files", "a.py"])
    async def test_only_the_program_and_its_inputs_can_be_put(self, rig: Rig, path: str) -> None:
        job = await rig.job()
        with pytest.raises(Refused):
            await rig.pool.put(job, path, b"x")

    @pytest.mark.parametrize("path", ["environment.json", "nothing", "results/nothing.bin", "files"])
    async def test_secret_or_missing_file_is_not_found(self, rig: Rig, path: str) -> None:
        job = await rig.job()
        with pytest.raises(NotFound):
            await rig.pool.get(job, path, 0, 10)

    async def test_a_folder_that_is_not_there_has_no_files(self, rig: Rig) -> None:
        job = await rig.job()

        assert await rig.pool.files(job, "output") == {}

    # ---- acts and facts --------------------------------------------------------------------------------------

    async def test_a_new_job_has_no_facts_and_no_guardian(self, rig: Rig) -> None:
        job = await rig.job()

        assert await rig.pool.facts(job, 0) == ([], 0)
        assert await rig.pool.is_guarded(job) is False

    async def test_learners_start_with_their_ranks_and_then_train_together(self, rig: Rig) -> None:
        job = await self.running(rig, members=(0, 1))
        facts = await facts_of(rig.pool, job)
        kinds = [fact.kind for fact in facts]

        assert kinds[:2] == [FactKind.GUARDIAN_UP, FactKind.SEEN]
        assert sorted(kinds[2:6]) == sorted([UP, UP, FactKind.LEARNER_READY, FactKind.LEARNER_READY])
        assert kinds[6] == FactKind.GENERATION
        starts = [fact for fact in facts if fact.kind == UP]
        assert sorted((fact.member, fact.rank, fact.generation) for fact in starts) == [(0, 0, 1), (1, 1, 1)]
        for member in (0, 1):
            assert [fact.kind for fact in facts[2:6] if fact.member == member] == [UP, FactKind.LEARNER_READY]
        assert [fact.revision for fact in facts if fact.kind == FactKind.SEEN] == [1]

    async def test_facts_are_numbered_without_holes(self, rig: Rig) -> None:
        job = await self.running(rig, steps=5)
        facts = await self.facts(rig, job, FactKind.CLOSED)

        assert [fact.n for fact in facts] == list(range(len(facts)))

    async def test_the_offset_after_the_facts_brings_only_newer_ones(self, rig: Rig) -> None:
        job = await self.running(rig)
        early, offset = await rig.pool.facts(job, 0)
        await self.act(rig, job, 2, (), goal=Goal.STOP)
        everything = await self.facts(rig, job, FactKind.CLOSED)
        late, end = await rig.pool.facts(job, offset)

        assert [*early, *late] == everything
        assert await rig.pool.facts(job, end) == ([], end)

    async def test_a_job_that_ends_well_is_completed_and_closed(self, rig: Rig) -> None:
        job = await self.running(rig, members=(0, 1), steps=5)
        facts = await self.facts(rig, job, FactKind.CLOSED)
        kinds = [fact.kind for fact in facts]

        assert sorted(members_of(facts, DOWN), key=str) == [0, 1]
        assert kinds[-2:] == [FactKind.COMPLETED, FactKind.CLOSED]
        assert facts[-1].why == "completed"
        await self.unguarded(rig, job)

    async def test_the_same_document_twice_changes_nothing(self, rig: Rig) -> None:
        job = await self.running(rig)
        await self.act(rig, job)
        await self.act(rig, job, 2)
        facts = await self.facts(rig, job, FactKind.SEEN, 2)

        assert members_of(facts, UP) == [0]
        assert members_of(facts, DOWN) == []

    async def test_an_older_revision_is_dropped(self, rig: Rig) -> None:
        job = await self.running(rig)
        await self.act(rig, job, 5)
        await self.facts(rig, job, FactKind.SEEN, 2)
        await self.act(rig, job, 4, goal=Goal.STOP)
        await self.act(rig, job, 6)
        facts = await self.facts(rig, job, FactKind.SEEN, 3)

        assert [fact.revision for fact in facts if fact.kind == FactKind.SEEN] == [1, 5, 6]
        assert members_of(facts, DOWN) == []

    async def test_a_halted_job_is_left_by_all_and_closed(self, rig: Rig) -> None:
        job = await self.running(rig, members=(0, 1))
        await self.act(rig, job, 2, (0, 1), goal=Goal.HALT)
        facts = await self.facts(rig, job, FactKind.CLOSED)

        assert [fact.kind for fact in facts][-2:] == [FactKind.HALTED, FactKind.CLOSED]
        assert facts[-1].why == "halted"
        assert sorted(members_of(facts, DOWN), key=str) == [0, 1]
        await self.unguarded(rig, job)

    async def test_halted_job_continues_with_new_learners(self, rig: Rig) -> None:
        job = await self.running(rig)
        await self.act(rig, job, 2, (0,), goal=Goal.HALT)
        await self.facts(rig, job, FactKind.CLOSED)
        await self.unguarded(rig, job)
        await self.act(rig, job, 3, (1,), generation=2)
        facts = await self.facts(rig, job, FactKind.GENERATION, 2)

        assert members_of(facts, UP) == [0, 1]
        assert [bool(fact.took_over) for fact in facts if fact.kind == FactKind.GUARDIAN_UP] == [False, False]
        assert await rig.pool.is_guarded(job) is True

    async def test_a_stopped_job_ends_at_once(self, rig: Rig) -> None:
        job = await self.running(rig, members=(0, 1))
        await self.act(rig, job, 2, (), goal=Goal.STOP)
        facts = await self.facts(rig, job, FactKind.CLOSED)

        assert facts[-1].why == "stopped"
        assert sorted(members_of(facts, DOWN), key=str) == [0, 1]
        await self.unguarded(rig, job)

    async def test_resize_ends_old_learners_before_new_ones(self, rig: Rig) -> None:
        job = await self.running(rig, members=(0, 1))
        await self.act(rig, job, 2, (2, 3, 4), generation=2)
        facts = await self.facts(rig, job, FactKind.GENERATION, 2)
        order = [fact for fact in facts if fact.kind in (UP, DOWN)]

        assert [fact.kind for fact in order] == [UP, UP, DOWN, DOWN, UP, UP, UP]
        assert sorted(members_of(facts, UP), key=str) == [0, 1, 2, 3, 4]
        assert FactKind.LOST not in [fact.kind for fact in facts]

    # ---- losses ----------------------------------------------------------------------------------------------

    async def test_a_killed_guardian_is_noticed_and_replaced(self, rig: Rig) -> None:
        job = await self.running(rig)
        rig.news.clear()
        rig.kill_guardian(job)
        await self.unguarded(rig, job)

        async def is_reported() -> bool:
            return (job, JOURNAL) in rig.news

        await rig.until(is_reported, "news of the guardian's end")
        await self.act(rig, job)
        facts = await self.facts(rig, job, FactKind.GUARDIAN_UP, 2)

        assert [bool(fact.took_over) for fact in facts if fact.kind == FactKind.GUARDIAN_UP] == [False, True]
        assert members_of(facts, UP) == [0]
        assert members_of(facts, DOWN) == []
        await self.act(rig, job, 2, (), goal=Goal.STOP)
        assert members_of(await self.facts(rig, job, FactKind.CLOSED), DOWN) == [0]

    async def test_killed_learner_ends_its_generation(self, rig: Rig) -> None:
        job = await self.running(rig, members=(0, 1))
        rig.kill_learner(job, 1)
        facts = await self.facts(rig, job, FactKind.LOST)
        (loss,) = (fact for fact in facts if fact.kind == DOWN and fact.member == 1)

        assert loss.signal == 9
        assert loss.failure is not None
        assert sorted(members_of(facts, DOWN), key=str) == [0, 1]
        await self.act(rig, job, 2, (2, 3), generation=2)
        facts = await self.facts(rig, job, FactKind.GENERATION, 2)
        assert sorted(members_of(facts, UP), key=str) == [0, 1, 2, 3]

    async def test_failed_learner_reports_the_reason(self, rig: Rig) -> None:
        job = await self.running(rig, fails_at=3)
        facts = await self.facts(rig, job, FactKind.LOST)
        (loss,) = (fact for fact in facts if fact.kind == DOWN)

        assert loss.code == 1
        assert loss.failure is not None
        assert loss.failure.what
        assert facts[-1].failure is not None

    async def test_a_new_engine_finds_a_running_job(self, rig: Rig) -> None:
        job = await self.running(rig)
        before = await facts_of(rig.pool, job)
        await rig.reopened()

        assert await rig.pool.is_guarded(job) is True
        assert (await facts_of(rig.pool, job))[: len(before)] == before
        rig.news.clear()
        await self.act(rig, job, 2, (), goal=Goal.STOP)
        await self.facts(rig, job, FactKind.CLOSED)
        await self.unguarded(rig, job)
        assert (job, JOURNAL) in rig.news

    # ---- streams ---------------------------------------------------------------------------------------------

    async def test_a_log_grows_and_is_read_without_gap_or_double(self, rig: Rig) -> None:
        job = await self.running(rig, steps=30)
        await self.facts(rig, job, FactKind.CLOSED)
        size = (await rig.pool.streams(job))[log_of(0)]
        whole = await rig.pool.read(job, log_of(0), 0, 1_000_000)
        parts, at = b"", 0
        while at < size:
            chunk = await rig.pool.read(job, log_of(0), at, 7)
            assert (chunk.start, chunk.size) == (at, size)
            parts, at = parts + chunk.data, chunk.end

        assert len(whole.data) == size > 0
        assert parts == whole.data

    async def test_an_offset_counts_from_the_end_when_it_is_negative(self, rig: Rig) -> None:
        job = await self.running(rig, steps=5)
        await self.facts(rig, job, FactKind.CLOSED)
        whole = (await rig.pool.read(job, log_of(0), 0, 1_000_000)).data
        tail = await rig.pool.read(job, log_of(0), -5, 100)

        assert tail.data == whole[-5:]
        assert (await rig.pool.read(job, log_of(0), -(10**9), 3)).data == whole[:3]

    async def test_past_the_end_there_is_an_empty_chunk(self, rig: Rig) -> None:
        job = await self.running(rig, steps=5)
        await self.facts(rig, job, FactKind.CLOSED)
        chunk = await rig.pool.read(job, log_of(0), 10**9, 100)

        assert chunk.start == chunk.end == chunk.size
        assert chunk.data == b""

    async def test_unstarted_stream_is_empty_and_unknown_one_missing(self, rig: Rig) -> None:
        job = await rig.job()

        assert await rig.pool.streams(job) == {}
        for stream in (JOURNAL, METRICS, PROGRESS):
            assert (await rig.pool.read(job, stream, 0, 10)).size == 0
        for stream in (log_of(0), "log:-1", "log:00", "log:x", "nothing", "../spec.json", ""):
            with pytest.raises(NotFound):
                await rig.pool.read(job, stream, 0, 10)

    async def test_the_time_of_a_line_is_known(self, rig: Rig) -> None:
        job = await self.running(rig, steps=5)
        facts = await self.facts(rig, job, FactKind.CLOSED)
        at_s = await rig.pool.time_of(job, 0, 0)

        assert at_s is not None
        assert facts[0].at_s <= at_s <= facts[-1].at_s + 1.0
        assert await rig.pool.time_of(job, 7, 0) is None

    async def test_change_events_name_the_grown_stream(self, rig: Rig) -> None:
        job = await self.running(rig)

        async def is_reported() -> bool:
            return {(job, JOURNAL), (job, log_of(0))} <= set(rig.news)

        await rig.until(is_reported, "news of journal and log")

    # ---- the end ---------------------------------------------------------------------------------------------

    async def test_a_removed_job_is_gone_and_may_be_removed_again(self, rig: Rig) -> None:
        job = await self.running(rig, steps=5)
        await self.facts(rig, job, FactKind.CLOSED)
        await self.unguarded(rig, job)
        await rig.pool.remove(job)
        await rig.pool.remove(job)

        with pytest.raises(NotFound):
            await rig.pool.streams(job)
