"""Reasons for waiting, from a real control plane through the pool to a job's card."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import pytest

from dlaas_server.pools.kubernetes.manifests.package_archive import package_archive
from tests.kubernetes.api import ApiError
from tests.kubernetes.clusters import OwnCluster
from tests.kubernetes.conftest import NODES, Namespace
from tests.kubernetes.namespace_pools import DEADLINE_S, Pools

pytestmark = [pytest.mark.cluster, pytest.mark.anyio]

UNPULLABLE, PRIVATE, ENDLESS_PULL = "registry.invalid/team/model:1", "private/model:1", "large/model:1"
MISNAMED, ABSENT = "team/Model:1", "absent/model:1"
NO_CPU = "Node didn't have enough resource: cpu, requested: 100, used: 7950, capacity: 8000"
NO_LABEL = "Predicate NodeAffinity failed: node(s) didn't match Pod's node affinity/selector"
NO_DEVICE = "Allocate failed due to no healthy devices present; cannot allocate unhealthy devices nvidia.com/gpu"
POLICIES = "/apis/admissionregistration.k8s.io/v1"
"""Group of admission policies, whose objects belong to no namespace."""
CREATED_PODS = {
    "resourceRules": [{"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["pods"]}]
}
FORBIDDEN = {
    "validations": [
        {
            "expression": "!object.metadata.name.startsWith('admission-1')",
            "message": "Ask team-x for a cost centre.",
        }
    ]
}


def changed(pod: str, path: str, value: str) -> dict[str, Any]:
    """Return a policy that changes a field of one pod."""
    patch = f"[JSONPatch{{op: 'add', path: '{path}', value: {value}}}]"
    return {
        "matchConditions": [{"name": "pod", "expression": f"object.metadata.name == '{pod}'"}],
        "mutations": [{"patchType": "JSONPatch", "jsonPatch": {"expression": patch}}],
        "reinvocationPolicy": "Never",
    }


@dataclass(kw_only=True)
class Wait:
    """A job that waits, or whose seat is refused."""

    code: str
    words: str
    settings: dict[str, Any] = field(default_factory=dict)
    spec: dict[str, Any] = field(default_factory=dict)
    node: str = NODES[0]
    needs_advice: bool = True
    is_refused: bool = False
    name: str = ""
    """Name of the job; empty: the code."""

    @property
    def job(self) -> str:
        return f"{(self.name or self.code).replace('_', '-')}-1"


WAITS = [
    Wait(code="node_silent", words=f"node {NODES[1]} does not answer", node=NODES[1]),
    Wait(code="image_pull", words=UNPULLABLE, settings={"image": UNPULLABLE}),
    Wait(code="image_credentials", words=f"the registry refuses the image {PRIVATE}", settings={"image": PRIVATE}),
    Wait(code="image_name", words="repository name (team/Model) must be lowercase", settings={"image": MISNAMED}),
    Wait(code="image_absent", words=f'may not pull it: Container image "{ABSENT}"', settings={"image": ABSENT}),
    Wait(code="pulling", words=f"{ENDLESS_PULL} is being pulled", settings={"image": ENDLESS_PULL}, needs_advice=False),
    Wait(code="starting", words=f"starts on node {NODES[0]}", needs_advice=False),
    Wait(code="no_capacity", words="Insufficient cpu", spec={"cpus_per_learner": 1000.0}),
    Wait(code="affinity", words="planned on node no-such-node", node="no-such-node"),
    Wait(code="taint", words="its nodes take no pods", node=NODES[1]),
    Wait(code="quota", words="exceeded quota: gpus", spec={"gpus_per_learner": 1}, is_refused=True),
    Wait(code="limit_range", words="maximum memory usage", spec={"memory_bytes_per_learner": 2**40}, is_refused=True),
    Wait(code="admission", words="Ask team-x for a cost centre", is_refused=True),
    Wait(code="pod_security", words="host namespaces (hostNetwork=true)", is_refused=True),
    Wait(code="seat_refused", name="cpu", words=f"(OutOfcpu): Pod was rejected: {NO_CPU}", is_refused=True),
    Wait(code="seat_refused", name="label", words=f"(NodeAffinity): Pod was rejected: {NO_LABEL}", is_refused=True),
    Wait(
        code="seat_refused",
        name="device",
        words=f"(UnexpectedAdmissionError): Pod was rejected: {NO_DEVICE}",
        is_refused=True,
    ),
    Wait(code="volume", words='configmap "', needs_advice=True),
]


async def test_waiting_jobs_name_cause_object_and_fix(
    pools: Pools, own_cluster: OwnCluster, namespace: Namespace
) -> None:
    first, last = own_cluster.nodes[NODES[0]], own_cluster.nodes[NODES[1]]
    first.images.private.add(PRIVATE)
    first.images.endless.add(ENDLESS_PULL)
    namespace.create(
        "resourcequotas", {"metadata": {"name": "gpus"}, "spec": {"hard": {"requests.nvidia.com/gpu": "0"}}}
    )
    limit = {"type": "Container", "max": {"memory": "512Gi"}}
    namespace.create("limitranges", {"metadata": {"name": "memory"}, "spec": {"limits": [limit]}})
    namespace.wait("resourcequotas", "gpus", lambda quota: "hard" in quota.get("status", {}))
    first.refusals |= {
        "cpu-1-m0": ("OutOfcpu", NO_CPU),
        "label-1-m0": ("NodeAffinity", NO_LABEL),
        "device-1-m0": ("UnexpectedAdmissionError", NO_DEVICE),
    }
    policies = add_policies(namespace)
    try:
        default = await pools.open()
        for wait in WAITS:
            if wait.code == "starting":
                first.start_delay_s = 3600.0
            if wait.code == "taint":
                namespace.cluster.loop.run(
                    namespace.cluster.api.patch("nodes", None, NODES[1], {"spec": {"unschedulable": True}})
                )
            if wait.code == "volume":
                await check(pools, next(one for one in WAITS if one.code == "starting"))  # this pod has its volumes
                namespace.delete("configmaps", package_archive().name)
            pool = await pools.open(**wait.settings) if wait.settings else default
            await pools.run(pool, wait.job, wait.node, **wait.spec)
            if wait.code == "node_silent":
                await pools.trains(wait.job)
                own_cluster.loop.run(last.cut_network())
        for wait in WAITS:
            await check(pools, wait)
    finally:
        first.start_delay_s = 0.0
        first.images.endless.clear()
        first.refusals.clear()
        namespace.cluster.loop.run(
            namespace.cluster.api.patch("nodes", None, NODES[1], {"spec": {"unschedulable": None}})
        )
        own_cluster.loop.run(last.recover())
        for path in policies:
            namespace.cluster.loop.run(namespace.cluster.api.request("DELETE", f"{POLICIES}/{path}"))


async def check(pools: Pools, wait: Wait) -> None:
    pool = pools.of[wait.job]

    async def is_known() -> bool:
        found = pool.refused(wait.job) if wait.is_refused else pool.waiting(wait.job)
        return any((reason.code, reason.member) == (wait.code, 0) for reason in found)

    await pools.until(is_known, wait.code)
    if wait.is_refused:
        (seat,) = pool.refused(wait.job)
        what, advice = seat.what or "", seat.advice
        assert seat.member == 0
    else:
        # On a busy machine, the guardian may be starting, too: its reason names no member.
        (reason,) = (found for found in pool.waiting(wait.job) if (found.code, found.member) == (wait.code, 0))
        what, advice = reason.what, reason.advice
        assert reason.member == 0
        assert reason.object in (pools.pod_of(wait.job), f"node {wait.node}")
        assert reason.object in what
        assert reason.since_s is not None
    assert pools.pod_of(wait.job) in what
    assert wait.words in what
    assert bool(advice) is wait.needs_advice


def add_policies(namespace: Namespace) -> list[str]:
    """Add admission policies that refuse or change the pods of some jobs. Return their paths once they are in force."""
    specs = {
        "forbids": ("Validating", FORBIDDEN),
        "host": ("Mutating", changed("pod-security-1-m0", "/spec/hostNetwork", "true")),
        "absent": ("Mutating", changed("image-absent-1-m0", "/spec/containers/0/imagePullPolicy", "'Never'")),
    }
    paths = []
    for short, (kind, spec) in specs.items():
        name = f"{namespace.name}-{short}"
        kind = f"{kind}AdmissionPolicy"
        paths.append(add(namespace, kind, f"{kind.lower()[:-1]}ies", name, {"matchConstraints": CREATED_PODS, **spec}))
        binding: dict[str, Any] = {"policyName": name}  # in all namespaces: the policies are about pods by name
        binding |= {"validationActions": ["Deny"]} if kind.startswith("V") else {}
        paths.append(add(namespace, f"{kind}Binding", f"{kind.lower()}bindings", name, binding))
    is_in_force: dict[str, Callable[[], bool]] = {
        "admission-1": lambda: refusal(namespace, "admission-1") is not None,
        "pod-security-1-m0": lambda: refusal(namespace, "pod-security-1-m0") is not None,
        "image-absent-1-m0": lambda: pull_policy(namespace, "image-absent-1-m0") == "Never",
    }
    end_s = time.monotonic() + DEADLINE_S
    for name, is_so in is_in_force.items():
        while not is_so():
            assert time.monotonic() < end_s, name
            time.sleep(0.05)  # the API server sends no event when it has compiled a policy
    return paths


def add(namespace: Namespace, kind: str, resource: str, name: str, spec: Mapping[str, Any]) -> str:
    body = {"apiVersion": f"{POLICIES.removeprefix('/apis/')}", "kind": kind, "metadata": {"name": name}, "spec": spec}
    namespace.cluster.loop.run(namespace.cluster.api.request("POST", f"{POLICIES}/{resource}", body))
    return f"{resource}/{name}"


def refusal(namespace: Namespace, pod: str) -> ApiError | None:
    """Return how the API server would refuse a pod under the restricted standard; None if it would accept it."""
    try:
        pull_policy(namespace, pod)
    except ApiError as error:
        return error
    return None


def pull_policy(namespace: Namespace, pod: str) -> str:
    """Return the pull policy that a pod would have."""
    path, trial = f"/api/v1/namespaces/{namespace.name}/pods", namespace.manifest(pod, "true")
    made = namespace.cluster.loop.run(namespace.cluster.api.request("POST", path, trial, params={"dryRun": "All"}))
    return str(made["spec"]["containers"][0]["imagePullPolicy"])
