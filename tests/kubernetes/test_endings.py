"""Ends of pods, from a real control plane through the pool to a job's journal, and whether a retry follows."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import pytest

from jupyter_dlaas.wire.journal import Goal, MemberWanted, Wanted, is_retried
from jupyter_dlaas.wire.protocol import Cause
from tests.kubernetes.api import Json
from tests.kubernetes.clusters import OwnCluster
from tests.kubernetes.conftest import NODES, Namespace
from tests.kubernetes.namespace_pools import Pools

pytestmark = [pytest.mark.cluster, pytest.mark.anyio]

EMPTY, OLD = "empty/image:1", "old/image:1"


@dataclass(frozen=True, kw_only=True)
class End:
    """End of a job's only learner."""

    cause: Cause
    words: str
    node: str = NODES[0]
    is_retried: bool = True


ON_A_NODE = {
    "killed": End(cause=Cause.UNKNOWN, words="signal 9 (SIGKILL)"),
    "host_memory": End(cause=Cause.RESOURCES, words="reached its memory limit", is_retried=False),
    "evicted": End(cause=Cause.EVICTED, words="low on resource: memory"),
    "evicted_disk": End(cause=Cause.EVICTED, words="low on resource: ephemeral-storage"),
    "deadline": End(cause=Cause.PLATFORM, words="exceeded the time that the cluster allows"),
    "image_without_python": End(cause=Cause.PLATFORM, words="python3", is_retried=False),
    "wrong_python": End(cause=Cause.PLATFORM, words="The image has Python 3.9", is_retried=False),
}
BY_THE_CLUSTER = {
    "deleted": End(cause=Cause.EVICTED, words=f"deleted on node {NODES[0]}"),
    "vanished": End(cause=Cause.EVICTED, words=f"deleted on node {NODES[0]}"),
    "drained": End(cause=Cause.EVICTED, words=f"evicted from node {NODES[0]}, as in a drain"),
    "preempted": End(cause=Cause.EVICTED, words="was preempted by a pod of higher priority", node="small"),
    "node_taint": End(cause=Cause.EVICTED, words="removed from node tainted", node="tainted"),
    "node_shutdown": End(cause=Cause.EVICTED, words="closing", node="closing"),
    "node_gone": End(cause=Cause.EVICTED, words="Node leaving is gone, and pod", node="leaving"),
}
BROKEN = ("tainted", "closing", "leaving")
IMAGES = {"image_without_python": EMPTY, "wrong_python": OLD}
OTHER_CODES = {"node_shutdown": "evicted", "vanished": "deleted"}
"""A kubelet that shuts down names this reason only after all containers have ended."""


def job_of(code: str) -> str:
    return f"{code.replace('_', '-')}-1"


@pytest.fixture
def nodes(own_cluster: OwnCluster) -> Iterator[None]:
    """Add nodes that the test breaks."""
    own_cluster.add_node("small", resources={"cpu": "150m"})
    for name in BROKEN:
        own_cluster.add_node(name)
    yield
    for name in {"small", *BROKEN} & own_cluster.nodes.keys():
        own_cluster.remove_node(name)


async def test_ends_on_a_node_name_cause_object_and_fix(
    pools: Pools, own_cluster: OwnCluster, namespace: Namespace
) -> None:
    node, run, place = own_cluster.nodes[NODES[0]], own_cluster.loop.run, namespace.name
    node.images.without_python.add(EMPTY)
    node.images.old_python.add(OLD)
    await start(pools, ON_A_NODE)
    pod = {code: f"{job_of(code)}-m0" for code in ON_A_NODE}

    def break_pods() -> None:
        run(node.kill_process(place, pod["killed"], "learner", 1))
        run(node.oom_kill(place, pod["host_memory"], "learner"))
        run(node.evict(place, pod["evicted"]))
        run(node.evict(place, pod["evicted_disk"], "ephemeral-storage"))
        namespace.patch("pods", pod["deadline"], {"spec": {"activeDeadlineSeconds": 1}})

    await asyncio.to_thread(break_pods)  # the event loop of the pool is not blocked
    await check(pools, ON_A_NODE)


@pytest.mark.usefixtures("nodes")
async def test_ends_by_the_cluster_name_cause_object_and_fix(
    pools: Pools, own_cluster: OwnCluster, namespace: Namespace
) -> None:
    run, place = own_cluster.loop.run, namespace.name
    urgent: Json = {"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "value": 1000}
    run(
        own_cluster.api.request(
            "POST", "/apis/scheduling.k8s.io/v1/priorityclasses", {**urgent, "metadata": {"name": place}}
        )
    )
    await start(pools, BY_THE_CLUSTER)
    pod = {code: f"{job_of(code)}-m0" for code in BY_THE_CLUSTER}

    def end_pods() -> None:
        own_cluster.remove_node("leaving")  # first: the cluster waits 40 s for a node to come back
        namespace.delete("pods", pod["deleted"])
        namespace.delete("pods", pod["vanished"], grace_s=0)
        eviction = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": pod["drained"]}}
        run(own_cluster.api.request("POST", f"/api/v1/namespaces/{place}/pods/{pod['drained']}/eviction", eviction))
        taint = {"key": "example.com/broken", "effect": "NoExecute"}
        run(own_cluster.api.patch("nodes", None, "tainted", {"spec": {"taints": [taint]}}))
        here, amounts = {"kubernetes.io/hostname": "small"}, {"requests": {"cpu": "100m"}}
        namespace.run_pod(
            "urgent", "true", nodeSelector=here, priorityClassName=place, container={"resources": amounts}
        )
        run(own_cluster.nodes["closing"].shut_down(30.0))

    await asyncio.to_thread(end_pods)  # the event loop of the pool is not blocked
    await check(pools, BY_THE_CLUSTER)


async def start(pools: Pools, ends: Mapping[str, End]) -> None:
    pool = await pools.open()
    for code, end in ends.items():
        at = await pools.open(image=IMAGES[code]) if code in IMAGES else pool
        await pools.run(at, job_of(code), end.node)
    for code in ends.keys() - IMAGES.keys():
        await pools.trains(job_of(code))


async def check(pools: Pools, ends: Mapping[str, End]) -> None:
    for code, expected in ends.items():
        failure = (await pools.end_of(job_of(code))).failure
        assert failure is not None, code
        assert failure.code in (code, OTHER_CODES.get(code))
        assert failure.cause is expected.cause
        assert expected.words in failure.what
        assert pools.pod_of(job_of(code)) in failure.what
        assert failure.advice
        assert is_retried(failure) is expected.is_retried, code


async def test_a_quota_in_mid_job_leaves_the_others_training(pools: Pools, namespace: Namespace) -> None:
    pool = await pools.open()
    await pools.run(pool, "grows-1", gpus_per_learner=0)
    await pools.trains("grows-1")
    namespace.create("resourcequotas", {"metadata": {"name": "few"}, "spec": {"hard": {"pods": "1"}}})
    namespace.wait("resourcequotas", "few", lambda quota: quota.get("status", {}).get("used", {}).get("pods") == "1")
    seats = tuple(MemberWanted(member=n, node=NODES[0]) for n in range(2))
    await pool.act("grows-1", Wanted(revision=2, goal=Goal.RUN, generation=2, members=seats, grace_s=5.0))

    async def is_refused() -> bool:
        return bool(pool.refused("grows-1"))

    await pools.until(is_refused, "the second seat is refused")
    refused = {seat.member: seat for seat in pool.refused("grows-1")}
    assert refused.keys() == {1}
    assert "exceeded quota: few" in (refused[1].what or "")
    assert f"pod {namespace.name}/grows-1-m1" in (refused[1].what or "")
    assert refused[1].advice
    assert [pod["metadata"]["name"] for pod in pods_of(namespace)] == ["grows-1-m0"]
    assert pods_of(namespace)[0]["status"]["phase"] == "Running"


def pods_of(namespace: Namespace) -> list[Json]:
    found = namespace.cluster.loop.run(
        namespace.cluster.api.request("GET", f"/api/v1/namespaces/{namespace.name}/pods")
    )
    return list(found["items"])
