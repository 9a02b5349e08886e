"""Size requests that no person makes: by the program, by the schedule, or by measured throughput."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

from dlaas_server.core.elasticity import objective
from dlaas_server.core.elasticity.autoscaler import learn, look
from dlaas_server.core.model.job import Intent, Job
from dlaas_server.core.model.phrases import count
from dlaas_server.core.model.size_search import Point, Search, Window
from jupyter_dlaas.wire.journal import Goal, SizeRequested, ThroughputMeasured
from jupyter_dlaas.wire.protocol import Condition, Elastic, JobSpec, Scheduled, Speed, State

__all__ = ["asked", "by_pace", "due", "kept_least", "scheduled", "speeds", "speedup"]


def by_pace(job: Job, fact: ThroughputMeasured) -> tuple[Job, str]:
    """Record a measured window of steps.

    With `elastic` auto, return the job with its new wish, and the reason, else "".
    """
    if not fact.learners or not fact.rate or not fact.steps or fact.generation not in (None, job.live_generation):
        return job, ""
    window = Window(learners=fact.learners, at_s=fact.at_s, steps=fact.steps, rate=fact.rate, spread=fact.spread or 0.0)
    if job.elastic is not Elastic.AUTO or not _may_decide(job, fact.learners):
        return replace(job, search=learn(job.search, window)[0]), ""
    low, high = job.spec.learners_min, job.spec.learners_max
    search, wish, why = look(
        job.search,
        window,
        condition_of(job.spec),
        low=low,
        high=high,
        wish=job.wish,
        work=_work(job, fact),
        left_s=fact.left_s,
    )
    job = replace(job, search=search)
    if wish == job.wish:
        return job, ""
    return replace(job, wish=wish, wish_by="auto"), why


def _may_decide(job: Job, learners: int) -> bool:
    """Return whether a window may change the wish: no transition is pending, and the gang has its size."""
    return (
        job.state is State.PROCESSING
        and job.intent is Intent.RUN
        and job.goal is Goal.RUN
        and job.resize is None
        and job.live_generation == job.generation
        and len(job.gang) == learners
    )


def condition_of(spec: JobSpec) -> objective.Condition:
    """Return the job's scaling condition."""
    value = spec.condition_value
    match spec.condition:
        case Condition.UTILITY:
            return objective.Utility(1.0 if value is None else value, spec.price_per_h)
        case Condition.DEADLINE:
            return objective.Deadline()
        case Condition.GOODPUT:
            return objective.Goodput(value)
        case _:
            return objective.Efficiency() if value is None else objective.Efficiency(value)


def _work(job: Job, fact: ThroughputMeasured) -> objective.Work:
    samples = None if fact.left_s is None or fact.rate is None else fact.left_s * fact.rate
    limit_s = job.spec.condition_value if job.spec.condition is Condition.DEADLINE else None
    left_s = None if limit_s is None else max(job.submitted_s + limit_s - fact.at_s, 1.0)
    return objective.Work(samples_left=samples, left_s=left_s)


def changed(search: Search, idle_s: float | None) -> Search:
    """Update the average pause after a change of size."""
    return search if idle_s is None else replace(search, idle_s=(search.idle_s + idle_s) / 2)


def asked(job: Job, fact: SizeRequested) -> tuple[Job, str]:
    """Apply a size request of the program. Requests that are not allowed were refused where the program runs."""
    learners = fact.learners or 0
    if not job.spec.learners_min <= learners <= job.spec.learners_max or job.elastic is Elastic.OFF:
        return job, ""
    if learners == job.wish and job.elastic is not Elastic.AUTO:
        return job, ""
    job = replace(job, wish=learners, wish_by="program", elastic=Elastic.MANUAL)
    return job, f"The program requested {count(learners, 'learner')} at step {fact.step or 0:,}."


def kept_least(job: Job) -> tuple[Job, str]:
    """Request the least size, since the program has no use for more learners, until a person scales it."""
    least = job.spec.learners_min
    if job.elastic is Elastic.OFF or (job.wish == least and job.elastic is not Elastic.AUTO):
        return job, ""
    job = replace(job, wish=least, wish_by="program", elastic=Elastic.MANUAL)
    return job, f" It stays at {count(least, 'learner')} until you scale it."


def due(job: Job, epoch: int) -> Scheduled | None:
    """Return the schedule entry to follow now, if it was not followed yet."""
    passed = [entry for entry in job.spec.schedule if entry.epoch <= epoch]
    return passed[-1] if len(passed) > job.schedule_done else None


def scheduled(job: Job, epoch: int) -> tuple[Job, str]:
    """Apply the schedule after this epoch. A later wish of a person holds until the next entry."""
    entry = due(job, epoch)
    if entry is None or job.goal is not Goal.RUN or job.state is not State.PROCESSING or job.elastic is Elastic.OFF:
        return job, ""
    done = sum(1 for entry in job.spec.schedule if entry.epoch <= epoch)
    job = replace(job, schedule_done=done)
    if entry.learners == job.wish:
        return job, ""
    said = f"Epoch {entry.epoch}: {count(entry.learners, 'learner')}, by the job's schedule."
    return replace(job, wish=entry.learners, wish_by="schedule"), said


def speeds(job: Job) -> tuple[Speed, ...]:
    """Return the measured throughput at each size, smallest first."""
    points = job.search.points
    return tuple(
        Speed(learners=p.learners, samples_per_s=p.rate, times=round(p.rate / points[0].rate, 3)) for p in points
    )


def speedup(job: Job) -> str:
    """Return the last measured speedups as text: "2 → 4: 1.3× faster". Counts devices, as the card does."""
    points: tuple[Point, ...] = job.search.points
    each = max(job.spec.gpus_per_learner, 1)
    parts = []
    for few, many in pairwise(points):
        times = many.rate / few.rate
        how = f"{times:.1f}× faster" if times >= 1.05 else f"{1 / times:.1f}× slower" if times <= 0.95 else "same speed"
        parts.append(f"{few.learners * each} → {many.learners * each}: {how}")
    return ", ".join(parts[-3:])
