"""Plots of one or several replays: GPUs in use, waiting jobs, and the share of jobs done within a time."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Final

from dlaas_server.sim.replay.event_loop import Replay
from jupyter_dlaas.wire.codec import DlaasError

__all__ = ["NoPictures", "plot"]

UNITS: Final = (("days", 86_400), ("hours", 3600), ("minutes", 60), ("seconds", 1))


class NoPictures(DlaasError):
    """Error: matplotlib is not installed."""

    code = "no_pictures"
    http_status = 400


def plot(path: Path, results: Mapping[str, Replay]) -> None:
    """Write one picture of these replays, by name of the policy. Raises NoPictures without matplotlib."""
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError:
        raise NoPictures("pictures need matplotlib: pip install matplotlib") from None
    figure = Figure(figsize=(9, 9), layout="constrained")
    FigureCanvasAgg(figure)
    used, waiting, done = figure.subplots(3, 1)
    span_s = max(result.end_s for result in results.values())
    unit, unit_s = next((entry for entry in UNITS if span_s >= 3 * entry[1]), UNITS[-1])
    for name, result in results.items():
        times = [at_s / unit_s for at_s, _, _ in result.timeline]
        used.step(times, [busy for _, busy, _ in result.timeline], where="post", label=name, linewidth=0.8)
        waiting.step(times, [queued for _, _, queued in result.timeline], where="post", label=name, linewidth=0.8)
        jct_s = sorted(job.jct_s for job in result.done)
        done.step(jct_s, [(i + 1) / len(jct_s) for i in range(len(jct_s))], where="post", label=name)
    used.set(xlabel=unit, ylabel="GPUs in use", ylim=(0, None))
    waiting.set(xlabel=unit, ylabel="jobs waiting", ylim=(0, None))
    done.set(xlabel="seconds from submission to end", ylabel="share of jobs", xscale="log", ylim=(0, 1))
    done.legend(loc="lower right")
    figure.suptitle(", ".join(sorted({result.trace.name for result in results.values()})))
    try:
        figure.savefig(path, dpi=110)
    except ValueError as error:  # a suffix that it cannot write
        raise NoPictures(f"{path}: {error}") from None
