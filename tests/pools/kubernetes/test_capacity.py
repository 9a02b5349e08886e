"""Capacity of a cluster and of a namespace, and the rights that requests need."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from dlaas_server.core.model.cluster import Device, Node
from dlaas_server.pools.kubernetes.capacity import cluster_nodes, namespace_node, no_devices_text, quantity
from dlaas_server.pools.kubernetes.manifests.access import Access, access_of
from dlaas_server.pools.kubernetes.manifests.names import Json
from dlaas_server.pools.kubernetes.manifests.settings import KubernetesSection, TolerationEntry
from tests.pools.kubernetes.golden_manifests import job, job_manifests

SETTINGS = KubernetesSection(namespace="ml")


def node(name: str, *, gpus: int = 0, ready: str = "True", labels: Any = None, **spec: Any) -> Json:
    allocatable = {"cpu": "7500m", "memory": "16Gi"} | ({"nvidia.com/gpu": str(gpus)} if gpus else {})
    status = {"allocatable": allocatable, "conditions": [{"type": "Ready", "status": ready, "message": "gone"}]}
    return {"metadata": {"name": name, "labels": labels or {}}, "spec": spec, "status": status}


def foreign(name: str, on: str, gpus: int, *, cpu: str = "500m", phase: str = "Running") -> Json:
    resources = {"requests": {"cpu": cpu, "memory": "1Gi"}, "limits": {"nvidia.com/gpu": str(gpus)}}
    metadata = {"name": name, "namespace": "other"}
    return {
        "kind": "Pod",
        "metadata": metadata,
        "spec": {"nodeName": on, "containers": [{"resources": resources}]},
        "status": {"phase": phase},
    }


@pytest.mark.parametrize(("text", "value"), [("1500m", 1.5), ("4Gi", 4 * 2**30), ("1e3", 1000), ("2k", 2000), (3, 3)])
def test_quantities_are_read(text: object, value: float) -> None:
    assert quantity(text) == value


def test_gpus_of_others_are_out_of_service() -> None:
    pods = [foreign("train", "a", 1), foreign("done", "a", 3, phase="Succeeded")]
    labels = {"nvidia.com/gpu.product": "A100", "nvidia.com/gpu.memory": "81920", "topology.kubernetes.io/zone": "z1"}
    (found,) = cluster_nodes([node("a", gpus=4, labels=labels), node("cpu-only")], pods, SETTINGS)

    assert [device.out_of_service for device in found.devices] == [None, None, None, "used by pod other/train"]
    assert {(device.kind, device.memory_bytes) for device in found.devices} == {("A100", 80 * 2**30)}
    assert (found.cpus, found.memory_bytes, found.rack) == (7.0, 15 * 2**30, "z1")


def free(found: Node, held: Collection[str]) -> list[str]:
    return [d.id for d in found.devices if d.out_of_service is None and d.id not in held]


@given(
    st.integers(0, 6), st.sets(st.integers(0, 8)), st.lists(st.integers(0, 3), max_size=3), st.sets(st.integers(0, 8))
)
@example(4, {3}, [1], set())  # the last one is ours, and a pod of others has taken another one
@example(3, {3}, [], set())  # the node has lost a GPU while a job holds the last one
def test_devices_are_lent_only_while_others_leave_them(
    total: int, ours: set[int], others: list[int], before: set[int]
) -> None:
    """The devices that are neither held nor out of service are exactly as many as all holders leave."""
    pods = [foreign(f"train-{n}", "ml", gpus, cpu=str(gpus)) for n, gpus in enumerate(others)]
    held = {f"ml/{n}" for n in ours}
    used = tuple(Device(id=f"ml/{n}", index=n, kind="GPU", out_of_service="used") for n in before)
    left = max(0, total - sum(others) - len(ours))
    gpus = node("ml", gpus=total)
    found = cluster_nodes([gpus, node("z", gpus=1)], pods, SETTINGS, held=held, former=[Node(name="ml", devices=used)])
    assert (len(free(found[0], held)) if total else 0) == left
    assert not total or held <= {d.id for d in found[0].devices}

    slots = node("ml")
    slots["status"]["allocatable"]["cpu"] = str(total)
    (found_slots,) = cluster_nodes([slots], pods, SETTINGS, held=held)
    assert len(free(found_slots, held)) == max(0, max(0, total - sum(others)) - len(ours))

    quota = {"spec": {"hard": {"requests.nvidia.com/gpu": str(total)}}}
    space = namespace_node([quota], pods, SETTINGS, held=held)
    assert (len(free(space, held)) if total else 0) == left


def test_pods_of_others_keep_their_devices() -> None:
    nodes, pods = [node("a", gpus=4)], [foreign("train", "a", 1)]
    (first,) = cluster_nodes(nodes, pods, SETTINGS, held={"a/3"})
    (second,) = cluster_nodes(nodes, pods, SETTINGS, held=set(), former=[first])

    assert [d.index for d in first.devices if d.out_of_service] == [2]
    assert second == first, "a plan made by the first one stays valid"


def test_our_own_learners_use_no_capacity_of_others() -> None:
    learner = job_manifests(job())[-1]
    learner["spec"]["nodeName"] = "a"
    (found,) = cluster_nodes([node("a", gpus=2)], [learner], SETTINGS)

    assert [device.out_of_service for device in found.devices] == [None, None]
    assert found.cpus == 7.5


def test_learners_of_another_engines_jobs_use_capacity() -> None:
    learner = job_manifests(job())[-1]
    learner["spec"]["nodeName"] = "a"
    name = f"used by pod ml/{learner['metadata']['name']}"
    jobs = []

    def is_own(job: str) -> bool:
        jobs.append(job)
        return False

    (found,) = cluster_nodes([node("a", gpus=3)], [learner], SETTINGS, is_own=is_own)

    assert [device.out_of_service for device in found.devices] == [None, name, name]
    assert jobs == ["digits-1"]
    quota = {"spec": {"hard": {"requests.nvidia.com/gpu": "3"}}}
    assert len(namespace_node([quota], [learner], SETTINGS, is_own=is_own).devices) == 1


def test_a_cluster_without_gpus_offers_cpu_slots() -> None:
    (found,) = cluster_nodes([node("a")], [foreign("web", "a", 0, cpu="2")], SETTINGS)

    assert [device.kind for device in found.devices] == ["CPU"] * 5


@pytest.mark.parametrize(("item", "words"), [
    (node("a", unschedulable=True), "kubectl uncordon a"),
    (node("a", ready="Unknown"), "not ready: gone"),
    (node("a", taints=[{"key": "node.kubernetes.io/disk-pressure", "effect": "NoSchedule"}]), "cluster: disk-pressure"),
    (node("a", taints=[{"key": "team", "value": "x", "effect": "NoSchedule"}]), "tainted with team"),
])  # fmt: skip
def test_unusable_nodes_are_cordoned_with_a_reason(item: Json, words: str) -> None:
    (found,) = cluster_nodes([item], [], SETTINGS)

    assert words in (found.cordoned or "")
    assert not (found.cordoned or "").startswith("node"), "the node is named before"


def test_tolerated_taints_do_not_cordon() -> None:
    settings = KubernetesSection(tolerations=(TolerationEntry(key="team"), TolerationEntry(key="gpu", value="yes")))
    taints = [
        {"key": "team", "value": "x", "effect": "NoSchedule"}, {"key": "gpu", "value": "yes", "effect": "NoExecute"},
        {"key": "slow", "effect": "PreferNoSchedule"},
    ]  # fmt: skip
    (found,) = cluster_nodes([node("a", taints=taints)], [], settings)

    assert found.cordoned is None


def test_a_namespace_offers_what_its_smallest_quota_leaves() -> None:
    quotas = [
        {"metadata": {"name": "a"}, "spec": {"hard": {"requests.nvidia.com/gpu": "8"}}},
        {"metadata": {"name": "b"}, "status": {"hard": {"requests.nvidia.com/gpu": "4", "requests.cpu": "10"}}},
    ]
    found = namespace_node(quotas, [foreign("train", "a", 1)], SETTINGS)

    assert (len(found.devices), found.devices[0].kind, found.cpus) == (3, "GPU", 9.5)


def test_a_configured_number_replaces_the_quota() -> None:
    assert len(namespace_node([], [], KubernetesSection(gpus=6)).devices) == 6
    assert len(namespace_node([], [], KubernetesSection(learners=3)).devices) == 3
    empty = namespace_node([], [], KubernetesSection())
    assert len(empty.devices) == 0
    assert empty.cordoned is None, "jobs without devices run there"


@pytest.mark.parametrize(("method", "target", "access"), [
    ("GET", "/api/v1/namespaces/ml/pods?labelSelector=a", ("list", "", "pods")),
    ("GET", "/api/v1/namespaces/ml/pods?watch=true&resourceVersion=1", ("watch", "", "pods")),
    ("GET", "/api/v1/nodes", ("list", "", "nodes")),
    ("GET", "/api/v1/namespaces/ml/pods/a/log?tailLines=2", ("get", "", "pods/log")),
    ("PUT", "/apis/coordination.k8s.io/v1/namespaces/ml/leases/a", ("update", "coordination.k8s.io", "leases")),
    ("POST", "/apis/networking.k8s.io/v1/namespaces/ml/networkpolicies",
     ("create", "networking.k8s.io", "networkpolicies")),
    ("PATCH", "/api/v1/namespaces/ml/pods/a", ("patch", "", "pods")),
    ("DELETE", "/api/v1/namespaces/ml/configmaps/a", ("delete", "", "configmaps")),
])  # fmt: skip
def test_the_right_that_a_request_needs(method: str, target: str, access: tuple[str, str, str]) -> None:
    verb, group, resource = access

    assert access_of(method, target) == Access(verb=verb, group=group, resource=resource)


QUOTA = {"spec": {"hard": {"requests.nvidia.com/gpu": "2", "requests.cpu": "4"}}}


@pytest.mark.parametrize(("quotas", "sees_cluster", "why", "what_to_do"), [
    ([], False, "Namespace ml has no quota for nvidia.com/gpu or CPUs, and nodes are not readable",
     "Set `gpus` or `learners` in section [kubernetes] of the pool's config.toml, and restart the engine"),
    ([], False, "does not know what it may use", "for a ResourceQuota with requests.nvidia.com/gpu, or for readable"),
    ([QUOTA], False, "The quota of namespace ml (nvidia.com/gpu 2, cpu 4) leaves no nvidia.com/gpu and less than 1",
     "ask the cluster's administrator for a larger quota."),
    ([], True, "No node of the cluster has nvidia.com/gpu or 1 free CPU.", "Add nodes, or correct `gpu_resource`"),
])  # fmt: skip
def test_pool_without_devices_says_why_and_what_to_do(
    quotas: list[Json], sees_cluster: bool, why: str, what_to_do: str
) -> None:
    said = no_devices_text(quotas, SETTINGS, sees_cluster=sees_cluster)

    assert why in said
    assert what_to_do in said


def test_cluster_without_usable_nodes_names_the_selector() -> None:
    said = no_devices_text([], KubernetesSection(node_selector=("pool=gpu",)), sees_cluster=True)

    assert said.startswith(
        "No node of the cluster with the labels of `node_selector` has nvidia.com/gpu or 1 free CPU. "
    )
