"""Migration of running gangs: for locality, or so that a waiting job fits. The engine on a simulated pool; live gangs
change while they train, others restart from a checkpoint."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest

from dlaas_server.core.model.cluster import Device, Node
from dlaas_server.core.model.job import Job
from dlaas_server.core.model.states import Event
from dlaas_server.core.rebalancing.migration import AGAIN_S
from jupyter_dlaas.wire.journal import StepsCommitted
from jupyter_dlaas.wire.protocol import Placement, Submit
from tests.engine.driving import Engine, engine_on, submit
from tests.pools.simulated.simulated_pool import Script, SimulatedPool
from tests.pools.simulated.virtual_clock import VirtualClock

Play = Callable[[Engine, SimulatedPool], Awaitable[None]]
RESTARTED = Script(steps=20_000, checkpoint_every_steps=100)
"""With two learners about 1000 s."""
LIVE = replace(RESTARTED, is_live=True)
TOGETHER = "Its 2 learners fit on one node (n1) now and train faster there."
WAYS = pytest.mark.parametrize("script", [LIVE, RESTARTED], ids=["live", "restarted"])


def node(name: str, devices: int = 2, rack: str = "") -> Node:
    ids = (f"{name}/{i}" for i in range(devices))
    return Node(name=name, rack=rack, devices=tuple(Device(id=d, index=i, kind="GPU") for i, d in enumerate(ids)))


@pytest.fixture
def play(tmp_path: Path) -> Callable[..., None]:
    """Run a scene on two nodes of two; no device is ever held twice, no step trained twice or left out."""

    def run(scene: Play, script: Script = LIVE, nodes: tuple[Node, ...] = (node("n1"), node("n2"))) -> None:
        async def whole() -> None:
            clock = VirtualClock(1000.0)
            pool = SimulatedPool(nodes, clock, script=script)
            engine = await engine_on(tmp_path, pool, clock)
            try:
                await scene(engine, pool)
                assert pool.conflicts == []
                for job in engine.lifecycle.jobs:
                    await assert_each_step_once(pool, job)
            finally:
                await engine.close()

        asyncio.run(whole())

    return run


async def assert_each_step_once(pool: SimulatedPool, job: str) -> None:
    facts, _ = await pool.facts(job, 0)
    trained = [(fact.first_step, fact.step) for fact in facts if isinstance(fact, StepsCommitted)]
    assert all(before[1] == after[0] for before, after in pairwise(trained)), f"{job}: {trained}"


def asks(learners: int, name: str, *, gpus: int = 1, priority: int = 0, is_spread: bool = False) -> Submit:
    request = submit((learners, learners), name=name, priority=priority)
    placement = Placement.SPREAD if is_spread else None
    return replace(request, spec=replace(request.spec, gpus_per_learner=gpus, placement=placement))


async def apart(engine: Engine, pool: SimulatedPool, *, priority: int = 0) -> tuple[str, str, str]:
    """Submit a gang of two on two nodes, and the jobs beside it that keep it there: on n1, on n2."""
    left = await engine.submit(asks(1, "left", is_spread=True))
    right = await engine.submit(asks(1, "right", is_spread=True))
    gang = await engine.submit(asks(2, "gang", priority=priority))
    await engine.until(lambda: pool.step(gang) > 300)
    assert [nodes_of(engine, one) for one in (left, right, gang)] == [["n1"], ["n2"], ["n1", "n2"]]
    return gang, left, right


def job_of(engine: Engine, job: str) -> Job:
    return engine.lifecycle.jobs[job]


def nodes_of(engine: Engine, job: str) -> list[str]:
    return sorted(m.seat.node for m in job_of(engine, job).members)


def members_of(engine: Engine, job: str) -> list[int]:
    return [m.member for m in job_of(engine, job).gang]


def moves(engine: Engine, job: str) -> list[tuple[int, int, str]]:
    return [(one.before, one.after, one.by) for one in job_of(engine, job).resizes]


def is_live(engine: Engine, job: str) -> bool:
    return engine.is_at(job, "PROCESSING") and job_of(engine, job).is_live


def is_calm(engine: Engine, job: str) -> bool:
    one = job_of(engine, job)
    return one.resize is None and len(one.members) == len(one.gang)


async def history(engine: Engine, job: str) -> list[str]:
    return [str(event["text"]) for event in await engine.requests.events("ana", job)]


async def moved_at(engine: Engine, job: str) -> list[float]:
    history = await engine.requests.events("ana", job)
    return [float(str(event["at_s"])) for event in history if event["kind"] == "scaling"]


# -- for its own sake --------------------------------------------------------------------------------------------------


@WAYS
def test_gang_on_two_nodes_moves_to_one_with_a_reason(play: Callable[..., None], script: Script) -> None:
    async def scene(engine: Engine, pool: SimulatedPool) -> None:
        gang, left, _ = await apart(engine, pool)
        before = pool.step(gang)
        await engine.act(left, Event.CANCEL)
        await engine.until(lambda: job_of(engine, gang).resize is not None)
        view = engine.lifecycle.view(job_of(engine, gang))
        assert (view.state_label, view.reason) == ("Processing · moving", TOGETHER)

        await engine.until(lambda: is_calm(engine, gang))
        assert nodes_of(engine, gang) == ["n1", "n1"]
        assert members_of(engine, gang) == ([0, 2] if script.is_live else [2, 3]), "members that stay continue"
        assert moves(engine, gang) == [(2, 2, "pool")]
        assert job_of(engine, gang).resizes[0].step >= before
        assert job_of(engine, gang).restarts_total == 0
        [decided, done] = [text for text in await history(engine, gang) if "Mov" in text]
        assert decided == f"{TOGETHER} Moving, by the pool."
        assert done.startswith("Moved, by the pool, at step ")
        assert engine.lifecycle.view(job_of(engine, gang)).reason == ""

    play(scene, script)


@pytest.mark.parametrize(("is_live", "count"), [(True, 1), (False, 0)])
def test_nearly_finished_job_moves_only_without_a_restart(play: Callable[..., None], is_live: bool, count: int) -> None:
    async def scene(engine: Engine, pool: SimulatedPool) -> None:
        gang, left, right = await apart(engine, pool)
        await engine.act(left, Event.CANCEL)
        await engine.until(lambda: engine.is_at(gang, "COMPLETED"))
        assert len(moves(engine, gang)) == count
        await engine.act(right, Event.CANCEL)

    play(scene, Script(steps=900, checkpoint_every_steps=100, is_live=is_live))


@WAYS
def test_migrated_job_is_not_migrated_again_within_ten_minutes(play: Callable[..., None], script: Script) -> None:
    async def scene(engine: Engine, pool: SimulatedPool) -> None:
        second = await engine.submit(asks(1, "second"))
        first = await engine.submit(asks(1, "first", is_spread=True))
        gang = await engine.submit(asks(2, "gang"))
        await engine.until(lambda: pool.step(gang) > 300)
        assert [nodes_of(engine, one) for one in (first, second, gang)] == [["x1"], ["x2"], ["x1", "y1"]]

        await engine.act(second, Event.CANCEL)
        await engine.until(lambda: nodes_of(engine, gang) == ["x1", "x2"])
        await engine.act(first, Event.CANCEL)
        await engine.until(lambda: nodes_of(engine, gang) == ["x1", "x1"])
        [rack_s, node_s] = await moved_at(engine, gang)
        assert AGAIN_S <= node_s - rack_s < AGAIN_S + 60

    play(scene, script, (node("x1", 2, "x"), node("x2", 1, "x"), node("y1", 1, "y")))


def test_migration_is_reconsidered_when_its_rest_time_ends(play: Callable[..., None]) -> None:
    """Meanwhile no job arrives, ends or writes a checkpoint."""

    async def scene(engine: Engine, pool: SimulatedPool) -> None:
        second = await engine.submit(asks(1, "second"))
        first = await engine.submit(asks(1, "first", is_spread=True))
        gang = await engine.submit(asks(2, "gang"))
        await engine.until(lambda: is_live(engine, gang))
        await engine.act(second, Event.CANCEL)
        await engine.until(lambda: nodes_of(engine, gang) == ["x1", "x2"] and is_calm(engine, gang))
        await engine.act(first, Event.CANCEL)
        await engine.until(lambda: job_of(engine, first).is_closed)
        assert nodes_of(engine, gang) == ["x1", "x2"]

        await engine.until(lambda: nodes_of(engine, gang) == ["x1", "x1"])
        [rack_s, node_s] = await moved_at(engine, gang)
        assert node_s - rack_s == pytest.approx(AGAIN_S)

    silent = replace(LIVE, checkpoint_every_steps=0)
    play(scene, silent, (node("x1", 2, "x"), node("x2", 1, "x"), node("y1", 1, "y")))


def test_no_migration_while_another_job_makes_room(play: Callable[..., None]) -> None:
    """Devices freed on n1 are reserved for the urgent job, which waits for those of the right one."""

    async def scene(engine: Engine, pool: SimulatedPool) -> None:
        pool.scripts["right-2"] = replace(RESTARTED, checkpoint_s=20.0)
        gang, left, right = await apart(engine, pool, priority=5)
        await engine.until(lambda: pool.step(gang) > 1500)
        urgent = await engine.submit(asks(2, "urgent", priority=10))
        await engine.act(left, Event.CANCEL)
        await engine.until(lambda: engine.is_at(urgent, "PROCESSING"))

        assert any("Preempted: urgent-4" in text for text in await history(engine, right))
        assert nodes_of(engine, urgent) == nodes_of(engine, gang) == ["n1", "n2"]
        assert moves(engine, gang) == []

    play(scene)


# -- for one that waits ------------------------------------------------------------------------------------------------


async def in_the_way(engine: Engine, pool: SimulatedPool) -> tuple[str, str]:
    """Submit the gang, with one free device beside each of its learners, and a job that waits for two on one node."""
    gang, left, right = await apart(engine, pool)
    whole = await engine.submit(asks(1, "whole", gpus=2))
    await engine.act(left, Event.CANCEL)
    await engine.until(lambda: job_of(engine, left).is_closed)
    assert job_of(engine, gang).resize is None, "no gang consolidates while a job waits"
    await engine.act(right, Event.CANCEL)
    await engine.until(lambda: job_of(engine, gang).resize is not None)
    return gang, whole


@WAYS
def test_a_move_lets_one_in_that_would_else_not_fit(play: Callable[..., None], script: Script) -> None:
    async def scene(engine: Engine, pool: SimulatedPool) -> None:
        gang, whole = await in_the_way(engine, pool)
        assert engine.is_at(whole, "QUEUED")
        await engine.until(lambda: engine.is_at(whole, "PROCESSING") and is_calm(engine, gang))

        assert engine.is_at(gang, "PROCESSING")
        assert moves(engine, gang) == [(2, 2, "pool")]
        assert {*nodes_of(engine, gang)}.isdisjoint(nodes_of(engine, whole))
        texts = await history(engine, gang)
        [node_name] = nodes_of(engine, whole)
        why = f"Makes room on {node_name} for the waiting job {whole}; it fits there afterwards."
        assert f"{why} Moving, by the pool." in texts
        assert not any("preempted" in text or "queue" in text for text in texts)

    play(scene, script)


# -- what goes wrong meanwhile -----------------------------------------------------------------------------------------


def test_migration_without_joining_learners_is_retried_after_ten_minutes(play: Callable[..., None]) -> None:
    async def scene(engine: Engine, pool: SimulatedPool) -> None:
        gang, left, _ = await apart(engine, pool)
        await engine.act(left, Event.CANCEL)
        await engine.until(lambda: job_of(engine, gang).resize is not None)
        await engine.until(lambda: is_calm(engine, gang))

        assert (nodes_of(engine, gang), members_of(engine, gang)) == (["n1", "n2"], [0, 1])
        assert (moves(engine, gang), job_of(engine, gang).restarts_total) == ([], 0)
        assert (await history(engine, gang))[
            -1
        ] == "1 joining learner did not start; the job continues at its previous size."

        await engine.until(lambda: nodes_of(engine, gang) == ["n1", "n1"])
        [given_up_s, again_s] = await moved_at(engine, gang)
        assert AGAIN_S <= again_s - given_up_s < AGAIN_S + 60
        assert members_of(engine, gang) == [0, 3]

    play(scene, replace(LIVE, joins_lost=1))


def test_job_waiting_for_an_abandoned_migration_keeps_waiting(play: Callable[..., None]) -> None:
    async def scene(engine: Engine, pool: SimulatedPool) -> None:
        gang, whole = await in_the_way(engine, pool)
        await engine.until(lambda: is_calm(engine, gang))
        assert members_of(engine, gang) == [0, 1]
        assert engine.is_at(whole, "QUEUED")
        assert engine.lifecycle.view(job_of(engine, whole)).place == 1

        await engine.until(lambda: engine.is_at(whole, "PROCESSING"))
        [_, again_s] = await moved_at(engine, gang)
        assert again_s >= (await moved_at(engine, gang))[0] + AGAIN_S

    play(scene, replace(LIVE, joins_lost=1))


@pytest.mark.parametrize(
    ("victim", "left_over", "where"),
    [(0, [1, 2], ["n1", "n2"]), (1, [0, 2], ["n1", "n1"]), (2, [0, 1], ["n1", "n2"])],
    ids=["who stays", "who leaves", "who comes"],
)
def test_learner_death_during_migration_costs_no_restart_and_no_size(
    play: Callable[..., None], victim: int, left_over: list[int], where: list[str]
) -> None:
    async def scene(engine: Engine, pool: SimulatedPool) -> None:
        gang, left, _ = await apart(engine, pool)
        await engine.act(left, Event.CANCEL)
        await engine.until(lambda: 2 in pool.learners(gang))
        pool.kill_learner(gang, victim)
        await engine.until(lambda: is_calm(engine, gang))

        assert (members_of(engine, gang), nodes_of(engine, gang)) == (left_over, where)
        assert job_of(engine, gang).restarts_total == 0
        assert sorted(pool.learners(gang)) == left_over

    play(scene)


def test_halt_during_migration_drops_the_migration(play: Callable[..., None]) -> None:
    async def scene(engine: Engine, pool: SimulatedPool) -> None:
        gang, left, _ = await apart(engine, pool)
        await engine.act(left, Event.CANCEL)
        await engine.until(lambda: 2 in pool.learners(gang))
        await engine.act(gang, Event.HALT)
        await engine.until(lambda: engine.is_at(gang, "HALTED"))
        assert job_of(engine, gang).members == ()
        await engine.act(gang, Event.RESUME)
        await engine.until(lambda: engine.is_at(gang, "PROCESSING"))
        assert nodes_of(engine, gang) == ["n1", "n1"]
        assert moves(engine, gang) == []

    play(scene)
