"""Builders of pools and jobs."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from dlaas_server.core.lifecycle.journal_events import apply_fact
from dlaas_server.core.lifecycle.plan_outcomes import preempted, resized, started
from dlaas_server.core.model.cluster import Device, Node, Seat
from dlaas_server.core.model.job import Job
from dlaas_server.core.model.pool import Pool
from dlaas_server.core.planning.plan import DEFAULT, plan
from dlaas_server.core.scheduling.scheduler import Policy
from jupyter_dlaas.wire.journal import FACT_TYPES, FactKind
from jupyter_dlaas.wire.protocol import Elastic, JobSpec, Placement


def node(name: str = "n1", devices: int = 4, *, cpus: float = 0.0, memory: int = 0, kind: str = "GPU") -> Node:
    return Node(
        name=name,
        devices=tuple(Device(id=f"{name}/{i}", index=i, kind=kind) for i in range(devices)),
        cpus=cpus,
        memory_bytes=memory,
    )


def job(
    number: int = 1,
    learners: tuple[int, int] = (1, 1),
    *,
    gpus: int = 1,
    wish: int | None = None,
    priority: int = 0,
    cpus: float = 0.0,
    memory: int = 0,
    placement: Placement = Placement.PACK,
    elastic: Elastic = Elastic.MANUAL,
    retries: int = 4,
    submitted_s: float | None = None,
) -> Job:
    spec = JobSpec(
        name="job",
        learners_min=learners[0],
        learners_max=learners[1],
        gpus_per_learner=gpus,
        cpus_per_learner=cpus,
        memory_bytes_per_learner=memory,
        placement=placement,
        priority=priority,
        elastic=elastic,
        retries=retries,
    )
    return Job(
        id=f"job-{number}",
        number=number,
        owner="ana",
        spec=spec,
        submitted_s=float(number) if submitted_s is None else submitted_s,
        wish=learners[1] if wish is None else wish,
        priority=priority,
        elastic=elastic,
    )


def pool(nodes: Iterable[Node], *jobs: Job) -> Pool:
    return Pool(nodes=tuple(nodes), jobs={j.id: j for j in jobs})


def fact(target: Job, kind: FactKind, **fields: object) -> Any:
    return FACT_TYPES[kind](**{"n": target.facts_read, "at_s": 100.0, **fields})


def with_fact(target: Job, kind: FactKind, **fields: object) -> Job:
    return apply_fact(target, fact(target, kind, **fields))[0]


def deploying(target: Job, *seats: Seat) -> Job:
    return started(target, seats, 50.0)[0]


def training(target: Job, *seats: Seat, step: int = 0) -> Job:
    up = deploying(target, *seats)
    for member in up.gang:
        up = with_fact(up, FactKind.LEARNER_UP, member=member.member)
        up = with_fact(up, FactKind.LEARNER_READY, member=member.member)
    return with_fact(up, FactKind.GENERATION, generation=up.generation, step=step)


def seats(name: str, count: int) -> tuple[Seat, ...]:
    return tuple(Seat(name, (f"{name}/{i}",)) for i in range(count))


def carried_out(picture: Pool, now_s: float, policy: Policy = DEFAULT) -> Pool:
    """Return the pool after its plan was carried out: started jobs train, and leaving ones have left."""
    found, after = plan(picture, now_s, policy), dict(picture.jobs)
    for stop in found.preempts:
        leaving = preempted(after[stop.job], stop.reason, now_s, stop.notice_s)[0]
        after[stop.job] = with_fact(with_fact(leaving, FactKind.HALTED, step=1, has_checkpoint=True), FactKind.CLOSED)
    for start in found.starts:
        after[start.job] = _trains(started(after[start.job], start.seats, now_s)[0])
    for resize in found.resizes:
        after[resize.job] = _trains(resized(after[resize.job], resize.seats, resize.by, now_s)[0])
    return replace(picture, jobs=after)


def _trains(one: Job) -> Job:
    one = with_fact(one, FactKind.GENERATION, generation=one.generation, step=1)
    return replace(one, members=one.gang, checkpoint_step=1)
