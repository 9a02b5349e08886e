"""Rigs of the pool contract: an adapter under test, and what tests need of it beside the `Pool` protocol."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Protocol

from dlaas_server.pools.base import Pool
from jupyter_dlaas.wire.journal import FactKind, Goal, MemberWanted, Wanted
from jupyter_dlaas.wire.protocol import Submit

ENDLESS = 100_000
UP = FactKind.LEARNER_UP
DOWN = FactKind.LEARNER_DOWN


class Rig(Protocol):
    """A pool under test, and what its tests need beside the contract."""

    pool: Pool
    news: list[tuple[str, str]]
    """What `changed` was called with."""

    async def job(self, name: str = "a-1", *, steps: int = ENDLESS, fails_at: int | None = None) -> str:
        """Create a job whose learners take so many short steps, print one line each, and (first time) fail at one."""

    async def until(self, is_so: Callable[[], Awaitable[bool]], what: str) -> None:
        """Let time pass until something is so; fails where it never is."""

    def kill_guardian(self, job: str) -> None:
        """As `kill -9`."""

    def kill_learner(self, job: str, member: int) -> None:
        """As `kill -9`."""

    async def reopened(self) -> Pool:
        """Return the pool as a new engine finds it; the old one is closed."""

    async def closed(self) -> Pool:
        """Return the pool, closed, for an engine that opens it."""

    async def slow_job(self, name: str = "a-1") -> str:
        """Create a job whose processes do not start until `release_start`; `waiting` reports that wait."""

    def release_start(self, job: str) -> None:
        """End what delays the start of a slow job."""

    def cut(self) -> None:
        """From now on the pool cannot be reached; its jobs continue."""

    def restore(self) -> None:
        """Make the pool reachable again."""

    def submit(self) -> Submit:
        """Return a request for a job with one learner that takes so many short steps."""

    def now_s(self) -> float:
        """Time of an engine on this pool."""

    def pass_time(self, seconds: float) -> None:
        """Let time pass for the engine, without waiting for it."""


def wanted(
    revision: int = 1, members: Sequence[int] = (0,), *, goal: Goal = Goal.RUN, generation: int = 1, node: str
) -> Wanted:
    seats = tuple(MemberWanted(member=m, node=node) for m in members)
    return Wanted(revision=revision, goal=goal, generation=generation, members=seats, grace_s=5.0)


async def facts_of(pool: Pool, job: str) -> list[Any]:
    return list((await pool.facts(job, 0))[0])


async def kinds_of(pool: Pool, job: str) -> list[FactKind]:
    return [fact.kind for fact in await facts_of(pool, job)]


def members_of(facts: Sequence[Any], kind: FactKind) -> list[int | None]:
    return [fact.member for fact in facts if fact.kind == kind]


class ContractSteps:
    """Steps that the contract's tests share. `rig` comes from the module that inherits them."""

    async def act(self, rig: Rig, job: str, revision: int = 1, members: Sequence[int] = (0,), **more: object) -> None:
        node = rig.pool.nodes()[0].name
        await rig.pool.act(job, wanted(revision, members, node=node, **more))  # type: ignore[arg-type]

    async def facts(self, rig: Rig, job: str, kind: FactKind, times: int = 1) -> list[Any]:
        async def is_so() -> bool:
            return (await kinds_of(rig.pool, job)).count(kind) >= times

        await rig.until(is_so, f"{times} × {kind} of {job}")
        return await facts_of(rig.pool, job)

    async def unguarded(self, rig: Rig, job: str) -> None:
        async def is_so() -> bool:
            return await rig.pool.is_guarded(job) is False

        await rig.until(is_so, f"{job} without a guardian")

    async def running(
        self, rig: Rig, members: Sequence[int] = (0,), *, steps: int = ENDLESS, fails_at: int | None = None
    ) -> str:
        job = await rig.job(steps=steps, fails_at=fails_at)
        await self.act(rig, job, members=members)
        await self.facts(rig, job, FactKind.GENERATION)
        return job
