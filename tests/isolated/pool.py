"""Pool whose learners have private directories and addresses of their own, without a cluster.

The pool is `KubernetesPool` as in the product, with its directories, documents, guardians and settings for agents. Its
machines are a fake of the tests: loopback addresses of this machine, where agents are started as processes, and relays
that can be cut stand for the network.
"""

from __future__ import annotations

import asyncio
import secrets
import subprocess
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from dlaas_server.core.model.cluster import Node
from dlaas_server.pools.base import JOURNAL, WAITING, Changed, Pool
from dlaas_server.pools.config import PoolConfig, PoolSection
from dlaas_server.pools.devices import CpuSlots
from dlaas_server.pools.kubernetes.gangs import TOKEN
from dlaas_server.pools.kubernetes.manifests.settings import KubernetesSection
from dlaas_server.pools.kubernetes.pool import KubernetesPool
from dlaas_server.pools.local.job_folder import JobFolder
from dlaas_server.pools.local.seats import missing_seats
from jupyter_dlaas.runtime.hosts.agent_settings import read_settings
from jupyter_dlaas.runtime.system.process import kill_round
from jupyter_dlaas.wire.journal import Goal, SeatRefused, Wanted
from jupyter_dlaas.wire.waiting import WaitingReason
from tests.isolated.agents import start_agent
from tests.isolated.launcher import Relay
from tests.pools.local_rig import LocalRig

__all__ = ["IsolatedPool", "IsolatedRig", "Machines"]

HOST: Final = "127.0.0.1"
ROUNDS: Final = 200


@dataclass
class Machines:
    """Fake machines with agents. They outlive each engine."""

    folder: Path
    nodes: tuple[Node, ...] = field(default_factory=lambda: CpuSlots(4).nodes({}))
    agents: dict[tuple[str, int], subprocess.Popen[bytes]] = field(default_factory=dict)
    delayed: set[str] = field(default_factory=set)
    """Jobs whose agents are not started yet."""
    problem: str | None = None
    """Reason why an engine cannot reach the machines."""
    _relays: dict[str, Relay] = field(default_factory=dict)
    _net: str = field(default_factory=lambda: f"127.{secrets.randbelow(250) + 2}.{secrets.randbelow(254) + 1}")

    def start(self, folder: JobFolder, member: int) -> None:
        """Start an agent that dials the job's guardian through a relay."""
        settings = read_settings(folder.root)
        assert settings is not None
        port = settings.listen_address.port
        if folder.job not in self._relays:
            self._relays[folder.job] = Relay((f"{self._net}.1", port), (HOST, port))
        self.agents[folder.job, member] = start_agent(
            self.machine(folder.job, member),
            job=folder.job,
            member=member,
            guardian=f"{self._net}.1:{port}",
            token=folder.root / TOKEN,
            address=f"{self._net}.{10 + len(self.agents)}",
        )

    def machine(self, job: str, member: int) -> Path:
        return self.folder / f"{job}-m{member}"

    def agents_of(self, job: str) -> Iterator[tuple[int, subprocess.Popen[bytes]]]:
        return ((member, agent) for (name, member), agent in self.agents.items() if name == job)

    def end(self, job: str) -> None:
        """Let all machines of a job disappear."""
        for member, agent in self.agents_of(job):
            agent.kill()
            agent.wait()
            for _ in range(ROUNDS):
                if kill_round(str(self.machine(job, member) / "job")) == 0:
                    break

    def cut(self) -> None:
        self.problem = "The machines cannot be reached (as asked of this fake)."
        for relay in self._relays.values():
            relay.cut()

    def mend(self) -> None:
        self.problem = None
        for relay in self._relays.values():
            relay.mend()

    def close(self) -> None:
        for job in {job for job, _ in self.agents}:
            self.end(job)
        for relay in self._relays.values():
            relay.cut()


class FakePicture:
    """Stands in for `Picture`: the fake machines instead of a cluster."""

    unit = "CPU slot"
    api_host = HOST

    def __init__(self, machines: Machines) -> None:
        self._machines = machines

    async def open(self) -> None:
        """Nothing to connect."""

    async def stop_watching(self) -> None:
        """Nothing to watch."""

    async def close(self) -> None:
        """Nothing to disconnect."""

    def nodes(self) -> tuple[Node, ...]:
        return self._machines.nodes

    def unavailable(self) -> str | None:
        return self._machines.problem

    def no_devices(self) -> str | None:
        return None


class AgentGangs:
    """Stands in for `Gangs`: agents as processes of this machine instead of pods."""

    def __init__(
        self,
        machines: Machines,
        folder_of: Callable[[str], JobFolder],
        changed: Changed,
        give: Callable[[str, Wanted], Awaitable[None]],
    ) -> None:
        self._machines, self._folder_of, self._changed, self._give = machines, folder_of, changed, give
        self._wanted: dict[str, Wanted] = {}
        self._closed: dict[str, int] = {}
        """Job -> size of its journal when a former guardian had closed it."""
        self._refused: dict[str, tuple[SeatRefused, ...]] = {}
        self._since_s: dict[str, float] = {}
        self._giving: asyncio.Future[None] | None = None

    async def close(self) -> None:
        """Agents continue."""

    def withdraw(self, job: str) -> None:
        """Documents are given at once."""

    def is_outdated(self, job: str, wanted: Wanted) -> bool:
        return job in self._wanted and wanted.revision < self._wanted[job].revision

    def accept(self, job: str, wanted: Wanted, *, was_closed_at: int = -1, is_held: bool = False) -> None:
        if was_closed_at >= 0:
            self._closed[job] = was_closed_at
        refused = missing_seats(wanted, self._wanted.get(job), self._machines.nodes)
        self._refused[job] = refused
        if refused:
            self._changed(job, JOURNAL)
            return
        self._wanted[job] = wanted
        if is_held:
            self._giving = asyncio.ensure_future(self._give(job, wanted))
        if job in self._machines.delayed and wanted.goal is Goal.RUN:
            self._since_s.setdefault(job, time.time())
            self._changed(job, WAITING)
        self.changed(job)

    def note_closed(self, job: str) -> None:
        """Each job has machines of its own: none has to leave for another one."""

    def changed(self, job: str) -> None:
        """Start the agents that are wanted, and end those of a closed job."""
        if self._machines.problem is not None or job not in self._wanted:
            return
        folder = self._folder_of(job)
        if folder.closed_bytes() not in (-1, self._closed.get(job, -1)):
            for _, agent in self._machines.agents_of(job):
                agent.terminate()
        elif self._wanted[job].goal is Goal.RUN and job not in self._machines.delayed:
            for member in self._wanted[job].members:
                if (job, member.member) not in self._machines.agents:
                    self._machines.start(folder, member.member)

    def all_changed(self) -> None:
        for job in self._wanted:
            self.changed(job)

    def release(self, job: str) -> None:
        """Start what was delayed."""
        self._machines.delayed.discard(job)
        if self._since_s.pop(job, None) is not None:
            self._changed(job, WAITING)
        self.changed(job)

    def waiting(self, job: str) -> Sequence[WaitingReason]:
        if job not in self._since_s or self._wanted[job].goal is not Goal.RUN:
            return ()
        return tuple(
            WaitingReason(
                member=member.member,
                code="starting",
                object=f"agent {job}-m{member.member}",
                what="The agent is being started (as asked of this fake).",
                since_s=self._since_s[job],
            )
            for member in self._wanted[job].members
        )

    def refused(self, job: str) -> Sequence[SeatRefused]:
        return self._refused.get(job, ())

    async def end(self, job: str, *, kill: bool) -> bool:
        if self._machines.problem is not None:
            return False
        if kill:
            self.forget(job)
            self._machines.end(job)
        return all(agent.poll() is not None for _, agent in self._machines.agents_of(job))

    def forget(self, job: str) -> None:
        for kept in (self._wanted, self._closed, self._refused, self._since_s):
            kept.pop(job, None)


class IsolatedPool(KubernetesPool):
    """`KubernetesPool` on fake machines."""

    def __init__(self, directory: Path, machines: Machines) -> None:
        super().__init__(directory, KubernetesSection(), config=PoolConfig(pool=PoolSection(name="test")))
        self._picture: Any = FakePicture(machines)
        self._gangs: Any = AgentGangs(
            machines, self._folder, lambda job, stream: self._changed(job, stream), self._local.act
        )

    def release(self, job: str) -> None:
        self._gangs.release(job)

    def restored(self) -> None:
        self._gangs.all_changed()
        self._nodes_changed()


@dataclass
class IsolatedRig(LocalRig):
    """Real guardians, agents and learners; the machines are fake."""

    machines: Machines = field(init=False)

    def __post_init__(self) -> None:
        self.machines = Machines(self.folder / "machines")

    @property
    def isolated(self) -> IsolatedPool:
        assert isinstance(self.pool, IsolatedPool)
        return self.pool

    async def open(self) -> None:
        self.pool = IsolatedPool(self.folder, self.machines)
        await self.pool.open(self.heard, lambda: None)

    async def closed(self) -> Pool:
        await self.pool.close()
        self.pool = IsolatedPool(self.folder, self.machines)
        return self.pool

    async def slow_job(self, name: str = "a-1") -> str:
        self.machines.delayed.add(name)
        return await self.job(name)

    def release_start(self, job: str) -> None:
        self.isolated.release(job)

    def cut(self) -> None:
        self.machines.cut()

    def restore(self) -> None:
        self.machines.mend()
        self.isolated.restored()

    def said(self) -> str:
        logs = [*self.machines.folder.glob("*/agent.log"), *self.machines.folder.glob("*/job/*/stdout.log")]
        return "\n".join([super().said(), *(f"{log}: {log.read_text()[-800:]}" for log in logs)])

    def sweep(self) -> None:
        self.machines.close()
        super().sweep()
