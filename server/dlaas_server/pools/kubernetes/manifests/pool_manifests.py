"""Objects of the pool: the ledger, and what administrators apply once. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import yaml

from dlaas_server.pools.kubernetes.manifests.access import CLUSTER_RULES, ROLE_RULES, role_rules
from dlaas_server.pools.kubernetes.manifests.lab_manifests import Lab, lab_manifests
from dlaas_server.pools.kubernetes.manifests.names import LEDGER, MANAGED_BY, Json

__all__ = ["ENGINE", "deployment_manifests", "kustomization", "ledger_config_map", "to_yaml"]

ENGINE: Final = "jupyter-dlaas-engine"
"""Name of the engine's service account, and of its Role and binding."""
_RESTRICTED: Final = "pod-security.kubernetes.io"


def ledger_config_map(namespace: str, text: str) -> Json:
    """Return the ConfigMap of the ledger."""
    metadata = {"name": LEDGER, "namespace": namespace, "labels": dict(MANAGED_BY)}
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": {"ledger.json": text}}


def deployment_manifests(
    namespace: str,
    *,
    sees_cluster: bool = False,
    users: Sequence[str] = (),
    groups: Sequence[str] = (),
    lab: Lab | None = None,
) -> list[Json]:
    """Return what an administrator applies: namespace, service account, Role and bindings, and JupyterLab if wanted.

    `sees_cluster` adds rights to read nodes and pods of the whole cluster. `users` and `groups` are bound to the Role,
    for engines outside of the cluster.
    """
    subjects: list[Json] = [{"kind": "ServiceAccount", "name": ENGINE, "namespace": namespace}]
    named = [("User", name) for name in users] + [("Group", name) for name in groups]
    subjects += [{"kind": kind, "name": name, "apiGroup": "rbac.authorization.k8s.io"} for kind, name in named]
    found = [
        _namespace(namespace),
        _object("v1", "ServiceAccount", namespace, automountServiceAccountToken=False),
        _object("rbac.authorization.k8s.io/v1", "Role", namespace, rules=role_rules(ROLE_RULES)),
        _object(
            "rbac.authorization.k8s.io/v1",
            "RoleBinding",
            namespace,
            roleRef={"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": ENGINE},
            subjects=subjects,
        ),
    ]
    if sees_cluster:
        name = f"{ENGINE}-{namespace}"
        found += [
            _object("rbac.authorization.k8s.io/v1", "ClusterRole", None, name, rules=role_rules(CLUSTER_RULES)),
            _object(
                "rbac.authorization.k8s.io/v1",
                "ClusterRoleBinding",
                None,
                name,
                roleRef={"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": name},
                subjects=subjects,
            ),
        ]
    return found if lab is None else [*found, *lab_manifests(namespace, lab)]


def kustomization(manifests: Sequence[Json]) -> dict[str, str]:
    """Return the files of a kustomize base: one for each object, and `kustomization.yaml`."""
    files = {f"{item['kind'].lower()}.yaml": to_yaml([item]) for item in manifests}
    if len(files) != len(manifests):
        files = {f"{n:02}-{item['kind'].lower()}.yaml": to_yaml([item]) for n, item in enumerate(manifests)}
    base = {"apiVersion": "kustomize.config.k8s.io/v1beta1", "kind": "Kustomization", "resources": sorted(files)}
    return {**files, "kustomization.yaml": to_yaml([base])}


def to_yaml(manifests: Sequence[Json]) -> str:
    """Return manifests as a YAML stream."""
    text: str = yaml.safe_dump_all(manifests, sort_keys=False, explicit_start=True, width=120)
    return text


def _namespace(namespace: str) -> Json:
    labels = {
        **MANAGED_BY,
        **{f"{_RESTRICTED}/{mode}": "restricted" for mode in ("enforce", "audit", "warn")},
        f"{_RESTRICTED}/enforce-version": "latest",
    }
    return {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace, "labels": labels}}


def _object(version: str, kind: str, namespace: str | None, name: str = ENGINE, **fields: object) -> Json:
    metadata: Json = {"name": name, "labels": dict(MANAGED_BY)}
    if namespace is not None:
        metadata["namespace"] = namespace
    return {"apiVersion": version, "kind": kind, "metadata": metadata, **fields}
