"""Objects of a job and of the pool on Kubernetes."""

from __future__ import annotations

import gzip
import zipfile
from dataclasses import replace
from io import BytesIO

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dlaas_server.pools.kubernetes.manifests import bootstrap
from dlaas_server.pools.kubernetes.manifests.lab_manifests import lab_manifests
from dlaas_server.pools.kubernetes.manifests.names import GATE, guardian_name, learner_name, object_name
from dlaas_server.pools.kubernetes.manifests.package_archive import (
    CONFIG_MAP_BYTES,
    package_archive,
    package_config_map,
)
from dlaas_server.pools.kubernetes.manifests.pod_manifests import LearnerPod, Resources
from dlaas_server.pools.kubernetes.manifests.pool_manifests import deployment_manifests, kustomization
from dlaas_server.pools.kubernetes.manifests.settings import KubernetesSection
from tests.pools.kubernetes.golden_manifests import GOLDEN, LAB, golden_files, job, job_manifests, pool_manifests

VERSIONS = [
    pytest.param(f"1.{minor}", marks=[] if minor in (30, 37) else pytest.mark.exhaustive) for minor in range(30, 38)
]


@pytest.mark.parametrize("name", ["job.yaml", "pool.yaml"])
def test_manifests_equal_the_golden_files(name: str) -> None:
    assert golden_files()[name] == (GOLDEN / name).read_text(encoding="utf-8")


@pytest.mark.parametrize("version", VERSIONS)
def test_manifests_are_valid_in_every_supported_version(version: str) -> None:
    validate = pytest.importorskip("kubernetes_validate").validate
    minimal = job(KubernetesSection())

    for manifest in [*job_manifests(job()), *job_manifests(minimal), *pool_manifests()]:
        validate(manifest, version, strict=True)


def test_objects_are_created_in_order_with_the_anchor_as_owner() -> None:
    anchor, *owned = job_manifests(job())

    kinds = [item["kind"] for item in owned]
    assert kinds == ["NetworkPolicy", "Secret", "Service", "PersistentVolumeClaim", "Pod", "Pod", "Pod"]
    for item in owned:
        (owner,) = item["metadata"]["ownerReferences"]
        assert (owner["name"], owner["uid"]) == (anchor["metadata"]["name"], anchor["metadata"]["uid"])


def test_learners_are_gated_and_pinned_to_their_node() -> None:
    pinned, free = job_manifests(job())[-2:]

    assert pinned["spec"]["schedulingGates"] == free["spec"]["schedulingGates"] == [{"name": GATE}]
    terms = pinned["spec"]["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    assert terms["nodeSelectorTerms"][0]["matchFields"][0]["values"] == ["gpu-a"]
    assert "affinity" not in free["spec"]


def test_secrets_stand_in_no_other_object() -> None:
    manifests = job_manifests(job())

    named = [item["kind"] for item in manifests if "secret-value" in str(item) or "0123456789abcdef" in str(item)]
    assert named == []
    assert "0123456789abcdef" not in repr(job())


@pytest.mark.parametrize(("memory", "half"), [("4Gi", "2Gi"), ("3Gi", "1610612736"), ("1500M", "750M"), ("1", "0")])
def test_shared_memory_is_half_of_the_memory(memory: str, half: str) -> None:
    described = job(KubernetesSection(memory=memory))
    pods = replace(described.pods, resources=Resources(gpus=1))
    volumes = {volume["name"]: volume for volume in job_manifests(replace(described, pods=pods))[-1]["spec"]["volumes"]}

    assert volumes["shared-memory"]["emptyDir"]["sizeLimit"] == half


@settings(max_examples=30)
@given(st.lists(st.from_regex(r"[A-Za-z][A-Za-z0-9_-]{0,90}", fullmatch=True), unique=True, max_size=8))
def test_names_of_objects_are_valid_and_distinct(jobs: list[str]) -> None:
    names = [object_name(name) for name in jobs]

    assert len(set(names)) == len(jobs)
    for name in names:
        for pod in (name, guardian_name(name, 12345), learner_name(name, 1234567)):
            assert len(pod) <= 63
            assert pod.strip("abcdefghijklmnopqrstuvwxyz0123456789-") == ""
            assert pod[0].isalpha()
            assert not pod.endswith("-")


def test_jobs_named_like_pods_do_not_collide_with_them() -> None:
    assert object_name("digits-1") == "digits-1"
    assert object_name("digits-1-m0") != learner_name(object_name("digits-1"), 0)
    assert object_name("digits-1-guardian") != guardian_name(object_name("digits-1"), 1)
    assert object_name("Digits-1") != object_name("digits-1")


def test_the_package_fits_a_config_map_and_is_reproducible() -> None:
    package = package_archive()
    names = zipfile.ZipFile(BytesIO(gzip.decompress(package.data))).namelist()

    assert "jupyter_dlaas/runtime/hosts/agent.py" in names
    assert len(package.data) < 0.85 * CONFIG_MAP_BYTES, "split the package over two ConfigMaps before it is too large"
    package_archive.cache_clear()
    assert package_archive() == package
    with pytest.raises(ValueError, match="at most 1048576"):
        package_config_map(replace(package, data=bytes(CONFIG_MAP_BYTES)), "ml")


@pytest.mark.parametrize(("version", "expected", "words"), [
    ((3, 11), "any", None),
    ((3, 13), "3.13", None),
    ((3, 10), "any", "Python 3.10, but learners need Python 3.11 or newer"),
    ((3, 12), "3.11", "Python 3.12, but the notebook has Python 3.11"),
])  # fmt: skip
def test_a_wrong_python_is_refused_in_words(version: tuple[int, int], expected: str, words: str | None) -> None:
    refusal = bootstrap.refusal(version, expected)

    assert words in refusal if words is not None and refusal is not None else refusal == words


def test_every_object_has_a_file_in_the_kustomize_base() -> None:
    manifests = deployment_manifests("ml", sees_cluster=True)
    files = kustomization(manifests)

    assert len(files) == len(manifests) + 1
    assert all(f"- {name}\n" in files["kustomization.yaml"] for name in files if name != "kustomization.yaml")


def test_a_learner_without_a_node_is_placed_by_the_cluster() -> None:
    (pod,) = job_manifests(job(KubernetesSection(), learners=(LearnerPod(member=7),)))[-1:]

    assert pod["metadata"]["name"] == "digits-1-m7"
    assert "nodeName" not in pod["spec"]


def test_a_guardian_beside_the_engine_has_no_pod() -> None:
    described = job()
    elsewhere = replace(described, pods=replace(described.pods, guardian_address="192.0.2.7:4000"))
    manifests = job_manifests(elsewhere)

    assert [m["kind"] for m in manifests] == ["ConfigMap", "NetworkPolicy", "Secret", "Pod", "Pod"]
    assert {"to": [{"ipBlock": {"cidr": "192.0.2.7/32"}}]} in manifests[1]["spec"]["egress"]
    lab = next(one for one in lab_manifests("ml", LAB) if one["kind"] == "Deployment")
    to_engine = [{"podSelector": {"matchLabels": lab["spec"]["template"]["metadata"]["labels"]}}]
    assert {"to": to_engine} in manifests[1]["spec"]["egress"]
    agent = {entry["name"]: entry.get("value") for entry in manifests[-1]["spec"]["containers"][0]["env"]}
    assert agent["DLAAS_AGENT_GUARDIAN"] == "192.0.2.7:4000"
