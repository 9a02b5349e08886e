"""Pods that outlive their closed job: they use capacity until they have ended, and the pool says so."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from dlaas_server.pools.kubernetes.ledger import Ledger, Reservation
from dlaas_server.pools.kubernetes.manifests.names import Json
from dlaas_server.pools.kubernetes.manifests.settings import KubernetesSection
from dlaas_server.pools.kubernetes.picture import Picture
from dlaas_server.pools.kubernetes.pod_endings import end_of_pod
from tests.pools.kubernetes.golden_manifests import job, job_manifests
from tests.pools.kubernetes.test_capacity import node

JOB = "digits-1"


class Followed:
    """Watch with fixed objects."""

    def __init__(self, *items: Json) -> None:
        self.items = {(str(i["metadata"].get("namespace", "")), str(i["metadata"]["name"])): i for i in items}

    def knowledge(self) -> Any:
        return SimpleNamespace(unknown=None)

    def objects(self) -> dict[tuple[str, str], Json]:
        return self.items


def learner(uid: str = "old", phase: str = "Running") -> Json:
    """Return the pod of member 1 of the job, on node a."""
    found = next(m for m in job_manifests(job()) if m["kind"] == "Pod" and m["metadata"]["name"].endswith("-m1"))
    found["metadata"]["uid"] = uid
    found["spec"]["nodeName"] = "a"
    found["status"] = {"phase": phase}
    return found


class Cluster:
    """A picture of one node with three GPUs, on which the job holds a/0 in the ledger."""

    def __init__(self, *pods: Json) -> None:
        self.reports = 0
        self.changed: list[str] = []
        self.picture = Picture(
            KubernetesSection(namespace="ml"),
            pod_changed=self.changed.append,
            nodes_changed=self._count,
            became_known=lambda: None,
            elected=lambda: None,
            holder=lambda: pytest.fail("it connects to no cluster"),
            is_own=lambda job: True,
        )
        self.ledger = Ledger().reserve(JOB, Reservation(generation=1, seats={"1": ("a", ("a/0",))}))
        self.show(*pods)

    def _count(self) -> None:
        self.reports += 1

    def show(self, *pods: Json) -> None:
        watch, leadership = Followed(*pods), SimpleNamespace(ledger=self.ledger)
        connected: Any = SimpleNamespace(
            pods=watch, others=watch, nodes=Followed(node("a", gpus=3)), leadership=leadership
        )
        self.picture._connected = connected
        self.picture._update_nodes()

    def out_of_service(self) -> list[str | None]:
        (found,) = self.picture.nodes()
        return [device.out_of_service for device in found.devices]


REMOVED = f"pod ml/{JOB}-m1 of an ended job is still being removed"


def test_a_closed_jobs_pod_keeps_its_device_until_it_ends() -> None:
    cluster = Cluster(learner())
    assert cluster.out_of_service() == [None, None, None]
    (whole,) = cluster.picture.nodes()
    reports = cluster.reports

    cluster.picture.note_closed(JOB)
    (less,) = cluster.picture.nodes()
    assert cluster.out_of_service() == [REMOVED, None, None]
    assert less.cpus < whole.cpus
    assert less.memory_bytes < whole.memory_bytes
    assert cluster.reports == reports, "less capacity does not require a new plan"

    cluster.show(learner(phase="Succeeded"))
    assert cluster.picture.nodes() == (whole,)
    assert cluster.reports == reports + 1


def test_a_successors_pods_are_not_counted_as_leaving() -> None:
    cluster = Cluster(learner())
    cluster.picture.note_closed(JOB)
    cluster.show(learner(uid="new"))

    assert cluster.out_of_service() == [None, None, None]


def test_a_pod_that_has_ended_holds_nothing() -> None:
    cluster = Cluster(learner(phase="Succeeded"))
    cluster.picture.note_closed(JOB)

    assert cluster.out_of_service() == [None, None, None]


def test_pods_of_a_deleted_node_have_ended() -> None:
    cluster = Cluster(learner())
    (before,) = cluster.picture.pods_of(JOB).values()
    assert end_of_pod(before) is None
    cluster.picture._lose_node("a")
    (gone,) = cluster.picture.pods_of(JOB).values()
    end = end_of_pod(gone)

    assert cluster.changed == [JOB]
    assert end is not None
    assert (end.code, "Node a is gone, and pod ml/digits-1-m1 with it" in end.what) == ("node_gone", True)
    cluster.picture._find_node("a")
    assert list(cluster.picture.pods_of(JOB).values()) == [before], "the node was registered again"
