"""Report of a replay: a table, JSON, and a CSV file with a line per job."""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from dlaas_server.sim.replay.event_loop import Replay

__all__ = ["Figures", "as_json", "compared", "figures", "share_of", "table", "write_jobs"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """Figures of a replay. Times in seconds; shares are between 0 and 1."""

    jobs: int
    jct_avg_s: float
    jct_p50_s: float
    jct_p95_s: float
    jct_p99_s: float
    makespan_s: float
    """From time 0 of the trace to the last end."""
    queue_avg_s: float
    """Completion time minus run time: mean cost of waiting, preemption and restarts."""
    start_avg_s: float
    """From submission to first start, on average."""
    queued_avg: float
    """Jobs waiting, on average over the makespan."""
    queued_max: int
    preemptions: int
    utilisation: float
    """GPU-seconds in use / GPU-seconds of the pool over the makespan."""
    fragmentation: float
    """Share of the makespan in which enough GPUs were free for the first waiting job, but not where it needed them."""
    fragmentation_free_gpus: float
    """Free GPUs in that time, averaged over the makespan."""


def share_of(values: Sequence[float], share: float) -> float:
    """Return the quantile of sorted values: element floor(share x count), as Tiresias counts."""
    return values[min(len(values) - 1, int(len(values) * share))]


def figures(result: Replay) -> Figures:
    """Return the figures of a replay."""
    jct_s = sorted(done.jct_s for done in result.done)
    count, span_s = len(jct_s), result.end_s
    worked_s = sum(done.job.duration_s or 0 for done in result.done)
    return Figures(
        jobs=count,
        jct_avg_s=sum(jct_s) / count,
        jct_p50_s=share_of(jct_s, 0.50),
        jct_p95_s=share_of(jct_s, 0.95),
        jct_p99_s=share_of(jct_s, 0.99),
        makespan_s=span_s,
        queue_avg_s=(sum(jct_s) - worked_s) / count,
        start_avg_s=sum(done.start_s - done.job.submit_s for done in result.done) / count,
        queued_avg=result.queued_s / span_s,
        queued_max=result.queued_max,
        preemptions=sum(done.preemptions for done in result.done),
        utilisation=result.busy_gpu_s / (result.gpus * span_s) if result.gpus else 0.0,
        fragmentation=result.blocked_s / span_s,
        fragmentation_free_gpus=result.blocked_free_gpu_s / span_s,
    )


def _rows(found: Figures) -> list[tuple[str, str]]:
    return [
        ("jobs", f"{found.jobs:,}"),
        ("average JCT", f"{found.jct_avg_s:,.1f} s"),
        ("p50 JCT", f"{found.jct_p50_s:,.1f} s"),
        ("p95 JCT", f"{found.jct_p95_s:,.1f} s"),
        ("p99 JCT", f"{found.jct_p99_s:,.1f} s"),
        ("makespan", f"{found.makespan_s:,.1f} s"),
        ("queueing, average", f"{found.queue_avg_s:,.1f} s"),
        ("first start after", f"{found.start_avg_s:,.1f} s"),
        ("jobs waiting", f"{found.queued_avg:,.2f} on average, {found.queued_max:,} at most"),
        ("preemptions", f"{found.preemptions:,}"),
        ("utilisation", f"{found.utilisation:.2%}"),
        ("fragmentation", f"{found.fragmentation:.2%} of the time"),
    ]


def table(name: str, result: Replay) -> str:
    """Return the table that the command prints."""
    head = f"{result.trace.name}, {name}, {result.gpus} GPUs"
    return "\n".join([head, *(f"  {label:<20}{value}" for label, value in _rows(figures(result)))])


def compared(results: Mapping[str, Replay]) -> str:
    """Return the table of several policies, side by side."""
    columns = {name: _rows(figures(result)) for name, result in results.items()}
    widths = {name: max(len(name), *(len(value) for _, value in rows)) for name, rows in columns.items()}
    trace = next(iter(results.values())).trace.name
    gpus = sorted({result.gpus for result in results.values()})
    lines = [f"{trace}, {' or '.join(map(str, gpus))} GPUs"]
    lines.append("  ".join([" " * 20, *(name.rjust(width) for name, width in widths.items())]))
    for place, (label, _) in enumerate(next(iter(columns.values()))):
        cells = [columns[name][place][1].rjust(width) for name, width in widths.items()]
        lines.append("  ".join([f"  {label:<18}", *cells]))
    return "\n".join(lines)


def as_json(name: str, seed: int, result: Replay) -> dict[str, object]:
    """Return the same as JSON."""
    head = {
        "trace": result.trace.name,
        "format": result.trace.format,
        "policy": name,
        "gpus": result.gpus,
        "seed": seed,
    }
    return head | asdict(figures(result))


def write_jobs(path: Path, result: Replay) -> None:
    """Write one line per job, in the order of the trace."""
    with path.open("w", newline="", encoding="utf-8") as file:
        lines = csv.writer(file, lineterminator="\n")
        lines.writerow(["job_id", "submit_s", "start_s", "end_s", "jct_s", "queue_s", "preemptions"])
        for done in result.done:
            queue_s = done.jct_s - (done.job.duration_s or 0)
            lines.writerow(
                [done.job.id, done.job.submit_s, done.start_s, done.end_s, done.jct_s, queue_s, done.preemptions]
            )
