"""Faults of process nodes, as the API server shows them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.kubernetes.api import Json
from tests.kubernetes.clusters import OwnCluster
from tests.kubernetes.conftest import Namespace, conditions, node_conditions, terminated, waiting_reason
from tests.kubernetes.nodes.node import ProcessNode

pytestmark = pytest.mark.cluster
ENDLESS = "while true; do sleep 0.1; done"
AT_ONCE = [
    {"key": key, "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 0}
    for key in ("node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable")
]


@pytest.fixture
def node(own_cluster: OwnCluster) -> Iterator[ProcessNode]:
    """Add a node that the test may break."""
    name = "fragile"
    yield own_cluster.add_node(name)
    own_cluster.remove_node(name)


def on(node: ProcessNode) -> dict[str, str]:
    return {"kubernetes.io/hostname": node.name}


def running_pod(namespace: Namespace, node: ProcessNode, name: str = "a", **spec: object) -> Json:
    namespace.run_pod(name, ENDLESS, nodeSelector=on(node), **spec)
    return namespace.wait_phase(name, "Running")


def test_a_slow_pull_shows_a_container_being_created(
    own_cluster: OwnCluster, namespace: Namespace, node: ProcessNode
) -> None:
    node.images.pull_s = 3600.0
    namespace.run_pod("a", "true", nodeSelector=on(node))
    pod = namespace.wait("pods", "a", lambda pod: waiting_reason(pod) == "ContainerCreating")
    assert pod["status"]["phase"] == "Pending"
    namespace.delete("pods", "a")
    namespace.wait_gone("pods", "a", timeout_s=30.0)

    node.images.pull_s = 0.2
    namespace.run_pod("b", "true", nodeSelector=on(node))
    namespace.wait_phase("b", "Succeeded")


def test_a_refused_image_can_be_pulled_later(namespace: Namespace, node: ProcessNode) -> None:
    node.images.unpullable.add("team/model:1")
    namespace.run_pod("a", "true", image="team/model:1", nodeSelector=on(node))
    assert "not found" in namespace.wait_reason("a", "ImagePullBackOff")["waiting"]["message"]

    node.images.unpullable.clear()
    namespace.wait_phase("a", "Succeeded")


def test_a_container_over_its_memory_limit_is_oom_killed(
    own_cluster: OwnCluster, namespace: Namespace, node: ProcessNode
) -> None:
    running_pod(namespace, node)
    own_cluster.loop.run(node.oom_kill(namespace.name, "a", "main"))
    pod = namespace.wait_phase("a", "Failed")

    assert (terminated(pod)["reason"], terminated(pod)["exitCode"]) == ("OOMKilled", 137)


def test_an_evicted_pod_says_which_resource_ran_out(
    own_cluster: OwnCluster, namespace: Namespace, node: ProcessNode
) -> None:
    running_pod(namespace, node)
    own_cluster.loop.run(node.evict(namespace.name, "a", "memory"))
    pod = namespace.wait_phase("a", "Failed")

    assert pod["status"]["reason"] == "Evicted"
    assert "low on resource: memory" in pod["status"]["message"]
    assert conditions(pod)["DisruptionTarget"]["reason"] == "TerminationByKubelet"


def test_a_shutdown_gives_containers_time_to_end(
    own_cluster: OwnCluster, namespace: Namespace, node: ProcessNode
) -> None:
    namespace.run_pod("a", f"trap 'echo saved; exit 0' TERM; {ENDLESS}", nodeSelector=on(node))
    namespace.wait_phase("a", "Running")
    own_cluster.loop.run(node.shut_down(30.0))
    pod = namespace.wait_phase("a", "Failed")

    assert pod["status"]["reason"] == "Terminated"
    assert terminated(pod)["exitCode"] == 0
    assert conditions(pod)["DisruptionTarget"]["status"] == "True"


def test_a_failed_node_turns_unknown_and_loses_its_pods(
    own_cluster: OwnCluster, namespace: Namespace, node: ProcessNode
) -> None:
    running_pod(namespace, node, tolerations=AT_ONCE)
    own_cluster.loop.run(node.fail())
    lost = own_cluster.api.wait_for("nodes", None, node.name, lambda n: n is not None and not is_ready(n))
    found = own_cluster.loop.run(lost)
    assert found is not None
    assert node_conditions(found)["Ready"] == "Unknown"

    pod = namespace.wait("pods", "a", lambda pod: "deletionTimestamp" in pod["metadata"])
    assert pod["status"]["phase"] == "Running"  # whether it ended is unknown
    pod = namespace.wait("pods", "a", lambda pod: conditions(pod)["Ready"]["status"] == "False")
    assert conditions(pod)["DisruptionTarget"]["reason"] == "DeletionByTaintManager"

    own_cluster.loop.run(node.recover())
    namespace.wait_gone("pods", "a")


def test_a_cut_network_leaves_containers_running(
    own_cluster: OwnCluster, namespace: Namespace, node: ProcessNode
) -> None:
    before = running_pod(namespace, node)
    own_cluster.loop.run(node.cut_network())
    namespace.wait("pods", "a", lambda pod: conditions(pod)["Ready"]["status"] == "False")
    own_cluster.loop.run(node.recover())
    after = namespace.wait("pods", "a", lambda pod: conditions(pod)["Ready"]["status"] == "True")

    states = [pod["status"]["containerStatuses"][0]["state"] for pod in (before, after)]
    assert states[0] == states[1]
    assert before["metadata"]["uid"] == after["metadata"]["uid"]


def is_ready(node: Json) -> bool:
    return node_conditions(node)["Ready"] == "True"
