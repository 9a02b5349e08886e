"""Masking of a job's secrets in facts and in the failures that learners report."""

from __future__ import annotations

from dataclasses import replace

from jupyter_dlaas.wire.journal import (
    Fact,
    GenerationLost,
    GenerationStarted,
    IndependenceFound,
    JobClosed,
    LearnerAwaited,
    LearnerDown,
    LearnersLost,
    LineDamaged,
    NoteReported,
    SeatRefused,
)
from jupyter_dlaas.wire.protocol import Failure
from jupyter_dlaas.wire.secret_masking import Mask

__all__ = ["masked_fact", "masked_failure"]


def masked_fact(fact: Fact, mask: Mask) -> Fact:
    """Return the fact with its texts masked. Codes, kinds and names set by this package stay unmasked."""
    if not mask.forms:
        return fact
    if isinstance(fact, LearnerDown | GenerationStarted | LearnersLost | GenerationLost):
        return fact if fact.failure is None else replace(fact, failure=masked_failure(fact.failure, mask))
    if isinstance(fact, LearnerAwaited | IndependenceFound | LineDamaged | JobClosed):
        return fact if fact.why is None else replace(fact, why=mask.text(fact.why))
    if isinstance(fact, NoteReported) and fact.note is not None:
        return replace(fact, note=replace(fact.note, text=mask.text(fact.note.text)))
    if isinstance(fact, SeatRefused):
        what, advice = (text and mask.text(text) for text in (fact.what, fact.advice))
        return replace(fact, what=what, advice=advice)
    return fact


def masked_failure(failure: Failure, mask: Mask) -> Failure:
    """Return the failure with its texts masked."""
    where = failure.where
    if where is not None:
        function = where.function and mask.text(where.function)
        source = tuple(mask.text(line) for line in where.source)
        where = replace(where, label=mask.text(where.label), function=function, source=source)
    return replace(
        failure,
        what=mask.text(failure.what),
        advice=mask.text(failure.advice),
        traceback=failure.traceback and mask.text(failure.traceback),
        where=where,
    )
