"""Pollux' workloads from end to end: jobs with measured speed profiles, under a rule by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from dlaas_server.sim.pollux.baselines import Optimus, Tiresias
from dlaas_server.sim.pollux.jobs import Cluster, PolluxJob, PolluxRule
from dlaas_server.sim.pollux.production import Elastic
from dlaas_server.sim.pollux.profiles import APPLICATIONS, profile_of
from dlaas_server.sim.replay.event_loop import Done, Replay, Unrunnable
from dlaas_server.sim.trace.trace import NodeSpec, Pollux, Trace

__all__ = ["RULES", "Played", "play"]

RULES: Final[Mapping[str, Callable[[int, int], PolluxRule]]] = {
    "elastic": Elastic,
    "pollux:optimus": Optimus,
    "pollux:tiresias": Tiresias,
}
"""Name -> rule for a number of nodes with a number of GPUs each."""


@dataclass(frozen=True, slots=True)
class Played:
    """Result of a workload."""

    result: Replay
    decided_s: Sequence[float]
    """CPU seconds of each decision."""


def play(trace: Trace, nodes: Sequence[NodeSpec], name: str) -> Played:
    """Run a workload under the rule of this name. Raises Unrunnable if pool or jobs have no profile."""
    widths = {node.gpus for node in nodes}
    if len(widths) != 1 or not 1 <= max(widths) <= 4:
        raise Unrunnable("Pollux' profiles hold for nodes with the same 1 to 4 GPUs, as in --pool 16x4")
    rule = RULES[name](len(nodes), max(widths))
    jobs = []
    for index, job in enumerate(trace.jobs):
        if not isinstance(job.work, Pollux) or job.work.application not in APPLICATIONS:
            raise Unrunnable(f"job {job.id} is none of {', '.join(APPLICATIONS)}: there is no profile of it")
        jobs.append(PolluxJob(index, job, profile_of(job.work.application), rule.batch(job)))
    cluster = Cluster(len(nodes), max(widths), jobs, rule)
    cluster.play()
    return Played(_result(trace, cluster), cluster.decided_s)


def _result(trace: Trace, cluster: Cluster) -> Replay:
    done = []
    for job in cluster.jobs:
        assert job.start_s is not None
        assert job.end_s is not None
        ran = replace(job.trace, duration_s=job.held_s)
        done.append(Done(job=ran, start_s=job.start_s, end_s=job.end_s, preemptions=job.stops))
    # A step of the timeline holds until the next one.
    steps = [(b[0] - a[0], a[1], a[2]) for a, b in zip(cluster.timeline, cluster.timeline[1:], strict=False)]
    return Replay(
        trace=trace,
        gpus=cluster.nodes * cluster.gpus,
        done=tuple(done),
        events=len(cluster.timeline),
        begin_s=trace.jobs[0].submit_s,
        end_s=max(one.end_s for one in done),
        busy_gpu_s=sum(job.held_gpu_s for job in cluster.jobs),
        queued_s=sum(span_s * waiting for span_s, _, waiting in steps),
        queued_max=max(waiting for _, _, waiting in cluster.timeline),
        blocked_s=0.0,
        blocked_free_gpu_s=0.0,
        timeline=tuple(cluster.timeline),
    )
