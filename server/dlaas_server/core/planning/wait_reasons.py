"""Wait reasons: sentences for the owners of waiting jobs."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Final

from dlaas_server.core.model.cluster import Node, Seat
from dlaas_server.core.model.job import Job
from dlaas_server.core.model.phrases import count, unit_of
from dlaas_server.core.model.pool import Pool
from dlaas_server.core.model.resources import Shape
from dlaas_server.core.placement.feasibility import said, why_never
from dlaas_server.core.placement.gang_placement import FreeCapacity, fit_count, free_of, shape_of
from dlaas_server.core.placement.shape import Layout
from dlaas_server.core.planning.decisions import Wait
from dlaas_server.core.planning.immediate_start import HeldDevices
from dlaas_server.core.scheduling.fit import locality_wait
from dlaas_server.core.spot.reclaim import PROMISED
from jupyter_dlaas.wire.protocol import Refused

__all__ = ["SPOT", "check_feasible", "lent_out", "shortfall", "waits_with_reasons"]

SPOT: Final = "A spot job uses only devices that ordinary jobs leave idle."


def lent_out(job: Job, more: Sequence[Seat]) -> str:
    held, each = len(job.gang), max(job.spec.gpus_per_learner, 1)
    lent = count(len(more) * each, unit_of(job))
    return f"{held} of {count(held + len(more), 'learner')}; waiting for {lent} to be reclaimed from spot jobs."


def shortfall(job: Job, has: int, possible: int, *, is_blocked: bool) -> str:
    """Return why the job has fewer learners than it wishes. `possible`: number of learners that the pool could hold."""
    if possible <= has:
        why = "the pool has no room for more"
    elif is_blocked:
        why = "waiting jobs have precedence"
    elif job.spec.gpus_per_learner:
        why = f"waiting for {count((possible - has) * job.spec.gpus_per_learner, unit_of(job))}"
    else:
        why = f"waiting for room for {count(possible - has, 'more learner')}"
    return f"{has} of {count(job.wish, 'learner')}; {why}."


def waits_with_reasons(
    queue: Sequence[Job],
    seats: Mapping[str, tuple[Seat, ...]],
    held_up: Collection[str],
    pool: Pool,
    capacity: FreeCapacity,
    now_s: float,
    usual: Layout,
    kept: HeldDevices,
) -> tuple[Wait, ...]:
    """Return the queued jobs that do not start, with reasons. `held_up`: jobs that would fit if nothing ran."""
    waiting = [job for job in queue if job.id not in seats]
    holders, available = _holders(pool), capacity if kept.rest is None else kept.rest
    said: dict[tuple[Shape, int, str, str], str] = {}  # equal requests have equal reasons
    out: list[Wait] = []
    for place_in_line, job in enumerate(waiting, start=1):
        if job.not_before_s > now_s:
            reason = f"Retrying in {job.not_before_s - now_s:.0f} s, after the loss of a learner."
        else:
            own = job.id if kept.concerns(job.id) else ""
            asked = (shape_of(job, usual), job.spec.learners_min, unit_of(job), own)
            if asked not in said:
                short = "" if job.id in held_up else _short_of(*asked[:3], free_of(pool.nodes, ()))
                said[asked] = f"Needs {short}." if short else f"Needs {_needs(*asked, capacity, kept)}.{holders}"
            waited_s, for_it = now_s - max(job.submitted_s, job.queued_s), kept.kept.get(job.id, ())
            for held, seat in for_it:
                available.give(held, (seat,))
            reason = said[asked] + locality_wait(available, asked[0], asked[1], waited_s)
            for held, seat in for_it:
                available.claim(held, (seat,))
        out.append(Wait(job.id, reason, place_in_line, len(waiting)))
    return tuple(out)


def _short_of(shape: Shape, least: int, unit: str, in_service: FreeCapacity) -> str:
    """Return the request, if it exceeds everything in service; else ""."""
    fits = in_service.fit_count(shape, least)
    if fits >= least:
        return ""
    has = sum(len(free.devices) for free in in_service)
    once = " at once" if least > 1 else ""
    if shape.gpus and has < least * shape.gpus:
        return f"{count(least * shape.gpus, unit)}{once}; the pool has {has} in service"
    return f"{_learners(shape, least, unit)}; {fits} would fit on the devices in service"


def _needs(shape: Shape, least: int, unit: str, own: str, capacity: FreeCapacity, kept: HeldDevices) -> str:
    """Return the request and what is free. If enough is free, name the job for which it is kept.

    `own`: the job's id if devices are kept for this job itself; else "".
    """
    fits = fit_count(capacity, shape, least)
    if fits >= least and (why := kept.why(own, shape, least)):
        return f"{_learners(shape, least, unit)}; {_there(fits)}, {why}"
    if not shape.gpus:
        return f"{_learners(shape, least, '')}; {_there(fits)}"
    has = sum(len(f.devices) for f in capacity)
    once = " at once" if least > 1 else ""
    if has >= least * shape.gpus:
        return f"{_learners(shape, least, unit)}; {_there(fits)}"
    return f"{count(least * shape.gpus, unit)}{once}; {has} {'is' if has == 1 else 'are'} free"


def _learners(shape: Shape, least: int, unit: str) -> str:
    """Return the requested learners as text: `1 learner with 1 GPU`, `2 learners at once, each with 4 CPUs`."""
    each = said(shape, unit)
    return f"1 learner with {each}" if least == 1 else f"{count(least, 'learner')} at once, each with {each}"


def _there(fits: int) -> str:
    return f"{fits} {'fits' if fits == 1 else 'fit'} now"


def _holders(pool: Pool) -> str:
    """Return the jobs that hold the most devices, and those that get devices which spot jobs give back."""
    shares: list[tuple[int, str, str]] = []
    jobs = [job for job in (*pool.jobs.values(), *pool.taken) if job.members]
    for job in jobs:
        held = sum(len(m.seat.devices) for m in job.gang if m.member != PROMISED)
        new = sum(len(m.seat.devices) for m in job.gang if m.member == PROMISED)
        shares += [(share, job.id, verb) for share, verb in ((held, "holds"), (new, "gets")) if share]
    largest = sorted(shares, key=lambda share: (-share[0], share[1]))[:2]
    if not largest:
        return ""
    said = " and ".join(f"{job} {verb} {share}" for share, job, verb in largest)
    more = len(jobs) - len({job for _, job, _ in largest})
    others = f"; {count(more, 'more job')} {'is' if more == 1 else 'are'} running" if more > 0 else ""
    return f" {said}{others}."


def check_feasible(job: Job, nodes: Sequence[Node], no_devices: str | None = None) -> None:
    """Raise Refused, with the sentence for the user, if the job could not start even on an empty pool.

    `no_devices`: why the pool has no devices at all and what to do, if it knows.
    """
    why = why_never(nodes, shape_of(job), job.spec.learners_min, unit_of(job), no_devices)
    if why is not None:
        raise Refused(f"the job {why}")
