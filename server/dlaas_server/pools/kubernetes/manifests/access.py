"""Rights that the pool needs: the one list from which its Role, the preflight and the tests are made. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final
from urllib.parse import parse_qs, urlsplit

from dlaas_server.pools.kubernetes.manifests.names import Json

__all__ = ["CLUSTER_RULES", "ROLE_RULES", "Access", "Rule", "access_of", "access_review", "accesses", "role_rules"]


@dataclass(frozen=True, slots=True, order=True, kw_only=True)
class Access:
    """One right: a verb on a resource of an API group."""

    verb: str
    group: str
    resource: str
    """With a subresource after a slash: "pods/log"."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """Rule of a Role."""

    group: str
    resources: tuple[str, ...]
    verbs: tuple[str, ...]


ROLE_RULES: Final[tuple[Rule, ...]] = (
    Rule(group="", resources=("configmaps",), verbs=("create", "delete", "get", "patch", "update")),
    Rule(group="", resources=("pods",), verbs=("create", "delete", "list", "patch", "watch")),
    Rule(group="", resources=("secrets",), verbs=("create",)),
    Rule(group="", resources=("events",), verbs=("list", "watch")),
    Rule(group="", resources=("resourcequotas",), verbs=("list",)),
    Rule(group="networking.k8s.io", resources=("networkpolicies",), verbs=("create",)),
    Rule(group="coordination.k8s.io", resources=("leases",), verbs=("create", "get", "update")),
)
"""Rights in the pool's namespace."""
CLUSTER_RULES: Final[tuple[Rule, ...]] = (Rule(group="", resources=("nodes", "pods"), verbs=("list", "watch")),)
"""Optional rights in the whole cluster, with which learners are placed on nodes."""

_WATCHED: Final = frozenset({"true", "1"})
_VERBS: Final = {"POST": "create", "PUT": "update", "PATCH": "patch", "DELETE": "delete"}


def accesses(rules: Sequence[Rule]) -> Iterator[Access]:
    """Yield the single rights of rules."""
    for rule in rules:
        for resource in rule.resources:
            for verb in rule.verbs:
                yield Access(verb=verb, group=rule.group, resource=resource)


def role_rules(rules: Sequence[Rule]) -> list[Json]:
    """Return rules as a Role has them."""
    return [{"apiGroups": [r.group], "resources": list(r.resources), "verbs": list(r.verbs)} for r in rules]


def access_of(method: str, target: str) -> Access:
    """Return the right that a request needs, as the API server derives it from method, path and query."""
    parsed = urlsplit(target)
    parts = [part for part in parsed.path.split("/") if part]
    group = "" if parts[0] == "api" else parts[1]
    parts = parts[2:] if parts[0] == "api" else parts[3:]
    if parts[:1] == ["namespaces"] and len(parts) > 2:
        parts = parts[2:]
    resource, name, sub = [*parts, "", "", ""][:3]
    verb = _VERBS.get(method)
    if verb is None:
        is_watch = parse_qs(parsed.query).get("watch", [""])[0] in _WATCHED
        verb = "get" if name else "watch" if is_watch else "list"
    return Access(verb=verb, group=group, resource=f"{resource}/{sub}" if sub else resource)


def access_review(access: Access, namespace: str | None) -> Json:
    """Return a SelfSubjectAccessReview: the question whether the pool has a right. None: in the whole cluster."""
    resource, _, sub = access.resource.partition("/")
    attributes = {"verb": access.verb, "group": access.group, "resource": resource, "subresource": sub}
    if namespace is not None:
        attributes["namespace"] = namespace
    spec = {"resourceAttributes": {key: value for key, value in attributes.items() if value}}
    return {"apiVersion": "authorization.k8s.io/v1", "kind": "SelfSubjectAccessReview", "spec": spec}
