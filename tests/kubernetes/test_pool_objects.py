"""Objects of the Kubernetes pool on a real API server: gangs, rights, ledger, capacity, preflight."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from pathlib import Path

import pytest

from dlaas_server.core.model.states import Event
from dlaas_server.pools.config import PoolConfig
from dlaas_server.pools.kubernetes.api import Api, ApiError, ApiUnreachable, connect
from dlaas_server.pools.kubernetes.capacity import cluster_nodes, namespace_node
from dlaas_server.pools.kubernetes.job_creation import (
    ObjectRefused,
    create_job,
    delete_job,
    delete_pods,
    ensure_package,
    release_gates,
)
from dlaas_server.pools.kubernetes.leadership import Leadership, own_holder
from dlaas_server.pools.kubernetes.ledger import Fenced, Reservation, SeatTaken
from dlaas_server.pools.kubernetes.manifests.access import CLUSTER_RULES, ROLE_RULES, accesses
from dlaas_server.pools.kubernetes.manifests.names import selector
from dlaas_server.pools.kubernetes.manifests.package_archive import package_archive
from dlaas_server.pools.kubernetes.manifests.pod_manifests import LearnerPod, learner_pod
from dlaas_server.pools.kubernetes.manifests.settings import KubernetesSection
from dlaas_server.pools.kubernetes.pod_endings import end_of_pod
from dlaas_server.pools.kubernetes.pool import KubernetesPool
from dlaas_server.pools.kubernetes.preflight import Finding, preflight
from jupyter_dlaas.runtime.system.process import uptime_s
from jupyter_dlaas.wire.journal import FactKind
from jupyter_dlaas.wire.protocol import State
from tests.kubernetes.api import ApiError as ServerError
from tests.kubernetes.api import Json
from tests.kubernetes.clusters import OwnCluster
from tests.kubernetes.conftest import NODES, Namespace
from tests.kubernetes.pool import Followed, job_of, service_account
from tests.kubernetes.rights import Rights
from tests.kubernetes.test_jobs import ENDLESS, Engine, Jobs

pytestmark = pytest.mark.cluster
OWNED = ("secrets", "services", "networkpolicies", "configmaps", "pods")


@pytest.mark.parametrize(("of_container", "setting"), [
    (False, "runAsNonRoot"),
    (False, "seccompProfile"),
    (True, "allowPrivilegeEscalation"),
    (True, "capabilities"),
])  # fmt: skip
def test_a_learner_without_a_security_setting_is_refused(
    namespace: Namespace, section: KubernetesSection, of_container: bool, setting: str
) -> None:
    job = job_of(section, LearnerPod(member=0))
    pod = learner_pod(job.pods, {"apiVersion": "v1", "kind": "ConfigMap", "name": "a", "uid": "1"}, job.learners[0])
    api, path = namespace.cluster.api, f"/api/v1/namespaces/{namespace.name}/pods"

    def create(body: Json) -> Json:
        return namespace.cluster.loop.run(api.request("POST", path, body, params={"dryRun": "All"}))

    assert create(pod)["metadata"]["name"] == pod["metadata"]["name"]
    spec = pod["spec"]["containers"][0] if of_container else pod["spec"]
    del spec["securityContext"][setting]
    with pytest.raises(ServerError, match="violates PodSecurity") as refused:
        create(pod)
    assert refused.value.status == 403


def learners_of(pods: dict[str, Json]) -> list[Json]:
    return [pod for name, pod in sorted(pods.items()) if "-m" in name]


def test_a_gang_starts_together_and_goes_with_its_anchor(
    api: Api, namespace: Namespace, section: KubernetesSection, followed: Followed
) -> None:
    members = [LearnerPod(member=0, node=NODES[0]), LearnerPod(member=1, node=NODES[1]), LearnerPod(member=2)]
    ensure_package(api, namespace.name, package_archive())
    requests = api.requests
    create_job(api, job_of(section, *members))
    followed.wait(lambda pods: len(learners_of(pods)) == 3)
    assert not any("nodeName" in pod["spec"] for pod in learners_of(followed.pods()))
    release_gates(api, namespace.name, [f"digits-1-m{n}" for n in range(3)])
    assert api.requests - requests <= 3 * 3 + 10
    pods = followed.wait(lambda pods: all(p["status"].get("phase") == "Running" for p in learners_of(pods)))

    assert [pod["spec"]["nodeName"] for pod in learners_of(pods)][:2] == list(NODES)
    delete_job(api, namespace.name, "digits-1")
    followed.wait(lambda pods: not pods)
    namespace.wait_gone("secrets", "digits-1")
    for resource in OWNED:
        left = api.list(resource, namespace.name, labels=selector("digits-1"))["items"]
        assert left == []


def test_a_repeated_creation_changes_nothing(api: Api, namespace: Namespace, section: KubernetesSection) -> None:
    job = job_of(section, LearnerPod(member=0))
    owner = create_job(api, job)
    before = api.list("pods", namespace.name)["items"]
    assert create_job(api, job)["metadata"]["uid"] == owner["metadata"]["uid"]
    after = api.list("pods", namespace.name)["items"]

    assert [pod["metadata"]["uid"] for pod in after] == [pod["metadata"]["uid"] for pod in before]
    with pytest.raises(ApiError, match="belongs to another job"):
        create_job(api, replace(job, spec_sha256="other"))


def test_a_quota_is_named_by_the_refused_creation(api: Api, namespace: Namespace, section: KubernetesSection) -> None:
    namespace.create(
        "resourcequotas", {"metadata": {"name": "gpus"}, "spec": {"hard": {"requests.nvidia.com/gpu": "1"}}}
    )
    namespace.wait("resourcequotas", "gpus", lambda quota: "hard" in quota.get("status", {}))
    with pytest.raises(ObjectRefused) as refused:
        create_job(api, job_of(section, LearnerPod(member=0), gpus=2))

    assert refused.value.wait.code == "quota"
    assert "exceeded quota: gpus" in refused.value.wait.what
    quotas = api.list("resourcequotas", namespace.name)["items"]
    assert len(namespace_node(quotas, api.list("pods", namespace.name)["items"], section).devices) == 1


def test_ends_by_the_node_are_named(
    own_cluster: OwnCluster, api: Api, namespace: Namespace, section: KubernetesSection, followed: Followed
) -> None:
    ensure_package(api, namespace.name, package_archive())
    create_job(api, job_of(section, *(LearnerPod(member=n, node=NODES[0]) for n in range(3))))
    release_gates(api, namespace.name, [f"digits-1-m{n}" for n in range(3)])
    followed.wait(lambda pods: [p["status"].get("phase") for p in learners_of(pods)] == ["Running"] * 3)
    node = own_cluster.nodes[NODES[0]]
    own_cluster.loop.run(node.oom_kill(namespace.name, "digits-1-m0", "learner"))
    own_cluster.loop.run(node.evict(namespace.name, "digits-1-m1"))
    delete_pods(api, namespace.name, [followed.pods()["digits-1-m2"]])
    pods = followed.wait(
        lambda pods: set(pods) & {"digits-1-m2"} == set() and sum(map(is_over, learners_of(pods))) == 2
    )
    ends = {name: end_of_pod(pod) for name, pod in pods.items() if "-m" in name}

    assert {name: end.code for name, end in ends.items() if end is not None} == {
        "digits-1-m0": "host_memory",
        "digits-1-m1": "evicted",
    }


def is_over(pod: Json) -> bool:
    return end_of_pod(pod) is not None


def test_a_second_engine_waits_and_a_former_one_is_fenced(api: Api, namespace: Namespace, tmp_path: Path) -> None:
    seat = Reservation(generation=1, seats={"0": ("node-1", ("0",))})
    ahead_s = 0.0
    folders = [tmp_path / name for name in ("first", "second")]
    for folder in folders:
        folder.mkdir()
    first = Leadership(api, namespace.name, own_holder(folders[0]), duration_s=600)
    second = Leadership(api, namespace.name, own_holder(folders[1]), duration_s=600, now=lambda: uptime_s() + ahead_s)
    first.step()
    first.commit(lambda ledger: ledger.reserve("a-1", seat))
    second.step()
    assert f"pool {folders[0]} of" in (second.problem() or "")
    ahead_s = 600.0
    second.step()
    assert second.problem() is None
    assert second.ledger.jobs.keys() == {"a-1"}

    with pytest.raises(Fenced, match=second.ledger.holder):
        first.commit(lambda ledger: ledger.release("a-1"))
    with pytest.raises(SeatTaken):
        second.commit(lambda ledger: ledger.reserve("b-1", seat))
    first.step()
    assert f"pool {folders[1]} of" in (first.problem() or "")
    second.close()
    first.step()
    assert first.problem() is None


def test_capacity_of_the_cluster_counts_pods_of_others(
    api: Api, namespace: Namespace, section: KubernetesSection
) -> None:
    before = gpus_of(api, section)
    resources = {"limits": {"nvidia.com/gpu": "1"}}
    namespace.run_pod(
        "foreign", "while true; do sleep 0.2; done", container={"resources": resources}, nodeName=NODES[0]
    )
    namespace.wait_phase("foreign", "Running")

    after = gpus_of(api, section)
    assert after[NODES[0]] == before[NODES[0]] - 1
    assert after[NODES[1]] == before[NODES[1]]


def gpus_of(api: Api, section: KubernetesSection) -> dict[str, int]:
    nodes = cluster_nodes(api.list("nodes", None)["items"], api.list("pods", None)["items"], section)
    return {node.name: sum(device.out_of_service is None for device in node.devices) for node in nodes}


# ---- rights ----------------------------------------------------------------------------------------------------------


@pytest.mark.anyio
async def test_engines_use_exactly_the_rights_of_the_manifests(
    namespace: Namespace, section: KubernetesSection, tmp_path: Path, rights: Rights
) -> None:
    account = service_account(namespace, replace(section, learners=2), tmp_path)
    jobs = Jobs(tmp_path / "pool", namespace)
    try:
        for settings in (account, section):  # the second one may read nodes, too
            jobs.pool = KubernetesPool(jobs.folder, settings, config=PoolConfig())
            async with Engine(jobs) as engine:
                await engine.pool_reached()
                if settings is section:
                    continue
                job = await engine.submit(ENDLESS, 2, gpus=0)
                await engine.reached(job, State.PROCESSING)
                await asyncio.to_thread(namespace.delete, "pods", f"{job}-m1", grace_s=0)
                await jobs.recorded(FactKind.GENERATION, 2)
                await engine.reached(job, State.PROCESSING)
                await engine.requests.act("me", job, Event.HALT)
                await engine.reached(job, State.HALTED)
                await jobs.gone(*range(4))
                await engine.requests.act("me", job, Event.RESUME)
                await engine.reached(job, State.PROCESSING)
                await engine.requests.act("me", job, Event.CANCEL)
                await engine.reached(job, State.CANCELLED)
                await jobs.gone(4, 5)
    finally:
        jobs.sweep()

    assert rights.in_namespace == set(accesses(ROLE_RULES))
    assert rights.in_cluster == set(accesses(CLUSTER_RULES))


def test_nothing_is_permitted_in_the_whole_cluster(
    namespace: Namespace, section: KubernetesSection, tmp_path: Path
) -> None:
    api = connect(service_account(namespace, section, tmp_path))
    for access in accesses(CLUSTER_RULES):
        with pytest.raises(ApiError) as refused:
            api.list(access.resource, None)
        assert refused.value.status == 403
    api.close()


def test_the_preflight_passes_and_names_missing_rights(
    namespace: Namespace, section: KubernetesSection, tmp_path: Path
) -> None:
    account = service_account(namespace, replace(section, learners=2), tmp_path)
    api = connect(account)
    findings = list(preflight(api, account))
    elsewhere = list(preflight(api, replace(account, namespace="default")))
    api.close()

    assert [finding.name for finding in findings] == [
        "reachable",
        "rights",
        "engine",
        "view",
        "devices",
        "image",
        "reach",
    ]
    assert [finding for finding in findings if finding.is_ok is False] == []
    assert "Python 3.1" in findings[-2].text
    assert "Pods reach this machine at" in findings[-1].text
    assert [finding.is_ok for finding in elsewhere] == [True, False]
    assert "create configmaps" in elsewhere[-1].text
    assert "jupyter dlaas k8s manifests --namespace default" in elsewhere[-1].advice


def test_the_preflight_names_the_engine_of_the_namespace(
    api: Api, section: KubernetesSection, namespace: Namespace, tmp_path: Path
) -> None:
    holder = own_holder(tmp_path)
    leadership = Leadership(api, namespace.name, holder, duration_s=600)
    leadership.step()

    def found(pool: str | None) -> Finding:
        (finding,) = (f for f in preflight(api, section, pool=pool, probes_image=False) if f.name == "engine")
        return finding

    assert [found(pool).is_ok for pool in (None, holder.pool, "another")] == [None, True, False]
    assert f"on host {holder.host} (pool {tmp_path} of {holder.user}), since" in found(None).text
    assert f"jupyter dlaas engine stop --pool {tmp_path}" in found("another").advice
    leadership.close()
    assert found("another").is_ok is True


def test_the_preflight_names_an_image_that_cannot_be_pulled(
    api: Api, section: KubernetesSection, namespace: Namespace
) -> None:
    image = "registry.invalid/team/model:1"
    finding = list(preflight(api, replace(section, image=image)))[-1]

    assert (finding.name, finding.is_ok) == ("image", False)
    assert image in finding.text
    assert finding.advice
    namespaced = api.list("pods", namespace.name)["items"]
    assert all("deletionTimestamp" in pod["metadata"] for pod in namespaced)


def test_an_unreachable_server_is_named(section: KubernetesSection, tmp_path: Path) -> None:
    with pytest.raises(ApiUnreachable, match=r"no usable credentials in .*absent"):
        connect(replace(section, kubeconfig=str(tmp_path / "absent")))
    config = json.loads(json.dumps({
        "apiVersion": "v1", "kind": "Config", "current-context": "c", "users": [{"name": "u", "user": {}}],
        "clusters": [{"name": "c", "cluster": {"server": "https://127.0.0.1:1"}}],
        "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
    }))  # fmt: skip
    (tmp_path / "config").write_text(json.dumps(config), encoding="utf-8")
    api = connect(replace(section, kubeconfig=str(tmp_path / "config")))
    findings = list(preflight(api, section))
    api.close()

    assert [finding.is_ok for finding in findings] == [False]
    assert "https://127.0.0.1:1" in findings[0].text
