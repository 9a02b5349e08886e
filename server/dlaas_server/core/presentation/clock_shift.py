"""Clock shift: conversion of pool times, from a steady clock, to the time of day, which may have been set since."""

from __future__ import annotations

from dataclasses import replace

from jupyter_dlaas.wire.protocol import JobView, Progress

__all__ = ["shifted_progress", "shifted_view"]


def shifted_view(view: JobView, drift_s: float) -> JobView:
    """Return the view with its times shifted to the time of day, which is ahead by `drift_s`."""
    if not drift_s:
        return view
    return replace(
        view,
        submitted_s=view.submitted_s + drift_s,
        started_s=None if view.started_s is None else view.started_s + drift_s,
        ended_s=None if view.ended_s is None else view.ended_s + drift_s,
        resizes=tuple(replace(resize, at_s=resize.at_s + drift_s) for resize in view.resizes),
        progress=None if view.progress is None else shifted_progress(view.progress, drift_s),
        waiting_for=tuple(
            one if one.since_s is None else replace(one, since_s=one.since_s + drift_s) for one in view.waiting_for
        ),
    )


def shifted_progress(progress: Progress, drift_s: float) -> Progress:
    """Return the progress with its time shifted to the time of day."""
    return replace(progress, at_s=progress.at_s + drift_s) if drift_s else progress
