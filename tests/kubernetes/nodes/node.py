"""A process node: a node of the cluster whose kubelet is part of the tests and whose containers are local processes.

It behaves as a kubelet towards the API server. Faults happen on request: slow pulls and starts, a container killed for
its memory, eviction, shutdown of the machine, a machine that fails, a network that is cut, a pod that is refused.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import uuid
from collections.abc import Coroutine, Mapping
from pathlib import Path
from typing import Any, Final

import aiohttp

from tests.kubernetes.api import Api, ApiError, Json
from tests.kubernetes.certificates import Authority
from tests.kubernetes.nodes.containers import micro_time, second_time
from tests.kubernetes.nodes.images import Images
from tests.kubernetes.nodes.pods import PodWorker
from tests.kubernetes.nodes.server import KUBELET_PORT, KubeletServer
from tests.kubernetes.nodes.status import Verdict

__all__ = ["Addresses", "ProcessNode"]

LOGGER: Final = logging.getLogger(__name__)
LEASES: Final = "kube-node-lease"
LEASE_S: Final = 40
RETRY_S: Final = 0.2
RESOURCES: Final = {"cpu": "8", "memory": "32Gi", "pods": "110", "ephemeral-storage": "100Gi"}
CONDITIONS: Final = {
    "MemoryPressure": ("False", "KubeletHasSufficientMemory", "kubelet has sufficient memory available"),
    "DiskPressure": ("False", "KubeletHasNoDiskPressure", "kubelet has no disk pressure"),
    "PIDPressure": ("False", "KubeletHasSufficientPID", "kubelet has sufficient PID available"),
    "Ready": ("True", "KubeletReady", "kubelet is posting ready status"),
}


class Addresses:
    """Addresses of the pods on one node."""

    def __init__(self, prefix: str) -> None:
        self._free = [f"{prefix}.{number}" for number in range(254, 1, -1)]

    def take(self) -> str:
        return self._free.pop()

    def release(self, address: str) -> None:
        self._free.insert(0, address)  # an address is used again as late as possible


class ProcessNode:
    """One node. All methods belong to the event loop that started it."""

    def __init__(
        self,
        name: str,
        *,
        server: str,
        authority: Authority,
        folder: Path,
        prefix: str,
        resources: Mapping[str, str],
        labels: Mapping[str, str],
        version: str,
        renew_s: float,
    ) -> None:
        self.name = name
        self.address = f"{prefix}.1"
        self.addresses = Addresses(prefix)
        self.folder = folder
        self.images = Images()
        self.start_delay_s = 0.0
        """Time between a container's creation and its start."""
        self.refusals: dict[str, tuple[str, str]] = {}
        """Reason and message with which the node refuses a pod that was scheduled here, by the pod's name."""
        self.pull_error_s = 0.3
        """Time for which a failed pull is shown as ErrImagePull, before ImagePullBackOff."""
        self.pull_backoff_s = 1.0
        self.restart_backoff_s = 1.0
        host, _, port = server.removeprefix("https://").partition(":")
        self.service_environment = {"KUBERNETES_SERVICE_HOST": host, "KUBERNETES_SERVICE_PORT": port}
        self.is_connected = asyncio.Event()
        self._credentials = authority.issue(
            f"node-{name}", f"system:node:{name}", ["system:nodes"], [self.address, name]
        )
        files = (self._credentials.certificate, self._credentials.key)
        self.api = Api(server, authority.certificate, certificate=files)
        self._authority = authority
        self._resources = {**RESOURCES, **resources}
        self._labels = dict(labels)
        self._version = version
        self._renew_s = renew_s
        self._server = KubeletServer(self.find)
        self._workers: dict[str, PodWorker] = {}
        self._tasks: list[asyncio.Task[None]] = []
        self._events: set[asyncio.Task[None]] = set()

    # ---- start and end ---------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Register the node and begin to serve its pods."""
        self.folder.mkdir(parents=True, exist_ok=True)
        await self._server.start(self.address, self._authority.certificate, self._credentials)
        await self._register()
        self._connect()

    def _connect(self) -> None:
        self.is_connected.set()
        self._tasks = [asyncio.create_task(self._renew_lease()), asyncio.create_task(self._follow_pods())]

    async def _disconnect(self) -> None:
        self.is_connected.clear()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._tasks = []
        await self._server.stop()

    async def close(self) -> None:
        """Kill all containers and stop; the node's objects stay in the cluster."""
        await self._disconnect()
        await self._drop_pods()
        for task in self._events:
            task.cancel()
        await self.api.close()

    async def _drop_pods(self) -> None:
        workers = list(self._workers.values())
        self._workers.clear()
        for worker in workers:
            worker.destroy()
        await asyncio.gather(*(worker.close() for worker in workers))

    # ---- faults ------------------------------------------------------------------------------------------------------

    async def fail(self) -> None:
        """Fail as a machine that loses power: all containers are killed, and nothing is reported."""
        await self._disconnect()
        await self._drop_pods()

    async def cut_network(self) -> None:
        """Cut the node off from the API server; its containers keep running."""
        await self._disconnect()

    async def recover(self) -> None:
        """Return from `fail` or `cut_network`."""
        self._server = KubeletServer(self.find)
        await self.start()

    async def oom_kill(self, namespace: str, pod: str, container: str) -> None:
        """Kill a container as the kernel does when it exceeds its memory limit."""
        self._worker(namespace, pod).oom_kill(container)

    async def kill_process(self, namespace: str, pod: str, container: str, pid: int) -> None:
        """Kill one process of a container, known by its pid there."""
        self._worker(namespace, pod).kill_process(container, pid)

    async def evict(self, namespace: str, pod: str, resource: str = "memory") -> None:
        """Evict a pod because its node runs out of a resource, as the kubelet's eviction manager does."""
        message = f"The node was low on resource: {resource}. "
        verdict = Verdict(phase="Failed", reason="Evicted", message=message, is_disruption=True)
        await self._worker(namespace, pod).stop(0.0, verdict)

    async def shut_down(self, grace_s: float) -> None:
        """End all pods as a kubelet does when its machine shuts down, for instance at a spot notice."""
        await self._report_ready(False, "KubeletNotReady", "node is shutting down")
        message = "Pod was terminated in response to imminent node shutdown."
        verdict = Verdict(phase="Failed", reason="Terminated", message=message, is_disruption=True)
        await asyncio.gather(*(worker.stop(grace_s, verdict) for worker in self._workers.values()))

    def _worker(self, namespace: str, pod: str) -> PodWorker:
        worker = self.find(namespace, pod)
        assert worker is not None, f"{namespace}/{pod} is not on {self.name}"
        return worker

    # ---- the node's objects ----------------------------------------------------------------------------------------

    async def _register(self) -> None:
        labels = {"kubernetes.io/hostname": self.name, "kubernetes.io/os": "linux", **self._labels}
        body = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": self.name, "labels": labels}}
        try:
            await self.api.create("nodes", None, body)
        except ApiError as error:
            if error.status != 409:
                raise
        now = second_time()
        status = {
            "capacity": self._resources,
            "allocatable": self._resources,
            "addresses": [{"type": "InternalIP", "address": self.address}, {"type": "Hostname", "address": self.name}],
            "daemonEndpoints": {"kubeletEndpoint": {"Port": KUBELET_PORT}},
            "nodeInfo": {
                "kubeletVersion": self._version,
                "kubeProxyVersion": "",
                "containerRuntimeVersion": "process://1",
                "operatingSystem": "linux",
                "architecture": "amd64",
                "osImage": "process node",
                "kernelVersion": "",
                "machineID": self.name,
                "systemUUID": self.name,
                "bootID": str(uuid.uuid4()),
            },
            "conditions": [_condition(kind, *values, now) for kind, values in CONDITIONS.items()],
        }
        await self.api.patch("nodes", None, self.name, {"status": status}, subresource="status", kind="strategic")

    async def _report_ready(self, is_ready: bool, reason: str, message: str) -> None:
        condition = _condition("Ready", "True" if is_ready else "False", reason, message, second_time())
        body = {"status": {"conditions": [condition]}}
        await self.api.patch("nodes", None, self.name, body, subresource="status", kind="strategic")

    async def _renew_lease(self) -> None:
        """Renew the node's Lease for as long as it is connected; create it if it does not exist."""
        while True:
            now = micro_time()
            spec = {"holderIdentity": self.name, "leaseDurationSeconds": LEASE_S, "renewTime": now}
            body = {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "spec": spec}
            try:
                try:
                    await self.api.patch("leases", LEASES, self.name, body)
                except ApiError as error:
                    if error.status != 404:
                        raise
                    await self.api.create("leases", LEASES, body | {"metadata": {"name": self.name}})
            except (ApiError, aiohttp.ClientError, TimeoutError) as error:
                LOGGER.info("lease of %s: %s", self.name, error)
            await asyncio.sleep(self._renew_s)

    # ---- pods --------------------------------------------------------------------------------------------------------

    def find(self, namespace: str, name: str) -> PodWorker | None:
        found = [w for w in self._workers.values() if (w.namespace, w.name) == (namespace, name)]
        return found[-1] if found else None

    async def _follow_pods(self) -> None:
        known = [worker.pod for worker in self._workers.values()]
        watch = self.api.watch("pods", field_selector=f"spec.nodeName={self.name}", seen=known)
        async with contextlib.aclosing(watch) as events:
            async for kind, pod in events:
                uid = pod["metadata"]["uid"]
                if kind == "DELETED":
                    if (worker := self._workers.pop(uid, None)) is not None:
                        self._spawn(worker.remove())
                else:
                    await self._update(uid, pod)

    async def _update(self, uid: str, pod: Json) -> None:
        worker = self._workers.get(uid)
        is_over = pod.get("status", {}).get("phase") in ("Succeeded", "Failed")
        if worker is None and is_over:
            if "deletionTimestamp" in pod["metadata"]:
                self._spawn(self._delete_ended(pod["metadata"]))
            return
        if worker is None and (refusal := self.refusals.get(pod["metadata"]["name"])) is not None:
            self._spawn(self._refuse(pod, *refusal))
            return
        if worker is None:
            worker = self._workers[uid] = PodWorker(self, pod)
        worker.update(pod)

    async def _refuse(self, pod: Json, reason: str, message: str) -> None:
        """Refuse a pod as a kubelet does whose admission fails: no container is created."""
        metadata = pod["metadata"]
        self.event(pod, "Warning", reason, message)
        status = {"phase": "Failed", "reason": reason, "message": f"Pod was rejected: {message}"}
        body = {"metadata": {"uid": metadata["uid"]}, "status": status}
        await self.api.patch(
            "pods", metadata["namespace"], metadata["name"], body, subresource="status", kind="strategic"
        )

    async def _delete_ended(self, metadata: Json) -> None:
        """Delete the object of a pod that had ended before this node knew it, as soon as the API server answers."""
        while True:
            try:
                await self.api.delete("pods", metadata["namespace"], metadata["name"], grace_s=0, uid=metadata["uid"])
                return
            except ApiError as error:
                if error.status < 500:
                    return  # it is gone
            except (aiohttp.ClientError, TimeoutError) as error:
                LOGGER.info("deletion of %s: %s", metadata["name"], error)
            await asyncio.sleep(RETRY_S)

    def event(self, pod: Json, kind: str, reason: str, message: str) -> None:
        """Record an event about a pod."""
        metadata, now = pod["metadata"], second_time()
        reference = {"apiVersion": "v1", "kind": "Pod", "name": metadata["name"], "uid": metadata["uid"]}
        name = f"{metadata['name'][:200]}.{uuid.uuid4().hex[:16]}"
        body = {
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {"name": name, "namespace": metadata["namespace"]},
            "involvedObject": reference | {"namespace": metadata["namespace"]},
            "type": kind,
            "reason": reason,
            "message": message,
            "count": 1,
            "firstTimestamp": now,
            "lastTimestamp": now,
            "source": {"component": "kubelet", "host": self.name},
        }
        self._spawn(self._record(metadata["namespace"], body))

    async def _record(self, namespace: str, body: Json) -> None:
        if not self.is_connected.is_set():
            return
        try:
            await self.api.create("events", namespace, body)
        except (ApiError, aiohttp.ClientError, TimeoutError) as error:  # for instance, the namespace is being deleted
            LOGGER.debug("event %s: %s", body["reason"], error)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.ensure_future(work)
        self._events.add(task)
        task.add_done_callback(self._events.discard)


def _condition(kind: str, status: str, reason: str, message: str, now: str) -> Json:
    return {
        "type": kind,
        "status": status,
        "reason": reason,
        "message": message,
        "lastHeartbeatTime": now,
        "lastTransitionTime": now,
    }
