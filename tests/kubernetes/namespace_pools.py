"""Pools of a cluster, each with settings and a namespace of its own, and their jobs."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from dlaas_server.pools.config import PoolConfig
from dlaas_server.pools.kubernetes.pool import KubernetesPool
from jupyter_dlaas.runtime.system.process import kill_round
from jupyter_dlaas.wire.journal import FactKind, Goal, LearnerDown, MemberWanted, Wanted
from jupyter_dlaas.wire.protocol import JobSpec
from tests.kubernetes.conftest import NODES, RESTRICTED, Namespace, make_namespace, remove_namespace
from tests.kubernetes.pool import section_of
from tests.pools.local_rig import PROGRAM
from tests.pools.rig import ENDLESS

__all__ = ["DEADLINE_S", "Pools"]

DEADLINE_S: Final = 120.0


class Pools:
    """Pools with settings and a namespace of their own, and their jobs. The first has the test's namespace."""

    def __init__(self, folder: Path, namespace: Namespace) -> None:
        self.folder, self.namespaces = folder, [namespace]
        self.pools: list[KubernetesPool] = []
        self.of: dict[str, KubernetesPool] = {}

    async def open(self, **settings: Any) -> KubernetesPool:
        if self.pools:
            first = self.namespaces[0]
            self.namespaces.append(await asyncio.to_thread(make_namespace, first.cluster, RESTRICTED))
        section = replace(section_of(self.namespaces[-1]), bind_timeout_s=600.0, **settings)
        pool = KubernetesPool(self.folder / f"pool-{len(self.pools)}", section, config=PoolConfig())
        self.pools.append(pool)
        await pool.open(lambda job, stream: None, lambda: None)

        async def is_reached() -> bool:
            return pool.unavailable() is None

        await self.until(is_reached, "the cluster is reached")
        return pool

    async def run(self, pool: KubernetesPool, job: str, node: str = NODES[0], **spec: Any) -> None:
        self.of[job] = pool
        await pool.create(job, "me", JobSpec(**{"gpus_per_learner": 0, **spec}), {})
        await pool.put(job, "train.py", PROGRAM.format(steps=ENDLESS, fails_at=-1).encode())
        seats = (MemberWanted(member=0, node=node),)
        await pool.act(job, Wanted(revision=1, goal=Goal.RUN, generation=1, members=seats, grace_s=5.0))

    def pod_of(self, job: str) -> str:
        """Return the job's only pod, as texts name it."""
        return f"pod {self.namespaces[self.pools.index(self.of[job])].name}/{job}-m0"

    async def trains(self, job: str) -> None:
        async def is_so() -> bool:
            return any(fact.kind == FactKind.GENERATION for fact in (await self.of[job].facts(job, 0))[0])

        await self.until(is_so, f"{job} trains")

    async def until(self, is_so: Callable[[], Awaitable[bool]], what: str) -> None:
        end_s = time.monotonic() + DEADLINE_S
        while not await is_so():
            waits = {job: (pool.waiting(job), pool.refused(job)) for job, pool in self.of.items()}
            assert time.monotonic() < end_s, f"{what}: {waits}"
            await asyncio.sleep(0.02)

    async def close(self) -> None:
        for pool in self.pools:
            await pool.close()
            for root in (pool.path / "jobs").iterdir():
                for _ in range(100):
                    if kill_round(str(root)) == 0:
                        break
        for own in self.namespaces[1:]:
            await asyncio.to_thread(remove_namespace, own)

    async def end_of(self, job: str) -> LearnerDown:
        """Return the end of the job's only learner."""
        found: list[LearnerDown] = []

        async def is_over() -> bool:
            facts = (await self.of[job].facts(job, 0))[0]
            found.extend(fact for fact in facts if isinstance(fact, LearnerDown))
            return bool(found)

        await self.until(is_over, f"{job} ends")
        return found[0]
