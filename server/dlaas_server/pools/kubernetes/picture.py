"""Cluster as the pool sees it: connection, learners' pods, events about pods, and capacity."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Final
from urllib.parse import urlsplit

from dlaas_server.core.model.cluster import Node
from dlaas_server.pools.kubernetes.api import Api, ApiError, ApiUnreachable, connect
from dlaas_server.pools.kubernetes.capacity import cluster_nodes, less_leaving, namespace_node, no_devices_text
from dlaas_server.pools.kubernetes.job_creation import ensure_package
from dlaas_server.pools.kubernetes.leadership import Leadership
from dlaas_server.pools.kubernetes.ledger import Ledger
from dlaas_server.pools.kubernetes.manifests.access import CLUSTER_RULES
from dlaas_server.pools.kubernetes.manifests.lease import Holder
from dlaas_server.pools.kubernetes.manifests.names import (
    ANNOTATION_JOB,
    LABEL_MEMBER,
    LABEL_ROLE,
    ROLE_LEARNER,
    Json,
    selector,
)
from dlaas_server.pools.kubernetes.manifests.package_archive import package_archive
from dlaas_server.pools.kubernetes.manifests.settings import CapacityView, KubernetesSection
from dlaas_server.pools.kubernetes.pod_endings import end_of_pod, without_node
from dlaas_server.pools.kubernetes.preflight import missing_accesses
from dlaas_server.pools.kubernetes.watch import Change, Watch
from jupyter_dlaas.wire.codec import DlaasError

__all__ = ["GPU", "Picture"]

log = logging.getLogger(__name__)

GPU: Final = "GPU"
CPU_SLOT: Final = "CPU slot"
RETRY_S: Final = 1.0
RETRY_S_MAX: Final = 15.0
FIRST_LOOK_S: Final = 5.0
"""Time that opening the pool waits for the first picture. A cluster that answers later is found later."""
BATCH_S: Final = 0.2
"""Time within which changes of capacity are reported once: nodes report often."""
QUOTA_S: Final = 10.0
"""Interval of reading quotas, which may not be watched."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Connected:
    """Connection to the cluster, and what it follows."""

    reader: Api
    unfenced: Api
    """Connection of the leadership, with shorter time-outs than the reader's."""
    leadership: Leadership
    pods: Watch
    events: Watch
    others: Watch
    """Pods that use capacity: those of the cluster, or of the namespace."""
    nodes: Watch | None
    """None: nodes are not readable."""

    @property
    def watches(self) -> list[Watch]:
        return [self.pods, self.events, self.others, *([self.nodes] if self.nodes is not None else [])]


class Picture:
    """Current picture of the cluster. Belongs to the event loop in which it is opened."""

    def __init__(
        self,
        settings: KubernetesSection,
        *,
        pod_changed: Callable[[str], None],
        nodes_changed: Callable[[], None],
        became_known: Callable[[], None],
        elected: Callable[[], None],
        holder: Callable[[], Holder],
        is_own: Callable[[str], bool],
        held: Callable[[], Collection[str]] = tuple,
    ) -> None:
        """Call `pod_changed(job)` for each change of a learner's pod or of what is known about it.

        `elected` is called whenever this engine became the leader of the namespace. `holder`: returns this engine.
        `is_own`: whether a job is one of this pool, and not one of a former engine of the namespace. `held`: returns
        the devices of the pool's jobs.
        """
        self.settings = settings
        self._pod_changed, self._nodes_changed, self._became_known = pod_changed, nodes_changed, became_known
        self._elected, self._holder, self._is_own, self._held = elected, holder, is_own, held
        self._connected: _Connected | None = None
        self._writer: Api | None = None
        """Connection of the present term. What began in a former term has that term's, and changes nothing more."""
        self._problem = "it has not been contacted yet"
        self._quotas: Sequence[Json] = ()
        self._nodes: tuple[Node, ...] = ()
        self._gone_nodes: frozenset[str] = frozenset()
        """Nodes whose deletion from the cluster was seen. A node that is merely not listed proves nothing."""
        self._leaving: dict[str, tuple[str, ...]] = {}
        """Uids of pods that outlive their closed job -> devices that they still use."""
        self._has_capacity = False
        self._has_answered = asyncio.Event()
        self._capacity_timer: asyncio.TimerHandle | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self._loop: asyncio.AbstractEventLoop | None = None

    # ---- open and close --------------------------------------------------------------------------------------

    async def open(self) -> None:
        """Connect, and wait a short time for the first picture. After a failure, try again in the background."""
        self._loop = asyncio.get_running_loop()
        self._tasks.append(asyncio.create_task(self._keep_connecting(), name="connect to the cluster"))
        with suppress(TimeoutError):
            async with asyncio.timeout(FIRST_LOOK_S):
                await self._has_answered.wait()
        self._update_nodes()

    async def stop_watching(self) -> None:
        """Stop following the cluster: no step begins any more because of it."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._tasks.clear()
        if self._capacity_timer is not None:
            self._capacity_timer.cancel()
        if self._connected is not None:
            await asyncio.gather(*(asyncio.to_thread(watch.close) for watch in self._connected.watches))

    async def close(self) -> None:
        """Release the Lease and close all connections."""
        connected, self._connected = self._connected, None
        self._problem = "the pool is closed"
        if connected is not None:
            await asyncio.to_thread(connected.leadership.close)
            for api in (connected.reader, connected.unfenced, self._writer):
                if api is not None:
                    api.close()

    async def _keep_connecting(self) -> None:
        pause_s = RETRY_S
        while True:
            try:
                self._connected = await asyncio.to_thread(self._connect)
                break
            except DlaasError as error:  # also a missing package `kubernetes`
                self._problem = str(error)
                log.warning("the cluster cannot be used yet: %s", error)
                self._has_answered.set()
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, RETRY_S_MAX)
        self._connected.leadership.start()
        for watch in self._connected.watches:
            watch.start()
        while self._connected.nodes is None:
            await asyncio.sleep(QUOTA_S)
            try:
                await asyncio.to_thread(self._read_quotas, self._connected.reader)
            except (ApiUnreachable, ApiError) as error:
                log.warning("quotas of namespace %s cannot be read: %s", self.settings.namespace, error)
            self._update_nodes()

    def _connect(self) -> _Connected:
        settings, holder = self.settings, self._holder()
        unfenced = connect(settings, read_s=settings.lease_s / 3)
        leadership = Leadership(
            unfenced,
            settings.namespace,
            holder,
            duration_s=settings.lease_s,
            elected=lambda: self._begin_term(leadership),
            changed=lambda: self._in_loop(self._report_leadership),
        )
        api = connect(settings)
        try:
            is_allowed = settings.view is not CapacityView.NAMESPACE and not list(
                missing_accesses(unfenced, CLUSTER_RULES, None)
            )
            if settings.view is CapacityView.CLUSTER and not is_allowed:
                raise ApiError(403, "Forbidden", 'nodes of the cluster cannot be read; set view = "auto"')
            if not is_allowed:
                self._read_quotas(api)
        except BaseException:
            api.close()
            unfenced.close()
            raise
        everywhere = None if is_allowed else settings.namespace
        learners = f"{selector()},{LABEL_ROLE}={ROLE_LEARNER}"
        return _Connected(
            reader=api,
            unfenced=unfenced,
            leadership=leadership,
            pods=Watch(api, "pods", settings.namespace, self._note_pod, labels=learners, knows=self._note_knowledge),
            events=Watch(api, "events", settings.namespace, self._note_event, fields="involvedObject.kind=Pod"),
            others=Watch(api, "pods", everywhere, self._note_capacity, knows=self._note_knowledge),
            nodes=Watch(api, "nodes", None, self._note_node, knows=self._note_knowledge) if is_allowed else None,
        )

    def _begin_term(self, leadership: Leadership) -> None:
        """Prepare the namespace for jobs, in the leadership's thread, and let all begin with the new term."""
        writer = connect(self.settings, fence=leadership.fence())
        try:
            ensure_package(writer, self.settings.namespace, package_archive())
        except BaseException:
            writer.close()
            raise
        former, self._writer = self._writer, writer
        if former is not None:
            former.close()
        self._in_loop(self._elected)

    def _read_quotas(self, api: Api) -> None:
        self._quotas = api.list("resourcequotas", self.settings.namespace)["items"]

    # ---- what is known ---------------------------------------------------------------------------------------

    @property
    def api(self) -> Api:
        """Connection of the present term. Raises ApiUnreachable before the first one."""
        if self._writer is None:
            raise ApiUnreachable(self._problem if self._connected is None else "this engine has had no Lease yet")
        return self._writer

    @property
    def pins(self) -> bool:
        """True if nodes are readable, so that the pool chooses them."""
        return self._connected is not None and self._connected.nodes is not None

    @property
    def api_host(self) -> str:
        """Host of the API server. Raises ApiUnreachable if there was no connection yet."""
        if self._connected is None:
            raise ApiUnreachable(self._problem)
        return urlsplit(self._connected.reader.server).hostname or ""

    def unavailable(self) -> str | None:
        """Return why the cluster cannot be reached now, as a sentence; None if it can."""
        if self._connected is None:
            return f"The Kubernetes cluster cannot be reached: {self._problem}."
        unknown, leadership = self._connected.pods.knowledge().unknown, self._connected.leadership
        if leadership.is_refused or (unknown is None and self._has_capacity):
            return leadership.problem()
        why = unknown or "its capacity has not been read yet"
        return f"The API server {self._connected.reader.server} cannot be reached: {why}."

    def commit(self, change: Callable[[Ledger], Ledger]) -> None:
        """Change the ledger of the namespace. Raises ApiUnreachable, also if this engine is not the leader."""
        if self._connected is None:
            raise ApiUnreachable(self._problem)
        self._connected.leadership.commit(change)

    @property
    def unit(self) -> str:
        """ "GPU" if a node of the pool has some, otherwise "CPU slot"."""
        return GPU if any(device.kind != "CPU" for node in self._nodes for device in node.devices) else CPU_SLOT

    def pods_of(self, job: str) -> Mapping[str, Json]:
        """Return the learners' pods of a job by name, as last seen. Pods of nodes that are gone have ended."""
        if self._connected is None:
            return {}
        pods = self._connected.pods.objects()
        return {name: self._as_known(pod) for (_, name), pod in pods.items() if _job_of(pod) == job}

    def jobs(self) -> Mapping[str, Mapping[str, Json]]:
        """Return the jobs that have learners' pods, with these pods by name, as `pods_of` returns them."""
        found: dict[str, dict[str, Json]] = {}
        for (_, name), pod in self._connected.pods.objects().items() if self._connected is not None else ():
            if job := _job_of(pod):
                found.setdefault(job, {})[name] = self._as_known(pod)
        return found

    def _as_known(self, pod: Json) -> Json:
        """Return a pod with its end if its node is gone."""
        return without_node(pod) if _node_of(pod) in self._gone_nodes else pod

    @property
    def ledger(self) -> Ledger:
        """Ledger as last read or written; empty before it is read."""
        return Ledger() if self._connected is None else self._connected.leadership.ledger

    def seats_changed(self) -> None:
        """Note that jobs hold other devices: those of pods of others are chosen among the rest."""
        self._plan_update()

    def events_of(self, pod: Json) -> Sequence[Json]:
        """Return the events about a pod, oldest first."""
        if self._connected is None:
            return ()
        uid = pod["metadata"].get("uid")
        found = [e for e in self._connected.events.objects().values() if e.get("involvedObject", {}).get("uid") == uid]
        return sorted(found, key=lambda e: str(e.get("lastTimestamp") or e.get("eventTime") or ""))

    def nodes(self) -> tuple[Node, ...]:
        """Return the nodes with their devices, as last seen."""
        return self._nodes

    def no_devices(self) -> str | None:
        """Return why there are no devices, and what to do; None if there are some, or while this is unknown."""
        if not self._has_capacity or any(node.devices for node in self._nodes):
            return None
        return no_devices_text(self._quotas, self.settings, sees_cluster=self.pins)

    def note_closed(self, job: str) -> None:
        """Count the job's pods as leaving until they have ended: the core counts their devices as free from now on.

        It does not report a change: less capacity does not require a new plan. Without readable nodes there are no
        devices to mark.
        """
        if not self.pins:
            return
        held = self.ledger.jobs
        seats = held[job].seats if job in held else {}
        pods = {str(pod["metadata"]["uid"]): pod for pod in self.pods_of(job).values() if end_of_pod(pod) is None}
        if pods.keys() - self._leaving.keys():
            for uid, pod in pods.items():
                _, devices = seats.get((pod["metadata"].get("labels") or {}).get(LABEL_MEMBER, ""), ("", ()))
                self._leaving.setdefault(uid, devices)
            self._nodes = self._current_nodes() or self._nodes

    def _update_nodes(self) -> None:
        self._capacity_timer = None
        found = self._current_nodes()
        if found is None:
            return
        self._has_capacity = True
        if found != self._nodes:
            self._nodes = found
            self._nodes_changed()

    def _current_nodes(self) -> tuple[Node, ...] | None:
        """Return the nodes by the present picture; None while it is unknown."""
        connected = self._connected
        if connected is None or connected.others.knowledge().unknown is not None:
            return None
        pods = list(connected.others.objects().values())
        if connected.nodes is None:
            return (namespace_node(self._quotas, pods, self.settings, is_own=self._is_own, held=self._held()),)
        if connected.nodes.knowledge().unknown is not None:
            return None
        uids = {str(pod["metadata"].get("uid")): pod for pod in pods} if self._leaving else {}
        running = {uid: pod for uid in self._leaving if (pod := uids.get(uid)) and end_of_pod(pod) is None}
        self._leaving = {uid: self._leaving[uid] for uid in running}
        found = cluster_nodes(
            list(connected.nodes.objects().values()),
            pods,
            self.settings,
            is_own=self._is_own,
            held=self._held(),
            former=self._nodes,
        )
        return less_leaving(found, ((pod, self._leaving[uid]) for uid, pod in running.items()))

    # ---- news, in the threads of the watches -----------------------------------------------------------------

    def _note_pod(self, change: Change) -> None:
        job = _job_of(change.after or change.before or {})
        if job:
            self._in_loop(self._pod_changed, job)

    def _note_event(self, change: Change) -> None:
        about = (change.after or {}).get("involvedObject", {})
        connected = self._connected
        if connected is not None and (
            pod := connected.pods.objects().get((self.settings.namespace, about.get("name")))
        ):
            self._in_loop(self._pod_changed, _job_of(pod))

    def _note_capacity(self, change: Change) -> None:
        self._in_loop(self._plan_update)

    def _note_node(self, change: Change) -> None:
        name = str((change.after or change.before or {})["metadata"]["name"])
        self._in_loop(self._lose_node if change.after is None else self._find_node, name)
        if change.before and change.after and change.before.get("spec") != change.after.get("spec"):
            self._in_loop(self._update_nodes)  # a cordon: evictions follow at once, and learners restart elsewhere
        self._note_capacity(change)

    def _lose_node(self, name: str) -> None:
        """Count the node's pods as ended: the cluster removes their objects only after up to a minute.

        The nodes are updated first, so that no learner is planned there again.
        """
        self._gone_nodes |= {name}
        self._update_nodes()
        pods = self._connected.pods.objects().values() if self._connected is not None else ()
        for job in sorted({_job_of(pod) for pod in pods if _node_of(pod) == name} - {""}):
            self._pod_changed(job)

    def _find_node(self, name: str) -> None:
        self._gone_nodes -= {name}

    def _note_knowledge(self) -> None:
        self._in_loop(self._report_knowledge)

    def _in_loop(self, call: Callable[..., None], *arguments: str) -> None:
        assert self._loop is not None
        with suppress(RuntimeError):  # the loop was closed meanwhile
            self._loop.call_soon_threadsafe(call, *arguments)

    def _plan_update(self) -> None:
        if self._capacity_timer is None and self._loop is not None:
            self._capacity_timer = self._loop.call_later(BATCH_S, self._update_nodes)

    def _report_leadership(self) -> None:
        connected = self._connected
        if connected is not None and connected.leadership.problem() is not None:
            self._has_answered.set()
        self._report_knowledge()

    def _report_knowledge(self) -> None:
        self._update_nodes()
        if self.unavailable() is None:
            self._has_answered.set()
            self._became_known()
        self._nodes_changed()


def _job_of(pod: Json) -> str:
    annotations: dict[str, str] = pod.get("metadata", {}).get("annotations") or {}
    return annotations.get(ANNOTATION_JOB, "")


def _node_of(pod: Json) -> str:
    return str(pod.get("spec", {}).get("nodeName", ""))
