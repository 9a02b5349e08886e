"""Print a digest of the scheduler's decisions, to compare two versions of the code.

`python -m tests.core.decisions --seeds 1000 --traces tests/traces > after.txt` prints one line for each random stream,
pool and replay. Run it in a checkout of each version and compare the two files with `diff`. Equal lines mean equal
decisions: starts, ends, seats, preemptions, migrations, changes of size, reservations and times of the next pass. The
last column is the digest of wait reasons, which a mere change of wording changes, too.
"""

from __future__ import annotations

import argparse
import hashlib
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from random import Random

from dlaas_server.core.placement.shape import Layout
from dlaas_server.core.planning.decisions import Plan
from dlaas_server.core.planning.plan import plan
from dlaas_server.core.planning.pruning import pruned
from dlaas_server.core.scheduling.ordering import ORDERS
from dlaas_server.core.scheduling.policy import Policy, Share
from dlaas_server.sim.replay.event_loop import replay
from dlaas_server.sim.replay.gc_pause import collector_at_rest
from dlaas_server.sim.replay.production import ByCore
from dlaas_server.sim.trace.formats import read_trace
from dlaas_server.sim.trace.trace import NodeSpec
from tests.core.builders import carried_out
from tests.core.streams import Drive, drive, stream
from tests.core.test_idle_devices import PoolRun
from tests.core.test_pruning import long_queue

QUEUES = {"a": Share(guaranteed=3), "b": Share(weight=2.0)}
RESTART_S = 60
NODES = {  # nodes, GPUs per node
    "fairshare_two_queues": (10, 4),
    "gang_8gpu_4x4": (2, 4),
    "philly_0e4a51": (6, 8),
    "philly_103959": (3, 8),
    "philly_11cb48": (24, 8),
    "tiresias_60": (4, 8),
}
"""Pools of traces; others are replayed on 16 nodes with 8 GPUs."""


def digest(decided: object) -> str:
    return hashlib.sha256(repr(decided).encode()).hexdigest()[:16]


def of_stream(seed: int, order: str) -> tuple[object, object]:
    """Drive a scheduler through a random stream, event by event."""
    chance, passes = Random(seed), []
    shares = {"a": Share(guaranteed=6), "b": Share(guaranteed=4)} if order == "fair" else {}
    jobs = stream(chance, 40, gap_s=chance.choice([50.0, 300.0, 1000.0]), spot=chance.choice([0.0, 0.4]))
    policy = Policy(order=order, age_s=chance.choice([20.0, 300.0]), shares=shares, preempts=chance.random() < 0.8)

    def look(_: Drive, now_s: float) -> object:
        def after(choice: object) -> None:
            starts = [(start.number, start.seats) for start in choice.starts]  # type: ignore[attr-defined]
            stops = [(one.victim.number, one.winner.number) for one in choice.stops]  # type: ignore[attr-defined]
            holder = choice.reserved and choice.reserved.number  # type: ignore[attr-defined]
            passes.append((now_s, starts, stops, choice.wake_s, holder, choice.reserved_s))  # type: ignore[attr-defined]

        return after

    done = drive(policy, jobs, look)  # type: ignore[arg-type]
    return (passes, sorted(done.first.items()), sorted(done.ended.items())), ""


def parts(found: Plan) -> tuple[object, object]:
    """Return what the plan decides, and its reasons."""
    decided = (
        found.starts,
        [(one.job, one.winner, one.notice_s) for one in found.preempts],
        [(one.job, one.seats, one.by, one.notice_s) for one in found.resizes],
        [(one.job, one.place, one.of) for one in found.waits],
        found.wake_s,
    )
    return decided, [getattr(one, "reason", None) or getattr(one, "why", None) for one in _with_text(found)]


def _with_text(found: Plan) -> Iterator[object]:
    yield from (*found.preempts, *found.resizes, *found.waits)


def of_live_pool(seed: int, order: str) -> tuple[object, object]:
    """Plan a pool in which jobs leave slowly, grow and shrink, turn by turn."""
    chance, plans = Random(seed), []
    nodes = [chance.choice([1, 2, 4]) for _ in range(3)]
    placement = chance.choice([*Layout])
    policy = Policy(order=order, placement=placement, shares=QUEUES, age_s=chance.choice([50.0, 3600.0]))
    share_of_spot = chance.choice([0.0, 0.3])

    class WithSpot(PoolRun):
        def arrive(self, number: int) -> None:
            super().arrive(number)
            name = f"job-{number}"
            if name in self.jobs and self.chance.random() < share_of_spot:
                self.jobs[name] = replace(self.jobs[name], spec=replace(self.jobs[name].spec, spot=True))

    WithSpot(chance, policy, lambda _, found: plans.append(parts(found)), nodes).run(25)
    return [decided for decided, _ in plans], [reasons for _, reasons in plans]


def of_long_queue(seed: int, order: str) -> tuple[object, object]:
    """Plan a pool with a long queue, prune the queue, and carry the plan out."""
    policy = Policy(order=order, preempts=seed % 3 > 0, shares=QUEUES)
    picture, now_s = long_queue(seed, policy)
    close = pruned(picture, now_s, policy)
    after = carried_out(picture, now_s, policy)
    found, then = parts(plan(picture, now_s, policy)), parts(plan(after, now_s + 600.0, policy))
    return (sorted(close.jobs), parts(plan(close, now_s, policy))[0], found[0], then[0]), (found[1], then[1])


KINDS = {"stream": of_stream, "live": of_live_pool, "queue": of_long_queue}


def of_seeds(first: int, seeds: int) -> Iterator[str]:
    for seed in range(first, first + seeds):
        for number, order in enumerate(ORDERS):
            for kind, decisions in KINDS.items():
                if (seed + number) % (3 if kind == "stream" else 9) == 0:  # in turn: all orders for each seed cost much
                    decided, reasons = decisions(seed, order)
                    yield f"{kind} {seed} {order} {digest(decided)} {digest(reasons)}"


def of_traces(folder: Path) -> Iterator[str]:
    """Replay each trace in each order, with estimates that are wrong by a typical factor of e, and with exact ones."""
    for path in sorted(folder.glob("*.csv")):
        if not path.name.startswith(
            ("fair", "ffdl", "gang", "muri_tr", "philly", "shockwave", "tetris_40", "tiresias_6")
        ):
            continue
        trace = read_trace(path)
        count, gpus = NODES.get(path.stem, (100, 4) if path.stem.startswith("ffdl") else (16, 8))
        node = NodeSpec(name="", gpus=gpus, cpus=32.0, mem_gb=256.0, disk_mbps=400.0, net_mbps=1000.0)
        nodes = tuple(replace(node, name=f"n{i:05}") for i in range(count))
        for order in ORDERS:
            for error in (1.0, 0.0) if len(trace.jobs) < 10_000 else (1.0,):
                rule = ByCore(nodes, Policy(order=order), restart_s=RESTART_S, estimate_error=error)
                with collector_at_rest():
                    done = replay(trace, count * gpus, rule, restart_s=RESTART_S).done
                decided = [(one.job.id, one.start_s, one.end_s, one.preemptions) for one in done]
                yield f"trace {path.stem} {order} {error} {digest(decided)}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=100, help="number of seeds")
    parser.add_argument("--first", type=int, default=0, help="first seed")
    parser.add_argument("--traces", type=Path, help="folder with traces to replay, too")
    options = parser.parse_args()
    for line in of_seeds(options.first, options.seeds):
        print(line, flush=True)
    if options.traces is not None:
        for line in of_traces(options.traces):
            print(line, flush=True)


if __name__ == "__main__":
    main()
