"""Clusters for the tests: one of the tests' own with process nodes, or any cluster that a kubeconfig names."""

from __future__ import annotations

import asyncio
import os
import sys
import tempfile
import threading
from collections.abc import Coroutine, Mapping
from pathlib import Path
from typing import Any, Final, Protocol, TypeVar

from tests.kubernetes.api import Api, ApiError, Json
from tests.kubernetes.binaries import Binaries, built_binaries, kubernetes_version
from tests.kubernetes.control_plane import ControlPlane
from tests.kubernetes.nodes.node import ProcessNode

__all__ = ["Cluster", "ForeignCluster", "Loop", "OwnCluster"]

T = TypeVar("T")
RENEW_S: Final = 1.0
CALL_S: Final = 120.0


class Loop:
    """An event loop in a thread of its own, in which coroutines run on behalf of synchronous tests."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="cluster", daemon=True)
        self._thread.start()

    def run(self, work: Coroutine[Any, Any, T], timeout_s: float = CALL_S) -> T:
        """Run a coroutine and return its result."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(timeout_s)

    def close(self) -> None:
        self.run(self._loop.shutdown_asyncgens())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


class Cluster(Protocol):
    """A cluster as its tests see it."""

    kubeconfig: Path
    image: str
    """An image with Python 3.11 or newer on its PATH."""
    api: Api
    loop: Loop

    def close(self) -> None:
        """Let go of the cluster."""


class OwnCluster:
    """A control plane and process nodes that live as long as the tests."""

    image = "python:3.11-slim"

    def __init__(self, binaries: Binaries) -> None:
        self.loop = Loop()
        folder = Path(tempfile.mkdtemp(prefix="dlaas-cluster-"))
        self.control_plane = ControlPlane(binaries, folder)
        self.kubeconfig = self.control_plane.kubeconfig
        self.nodes: dict[str, ProcessNode] = {}
        self._node_count = 0
        try:
            self.loop.run(self.control_plane.start(), timeout_s=300.0)
        except BaseException:
            self.loop.run(self.control_plane.stop())
            self.loop.close()
            raise
        self.api = self.loop.run(self._connect())

    async def _connect(self) -> Api:
        plane = self.control_plane
        headers = {"Authorization": f"Bearer {plane.token}"}
        return Api(plane.server, plane.authority.certificate, headers=headers)

    def add_node(
        self, name: str, *, resources: Mapping[str, str] | None = None, labels: Mapping[str, str] | None = None
    ) -> ProcessNode:
        """Start a process node and wait until pods can be scheduled on it."""
        self._node_count += 1
        node = self.loop.run(self._start_node(name, self._node_count, resources or {}, labels or {}))
        self.nodes[name] = node
        return node

    async def _start_node(
        self, name: str, number: int, resources: Mapping[str, str], labels: Mapping[str, str]
    ) -> ProcessNode:
        plane = self.control_plane
        node = ProcessNode(
            name,
            server=plane.server,
            authority=plane.authority,
            folder=plane.folder / "nodes" / name,
            prefix=f"{plane.network}.{number}",
            resources=resources,
            labels=labels,
            version=kubernetes_version(),
            renew_s=RENEW_S,
        )
        await node.start()
        # The node lifecycle controller removes the taint of a new node once it has seen the node's condition.
        await self.api.wait_for("nodes", None, name, _is_schedulable)
        return node

    def remove_node(self, name: str) -> None:
        """Stop a process node and delete it from the cluster."""
        node = self.nodes.pop(name)
        self.loop.run(node.close())
        try:
            self.delete_node(name)
        except ApiError as error:
            if error.status != 404:  # a test has deleted it
                raise

    def delete_node(self, name: str) -> None:
        """Delete a node from the cluster, as `kubectl delete node` does. Its containers keep running."""
        self.loop.run(self.api.delete("nodes", None, name))

    def close(self) -> None:
        for node in self.nodes.values():
            self.loop.run(node.close())
        self.loop.run(self.api.close())
        self.loop.run(self.control_plane.stop())
        self.loop.close()


class ForeignCluster:
    """Any cluster that a kubeconfig names."""

    def __init__(self, kubeconfig: Path) -> None:
        from kubernetes import config  # only here: it takes half a second

        self.kubeconfig = kubeconfig
        self.image = os.environ.get("DLAAS_TEST_IMAGE", OwnCluster.image)
        self.loop = Loop()
        settings = config.new_client_from_config(str(kubeconfig)).configuration  # type: ignore[no-untyped-call]
        self.api = self.loop.run(self._connect(settings))

    async def _connect(self, settings: Any) -> Api:
        certificate = (Path(settings.cert_file), Path(settings.key_file)) if settings.cert_file else None
        found = settings.auth_settings().values()
        headers = {one["key"]: one["value"] for one in found if one["in"] == "header" and one["value"]}
        authority = Path(settings.ssl_ca_cert) if settings.ssl_ca_cert else None
        return Api(settings.host, authority, certificate=certificate, headers=headers)

    def close(self) -> None:
        self.loop.run(self.api.close())
        self.loop.close()


def _is_schedulable(node: Json | None) -> bool:
    if node is None or node["spec"].get("taints"):
        return False
    conditions: list[Json] = node.get("status", {}).get("conditions", [])
    return any(condition["type"] == "Ready" and condition["status"] == "True" for condition in conditions)


def main() -> None:
    """Start a cluster with two nodes and keep it until the end of standard input."""
    binaries = built_binaries()
    if binaries is None:
        sys.exit("The test cluster is not built: run make cluster.")
    cluster = OwnCluster(binaries)
    for name in ("node-1", "node-2"):
        cluster.add_node(name, resources={"nvidia.com/gpu": "2"})
    print(f"KUBECONFIG={cluster.kubeconfig} {Path(sys.prefix) / 'bin' / 'kubectl'} get nodes")
    print("The cluster ends with Ctrl-D.", flush=True)
    sys.stdin.read()
    cluster.close()


if __name__ == "__main__":
    main()
