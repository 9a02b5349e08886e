"""Preflight: problems and start estimate of a job before it is submitted."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest

from dlaas_server.core.model.cluster import Device, Node
from dlaas_server.core.scheduling.policy import Policy
from tests.engine.driving import engine_on, submit
from tests.pools.simulated.simulated_pool import Script, SimulatedPool
from tests.pools.simulated.virtual_clock import VirtualClock


def test_preflight_refuses_an_invalid_metric_pattern(tmp_path: Path) -> None:
    async def whole() -> None:
        engine = await engine_on(tmp_path, SimulatedPool([Node(name="n1")], clock := VirtualClock(0.0)), clock)
        wrong = submit()
        wrong = replace(wrong, spec=replace(wrong.spec, metric_patterns=("loss ([",)))
        found = await engine.requests.preflight("ana", wrong)
        assert found["problems"] == [
            {
                "code": "invalid",
                "text": "spec.metric_patterns: 'loss ([' is not a regular expression "
                "(unterminated character set at position 6)",
            }
        ]
        await engine.close()

    asyncio.run(whole())


def test_preflight_uses_the_lengths_that_the_order_learnt(tmp_path: Path) -> None:
    """Ben's job of unknown length waits for both devices, and is late. A short one may pass it, unless half of the
    pool's work is as short: then who is late goes first among these."""

    async def whole() -> None:
        clock = VirtualClock(1000.0)
        devices = tuple(Device(id=f"n1/{i}", index=i, kind="GPU") for i in range(2))
        pool = SimulatedPool([Node(name="n1", devices=devices)], clock, script=Script(steps=1000))
        engine = await engine_on(tmp_path, pool, clock)
        engine.lifecycle.configured = Policy(age_s=10.0)
        for _ in range(2):
            await engine.submit(submit(name="brief"))
            await engine.until(engine.all_ended)
        runs = await engine.submit(submit(name="brief"))
        waits = (await engine.ask(engine.requests.submit("ben", submit((2, 2), name="wide")))).id
        began_s = clock.now_s()
        await engine.until(lambda: clock.now_s() >= began_s + 60)
        assert (engine.is_at(runs, "PROCESSING"), engine.is_at(waits, "QUEUED")) == (True, True)

        async def said() -> object:
            return (await engine.requests.preflight("ana", submit(name="brief")))["estimate"]

        assert await said() == "would start now"
        order = engine.lifecycle.lengths.order("shortest")
        for _ in range(60):
            order.learn(300.0)
        assert str(await said()).startswith("would wait: needs 1 learner with 1 GPU; 1 fits now")

        brief = await engine.submit(submit(name="brief"))
        await engine.settle()
        assert engine.is_at(brief, "QUEUED"), "as it was said"
        assert len(engine.lifecycle.jobs) == 5, "preflight keeps nothing"
        await engine.close()

    asyncio.run(whole())


def test_pool_without_devices_gives_its_reason_to_job_and_pool(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def whole() -> None:
        pool = SimulatedPool([Node(name="ml")], clock := VirtualClock(0.0))
        monkeypatch.setattr(pool, "no_devices", lambda: "Namespace ml has no quota.")
        engine = await engine_on(tmp_path, pool, clock)

        found = await engine.requests.preflight("ana", submit((2, 2)))

        said = (
            "the job requests 2 devices, but the pool has none. Namespace ml has no quota. Jobs with --gpus 0 can run"
        )
        assert found["problems"] == [{"code": "refused", "text": said}]
        assert engine.lifecycle.pool_view().notices == ("The pool has no devices. Namespace ml has no quota.",)
        await engine.close()

    asyncio.run(whole())
