"""Crash sweep: the engine is killed before and after every write and every act, and restarted; the end is the same.

Over the points of each scene: all of them, or every second one in a quick run. A new engine gets what was committed,
the pool what was done, and nothing else survives.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Final

import pytest

from dlaas_server.core.model.cluster import Device, Node
from dlaas_server.core.model.states import Event
from dlaas_server.engine.pool_admin import Administration
from dlaas_server.rest.routes import DrainAsked
from dlaas_server.store import Batch
from jupyter_dlaas.wire.journal import Wanted
from jupyter_dlaas.wire.protocol import Placement, State, Submit
from tests.engine.driving import Engine, engine_on, submit
from tests.pools.simulated.scripted_job import KILLED
from tests.pools.simulated.simulated_pool import Fault, Script, SimulatedPool
from tests.pools.simulated.virtual_clock import VirtualClock


class Crash(BaseException):
    """Death of the engine's process."""


class Executioner:
    """Kill at the n-th point; afterwards every call fails, as for a dead process."""

    def __init__(self, point: int) -> None:
        self.point = point
        self.passed = 0
        self.is_dead = False

    def pass_by(self) -> None:
        if self.is_dead or self.passed == self.point:
            self.is_dead = True
            raise Crash
        self.passed += 1

    def guard(self, engine: Engine, pool: SimulatedPool) -> None:
        commit, act = engine.store.commit, pool.act

        async def guarded_commit(batch: Batch) -> None:
            self.pass_by()
            await commit(batch)
            self.pass_by()

        async def guarded_act(job: str, wanted: Wanted) -> None:
            self.pass_by()
            await act(job, wanted)
            self.pass_by()

        engine.store.commit = guarded_commit  # type: ignore[method-assign]
        engine.lifecycle.pool = _Guarded(pool, guarded_act)  # type: ignore[assignment]


class _Guarded:
    """A pool whose act() passes by the executioner."""

    def __init__(self, pool: SimulatedPool, act: Callable[[str, Wanted], Awaitable[None]]) -> None:
        self._pool = pool
        self.act = act

    def __getattr__(self, name: str) -> object:
        return getattr(self._pool, name)


Scene = Callable[[Engine, SimulatedPool], Awaitable[None]]


def allowed(engine: Engine, job: str) -> set[str]:
    """Return the actions that are enabled on the card."""
    return {a.id for a in engine.lifecycle.view(engine.lifecycle.jobs[job]).actions if a.enabled}


async def resize_and_halt(engine: Engine, pool: SimulatedPool) -> None:
    """Play a gang that shrinks, is halted and resumed, beside one that waits for its seats. A replay continues it."""
    for number, learners in ((1, (2, 4)), (2, (3, 3))):
        if f"job-{number}" not in engine.lifecycle.jobs:
            await engine.submit(submit(learners, key=f"key-number-{number}"))
    first = engine.lifecycle.jobs
    if "scale" in allowed(engine, "job-1"):
        await engine.scale("job-1", 2)
    await engine.until(lambda: pool.step("job-1") >= 15 or first["job-1"].state.is_final)
    if "halt" in allowed(engine, "job-1") and first["job-1"].step < 30:
        await engine.act("job-1", Event.HALT)
        await engine.until(lambda: first["job-1"].state in (State.HALTED, State.COMPLETED))
    if "resume" in allowed(engine, "job-1"):
        await engine.act("job-1", Event.RESUME)
    await engine.until(engine.all_ended)


async def loss_and_cancel(engine: Engine, pool: SimulatedPool) -> None:
    """Play a gang that loses a learner and continues, beside one that is cancelled."""
    pool.scripts["job-1"] = Script(steps=40, faults=(Fault(step=25, signal=9, failure=KILLED),))
    for number in (1, 2):
        if f"job-{number}" not in engine.lifecycle.jobs:
            await engine.submit(submit((2, 2), key=f"key-number-{number}"))
    if not engine.lifecycle.jobs["job-2"].state.is_final:
        await engine.act("job-2", Event.CANCEL)
    await engine.until(engine.all_ended)


async def drain_and_uncordon(engine: Engine, pool: SimulatedPool) -> None:
    """Drain a node of a gang that moves with half of its learners; a waiting job uses it afterwards."""
    administration, jobs = Administration(engine.lifecycle), engine.lifecycle.jobs
    for number, learners in ((1, (1, 2)), (2, (1, 1)), (3, (2, 2))):
        if f"job-{number}" not in jobs:
            await engine.submit(submit(learners, key=f"key-number-{number}"))
    await engine.until(lambda: pool.step("job-1") >= 15 or jobs["job-1"].state.is_final)
    if not jobs["job-1"].state.is_final:
        await engine.ask(administration.drain("ana", "n1", DrainAsked()))
        await engine.until(lambda: all(m.seat.node != "n1" for m in jobs["job-1"].members))
    if "n1" in engine.lifecycle.settings.cordons:
        await engine.ask(administration.uncordon("ana", "n1"))
    await engine.until(engine.all_ended)


def beside(number: int, learners: int, *, gpus: int = 1, is_spread: bool = False) -> Submit:
    request = submit((learners, learners), key=f"key-number-{number}")
    placement = Placement.SPREAD if is_spread else None
    return replace(request, spec=replace(request.spec, gpus_per_learner=gpus, placement=placement))


async def go_together(engine: Engine, pool: SimulatedPool, *, joins_lost: int = 0) -> None:
    """Consolidate a gang on one of its two nodes while it trains, when a job there ends."""
    jobs = engine.lifecycle.jobs
    pool.scripts["job-3"] = Script(steps=200, checkpoint_every_steps=50, is_live=True, joins_lost=joins_lost)
    for request in (beside(1, 1, is_spread=True), beside(2, 1, is_spread=True), beside(3, 2)):
        await engine.submit(request)
    await engine.until(lambda: pool.step("job-3") >= 15 or jobs["job-3"].state.is_final)
    if not jobs["job-1"].state.is_final:
        await engine.act("job-1", Event.CANCEL)
    await engine.until(lambda: pool.step("job-3") >= 60 or jobs["job-3"].state.is_final)
    if not jobs["job-2"].state.is_final:
        await engine.act("job-2", Event.CANCEL)
    await engine.until(engine.all_ended)
    done = [] if joins_lost else [(2, 2, "pool")]
    assert [(one.before, one.after, one.by) for one in jobs["job-3"].resizes] == done
    assert jobs["job-3"].restarts_total == 0
    assert jobs["job-3"].moved_s is not None


async def give_up_a_move(engine: Engine, pool: SimulatedPool) -> None:
    """Play a migration whose joining learner dies before it joins."""
    await go_together(engine, pool, joins_lost=1)


async def make_room(engine: Engine, pool: SimulatedPool) -> None:
    """Restart a gang on one of its two nodes, so that a waiting job gets the other."""
    jobs = engine.lifecycle.jobs
    for job in ("job-1", "job-2", "job-3"):
        pool.scripts[job] = Script(steps=600, checkpoint_every_steps=200)
    for request in (beside(1, 1, is_spread=True), beside(2, 1, is_spread=True), beside(3, 2), beside(4, 1, gpus=2)):
        await engine.submit(request)
    await engine.until(lambda: pool.step("job-3") >= 210 or jobs["job-3"].state.is_final)
    for job in ("job-1", "job-2"):
        if not jobs[job].state.is_final:
            await engine.act(job, Event.CANCEL)
    await engine.until(engine.all_ended)
    assert (jobs["job-4"].started_s or 0) < (jobs["job-3"].ended_s or 0), "it did not wait for the gang's end"
    assert [(one.before, one.after, one.by) for one in jobs["job-3"].resizes] == [(2, 2, "pool")]


async def live_one(scene: Scene, engine: Engine, pool: SimulatedPool, killer: Executioner) -> bool:
    """Play until the scene ends or the engine is killed. True: killed."""
    killer.guard(engine, pool)
    playing = asyncio.ensure_future(scene(engine, pool))
    while not playing.done() and not killer.is_dead:
        await asyncio.wait([playing], timeout=0.001)
    if not killer.is_dead:
        playing.result()
        return False
    playing.cancel()
    await asyncio.gather(playing, return_exceptions=True)
    await engine.lifecycle.acted()
    await pool.close()
    await engine.store.close()
    return True


def play(scene: Scene, folder: Path, point: int) -> tuple[bool, dict[str, str], SimulatedPool]:
    async def whole() -> tuple[bool, dict[str, str], SimulatedPool]:
        clock = VirtualClock(1000.0)
        nodes = [
            Node(name=name, devices=tuple(Device(id=f"{name}/{i}", index=i, kind="GPU") for i in range(2)))
            for name in ("n1", "n2")
        ]
        pool = SimulatedPool(nodes, clock, script=Script(steps=40))
        engine = await engine_on(folder, pool, clock)
        was_killed = await live_one(scene, engine, pool, Executioner(point))
        if was_killed:
            engine = await engine_on(folder, pool, clock)
            await scene(engine, pool)
        states = engine.states()
        seats = [m.seat for job in engine.lifecycle.jobs.values() for m in job.members]
        assert seats == [], "no seat is left taken"
        assert all(not pool.learners(job) for job in states), "no learner is left"
        await engine.close()
        return was_killed, states, pool

    return asyncio.run(whole())


MOVED: Final = {"job-1": State.CANCELLED, "job-2": State.CANCELLED, "job-3": State.COMPLETED}


@pytest.mark.parametrize(
    ("scene", "end"),
    [
        (resize_and_halt, {"job-1": State.COMPLETED, "job-2": State.COMPLETED}),
        (loss_and_cancel, {"job-1": State.COMPLETED, "job-2": State.CANCELLED}),
        (drain_and_uncordon, dict.fromkeys(("job-1", "job-2", "job-3"), State.COMPLETED)),
        (go_together, MOVED),
        (give_up_a_move, MOVED),
        (make_room, MOVED | {"job-4": State.COMPLETED}),
    ],
)
def test_wherever_the_engine_dies_the_end_is_the_same(
    scene: Scene, end: dict[str, State], tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    apart = 1 if request.config.getoption("exhaustive") else 2  # points to the next one that is tried
    point, was_killed = random.randrange(apart), True
    while was_killed:
        folder = tmp_path / str(point)
        folder.mkdir()
        was_killed, states, pool = play(scene, folder, point)
        assert states == end, f"killed at point {point}"
        assert pool.conflicts == [], f"killed at point {point}"
        point += apart
    assert point > 20, "the sweep must have had something to sweep"
