"""Outages, refused seats and slow starts: nothing is counted against a job, and all jobs converge."""

from __future__ import annotations

import asyncio
import random
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest

from dlaas_server.core.model.cluster import Device, Node
from dlaas_server.core.model.states import Event
from dlaas_server.core.planning.refused_seats import FIRST_S
from jupyter_dlaas.wire.protocol import State
from tests.engine.driving import Engine, engine_on, submit
from tests.engine.test_lifecycle import play as play  # the fixture
from tests.pools.simulated.simulated_pool import Script, SimulatedPool
from tests.pools.simulated.virtual_clock import VirtualClock

SEATS = [("n1", f"n1/{i}") for i in range(4)]


async def kinds(engine: Engine, job: str) -> list[str]:
    return [str(one["kind"]) for one in await engine.requests.events("ana", job)]


def test_refused_seat_returns_the_job_to_its_old_place(play: Callable[..., None]) -> None:
    async def scene(engine: Engine, pool: SimulatedPool) -> None:
        pool.seats_refused[SEATS[0]] = 1
        first, second = await engine.submit(), await engine.submit()
        await engine.settle()
        job = engine.lifecycle.jobs[first]

        assert (job.state, job.is_closed, job.members) == (State.QUEUED, True, ())
        assert (job.restarts_total, job.guardian_starts, job.queued_s) == (0, 0, 0.0)
        view = engine.lifecycle.view(job)
        assert (view.state_label, view.place, view.restarts) == ("Queued", 1, 0)
        assert "n1 has no room for learner 0" in view.reason
        assert engine.lifecycle.nodes()[0].devices[0].out_of_service is not None, "the plan does not choose it again"
        asked_s = engine.clock.now_s()
        await engine.until(engine.all_ended)
        assert engine.lifecycle.jobs[first].seated_s == asked_s + FIRST_S, "before the job that came later"
        assert engine.states() == {first: "COMPLETED", second: "COMPLETED"}
        assert engine.lifecycle.nodes()[0].devices[0].out_of_service is None, "a learner has started there"

    play(scene, slots=1)


def test_job_with_a_refused_seat_starts_at_once_on_another(play: Callable[..., None]) -> None:
    async def scene(engine: Engine, pool: SimulatedPool) -> None:
        pool.seats_refused[SEATS[0]] = 5
        job = await engine.submit()
        await engine.settle()

        assert [m.seat.devices for m in engine.lifecycle.jobs[job].gang] == [("n1/1",)]
        await engine.until(engine.all_ended)
        assert engine.states() == {job: "COMPLETED"}
        assert "It could not be placed" not in engine.lifecycle.view(engine.lifecycle.jobs[job]).reason

    play(scene, slots=2)


def test_refusals_of_one_seat_back_off(play: Callable[..., None]) -> None:
    async def scene(engine: Engine, pool: SimulatedPool) -> None:
        pool.seats_refused[SEATS[0]] = 4
        job, began_s = await engine.submit(), engine.clock.now_s()
        await engine.until(engine.all_ended)

        assert engine.states() == {job: "COMPLETED"}
        assert engine.lifecycle.jobs[job].seated_s == began_s + FIRST_S * (1 + 2 + 4 + 8)
        assert engine.lifecycle.jobs[job].restarts_total == 0

    play(scene, slots=1)


@pytest.mark.parametrize("is_live", [True, False])
def test_refused_growth_keeps_the_work(play: Callable[..., None], *, is_live: bool) -> None:
    async def scene(engine: Engine, pool: SimulatedPool) -> None:
        job = await engine.submit(submit((1, 2)))
        await engine.scale(job, 1)
        await engine.until(lambda: engine.is_at(job, "PROCESSING"))
        pool.seats_refused[SEATS[1]] = 1
        await engine.scale(job, 2)
        await engine.until(engine.all_ended)

        found = engine.lifecycle.jobs[job]
        assert (found.state, found.restarts_total) == (State.COMPLETED, 0)
        assert "seat_refused" in await kinds(engine, job)
        assert ("requeued" in await kinds(engine, job)) is not is_live

    play(scene, slots=2, script=Script(steps=400, is_live=is_live))


@pytest.mark.parametrize("event", [Event.CANCEL, Event.HALT])
def test_slow_start_is_shown_and_can_be_ended(play: Callable[..., None], event: Event) -> None:
    async def scene(engine: Engine, pool: SimulatedPool) -> None:
        pool.delay_start("job-1")
        job = await engine.submit(submit((2, 2)))
        await engine.settle()
        engine.clock.advance(engine.clock.now_s() + 900.0)
        await engine.settle()
        view = engine.lifecycle.view(engine.lifecycle.jobs[job])

        assert (view.state_label, view.status_line) == ("Deploying", "0 of 2 learners ready")
        assert view.reason == "The image sim:1 is being pulled. Wait."
        assert [reason.member for reason in view.waiting_for] == [None, 0, 1]
        why = await engine.requests.why("ana", job)
        assert "Learner 1 (simulated pod job-1) has waited for 15 min: The image sim:1 is being pulled. Wait." in why
        await engine.act(job, event)
        await engine.until(lambda: engine.lifecycle.jobs[job].is_closed, limit_s=60.0)
        found = engine.lifecycle.jobs[job]
        assert (found.restarts_total, found.state) == (0, {Event.CANCEL: State.CANCELLED}.get(event, State.HALTED))

    play(scene)


def test_waiting_start_becomes_a_training_job(play: Callable[..., None]) -> None:
    async def scene(engine: Engine, pool: SimulatedPool) -> None:
        pool.delay_start("job-1")
        job = await engine.submit()
        await engine.settle()
        pool.release_start(job)
        await engine.until(engine.all_ended)

        assert engine.states() == {job: "COMPLETED"}
        assert engine.lifecycle.view(engine.lifecycle.jobs[job]).waiting_for == ()

    play(scene)


def test_submit_to_an_unreached_pool_is_not_refused(play: Callable[..., None]) -> None:
    async def scene(engine: Engine, pool: SimulatedPool) -> None:
        nodes = pool.nodes()
        pool.set_nodes(())
        pool.cut()
        job = await engine.submit(submit((2, 2)))
        assert engine.is_at(job, "QUEUED")
        pool.set_nodes(nodes)
        pool.restore()
        await engine.until(engine.all_ended)

        assert engine.states() == {job: "COMPLETED"}

    play(scene)


async def _troubled(folder: Path, seed: int) -> None:
    """Three jobs in a pool with random outages, refusals and slow starts."""
    rng = random.Random(seed)
    clock = VirtualClock(1000.0)
    devices = tuple(Device(id=device, index=i, kind="GPU") for i, (_, device) in enumerate(SEATS))
    scripts = [Script(steps=60, is_live=rng.random() < 0.5) for _ in range(3)]
    pool = SimulatedPool([Node(name="n1", devices=devices)], clock)
    engine = await engine_on(folder, pool, clock)
    try:
        for number, script in enumerate(scripts, start=1):
            pool.scripts[f"job-{number}"] = script
            if rng.random() < 0.5:
                pool.delay_start(f"job-{number}")
            await engine.submit(submit((1, rng.randint(1, 3))))
        jobs = list(engine.states())
        for _ in range(rng.randint(5, 20)):
            blow = rng.choice(["cut", "restore", "refuse", "refuse", "delay", "release", "scale"])
            job = rng.choice(jobs)
            if blow == "cut":
                pool.cut()
            elif blow == "restore":
                pool.restore()
            elif blow == "refuse":
                pool.seats_refused[rng.choice(SEATS)] = rng.randint(1, 3)
            elif blow == "delay":
                pool.delay_start(job)
            elif blow == "release":
                pool.release_start(job)
            elif not engine.lifecycle.jobs[job].state.is_final:
                await engine.scale(job, rng.randint(1, engine.lifecycle.jobs[job].spec.learners_max))
            await engine.settle()
            clock.advance(clock.now_s() + rng.choice([0.1, 1.0, 5.0, 30.0, 300.0]))
            await engine.settle()
            found = engine.lifecycle.jobs.values()
            assert not any(j.guardian_starts or j.restarts_total or j.state is State.FAILED for j in found), seed
        pool.restore()
        for job in jobs:
            pool.release_start(job)
        await engine.until(engine.all_ended, limit_s=20_000.0)

        assert set(engine.states().values()) == {"COMPLETED"}, seed
        assert pool.conflicts == [], seed
        assert not any(j.restarts_total for j in engine.lifecycle.jobs.values()), seed
        texts = [str(one["text"]) for job in jobs for one in await engine.requests.events("ana", job)]
        assert not [text for text in texts if "Starting another one" in text], f"{seed}: a start was counted"
    finally:
        await engine.close()


@pytest.mark.parametrize("seeds", [range(8), pytest.param(range(8, 300), marks=pytest.mark.exhaustive)], ids=str)
def test_jobs_end_uncounted_whatever_the_pool_cannot_do(seeds: range) -> None:
    for seed in seeds:
        with tempfile.TemporaryDirectory() as folder:
            asyncio.run(_troubled(Path(folder), seed))
