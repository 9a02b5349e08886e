"""Jobs that come while many wait: accepted one by one, planned for together; in a crowd, told beside the loop."""

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


def test_a_job_is_accepted_before_it_is_planned_for_and_has_its_place_a_moment_later(tmp_path: Path) -> None:
    async def scene(engine: Engine, holder: str) -> None:
        late = await engine.submit()
        assert engine.is_at(late, "QUEUED")
        assert late not in engine.lifecycle.waits

        await engine.until(lambda: late in engine.lifecycle.waits, limit_s=0.1)
        assert engine.lifecycle.waits[late].place == LONG_QUEUE + 2

    behind_a_long_queue(tmp_path, scene)


def test_a_device_that_comes_free_is_given_away_at_once_whoever_comes_at_that_moment(tmp_path: Path) -> None:
    async def scene(engine: Engine, holder: str) -> None:
        await engine.act(holder, Event.CANCEL)
        await engine.submit()
        await engine.until(lambda: not engine.lifecycle.jobs[holder].gang)
        assert sum(bool(job.gang) for job in engine.lifecycle.jobs.values()) == 1

    behind_a_long_queue(tmp_path, scene)


def test_what_was_accepted_and_not_planned_for_is_there_after_a_crash(tmp_path: Path) -> None:
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


def test_a_short_list_holds_who_runs_then_the_first_in_line_newest_first(tmp_path: Path) -> None:
    async def scene(engine: Engine, holder: str) -> None:
        views = engine.requests.jobs("ana", state=None, owner=None, limit=4)
        assert [view.id for view in views] == ["job-4", "job-3", "job-2", holder]
        queued = engine.requests.jobs("ana", state="QUEUED", owner=None, limit=2)
        assert [view.id for view in queued] == ["job-3", "job-2"]

    behind_a_long_queue(tmp_path, scene)


def in_a_crowd(folder: Path, scene: SCENE) -> None:
    """The same, with more waiting than a turn looks at."""
    behind_a_long_queue(folder, scene, waiting=PRUNED_JOBS_MIN + 10)


def test_in_a_crowd_all_have_their_place_and_their_reason_a_moment_later(tmp_path: Path) -> None:
    async def scene(engine: Engine, holder: str) -> None:
        late = await engine.submit()
        await engine.until(lambda: late in engine.lifecycle.waits, limit_s=2.0)

        waits = engine.lifecycle.waits
        assert sorted(wait.place for wait in waits.values()) == list(range(1, PRUNED_JOBS_MIN + 12))
        assert waits[late].place == waits[late].of == PRUNED_JOBS_MIN + 11
        assert waits[late].reason.startswith("Needs 1 GPU; 0 are free.")
        story = [str(event["text"]) for event in await engine.requests.story("ana", late)]
        assert any(text.startswith("Waiting: needs 1 GPU") for text in story)

    in_a_crowd(tmp_path, scene)


def test_in_a_crowd_a_device_that_comes_free_goes_to_the_first_in_line_at_once(tmp_path: Path) -> None:
    async def scene(engine: Engine, holder: str) -> None:
        await engine.until(lambda: len(engine.lifecycle.waits) == PRUNED_JOBS_MIN + 10, limit_s=10.0)
        first = min(engine.lifecycle.waits.values(), key=lambda wait: wait.place).job
        now_s = engine.clock.now_s()
        await engine.act(holder, Event.CANCEL)
        await engine.until(lambda: engine.is_at(first, "DEPLOYING") or engine.is_at(first, "PROCESSING"))

        assert first not in engine.lifecycle.waits
        assert len(engine.lifecycle.waits) == PRUNED_JOBS_MIN + 9, "the others keep the word that they had"
        assert engine.clock.now_s() - now_s < 5.0
        await engine.until(
            lambda: engine.lifecycle.waits[f"job-{PRUNED_JOBS_MIN}"].of == PRUNED_JOBS_MIN + 9, limit_s=20.0
        )

    in_a_crowd(tmp_path, scene)


def test_of_a_crowd_the_first_are_told_when_they_are_expected_to_start(tmp_path: Path) -> None:
    async def scene(engine: Engine, holder: str) -> None:
        def told() -> list[int]:
            waits = engine.lifecycle.waits.values()
            return sorted(wait.place for wait in waits if "Expected to start" in wait.reason)

        await engine.until(lambda: bool(told()), limit_s=3e5)
        assert told()[-1] <= FORECAST_JOBS_MAX

    in_a_crowd(tmp_path, scene)
