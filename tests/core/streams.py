"""Random streams of jobs, and a scheduler that receives their events one by one.

STREAM_SEEDS=200 tries more of them than 1, STREAM_SEED=7 that one alone.
"""

from __future__ import annotations

import heapq
import itertools
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from random import Random
from typing import Final

from dlaas_server.core.model.cluster import Node, Seat
from dlaas_server.core.model.job import Job, Member, MemberState
from dlaas_server.core.model.pool import Known, Pool
from dlaas_server.core.model.resources import Shape
from dlaas_server.core.placement.gang_placement import Layout, free_of
from dlaas_server.core.scheduling.gang_request import GangRequest
from dlaas_server.core.scheduling.scheduler import PassResult, Policy, Scheduler
from dlaas_server.core.spot.spot_scheduler import SpotScheduler
from jupyter_dlaas.wire.protocol import JobSpec, State
from tests.core.builders import node

SIZES = (4, 4, 2)
GANGS = ((1, 1), (1, 1), (1, 1), (2, 1), (4, 1), (2, 3), (1, 5))
"""GPUs of a learner, learners."""
WITHDRAWN = -1
SEEDS: Final = int(os.environ.get("STREAM_SEEDS") or 1)
KEPT: Final = (21, 31, 39, 55, 56, 68, 149, 161, 397, 549, 879, 1147, 2000213, 119287696, 662423310)
"""Each of these failed once."""
_TURNS: Final = itertools.cycle(range(3))


def in_streams(times: int, tried: Callable[[Random], object]) -> None:
    """Try `times` x SEEDS streams, always the same, those that are KEPT, and as many others at each run.

    With one seed, as in `make test`, each call tries a third of those that are KEPT: three calls, of a test with
    nine orders, try them all. A failure names its seed: to be run alone, and to be added to those that are kept.
    """
    alone = os.environ.get("STREAM_SEED")
    kept = KEPT if SEEDS > 1 else KEPT[next(_TURNS) :: 3]
    others = Random().sample(range(1_000_000, 1_000_000_000), times * SEEDS)
    for seed in [int(alone)] if alone else (*range(times * SEEDS), *kept, *others):
        try:
            tried(Random(seed))
        except Exception as error:
            error.add_note(f"STREAM_SEED={seed} is this stream again")
            raise


@dataclass
class Coming:
    """A job that will come, and how long it really runs."""

    request: GangRequest
    actual_s: float
    withdrawn_s: float | None = None
    """When its owner takes it back, if it has not ended by then."""


def stream(
    chance: Random,
    count: int = 60,
    *,
    gap_s: float = 300.0,
    priorities: tuple[int, ...] = (0, 0, 0, 0, 1),
    spot: float = 0.0,
) -> list[Coming]:
    """Jobs of all sizes and lengths, some of unknown length, guessed wrong by a typical factor of 2.7.

    `spot`: the part of them that are spot jobs.
    """
    now_s, found = 0.0, []
    for number in range(count):
        now_s += chance.choice([0.0, chance.expovariate(1 / gap_s)])
        gpus, learners = chance.choice(GANGS)
        actual_s = min(chance.lognormvariate(6, 1.5), 50_000.0)
        guess_s = None if chance.random() < 0.1 else actual_s * chance.choice([1.0, chance.lognormvariate(0, 1)])
        request = GangRequest(
            number,
            Shape(gpus, 0.0, 0, None, Layout.PACK),
            learners,
            now_s,
            guess_s,
            usual_s=guess_s,
            priority=chance.choice(priorities),
            queue=chance.choice("ab"),
            restart_s=chance.choice([1.0, 30.0]),
            is_spot=spot > 0 and chance.random() < spot,
            id=f"j{number}",
        )
        found.append(Coming(request, actual_s, now_s + chance.uniform(0, 9000.0) if chance.random() < 0.1 else None))
    return found


@dataclass
class Drive:
    """Driver that passes events to a scheduler until all jobs have ended; `look` receives its decisions."""

    on: Scheduler | SpotScheduler
    coming: list[Coming]
    nodes: list[Node]
    look: Callable[[Drive, float], Callable[[PassResult], None]]
    """Called before each decision, and with it after."""
    extra: list[float] = field(default_factory=list)
    """Times at which it is asked though nothing happens."""
    ended: dict[int, float] = field(default_factory=dict)
    first: dict[int, float] = field(default_factory=dict)
    requeued: dict[int, float] = field(default_factory=dict)

    def run(self) -> Drive:
        """All events in order of time."""
        todo = [(one.request.submitted_s, one.request.number, 0) for one in self.coming]
        todo += [(at_s, -1, 0) for at_s in self.extra]
        todo += [(o.withdrawn_s, o.request.number, WITHDRAWN) for o in self.coming if o.withdrawn_s is not None]
        heapq.heapify(todo)
        wake_s: float | None = None
        while len(self.ended) < len(self.coming):
            assert todo or wake_s is not None, "a job waits for ever"
            now_s = min([*([todo[0][0]] if todo else []), *([wake_s] if wake_s is not None else [])])
            while todo and todo[0][0] <= now_s:
                _, number, starts = heapq.heappop(todo)
                if number >= 0:
                    self._happens(self.coming[number], starts, now_s)
            after = self.look(self, now_s)
            found = self.on.decide(now_s)
            for stop in found.stops:
                self.requeued[stop.victim.number] = now_s
            for begun in found.starts:
                self.first.setdefault(begun.number, now_s)
                if begun.since_s is not None:
                    left_s = max(self.coming[begun.number].actual_s - begun.executed_s, 1e-3)
                    heapq.heappush(todo, (begun.since_s + left_s, begun.number, begun.starts))
            after(found)
            wake_s = found.wake_s
        return self

    def _happens(self, one: Coming, starts: int, now_s: float) -> None:
        if one.request.number in self.ended:
            return
        if starts == WITHDRAWN:
            self.on.remove(one.request, now_s, has_ended=False)
            self.ended[one.request.number] = now_s
        elif not starts:
            self.on.enqueue(one.request, now_s)
        elif one.request.starts == starts and not one.request.waits:
            self.on.remove(one.request, now_s)
            self.ended[one.request.number] = now_s

    def jobs(self) -> Iterator[GangRequest]:
        """All that wait or run."""
        yield from self.on.running.values()
        yield from self.on.queue_order()

    def picture(self, now_s: float) -> Pool:
        """Return the pool as the engine would know it."""
        jobs = {request.id: _job(request, self.requeued.get(request.number, 0.0)) for request in self.jobs()}
        known = {
            request.id: Known(
                length_s=request.estimate_s,
                usual_s=request.usual_s,
                executed_s=request.executed(now_s),
                restart_s=request.restart_s,
            )
            for request in self.jobs()
        }
        return Pool(nodes=tuple(self.nodes), jobs=jobs, known=known)


def _job(request: GangRequest, queued_s: float) -> Job:
    spec = JobSpec(
        learners_min=request.learners,
        learners_max=request.learners,
        gpus_per_learner=request.shape.gpus,
        queue=request.queue,
        spot=request.is_spot,
    )
    runs = not request.waits
    return Job(
        id=request.id,
        number=request.number,
        owner="ana",
        spec=spec,
        submitted_s=request.submitted_s,
        wish=request.learners,
        priority=request.priority,
        state=State.PROCESSING if runs else State.QUEUED,
        generation=int(runs),
        live_generation=int(runs),
        members=tuple(_member(rank, seat) for rank, seat in enumerate(request.seats)),
        checkpoint_step=0,
        queued_s=queued_s,
        seated_s=request.began_s if runs else None,
    )


def _member(rank: int, seat: Seat) -> Member:
    return Member(member=rank, generation=1, rank=rank, seat=seat, state=MemberState.READY)


def drive(
    policy: Policy,
    coming: list[Coming],
    look: Callable[[Drive, float], Callable[[PassResult], None]],
    extra: list[float] | None = None,
) -> Drive:
    """Drive a scheduler with this policy on a small pool through the stream."""
    nodes = [node(f"n{i}", size) for i, size in enumerate(SIZES)]
    kind = SpotScheduler if any(one.request.is_spot for one in coming) else Scheduler
    return Drive(kind(free_of(nodes, ()), policy), coming, nodes, look, extra or []).run()
