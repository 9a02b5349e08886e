"""Control loop on a simulated pool: accepted jobs are never lost, and requests are applied once."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from dlaas_server.core.model.cluster import Device, Node
from dlaas_server.core.model.states import Event
from dlaas_server.engine.service import remove_old_jobs
from jupyter_dlaas.wire.protocol import Cause, Failure, JobView, NotAllowed, Refused, State
from tests.engine.driving import Engine, engine_on, submit
from tests.pools.simulated.simulated_pool import Fault, Script, SimulatedPool, Trouble
from tests.pools.simulated.virtual_clock import VirtualClock

Play = Callable[[Engine, SimulatedPool], Awaitable[None]]


def nodes(slots: int = 8) -> list[Node]:
    return [Node(name="n1", devices=tuple(Device(id=f"n1/{i}", index=i, kind="GPU") for i in range(slots)))]


@pytest.fixture
def play(tmp_path: Path) -> Callable[..., None]:
    """Run a scene on a fresh engine, and check at its end that no device was ever held twice."""

    def run(scene: Play, slots: int = 8, script: Script | None = None, trouble: Trouble | None = None) -> None:
        async def whole() -> None:
            clock = VirtualClock(1000.0)
            pool = SimulatedPool(nodes(slots), clock, script=script, trouble=trouble)
            engine = await engine_on(tmp_path, pool, clock)
            try:
                await scene(engine, pool)
                assert pool.conflicts == []
            finally:
                await engine.close()

        asyncio.run(whole())

    return run


def test_job_passes_from_queued_to_completed(play: Callable[..., None]) -> None:
    async def scene(engine: Engine, pool: SimulatedPool) -> None:
        job = await engine.submit()
        await engine.until(engine.all_ended)

        events = await engine.requests.events("ana", job)
        kinds = [e["kind"] for e in events]
        assert kinds[0] == "submitted"
        assert kinds[-1] == "completed"
        assert engine.states() == {job: "COMPLETED"}

    play(scene)


def test_loop_ends_though_it_is_cancelled_as_it_wakes(play: Callable[..., None]) -> None:
    async def scene(engine: Engine, pool: SimulatedPool) -> None:
        await engine.settle()
        engine.lifecycle._wake.clear()
        engine.lifecycle.wake_s = engine.clock.now_s() + 1000.0
        loop = asyncio.create_task(engine.lifecycle.run())
        for _ in range(10):  # until it sleeps
            await asyncio.sleep(0)
        engine.lifecycle._wake.set()
        await asyncio.sleep(0)  # the event has woken its waiter, and not yet the loop
        loop.cancel()

        done, _ = await asyncio.wait({loop}, timeout=30)
        assert done == {loop}
        assert loop.cancelled()

    play(scene)


def test_log_of_an_ended_job_is_from_rank_0(play: Callable[..., None]) -> None:
    async def scene(engine: Engine, pool: SimulatedPool) -> None:
        job = await engine.submit(learners=(3, 3))
        await engine.until(engine.all_ended)

        assert (await engine.requests.log("ana", job, member=None, offset=0, limit=100))["member"] == 0

    play(scene)


def test_known_progress_is_not_sent_again_to_a_returning_reader(play: Callable[..., None]) -> None:
    async def scene(engine: Engine, pool: SimulatedPool) -> None:
        job = await engine.submit()
        await engine.until(lambda: job in engine.lifecycle.progress)

        async def poll(row: int) -> list[object]:
            found = await engine.requests.stream("ana", job, row=row, metrics=0, logs="", want="view", wait_s=0.0)
            messages = found["messages"]
            assert isinstance(messages, list)
            return [m["type"] for m in messages if isinstance(m, dict)]

        assert await poll(0) == ["job", "progress"]
        assert await poll(engine.lifecycle.rows[job]) == []

    play(scene)


def test_two_of_four_gangs_run_and_two_wait(play: Callable[..., None]) -> None:
    async def scene(engine: Engine, pool: SimulatedPool) -> None:
        jobs = [await engine.submit(learners=(4, 4)) for _ in range(4)]
        await engine.until(lambda: engine.is_at(jobs[1], "PROCESSING"))

        views = [engine.lifecycle.view(engine.lifecycle.jobs[j]) for j in jobs]
        assert [v.state for v in views] == ["PROCESSING", "PROCESSING", "QUEUED", "QUEUED"]
        assert [v.status_line for v in views[2:]] == ["1st of 2", "2nd of 2"]
        assert all(v.reason.startswith("Needs 4 GPUs at once; 0 are free.") for v in views[2:])
        await engine.until(engine.all_ended)
        assert set(engine.states().values()) == {"COMPLETED"}

    play(scene)


def test_request_key_is_idempotent_and_refuses_a_different_request(play: Callable[..., None]) -> None:
    async def scene(engine: Engine, pool: SimulatedPool) -> None:
        first = await engine.submit(submit(key="same-key"))
        assert await engine.submit(submit(key="same-key")) == first
        with pytest.raises(NotAllowed, match="was used for another request"):
            await engine.submit(submit((2, 2), key="same-key"))

    play(scene)


def test_infeasible_job_is_refused_at_submit(play: Callable[..., None]) -> None:
    async def scene(engine: Engine, pool: SimulatedPool) -> None:
        with pytest.raises(Refused, match="requests 16 GPUs, but the pool has only 8"):
            await engine.submit(learners=(16, 16))
        assert engine.states() == {}
        assert pool.acts == []

    play(scene)


def test_scaling_up_continues_from_the_current_step(play: Callable[..., None]) -> None:
    async def scene(engine: Engine, pool: SimulatedPool) -> None:
        job = await engine.submit(submit((1, 4)))
        await engine.scale(job, 2)
        await engine.until(lambda: len(engine.lifecycle.jobs[job].resizes) == 1)
        await engine.scale(job, 3)
        await engine.until(lambda: len(engine.lifecycle.jobs[job].resizes) == 2)
        await engine.until(engine.all_ended)

        resizes = engine.lifecycle.jobs[job].resizes
        assert [(r.before, r.after) for r in resizes] == [(4, 2), (2, 3)]
        assert resizes[0].step < resizes[1].step

    play(scene)


def test_of_many_presses_the_last_wins(play: Callable[..., None]) -> None:
    async def scene(engine: Engine, pool: SimulatedPool) -> None:
        job = await engine.submit(submit((1, 8)))
        await engine.until(lambda: engine.is_at(job, "PROCESSING"))
        for wish in [3, 7, 1, 8, 2, 5] * 8 + [6]:
            await engine.scale(job, wish)
        await engine.until(lambda: engine.lifecycle.jobs[job].held == 6)
        await engine.until(engine.all_ended)

        assert engine.lifecycle.jobs[job].resizes[-1].after == 6

    play(scene)


def test_halt_releases_devices_and_resume_continues_at_the_step(play: Callable[..., None]) -> None:
    async def scene(engine: Engine, pool: SimulatedPool) -> None:
        job = await engine.submit(submit((2, 2)))
        await engine.until(lambda: pool.step(job) >= 20)
        await engine.act(job, Event.HALT)
        await engine.until(lambda: engine.is_at(job, "HALTED"))
        halted_at = engine.lifecycle.jobs[job].step
        assert engine.lifecycle.pool_view().devices_free == 8

        await engine.act(job, Event.RESUME)
        await engine.until(lambda: engine.is_at(job, "PROCESSING"))
        assert engine.lifecycle.jobs[job].step == halted_at >= 20
        await engine.until(engine.all_ended)
        assert engine.is_at(job, "COMPLETED")

    play(scene)


def test_simultaneous_halt_resume_and_cancel_end_in_the_last_intent(play: Callable[..., None]) -> None:
    async def scene(engine: Engine, pool: SimulatedPool) -> None:
        job = await engine.submit(submit((2, 2)))
        await engine.until(lambda: engine.is_at(job, "PROCESSING"))
        for event in (Event.HALT, Event.RESUME, Event.HALT, Event.RESUME, Event.CANCEL):
            await engine.act(job, event)
        await engine.until(engine.all_ended)

        assert engine.is_at(job, "CANCELLED")
        assert pool.learners(job) == ()

    play(scene)


def test_a_killed_learner_is_replaced_from_the_last_checkpoint(play: Callable[..., None]) -> None:
    async def scene(engine: Engine, pool: SimulatedPool) -> None:
        job = await engine.submit(submit((2, 2)))
        await engine.until(lambda: pool.step(job) >= 25)
        pool.kill_learner(job, 0)
        await engine.until(lambda: engine.lifecycle.jobs[job].generation == 2)
        await engine.until(engine.all_ended)

        assert engine.is_at(job, "COMPLETED")
        assert engine.lifecycle.jobs[job].restarts_total == 1

    play(scene)


def test_a_killed_guardian_is_replaced_and_the_learners_go_on(play: Callable[..., None]) -> None:
    async def scene(engine: Engine, pool: SimulatedPool) -> None:
        job = await engine.submit(submit((2, 2)))
        await engine.until(lambda: pool.step(job) >= 25)
        pool.kill_guardian(job)
        await engine.until(engine.all_ended)

        assert engine.is_at(job, "COMPLETED")
        assert engine.lifecycle.jobs[job].generation == 1

    play(scene)


def test_user_error_fails_the_job_and_its_neighbour_continues(play: Callable[..., None]) -> None:
    bug = Failure(cause=Cause.YOUR_CODE, code="exception", what="ValueError: no", advice="Change the cell.")

    async def scene(engine: Engine, pool: SimulatedPool) -> None:
        pool.scripts["job-1"] = Script(faults=(Fault(step=12, failure=bug),))
        bad, good = await engine.submit(), await engine.submit()
        await engine.until(engine.all_ended)

        assert engine.states() == {bad: "FAILED", good: "COMPLETED"}
        assert engine.lifecycle.view(engine.lifecycle.jobs[bad]).state_label == "Failed · your code"

    play(scene)


def test_a_pool_that_cannot_start_a_guardian_is_asked_again(play: Callable[..., None]) -> None:
    async def scene(engine: Engine, pool: SimulatedPool) -> None:
        pool.starts_refused["job-1"] = 3
        job = await engine.submit()
        await engine.until(engine.all_ended)

        assert engine.is_at(job, "COMPLETED")

    play(scene)


@pytest.mark.parametrize(
    "trouble",
    [Trouble(late_s=0.5), Trouble(is_repeated=True), Trouble(is_reordered=True, is_repeated=True, late_s=0.2, seed=3)],
)
def test_late_repeated_and_reordered_facts_end_the_same(play: Callable[..., None], trouble: Trouble) -> None:
    async def scene(engine: Engine, pool: SimulatedPool) -> None:
        jobs = [await engine.submit(submit((2, 4))) for _ in range(4)]
        await engine.scale(jobs[0], 2)
        await engine.until(engine.all_ended)

        assert set(engine.states().values()) == {"COMPLETED"}

    play(scene, trouble=trouble)


def test_time_limit_halts_with_a_checkpoint_and_names_itself(play: Callable[..., None]) -> None:
    async def scene(engine: Engine, pool: SimulatedPool) -> None:
        request = submit()
        limited = type(request)(
            key=request.key, spec=type(request.spec)(name="slow", max_time_s=3.0), source=request.source
        )
        job = await engine.submit(limited)
        await engine.until(lambda: engine.is_at(job, "HALTED"))

        view: JobView = engine.lifecycle.view(engine.lifecycle.jobs[job])
        assert view.status_line.startswith("by its time limit of 3 s at step ")

    play(scene)


def test_next_engine_continues_after_a_crash(tmp_path: Path) -> None:
    async def whole() -> None:
        clock = VirtualClock(1000.0)
        pool = SimulatedPool(nodes(), clock)
        engine = await engine_on(tmp_path, pool, clock)
        jobs = [await engine.submit(submit((4, 4))) for _ in range(4)]
        await engine.until(lambda: pool.step(jobs[0]) >= 20)
        rows = dict(engine.lifecycle.rows)
        await engine.close()

        again = await engine_on(tmp_path, pool, clock)
        assert {j: again.lifecycle.rows[j] for j in jobs} == rows, "cursors stay valid"
        await again.until(again.all_ended)

        assert set(again.states().values()) == {State.COMPLETED}
        assert [j.generation for j in again.lifecycle.jobs.values()] == [1, 1, 1, 1], "no job was restarted"
        assert pool.conflicts == []
        await again.close()

    asyncio.run(whole())


def test_retention_removes_old_and_surplus_jobs_but_no_unfinished_ones(play: Callable[..., None]) -> None:
    async def scene(engine: Engine, pool: SimulatedPool) -> None:
        for _ in range(3):
            await engine.submit()
        await engine.until(engine.all_ended)
        engine.clock.advance(engine.clock.now_s() + 10_000)
        for _ in range(3):
            await engine.submit()
        await engine.until(engine.all_ended)
        waiting = await engine.submit(learners=(8, 8))

        engine.lifecycle.keep_s, engine.lifecycle.keep_jobs = 5_000, 2
        gone = asyncio.ensure_future(remove_old_jobs(engine.lifecycle))
        while not gone.done():
            await asyncio.sleep(0)
            await engine.settle()

        assert gone.result() == ["job-1", "job-2", "job-3", "job-4"]
        assert sorted(engine.states()) == ["job-5", "job-6", waiting]

    play(scene)


def test_handles_and_numbers_are_never_used_again(play: Callable[..., None]) -> None:
    async def scene(engine: Engine, pool: SimulatedPool) -> None:
        first = await engine.submit()
        await engine.until(engine.all_ended)
        await engine.ask(engine.requests.delete("ana", first))
        assert engine.states() == {}

        assert await engine.submit() == "job-2"

    play(scene)
