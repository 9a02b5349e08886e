"""Common phrases of messages: counts, units, durations."""

from __future__ import annotations

from math import floor
from typing import Final

from dlaas_server.core.model.job import Job

__all__ = ["actor", "agent", "attribution", "clause", "count", "duration", "ordinal", "sentence", "unit_of"]

_ORIGINATORS: Final = {
    "auto": "the autoscaler",
    "drain": "a drain",
    "pool": "the pool",
    "program": "the program",
    "schedule": "the job's schedule",
}


def agent(job: Job, user: str) -> str:
    """Return `you` for the job's owner, who reads the message, and the name for other users."""
    return "you" if user == job.owner else user


def actor(job: Job, user: str) -> str:
    """Return `agent` for the beginning of a sentence: `You`, `Its time limit of 2 h`. User names keep their case."""
    text = agent(job, user)
    return f"{text[0].upper()}{text[1:]}" if text == "you" or text.startswith("its ") else text


def attribution(by: str) -> str:
    """Return the originator of a change of size as text: `by you`, `by the autoscaler`."""
    return f"by {_ORIGINATORS.get(by, by)}"


def unit_of(job: Job) -> str:
    """Return the device unit of the job's pool: "GPU" or "CPU slot"."""
    return job.unit


def count(n: int, noun: str) -> str:
    """Return `1 GPU`, `2 GPUs`, `1,200 learners`."""
    return f"{n:,} {noun}{'' if n == 1 else 's'}"


def ordinal(n: int) -> str:
    """Return `1st`, `2nd`, `3rd`, `11th`, `23rd`."""
    if n % 100 in (11, 12, 13):
        return f"{n}th"
    return f"{n}{ {1: 'st', 2: 'nd', 3: 'rd'}.get(n % 10, 'th') }"


def clause(sentence: str) -> str:
    """Return a sentence as a clause: lower-case first letter, no full stop."""
    return (sentence[:1].lower() + sentence[1:]).rstrip(".")


def sentence(text: str) -> str:
    """Return the text with a full stop, unless it ends a sentence already."""
    return text if text.endswith((".", "?", "!")) else f"{text}."


def duration(seconds: float) -> str:
    """Return `38 ms`, `0.3 s`, `41 s`, `3 min 20 s`, `2 h 05 min`, `3 d 4 h`; at most two units.

    The terminal and the page write the same (`tests/golden/formats.json`).
    """
    seconds = max(seconds, 0.0)
    if 0 < seconds < 0.0995:
        return f"{floor(seconds * 1000 + 0.5)} ms"
    if seconds < 9.95:
        return f"{floor(seconds * 10 + 0.5) / 10:g} s"
    whole = floor(seconds + 0.5)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min" + (f" {whole % 60:02d} s" if whole % 60 else "")
    if whole < 86400:
        minutes = whole % 3600 // 60
        return f"{whole // 3600} h" + (f" {minutes:02d} min" if minutes else "")
    hours = whole % 86400 // 3600
    return f"{whole // 86400} d" + (f" {hours} h" if hours else "")
