"""Reasons for waiting, from a real control plane through the pool to a job's card."""

from __future__ import annotations

import time
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
POLICY = {
    "apiVersion": "admissionregistration.k8s.io/v1",
    "kind": "ValidatingAdmissionPolicy",
    "spec": {
        "matchConstraints": {
            "resourceRules": [
                {"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["pods"]}
            ]
        },
        "validations": [
            {
                "expression": "!object.metadata.name.startsWith('admission-1')",
                "message": "Ask team-x for a cost centre.",
            }
        ],
    },
}
POLICIES = "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicies"


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

    @property
    def job(self) -> str:
        return f"{self.code.replace('_', '-')}-1"


WAITS = [
    Wait(code="node_silent", words=f"node {NODES[1]} does not answer", node=NODES[1]),
    Wait(code="image_pull", words=UNPULLABLE, settings={"image": UNPULLABLE}),
    Wait(code="image_credentials", words=f"the registry refuses the image {PRIVATE}", settings={"image": PRIVATE}),
    Wait(code="pulling", words=f"{ENDLESS_PULL} is being pulled", settings={"image": ENDLESS_PULL}, needs_advice=False),
    Wait(code="starting", words=f"starts on node {NODES[0]}", needs_advice=False),
    Wait(code="no_capacity", words="Insufficient cpu", spec={"cpus_per_learner": 1000.0}),
    Wait(code="affinity", words="planned on node no-such-node", node="no-such-node"),
    Wait(code="taint", words="its nodes take no pods", node=NODES[1]),
    Wait(code="quota", words="exceeded quota: gpus", spec={"gpus_per_learner": 1}, is_refused=True),
    Wait(code="limit_range", words="maximum memory usage", spec={"memory_bytes_per_learner": 2**40}, is_refused=True),
    Wait(code="admission", words="Ask team-x for a cost centre", is_refused=True),
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
    policy = forbid_by_policy(namespace)
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
        namespace.cluster.loop.run(
            namespace.cluster.api.patch("nodes", None, NODES[1], {"spec": {"unschedulable": None}})
        )
        own_cluster.loop.run(last.recover())
        namespace.cluster.loop.run(namespace.cluster.api.request("DELETE", f"{POLICIES}/{policy}"))
        namespace.cluster.loop.run(
            namespace.cluster.api.request("DELETE", f"{POLICIES.removesuffix('ies')}ybindings/{policy}")
        )


async def check(pools: Pools, wait: Wait) -> None:
    pool = pools.of[wait.job]

    async def is_known() -> bool:
        found = pool.refused(wait.job) if wait.is_refused else pool.waiting(wait.job)
        return any(reason.code == wait.code for reason in found)

    await pools.until(is_known, wait.code)
    if wait.is_refused:
        (seat,) = pool.refused(wait.job)
        what, advice = seat.what or "", seat.advice
        assert seat.member == 0
    else:
        (reason,) = (found for found in pool.waiting(wait.job) if found.code == wait.code)
        what, advice = reason.what, reason.advice
        assert reason.member == 0
        assert reason.object in (pools.pod_of(wait.job), f"node {wait.node}")
        assert reason.object in what
        assert reason.since_s is not None
    assert pools.pod_of(wait.job) in what
    assert wait.words in what
    assert bool(advice) is wait.needs_advice


def forbid_by_policy(namespace: Namespace) -> str:
    """Forbid the pods of one job by an admission policy, and wait until it is in force."""
    name, run, api = namespace.name, namespace.cluster.loop.run, namespace.cluster.api
    run(api.request("POST", POLICIES, POLICY | {"metadata": {"name": name}}))
    selector = {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": name}}}
    spec = {"policyName": name, "validationActions": ["Deny"], "matchResources": selector}
    binding = {"apiVersion": POLICY["apiVersion"], "kind": "ValidatingAdmissionPolicyBinding"}
    run(
        api.request(
            "POST", f"{POLICIES.removesuffix('ies')}ybindings", binding | {"metadata": {"name": name}, "spec": spec}
        )
    )
    trial = namespace.manifest("admission-1", "true")
    end_s = time.monotonic() + DEADLINE_S
    while True:
        try:
            run(api.request("POST", f"/api/v1/namespaces/{name}/pods", trial, params={"dryRun": "All"}))
        except ApiError:
            return name
        assert time.monotonic() < end_s
        time.sleep(0.05)
