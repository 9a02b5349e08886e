"""Cost of one decision by waiting jobs and pool size: `python -m tests.bench.decisions OUT.png`."""

from __future__ import annotations

import argparse
import heapq
import random
import time
import tracemalloc
from dataclasses import dataclass, replace
from pathlib import Path

from dlaas_server.core.lifecycle.plan_outcomes import started
from dlaas_server.core.model.job import Job
from dlaas_server.core.model.pool import Known, Pool
from dlaas_server.core.model.resources import Shape
from dlaas_server.core.placement.gang_placement import Layout, free_of, place
from dlaas_server.core.planning.plan import plan
from dlaas_server.core.planning.pruning import pruned
from dlaas_server.core.scheduling.gang_request import GangRequest
from dlaas_server.core.scheduling.scheduler import Policy, Scheduler
from dlaas_server.sim.replay.production import nodes_of
from dlaas_server.sim.trace.trace import NodeSpec
from jupyter_dlaas.wire.protocol import JobSpec

__all__ = ["Cost", "cost", "memory_mb", "planned_s", "sweep"]

RESTART_S = 60.0
NODE = Shape(8, 0.0, 0, None, Layout.PACK)
QUEUES = (1_000, 3_000, 10_000, 30_000, 100_000)
POOLS = (104, 304, 1_000, 3_000, 10_000)
ORDERS = ("fifo-skip", "shortest", "las")


@dataclass(frozen=True, slots=True)
class Cost:
    """Of ends and submissions in turn; in seconds of this thread."""

    events_s: tuple[float, ...]
    """Sorted."""
    first_s: float
    """The first pass, over an empty pool."""
    grown_s: float
    """The pass when a tenth of the pool comes back."""
    grown_starts: int
    waiting: int

    def at(self, share: float) -> float:
        """Return the cost that this share of the events does not exceed."""
        return self.events_s[min(int(len(self.events_s) * share), len(self.events_s) - 1)]

    @property
    def per_s(self) -> float:
        """Events per second."""
        return len(self.events_s) / sum(self.events_s)


def _ask(number: int, now_s: float, chance: random.Random) -> GangRequest:
    gpus = chance.choice([1, 1, 1, 1, 2, 2, 4, 8, 8, 16, 32, 64])
    length_s = chance.lognormvariate(8, 2)
    shape = Shape(min(gpus, 8), 0.0, 0, None, Layout.PACK)
    return GangRequest(number, shape, max(1, gpus // 8), now_s, length_s, usual_s=length_s, restart_s=RESTART_S)


def _pool(gpus: int, order: str) -> Scheduler:
    nodes = nodes_of(NodeSpec(name=f"n{i:05}", gpus=8) for i in range(gpus // 8))
    return Scheduler(free_of(nodes, ()), Policy(order=order))


def cost(order: str, gpus: int, queued: int, events: int, seed: int = 0) -> Cost:
    """Alternate ends and submissions, with about `queued` jobs waiting. Then return the missing tenth of the pool."""
    chance, scheduler, now_s = random.Random(seed), _pool(gpus, order), 0.0
    away = [place(scheduler.capacity, NODE, 1) or () for _ in range(gpus // 80)]
    count = queued + gpus * 3 // 10
    for number in range(count):
        scheduler.enqueue(_ask(number, now_s, chance), now_s)
    begin = time.thread_time()
    started = scheduler.decide(now_s).starts
    first_s = time.thread_time() - begin
    ends = [(one.estimate_s or 0.0, one.number, one) for one in started]
    heapq.heapify(ends)
    took_s = []
    for event in range(events):
        leaving = None
        while event % 2 and (leaving is None or leaving.since_s is None):
            end_s, _, leaving = heapq.heappop(ends)
            now_s = max(now_s, end_s)
        arriving = _ask(count + event, now_s, chance)
        begin = time.thread_time()
        if leaving is not None:
            scheduler.remove(leaving, now_s)
        else:
            scheduler.enqueue(arriving, now_s)
        choice = scheduler.decide(now_s)
        took_s.append(time.thread_time() - begin)
        for one in choice.starts:
            heapq.heappush(ends, (now_s + (one.estimate_s or 0.0) - one.executed_s, one.number, one))
    begin = time.thread_time()
    for seats in away:
        scheduler.capacity.give(NODE, seats)
    scheduler.capacity_changed()
    grown = scheduler.decide(now_s).starts
    grown_s = time.thread_time() - begin
    return Cost(tuple(sorted(took_s)), first_s, grown_s, len(grown), scheduler.waiting_count)


def memory_mb(queued: int, order: str = "shortest") -> float:
    """Return the memory in MB that this many waiting jobs take in the scheduler."""
    chance, scheduler = random.Random(0), _pool(80, order)
    tracemalloc.start()
    before, _ = tracemalloc.get_traced_memory()
    for number in range(queued):
        scheduler.enqueue(_ask(number, 0.0, chance), 0.0)
    scheduler.decide(0.0)
    after, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return (after - before) / 1e6


def planned_s(queued: int, *, alike: bool, gpus: int = 64, rounds: int = 5) -> tuple[list[float], list[float]]:
    """Seconds of this thread that a plan of the engine takes while so many wait for a full pool: looking at who could
    start, and looking at all. In turn; both decide the same.

    `alike`: jobs that ask for the same are expected to run equally long; else no two are.
    """
    chance, nodes = random.Random(0), nodes_of(NodeSpec(name=f"n{i}", gpus=8) for i in range(gpus // 8))
    jobs = [_job(number, 0.0, chance) for number in range(1, gpus + queued + 1)]
    lengths = {job.id: 60.0 * job.wish if alike else chance.lognormvariate(7.0, 1.5) for job in jobs}
    known = {name: Known(length_s=length_s, usual_s=length_s) for name, length_s in lengths.items()}
    pool = Pool(nodes=nodes, jobs={job.id: job for job in jobs}, known=known)
    placed = {start.job: started(pool.jobs[start.job], start.seats, 1.0)[0] for start in plan(pool, 1.0).starts}
    pool = replace(pool, jobs={**pool.jobs, **placed})
    some: list[float] = []
    whole: list[float] = []
    policy = Policy()
    for _ in range(rounds):
        decided = []
        for took_s in (some, whole):
            begin = time.thread_time()
            seen = pruned(pool, 2.0, policy) if took_s is some else pool
            decided.append(plan(seen, 2.0, policy))
            took_s.append(time.thread_time() - begin)
        assert decided[0].starts == decided[1].starts, "who is left out changes nothing"
    return some, whole


def _job(number: int, now_s: float, chance: random.Random) -> Job:
    gpus, learners = chance.choice([(1, 1), (1, 1), (1, 2), (2, 1), (1, 4), (8, 1)])
    spec = JobSpec(name="job", learners_min=learners, learners_max=learners, gpus_per_learner=gpus)
    return Job(id=f"job-{number}", number=number, owner="ana", spec=spec, submitted_s=now_s, wish=learners)


def sweep(path: Path, events: int = 2_000) -> None:
    """Draw the cost of a decision against the length of the queue and the size of the pool; print what is drawn."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 4.5), layout="constrained")
    FigureCanvasAgg(figure)
    by_queue, by_pool = figure.subplots(1, 2, sharey=True)
    for order in ORDERS:
        for axes, sizes, of in ((by_queue, QUEUES, "waiting"), (by_pool, POOLS, "GPUs")):
            found = [cost(order, *((10_000, n) if of == "waiting" else (n, 10_000)), events) for n in sizes]
            for share, style in ((0.5, "-"), (0.99, ":")):
                label = f"{order}, {'median' if share == 0.5 else 'p99'}"
                axes.plot(sizes, [1e6 * one.at(share) for one in found], style, marker=".", label=label)
            for size, one in zip(sizes, found, strict=True):
                print(
                    f"{order:10} {size:7,} {of:8} median {1e6 * one.at(0.5):6.0f} µs  p99 {1e6 * one.at(0.99):6.0f} µs"
                )
    by_queue.set(xscale="log", yscale="log", xlabel="jobs waiting, 10,000 GPUs", ylabel="µs per decision")
    by_pool.set(xscale="log", xlabel="GPUs, 10,000 jobs waiting")
    by_pool.axhline(1000, color="grey", linewidth=0.5)
    by_queue.axhline(1000, color="grey", linewidth=0.5)
    by_queue.legend(fontsize="small")
    figure.savefig(path, dpi=110)


if __name__ == "__main__":
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("picture", type=Path, metavar="OUT.png")
    sweep(options.parse_args().picture)
