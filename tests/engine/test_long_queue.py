"""Submits behind a long queue: accepted singly, planned together; behind a very long one, planned beside the loop."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

from dlaas_server.core.forecast.start_time import FORECAST_JOBS_MAX
from dlaas_server.core.model.cluster import Device, Node
from dlaas_server.core.model.states import Event
from dlaas_server.engine.lifecycle import LONG_QUEUE, PRUNED_JOBS_MIN
from tests.engine.driving import Engine, engine_on
from tests.engine.driving import submit as a_submit
from tests.pools.simulated.simulated_pool import Script, SimulatedPool
from tests.pools.simulated.virtual_clock import VirtualClock

SCENE = Callable[[Engine, str], Awaitable[None]]


def behind_a_long_queue(folder: Path, scene: SCENE, *, waiting: int = LONG_QUEUE + 1) -> None:
    """One job holds the only device, more wait than are looked at for each one that comes."""

    async def act() -> None:
        clock = VirtualClock(1000.0)
        node = Node(name="n1", devices=(Device(id="n1/0", index=0, kind="GPU"),))
        pool = SimulatedPool([node], clock, script=Script(steps=10_000))
        engine = await engine_on(folder, pool, clock)
        try:
            holder = await engine.submit()
            await engine.until(lambda: engine.is_at(holder, "PROCESSING"))
            asked = [engine.requests.submit("ana", one) for one in (a_submit() for _ in range(waiting))]
            await engine.ask(asyncio.gather(*asked))
            await engine.settle()
            await scene(engine, holder)
            assert pool.conflicts == []
        finally:
            await engine.close()

    asyncio.run(act())


def test_job_is_accepted_before_planning_and_placed_a_moment_later(tmp_path: Path) -> None:
    async def scene(engine: Engine, holder: str) -> None:
        late = await engine.submit()
        assert engine.is_at(late, "QUEUED")
        assert late not in engine.lifecycle.waits

        await engine.until(lambda: late in engine.lifecycle.waits, limit_s=0.1)
        assert engine.lifecycle.waits[late].place == LONG_QUEUE + 2

    behind_a_long_queue(tmp_path, scene)


def test_freed_device_is_allocated_at_once_despite_new_submits(tmp_path: Path) -> None:
    async def scene(engine: Engine, holder: str) -> None:
        await engine.act(holder, Event.CANCEL)
        await engine.submit()
        await engine.until(lambda: not engine.lifecycle.jobs[holder].gang)
        assert sum(bool(job.gang) for job in engine.lifecycle.jobs.values()) == 1

    behind_a_long_queue(tmp_path, scene)


def test_accepted_but_unplanned_jobs_survive_a_crash(tmp_path: Path) -> None:
    async def scene(engine: Engine, holder: str) -> None:
        late = await engine.submit()
        again = Engine(engine.folder, engine.pool, engine.clock)
        await again.open()
        try:
            await again.settle()
            assert again.lifecycle.waits[late].place == LONG_QUEUE + 2
        finally:
            await again.close()

    behind_a_long_queue(tmp_path, scene)


def test_limited_list_has_running_jobs_then_first_of_the_queue(tmp_path: Path) -> None:
    async def scene(engine: Engine, holder: str) -> None:
        views = engine.requests.jobs("ana", state=None, owner=None, limit=4)
        assert [view.id for view in views] == ["job-4", "job-3", "job-2", holder]
        queued = engine.requests.jobs("ana", state="QUEUED", owner=None, limit=2)
        assert [view.id for view in queued] == ["job-3", "job-2"]

    behind_a_long_queue(tmp_path, scene)


def behind_a_very_long_queue(folder: Path, scene: SCENE) -> None:
    """Play a scene behind more waiting jobs than a turn examines."""
    behind_a_long_queue(folder, scene, waiting=PRUNED_JOBS_MIN + 10)


def test_all_jobs_of_a_very_long_queue_get_a_reason(tmp_path: Path) -> None:
    async def scene(engine: Engine, holder: str) -> None:
        late = await engine.submit()
        await engine.until(lambda: late in engine.lifecycle.waits, limit_s=2.0)

        waits = engine.lifecycle.waits
        assert sorted(wait.place for wait in waits.values()) == list(range(1, PRUNED_JOBS_MIN + 12))
        assert waits[late].place == waits[late].of == PRUNED_JOBS_MIN + 11
        assert waits[late].reason.startswith("Needs 1 GPU; 0 are free.")
        events = [str(event["text"]) for event in await engine.requests.events("ana", late)]
        assert any(text.startswith("Waiting: needs 1 GPU") for text in events)

    behind_a_very_long_queue(tmp_path, scene)


def test_head_of_a_very_long_queue_gets_the_freed_device(tmp_path: Path) -> None:
    async def scene(engine: Engine, holder: str) -> None:
        await engine.until(lambda: len(engine.lifecycle.waits) == PRUNED_JOBS_MIN + 10, limit_s=10.0)
        first = min(engine.lifecycle.waits.values(), key=lambda wait: wait.place).job
        now_s = engine.clock.now_s()
        await engine.act(holder, Event.CANCEL)
        await engine.until(lambda: engine.is_at(first, "DEPLOYING") or engine.is_at(first, "PROCESSING"))

        assert first not in engine.lifecycle.waits
        assert len(engine.lifecycle.waits) == PRUNED_JOBS_MIN + 9, "the others keep their reason"
        assert engine.clock.now_s() - now_s < 5.0
        await engine.until(
            lambda: engine.lifecycle.waits[f"job-{PRUNED_JOBS_MIN}"].of == PRUNED_JOBS_MIN + 9, limit_s=20.0
        )

    behind_a_very_long_queue(tmp_path, scene)


def test_first_jobs_of_a_very_long_queue_get_start_estimates(tmp_path: Path) -> None:
    async def scene(engine: Engine, holder: str) -> None:
        def estimated_places() -> list[int]:
            waits = engine.lifecycle.waits.values()
            return sorted(wait.place for wait in waits if "Expected to start" in wait.reason)

        await engine.until(lambda: bool(estimated_places()), limit_s=3e5)
        assert estimated_places()[-1] <= FORECAST_JOBS_MAX

    behind_a_very_long_queue(tmp_path, scene)
