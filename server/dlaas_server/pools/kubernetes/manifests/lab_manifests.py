"""JupyterLab with the pool's engine and guardians, as a pod of the cluster: for users whom pods cannot reach. Pure."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Final

from dlaas_server.pools.kubernetes.manifests.names import LABEL_ROLE, LEASE, MANAGED_BY, ROLE_ENGINE, Json

__all__ = ["Lab", "lab_manifests"]

NAME: Final = LEASE
"""Name of all objects: engine, Role and Lease are called the same."""
HOME: Final = "/home/jovyan"
CONFIG: Final = "/etc/jupyter-dlaas"
USER: Final = 1000
STOP_S: Final = 30
_LABELS: Final = {**MANAGED_BY, LABEL_ROLE: ROLE_ENGINE}
_START: Final = f"""set -e
mkdir -p "$JUPYTER_DLAAS_POOL_DIR"
cp {CONFIG}/config.toml "$JUPYTER_DLAAS_POOL_DIR/config.toml"
jupyter dlaas pool || true
exec jupyter lab --ip=127.0.0.1 --port=8888 --no-browser --ServerApp.root_dir={HOME}
"""
"""The command that shows the pool starts its engine, which continues with the jobs of the former pod.

If it cannot start, the log says why, and JupyterLab does."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Lab:
    """Choices of an administrator for JupyterLab in the cluster."""

    image: str
    """Image with JupyterLab, jupyter_dlaas[kubernetes] and the frameworks of the notebooks."""
    learner_image: str | None = None
    """Image of the learners; None: the same."""
    storage: str = "20Gi"
    """Size of the volume with notebooks, the pool's store and the files of its jobs."""
    storage_class: str | None = None
    """Storage class of the volume; None: the cluster's default."""


def lab_manifests(namespace: str, lab: Lab) -> list[Json]:
    """Return configuration, volume, Service and Deployment of one JupyterLab. Its service account must exist.

    JupyterLab listens in its pod only: `kubectl port-forward` reaches it. The Service is the name by which learners
    find the guardians, also those of a later pod.
    """
    return [
        _object("v1", "ConfigMap", namespace, data={"config.toml": _config(namespace, lab)}),
        _object("v1", "PersistentVolumeClaim", namespace, spec=_claim(lab)),
        _object(
            "v1",
            "Service",
            namespace,
            spec={"clusterIP": "None", "publishNotReadyAddresses": True, "selector": dict(_LABELS)},
        ),
        _object(
            "apps/v1",
            "Deployment",
            namespace,
            spec={
                "replicas": 1,
                "strategy": {"type": "Recreate"},  # one engine at a time has the volume
                "selector": {"matchLabels": dict(_LABELS)},
                "template": {"metadata": {"labels": dict(_LABELS)}, "spec": _pod(lab)},
            },
        ),
    ]


def _config(namespace: str, lab: Lab) -> str:
    values = {
        "namespace": namespace,
        "image": lab.learner_image or lab.image,
        "engine_address": f"{NAME}.{namespace}.svc",
    }
    # A JSON string without control characters is a string of TOML, too.
    return "[kubernetes]\n" + "".join(f"{key} = {json.dumps(value)}\n" for key, value in values.items())


def _claim(lab: Lab) -> Json:
    spec: Json = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": lab.storage}}}
    return spec if lab.storage_class is None else {**spec, "storageClassName": lab.storage_class}


def _pod(lab: Lab) -> Json:
    amounts = {"cpu": "2", "memory": "8Gi", "ephemeral-storage": "2Gi"}
    container = {
        "name": "lab",
        "image": lab.image,
        "command": ["sh", "-c", _START],
        "env": [
            {"name": "HOME", "value": HOME},
            {"name": "JUPYTER_DLAAS_POOL_DIR", "value": f"{HOME}/.jupyter-dlaas"},
        ],
        "resources": {"requests": {**amounts, "cpu": "1", "memory": "4Gi"}, "limits": amounts},
        "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
        # The engine releases the Lease, so that the next pod's engine starts at once.
        "lifecycle": {"preStop": {"exec": {"command": ["jupyter", "dlaas", "engine", "stop"]}}},
        "volumeMounts": [{"name": "home", "mountPath": HOME}, {"name": "config", "mountPath": CONFIG}],
    }
    return {
        "serviceAccountName": NAME,
        "automountServiceAccountToken": True,
        "shareProcessNamespace": True,  # its first process collects the ends of orphans, JupyterLab does not
        "terminationGracePeriodSeconds": STOP_S,
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": USER,
            "runAsGroup": USER,
            "fsGroup": USER,
            "fsGroupChangePolicy": "OnRootMismatch",
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "containers": [container],
        "volumes": [
            {"name": "home", "persistentVolumeClaim": {"claimName": NAME}},
            {"name": "config", "configMap": {"name": NAME}},
        ],
    }


def _object(version: str, kind: str, namespace: str, **fields: object) -> Json:
    metadata = {"name": NAME, "namespace": namespace, "labels": dict(_LABELS)}
    return {"apiVersion": version, "kind": kind, "metadata": metadata, **fields}
