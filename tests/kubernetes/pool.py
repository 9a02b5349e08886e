"""Shared parts of the Kubernetes pool's tests: settings, a job, and the picture of its pods."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from dlaas_server.pools.kubernetes.api import Api
from dlaas_server.pools.kubernetes.manifests.job_manifests import JobObjects
from dlaas_server.pools.kubernetes.manifests.package_archive import package_archive
from dlaas_server.pools.kubernetes.manifests.pod_manifests import JobPods, LearnerPod, Resources
from dlaas_server.pools.kubernetes.manifests.pool_manifests import ENGINE, deployment_manifests
from dlaas_server.pools.kubernetes.manifests.settings import KubernetesSection
from dlaas_server.pools.kubernetes.watch import Change, Watch
from tests.kubernetes.api import Json

if TYPE_CHECKING:
    from tests.kubernetes.conftest import Namespace


ELASTIC_LOOP = """
import time, torch
import jupyter_dlaas as dlaas
torch.manual_seed(0)
run = dlaas.run()
model = torch.nn.Linear(8, 2)
model, opt = run.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))
data = torch.utils.data.TensorDataset(torch.randn(48, 8), torch.randint(0, 2, (48,)))
for epoch in run.epochs(1_000_000):
    for x, y in run.batches(data, 12):
        opt.zero_grad()
        torch.nn.functional.cross_entropy(model(x), y).backward()
        opt.step()
        time.sleep(0.02)
"""
"""Program of a gang that trains slowly and never ends."""


def section_of(namespace: Namespace) -> KubernetesSection:
    return KubernetesSection(
        namespace=namespace.name,
        kubeconfig=str(namespace.cluster.kubeconfig),
        image=namespace.cluster.image,
        memory="256Mi",
        ephemeral_storage="1Gi",
        cpus=0.1,
    )


def job_of(section: KubernetesSection, *learners: LearnerPod, name: str = "digits-1", gpus: int = 0) -> JobObjects:
    pods = JobPods(
        job=name,
        settings=section,
        package=package_archive().name,
        resources=Resources(gpus=gpus),
        grace_s=1.0,
        guardian_address="127.0.0.1:1",  # no guardian listens: agents keep trying
    )
    return JobObjects(pods=pods, learners=learners, spec_sha256="5e", wanted="{}", token=b"0" * 32)


def service_account(namespace: Namespace, section: KubernetesSection, folder: Path) -> KubernetesSection:
    """Apply the manifests as an administrator; return settings with the credentials of the engine's account."""
    for manifest in deployment_manifests(namespace.name):
        kind = manifest["kind"]
        if kind == "Namespace":
            continue  # the test has made it
        group = "/apis/rbac.authorization.k8s.io/v1" if kind.startswith("Role") else "/api/v1"
        path = f"{group}/namespaces/{namespace.name}/{kind.lower()}s"
        namespace.cluster.loop.run(namespace.cluster.api.request("POST", path, manifest))
    path = f"/api/v1/namespaces/{namespace.name}/serviceaccounts/{ENGINE}/token"
    request = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {"expirationSeconds": 3600}}
    token = namespace.cluster.loop.run(namespace.cluster.api.request("POST", path, request))["status"]["token"]
    arguments = ("config", "view", "--raw", "--minify", "--flatten", "-o", "json")
    config = json.loads(namespace.kubectl(*arguments))
    config["users"][0]["user"] = {"token": token}
    file = folder / "engine.kubeconfig"
    file.write_text(json.dumps(config), encoding="utf-8")
    return replace(section, kubeconfig=str(file))


class Followed:
    """Pods (or events) of a namespace as the pool sees them, with a wait for a condition on the whole picture."""

    def __init__(self, api: Api, namespace: str, resource: str = "pods") -> None:
        self._changed = threading.Condition()
        self.watch = Watch(api, resource, namespace, self._notify)
        self.watch.start()

    def _notify(self, change: Change) -> None:
        with self._changed:
            self._changed.notify_all()

    def pods(self) -> dict[str, Json]:
        return {name: pod for (_, name), pod in self.watch.objects().items()}

    def wait(self, is_met: Callable[[dict[str, Json]], bool], timeout_s: float = 90.0) -> dict[str, Json]:
        deadline_s = time.monotonic() + timeout_s
        with self._changed:
            while not is_met(pods := self.pods()):
                if time.monotonic() > deadline_s or not self._changed.wait(timeout_s):
                    raise TimeoutError(json.dumps({n: p.get("status") for n, p in pods.items()}, indent=1))
            return pods
