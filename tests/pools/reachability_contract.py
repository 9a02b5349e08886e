"""Promises about seats that cannot be had, starts that take long, and pools that cannot be reached."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from dlaas_server.core.model.job import Job
from dlaas_server.core.model.states import Event
from dlaas_server.engine.blobs import Blobs
from dlaas_server.engine.job_stream import Watchers
from dlaas_server.engine.lifecycle import Lifecycle
from dlaas_server.engine.operations import Requests
from dlaas_server.pools.base import JOURNAL, WAITING, PoolUnavailable
from dlaas_server.store import Store
from jupyter_dlaas.wire.journal import FactKind, Goal, MemberWanted, Wanted
from jupyter_dlaas.wire.protocol import State
from tests.pools.rig import DOWN, UP, ContractSteps, Rig, facts_of, kinds_of, members_of, wanted

NO_NODE = "no-such-node"
OUTAGE_S = 600.0


class EngineRig:
    """An engine on a pool, driven turn by turn."""

    def __init__(self, rig: Rig, folder: Path) -> None:
        self.rig, self.folder = rig, folder

    async def open(self) -> None:
        pool = await self.rig.closed()
        self.folder.mkdir()
        self.store = await Store.open(self.folder / "store.sqlite3")
        self.lifecycle = Lifecycle(self.store, pool, "me", self.rig.now_s)
        self.requests = Requests(self.lifecycle, Watchers(), Blobs(self.folder / "blobs"))
        await self.lifecycle.open()

    async def close(self) -> None:
        await self.lifecycle.close()
        await self.store.close()

    async def turn(self) -> None:
        await self.lifecycle.turn()
        await self.lifecycle.acted()

    async def ask(self, request: Awaitable[Any]) -> Any:
        task = asyncio.ensure_future(request)
        while not task.done():
            await asyncio.sleep(0)
            if self.lifecycle.has_work:
                await self.turn()
        return task.result()

    async def until(self, holds: Callable[[], bool], what: str) -> None:
        async def is_so() -> bool:
            await self.turn()
            return holds()

        await self.rig.until(is_so, what)

    def job(self, name: str) -> Job:
        return self.lifecycle.jobs[name]


class ReachabilityContract(ContractSteps):
    """Nothing of this is a failure of a job."""

    async def refused(self, rig: Rig, job: str, document: Wanted) -> list[Any]:
        await rig.pool.act(job, document)

        async def is_so() -> bool:
            return bool(rig.pool.refused(job))

        await rig.until(is_so, f"a seat of {job} is refused")
        return list(rig.pool.refused(job))

    def beyond(self, rig: Rig, revision: int, generation: int) -> Wanted:
        """Return a document with a second learner on a node that the pool does not have."""
        document = wanted(revision, (0,), generation=generation, node=rig.pool.nodes()[0].name)
        return replace(document, members=(*document.members, MemberWanted(member=1, node=NO_NODE)))

    async def test_gang_without_a_seat_is_refused_in_words(self, rig: Rig) -> None:
        job = await rig.job()
        rig.news.clear()
        (fact,) = await self.refused(rig, job, self.beyond(rig, 1, 1))

        assert (fact.kind, fact.generation, fact.member, fact.n) == (FactKind.SEAT_REFUSED, 1, 1, -1)
        assert fact.code
        assert NO_NODE in fact.what
        assert fact.advice
        assert (job, JOURNAL) in rig.news
        assert members_of(await facts_of(rig.pool, job), UP) == [], "a gang starts whole or not at all"
        await self.act(rig, job, 2, (), goal=Goal.STOP)

        async def is_over() -> bool:
            return await rig.pool.end(job, kill=True)

        await rig.until(is_over, f"{job} is over")
        assert rig.pool.refused(job) == ()

    async def test_refused_growth_leaves_the_running_learners_alone(self, rig: Rig) -> None:
        job = await self.running(rig)
        await self.refused(rig, job, self.beyond(rig, 2, 2))

        assert await rig.pool.is_guarded(job) is True
        facts = await facts_of(rig.pool, job)
        assert (members_of(facts, UP), members_of(facts, DOWN)) == ([0], [])
        await self.act(rig, job, 3, (), generation=2, goal=Goal.STOP)
        assert members_of(await self.facts(rig, job, FactKind.CLOSED), DOWN) == [0]

    async def test_slow_start_says_what_it_waits_for(self, rig: Rig) -> None:
        job = await rig.slow_job()
        await self.act(rig, job)

        async def is_waiting() -> bool:
            return bool(rig.pool.waiting(job)) and (job, WAITING) in rig.news

        await rig.until(is_waiting, f"{job} waits for its start")
        for reason in rig.pool.waiting(job):
            assert reason.member in (None, 0)
            assert reason.code
            assert reason.object
            assert reason.what.endswith(".")
            assert reason.since_s is not None
        assert await rig.pool.is_guarded(job) is not False
        assert members_of(await facts_of(rig.pool, job), UP) == []
        rig.release_start(job)
        await self.facts(rig, job, FactKind.GENERATION)
        assert rig.pool.waiting(job) == ()

    async def test_cancel_does_not_wait_behind_a_slow_start(self, rig: Rig) -> None:
        job = await rig.slow_job()
        await self.act(rig, job)
        await self.act(rig, job, 2, (), goal=Goal.STOP)
        rig.release_start(job)

        async def is_over() -> bool:
            return await rig.pool.end(job, kill=False)

        await rig.until(is_over, f"{job} is over")
        assert members_of(await facts_of(rig.pool, job), UP) == []

    async def test_pool_that_cannot_be_reached_proves_nothing(self, rig: Rig) -> None:
        job = await self.running(rig)
        nodes = rig.pool.nodes()
        rig.cut()

        assert (rig.pool.unavailable() or "").endswith((".", "?"))
        assert rig.pool.nodes() == nodes
        assert await rig.pool.is_guarded(job) is None
        with pytest.raises(PoolUnavailable):
            await self.act(rig, job, 2, (), goal=Goal.STOP)
        with suppress(PoolUnavailable):
            assert not await rig.pool.end(job, kill=False)
        rig.restore()
        assert rig.pool.unavailable() is None
        assert await rig.pool.is_guarded(job) is True
        facts = await facts_of(rig.pool, job)
        assert (members_of(facts, UP), members_of(facts, DOWN)) == ([0], [])

    async def test_outage_of_ten_minutes_changes_no_job(self, rig: Rig, tmp_path: Path) -> None:
        engine = EngineRig(rig, tmp_path / "engine")
        await engine.open()
        try:
            job, cancelled = [(await engine.ask(engine.requests.submit("me", rig.submit())))[0].id for _ in range(2)]
            both = (job, cancelled)
            await engine.until(lambda: all(engine.job(j).state is State.PROCESSING for j in both), "both train")
            rig.cut()
            await engine.ask(engine.requests.act("me", cancelled, Event.CANCEL))
            waiting = (await engine.ask(engine.requests.submit("me", rig.submit())))[0].id
            end_s = rig.now_s() + OUTAGE_S
            while rig.now_s() < end_s:
                rig.pass_time(10.0)
                await engine.turn()
                found = [engine.job(j) for j in (*both, waiting)]
                assert [j.state for j in found] == [State.PROCESSING, State.PROCESSING, State.QUEUED]
                assert [(j.restarts_total, j.guardian_starts, j.is_closed) for j in found[:2]] == [(0, 0, False)] * 2
            view = engine.lifecycle.view(engine.job(job))
            assert [reason.code for reason in view.waiting_for] == ["unavailable"]
            assert "The pool is unavailable." in view.reason
            assert "The pool is unavailable." in engine.lifecycle.view(engine.job(waiting)).reason
            rig.restore()
            rig.pass_time(5.0)
            await engine.until(lambda: engine.job(cancelled).state is State.CANCELLED, "the cancel is carried out")
            await engine.until(lambda: engine.job(waiting).state is State.PROCESSING, "the waiting job starts")

            assert (engine.job(job).state, engine.job(job).restarts_total) == (State.PROCESSING, 0)
            kinds = await kinds_of(engine.lifecycle.pool, job)
            assert (kinds.count(FactKind.GUARDIAN_UP), kinds.count(UP), kinds.count(DOWN)) == (1, 1, 0)
        finally:
            await engine.close()
