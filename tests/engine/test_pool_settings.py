"""Settings of the pool: cordons, drains, queues, order. They survive the engine."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path

import pytest

from dlaas_server.core.model.cluster import Device, Node
from dlaas_server.core.model.states import Event
from dlaas_server.core.scheduling.scheduler import Policy, Share
from dlaas_server.engine.pool_admin import Administration
from dlaas_server.rest.routes import DrainAsked, PoolChange, QueueChange
from jupyter_dlaas.wire.protocol import (
    Forbidden,
    JobView,
    NotAllowed,
    NotFound,
    Placement,
    PoolOrder,
    PoolPlacement,
    Refused,
    Submit,
)
from tests.engine.driving import Engine, engine_on, submit
from tests.pools.simulated.simulated_pool import Script, SimulatedPool
from tests.pools.simulated.virtual_clock import VirtualClock

Play = Callable[[Engine, Administration], Awaitable[None]]
LONG = Script(steps=2000)


def two_nodes(slots: int = 2) -> list[Node]:
    return [
        Node(name=name, devices=tuple(Device(id=f"{name}/{i}", index=i, kind="GPU") for i in range(slots)))
        for name in ("n1", "n2")
    ]


@pytest.fixture
def play(tmp_path: Path) -> Callable[..., None]:
    """Run a scene on two nodes of two, and check at its end that no device was ever held twice."""

    def run(scene: Play, script: Script = LONG) -> None:
        async def whole() -> None:
            clock = VirtualClock(1000.0)
            pool = SimulatedPool(two_nodes(), clock, script=script)
            engine = await engine_on(tmp_path, pool, clock)
            try:
                await scene(engine, Administration(engine.lifecycle))
                assert pool.conflicts == []
            finally:
                await engine.close()

        asyncio.run(whole())

    return run


def wide(learners: tuple[int, int], *, name: str = "wide", queue: str = "default") -> Submit:
    """Return a submit of a job with a learner on each node, if they fit."""
    request = submit(learners, name=name)
    return replace(request, spec=replace(request.spec, placement=Placement.SPREAD, queue=queue))


def nodes_of(engine: Engine, job: str) -> list[str]:
    return sorted(m.seat.node for m in engine.lifecycle.jobs[job].members)


def view(engine: Engine, job: str) -> JobView:
    return engine.lifecycle.view(engine.lifecycle.jobs[job])


async def texts(engine: Engine, job: str) -> list[str]:
    return [str(event["text"]) for event in await engine.requests.events("ana", job)]


def has_checkpoint(engine: Engine, *jobs: str) -> Callable[[], bool]:
    return lambda: all(engine.lifecycle.jobs[job].checkpoint_step for job in jobs)


def test_cordoned_node_gets_no_new_jobs_and_keeps_running_ones(play: Callable[..., None]) -> None:
    async def scene(engine: Engine, administration: Administration) -> None:
        first = await engine.submit(learners=(2, 2))
        await engine.until(lambda: engine.is_at(first, "PROCESSING"))
        await engine.ask(administration.cordon("ana", "n1"))
        second, third = await engine.submit(learners=(2, 2)), await engine.submit(learners=(2, 2))
        await engine.settle()

        assert (nodes_of(engine, first), nodes_of(engine, second)) == (["n1", "n1"], ["n2", "n2"])
        assert view(engine, third).reason.endswith("n1 is cordoned by ana.")
        await engine.ask(administration.uncordon("ana", "n1"))
        await engine.until(engine.all_ended)
        assert set(engine.states().values()) == {"COMPLETED"}

    play(scene, Script())


def test_pool_events_list_the_requests_of_administrators(play: Callable[..., None]) -> None:
    async def scene(engine: Engine, administration: Administration) -> None:
        await engine.ask(administration.cordon("ana", "n1"))
        await engine.ask(administration.cordon("ana", "n1"))
        await engine.ask(administration.set_queue("ana", "research", QueueChange(guaranteed=3)))
        await engine.ask(administration.uncordon("ana", "n1"))
        assert [event["text"] for event in await administration.events("ana")] == [
            "ana cordoned n1: no new learners are placed on it.",
            "ana created the queue research: 3 GPUs guaranteed, weight 1.",
            "ana uncordoned n1: it accepts learners again.",
        ], "a request that changes nothing leaves no event"
        with pytest.raises(Forbidden, match="eve may not read the events of the pool"):
            await administration.events("eve")

    play(scene)


def test_drain_shrinks_elastic_jobs_moves_others_and_preempts_last(play: Callable[..., None]) -> None:
    async def scene(engine: Engine, administration: Administration) -> None:
        elastic, fixed = (
            await engine.submit(wide((1, 2), name="elastic")),
            await engine.submit(wide((2, 2), name="fixed")),
        )
        await engine.until(has_checkpoint(engine, elastic, fixed))
        assert nodes_of(engine, elastic) == nodes_of(engine, fixed) == ["n1", "n2"]

        seen = administration.preview("ana", "n1")
        assert [(one.job, one.way, one.before, one.after) for one in seen.jobs] == [
            (elastic, "shrink", 2, 1),
            (fixed, "preempt", 2, 0),
        ]
        assert seen.gist == "n1: 1 job shrinks, 1 job is preempted."
        assert view(engine, elastic).size.held == 2, "a preview does nothing"

        await engine.ask(administration.drain("ana", "n1", DrainAsked(plan=seen.plan)))
        await engine.until(lambda: engine.is_at(fixed, "QUEUED") and view(engine, elastic).transition is None)
        assert nodes_of(engine, elastic) == ["n2"]
        assert (
            "Preempted: n1 is being drained by ana. Nothing was lost: it continues from step"
            in view(engine, fixed).reason
        )
        assert (
            "n1 is being drained by ana: elastic-1 shrinks from 2 to 1 learner and continues. "
            "Scaling 2 → 1, by a drain." in await texts(engine, elastic)
        )

        await engine.ask(administration.uncordon("ana", "n1"))
        await engine.until(lambda: engine.is_at(fixed, "PROCESSING"))
        assert nodes_of(engine, fixed) == ["n1", "n1"]
        assert any(text.startswith("Placed 2 learners on n1.") for text in await texts(engine, fixed))

    play(scene)


def test_drained_job_moves_and_continues_from_its_checkpoint(play: Callable[..., None]) -> None:
    async def scene(engine: Engine, administration: Administration) -> None:
        job = await engine.submit(learners=(2, 2))
        await engine.until(has_checkpoint(engine, job))
        await engine.ask(administration.drain("ana", "n1", DrainAsked()))
        assert view(engine, job).state_label == "Processing · moving"
        await engine.until(lambda: view(engine, job).transition is None)

        assert nodes_of(engine, job) == ["n2", "n2"]
        assert engine.lifecycle.jobs[job].step > 0
        assert [one.by for one in view(engine, job).resizes] == ["drain"]

    play(scene)


def test_a_job_without_a_checkpoint_stays_until_it_has_one(play: Callable[..., None]) -> None:
    async def scene(engine: Engine, administration: Administration) -> None:
        job = await engine.submit(learners=(2, 2))
        await engine.until(lambda: engine.is_at(job, "PROCESSING"))
        await engine.ask(administration.drain("ana", "n1", DrainAsked()))

        assert nodes_of(engine, job) == ["n1", "n1"]
        assert view(engine, job).reason == (
            "n1 is being drained by ana; job-1 has no checkpoint yet; it stays until it has one, or ends."
        )
        await engine.until(lambda: nodes_of(engine, job) == ["n2", "n2"])

    play(scene)


def test_blocking_job_without_periodic_checkpoints_gets_a_checkpoint_request(play: Callable[..., None]) -> None:
    async def scene(engine: Engine, administration: Administration) -> None:
        job = await engine.submit(learners=(2, 2))
        await engine.until(lambda: engine.is_at(job, "PROCESSING"))
        await engine.ask(administration.drain("ana", "n1", DrainAsked()))
        await engine.until(lambda: nodes_of(engine, job) == ["n2", "n2"])
        asked = "The pool (n1 is being drained by ana) requested a checkpoint; it is written at the next step."
        assert asked in await texts(engine, job)

        await engine.until(lambda: engine.is_at(job, "PROCESSING"))
        low = await engine.submit(submit((2, 2), name="low"))
        await engine.ask(administration.uncordon("ana", "n1"))
        await engine.until(lambda: engine.is_at(low, "PROCESSING"))
        urgent = await engine.submit(submit((2, 2), name="urgent", priority=100))
        await engine.until(lambda: engine.is_at(urgent, "PROCESSING"))
        entries = [text for one in (job, low) for text in await texts(engine, one)]
        assert f"The pool, for {urgent} (ana), requested a checkpoint; it is written at the next step." in entries
        assert any(text.startswith(f"Preempted: {urgent}") for text in entries)

    play(scene, Script(steps=20_000, checkpoint_every_steps=0))


def test_a_drain_that_was_planned_for_another_picture_is_refused(play: Callable[..., None]) -> None:
    async def scene(engine: Engine, administration: Administration) -> None:
        seen = administration.preview("ana", "n1")
        assert seen.gist == "No job runs on n1; no new learners would be placed there."
        await engine.submit(learners=(2, 2))
        await engine.settle()

        with pytest.raises(NotAllowed, match="n1 has changed since this drain was planned"):
            await engine.ask(administration.drain("ana", "n1", DrainAsked(plan=seen.plan)))
        assert engine.lifecycle.nodes()[0].cordoned is None

    play(scene)


def test_pool_settings_survive_an_engine_crash(tmp_path: Path) -> None:
    async def whole() -> None:
        clock = VirtualClock(1000.0)
        pool = SimulatedPool(two_nodes(), clock, script=LONG)
        engine = await engine_on(tmp_path, pool, clock)
        administration = Administration(engine.lifecycle)
        await engine.ask(administration.drain("ana", "n1", DrainAsked()))
        await engine.ask(administration.set_queue("ana", "research", QueueChange(guaranteed=1)))
        change = PoolChange(
            order=PoolOrder.LAS,
            preemption=False,
            placement=PoolPlacement.SPREAD,
            spot_price=0.0,
            spot_notice_s=90.0,
        )
        await engine.ask(administration.change_pool("ana", change))
        before = engine.lifecycle.pool_view()
        await engine.close()

        again = await engine_on(tmp_path, pool, clock)
        assert again.lifecycle.pool_view() == before
        assert (before.order, before.preemption, before.placement) == ("las", False, "spread")
        assert (before.spot_price, before.spot_notice_s) == (0.0, 90.0)
        assert [(one.name, one.guaranteed) for one in before.queues] == [("default", 0), ("research", 1)]
        assert [node.cordoned for node in before.nodes] == ["being drained by ana", None]
        await again.close()

    asyncio.run(whole())


def test_only_administrators_change_pool_settings(play: Callable[..., None]) -> None:
    async def scene(engine: Engine, administration: Administration) -> None:
        asked = (
            lambda user: administration.cordon(user, "n1"),
            lambda user: administration.uncordon(user, "n1"),
            lambda user: administration.drain(user, "n1", DrainAsked()),
            lambda user: administration.set_queue(user, "research", QueueChange(weight=2.0)),
            lambda user: administration.change_pool(user, PoolChange(order=PoolOrder.FIFO)),
            lambda user: administration.remove_queue(user, "research"),
        )
        for ask in asked:
            with pytest.raises(
                Forbidden, match=r"ben may not .*: only ana and the admins in the pool's config.toml may"
            ):
                await engine.ask(ask("ben"))
        with pytest.raises(Forbidden, match="ben may not drain nodes"):
            administration.preview("ben", "n1")
        assert engine.lifecycle.settings == type(engine.lifecycle.settings)()

        engine.lifecycle.admins = frozenset({"ben"})
        for ask in asked:
            await engine.ask(ask("ben"))

    play(scene)


def test_nodes_and_queues_that_there_are_not_are_named(play: Callable[..., None]) -> None:
    async def scene(engine: Engine, administration: Administration) -> None:
        for ask in (administration.cordon, administration.uncordon):
            with pytest.raises(NotFound, match="there is no node 'n9'; the pool's nodes: n1, n2"):
                await engine.ask(ask("ana", "n9"))
        with pytest.raises(Refused, match="there is no queue 'research'; the pool's queues: default"):
            await engine.submit(wide((1, 1), queue="research"))
        with pytest.raises(NotAllowed, match="5 GPUs cannot be guaranteed; the pool has 4, of which 0"):
            await engine.ask(administration.set_queue("ana", "research", QueueChange(guaranteed=5)))
        await engine.ask(administration.set_queue("ana", "research", QueueChange(guaranteed=4)))
        assert await engine.submit(wide((1, 1), queue="research")) == "wide-1"

    play(scene)


def test_start_estimate_is_compared_with_the_actual_start(play: Callable[..., None]) -> None:
    async def scene(engine: Engine, administration: Administration) -> None:
        for _ in range(2):
            await engine.submit(learners=(4, 4))
        await engine.until(engine.all_ended)
        runs, waits = await engine.submit(learners=(4, 4)), await engine.submit(learners=(4, 4))
        await engine.settle()
        said = engine.lifecycle.jobs[waits].start_estimate
        assert said is not None
        assert "Expected to start in" in view(engine, waits).reason
        await engine.until(engine.all_ended)

        tested = {one.job: one for one in engine.lifecycle.forecasts}
        assert tested[waits].estimate == said
        assert runs not in tested, "it did not wait"
        assert " start estimate" in engine.lifecycle.pool_view().track_record
        entries = await texts(engine, waits)
        assert entries[1].startswith("Waiting: needs 4 GPUs at once; 0 are free.")
        assert entries[2].startswith("Expected to start in ")
        assert "Its start estimate was " in entries[3]
        assert "; it waited " in entries[3]

    play(scene, Script())


def test_why_names_place_order_share_and_device_holders(play: Callable[..., None]) -> None:
    async def scene(engine: Engine, administration: Administration) -> None:
        await engine.ask(administration.change_pool("ana", PoolChange(order=PoolOrder.FAIR)))
        await engine.ask(administration.set_queue("ana", "research", QueueChange(guaranteed=3)))
        await engine.submit(learners=(4, 4))
        await engine.until(lambda: engine.is_at("job-1", "PROCESSING") and "job-1" in engine.lifecycle.progress)
        await engine.submit(wide((1, 1), queue="research"))
        waits = await engine.submit(learners=(4, 4))
        await engine.settle()

        said = await engine.requests.why("ana", waits)
        assert said[0] == "job-3 is queued (2nd of 2)."
        assert said[2] == "It is 2nd of 2 in the queue; the pool's order is fair; its priority is 0."
        assert said[3] == "Ahead of it: wide-2."
        assert said[4].startswith("job-1 (ana) holds 4 GPUs on n1, n2 for about ")
        assert said[5].startswith("No start estimate: the run time of wide-2 is unknown.")
        assert said[6] == "Its queue default holds 4 GPUs and has no guarantee (weight 1)."
        assert "Its queue research holds 0 of its 3 guaranteed GPUs." in await engine.requests.why("ana", "wide-2")

    play(scene)


def test_job_without_a_placement_uses_the_pool_placement(play: Callable[..., None]) -> None:
    async def scene(engine: Engine, administration: Administration) -> None:
        packed = await engine.submit(learners=(2, 2))
        await engine.until(lambda: engine.is_at(packed, "PROCESSING"))
        assert nodes_of(engine, packed) == ["n1", "n1"]
        await engine.act(packed, Event.CANCEL)
        await engine.until(engine.all_ended)

        await engine.ask(administration.change_pool("ana", PoolChange(placement=PoolPlacement.SPREAD)))
        assert engine.lifecycle.pool_view().placement == "spread"
        apart, asked = await engine.submit(learners=(2, 2)), submit((2, 2))
        together = await engine.submit(replace(asked, spec=replace(asked.spec, placement=Placement.PACK)))
        await engine.settle()
        assert nodes_of(engine, apart) == ["n1", "n2"]
        assert nodes_of(engine, together) == ["n1", "n2"], "no node has two left: pack takes what there is"

    play(scene)


def test_topology_gang_waits_for_one_node_and_relaxes_later(
    play: Callable[..., None],
) -> None:
    async def scene(engine: Engine, administration: Administration) -> None:
        await engine.ask(administration.change_pool("ana", PoolChange(placement=PoolPlacement.TOPOLOGY)))
        apart = await engine.submit(wide((2, 2), name="apart"))
        gang = await engine.submit(learners=(2, 2))
        await engine.settle()
        assert nodes_of(engine, apart) == ["n1", "n2"]
        assert "Waits for devices on one node; accepts devices further apart after 2 min." in view(engine, gang).reason

        began_s = engine.clock.now_s()
        await engine.until(lambda: engine.is_at(gang, "PROCESSING"))
        assert engine.clock.now_s() >= began_s + 120
        assert nodes_of(engine, gang) == ["n1", "n2"]

    play(scene, Script(steps=100_000))


def test_created_queue_can_be_removed_once_empty(play: Callable[..., None]) -> None:
    async def scene(engine: Engine, administration: Administration) -> None:
        engine.lifecycle.configured = Policy(shares={"fixed": Share(guaranteed=1)})
        await engine.ask(administration.set_queue("ana", "research", QueueChange(guaranteed=2)))
        runs = await engine.submit(wide((1, 1), queue="research"))
        await engine.settle()

        for name, refused, says in (
            ("research", NotAllowed, r"in use: 1 job in it has not ended \(wide-1\). Wait for them, or cancel them"),
            ("default", NotAllowed, "cannot be removed"),
            ("fixed", NotAllowed, "defined in the pool's config.toml; remove it there"),
            ("teaching", NotFound, "there is no queue 'teaching'; the pool's queues: default, fixed, research"),
        ):
            with pytest.raises(refused, match=says):
                await engine.ask(administration.remove_queue("ana", name))
        await engine.act(runs, Event.CANCEL)
        await engine.until(engine.all_ended)
        await engine.ask(administration.remove_queue("ana", "research"))
        assert [one.name for one in engine.lifecycle.pool_view().queues] == ["default", "fixed"]
        with pytest.raises(Refused, match="there is no queue 'research'"):
            await engine.submit(wide((1, 1), queue="research"))

    play(scene)
