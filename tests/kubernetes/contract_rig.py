"""Rig of the pool on a cluster: guardians beside the engine, learners in pods, and a network that can be cut."""

from __future__ import annotations

import json
import socket
import time
import uuid
from dataclasses import dataclass, field, replace
from pathlib import Path
from urllib.parse import urlsplit

from dlaas_server.pools.base import Pool
from dlaas_server.pools.config import PoolConfig, PoolSection
from dlaas_server.pools.kubernetes.manifests.names import learner_name
from dlaas_server.pools.kubernetes.manifests.settings import KubernetesSection
from dlaas_server.pools.kubernetes.pool import KubernetesPool
from jupyter_dlaas.wire.journal import FactKind
from jupyter_dlaas.wire.protocol import JobSpec
from tests.isolated.launcher import Relay
from tests.kubernetes.clusters import OwnCluster
from tests.kubernetes.conftest import Namespace
from tests.kubernetes.pool import section_of
from tests.pools.local_rig import LocalRig

__all__ = ["KubernetesRig", "cluster_rig"]

DEADLINE_S = 90.0
BIND_TIMEOUT_S = 2.0


@dataclass(kw_only=True)
class KubernetesRig(LocalRig):
    """Pool on process nodes, reached through a relay."""

    cluster: OwnCluster
    section: KubernetesSection
    relay: Relay
    spec: JobSpec = field(default_factory=lambda: JobSpec(gpus_per_learner=0))
    deadline_s: float = DEADLINE_S

    async def open(self) -> None:
        await self.closed()
        await self.pool.open(self.heard, lambda: None)

        async def is_reached() -> bool:
            return self.pool.unavailable() is None

        await self.until(is_reached, "the cluster is reached")

    async def closed(self) -> Pool:
        await self.pool.close()
        self.pool = _pool(self.folder, self.section)
        return self.pool

    async def slow_job(self, name: str = "a-1") -> str:
        for node in self.cluster.nodes.values():
            node.images.unpullable.add(self.section.image)
        return await self.job(name)

    def release_start(self, job: str) -> None:
        for node in self.cluster.nodes.values():
            node.images.unpullable.discard(self.section.image)

    def kill_learner(self, job: str, member: int) -> None:
        lines = (self.root(job) / "journal.jsonl").read_text().splitlines()
        starts = [fact for fact in map(json.loads, lines) if fact["kind"] == FactKind.LEARNER_UP]
        (pid,) = (fact["pid"] for fact in starts if fact["member"] == member)
        pod, namespace = learner_name(job, member), self.section.namespace
        (node,) = (node for node in self.cluster.nodes.values() if node.find(namespace, pod))
        self.cluster.loop.run(node.kill_process(namespace, pod, "learner", pid))

    def cut(self) -> None:
        self.relay.cut()
        self._await(is_reachable=False)

    def restore(self) -> None:
        self.relay.mend()
        self._await(is_reachable=True)

    def _await(self, *, is_reachable: bool) -> None:
        """Wait until the threads of the pool's watches have noticed; the engine's loop stands still."""
        end_s = time.monotonic() + self.deadline_s
        while (self.pool.unavailable() is None) is not is_reachable:
            assert time.monotonic() < end_s, self.pool.unavailable()
            time.sleep(0.01)

    def said(self) -> str:
        jobs = [root.name for root in (self.folder / "jobs").iterdir()]
        found = [f"{job}: {self.pool.waiting(job)} {self.pool.refused(job)}" for job in jobs]
        return "\n".join([super().said(), *found, str(self.pool.unavailable())])

    def close(self) -> None:
        self.relay.cut()
        self.release_start("")
        self.sweep()


def cluster_rig(folder: Path, cluster: OwnCluster, namespace: Namespace) -> KubernetesRig:
    """Return a rig that is not open. Its image is its own, so that no node has pulled it before."""
    config = json.loads(namespace.kubectl("config", "view", "--raw", "--minify", "--flatten", "-o", "json"))
    server = urlsplit(config["clusters"][0]["cluster"]["server"])
    assert server.hostname is not None
    with socket.create_server((server.hostname, 0)) as free:
        port = free.getsockname()[1]
    relay = Relay((server.hostname, port), (server.hostname, server.port or 443))
    config["clusters"][0]["cluster"]["server"] = f"https://{server.hostname}:{port}"
    kubeconfig = folder / "kubeconfig"
    kubeconfig.write_text(json.dumps(config), encoding="utf-8")
    section = replace(
        section_of(namespace),
        kubeconfig=str(kubeconfig),
        image=f"python:{uuid.uuid4().hex[:8]}",
        bind_timeout_s=BIND_TIMEOUT_S,
    )
    pool = folder / "pool"
    return KubernetesRig(pool, _pool(pool, section), cluster=cluster, section=section, relay=relay)


def _pool(folder: Path, section: KubernetesSection) -> KubernetesPool:
    return KubernetesPool(folder, section, config=PoolConfig(pool=PoolSection(name="test")))
