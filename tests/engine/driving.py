"""An engine on a simulated pool, driven turn by turn in virtual time: nothing sleeps."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable
from pathlib import Path

from dlaas_server.core.lifecycle.job_events import replay
from dlaas_server.core.model.states import Event
from dlaas_server.engine.blobs import Blobs
from dlaas_server.engine.job_stream import Watchers
from dlaas_server.engine.lifecycle import Lifecycle
from dlaas_server.engine.operations import Requests
from dlaas_server.pools.base import Pool
from dlaas_server.rest.routes import Change
from dlaas_server.store import Store
from jupyter_dlaas.wire.protocol import JobSpec, JobView, Submit
from tests.pools.simulated.simulated_pool import SimulatedPool
from tests.pools.simulated.virtual_clock import VirtualClock

_keys = itertools.count()


def submit(
    learners: tuple[int, int] = (1, 1),
    *,
    key: str | None = None,
    priority: int = 0,
    retries: int = 4,
    name: str = "job",
) -> Submit:
    spec = JobSpec(name=name, learners_min=learners[0], learners_max=learners[1], priority=priority, retries=retries)
    return Submit(key=key or f"test-key-{next(_keys)}", spec=spec, source="print('hi')\n")


class Engine:
    """One life of an engine. `crash()` forgets all that was not committed."""

    def __init__(self, folder: Path, pool: Pool, clock: VirtualClock) -> None:
        self.folder = folder
        self.pool = pool
        self.clock = clock
        self.turns = 0

    async def open(self) -> None:
        self.store = await Store.open(self.folder / "store.sqlite3")
        self.lifecycle = Lifecycle(self.store, self.pool, "ana", self.clock.now_s)
        self.watchers = Watchers()
        self.lifecycle.listeners.append(self.watchers)
        self.requests = Requests(self.lifecycle, self.watchers, Blobs(self.folder / "blobs"))
        await self.lifecycle.open()

    async def settle(self) -> None:
        """Turn until nothing is left to do at this moment of the clock."""
        for _ in range(1000):
            self.turns += 1
            await self.lifecycle.turn()
            await self.lifecycle.acted()
            if not self.lifecycle.has_work:
                return
        raise AssertionError("the engine does not come to rest")

    async def until(self, holds: Callable[[], bool], limit_s: float = 1000.0) -> None:
        """Let time pass until `holds`."""
        await self.settle()
        end_s = self.clock.now_s() + limit_s
        while not holds():
            due = [t for t in (self.clock.next_s, self.lifecycle.wake_s) if t is not None]
            assert due, f"nothing will happen any more; jobs: {self.states()}"
            assert min(due) <= end_s, f"it does not hold in time; jobs: {self.states()}"
            self.clock.advance(max(min(due), self.clock.now_s()))
            await self.settle()

    async def ask(self, what: object) -> JobView:
        """Await a request while turning."""
        task = asyncio.ensure_future(what)  # type: ignore[call-overload]
        while not task.done():
            await asyncio.sleep(0)
            if self.lifecycle.has_work:
                await self.settle()
        found = task.result()
        view: JobView = found[0] if isinstance(found, tuple) else found
        return view

    async def submit(self, request: Submit | None = None, **fields: object) -> str:
        return (await self.ask(self.requests.submit("ana", request or submit(**fields)))).id  # type: ignore[arg-type]

    async def scale(self, job: str, learners: int) -> JobView:
        return await self.ask(self.requests.change("ana", job, Change(learners=learners)))

    async def act(self, job: str, event: Event) -> JobView:
        return await self.ask(self.requests.act("ana", job, event))

    def states(self) -> dict[str, str]:
        return {j.id: str(j.state) for j in self.lifecycle.jobs.values()}

    def is_at(self, job: str, state: str) -> bool:
        return self.states()[job] == state

    def all_ended(self) -> bool:
        return all(j.state.is_final and j.is_closed for j in self.lifecycle.jobs.values())

    async def check_replay(self) -> None:
        """Check that the stored events of each job lead to its stored record."""
        for job in (await self.store.load()).jobs.values():
            spec, events = await self.store.events(job.id)
            assert replay(spec, events) == job, f"{job.id} is not the result of {[event for _, event in events]}"

    async def close(self) -> None:
        await self.lifecycle.close()
        await self.check_replay()
        await self.store.close()


async def engine_on(folder: Path, pool: SimulatedPool, clock: VirtualClock) -> Engine:
    engine = Engine(folder, pool, clock)
    await engine.open()
    return engine
