"""Start-time forecast: the scheduler run forward in time, with expected and with randomly drawn job lengths."""

from __future__ import annotations

import heapq
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field, replace
from itertools import pairwise
from math import exp, inf, log, sqrt
from statistics import pstdev
from typing import Final

from dlaas_server.core.elasticity.resize import after_pending_changes
from dlaas_server.core.forecast.remaining_time import left_s
from dlaas_server.core.model.pool import Pool
from dlaas_server.core.model.resources import Shape
from dlaas_server.core.placement.gang_placement import FreeCapacity, NodeCapacity
from dlaas_server.core.planning.checkpoint_requests import with_checkpoints
from dlaas_server.core.planning.scheduler_snapshot import NOTHING_KNOWN, scheduler_of
from dlaas_server.core.scheduling.gang_request import GangRequest
from dlaas_server.core.scheduling.ordering import Order
from dlaas_server.core.scheduling.run_length import NORMAL, length_s
from dlaas_server.core.scheduling.scheduler import PassResult, Policy, Scheduler
from dlaas_server.core.spot.spot_scheduler import SpotScheduler
from jupyter_dlaas.wire.journal import Goal

__all__ = [
    "CLOSE",
    "CLOSE_S",
    "DRAWS",
    "FORECAST_JOBS_MAX",
    "SIMULATED_EVENTS_MAX",
    "SIMULATED_JOBS_MAX",
    "Arrival",
    "Outlook",
    "World",
    "forecast",
    "forward",
    "outlooks",
    "world_of",
]

SIMULATED_EVENTS_MAX: Final = 2000
"""Maximum number of events per forward run, which limits the horizon and the cost."""
DRAWS: Final = 60
CLOSE: Final = 0.25
"""A start counts as right within this share of the wait, or within CLOSE_S."""
CLOSE_S: Final = 60.0
BLUR: Final = 0.5
COPIES: Final = 5
SHARED: Final = 0.25
"""Part of the estimate error's standard deviation that all estimates of a pool share (they are wrong together)."""
FORECAST_JOBS_MAX: Final = 100
"""Number of waiting jobs, first in the queue, that get an estimate; more would cost too much."""
SIMULATED_JOBS_MAX: Final = 300
"""Number of waiting jobs that a forecast includes; jobs further behind seldom start before the first ones."""
NEWCOMER: Final = 1 << 40
"""First number of jobs made up for the forecast."""
Device = tuple[str, str]
"""Node and device."""


def _chance(seed: int) -> Iterator[float]:
    """Yield pseudo-random numbers in [0, 1), determined by the seed.

    Source: Steele, Lea, Flood, "SplitMix", OOPSLA 2014.
    """
    state, mask = seed & (2**64 - 1), 2**64 - 1
    while True:
        state = (state + 0x9E3779B97F4A7C15) & mask
        mixed = ((state ^ state >> 30) * 0xBF58476D1CE4E5B9) & mask
        mixed = ((mixed ^ mixed >> 27) * 0x94D049BB133111EB) & mask
        yield (mixed ^ mixed >> 31) / 2**64


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrival:
    """Recent arrival of a job, used as a model of future ones."""

    gap_s: float
    """Seconds since the arrival before it."""
    shape: Shape
    learners: int
    length_s: float | None
    mean_s: float | None = None
    priority: int = 0
    queue: str = "default"
    restart_s: float = 0.0

    def request(self, number: int, now_s: float) -> GangRequest:
        """Return a request like this one."""
        one = GangRequest(
            number,
            self.shape,
            self.learners,
            now_s,
            self.length_s,
            usual_s=self.length_s,
            priority=self.priority,
            queue=self.queue,
            restart_s=self.restart_s,
        )
        one.mean_s = self.mean_s
        return one


@dataclass(frozen=True, slots=True)
class World:
    """State of a pool at one moment, which can be run forward any number of times."""

    capacity: tuple[NodeCapacity, ...]
    running: tuple[GangRequest, ...]
    waiting: tuple[GangRequest, ...]
    policy: Policy
    order: Order
    leaving: Mapping[Device, float] = field(default_factory=dict)
    """Device that counts as free but is still being released -> seconds until it is free at the latest."""
    stops_take_time: bool = False
    """True if preempted jobs hold their devices for as long as stopping takes."""

    @classmethod
    def of(cls, scheduler: Scheduler | SpotScheduler, now_s: float) -> World:
        """Return the state of this scheduler, independent of later changes to it."""
        running = []
        for ask in scheduler.running.values():
            one = copy(ask)
            one.executed_s = ask.executed(now_s)
            running.append(one)
        waiting = tuple(copy(ask) for ask in scheduler.queue_order())
        return cls(
            tuple(f.copy() for f in scheduler.capacity), tuple(running), waiting, scheduler.policy, scheduler.order
        )

    def near(self) -> World:
        """Return the state without waiting jobs far behind in the queue."""
        return replace(self, waiting=self.waiting[:SIMULATED_JOBS_MAX])

    def scheduler(self, now_s: float) -> Scheduler | SpotScheduler:
        """Return a scheduler in this state."""
        kind = SpotScheduler if any(ask.is_spot for ask in (*self.running, *self.waiting)) else Scheduler
        made = kind(FreeCapacity(free.copy() for free in self.capacity), self.policy, self.order)
        for ask in self.running:
            one = copy(ask)
            one.starts -= 1  # `adopt` counts it again
            made.add_running(one, ask.seats, now_s, ask.began_s)
        for ask in self.waiting:
            one = copy(ask)
            one.patience_s = -1.0  # its timer was not copied
            made.enqueue(one, now_s, ask.queued_s)
        return made


@dataclass(slots=True)
class _Run:
    """One forward run."""

    scheduler: Scheduler | SpotScheduler
    total_s: dict[int, float]
    """Total run time of each job by number; missing jobs never end."""
    starts: dict[int, float] = field(default_factory=dict)
    ends: list[tuple[float, int, int]] = field(default_factory=list)
    asks: dict[int, GangRequest] = field(default_factory=dict)
    leave_s: float = 0.0
    """Seconds that a spot job takes to release devices for an ordinary one."""
    stop: float = 0.0
    """Fraction of its stop and restart cost that an ordinary job takes to leave."""
    free_s: Mapping[Device, float] = field(default_factory=dict)
    """Time at which devices become free that are being released."""

    def note(self, ask: GangRequest, now_s: float) -> None:
        """Record that the job runs, and schedule its end."""
        self.asks[ask.number] = ask
        total_s = self.total_s.get(ask.number)
        if total_s is not None and ask.since_s is not None:
            end_s = max(ask.since_s, now_s) + max(total_s - ask.executed(now_s), 1e-3)
            heapq.heappush(self.ends, (end_s, ask.number, ask.starts))

    def begin(self, choice: PassResult, now_s: float) -> None:
        """Start the chosen jobs, once spot jobs and victims have left."""
        given: dict[int, float] = {}
        for stop in choice.stops:
            takes_s = self.leave_s if stop.victim.is_spot else self.stop * stop.victim.restart_s
            given[stop.winner.number] = max(given.get(stop.winner.number, 0.0), takes_s)
        for ask in choice.starts:
            at_s = now_s + given.get(ask.number, 0.0)
            if self.free_s:
                its = ((seat.node, device) for seat in ask.seats for device in seat.devices)
                at_s = max([at_s, *(self.free_s[one] for one in its if one in self.free_s)])
            if at_s > now_s and ask.since_s is not None:
                ask.since_s += at_s - now_s
            self.starts.setdefault(ask.number, at_s)
            self.note(ask, now_s)

    def next_s(self) -> float:
        """Return the next end of a job; infinity if there is none."""
        while self.ends and not self._holds(self.ends[0]):
            heapq.heappop(self.ends)
        return self.ends[0][0] if self.ends else inf

    def _holds(self, entry: tuple[float, int, int]) -> bool:
        ask = self.asks.get(entry[1])
        return ask is not None and ask.starts == entry[2] and not ask.waits

    def end(self, now_s: float) -> None:
        """Remove the jobs that have ended by now."""
        while self.next_s() <= now_s:
            _, number, _ = heapq.heappop(self.ends)
            self.scheduler.remove(self.asks.pop(number), now_s, has_ended=False)


def forward(
    world: World,
    now_s: float,
    total_s: Mapping[int, float],
    newcomers: Iterable[tuple[float, GangRequest, float]] = (),
    of: Iterable[int] | None = None,
    leave: float = 1.0,
) -> dict[int, float]:
    """Return the start times of waiting jobs (or of those in `of`), given total run times and arrivals.

    `newcomers`: (arrival time, request, run time), by time. `leave`: fraction of their notice that spot jobs take to
    leave. Jobs behind one that is missing in `total_s` are left out, as are jobs that do not start within
    SIMULATED_EVENTS_MAX events.
    """
    scheduler = world.scheduler(now_s)
    free_s = {device: now_s + leave * notice_s for device, notice_s in world.leaving.items()}
    run = _Run(
        scheduler,
        dict(total_s),
        leave_s=leave * world.policy.spot_notice_s,
        stop=leave if world.stops_take_time else 0.0,
        free_s=free_s,
    )
    factor = world.policy.ran_factor
    protected_s = max((ask.began_s + factor * ask.restart_s for ask in world.running), default=now_s)
    for ask in scheduler.running.values():
        run.note(ask, now_s)
    wanted = {ask.number for ask in world.waiting} if of is None else set(of)
    coming = iter(newcomers)
    newcomer = next(coming, None)
    at_s = now_s
    for _ in range(SIMULATED_EVENTS_MAX):
        choice = scheduler.decide(at_s)
        run.begin(choice, at_s)
        wanted.difference_update(ask.number for ask in choice.starts)
        if not wanted:
            break
        end_s = run.next_s()
        wake_s = inf if choice.wake_s is None else choice.wake_s
        if end_s == inf and not (wake_s < inf and choice.stops) and wake_s > protected_s:
            break  # no running job has a known end, so the passage of time alone changes nothing
        at_s = max(min(end_s, wake_s, inf if newcomer is None else newcomer[0]), at_s)
        run.end(at_s)
        while newcomer is not None and newcomer[0] <= at_s:
            _, ask, its_s = newcomer
            run.total_s[ask.number] = its_s
            scheduler.enqueue(ask, at_s)
            newcomer = next(coming, None)
    return {number: start_s for number, start_s in run.starts.items() if number < NEWCOMER}


@dataclass(frozen=True, slots=True)
class Outlook:
    """Start time of a job: with expected lengths, and in each draw, sorted; inf: not within the horizon."""

    now_s: float
    expected_s: float
    drawn_s: tuple[float, ...]

    def at(self, share: float) -> float:
        """Return the quantile of the drawn start times, interpolated linearly."""
        last = len(self.drawn_s) - 1
        place_ = min(max(share * (last + 2) - 1, 0.0), float(last))
        low = int(place_)
        high = min(low + 1, last)
        if self.drawn_s[low] == self.drawn_s[high]:
            return self.drawn_s[low]
        return self.drawn_s[low] + (place_ - low) * (self.drawn_s[high] - self.drawn_s[low])

    @property
    def likely_s(self) -> float:
        """Start time that the most draws are close to: within a minute, or a quarter of their wait.

        Each draw is smoothed into several waits around it, so that the accidents of few draws do not decide
        (`_blurred`).
        """
        waits = sorted(at_s - self.now_s for at_s in self.drawn_s if at_s < inf)
        if not waits:
            return self.expected_s
        edges: list[tuple[float, int]] = []
        for wait_s in _blurred(waits):
            slack_s = max(CLOSE_S, CLOSE * wait_s)
            edges += [(wait_s - slack_s, 1), (wait_s + slack_s, -1)]
        edges.sort(key=lambda edge: (edge[0], -edge[1]))
        median_s, close, best = waits[len(waits) // 2], 0, (0, -inf, 0.0)
        for (at_s, step), (next_s, _) in pairwise(edges):
            close += step
            middle_s = max((at_s + next_s) / 2, 0.0)
            best = max(best, (close, -abs(middle_s - median_s), middle_s))
        return self.now_s + best[2]

    def between(self, share: float, factor: float = 1.0) -> tuple[float, float]:
        """Return the central interval that holds this share of the draws, widened by a factor.

        It is widened in the logarithm of the wait plus one minute, since waits are wrong by factors.
        """
        middle_s, low_s, high_s = (
            self.at(part) - self.now_s + CLOSE_S for part in (0.5, 0.5 - share / 2, 0.5 + share / 2)
        )
        if factor != 1.0 and middle_s < inf:
            low_s = middle_s * (low_s / middle_s) ** factor
            high_s = inf if high_s == inf else middle_s * (high_s / middle_s) ** factor
        return max(low_s - CLOSE_S, 0.0) + self.now_s, max(high_s - CLOSE_S, 0.0) + self.now_s


def _blurred(waits: Sequence[float]) -> list[float]:
    """Return COPIES waits around each of these (sorted), log-normal with one minute added.

    Source: Silverman, "Density estimation", 1986, section 3.4; half the width of its rule, since two peaks are common.
    """
    logs = [log(wait_s + CLOSE_S) for wait_s in waits]
    count = len(logs)
    usual = pstdev(logs)
    quartiles = (logs[3 * count // 4] - logs[count // 4]) / (2 * NORMAL.inv_cdf(0.75))
    width = BLUR * (min(usual, quartiles) or usual) * count**-0.2
    factors = [exp(width * NORMAL.inv_cdf((i + 0.5) / COPIES)) for i in range(COPIES)]
    return [max((wait_s + CLOSE_S) * factor - CLOSE_S, 0.0) for wait_s in waits for factor in factors]


def outlooks(
    world: World,
    now_s: float,
    *,
    spread: float,
    spreads: Mapping[int, float] | None = None,
    recent: Sequence[Arrival] = (),
    draws: int = DRAWS,
    seed: int = 0,
    of: Iterable[int] | None = None,
    endless: Collection[int] = (),
) -> dict[int, Outlook]:
    """Return the start-time distribution of waiting jobs (or of those in `of`).

    `spread`: standard deviation of the logarithm of estimate errors, for jobs missing in `spreads`. `recent`: recent
    arrivals, oldest first; each draw repeats a stretch of them. The lengths of each job are drawn from as many equally
    likely strata as there are draws (Latin hypercube), so that few draws suffice. Spot jobs leave at once in half of
    the draws, and at the end of their notice in the others. `endless`: running jobs with unknown end, whatever was
    expected of them.
    """
    chance = _chance(seed)
    wanted = None if of is None else frozenset(of)
    guessed: list[tuple[GangRequest, float, float, list[float]]] = []
    for ask in (*world.running, *world.waiting):
        guess_s = ask.usual_s or ask.estimate_s
        if guess_s is not None and ask.number not in endless:
            doubt = spread if spreads is None else spreads.get(ask.number, spread)
            guessed.append((ask, guess_s, doubt, _strata(draws, chance)))
    medians = {ask.number: length_s(guess_s, ask.executed_s, doubt, 0.5) for ask, guess_s, doubt, _ in guessed}
    expected = forward(world, now_s, medians, of=wanted)
    found: dict[int, list[float]] = {number: [] for number in expected}
    together, own = _strata(draws, chance), sqrt(1 - SHARED**2)
    for draw in range(draws):
        wrong = SHARED * NORMAL.inv_cdf(together[draw])
        totals = {
            ask.number: length_s(guess_s * exp(doubt * wrong), ask.executed_s, doubt * own, shares[draw])
            for ask, guess_s, doubt, shares in guessed
        }
        coming = _newcomers(recent, now_s, spread, chance)
        starts = forward(world, now_s, totals, coming, of=wanted, leave=draw % 2)
        for number, times in found.items():
            times.append(starts.get(number, inf))
    return {number: Outlook(now_s, expected[number], tuple(sorted(times))) for number, times in found.items()}


def _strata(draws: int, chance: Iterator[float]) -> list[float]:
    """Return one random value from each of `draws` equal parts of [0, 1], shuffled; never 0 or 1."""
    order = sorted((next(chance), i) for i in range(draws))
    return [(i + min(max(next(chance), 1e-6), 1 - 1e-6)) / draws for _, i in order]


def _newcomers(
    recent: Sequence[Arrival], now_s: float, spread: float, chance: Iterator[float]
) -> Iterator[tuple[float, GangRequest, float]]:
    """Yield repeated arrivals, starting at a random one, with random lengths."""
    if len(recent) < 2:
        return
    first, at_s = int(next(chance) * len(recent)), now_s
    for n in range(SIMULATED_EVENTS_MAX):
        arrival = recent[(first + n) % len(recent)]
        at_s += arrival.gap_s * (next(chance) if n == 0 else 1.0)
        total_s = inf if arrival.length_s is None else length_s(arrival.length_s, 0.0, spread, next(chance))
        yield at_s, arrival.request(NEWCOMER + n, at_s), total_s


def world_of(pool: Pool, now_s: float, policy: Policy, order: Order | None = None) -> World:
    """Return the state of the pool after pending changes. `order`: with what it learned; None: nothing."""
    future = after_pending_changes(pool)
    scheduler, _ = scheduler_of(with_checkpoints(future), now_s, policy, order)
    leaving = {
        (member.seat.node, device): job.notice_s
        for job in pool.jobs.values()
        if job.goal is not Goal.RUN or (job.spec.spot and job.resize is not None)
        for member in job.members
        for device in member.seat.devices
    }
    shrinking = {
        (seat.node, device): pool.known.get(loan.job, NOTHING_KNOWN).restart_s
        for loan in future.leaving
        for seat in loan.seats
        for device in seat.devices
    }
    return replace(World.of(scheduler, now_s), leaving={**shrinking, **leaving}, stops_take_time=True)


def forecast(
    pool: Pool,
    now_s: float,
    policy: Policy,
    spread: float,
    factor: float = 1.0,
    draws: int = 20,
    order: Order | None = None,
) -> Mapping[str, tuple[float, float]]:
    """Return 80 % intervals for the start times of the first FORECAST_JOBS_MAX queued jobs.

    `spread`: standard deviation of the logarithm of estimate errors, for jobs of which nothing better is known.
    `factor`: widening of the intervals by past coverage (`width_factor`). `order`: with what it learned. Jobs behind
    one of unknown length are left out.
    """
    world = world_of(pool, now_s, policy, order).near()
    ids = {ask.number: ask.id for ask in world.waiting[:FORECAST_JOBS_MAX]}
    known = {ask.number: pool.known.get(ask.id) for ask in (*world.running, *world.waiting)}
    spreads = {number: one.spread for number, one in known.items() if one is not None and one.spread is not None}
    endless = {ask.number for ask in world.running if left_s(pool.known.get(ask.id)) == inf}
    found = outlooks(world, now_s, spread=spread, spreads=spreads, draws=draws, of=ids, endless=endless)
    spans = {ids[number]: one.between(0.8, factor) for number, one in found.items() if number in ids}
    return {job: span for job, span in spans.items() if span[1] < inf}
