"""Texts of a job's card and of `why` about its pods, from a real control plane through pool and engine."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from dlaas_server.core.model.states import Event
from dlaas_server.pools.config import PoolConfig
from dlaas_server.pools.kubernetes.pool import KubernetesPool
from jupyter_dlaas.wire.protocol import JobView, State
from tests.kubernetes.clusters import OwnCluster
from tests.kubernetes.conftest import NODES, Namespace
from tests.kubernetes.pool import section_of
from tests.kubernetes.test_jobs import DEADLINE_S, ENDLESS, Engine, Jobs

pytestmark = [pytest.mark.cluster, pytest.mark.anyio]

MISNAMED = "team/Model:1"
QUOTA = "none"


@pytest.fixture
def jobs(tmp_path: Path, namespace: Namespace) -> Iterator[Jobs]:
    made = Jobs(tmp_path / "pool", namespace)
    yield made
    made.sweep()


async def shown(engine: Engine, job: str, is_met: Callable[[JobView], bool]) -> tuple[JobView, str]:
    """Wait until a job's card meets a condition. Return it, and the answer of `why`."""
    end_s = time.monotonic() + DEADLINE_S
    while not is_met(view := engine.lifecycle.view(engine.lifecycle.jobs[job])):
        assert time.monotonic() < end_s, (view.state, view.status_line, view.reason)
        await asyncio.sleep(0.02)
    return view, "\n".join(await engine.requests.why("me", job))


async def cancel(engine: Engine, job: str) -> None:
    await engine.requests.act("me", job, Event.CANCEL)
    await engine.reached(job, State.CANCELLED)


async def test_card_and_why_say_what_a_pod_waits_for(jobs: Jobs, namespace: Namespace) -> None:
    settings = replace(section_of(namespace), image=MISNAMED)
    jobs.pool = KubernetesPool(jobs.folder, settings, config=PoolConfig())
    async with Engine(jobs) as engine:
        await engine.pool_reached()
        job = await engine.submit(ENDLESS, 2, gpus=0)
        view, why = await shown(engine, job, lambda view: view.reason.count(f": {MISNAMED} is not") == 2)
        await cancel(engine, job)

    assert view.state is State.DEPLOYING
    for member in range(2):
        text = f"pod {namespace.name}/{job}-m{member}: {MISNAMED} is not a valid image name: Failed to apply"
        for place in (view.reason, why):
            assert text in place
            assert "Correct `image` in section [kubernetes]" in place


@pytest.mark.parametrize("is_deleted", [False, True], ids=["raised", "deleted"])
async def test_a_refused_job_starts_once_its_quota_permits(jobs: Jobs, namespace: Namespace, is_deleted: bool) -> None:
    namespace.create("resourcequotas", {"metadata": {"name": QUOTA}, "spec": {"hard": {"pods": "0"}}})
    namespace.wait("resourcequotas", QUOTA, lambda quota: "hard" in quota.get("status", {}))
    async with Engine(jobs) as engine:
        await engine.pool_reached()
        job = await engine.submit(ENDLESS, 1, gpus=0)
        view, why = await shown(engine, job, lambda view: f"exceeded quota: {QUOTA}" in view.reason)
        for place in (view.reason, why):
            assert f"pod {namespace.name}/{job}-m0 exceeds a quota of the namespace" in place
            assert "ask the cluster's administrators for a larger quota" in place
        if is_deleted:
            await asyncio.to_thread(namespace.delete, "resourcequotas", QUOTA)
        else:
            await asyncio.to_thread(namespace.patch, "resourcequotas", QUOTA, {"spec": {"hard": {"pods": "9"}}})
        await engine.reached(job, State.PROCESSING)
        assert engine.lifecycle.jobs[job].restarts_total == 0
        await cancel(engine, job)


async def test_card_and_why_say_how_a_pod_ended(jobs: Jobs, own_cluster: OwnCluster, namespace: Namespace) -> None:
    async with Engine(jobs) as engine:
        await engine.pool_reached()
        job = await engine.submit(ENDLESS, 1, gpus=0)
        await engine.reached(job, State.PROCESSING)
        (node,) = (
            own_cluster.nodes[name] for name in NODES if own_cluster.nodes[name].find(namespace.name, f"{job}-m0")
        )
        await asyncio.to_thread(own_cluster.loop.run, node.oom_kill(namespace.name, f"{job}-m0", "learner"))
        view, why = await shown(engine, job, lambda view: view.state.is_final)

    assert (view.state, view.restarts) == (State.FAILED, 0)
    assert view.failure is not None
    assert view.failure.code == "host_memory"
    for place in (view.failure.what, why):
        assert f"killed pod {namespace.name}/{job}-m0 on node {node.name}, because it reached its memory limit" in place
    for place in (view.failure.advice, why):
        assert "Request more with --memory" in place
