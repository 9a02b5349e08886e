"""Manifests of one job and of a pool, with every option set. `python -m …golden_manifests` writes the golden files."""

from __future__ import annotations

from pathlib import Path

from dlaas_server.pools.kubernetes.ledger import Ledger, Reservation
from dlaas_server.pools.kubernetes.manifests.job_manifests import JobObjects, anchor, job_objects
from dlaas_server.pools.kubernetes.manifests.lab_manifests import Lab
from dlaas_server.pools.kubernetes.manifests.lease import Holder, lease
from dlaas_server.pools.kubernetes.manifests.names import Json
from dlaas_server.pools.kubernetes.manifests.package_archive import Package, package_config_map
from dlaas_server.pools.kubernetes.manifests.pod_manifests import JobPods, LearnerPod, Resources
from dlaas_server.pools.kubernetes.manifests.pool_manifests import (
    deployment_manifests,
    ledger_config_map,
    to_yaml,
)
from dlaas_server.pools.kubernetes.manifests.settings import KubernetesSection, TolerationEntry

GOLDEN = Path(__file__).parent / "golden"
FULL = KubernetesSection(
    namespace="ml",
    image="registry.example.com/torch:2",
    guardian_image="python:3.12-slim",
    image_pull_secrets=("registry",),
    storage="20Gi",
    storage_class="fast",
    egress=("10.0.0.0/8",),
    node_selector=("pool=gpu",),
    tolerations=(TolerationEntry(key="gpu", effect="NoSchedule"), TolerationEntry(key="team", value="ml")),
    user_namespaces=True,
)
LAB = Lab(
    image="registry.example.com/lab:1",
    learner_image="registry.example.com/torch:2",
    storage="50Gi",
    storage_class="fast",
)


def job(settings: KubernetesSection = FULL, *, learners: tuple[LearnerPod, ...] = ()) -> JobObjects:
    resources = Resources(gpus=2, cpus=1.5, memory_bytes=8 * 2**30)
    pods = JobPods(
        job="digits-1", settings=settings, package="jupyter-dlaas-package-1", resources=resources, python="3.11"
    )
    return JobObjects(
        pods=pods,
        learners=learners or (LearnerPod(member=0, node="gpu-a"), LearnerPod(member=1)),
        spec_sha256="5e" * 32,
        wanted='{"revision":1}',
        token=b"0123456789abcdef",
        environment={"TOKEN": "secret"},
    )


def job_manifests(described: JobObjects) -> list[Json]:
    owner = anchor(described)
    owner["metadata"]["uid"] = "11111111-2222-3333-4444-555555555555"
    return [owner, *(manifest for _, manifest in job_objects(described, owner))]


def pool_manifests() -> list[Json]:
    package = Package(data=b"zip", bootstrap="print()\n", name="jupyter-dlaas-package-1")
    ledger = Ledger(term=3, holder="a").reserve("digits-1", Reservation(generation=1, seats={"0": ("gpu-a", ("g-0",))}))
    holder = Holder(
        pool="9f", directory="/home/ana/pool", user="ana", host="ws-3", is_pod=False, pid=4711, start=99, boot="b0"
    )
    return [
        *deployment_manifests("ml", sees_cluster=True, users=("ana",), groups=("ml",), lab=LAB),
        lease("ml", holder, "2026-01-01T00:00:00.000000Z", duration_s=15),
        ledger_config_map("ml", ledger.to_text()),
        package_config_map(package, "ml"),
    ]


def golden_files() -> dict[str, str]:
    return {"job.yaml": to_yaml(job_manifests(job())), "pool.yaml": to_yaml(pool_manifests())}


if __name__ == "__main__":
    for name, text in golden_files().items():
        (GOLDEN / name).write_text(text, encoding="utf-8")
