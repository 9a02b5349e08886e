"""Common parts of job transitions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from dlaas_server.core.model.cluster import Seat
from dlaas_server.core.model.job import Job, Member, MemberState
from jupyter_dlaas.wire.journal import Goal

__all__ = ["GRACE_S", "EventText", "Transition", "nodes_text", "with_goal", "with_seats", "with_text"]

GRACE_S: Final = 30.0
"""Seconds that a leaving job has to write its checkpoint, except for spot jobs."""


@dataclass(frozen=True, slots=True)
class EventText:
    """One event of a job's history, as text for people."""

    kind: str
    text: str


Transition = tuple[Job, tuple[EventText, ...]]
"""Changed job, and the events for its history."""


def with_text(job: Job, kind: str, text: str) -> Transition:
    return job, (EventText(kind, text),)


def with_goal(job: Job, goal: Goal, notice_s: float = GRACE_S) -> Job:
    job = replace(job, goal=goal, notice_s=notice_s, revision=job.revision + 1, resize=None, guardian_starts=0)
    return replace(job, awaits_checkpoint=False)  # the checkpoint written while leaving is reported as such


def with_seats(job: Job, seats: Sequence[Seat]) -> Job:
    """Start a new generation on these seats. Members of earlier generations hold theirs until they are down.

    In a gang that can change its size while it trains, members that keep their seat continue and get the first ranks.
    """
    generation = job.generation + 1
    left = list(seats)
    stay: list[Member] = []
    for m in job.gang if job.is_live else ():
        if m.seat in left and m.state is not MemberState.DOWN:
            left.remove(m.seat)
            stay.append(replace(m, generation=generation, rank=len(stay)))
    joining = tuple(
        Member(member=job.next_member + number, generation=generation, rank=len(stay) + number, seat=seat)
        for number, seat in enumerate(left)
    )
    staying = {m.member for m in stay}
    leaving = tuple(m for m in job.members if m.state is not MemberState.DOWN and m.member not in staying)
    return replace(
        job,
        generation=generation,
        next_member=job.next_member + len(joining),
        members=(*leaving, *stay, *joining),
        revision=job.revision + 1,
    )


def nodes_text(seats: Sequence[Seat]) -> str:
    nodes: dict[str, int] = {}
    for seat in seats:
        nodes[seat.node] = nodes.get(seat.node, 0) + 1
    return ", ".join(f"{name} ({n})" if len(nodes) > 1 else name for name, n in sorted(nodes.items()))
