"""Pool on a Kubernetes cluster: learners are pods, and each job's guardian runs beside the engine.

The job's directory on the engine's machine is the one of the local pool, with the same guardian. Its learners' agents
dial the guardian from their pods, so pods must reach this machine.
"""

from __future__ import annotations

import asyncio
import json
import secrets
import socket
import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from dlaas_server.core.lifecycle.recovery import StoredJob
from dlaas_server.core.model.cluster import Node
from dlaas_server.pools.base import JOURNAL, Changed, Chunk, Loss, PoolUnavailable
from dlaas_server.pools.config import PoolConfig
from dlaas_server.pools.kubernetes.api import ApiUnreachable, own_address
from dlaas_server.pools.kubernetes.gang_plan import grows
from dlaas_server.pools.kubernetes.gangs import TOKEN, Gangs
from dlaas_server.pools.kubernetes.leadership import own_holder
from dlaas_server.pools.kubernetes.manifests.lease import Holder
from dlaas_server.pools.kubernetes.manifests.pod_environment import pod_environment
from dlaas_server.pools.kubernetes.manifests.settings import KubernetesSection
from dlaas_server.pools.kubernetes.picture import Picture
from dlaas_server.pools.local.job_folder import JobFolder, in_words
from dlaas_server.pools.local.pool import LocalPool
from jupyter_dlaas.jobdir.atomic_files import read_json, write_whole
from jupyter_dlaas.runtime.hosts.agent_settings import AGENTS
from jupyter_dlaas.runtime.zygote.start_guardian import Started, start_guardian
from jupyter_dlaas.wire.codec import Json
from jupyter_dlaas.wire.journal import Fact, FactKind, SeatRefused, Wanted
from jupyter_dlaas.wire.protocol import JobSpec
from jupyter_dlaas.wire.waiting import WaitingReason

__all__ = ["KubernetesPool"]

TOKEN_BYTES: Final = 32


class KubernetesPool:
    """Pool whose learners run in pods of one namespace, kept in `directory` as the local pool keeps its jobs."""

    isolation = "pods under the restricted Pod Security standard; a network policy for each job"

    def __init__(
        self,
        directory: Path,
        settings: KubernetesSection,
        *,
        config: PoolConfig | None = None,
        at_uptime: Callable[[float], float] | None = None,
    ) -> None:
        self._local = LocalPool(
            directory, config=config, start=_start_guardian, uses_zygote=False, at_uptime=at_uptime, has_learners=False
        )
        self.path, self.config = self._local.path, self._local.config
        self.name = self.config.pool.name or "kubernetes"
        self.unit = "CPU slot"
        self._settings = settings
        self._choosing = asyncio.Lock()
        """Held while a job's port is chosen, so that two jobs do not get the same."""
        self._changed: Changed = lambda job, stream: None
        self._nodes_changed: Callable[[], None] = lambda: None
        self._picture = Picture(
            settings,
            pod_changed=lambda job: self._gangs.changed(job),
            nodes_changed=self._note_nodes,
            became_known=lambda: self._gangs.all_changed(),
            elected=lambda: self._gangs.read_again(),
            holder=self._holder,
            is_own=lambda job: (self.path / "jobs" / job).is_dir(),
            held=lambda: self._gangs.held(),
        )
        self._gangs = Gangs(
            self._picture,
            folder_of=self._folder,
            changed=lambda job, stream: self._changed(job, stream),
            give=self._local.act,
        )

    # ---- open and close --------------------------------------------------------------------------------------

    async def open(self, changed: Changed, nodes_changed: Callable[[], None]) -> None:
        """Find the jobs and guardians of an earlier engine, and follow the cluster."""
        self._changed, self._nodes_changed = changed, nodes_changed
        await self._local.open(self._note, nodes_changed)
        await self._picture.open()
        self.unit = self._picture.unit

    async def close(self) -> None:
        """Stop. Jobs continue."""
        await self._picture.stop_watching()
        await self._gangs.close()
        await self._picture.close()
        await self._local.close()

    def _holder(self) -> Holder:
        with in_words("its directory is not writable"):
            return own_holder(self.path)

    def _note(self, job: str, stream: str) -> None:
        self._changed(job, stream)
        if stream == JOURNAL:
            self._gangs.changed(job)  # the guardian may have closed the job

    def _note_nodes(self) -> None:
        self.unit = self._picture.unit
        self._nodes_changed()

    def nodes(self) -> tuple[Node, ...]:
        """Return the cluster's nodes, or one that stands for the namespace."""
        return self._picture.nodes()

    def unavailable(self) -> str | None:
        """Return why the pool's directory or the cluster cannot be reached, or which engine serves the namespace."""
        return self._local.unavailable() or self._picture.unavailable()

    def no_devices(self) -> str | None:
        """Return why the pool has no devices in the cluster, and what to do; None if it has some."""
        return self._picture.no_devices()

    def _check_cluster(self) -> None:
        why = self.unavailable()
        if why is not None:
            raise PoolUnavailable(why)

    # ---- jobs ------------------------------------------------------------------------------------------------

    async def create(self, job: str, owner: str, spec: JobSpec, environment: Mapping[str, str]) -> None:
        """Create the job's directory, and choose the address at which its guardian expects agents."""
        await self._local.create(job, owner, spec, pod_environment(environment, spec.variables))
        folder = self._folder(job)
        if not (folder.root / AGENTS).exists():
            with in_words(f"the settings for agents of job {job} cannot be stored"):
                async with self._choosing:
                    await asyncio.to_thread(self._write_agents, folder)

    def _write_agents(self, folder: JobFolder) -> None:
        given = self._settings.engine_address
        try:
            address = given or own_address(self._picture.api_host)
        except ApiUnreachable as error:
            raise PoolUnavailable(str(error)) from error
        host = f"[{address}]" if ":" in address else address
        # A configured address may belong to a router in front of this machine, where nothing can listen.
        taken = _ports(folder.root.parent)
        listen = f"*:{_free_port('', taken)}" if given else f"{host}:{_free_port(address, taken)}"
        write_whole(folder.root / TOKEN, secrets.token_bytes(TOKEN_BYTES))
        about = {"listen": listen, "address": address, "token_file": str(folder.root / TOKEN)}
        write_whole(folder.root / AGENTS, json.dumps(about).encode())

    async def put(self, job: str, path: str, data: bytes) -> None:
        """Store one file of the job atomically."""
        await self._local.put(job, path, data)

    async def put_file(self, job: str, path: str, source: str) -> None:
        """Store a copy of a file."""
        await self._local.put_file(job, path, source)

    async def act(self, job: str, wanted: Wanted) -> None:
        """Write the document for the guardian, start one if none is alive, and let the pods follow.

        A guardian gets a document that adds learners to running ones once these have seats; else they train on.
        """
        folder = self._folder(job)
        folder.must_exist()
        self._check_cluster()
        if self._gangs.is_outdated(job, wanted):
            return
        before = folder.wanted()
        if before is not None and grows(before, wanted) and before.revision < wanted.revision:
            await self._local.act(job, before)  # starts a guardian if none is alive
            self._gangs.accept(job, wanted, is_held=True)
            return
        was_closed_at = folder.closed_bytes()
        await self._local.act(job, wanted)
        stored = folder.wanted()
        if stored is not None:
            self._gangs.accept(job, stored, was_closed_at=was_closed_at)

    async def warm(self, interpreter: str | None, environment: Mapping[str, str], framework: str | None) -> bool:
        """Prepare nothing: the interpreter is in the image."""
        return False

    async def is_guarded(self, job: str) -> bool | None:
        """Return whether a guardian is alive; None while the directory or the cluster cannot be reached."""
        found = await self._local.is_guarded(job)
        return None if self.unavailable() is not None else found

    def loss_of(self, job: str) -> Loss:
        """Return how the job's last guardian was lost."""
        return self._local.loss_of(job)

    def waiting(self, job: str) -> Sequence[WaitingReason]:
        """Return why the guardian or pods do not run yet."""
        return (*self._local.waiting(job), *self._gangs.waiting(job))

    def refused(self, job: str) -> Sequence[SeatRefused]:
        """Return the seats that the cluster did not provide."""
        return self._gangs.refused(job)

    async def end(self, job: str, *, kill: bool) -> bool:
        """Return whether no process of the job is left, here and in the cluster. `kill`: first end what is left."""
        if kill:
            self._gangs.withdraw(job)
        is_over = await self._local.end(job, kill=kill)
        return await self._gangs.end(job, kill=kill) and is_over

    async def remove(self, job: str) -> None:
        """Remove the job's files. Raises PoolError while its guardian is alive."""
        await self._local.remove(job)
        self._gangs.forget(job)

    def directory(self, job: str) -> str:
        """Return the job's directory on this machine."""
        return self._local.directory(job)

    def _folder(self, job: str) -> JobFolder:
        return JobFolder(job, Path(self._local.directory(job)))

    # ---- data of jobs, in their directories ------------------------------------------------------------------

    async def directories(self) -> Sequence[str]:
        """Return the jobs that have a directory."""
        return await self._local.directories()

    async def stored_job(self, job: str) -> StoredJob:
        """Return the job as stored in its directory."""
        return await self._local.stored_job(job)

    async def payload(self, job: str) -> Mapping[str, Json]:
        """Return what was submitted."""
        return await self._local.payload(job)

    async def facts(self, job: str, offset: int) -> tuple[Sequence[Fact], int]:
        """Return the facts after `offset`. When they close the job, its pods count as leaving before anyone knows."""
        facts, end = await self._local.facts(job, offset)
        if facts and facts[-1].kind is FactKind.CLOSED:
            self._gangs.note_closed(job)
        return facts, end

    async def streams(self, job: str) -> Mapping[str, int]:
        """Return the existing streams with their sizes."""
        return await self._local.streams(job)

    async def read(self, job: str, stream: str, offset: int, limit: int) -> Chunk:
        """Return bytes of a stream."""
        return await self._local.read(job, stream, offset, limit)

    async def time_of(self, job: str, member: int, offset: int) -> float | None:
        """Return the time at which a byte of a learner's log was written."""
        return await self._local.time_of(job, member, offset)

    async def files(self, job: str, folder: str) -> Mapping[str, int]:
        """Return the files below a folder."""
        return await self._local.files(job, folder)

    async def get(self, job: str, path: str, offset: int, limit: int) -> bytes:
        """Return bytes of one file of the job."""
        return await self._local.get(job, path, offset, limit)


def _start_guardian(job_dir: Path, *, interpreter: str, **more: Any) -> Started:
    """Start a guardian with this process's Python: the job's interpreter is the image's."""
    return start_guardian(job_dir, interpreter=sys.executable, **more)


def _ports(jobs: Path) -> set[int]:
    """Return the ports of all jobs of the pool, also of those whose guardian does not run now."""
    listens = [str((read_json(path) or {}).get("listen", "")) for path in jobs.glob(f"*/{AGENTS}")]
    return {int(port) for listen in listens if (port := listen.rpartition(":")[2]).isdigit()}


def _free_port(host: str, taken: Collection[int]) -> int:
    """Return a port on which nothing listens now, and that no other job of the pool has."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    while True:
        with socket.create_server((host, 0), family=family) as free:
            port = int(free.getsockname()[1])
        if port not in taken:
            return port
