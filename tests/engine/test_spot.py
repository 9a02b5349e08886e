"""Spot jobs in the engine, on a simulated pool: an ordinary job waits for their notice, and no longer."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path

import pytest

from dlaas_server.core.model.cluster import Device, Node
from dlaas_server.core.model.states import Event
from dlaas_server.core.scheduling.policy import Policy
from dlaas_server.engine.pool_admin import Administration
from dlaas_server.rest.routes import PoolChange
from tests.engine.driving import Engine, engine_on, submit
from tests.pools.simulated.simulated_pool import Script, SimulatedPool
from tests.pools.simulated.virtual_clock import VirtualClock


def play(folder: Path, script: Script, scene: Callable[[Engine, SimulatedPool], Awaitable[None]]) -> None:
    async def whole() -> None:
        clock = VirtualClock(1000.0)
        devices = tuple(Device(id=f"n1/{i}", index=i, kind="GPU") for i in range(4))
        pool = SimulatedPool([Node(name="n1", devices=devices)], clock, script=script)
        engine = await engine_on(folder, pool, clock)
        engine.lifecycle.configured = Policy(spot_notice_s=12.0)
        try:
            await scene(engine, pool)
            assert pool.conflicts == []
        finally:
            await engine.close()

    asyncio.run(whole())


async def lent(engine: Engine, learners: tuple[int, int] = (4, 4)) -> str:
    request = submit(learners, name="lent")
    return await engine.submit(replace(request, spec=replace(request.spec, spot=True)))


def test_spot_job_is_killed_after_its_notice(tmp_path: Path) -> None:
    async def scene(engine: Engine, pool: SimulatedPool) -> None:
        spot = await lent(engine)
        await engine.until(lambda: engine.is_at(spot, "PROCESSING"))
        asked_s = engine.clock.now_s()
        ours = await engine.submit(submit((2, 2), name="ours"))
        assert engine.lifecycle.view(engine.lifecycle.jobs[ours]).reason.startswith(
            f"Needs 2 GPUs at once; 0 are free. The spot job {spot} gives 4 GPUs back."
        )
        await engine.until(lambda: engine.is_at(ours, "PROCESSING"))
        assert engine.clock.now_s() - asked_s == pytest.approx(12.0, abs=1.0)  # virtual seconds: notice and start
        events = [str(e["text"]) for e in await engine.requests.events("ana", spot)]
        assert any(f"4 GPUs go back to ana's {ours}. It writes a checkpoint within 12 s" in text for text in events)

    play(tmp_path, Script(steps=1000, ignores_halt=True), scene)


def test_checkpointed_spot_job_continues_even_after_an_engine_crash(tmp_path: Path) -> None:
    async def scene(engine: Engine, pool: SimulatedPool) -> None:
        spot = await lent(engine)
        await engine.until(lambda: (engine.lifecycle.jobs[spot].checkpoint_step or 0) > 0)
        ours = await engine.submit(submit((4, 4), name="ours"))
        await engine.lifecycle.turn()  # it was notified; nothing has happened yet
        await engine.close()
        await engine.open()
        engine.lifecycle.configured = Policy(spot_notice_s=12.0)
        await engine.until(lambda: engine.is_at(ours, "PROCESSING"))
        at = engine.lifecycle.jobs[spot].checkpoint_step
        assert engine.is_at(spot, "QUEUED")
        await engine.until(engine.all_ended)
        events = [str(e["text"]) for e in await engine.requests.events("ana", spot)]
        assert any(f"learners from step {at}." in text for text in events)
        assert engine.states() == {spot: "COMPLETED", ours: "COMPLETED"}

    play(tmp_path, Script(steps=60), scene)


def test_elastic_spot_job_releases_needed_devices_and_grows_back(tmp_path: Path) -> None:
    async def scene(engine: Engine, pool: SimulatedPool) -> None:
        spot = await lent(engine, (1, 4))
        await engine.until(lambda: engine.lifecycle.jobs[spot].checkpoint_step is not None)
        ours = await engine.submit(submit((3, 3), name="ours"))
        await engine.until(lambda: engine.is_at(ours, "PROCESSING"))
        await engine.act(ours, Event.CANCEL)
        await engine.until(engine.all_ended)
        sizes = [(one.before, one.after) for one in engine.lifecycle.jobs[spot].resizes]
        assert sizes == [(4, 1), (1, 4)]

    play(tmp_path, Script(steps=400), scene)


def test_spot_jobs_get_start_estimates_beside_ordinary_ones(tmp_path: Path) -> None:
    async def scene(engine: Engine, pool: SimulatedPool) -> None:
        spot = await lent(engine)
        await engine.until(engine.all_ended)  # the pool knows how long such a job runs
        ours = await engine.submit(submit((4, 4), name="lent"))
        spot = await lent(engine)
        await engine.until(lambda: "Expected to start" in engine.lifecycle.waits[spot].reason, 30.0)
        view = engine.lifecycle.view(engine.lifecycle.jobs[spot])
        assert (view.state_label, view.spot, view.place) == ("Queued · spot", True, 1)
        await engine.act(ours, Event.CANCEL)

    play(tmp_path, Script(steps=600), scene)


def test_notice_set_at_run_time_is_used_and_shown(tmp_path: Path) -> None:
    async def scene(engine: Engine, pool: SimulatedPool) -> None:
        ordinary = await engine.submit(submit((4, 4), name="ours"))
        await engine.until(lambda: engine.is_at(ordinary, "COMPLETED"))
        first = await engine.submit(submit((4, 4), name="ours"))
        await engine.until(lambda: engine.is_at(first, "COMPLETED"))  # now it is known how long such jobs run
        spot = await lent(engine)
        await engine.until(lambda: engine.is_at(spot, "PROCESSING"))
        await engine.ask(Administration(engine.lifecycle).change_pool("ana", PoolChange(spot_notice_s=50.0)))

        asked_s = engine.clock.now_s()
        ours = await engine.submit(submit((4, 4), name="ours"))
        await engine.settle()
        said = engine.lifecycle.jobs[ours].start_estimate
        assert said is not None
        assert (said.low_s - asked_s, said.high_s - asked_s) == pytest.approx((0.0, 50.0), abs=1.0)
        await engine.until(lambda: engine.is_at(ours, "PROCESSING"))
        assert engine.clock.now_s() - asked_s == pytest.approx(50.0, abs=1.0)
        await engine.act(spot, Event.CANCEL)

    play(tmp_path, Script(steps=1000, ignores_halt=True), scene)
