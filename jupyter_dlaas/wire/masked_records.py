"""Masking of a job's secrets in facts and in the failures that learners report."""

from __future__ import annotations

from dataclasses import replace

from jupyter_dlaas.wire.journal import Fact
from jupyter_dlaas.wire.protocol import Failure
from jupyter_dlaas.wire.secret_masking import Mask

__all__ = ["masked_fact", "masked_failure"]


def masked_fact(fact: Fact, mask: Mask) -> Fact:
    """Return the fact with its texts masked. Codes, kinds and names set by this package stay unmasked."""
    if not mask.forms or (fact.failure is None and fact.why is None and fact.note is None):
        return fact
    return replace(
        fact,
        failure=fact.failure and masked_failure(fact.failure, mask),
        why=fact.why and mask.text(fact.why),
        note=fact.note and replace(fact.note, text=mask.text(fact.note.text)),
    )


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
