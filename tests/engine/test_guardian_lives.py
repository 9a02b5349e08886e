"""Knowledge about a guardian ends with the job's run: a later run starts without it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from dlaas_server.core.model.states import Event
from dlaas_server.pools.base import JOURNAL
from jupyter_dlaas.wire.journal import Goal, Wanted
from tests.engine.driving import Engine
from tests.engine.test_lifecycle import play as play  # the fixture
from tests.pools.simulated.simulated_pool import SimulatedPool


async def guardian_losses(engine: Engine, job: str) -> list[str]:
    events = await engine.requests.events("ana", job)
    return [str(event["text"]) for event in events if event["kind"] == "guardian"]


async def halted(engine: Engine) -> str:
    job = await engine.submit()
    await engine.until(lambda: engine.is_at(job, "PROCESSING"))
    await engine.act(job, Event.HALT)
    await engine.until(lambda: engine.lifecycle.jobs[job].is_closed)
    return job


def test_a_resume_reports_no_loss_of_the_former_guardian(
    play: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scene(engine: Engine, pool: SimulatedPool) -> None:
        job = await halted(engine)
        may_start, act = asyncio.Event(), pool.act

        async def delayed(job: str, wanted: Wanted) -> None:
            await may_start.wait()
            await act(job, wanted)

        monkeypatch.setattr(pool, "act", delayed)
        resumed = asyncio.ensure_future(engine.requests.act("ana", job, Event.RESUME))
        await asyncio.sleep(0)
        await engine.lifecycle.turn()  # the start of the new guardian is under way
        await resumed
        assert not engine.lifecycle.jobs[job].is_closed
        engine.lifecycle._stream_changed(job, JOURNAL)
        await engine.lifecycle.turn()
        may_start.set()
        await engine.until(engine.all_ended)

        assert await guardian_losses(engine, job) == []

    play(scene)


def test_late_delivery_does_not_affect_the_next_guardian(
    play: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scene(engine: Engine, pool: SimulatedPool) -> None:
        job = await engine.submit()
        await engine.until(lambda: engine.is_at(job, "PROCESSING"))
        may_return, act = asyncio.Event(), pool.act

        async def late(job: str, wanted: Wanted) -> None:
            await act(job, wanted)
            if wanted.goal is Goal.HALT:
                await may_return.wait()

        monkeypatch.setattr(pool, "act", late)
        request = asyncio.ensure_future(engine.requests.act("ana", job, Event.HALT))
        while not engine.lifecycle.jobs[job].is_closed:  # the guardian leaves while its halt is still being delivered
            await asyncio.sleep(0)
            await engine.lifecycle.turn()
            if engine.clock.next_s is not None:
                engine.clock.advance(engine.clock.next_s)
        await request
        may_return.set()
        await engine.settle()
        starting, begin = asyncio.Event(), pool.act

        async def delayed(job: str, wanted: Wanted) -> None:
            await starting.wait()
            await begin(job, wanted)

        monkeypatch.setattr(pool, "act", delayed)
        resumed = asyncio.ensure_future(engine.requests.act("ana", job, Event.RESUME))
        await asyncio.sleep(0)
        await engine.lifecycle.turn()
        await resumed
        engine.lifecycle._stream_changed(job, JOURNAL)
        await engine.lifecycle.turn()
        starting.set()
        await engine.until(engine.all_ended)

        assert await guardian_losses(engine, job) == []

    play(scene)


def test_a_killed_guardian_is_still_reported(play: Callable[..., None]) -> None:
    async def scene(engine: Engine, pool: SimulatedPool) -> None:
        job = await halted(engine)
        await engine.act(job, Event.RESUME)
        await engine.until(lambda: engine.is_at(job, "PROCESSING"))
        pool.kill_guardian(job)
        await engine.until(engine.all_ended)

        losses = await guardian_losses(engine, job)
        assert losses[0] == "The guardian process ended. Starting another one."
        assert engine.states() == {job: "COMPLETED"}

    play(scene)
