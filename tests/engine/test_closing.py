"""Closing of jobs: also without a guardian or with a damaged journal."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from dlaas_server.core.lifecycle.reconcile import RETRY_S
from dlaas_server.core.model.states import Event
from dlaas_server.pools.base import PoolError
from jupyter_dlaas.wire.journal import Wanted
from tests.engine.driving import Engine, submit
from tests.engine.test_lifecycle import play as play  # the fixture
from tests.pools.simulated.simulated_pool import SimulatedPool

NEVER = 10**9


def test_device_is_released_if_no_guardian_can_run_the_job(play: Callable[..., None]) -> None:
    async def scene(engine: Engine, pool: SimulatedPool) -> None:
        pool.starts_refused["gone-1"] = NEVER
        gone = await engine.submit(submit(name="gone"))
        after = await engine.submit(submit(name="next"))
        await engine.until(engine.all_ended)

        assert engine.states() == {gone: "FAILED", after: "COMPLETED"}
        failure = engine.lifecycle.jobs[gone].failure
        assert failure is not None
        assert failure.code == "cannot_start"

    play(scene, slots=1)


def test_a_job_whose_interpreter_is_missing_fails_at_once(play: Callable[..., None]) -> None:
    async def scene(engine: Engine, pool: SimulatedPool) -> None:
        pool.starts_impossible.add("gone-1")
        gone = await engine.submit(submit(name="gone"))
        await engine.settle()

        view = engine.lifecycle.view(engine.lifecycle.jobs[gone])
        assert engine.states() == {gone: "FAILED"}
        assert engine.lifecycle.jobs[gone].is_closed, "its device is free again without any delay"
        assert view.failure is not None
        assert "/nowhere/python" in view.failure.what
        assert f"jupyter dlaas retry {gone}" in view.failure.advice
        events = await engine.requests.events("ana", gone)
        assert not any("another one is started" in str(event["text"]) for event in events)

    play(scene, slots=1)


def test_a_halted_job_without_its_interpreter_still_halts(play: Callable[..., None]) -> None:
    async def scene(engine: Engine, pool: SimulatedPool) -> None:
        job = await engine.submit()
        await engine.until(lambda: engine.is_at(job, "PROCESSING"))
        pool.starts_impossible.add(job)
        await engine.act(job, Event.HALT)
        pool.kill_all(job)
        await engine.until(lambda: engine.lifecycle.jobs[job].is_closed)

        assert engine.states() == {job: "HALTED"}

    play(scene, slots=1)


@pytest.mark.parametrize("event", [Event.HALT, Event.CANCEL])
def test_a_request_that_cannot_be_delivered_is_tried_again(
    play: Callable[..., None], monkeypatch: pytest.MonkeyPatch, event: Event
) -> None:
    async def scene(engine: Engine, pool: SimulatedPool) -> None:
        job = await engine.submit()
        await engine.until(lambda: engine.is_at(job, "PROCESSING"))
        act, refusals = pool.act, iter(range(3))

        async def refuse(job: str, wanted: Wanted) -> None:
            if next(refusals, None) is not None:
                raise PoolError("the disk is full")
            await act(job, wanted)

        monkeypatch.setattr(pool, "act", refuse)
        asked_s = engine.clock.now_s()
        await engine.act(job, event)
        await engine.until(lambda: engine.lifecycle.jobs[job].is_closed)

        assert engine.states() == {job: "HALTED" if event is Event.HALT else "CANCELLED"}
        assert engine.clock.now_s() - asked_s >= 3 * RETRY_S, "it is not tried again at once"
        events = [str(one["text"]) for one in await engine.requests.events("ana", job) if one["kind"] == "guardian"]
        assert events == ["A request could not be delivered: the disk is full; it is tried again."]

    play(scene, slots=1)


def test_a_job_without_guardians_is_cancelled_and_its_learners_end(play: Callable[..., None]) -> None:
    async def scene(engine: Engine, pool: SimulatedPool) -> None:
        job = await engine.submit()
        await engine.until(lambda: engine.is_at(job, "PROCESSING"))
        pool.starts_refused[job] = NEVER
        await engine.act(job, Event.CANCEL)
        pool.kill_guardian(job)
        assert pool.learners(job)
        await engine.until(engine.all_ended)

        assert engine.states() == {job: "CANCELLED"}
        assert pool.learners(job) == ()

    play(scene, slots=1)


def test_a_damaged_line_hides_nothing_that_comes_after_it(play: Callable[..., None]) -> None:
    async def scene(engine: Engine, pool: SimulatedPool) -> None:
        job = await engine.submit()
        await engine.until(lambda: engine.is_at(job, "PROCESSING"))
        pool.tear_journal(job, b"rubbish\n")
        await engine.until(engine.all_ended)

        assert engine.states() == {job: "COMPLETED"}
        (note,) = (n for n in engine.lifecycle.view(engine.lifecycle.jobs[job]).notes if n.code == "report_journal")
        assert note.text.startswith("1 line of the job's journal cannot be read and was skipped")

    play(scene, slots=1)
