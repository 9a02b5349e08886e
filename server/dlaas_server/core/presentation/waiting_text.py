"""Waiting reasons of a job's processes as text, and the reason of a job in a pool that is unavailable."""

from __future__ import annotations

from collections.abc import Sequence

from dlaas_server.core.model.job import Intent, Job
from dlaas_server.core.model.phrases import duration, sentence
from jupyter_dlaas.wire.protocol import State, WaitingReason

__all__ = ["UNAVAILABLE", "unreachable", "waiting_sentences", "waiting_text"]

UNAVAILABLE = "unavailable"
SHOWN_MAX = 3
"""Maximum number of different reasons in a sentence on the card."""


def unreachable(job: Job, why: str | None) -> tuple[WaitingReason, ...]:
    """Return the reason of a job with devices in a pool that is unavailable because of `why`; () for other jobs."""
    if why is None or job.is_closed:
        return ()
    if job.state.is_final or job.intent is not Intent.RUN:
        advice = "The request is carried out when the pool is available again."
    elif job.state in (State.PROCESSING, State.STORING):
        advice = "Its learners keep running. The numbers shown here may be out of date."
    else:
        advice = "It starts when the pool is available again."
    return (WaitingReason(code=UNAVAILABLE, what=f"The pool is unavailable. {sentence(why)}", advice=advice),)


def waiting_text(reasons: Sequence[WaitingReason]) -> str:
    """Return the reasons as sentences, equal ones of several learners once: `Learners 0 and 2: no node fits. …`."""
    groups: dict[tuple[str, str], list[int | None]] = {}
    for reason in reasons:
        groups.setdefault((reason.what, reason.advice), []).append(reason.member)
    parts = []
    for (what, advice), members in list(groups.items())[:SHOWN_MAX]:
        named = [member for member in members if member is not None]
        prefix = f"{_learners_text(named)}: " if named and len(groups) > 1 else ""
        parts.append(f"{prefix}{sentence(what)}{f' {advice}' if advice else ''}")
    more = len(groups) - SHOWN_MAX
    if more > 0:
        parts.append(f"{more} more {'reason' if more == 1 else 'reasons'}.")
    return " ".join(parts)


def waiting_sentences(reasons: Sequence[WaitingReason], now_s: float) -> list[str]:
    """Return a sentence for each process that waits, with the name of the object and the time since when."""
    out = []
    for reason in reasons:
        who = "The job" if reason.member is None else f"Learner {reason.member}"
        name = f" ({reason.object})" if reason.object else ""
        since = "" if reason.since_s is None else f" for {duration(max(now_s - reason.since_s, 0.0))}"
        out.append(f"{who}{name} has waited{since}: {sentence(reason.what)} {reason.advice}".rstrip())
    return out


def _learners_text(members: Sequence[int]) -> str:
    if len(members) == 1:
        return f"Learner {members[0]}"
    return f"Learners {', '.join(map(str, members[:-1]))} and {members[-1]}"
