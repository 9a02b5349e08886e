"""Reasons for waiting and ends of pods, from a real control plane through the pool to a job's card and journal."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from dlaas_server.pools.config import PoolConfig
from dlaas_server.pools.kubernetes.manifests.package_archive import package_archive
from dlaas_server.pools.kubernetes.pool import KubernetesPool
from jupyter_dlaas.runtime.system.process import kill_round
from jupyter_dlaas.wire.journal import FactKind, Goal, LearnerDown, MemberWanted, Wanted
from jupyter_dlaas.wire.protocol import Cause, JobSpec
from tests.kubernetes.api import ApiError
from tests.kubernetes.clusters import OwnCluster
from tests.kubernetes.conftest import NODES, Namespace
from tests.kubernetes.pool import section_of
from tests.pools.local_rig import PROGRAM
from tests.pools.rig import ENDLESS

pytestmark = [pytest.mark.cluster, pytest.mark.anyio]

DEADLINE_S = 120.0
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


class Pools:
    """Pools of one namespace, each with settings of its own, and their jobs."""

    def __init__(self, folder: Path, namespace: Namespace) -> None:
        self.folder, self.namespace = folder, namespace
        self.pools: list[KubernetesPool] = []
        self.of: dict[str, KubernetesPool] = {}

    async def open(self, **settings: Any) -> KubernetesPool:
        section = replace(section_of(self.namespace), bind_timeout_s=600.0, **settings)
        pool = KubernetesPool(self.folder / f"pool-{len(self.pools)}", section, config=PoolConfig())
        self.pools.append(pool)
        await pool.open(lambda job, stream: None, lambda: None)

        async def is_reached() -> bool:
            return pool.unavailable() is None

        await self.until(is_reached, "the cluster is reached")
        return pool

    async def run(self, pool: KubernetesPool, job: str, node: str = NODES[0], **spec: Any) -> None:
        self.of[job] = pool
        await pool.create(job, "me", JobSpec(**{"gpus_per_learner": 0, **spec}), {})
        await pool.put(job, "train.py", PROGRAM.format(steps=ENDLESS, fails_at=-1).encode())
        seats = (MemberWanted(member=0, node=node),)
        await pool.act(job, Wanted(revision=1, goal=Goal.RUN, generation=1, members=seats, grace_s=5.0))

    async def trains(self, job: str) -> None:
        async def is_so() -> bool:
            return any(fact.kind == FactKind.GENERATION for fact in (await self.of[job].facts(job, 0))[0])

        await self.until(is_so, f"{job} trains")

    async def until(self, is_so: Callable[[], Awaitable[bool]], what: str) -> None:
        end_s = time.monotonic() + DEADLINE_S
        while not await is_so():
            waits = {job: (pool.waiting(job), pool.refused(job)) for job, pool in self.of.items()}
            assert time.monotonic() < end_s, f"{what}: {waits}"
            await asyncio.sleep(0.02)

    async def close(self) -> None:
        for pool in self.pools:
            await pool.close()
            for root in (pool.path / "jobs").iterdir():
                for _ in range(100):
                    if kill_round(str(root)) == 0:
                        break


@pytest.fixture
async def pools(tmp_path: Path, namespace: Namespace) -> AsyncIterator[Pools]:
    made = Pools(tmp_path, namespace)
    yield made
    await made.close()


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
            await check(pools, wait, namespace)
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


async def check(pools: Pools, wait: Wait, namespace: Namespace) -> None:
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
        assert reason.object in (f"pod {namespace.name}/{wait.job}-m0", f"node {wait.node}")
        assert reason.object in what
        assert reason.since_s is not None
    assert f"pod {namespace.name}/{wait.job}-m0" in what
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


# ---- ends ------------------------------------------------------------------------------------------------------------

ENDS = {
    "killed": (Cause.UNKNOWN, "signal 9 (SIGKILL)"),
    "host_memory": (Cause.RESOURCES, "reached its memory limit"),
    "evicted": (Cause.EVICTED, "low on resource: memory"),
    "evicted_disk": (Cause.EVICTED, "low on resource: ephemeral-storage"),
    "deleted": (Cause.EVICTED, "deleted"),
}


async def test_ended_pods_name_cause_object_and_fix(
    pools: Pools, own_cluster: OwnCluster, namespace: Namespace
) -> None:
    pool = await pools.open()
    jobs = {code: f"{code.replace('_', '-')}-1" for code in ENDS}
    for job in jobs.values():
        await pools.run(pool, job)
    for job in jobs.values():
        await pools.trains(job)
    node, run, place = own_cluster.nodes[NODES[0]], own_cluster.loop.run, namespace.name
    run(node.kill_process(place, f"{jobs['killed']}-m0", "learner", 1))
    run(node.oom_kill(place, f"{jobs['host_memory']}-m0", "learner"))
    run(node.evict(place, f"{jobs['evicted']}-m0"))
    run(node.evict(place, f"{jobs['evicted_disk']}-m0", "ephemeral-storage"))
    namespace.delete("pods", f"{jobs['deleted']}-m0", grace_s=0)

    for code, (cause, words) in ENDS.items():
        down = await ended(pools, jobs[code])
        failure = down.failure
        assert failure is not None
        assert (failure.code, failure.cause) == (code, cause), failure
        assert words in failure.what
        assert code == "deleted" or f"pod {place}/{jobs[code]}-m0" in failure.what
        assert failure.advice


async def ended(pools: Pools, job: str) -> LearnerDown:
    found: list[LearnerDown] = []

    async def is_over() -> bool:
        facts = (await pools.of[job].facts(job, 0))[0]
        found.extend(fact for fact in facts if isinstance(fact, LearnerDown))
        return bool(found)

    await pools.until(is_over, f"{job} ends")
    return found[0]
