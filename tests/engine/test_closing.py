"""A job always ends: also where no guardian can be had, or its journal is damaged."""

from __future__ import annotations

from collections.abc import Callable

from dlaas_server.core.model.states import Event
from tests.engine.driving import Engine, submit
from tests.engine.test_lifecycle import play as play  # the fixture
from tests.pools.simulated.simulated_pool import SimulatedPool

NEVER = 10**9


def test_a_job_that_no_guardian_can_hold_gives_its_device_back(play: Callable[..., None]) -> None:
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
