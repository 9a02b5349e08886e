"""Pods of a job: the guardian and its learners, under the restricted Pod Security standard. Pure."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

from dlaas_server.pools.kubernetes.manifests.names import (
    ANNOTATION_JOB,
    GATE,
    LABEL_GENERATION,
    LABEL_JOB,
    LABEL_MEMBER,
    LABEL_ROLE,
    MANAGED_BY,
    ROLE_GUARDIAN,
    ROLE_LEARNER,
    Json,
    guardian_name,
    learner_name,
    object_name,
)
from dlaas_server.pools.kubernetes.manifests.settings import KubernetesSection

__all__ = ["GUARDIAN_PORT", "JobPods", "LearnerPod", "Resources", "guardian_pod", "learner_pod", "pod_labels"]

GUARDIAN_PORT: Final = 7421
PACKAGE_DIR: Final = "/dlaas/package"
RUN_DIR: Final = "/dlaas/run"
SECRET_DIR: Final = "/dlaas/secret"  # noqa: S105  # a folder
CHECKPOINT_DIR: Final = "/dlaas/checkpoints"
GUARDIAN_MODULE: Final = "jupyter_dlaas.runtime.guardian.entrypoint"
AGENT_MODULE: Final = "jupyter_dlaas.runtime.hosts.agent"
STOP_S: Final = 15
"""Seconds after a checkpoint's time in which a pod still reports and ends."""
GUARDIAN_REQUESTS: Final = {"cpu": "100m", "memory": "256Mi"}
GUARDIAN_LIMITS: Final = {"cpu": "1", "memory": "512Mi"}
_ANNOTATIONS: Final = {
    "cluster-autoscaler.kubernetes.io/safe-to-evict": "false",
    "karpenter.sh/do-not-disrupt": "true",
    "linkerd.io/inject": "disabled",
    "sidecar.istio.io/inject": "false",
}
"""A running gang is not moved to save nodes, and gets no proxy that ends never or intercepts its connections."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Resources:
    """Resources of one learner. None: the pool's default."""

    gpus: int = 0
    cpus: float | None = None
    memory_bytes: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LearnerPod:
    """Learner of a gang, and the node that it is pinned to; None: the cluster chooses."""

    member: int
    node: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class JobPods:
    """Facts that all pods of a job have in common."""

    job: str
    settings: KubernetesSection
    package: str
    """ConfigMap with this version of the package."""
    generation: int = 1
    resources: Resources = Resources()
    grace_s: float = 30.0
    """Seconds that a checkpoint may take at the end."""
    python: str | None = None
    """Minor version that the job's objects require, such as "3.11"; None: any from 3.11 on."""
    guardian_address: str | None = None
    """Address of a guardian that runs outside of the cluster; None: it is a pod behind the job's Service."""

    @property
    def name(self) -> str:
        """Name of the job's objects."""
        return object_name(self.job)


def pod_labels(pods: JobPods, role: str) -> dict[str, str]:
    """Return the labels of a pod, which also decline the proxies of service meshes."""
    return {
        **MANAGED_BY,
        LABEL_JOB: pods.name,
        LABEL_GENERATION: str(pods.generation),
        LABEL_ROLE: role,
        "sidecar.istio.io/inject": "false",
    }


def guardian_pod(pods: JobPods, owner: Json, *, epoch: int = 1) -> Json:
    """Return the guardian's pod. Its disk may be lost: the engine keeps a copy, and a volume keeps checkpoints."""
    settings = pods.settings
    storage = {"ephemeral-storage": settings.ephemeral_storage}
    resources = {"requests": GUARDIAN_REQUESTS | storage, "limits": GUARDIAN_LIMITS | storage}
    container = _container(
        "guardian", settings.guardian_image or settings.image, GUARDIAN_MODULE, [f"{RUN_DIR}/job"], resources, pods
    )
    container["ports"] = [{"name": "link", "containerPort": GUARDIAN_PORT}]
    pod = _pod(guardian_name(pods.name, epoch), pods, ROLE_GUARDIAN, owner, container)
    if settings.storage is not None:
        container["volumeMounts"].append({"name": "checkpoints", "mountPath": CHECKPOINT_DIR})
        claim = {"claimName": f"{pods.name}-checkpoints"}
        pod["spec"]["volumes"].append({"name": "checkpoints", "persistentVolumeClaim": claim})
    return pod


def learner_pod(pods: JobPods, owner: Json, learner: LearnerPod) -> Json:
    """Return a gated pod of one learner: nothing schedules it until its gate is removed."""
    settings = pods.settings
    amounts = _amounts(pods)
    resources = {"requests": dict(amounts), "limits": dict(amounts)}
    container = _container("learner", settings.image, AGENT_MODULE, [], resources, pods)
    service = f"{pods.name}.{settings.namespace}.svc"
    container["env"] += [
        {"name": "DLAAS_AGENT_DIR", "value": f"{RUN_DIR}/job"},
        {"name": "DLAAS_AGENT_MEMBER", "value": str(learner.member)},
        {"name": "DLAAS_AGENT_JOB", "value": pods.job},
        {"name": "DLAAS_AGENT_GUARDIAN", "value": pods.guardian_address or f"{service}:{GUARDIAN_PORT}"},
        {"name": "DLAAS_AGENT_TOKEN_FILE", "value": f"{SECRET_DIR}/token"},
        {"name": "DLAAS_AGENT_KEEP_S", "value": f"{settings.keep_results_s:g}"},
        {"name": "DLAAS_AGENT_IMAGE", "value": settings.image},
        {"name": "DLAAS_AGENT_POD", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}},
        {"name": "DLAAS_AGENT_NODE", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}},
    ]
    container["volumeMounts"].append({"name": "shared-memory", "mountPath": "/dev/shm"})  # noqa: S108
    pod = _pod(learner_name(pods.name, learner.member), pods, ROLE_LEARNER, owner, container)
    pod["metadata"]["labels"][LABEL_MEMBER] = str(learner.member)
    spec = pod["spec"]
    memory = {"medium": "Memory", "sizeLimit": _half(str(amounts["memory"]))}
    spec["volumes"].append({"name": "shared-memory", "emptyDir": memory})
    spec["schedulingGates"] = [{"name": GATE}]
    if learner.node is not None:
        spec["affinity"] = {"nodeAffinity": _pinned(learner.node)}
    if settings.node_selector:
        spec["nodeSelector"] = dict(label.split("=", 1) for label in settings.node_selector)
    if settings.tolerations:
        spec["tolerations"] = [_toleration(entry.key, entry.value, entry.effect) for entry in settings.tolerations]
    return pod


def _amounts(pods: JobPods) -> dict[str, str]:
    asked, settings = pods.resources, pods.settings
    cpus = asked.cpus or settings.cpus
    amounts = {
        "cpu": f"{math.ceil(cpus * 1000)}m",
        "memory": str(asked.memory_bytes) if asked.memory_bytes else settings.memory,
        "ephemeral-storage": settings.ephemeral_storage,
    }
    return amounts | ({settings.gpu_resource: str(asked.gpus)} if asked.gpus else {})


def _half(quantity: str) -> str:
    """Return half of a quantity of memory, without a fraction of a byte."""
    digits = quantity.rstrip("kMGTPEim")
    unit = quantity[len(digits) :]
    number = float(digits)
    if unit and number % 2:
        factors = {"Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40, "Pi": 2**50, "Ei": 2**60}
        decimal = {"k": 10**3, "M": 10**6, "G": 10**9, "T": 10**12, "P": 10**15, "E": 10**18}
        return str(int(number * (factors | decimal)[unit]) // 2)
    return f"{int(number / 2)}{unit}"


def _pinned(node: str) -> Json:
    """Return an affinity to exactly one node, by its name: labels such as the host name may be shared or missing."""
    term = {"matchFields": [{"key": "metadata.name", "operator": "In", "values": [node]}]}
    return {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [term]}}


def _toleration(key: str, value: str | None, effect: str | None) -> Json:
    found: Json = {"key": key, "operator": "Exists"} if value is None else {"key": key, "value": value}
    return found | ({} if effect is None else {"effect": effect})


def _container(name: str, image: str, module: str, arguments: list[str], resources: Json, pods: JobPods) -> Json:
    return {
        "name": name,
        "image": image,
        "command": ["python3", f"{PACKAGE_DIR}/bootstrap.py", pods.python or "any", RUN_DIR, module, *arguments],
        "env": [{"name": "HOME", "value": f"{RUN_DIR}/home"}],
        "resources": resources,
        "workingDir": RUN_DIR,
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
        "volumeMounts": [
            {"name": "package", "mountPath": PACKAGE_DIR, "readOnly": True},
            {"name": "secret", "mountPath": SECRET_DIR, "readOnly": True},
            {"name": "run", "mountPath": RUN_DIR},
        ],
    }


def _pod(name: str, pods: JobPods, role: str, owner: Json, container: Json) -> Json:
    settings = pods.settings
    spec: Json = {
        "containers": [container],
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": math.ceil(pods.grace_s) + STOP_S,
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": 1000,
            "runAsGroup": 1000,
            "fsGroup": 1000,
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "volumes": [
            {"name": "package", "configMap": {"name": pods.package}},
            {"name": "secret", "secret": {"secretName": pods.name, "defaultMode": 0o444}},
            {"name": "run", "emptyDir": {"sizeLimit": settings.ephemeral_storage}},
        ],
    }
    if settings.image_pull_secrets:
        spec["imagePullSecrets"] = [{"name": secret} for secret in settings.image_pull_secrets]
    if settings.user_namespaces:
        spec["hostUsers"] = False
    metadata = {
        "name": name,
        "namespace": settings.namespace,
        "labels": pod_labels(pods, role),
        "annotations": {ANNOTATION_JOB: pods.job, **_ANNOTATIONS},
        "ownerReferences": [owner],
    }
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}
