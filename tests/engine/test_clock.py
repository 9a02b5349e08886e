"""Clock of the pool: it never jumps, continues over restarts of the engine, and is shown as the time of day."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from pathlib import Path

from dlaas_server.core.model.cluster import Device, Node
from dlaas_server.engine.pool_clock import PoolClock
from dlaas_server.pools.local.fact_times import on_clock
from jupyter_dlaas.runtime.system.process import boot_id
from jupyter_dlaas.wire.journal import Fact, GenerationLost, GuardianUp
from jupyter_dlaas.wire.protocol import JobSpec, Submit
from tests.engine.driving import Engine, engine_on
from tests.pools.simulated.simulated_pool import Script, SimulatedPool
from tests.pools.simulated.virtual_clock import VirtualClock


@dataclass
class Machine:
    """A machine whose clocks are set by hand."""

    up_s: float = 100.0
    wall_s: float = 1_000_000.0

    def clock(self, folder: Path, boot: str = "b1") -> PoolClock:
        return PoolClock(folder, uptime=lambda: self.up_s, slept=lambda: 0.0, wall=lambda: self.wall_s, boot=boot)

    def run(self, seconds: float, jump_s: float = 0.0) -> None:
        self.up_s += seconds
        self.wall_s += seconds + jump_s


def test_clock_that_is_set_moves_no_time(tmp_path: Path) -> None:
    machine = Machine()
    clock = machine.clock(tmp_path)
    for jump_s in (86_400.0, -90_000.0, 0.3):
        before_s = clock.now_s()
        machine.run(5.0, jump_s)
        assert clock.now_s() == before_s + 5.0

    assert round(clock.drift_s(), 1) == -3599.7
    assert clock.now_s() + clock.drift_s() == machine.wall_s


def test_clock_continues_when_the_engine_restarts(tmp_path: Path) -> None:
    machine = Machine()
    before_s = machine.clock(tmp_path).now_s()
    machine.run(60.0, jump_s=-3600.0)

    again = machine.clock(tmp_path)
    again.start_after(before_s + 10_000.0)

    assert again.now_s() == before_s + 60.0


def test_clock_after_a_reboot_starts_no_earlier_than_stored_times(tmp_path: Path) -> None:
    machine = Machine()
    stored_s = machine.clock(tmp_path).now_s()
    machine.up_s, machine.wall_s = 3.0, 500.0  # its battery was empty

    clock = machine.clock(tmp_path, boot="b2")
    clock.start_after(stored_s)

    assert clock.now_s() == stored_s
    assert machine.clock(tmp_path, boot="b2").now_s() == stored_s


def test_facts_are_dated_by_uptime_of_the_same_boot_only() -> None:
    facts: list[Fact] = [
        GenerationLost(n=0, at_s=5.0, up_s=50.0),
        GuardianUp(n=1, at_s=6.0, boot=boot_id(), up_s=60.0),
        GenerationLost(n=2, at_s=7.0),
        GenerationLost(n=3, at_s=8.0, up_s=80.0),
        GuardianUp(n=4, at_s=9.0, up_s=1.0, boot="earlier"),
    ]

    dated = on_clock(facts, lambda up_s: 1000.0 + up_s, is_of_this_boot=False)

    assert [fact.at_s for fact in dated] == [5.0, 1060.0, 7.0, 1080.0, 9.0]


LIMITED = Submit(key="test-limited", spec=JobSpec(max_time_s=60.0), source="")


async def limited(folder: Path) -> tuple[Engine, str]:
    """Start an engine with a job that trains and has a limit of a minute."""
    clock = VirtualClock(1000.0)
    node = Node(name="n1", devices=(Device(id="n1/0", index=0, kind="CPU"),), cpus=1.0)
    engine = await engine_on(folder, SimulatedPool([node], clock, script=Script(steps=10_000)), clock)
    job = await engine.submit(LIMITED)
    await engine.until(lambda: engine.is_at(job, "PROCESSING"))
    return engine, job


async def set_clock(folder: Path) -> None:
    engine, job = await limited(folder)
    before, events = engine.lifecycle.view(engine.lifecycle.jobs[job]), await engine.requests.events("ana", job)

    engine.lifecycle.drift = lambda: 3600.0

    after = engine.lifecycle.view(engine.lifecycle.jobs[job])
    assert after.submitted_s == before.submitted_s + 3600.0
    assert after.started_s == (before.started_s or 0.0) + 3600.0
    shifted = [event["at_s"] for event in await engine.requests.events("ana", job)]
    assert shifted == [float(str(event["at_s"])) + 3600.0 for event in events]
    await engine.close()


def test_views_and_stories_show_the_time_of_day(tmp_path: Path) -> None:
    asyncio.run(set_clock(tmp_path))


async def asleep(folder: Path) -> None:
    engine, job = await limited(folder)
    engine.clock.advance(engine.clock.now_s() + 30.0)
    before_s, slept_s = engine.clock.now_s(), 8 * 3600.0
    engine.lifecycle.clock = lambda: engine.clock.now_s() + slept_s
    engine.lifecycle.slept = lambda: slept_s
    await engine.settle()
    assert engine.is_at(job, "PROCESSING")

    await engine.until(lambda: engine.is_at(job, "HALTED"), limit_s=100.0)

    assert 25.0 < engine.clock.now_s() - before_s < 60.0
    await engine.close()


def test_sleeping_machine_uses_nothing_of_a_time_limit(tmp_path: Path) -> None:
    asyncio.run(asleep(tmp_path))
