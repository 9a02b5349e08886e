"""Pods of a gang on a real control plane: they grow, are lost, and are given up, as the documents of a job want."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace

import pytest

from dlaas_server.pools.kubernetes.api import Api
from dlaas_server.pools.kubernetes.gang import Gang, GangOutcome
from dlaas_server.pools.kubernetes.job_creation import ensure_package
from dlaas_server.pools.kubernetes.manifests.job_manifests import JobObjects
from dlaas_server.pools.kubernetes.manifests.names import LABEL_ROLE
from dlaas_server.pools.kubernetes.manifests.package_archive import package_archive
from dlaas_server.pools.kubernetes.manifests.settings import KubernetesSection
from jupyter_dlaas.wire.journal import Goal, MemberWanted, Wanted
from tests.kubernetes.api import Json
from tests.kubernetes.clusters import OwnCluster
from tests.kubernetes.conftest import NODES, Namespace
from tests.kubernetes.pool import Followed, job_of

pytestmark = pytest.mark.cluster


class Driven:
    """Gang whose steps follow each change of its pods, with a clock that a test may advance."""

    def __init__(
        self, api: Api, section: KubernetesSection, followed: Followed, job: JobObjects, *, pins: bool
    ) -> None:
        self._api, self._followed, self._job, self._pins = api, followed, job, pins
        self.ahead_s = 0.0
        self.outcome = GangOutcome()
        self.gang = self._open()
        ensure_package(api, section.namespace, package_archive())

    def _open(self) -> Gang:
        return Gang(
            self._api,
            self._job,
            pins=self._pins,
            now=lambda: time.monotonic() + self.ahead_s,
            reserve=lambda reservation: None,
        )

    def restart(self, document: Wanted) -> None:
        self.gang = self._open()
        self.gang.accept(document)

    def until(self, is_met: Callable[[dict[str, Json]], bool]) -> dict[str, Json]:
        """Step at each change until the learners' pods meet a condition; return them by name."""

        def step(pods: dict[str, Json]) -> bool:
            self.outcome = self.gang.step(pods)
            return is_met(learners(self._followed.pods()))

        return learners(self._followed.wait(step))


def learners(pods: dict[str, Json]) -> dict[str, Json]:
    return {n: p for n, p in sorted(pods.items()) if p["metadata"]["labels"].get(LABEL_ROLE) == "learner"}


def document(*members: int, revision: int = 1, generation: int = 1, goal: Goal = Goal.RUN) -> Wanted:
    seats = tuple(MemberWanted(member=m, node=NODES[m % len(NODES)]) for m in members)
    return Wanted(revision=revision, goal=goal, generation=generation, members=seats)


def are_running(*members: int) -> Callable[[dict[str, Json]], bool]:
    names = {f"digits-1-m{member}" for member in members}
    return lambda pods: {n for n, p in pods.items() if p["status"].get("phase") == "Running"} >= names


def test_a_gang_grows_and_a_new_engine_changes_nothing(
    api: Api, section: KubernetesSection, followed: Followed
) -> None:
    driven = Driven(api, section, followed, job_of(section), pins=True)
    driven.gang.accept(document(0, 1))
    before = driven.until(are_running(0, 1))
    larger = document(0, 1, 2, revision=2, generation=2)
    driven.gang.accept(larger)
    after = driven.until(are_running(0, 1, 2))
    for name, pod in before.items():
        assert after[name]["metadata"]["uid"] == pod["metadata"]["uid"]
        assert after[name]["status"]["startTime"] == pod["status"]["startTime"]
    assert [pod["spec"]["nodeName"] for pod in after.values()] == [NODES[0], NODES[1], NODES[0]]

    driven.restart(larger)
    outcome = driven.gang.step(followed.pods())
    assert (outcome.lost, outcome.refused) == ({}, {})
    uids = {name: pod["metadata"]["uid"] for name, pod in learners(followed.pods()).items()}
    assert uids == {name: pod["metadata"]["uid"] for name, pod in after.items()}


def test_an_evicted_learner_is_lost_once_and_for_all(
    own_cluster: OwnCluster, api: Api, namespace: Namespace, section: KubernetesSection, followed: Followed
) -> None:
    driven = Driven(api, section, followed, job_of(section), pins=True)
    driven.gang.accept(document(0, 1))
    driven.until(are_running(0, 1))
    own_cluster.loop.run(own_cluster.nodes[NODES[1]].evict(namespace.name, "digits-1-m1"))
    driven.until(lambda _: bool(driven.outcome.lost))

    assert driven.outcome.lost.keys() == {1}
    assert f"evicted pod {namespace.name}/digits-1-m1" in driven.outcome.lost[1].what
    driven.gang.accept(document(0, 2, revision=2, generation=2))
    driven.until(lambda pods: are_running(0, 2)(pods) and "digits-1-m1" not in pods)
    driven.restart(document(0, 1, revision=3, generation=3))
    driven.until(lambda _: 1 in driven.outcome.lost)
    assert "digits-1-m1" not in followed.pods()


def test_a_gang_that_fits_in_part_is_given_up_whole(
    api: Api, namespace: Namespace, section: KubernetesSection, followed: Followed
) -> None:
    """Two nodes with two GPUs each: the third learner with two GPUs finds none."""
    driven = Driven(api, section, followed, job_of(section, gpus=2), pins=False)
    driven.gang.accept(document(0, 1, 2))
    driven.until(lambda pods: sum("nodeName" in pod["spec"] for pod in pods.values()) == 2 and len(pods) == 3)
    driven.until(lambda pods: any("Insufficient" in str(pod["status"]) for pod in pods.values()))
    assert driven.outcome.refused == {}
    driven.ahead_s = section.bind_timeout_s
    driven.until(lambda _: bool(driven.outcome.refused))

    (name,) = {wait.object for wait in driven.outcome.refused.values()}
    assert name.startswith(f"pod {namespace.name}/digits-1-m")
    assert {wait.code for wait in driven.outcome.refused.values()} == {"no_capacity"}
    driven.until(lambda pods: all("deletionTimestamp" in p["metadata"] or is_running(p) for p in pods.values()))
    driven.ahead_s = 0.0
    survivors = [member for member in range(3) if member not in driven.outcome.refused]
    smaller = sorted({*survivors, *driven.outcome.refused})[:2]
    driven.gang.accept(document(*smaller, revision=2, generation=2))
    driven.until(are_running(*smaller))


def test_successors_wait_while_their_predecessors_save(
    own_cluster: OwnCluster, api: Api, namespace: Namespace, section: KubernetesSection, followed: Followed
) -> None:
    """Each node has two GPUs, and each learner needs two."""
    driven = Driven(api, section, followed, job_of(section, gpus=2), pins=True)
    driven.gang.accept(document(0, 1))
    driven.until(are_running(0, 1))
    driven.gang.accept(replace(document(2, 3, revision=2, generation=2), grace_s=1000.0))
    driven.until(lambda pods: sum("Insufficient" in str(pod["status"]) for pod in pods.values()) == 2)
    driven.ahead_s = 2 * section.bind_timeout_s
    driven.until(lambda _: True)
    assert driven.outcome.refused == {}
    for member in (0, 1):
        node = own_cluster.nodes[NODES[member]]
        own_cluster.loop.run(node.kill_process(namespace.name, f"digits-1-m{member}", "learner", 1))
    driven.until(are_running(2, 3))


def is_running(pod: Json) -> bool:
    return bool(pod["status"].get("phase") == "Running")


def test_a_quota_refuses_the_gang_with_its_name(
    api: Api, namespace: Namespace, section: KubernetesSection, followed: Followed
) -> None:
    namespace.create("resourcequotas", {"metadata": {"name": "few"}, "spec": {"hard": {"pods": "1"}}})
    namespace.wait("resourcequotas", "few", lambda quota: "hard" in quota.get("status", {}))
    driven = Driven(api, section, followed, job_of(section), pins=True)
    driven.gang.accept(document(0, 1))
    driven.until(lambda _: bool(driven.outcome.refused))

    assert {wait.code for wait in driven.outcome.refused.values()} == {"quota"}
    assert all("exceeded quota: few" in wait.what for wait in driven.outcome.refused.values())
    driven.until(lambda pods: not pods)
    driven.gang.close()
    assert replace(driven.outcome, refused={}) == GangOutcome()
