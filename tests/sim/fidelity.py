"""Agreement of (rule, trace) pairs with Tiresias' own simulator: `python -m tests.sim.fidelity` prints them."""

from __future__ import annotations

import csv
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from dlaas_server.sim.replay.event_loop import Replay, replay
from dlaas_server.sim.rules.names import COUNTING
from dlaas_server.sim.trace.formats import read_trace
from dlaas_server.sim.trace.trace import Trace

__all__ = ["MEASURED", "PER_JOB", "Measured", "differing", "pair_id", "replayed", "trace_of"]

TRACES = Path(__file__).parent.parent / "traces"
REFERENCE = TRACES / "reference"
Pair = tuple[str, str]  # trace, rule
Times = tuple[int, int]  # start and end, in seconds


@dataclass(frozen=True, slots=True)
class Measured:
    """Figures that the original printed about a run."""

    trace: str
    rule: str
    gpus: int
    avg_jct_s: float
    p50_s: float
    p95_s: float
    p99_s: float
    makespan_s: float
    preemptions: int
    utilisation: float


def _measured() -> dict[Pair, Measured]:
    found: dict[Pair, Measured] = {}
    with (REFERENCE / "tiresias_measured.csv").open(newline="") as file:
        for row in csv.DictReader(file):
            found[row["trace"], row["policy_flag"]] = Measured(
                trace=row["trace"],
                rule=row["policy_flag"],
                gpus=int(row["gpus"]),
                avg_jct_s=float(row["avg_jct_s"]),
                p50_s=float(row["p50_s"]),
                p95_s=float(row["p95_s"]),
                p99_s=float(row["p99_s"]),
                makespan_s=float(row["makespan_s"]),
                preemptions=int(row["preemptions"]),
                utilisation=float(row["utilization"]),
            )
    return found


def _per_job() -> dict[Pair, dict[str, Times]]:
    found: dict[Pair, dict[str, Times]] = {}
    with (REFERENCE / "tiresias_measured_per_job.csv").open(newline="") as file:
        for row in csv.DictReader(file):
            times = int(row["start_s"]), int(row["end_s"])
            found.setdefault((row["trace"], row["policy_flag"]), {})[row["job_id"]] = times
    return found


MEASURED: Mapping[Pair, Measured] = _measured()
PER_JOB: Mapping[Pair, Mapping[str, Times]] = _per_job()


def pair_id(pair: Pair) -> str:
    return "-".join(pair)


@cache
def trace_of(name: str) -> Trace:
    return read_trace(TRACES / f"{name}.csv")


@cache
def replayed(pair: Pair) -> Replay:
    """Replay the trace under our version of the rule, on as many GPUs as the original had."""
    gpus = MEASURED[pair].gpus
    return replay(trace_of(pair[0]), gpus, COUNTING[f"tiresias:{pair[1]}"](gpus))


def differing(pair: Pair) -> dict[str, tuple[Times, tuple[float, float]]]:
    """Jobs whose start or end is not the original's: (theirs, ours)."""
    ours = {done.job.id: (done.start_s, done.end_s) for done in replayed(pair).done}
    theirs = PER_JOB[pair]
    assert ours.keys() == theirs.keys()
    return {job: (times, ours[job]) for job, times in theirs.items() if ours[job] != (times[0], times[1])}


def main() -> int:
    exact = 0
    for pair, times in PER_JOB.items():
        wrong = len(differing(pair))
        exact += not wrong
        print(f"{pair[0]:<16}{pair[1]:<18}{'exact' if not wrong else f'{wrong} differ':<12}{len(times)} jobs")
    print(f"{exact} of {len(PER_JOB)} (rule, trace) pairs are exact: start and end of every job")
    return 0 if exact == len(PER_JOB) else 1


if __name__ == "__main__":
    sys.exit(main())
