"""Pollux' workloads: the job model against the authors' results, job by job."""

from __future__ import annotations

import csv
from functools import cache
from pathlib import Path

import pytest

from dlaas_server.sim.pollux.workload import Played, play
from dlaas_server.sim.replay.event_loop import Unrunnable
from dlaas_server.sim.trace.formats import read_trace
from dlaas_server.sim.trace.trace import NodeSpec

TRACES = Path(__file__).parent.parent / "traces"
POOL = tuple(NodeSpec(name=f"n{i:02}", gpus=4) for i in range(16))


@cache
def published() -> dict[tuple[str, int], dict[str, float]]:
    found: dict[tuple[str, int], dict[str, float]] = {}
    with (TRACES / "reference" / "pollux_published_per_job.csv").open(newline="") as file:
        for row in csv.DictReader(file):
            found.setdefault((row["run"], int(row["workload"])), {})[row["job_id"]] = float(row["jct_s"])
    return found


def played(workload: int, rule: str) -> Played:
    return play(read_trace(TRACES / "pollux_workloads_1.0.csv", workload), POOL, rule)


@pytest.mark.parametrize(
    ("rule", "workload"),
    [(rule, number) for rule in ("tiresias", "optimus") for number in range(1, 9)],
)
def test_every_job_ends_as_in_the_authors_simulator(rule: str, workload: int) -> None:
    found = {one.job.id: one.jct_s for one in played(workload, f"pollux:{rule}").result.done}

    assert found == published()[f"{rule}-1.0", workload]


def test_sizes_by_the_production_core_end_jobs_earlier_than_either() -> None:
    found = played(6, "elastic").result.done
    mean_s = sum(one.jct_s for one in found) / len(found)

    assert all(mean_s < sum(jct) / len(jct) for run, jct in six().items() if run != "pollux-1.0")


def six() -> dict[str, list[float]]:
    return {run: list(jobs.values()) for (run, workload), jobs in published().items() if workload == 6}


def test_pool_without_matching_profiles_is_refused() -> None:
    with pytest.raises(Unrunnable, match="1 to 4 GPUs"):
        play(read_trace(TRACES / "pollux_workloads_1.0.csv", 1), [NodeSpec(name="n", gpus=8)], "pollux:tiresias")
