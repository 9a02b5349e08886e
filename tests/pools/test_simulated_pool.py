"""The simulated pool keeps the contract of a real one, and plays the faults that are asked of it."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, Literal, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dlaas_server.core.model.cluster import Device, Node
from dlaas_server.pools.base import JOURNAL, Pool, PoolError
from jupyter_dlaas.wire.journal import Fact, FactKind, Goal, MemberWanted, Wanted
from jupyter_dlaas.wire.protocol import JobSpec, Submit
from tests.pools.contract import PoolContract
from tests.pools.rig import ENDLESS, facts_of, kinds_of
from tests.pools.simulated.simulated_pool import Fault, Script, SimulatedPool, Trouble, VirtualClock

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


def nodes(count: int = 1, devices: int = 8) -> tuple[Node, ...]:
    return tuple(
        Node(name=f"n{n}", devices=tuple(Device(id=f"n{n}-{i}", index=i, kind="SIM") for i in range(devices)))
        for n in range(count)
    )


@dataclass
class SimulatedRig:
    clock: VirtualClock
    pool: Pool
    simulated: SimulatedPool
    news: list[tuple[str, str]] = field(default_factory=list)

    async def job(self, name: str = "a-1", *, steps: int = ENDLESS, fails_at: int | None = None) -> str:
        faults = () if fails_at is None else (Fault(step=fails_at),)
        self.simulated.scripts[name] = Script(steps=steps, faults=faults)
        await self.pool.create(name, "me", JobSpec(), {})
        await self.pool.put(name, "train.py", b"")
        return name

    async def until(self, is_so: Callable[[], Awaitable[bool]], what: str) -> None:
        for _ in range(10_000):
            if await is_so():
                return
            assert self.clock.step(), f"nothing is to come, and not yet: {what}"
        raise AssertionError(f"never: {what}")

    def kill_guardian(self, job: str) -> None:
        self.simulated.kill_guardian(job)

    def kill_learner(self, job: str, member: int) -> None:
        self.simulated.kill_learner(job, member)

    async def reopened(self) -> Pool:
        await self.pool.close()
        await self.pool.open(lambda job, stream: self.news.append((job, stream)), lambda: None)
        return self.pool

    async def closed(self) -> Pool:
        await self.pool.close()
        return self.pool

    async def slow_job(self, name: str = "a-1") -> str:
        self.simulated.delay_start(name)
        return await self.job(name)

    def release_start(self, job: str) -> None:
        self.simulated.release_start(job)

    def cut(self) -> None:
        self.simulated.cut()

    def restore(self) -> None:
        self.simulated.restore()

    def submit(self) -> Submit:
        self.simulated.script = Script(steps=ENDLESS)
        return Submit(key=f"key-{uuid.uuid4()}", spec=JobSpec(name="job"), source="print('hi')\n")

    def now_s(self) -> float:
        return self.clock.now_s()

    def pass_time(self, seconds: float) -> None:
        self.clock.advance(self.clock.now_s() + seconds)


async def opened(clock: VirtualClock, trouble: Trouble | None = None, script: Script | None = None) -> SimulatedRig:
    pool = SimulatedPool(nodes(), clock, trouble=trouble, script=script)
    rig = SimulatedRig(clock, pool, pool)
    await pool.open(lambda job, stream: rig.news.append((job, stream)), lambda: None)
    return rig


@pytest.fixture
async def rig() -> AsyncIterator[SimulatedRig]:
    one = await opened(VirtualClock(1000.0))
    yield one
    await one.pool.close()


def run(revision: int, members: dict[int, str], *, generation: int | None = None, goal: Goal = Goal.RUN) -> Wanted:
    seats = tuple(MemberWanted(member=m, node="n0", devices=(device,)) for m, device in members.items())
    return Wanted(revision=revision, goal=goal, generation=generation or revision, members=seats)


def numbers(facts: list[Fact]) -> list[int]:
    return [fact.n for fact in facts]


class TestContract(PoolContract):
    """All promises, kept by the fake."""


Blow = Literal["learner", "guardian", "all", "resize"]
blows = st.lists(st.tuples(st.floats(0.01, 3.0), st.sampled_from(get_args(Blow))), max_size=12)


async def after_blows(script: Script, plan: list[tuple[float, Blow]]) -> tuple[list[Any], list[str]]:
    """Return the facts of a job under these faults, with a new generation after each loss."""
    rig = await opened(VirtualClock(1000.0), script=script)
    await rig.pool.create("a-1", "me", JobSpec(), {})
    revision = member = 0

    async def next_generation(learners: int) -> None:
        nonlocal revision, member
        revision += 1
        await rig.pool.act("a-1", run(revision, {member + i: f"n0-{i}" for i in range(learners)}))
        member += learners

    await next_generation(2)
    for wait_s, blow in [*plan, *((5.0, None) for _ in range(40))]:
        rig.clock.advance(rig.clock.now_s() + wait_s)
        facts = await facts_of(rig.pool, "a-1")
        if facts and facts[-1].kind == FactKind.CLOSED:
            return facts, rig.simulated.conflicts
        learners = rig.simulated.learners("a-1")
        if blow == "learner" and learners:
            rig.simulated.kill_learner("a-1", learners[0])
        elif blow == "guardian":
            rig.simulated.kill_guardian("a-1")
        elif blow == "all":
            rig.simulated.kill_all("a-1")
        if blow == "resize" or not rig.simulated.learners("a-1"):
            await next_generation(1 + revision % 3)
        elif not await rig.pool.is_guarded("a-1"):
            await rig.pool.act("a-1", rig.simulated.acts[-1][1])
    raise AssertionError("the job did not end")


@given(blows)
def test_committed_steps_cover_all_steps_once_whatever_hits_the_job(plan: list[tuple[float, Blow]]) -> None:
    script = Script(steps=95, faults=(Fault(step=33), Fault(step=34, rank=1)))
    facts, conflicts = asyncio.run(after_blows(script, plan))
    covered = [(f.first_step, f.step) for f in facts if f.kind == FactKind.COMMITTED]

    assert facts[-1].why == "completed"
    assert numbers(facts) == list(range(len(facts)))
    assert conflicts == []
    assert (covered[0][0], covered[-1][1]) == (0, 95)
    assert all(before[1] == after[0] for before, after in pairwise(covered))


@pytest.mark.parametrize("joins_lost", [0, 1])
async def test_live_gang_resizes_and_survives_a_death(rig: SimulatedRig, joins_lost: int) -> None:
    rig.simulated.scripts["a-1"] = Script(steps=200, is_live=True, joins_lost=joins_lost)
    await rig.pool.create("a-1", "me", JobSpec(), {})
    await rig.pool.act("a-1", run(1, {0: "n0-0", 1: "n0-1"}))
    rig.clock.advance(rig.clock.now_s() + 1)
    await rig.pool.act("a-1", run(2, {1: "n0-1", 2: "n0-2"}))
    rig.clock.advance(rig.clock.now_s() + 1)
    together = rig.simulated.learners("a-1")
    assert together == ((0, 1) if joins_lost else (1, 2)), "no learner leaves for one that never came"
    rig.simulated.kill_learner("a-1", 1)
    rig.clock.advance(rig.clock.now_s() + 100)

    facts = await facts_of(rig.pool, "a-1")
    covered = [(f.first_step, f.step) for f in facts if f.kind == FactKind.COMMITTED]
    groups = [(f.kind, f.members) for f in facts if getattr(f, "members", None) is not None]
    assert groups == [
        (FactKind.GENERATION, together),
        (FactKind.REGROUPED, tuple(m for m in together if m != 1)),
    ]
    assert (covered[0][0], covered[-1][1]) == (0, 200)
    assert all(before[1] == after[0] for before, after in pairwise(covered))
    assert (facts[-1].why, rig.simulated.conflicts) == ("completed", [])


async def test_late_facts_are_readable_only_later() -> None:
    rig = await opened(VirtualClock(), Trouble(late_s=5.0))
    job = await rig.job()
    await rig.pool.act(job, run(1, {0: "n0-0"}))
    rig.clock.advance(4.0)
    early = await kinds_of(rig.pool, job)
    rig.clock.advance(6.0)

    assert early == []
    assert FactKind.GUARDIAN_UP in await kinds_of(rig.pool, job)


async def test_repeated_and_reordered_facts_come_in_disorder_and_complete() -> None:
    rig = await opened(VirtualClock(), Trouble(is_repeated=True, is_reordered=True, seed=3))
    job = await rig.job(steps=50)
    await rig.pool.act(job, run(1, {0: "n0-0"}))
    rig.clock.advance(2.0)
    first, offset = await rig.pool.facts(job, 0)
    rig.clock.advance(100.0)
    second, _ = await rig.pool.facts(job, offset)
    got = numbers(list(first)) + numbers(list(second))

    assert got != sorted(set(got))
    assert sorted(set(got)) == list(range(max(got) + 1))


async def test_a_device_that_is_lent_twice_is_caught(rig: SimulatedRig) -> None:
    for name in ("a-1", "b-1"):
        await rig.job(name)
        await rig.pool.act(name, run(1, {0: "n0-0"}))
    rig.clock.advance(rig.clock.now_s() + 1)

    assert len(rig.simulated.conflicts) == 1
    assert "b-1" in rig.simulated.conflicts[0]


async def test_a_start_can_be_refused_so_many_times(rig: SimulatedRig) -> None:
    job = await rig.job()
    rig.simulated.starts_refused[job] = 1
    with pytest.raises(PoolError):
        await rig.pool.act(job, run(1, {0: "n0-0"}))
    await rig.pool.act(job, run(1, {0: "n0-0"}))

    assert await rig.pool.is_guarded(job) is True


async def test_an_unreachable_job_is_neither_guarded_nor_not(rig: SimulatedRig) -> None:
    job = await rig.job()
    rig.simulated.unreachable.add(job)

    assert await rig.pool.is_guarded(job) is None
    with pytest.raises(PoolError):
        await rig.pool.facts(job, 0)


async def test_next_guardian_reports_events_it_missed(rig: SimulatedRig) -> None:
    job = await rig.job(steps=20)
    await rig.pool.act(job, run(1, {0: "n0-0"}))
    rig.clock.advance(rig.clock.now_s() + 0.5)
    rig.simulated.kill_guardian(job)
    rig.clock.advance(rig.clock.now_s() + 100)
    before = await kinds_of(rig.pool, job)
    await rig.pool.act(job, run(1, {0: "n0-0"}))
    rig.clock.advance(rig.clock.now_s() + 1)
    after = await kinds_of(rig.pool, job)

    assert FactKind.COMPLETED not in before
    assert after[len(before)] == FactKind.GUARDIAN_UP
    assert after[-1] == FactKind.CLOSED
    assert FactKind.COMPLETED in after


async def test_learner_ignoring_a_halt_is_killed_after_its_grace(rig: SimulatedRig) -> None:
    rig.simulated.scripts["a-1"] = Script(steps=ENDLESS, ignores_halt=True)
    await rig.pool.create("a-1", "me", JobSpec(), {})
    await rig.pool.act("a-1", run(1, {0: "n0-0"}))
    rig.clock.advance(rig.clock.now_s() + 2)
    await rig.pool.act("a-1", run(2, {0: "n0-0"}, goal=Goal.HALT))
    rig.clock.advance(rig.clock.now_s() + 29)
    before = await kinds_of(rig.pool, "a-1")
    rig.clock.advance(rig.clock.now_s() + 2)
    facts = await facts_of(rig.pool, "a-1")

    assert FactKind.HALTED not in before
    assert [f.signal for f in facts if f.kind == FactKind.LEARNER_DOWN] == [9]
    assert facts[-1].why == "halted"


async def test_late_withdrawal_of_a_halt_still_closes(rig: SimulatedRig) -> None:
    job = await rig.job()
    await rig.pool.act(job, run(1, {0: "n0-0"}))
    rig.clock.advance(rig.clock.now_s() + 1)
    await rig.pool.act(job, run(2, {0: "n0-0"}, generation=1, goal=Goal.HALT))
    rig.clock.advance(rig.clock.now_s() + 0.01)
    await rig.pool.act(job, run(3, {0: "n0-0"}, generation=1))
    rig.clock.advance(rig.clock.now_s() + 10)

    assert (await facts_of(rig.pool, job))[-1].why == "halted"


async def test_guardian_of_a_closed_job_writes_nothing(rig: SimulatedRig) -> None:
    job = await rig.job(steps=5)
    await rig.pool.act(job, run(1, {0: "n0-0"}))
    rig.clock.advance(rig.clock.now_s() + 10)
    before = await facts_of(rig.pool, job)
    await rig.pool.act(job, run(1, {0: "n0-0"}))
    rig.clock.advance(rig.clock.now_s() + 10)

    assert await facts_of(rig.pool, job) == before
    assert await rig.pool.is_guarded(job) is False


async def test_a_torn_line_at_the_end_is_left_for_later(rig: SimulatedRig) -> None:
    job = await rig.job()
    await rig.pool.act(job, run(1, {0: "n0-0"}))
    rig.clock.advance(rig.clock.now_s() + 0.5)
    before = await rig.pool.facts(job, 0)
    rig.simulated.tear_journal(job)

    assert await rig.pool.facts(job, 0) == before


async def test_a_damaged_line_is_skipped(rig: SimulatedRig) -> None:
    job = await rig.job()
    await rig.pool.act(job, run(1, {0: "n0-0"}))
    rig.clock.advance(rig.clock.now_s() + 0.5)
    good, offset = await rig.pool.facts(job, 0)
    rig.simulated.tear_journal(job, b"garbage\n")

    found, _ = await rig.pool.facts(job, offset)
    assert [fact.kind for fact in found] == [FactKind.DAMAGED]
    assert list((await rig.pool.facts(job, 0))[0])[:-1] == list(good)


async def test_changed_nodes_are_reported() -> None:
    notices: list[bool] = []
    pool = SimulatedPool(nodes(), VirtualClock())
    await pool.open(lambda job, stream: None, lambda: notices.append(True))
    pool.set_nodes(nodes(2))

    assert notices == [True]
    assert [node.name for node in pool.nodes()] == ["n0", "n1"]


async def test_silent_pool_reports_nothing() -> None:
    rig = await opened(VirtualClock(), Trouble(is_silent=True))
    job = await rig.job()
    await rig.pool.act(job, run(1, {0: "n0-0"}))
    rig.clock.advance(10.0)

    assert rig.news == []
    assert (await rig.pool.read(job, JOURNAL, 0, 10)).size > 0


def test_virtual_clock_calls_in_order_and_on_time() -> None:
    clock, calls = VirtualClock(), list[tuple[str, float]]()
    clock.call_at(2.0, lambda: calls.append(("b", clock.now_s())))
    clock.call_at(1.0, lambda: calls.append(("a", clock.now_s())))
    clock.call_at(2.0, lambda: calls.append(("c", clock.now_s())))
    clock.advance(1.5)
    first = list(calls)
    clock.advance(5.0)

    assert first == [("a", 1.0)]
    assert calls == [("a", 1.0), ("b", 2.0), ("c", 2.0)]
    assert clock.now_s() == 5.0
    assert clock.next_s is None


async def test_requested_checkpoint_is_taken_once_while_training_continues(rig: SimulatedRig) -> None:
    rig.simulated.scripts["a-1"] = Script(steps=ENDLESS, checkpoint_every_steps=0)
    await rig.pool.create("a-1", "me", JobSpec(), {})
    await rig.pool.put("a-1", "train.py", b"")
    seat = (MemberWanted(member=0, node=rig.pool.nodes()[0].name),)
    for revision, checkpoints in ((1, 0), (2, 1), (3, 1)):
        document = Wanted(revision=revision, goal=Goal.RUN, generation=1, members=seat, checkpoints=checkpoints)
        await rig.pool.act("a-1", document)

        async def has_read(revision: int = revision) -> bool:
            facts = await facts_of(rig.pool, "a-1")
            is_seen = any(fact.kind is FactKind.SEEN and fact.revision == revision for fact in facts)
            return is_seen and any(fact.kind is FactKind.GENERATION for fact in facts)

        await rig.until(has_read, f"revision {revision} was read")

    kinds = await kinds_of(rig.pool, "a-1")
    assert kinds.count(FactKind.CHECKPOINT) == 1
    assert FactKind.LEARNER_DOWN not in kinds
