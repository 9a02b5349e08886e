"""Pace of running jobs, and the time left by it: for programs that count steps, epochs, or only a fraction.

The pace is measured over whole epochs where they are long, so that it includes the evaluation after each. A job that
has not reported for longer than usual evaluates, or is stuck: its silence is assumed to last as long again.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Final

from dlaas_server.core.model.job import Job
from jupyter_dlaas.wire.protocol import Progress

__all__ = ["SPREAD", "Paces", "Timing", "timing", "with_time_left"]

SPREAD: Final = 0.15
"""Half width of the range of the time left, relative."""
WINDOW_S: Final = 60.0
"""Seconds over which the pace is measured; at least the last two increases."""
SPACING_S: Final = 1.0
"""Minimum distance of two marks: learners report up to five times a second."""
MIN_MARKS: Final = 3
EPOCH_STARTS: Final = 3
"""Number of epoch starts that are kept: two whole epochs."""
RATE_WINDOW_S: Final = 10.0
"""Seconds over which learners measure their steps per second."""
AT_START: Final = 0.1
"""Fraction of an epoch within which its first report counts as its start."""
NOT_RUNNING: Final = (None, 0)

Run = tuple[float | None, int]
"""Time at which the job got its seats, and its number of learners: each change has a pace of its own."""


@dataclass(frozen=True, slots=True)
class Mark:
    """Report with which the completed fraction grew."""

    at_s: float
    fraction: float
    gap_s: float = 0.0
    """Seconds since the increase before; of several increases in a second, the longest."""


def _total_s(marks: list[Mark]) -> float | None:
    """Return the run time of the whole job at the pace between the first and the last of these marks."""
    grown = marks[-1].fraction - marks[0].fraction if marks else 0.0
    lasted_s = marks[-1].at_s - marks[0].at_s if marks else 0.0
    return lasted_s / grown if grown > 0 and lasted_s > 0 else None


@dataclass(slots=True)
class _Track:
    run: Run
    marks: list[Mark] = field(default_factory=list)
    epoch: int = 0
    epoch_starts: list[Mark] = field(default_factory=list)
    gap_s: float = 0.0
    """Longest time between two increases within the window."""
    former_total_s: float | None = None
    """As measured before the last change of seats or size, until this one's pace is known."""

    def add(self, mark: Mark, progress: Progress) -> None:
        marks, epochs = self.marks, progress.epochs
        is_first = not marks
        if len(marks) > 1 and mark.at_s - marks[-2].at_s < SPACING_S:
            mark = replace(mark, gap_s=max(mark.gap_s, marks.pop().gap_s))
        marks.append(mark)
        while len(marks) > MIN_MARKS and mark.at_s - marks[0].at_s > WINDOW_S:
            del marks[0]
        self.gap_s = max(mark.gap_s for mark in marks)
        starts_now = is_first and epochs is not None and mark.fraction * epochs - progress.epoch <= AT_START
        if starts_now or (not is_first and progress.epoch > self.epoch):
            self.epoch_starts = [*self.epoch_starts, mark][-EPOCH_STARTS:]
        self.epoch = progress.epoch

    @property
    def measured(self) -> list[Mark]:
        """Marks between which the pace is measured: whole epochs if these last longer than the window."""
        by_epoch, marks = self.epoch_starts, self.marks
        is_longer = bool(by_epoch) and by_epoch[-1].at_s - by_epoch[0].at_s > marks[-1].at_s - marks[0].at_s
        return by_epoch if is_longer else marks


@dataclass(frozen=True, slots=True)
class Timing:
    """Measured run time of a job whose completed fraction is known."""

    executed_s: float | None
    """None: everything is done, and the pace is unknown."""
    left_s: float
    silent_s: float = 0.0
    """Seconds by which the next report is overdue."""


def completed(progress: Progress) -> float | None:
    """Return the completed fraction: by the steps where their total is known."""
    return min(progress.step / progress.steps, 1.0) if progress.steps else progress.fraction


def timing(progress: Progress, track: _Track | None = None, since_s: float = 0.0) -> Timing | None:
    """Return the timing of a job; None if the pace is unknown. `since_s`: seconds since the fraction last grew."""
    fraction = completed(progress)
    if fraction is None:
        return None
    total_s = _best_total_s(progress, fraction, track)
    gap_s = 0.0 if track is None else track.gap_s
    silent_s = max(since_s - gap_s, 0.0)
    if fraction >= 1.0:
        return Timing(None if total_s is None else total_s + since_s, silent_s, silent_s)
    if total_s is None:
        return None
    left_s = max((1 - fraction) * total_s - min(since_s, gap_s), 0.0)
    return Timing(fraction * total_s + since_s, left_s + silent_s, silent_s)


def _best_total_s(progress: Progress, fraction: float, track: _Track | None) -> float | None:
    """Return the run time of the whole job at the best measured pace."""
    marks = [] if track is None else track.measured
    total_s, per_s = _total_s(marks), progress.steps_per_s
    by_rate_s = progress.steps / per_s if progress.steps and per_s else None
    if total_s is None or (by_rate_s is not None and marks[-1].at_s - marks[0].at_s < RATE_WINDOW_S):
        total_s = by_rate_s or total_s or (None if track is None else track.former_total_s)
    if total_s is None and per_s and fraction and progress.step:
        return progress.step / fraction / per_s
    return total_s


def with_time_left(progress: Progress, found: Timing | None = None) -> Progress:
    """Return the report with a range for the time left, by this timing; None: by the report alone, if it has none."""
    found = found or (timing(progress) if progress.left_s_high is None else None)
    if found is None:
        return progress
    return replace(progress, left_s_low=found.left_s * (1 - SPREAD), left_s_high=found.left_s * (1 + SPREAD))


class Paces:
    """Increases of the fraction that each job reported since it got its seats."""

    def __init__(self) -> None:
        self._tracks: dict[str, _Track] = {}

    def report(self, name: str, progress: Progress, job: Job | None = None) -> Progress:
        """Record a report. Return it with a range for the time left, if the pace is known."""
        fraction, at_s = completed(progress), progress.at_s
        if fraction is None:
            return progress
        track, run = self._tracks.get(name), _run_of(job)
        if track is None or fraction < track.marks[-1].fraction or at_s < track.marks[-1].at_s:
            track = self._tracks[name] = _Track(run)  # started again, or another loop
            track.add(Mark(at_s, fraction), progress)
        elif track.run != run:
            former_s = _total_s(track.measured) or track.former_total_s
            track = self._tracks[name] = _Track(run, former_total_s=former_s)
            track.add(Mark(at_s, fraction), progress)
        elif fraction > track.marks[-1].fraction:
            track.add(Mark(at_s, fraction, at_s - track.marks[-1].at_s), progress)
        found = timing(progress, track, at_s - track.marks[-1].at_s)
        return progress if found is None else with_time_left(progress, found)

    def timing(self, job: Job, progress: Progress, now_s: float) -> Timing | None:
        """Return the timing of a job as of now; None if its pace is unknown."""
        track = self._tracks.get(job.id)
        runs = track is not None and bool(job.gang) and track.run == _run_of(job)
        since_s = max(now_s - track.marks[-1].at_s, 0.0) if runs and track is not None else 0.0
        return timing(progress, track, since_s)

    def as_of(self, job: Job, progress: Progress, now_s: float) -> Progress:
        """Return the report with the time left as of now, if its pace is known."""
        found = self.timing(job, progress, now_s)
        return progress if found is None else with_time_left(progress, found)

    def forget(self, job: str) -> None:
        """Drop the data of a deleted job."""
        self._tracks.pop(job, None)


def _run_of(job: Job | None) -> Run:
    return NOT_RUNNING if job is None else (job.seated_s, len(job.gang))
