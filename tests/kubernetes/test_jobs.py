"""Jobs of the Kubernetes pool: guardians beside the engine, learners in pods on a real control plane."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import AsyncIterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from dlaas_server.core.model.states import Event
from dlaas_server.engine.blobs import Blobs
from dlaas_server.engine.job_stream import Watchers
from dlaas_server.engine.lifecycle import Lifecycle
from dlaas_server.engine.operations import Requests
from dlaas_server.pools.base import log_of
from dlaas_server.pools.config import PoolConfig
from dlaas_server.pools.kubernetes.pool import KubernetesPool
from dlaas_server.store import Store
from jupyter_dlaas.runtime.system.process import kill_round
from jupyter_dlaas.wire.journal import Fact, FactKind, Goal, LearnerDown, LearnersLost, LearnerUp, MemberWanted, Wanted
from jupyter_dlaas.wire.protocol import JobSpec, State, Submit
from tests.kubernetes.clusters import OwnCluster
from tests.kubernetes.conftest import NODES, Namespace
from tests.kubernetes.pool import ELASTIC_LOOP, section_of
from tests.selection import exhaustive

pytestmark = [pytest.mark.cluster, pytest.mark.anyio]

DEADLINE_S = 90.0
SHORT = """
import os
for step in range(3):
    print("step", step, "of member", os.environ["DLAAS_MEMBER"], flush=True)
answer = 6 * 7
"""
ENDLESS = """
import os, time
for step in range(100_000):
    print("step", step, "of member", os.environ["DLAAS_MEMBER"], flush=True)
    time.sleep(0.05)
"""


class Jobs:
    """A pool, and what its tests wait for."""

    def __init__(self, folder: Path, namespace: Namespace) -> None:
        self.folder, self.namespace = folder, namespace
        self.pool = KubernetesPool(folder, section_of(namespace), config=PoolConfig())
        self._changed = asyncio.Event()

    async def open(self) -> None:
        await self.pool.open(lambda job, stream: self._changed.set(), self._changed.set)
        while self.pool.unavailable() is not None:
            self._changed.clear()
            async with asyncio.timeout(DEADLINE_S):
                await self._changed.wait()

    async def submit(self, program: str, *members: int, outputs: Sequence[str] = ()) -> str:
        job = "digits-1"
        await self.pool.create(job, "me", JobSpec(outputs=tuple(outputs), gpus_per_learner=1), {"PATH": "/nowhere"})
        await self.pool.put(job, "train.py", program.encode())
        await self.act(1, Goal.RUN, *members)
        return job

    async def act(self, revision: int, goal: Goal, *members: int) -> None:
        seats = tuple(MemberWanted(member=m, node=NODES[m % 2], devices=(f"{NODES[m % 2]}/0",)) for m in members)
        document = Wanted(revision=revision, goal=goal, generation=1, members=seats, grace_s=5.0)
        await self.pool.act("digits-1", document)

    async def facts(self) -> Sequence[Fact]:
        return (await self.pool.facts("digits-1", 0))[0]

    async def recorded(self, kind: FactKind, times: int = 1) -> Sequence[Fact]:
        """Wait until the guardian has recorded a fact so many times; return all facts."""
        end_s = time.monotonic() + DEADLINE_S
        while True:
            facts = await self.facts()
            if sum(fact.kind == kind for fact in facts) >= times:
                return facts
            assert time.monotonic() < end_s, self.report()
            self._changed.clear()
            with suppress(TimeoutError):
                async with asyncio.timeout(1.0):
                    await self._changed.wait()

    async def log(self, member: int) -> str:
        return (await self.pool.read("digits-1", log_of(member), 0, 1 << 20)).data.decode()

    async def gone(self, *members: int) -> None:
        """Wait until pods and anchor of the job are gone."""
        for member in members:
            await asyncio.to_thread(self.namespace.wait_gone, "pods", f"digits-1-m{member}")
        await asyncio.to_thread(self.namespace.wait_gone, "configmaps", "digits-1")

    def report(self) -> str:
        logs = sorted((self.folder / "jobs").glob("*/guardian.log")) + sorted(self.folder.glob("jobs/*/journal.jsonl"))
        texts = [f"{log.name}: {log.read_text(errors='replace')[-3000:]}" for log in logs]
        return "\n".join([*texts, str(self.pool.waiting("digits-1")), str(self.pool.refused("digits-1"))])

    def sweep(self) -> None:
        for root in (self.folder / "jobs").iterdir():
            for _ in range(100):
                if kill_round(str(root)) == 0:
                    break


@pytest.fixture
async def jobs(tmp_path: Path, namespace: Namespace) -> AsyncIterator[Jobs]:
    made = Jobs(tmp_path / "pool", namespace)
    await made.open()
    yield made
    await made.pool.close()
    made.sweep()


async def test_a_job_runs_in_a_pod_and_returns_its_result(jobs: Jobs) -> None:
    job = await jobs.submit(SHORT, 0, outputs=["answer"])
    await jobs.recorded(FactKind.CLOSED)

    log = await jobs.log(0)
    assert [line for line in log.splitlines() if line.startswith("step")] == [f"step {n} of member 0" for n in range(3)]
    assert await jobs.pool.files(job, "results"), jobs.report()
    await jobs.gone(0)


@pytest.mark.parametrize("goal", [Goal.STOP, Goal.HALT])
async def test_a_job_that_is_stopped_leaves_no_pod(jobs: Jobs, goal: Goal) -> None:
    await jobs.submit(ENDLESS, 0)
    await jobs.recorded(FactKind.GENERATION)
    await jobs.act(2, goal)
    await jobs.recorded(FactKind.CLOSED)

    await jobs.gone(0)


async def test_a_gang_of_two_runs_on_two_nodes(jobs: Jobs) -> None:
    await jobs.submit(SHORT, 0, 1)
    facts = await jobs.recorded(FactKind.CLOSED)

    assert sum(fact.kind == FactKind.LEARNER_UP for fact in facts) == 2
    for member in (0, 1):
        assert f"step 2 of member {member}" in await jobs.log(member)
    await jobs.gone(0, 1)


class Engine:
    """An engine on the pool, with its loop."""

    def __init__(self, jobs: Jobs) -> None:
        self._jobs = jobs

    async def __aenter__(self) -> Engine:
        self._jobs.folder.mkdir(exist_ok=True)
        self._store = await Store.open(self._jobs.folder / "store.sqlite3")
        self.lifecycle = Lifecycle(self._store, self._jobs.pool, "me", time.time)
        self.requests = Requests(self.lifecycle, Watchers(), Blobs(self._jobs.folder / "blobs"))
        await self.lifecycle.open()
        self._loop = asyncio.create_task(self.lifecycle.run())
        return self

    async def __aexit__(self, *exception: object) -> None:
        self._loop.cancel()
        await asyncio.gather(self._loop, return_exceptions=True)
        await self.lifecycle.close()
        await self._store.close()

    async def pool_reached(self) -> None:
        end_s = time.monotonic() + DEADLINE_S
        while (why := self._jobs.pool.unavailable()) is not None:
            assert time.monotonic() < end_s, why
            await asyncio.sleep(0.05)

    async def submit(self, program: str, learners: int, *, most: int | None = None, gpus: int = 1, **more: Any) -> str:
        spec = JobSpec(
            name="digits", learners_min=learners, learners_max=most or learners, gpus_per_learner=gpus, **more
        )
        request = Submit(key=f"key-{uuid.uuid4()}", spec=spec, source=program)
        return (await self.requests.submit("me", request))[0].id

    async def reached(self, job: str, state: State) -> None:
        end_s = time.monotonic() + DEADLINE_S
        while (now := self.lifecycle.jobs[job].state) is not state:
            assert not now.is_final or now is State.HALTED, f"{now}; {self._jobs.report()}"
            assert time.monotonic() < end_s, f"{now}; {self._jobs.report()}"
            await asyncio.sleep(0.05)


async def test_an_engine_halts_and_resumes_a_gang_of_pods(tmp_path: Path, namespace: Namespace) -> None:
    jobs = Jobs(tmp_path / "pool", namespace)
    try:
        async with Engine(jobs) as engine:
            job = await engine.submit(ENDLESS, learners=2)
            assert job == "digits-1"
            await engine.reached(job, State.PROCESSING)
            await engine.requests.act("me", job, Event.HALT)
            await engine.reached(job, State.HALTED)
            await jobs.gone(0, 1)
            await engine.requests.act("me", job, Event.RESUME)
            await engine.reached(job, State.PROCESSING)
            members = [fact.member for fact in await jobs.facts() if isinstance(fact, LearnerUp)]
            assert sorted(members) == [0, 1, 2, 3]
            await engine.requests.act("me", job, Event.CANCEL)
            await engine.reached(job, State.CANCELLED)
            await jobs.gone(2, 3)
            assert engine.lifecycle.jobs[job].restarts_total == 0
    finally:
        jobs.sweep()


async def test_a_deleted_pod_is_replaced_by_the_engine(tmp_path: Path, namespace: Namespace) -> None:
    jobs = Jobs(tmp_path / "pool", namespace)
    try:
        async with Engine(jobs) as engine:
            job = await engine.submit(ENDLESS, learners=1)
            await engine.reached(job, State.PROCESSING)
            await asyncio.to_thread(namespace.delete, "pods", "digits-1-m0", grace_s=0)
            await jobs.recorded(FactKind.GENERATION, 2)
            ends = {fact.member: fact for fact in await jobs.facts() if isinstance(fact, LearnerDown)}
            assert ends.keys() == {0}, jobs.report()
            await engine.reached(job, State.PROCESSING)
            await engine.requests.act("me", job, Event.CANCEL)
            await engine.reached(job, State.CANCELLED)
            await jobs.gone(0, 1)
    finally:
        jobs.sweep()


@pytest.mark.parametrize("is_alive", [False, True], ids=["lost", "alive"])
async def test_a_job_leaves_a_deleted_node_at_once(
    tmp_path: Path, namespace: Namespace, own_cluster: OwnCluster, is_alive: bool
) -> None:
    """The cluster itself removes the pods of a deleted node only after 40 s or more, and says so in other words."""
    node = own_cluster.add_node("small", resources={"nvidia.com/gpu": "1"})  # the tightest node for one learner
    jobs = Jobs(tmp_path / "pool", namespace)
    try:
        async with Engine(jobs) as engine:
            await engine.pool_reached()
            job = await engine.submit(ENDLESS, learners=1)
            await engine.reached(job, State.PROCESSING)
            assert namespace.get("pods", f"{job}-m0")["spec"]["nodeName"] == node.name
            await asyncio.to_thread(own_cluster.delete_node if is_alive else own_cluster.remove_node, node.name)
            facts = await jobs.recorded(FactKind.GENERATION, 2)
            await engine.reached(job, State.PROCESSING)
            view = engine.lifecycle.view(engine.lifecycle.jobs[job])
            if is_alive:
                await asyncio.to_thread(namespace.wait_gone, "pods", f"{job}-m0")
                assert node.find(namespace.name, f"{job}-m0") is None, "its node has ended the pod"
            await engine.requests.act("me", job, Event.CANCEL)
            await engine.reached(job, State.CANCELLED)
    finally:
        jobs.sweep()
        if node.name in own_cluster.nodes:
            await asyncio.to_thread(own_cluster.remove_node, node.name)

    (end,) = (fact.failure for fact in facts if isinstance(fact, LearnerDown) and fact.member == 0)
    words = f"Node small is gone, and pod {namespace.name}/{job}-m0 with it: the node was deleted from the cluster."
    assert end is not None
    assert (end.code, end.what) == ("node_gone", words)
    assert words in view.interruptions[-1].text
    assert view.learners[0].node in NODES
    assert view.restarts == 1


@exhaustive
async def test_survivors_train_on_without_a_deleted_node(
    tmp_path: Path, namespace: Namespace, own_cluster: OwnCluster
) -> None:
    """All five GPUs of the cluster are used, so that one learner is on the node that is deleted."""
    node = own_cluster.add_node("small", resources={"nvidia.com/gpu": "1"})
    jobs = Jobs(tmp_path / "pool", namespace)
    try:
        async with Engine(jobs) as engine:
            await engine.pool_reached()
            job = await engine.submit(ELASTIC_LOOP, learners=2, most=5, framework="torch")
            await engine.reached(job, State.PROCESSING)
            ups = [fact for fact in await jobs.recorded(FactKind.LEARNER_UP, 5) if isinstance(fact, LearnerUp)]
            (lost,) = (fact.member for fact in ups if fact.node == node.name)
            await jobs.recorded(FactKind.GENERATION)
            await asyncio.to_thread(own_cluster.remove_node, node.name)
            (regrouped,) = (f for f in await jobs.recorded(FactKind.REGROUPED) if f.kind == FactKind.REGROUPED)
            view = engine.lifecycle.view(engine.lifecycle.jobs[job])
            await engine.requests.act("me", job, Event.CANCEL)
            await engine.reached(job, State.CANCELLED)
    finally:
        jobs.sweep()
        if node.name in own_cluster.nodes:
            await asyncio.to_thread(own_cluster.remove_node, node.name)

    assert isinstance(regrouped, LearnersLost)
    assert sorted(regrouped.members or ()) == [member for member in range(5) if member != lost]
    assert regrouped.failure is not None
    assert "Node small is gone" in regrouped.failure.what
    assert view.restarts == 0
    print("pause of the survivors:", regrouped.idle_s)


async def test_a_drained_job_restarts_on_another_node(
    tmp_path: Path, namespace: Namespace, own_cluster: OwnCluster
) -> None:
    """On its cordoned node, its next pod would wait until its seat is refused."""
    node = own_cluster.add_node("small", resources={"nvidia.com/gpu": "1"})
    jobs = Jobs(tmp_path / "pool", namespace)
    try:
        async with Engine(jobs) as engine:
            await engine.pool_reached()
            job = await engine.submit(ENDLESS, learners=1)
            await engine.reached(job, State.PROCESSING)
            drain = ("drain", node.name, "--ignore-daemonsets", "--force", "--delete-emptydir-data")
            await asyncio.to_thread(namespace.kubectl, *drain)
            facts = await jobs.recorded(FactKind.GENERATION, 2)
            await engine.reached(job, State.PROCESSING)
            view = engine.lifecycle.view(engine.lifecycle.jobs[job])
            refused = engine.lifecycle.settings.refused
            await engine.requests.act("me", job, Event.CANCEL)
            await engine.reached(job, State.CANCELLED)
    finally:
        jobs.sweep()
        await asyncio.to_thread(own_cluster.remove_node, node.name)

    (end,) = (fact.failure for fact in facts if isinstance(fact, LearnerDown) and fact.member == 0)
    assert end is not None
    assert (end.code, refused) == ("drained", {})
    assert view.learners[0].node in NODES
    assert view.restarts == 1


@exhaustive
async def test_a_job_leaves_a_silent_node_with_its_deleted_pod(
    tmp_path: Path, namespace: Namespace, own_cluster: OwnCluster
) -> None:
    node = own_cluster.add_node("small", resources={"nvidia.com/gpu": "1"})
    jobs = Jobs(tmp_path / "pool", namespace)
    try:
        async with Engine(jobs) as engine:
            await engine.pool_reached()
            job = await engine.submit(ENDLESS, learners=1)
            await engine.reached(job, State.PROCESSING)
            await asyncio.to_thread(own_cluster.loop.run, node.fail())
            await asyncio.to_thread(namespace.delete, "pods", f"{job}-m0", grace_s=1)
            facts = await jobs.recorded(FactKind.GENERATION, 2)
            await engine.reached(job, State.PROCESSING)
            view = engine.lifecycle.view(engine.lifecycle.jobs[job])
            left = namespace.get("pods", f"{job}-m0")
            await engine.requests.act("me", job, Event.CANCEL)
            await engine.reached(job, State.CANCELLED)
    finally:
        jobs.sweep()
        await asyncio.to_thread(own_cluster.remove_node, node.name)

    (end,) = (fact.failure for fact in facts if isinstance(fact, LearnerDown) and fact.member == 0)
    assert end is not None
    assert end.code == "node_silent"
    assert f"Node small does not answer, and has not confirmed the deletion of pod {namespace.name}/" in end.what
    assert end.what in view.interruptions[-1].text
    assert view.learners[0].node in NODES
    assert left["status"]["phase"] == "Running", "the cluster does not know whether it has ended"


async def test_a_new_engine_finds_its_pods_running(tmp_path: Path, namespace: Namespace) -> None:
    jobs = Jobs(tmp_path / "pool", namespace)
    try:
        async with Engine(jobs) as engine:
            job = await engine.submit(ENDLESS, learners=1)
            await engine.reached(job, State.PROCESSING)
        pod = namespace.get("pods", "digits-1-m0")
        jobs.pool = KubernetesPool(jobs.folder, section_of(namespace), config=PoolConfig())
        async with Engine(jobs) as engine:
            assert engine.lifecycle.jobs[job].state is State.PROCESSING
            await engine.requests.act("me", job, Event.HALT)
            await engine.reached(job, State.HALTED)
            assert [fact.member for fact in await jobs.facts() if isinstance(fact, LearnerUp)] == [0]
            await jobs.gone(0)
        assert pod["status"]["phase"] == "Running"
    finally:
        jobs.sweep()
