"""Shrinking for waiting jobs and growing back: jobs above their minimum size, on a simulated pool."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from dlaas_server.core.model.cluster import Device, Node
from dlaas_server.core.model.states import Event
from tests.engine.driving import Engine, engine_on, submit
from tests.pools.simulated.simulated_pool import Script, SimulatedPool
from tests.pools.simulated.virtual_clock import VirtualClock


def test_job_shrinks_for_a_higher_priority_and_grows_back(tmp_path: Path) -> None:
    async def scene() -> None:
        clock = VirtualClock(1000.0)
        devices = tuple(Device(id=f"n1/{i}", index=i, kind="GPU") for i in range(4))
        pool = SimulatedPool([Node(name="n1", devices=devices)], clock, script=Script(steps=200))
        engine: Engine = await engine_on(tmp_path, pool, clock)
        try:
            low = await engine.submit(submit((1, 4), name="low"))
            await engine.until(lambda: engine.lifecycle.jobs[low].checkpoint_step is not None)
            high = await engine.submit(submit((2, 2), name="high", priority=10))
            await engine.until(lambda: engine.is_at(high, "PROCESSING"))
            why = await engine.requests.why("ana", low)
            assert any(f"Makes room for the waiting job {high}. Scaling 4 → 2, by the pool." in text for text in why), (
                why
            )
            await engine.act(high, Event.CANCEL)
            await engine.until(engine.all_ended)

            sizes = [(r.before, r.after, r.by) for r in engine.lifecycle.jobs[low].resizes]
            kinds = [e["kind"] for e in await engine.requests.events("ana", low)]
            texts = [str(e["text"]) for e in await engine.requests.events("ana", low)]
            assert sizes == [(4, 2, "pool"), (2, 4, "pool")]
            assert kinds.count("placed") == 1
            assert "preempted" not in kinds
            assert any(f"Makes room for the waiting job {high}." in text for text in texts)
            assert pool.conflicts == []
        finally:
            await engine.close()

    asyncio.run(scene())


@pytest.mark.parametrize(
    ("after_s", "sizes"),
    [(0.05, [(2, 1, "you"), (1, 0, "halted")]), (0.15, [(2, 1, "you"), (1, 2, "you"), (2, 0, "halted")])],
    ids=["given up", "done, and not yet known"],
)
def test_halt_during_a_resize_counts_the_learners_that_train(
    after_s: float, sizes: list[tuple[int, int, str]], tmp_path: Path
) -> None:
    """Each change begins at the size at which the one before ended, whether the resize takes place or not."""

    async def scene() -> None:
        clock = VirtualClock(1000.0)
        devices = tuple(Device(id=f"n1/{i}", index=i, kind="GPU") for i in range(2))
        script = Script(steps=2000, is_live=True, start_s=0.1)
        pool = SimulatedPool([Node(name="n1", devices=devices)], clock, script=script)
        engine: Engine = await engine_on(tmp_path, pool, clock)
        try:
            job = await engine.submit(submit((1, 2)))
            await engine.until(lambda: engine.is_at(job, "PROCESSING"))
            await engine.scale(job, 1)
            await engine.until(lambda: len(engine.lifecycle.jobs[job].resizes) == 1)
            await engine.until(lambda: len(engine.lifecycle.jobs[job].members) == 1)
            await engine.scale(job, 2)
            assert engine.lifecycle.jobs[job].resize is not None
            clock.advance(clock.now_s() + after_s)
            await engine.act(job, Event.HALT)
            await engine.until(lambda: engine.is_at(job, "HALTED"))

            halted = engine.lifecycle.jobs[job]
            changes = [(one.at_s, one.before, one.after, one.by) for one in halted.resizes]
            changes += [(one.at_s, one.before, 0, one.by) for one in halted.interruptions if one.held_s is None]
            assert [tuple(change[1:]) for change in sorted(changes)] == sizes
        finally:
            await engine.close()

    asyncio.run(scene())
