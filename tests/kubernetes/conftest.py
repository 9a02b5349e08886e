"""Fixtures of the tests on a cluster: the cluster, a namespace for each test, and the pool's connection to it."""

from __future__ import annotations

import asyncio
import contextlib
import os
import subprocess
import sys
import uuid
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from dlaas_server.pools.kubernetes.api import Api, connect
from dlaas_server.pools.kubernetes.manifests.pool_manifests import deployment_manifests
from dlaas_server.pools.kubernetes.manifests.settings import KubernetesSection
from tests.kubernetes.api import Json
from tests.kubernetes.binaries import built_binaries
from tests.kubernetes.clusters import Cluster, ForeignCluster, OwnCluster
from tests.kubernetes.pool import Followed, section_of
from tests.kubernetes.rights import Rights

if TYPE_CHECKING:
    from tests.kubernetes.namespace_pools import Pools

NODES = ("node-1", "node-2")
RESTRICTED: dict[str, str] = deployment_manifests("any")[0]["metadata"]["labels"]
"""Labels of the namespace that administrators apply."""
SECURITY = {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}
POD_SECURITY = {"runAsNonRoot": True, "runAsUser": 1000, "seccompProfile": {"type": "RuntimeDefault"}}


class Namespace:
    """A namespace of the cluster, and short forms of what tests do in it."""

    def __init__(self, cluster: Cluster, name: str) -> None:
        self.cluster = cluster
        self.name = name

    def manifest(self, name: str, script: str, *, image: str = "", **spec: Any) -> Json:
        """Return a pod under the restricted Pod Security standard, whose only container runs a shell script."""
        container = {
            "name": "main",
            "image": image or self.cluster.image,
            "command": ["sh", "-c", script],
            "securityContext": SECURITY,
            **spec.pop("container", {}),
        }
        defaults = {
            "restartPolicy": "Never",
            "terminationGracePeriodSeconds": 2,
            "automountServiceAccountToken": False,
            "securityContext": POD_SECURITY,
        }
        body = {"containers": [container], **defaults, **spec}
        return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": body}

    def run_pod(self, name: str, script: str, **spec: Any) -> Json:
        return self.create("pods", self.manifest(name, script, **spec))

    def create(self, resource: str, body: Json) -> Json:
        return self.cluster.loop.run(self.cluster.api.create(resource, self.name, body))

    def get(self, resource: str, name: str) -> Json:
        return self.cluster.loop.run(self.cluster.api.get(resource, self.name, name))

    def patch(self, resource: str, name: str, body: Any, *, kind: str = "merge") -> Json:
        return self.cluster.loop.run(self.cluster.api.patch(resource, self.name, name, body, kind=kind))

    def delete(self, resource: str, name: str, *, grace_s: int | None = None) -> None:
        self.cluster.loop.run(self.cluster.api.delete(resource, self.name, name, grace_s=grace_s))

    def wait(self, resource: str, name: str, is_met: Callable[[Json], bool], timeout_s: float = 60.0) -> Json:
        """Return the object once it exists and meets a condition."""

        def exists_and_is_met(item: Json | None) -> bool:
            return item is not None and is_met(item)

        work = self.cluster.api.wait_for(resource, self.name, name, exists_and_is_met, timeout_s=timeout_s)
        found = self.cluster.loop.run(work)
        assert found is not None
        return found

    def wait_gone(self, resource: str, name: str, timeout_s: float = 60.0) -> None:
        work = self.cluster.api.wait_for(resource, self.name, name, lambda item: item is None, timeout_s=timeout_s)
        self.cluster.loop.run(work)

    def wait_phase(self, name: str, *phases: str) -> Json:
        return self.wait("pods", name, lambda pod: pod.get("status", {}).get("phase") in phases)

    def wait_reason(self, name: str, reason: str) -> Json:
        """Wait until the pod's container waits for a reason; return its state."""
        pod = self.wait("pods", name, lambda pod: waiting_reason(pod) == reason)
        state: Json = pod["status"]["containerStatuses"][0]["state"]
        return state

    def wait_event(self, pod: str, reason: str, timeout_s: float = 60.0) -> str:
        """Wait for an event about a pod; return its message."""
        return self.cluster.loop.run(self._event(pod, reason, timeout_s))

    async def _event(self, pod: str, reason: str, timeout_s: float) -> str:
        watch = self.cluster.api.watch("events", self.name, field_selector=f"involvedObject.name={pod}")
        async with asyncio.timeout(timeout_s), contextlib.aclosing(watch) as events:
            async for _, event in events:
                if event["reason"] == reason:
                    return str(event["message"])
        raise AssertionError("a watch has no end")

    def kubectl(self, *arguments: str) -> str:
        """Run kubectl in this namespace and return its output."""
        command = [str(Path(sys.prefix) / "bin" / "kubectl"), "--namespace", self.name, *arguments]
        environment = os.environ | {"KUBECONFIG": str(self.cluster.kubeconfig)}
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, done.stderr
        return done.stdout


def waiting_reason(pod: Json) -> str | None:
    for status in pod.get("status", {}).get("containerStatuses", []):
        reason: str | None = status["state"].get("waiting", {}).get("reason")
        return reason
    return None


def open_cluster() -> Cluster:
    if kubeconfig := os.environ.get("DLAAS_TEST_KUBECONFIG"):
        return ForeignCluster(Path(kubeconfig))
    binaries = built_binaries()
    if binaries is None:
        pytest.fail("the test cluster is not built: run make cluster, or set DLAAS_TEST_KUBECONFIG", pytrace=False)
    cluster = OwnCluster(binaries)
    try:
        for name in NODES:
            cluster.add_node(name, resources={"nvidia.com/gpu": "2"})
    except BaseException:
        cluster.close()
        raise
    return cluster


@pytest.fixture(scope="session")
def cluster() -> Iterator[Cluster]:
    opened = open_cluster()
    yield opened
    opened.close()


@pytest.fixture
def own_cluster(cluster: Cluster) -> OwnCluster:
    """Return the cluster if it has process nodes, which have faults on request."""
    if not isinstance(cluster, OwnCluster):
        pytest.skip("needs process nodes")
    return cluster


def make_namespace(cluster: Cluster, labels: dict[str, str]) -> Namespace:
    name = f"test-{uuid.uuid4().hex[:8]}"
    body = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": labels}}
    cluster.loop.run(cluster.api.create("namespaces", None, body))
    namespace = Namespace(cluster, name)
    namespace.wait("serviceaccounts", "default", lambda account: True)
    return namespace


def remove_namespace(namespace: Namespace) -> None:
    namespace.cluster.loop.run(namespace.cluster.api.delete("namespaces", None, namespace.name))


@pytest.fixture
def namespace(cluster: Cluster) -> Iterator[Namespace]:
    """Create a namespace as the shipped manifests have it."""
    made = make_namespace(cluster, RESTRICTED)
    yield made
    remove_namespace(made)


@pytest.fixture
def section(namespace: Namespace) -> KubernetesSection:
    """Return the settings of a pool in the namespace."""
    return section_of(namespace)


@pytest.fixture
def api(section: KubernetesSection) -> Iterator[Api]:
    """Open the pool's own connection."""
    opened = connect(section)
    yield opened
    opened.close()


@pytest.fixture
def followed(api: Api, namespace: Namespace) -> Iterator[Followed]:
    """Follow the pods of the namespace as the pool sees them."""
    opened = Followed(api, namespace.name)
    yield opened
    opened.watch.close()


@pytest.fixture
async def pools(tmp_path: Path, namespace: Namespace) -> AsyncIterator[Pools]:
    from tests.kubernetes.namespace_pools import Pools  # it imports this module

    made = Pools(tmp_path, namespace)
    yield made
    await made.close()


@pytest.fixture(scope="session", autouse=True)
def rights() -> Iterator[Rights]:
    """Record the rights that the pools of the session use. None may use one that the shipped Role does not have."""
    found = Rights()
    with found.recording():
        yield found
    found.check()


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


def terminated(pod: Json) -> Json:
    """Return how the pod's only container ended."""
    ended: Json = pod["status"]["containerStatuses"][0]["state"]["terminated"]
    return ended


def conditions(pod: Json) -> dict[str, Json]:
    return {condition["type"]: condition for condition in pod["status"].get("conditions", [])}


def node_conditions(node: Json) -> dict[str, str]:
    return {condition["type"]: condition["status"] for condition in node["status"]["conditions"]}
