"""Objects of a job besides its pods, in the order in which they are created. Pure."""

from __future__ import annotations

import base64
import ipaddress
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from dlaas_server.pools.kubernetes.manifests.names import (
    ANNOTATION_JOB,
    LABEL_GENERATION,
    LABEL_JOB,
    LABEL_ROLE,
    MANAGED_BY,
    ROLE_ENGINE,
    ROLE_GUARDIAN,
    Json,
)
from dlaas_server.pools.kubernetes.manifests.pod_manifests import (
    GUARDIAN_PORT,
    JobPods,
    LearnerPod,
    guardian_pod,
    learner_pod,
)

__all__ = ["JobObjects", "anchor", "job_objects", "owner_of"]


@dataclass(frozen=True, slots=True, kw_only=True)
class JobObjects:
    """Job as its objects describe it."""

    pods: JobPods
    learners: tuple[LearnerPod, ...]
    spec_sha256: str
    wanted: str
    """Document for the guardian, as JSON text."""
    epoch: int = 1
    """Number of the guardian in its job. Agents refuse a lower one than they have seen."""
    token: bytes = field(repr=False)
    environment: Mapping[str, str] = field(default_factory=dict, repr=False)


def owner_of(anchor_object: Json) -> Json:
    """Return the reference by which the job's other objects are deleted with the anchor."""
    metadata = anchor_object["metadata"]
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "name": metadata["name"],
        "uid": metadata["uid"],
        "controller": True,
        "blockOwnerDeletion": False,
    }


def anchor(job: JobObjects) -> Json:
    """Return the ConfigMap that owns all other objects of the job, and holds what the guardian must carry out."""
    data = {"spec_sha256": job.spec_sha256, "wanted.json": job.wanted, "epoch": str(job.epoch)}
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": _metadata(job.pods, None), "data": data}


def job_objects(job: JobObjects, anchor_object: Json) -> Sequence[tuple[str, Json]]:
    """Return (resource, manifest) of all objects that the anchor owns, in order: policy, secret, service, pods.

    A guardian that runs elsewhere (`guardian_address`) gets no Service, volume or pod.
    The network policy comes before any pod, so that no learner is ever reachable by others.
    """
    owner = owner_of(anchor_object)
    found: list[tuple[str, Json]] = [
        ("networkpolicies", _network_policy(job.pods, owner)),
        ("secrets", _secret(job, owner)),
    ]
    if job.pods.guardian_address is None:
        found.append(("services", _service(job.pods, owner)))
        if job.pods.settings.storage is not None:
            found.append(("persistentvolumeclaims", _claim(job.pods, owner)))
        found.append(("pods", guardian_pod(job.pods, owner, epoch=job.epoch)))
    found += [("pods", learner_pod(job.pods, owner, learner)) for learner in job.learners]
    return found


def _metadata(pods: JobPods, owner: Json | None, name: str | None = None) -> Json:
    metadata: Json = {
        "name": name or pods.name,
        "namespace": pods.settings.namespace,
        "labels": {**MANAGED_BY, LABEL_JOB: pods.name, LABEL_GENERATION: str(pods.generation)},
        "annotations": {ANNOTATION_JOB: pods.job},
    }
    return metadata if owner is None else metadata | {"ownerReferences": [owner]}


def _network_policy(pods: JobPods, owner: Json) -> Json:
    """Return a policy under which a job's pods reach each other and DNS, and the engine reaches the guardian."""
    own = [{"podSelector": {"matchLabels": {LABEL_JOB: pods.name}}}]
    engine = [{"podSelector": {"matchLabels": {**MANAGED_BY, LABEL_ROLE: ROLE_ENGINE}}}]
    dns = [{"protocol": protocol, "port": 53} for protocol in ("UDP", "TCP")]
    egress: list[Json] = [{"to": own}, {"ports": dns}]
    if pods.guardian_address is not None:
        # The engine may be a pod of the namespace, and not all networks match a pod's address as an ipBlock.
        egress.append({"to": engine})
    outside = [*_guardian_networks(pods), *pods.settings.egress]
    egress += [{"to": [{"ipBlock": {"cidr": network}}]} for network in outside]
    spec = {
        "podSelector": {"matchLabels": {LABEL_JOB: pods.name}},
        "policyTypes": ["Ingress", "Egress"],
        "ingress": [{"from": own}, {"from": engine, "ports": [{"protocol": "TCP", "port": GUARDIAN_PORT}]}],
        "egress": egress,
    }
    kind = {"apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy"}
    return {**kind, "metadata": _metadata(pods, owner), "spec": spec}


def _guardian_networks(pods: JobPods) -> list[str]:
    """Return the network of a guardian that runs outside of the cluster: its link and its store, on any port."""
    if pods.guardian_address is None:
        return []
    host = pods.guardian_address.rpartition(":")[0].strip("[]")
    try:
        return [str(ipaddress.ip_network(host))]
    except ValueError:
        return []  # a host name: the address behind it must be in `egress`


def _secret(job: JobObjects, owner: Json) -> Json:
    environment = json.dumps(dict(sorted(job.environment.items())), ensure_ascii=False).encode()
    data = {"token": job.token, "environment.json": environment}
    encoded = {key: base64.b64encode(value).decode() for key, value in data.items()}
    metadata = _metadata(job.pods, owner)
    return {"apiVersion": "v1", "kind": "Secret", "metadata": metadata, "type": "Opaque", "data": encoded}


def _service(pods: JobPods, owner: Json) -> Json:
    """Return a headless Service: a name for the guardian's pod as soon as it has an address."""
    spec = {
        "clusterIP": "None",
        "publishNotReadyAddresses": True,
        "selector": {LABEL_JOB: pods.name, LABEL_ROLE: ROLE_GUARDIAN},
        "ports": [{"name": "link", "port": GUARDIAN_PORT, "targetPort": GUARDIAN_PORT, "protocol": "TCP"}],
    }
    return {"apiVersion": "v1", "kind": "Service", "metadata": _metadata(pods, owner), "spec": spec}


def _claim(pods: JobPods, owner: Json) -> Json:
    spec: Json = {
        "accessModes": ["ReadWriteOnce"],
        "resources": {"requests": {"storage": pods.settings.storage}},
    }
    if pods.settings.storage_class is not None:
        spec["storageClassName"] = pods.settings.storage_class
    metadata = _metadata(pods, owner, f"{pods.name}-checkpoints")
    return {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": metadata, "spec": spec}
