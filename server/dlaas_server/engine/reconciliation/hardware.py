"""Hardware within a turn of the loop: suspect devices, refused seats, and jobs that restart elsewhere."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from dlaas_server.core.lifecycle.job_events import MovedFromSuspect
from dlaas_server.core.lifecycle.seat_refusal import concerning
from dlaas_server.core.model.cluster import Node
from dlaas_server.core.model.job import Job
from dlaas_server.core.planning.pool_settings import nodes_in_force
from dlaas_server.core.planning.refused_seats import proven, refused_again, retried
from dlaas_server.core.planning.suspect_devices import (
    cleared,
    node_without_seats,
    restarts_on_suspect,
    struck,
    trusted_again,
)
from dlaas_server.engine.reconciliation.transaction import Draft
from jupyter_dlaas.wire.journal import (
    CheckpointSaved,
    Fact,
    GenerationLost,
    JobCompleted,
    LearnerDown,
    LearnerUp,
    SeatRefused,
)
from jupyter_dlaas.wire.protocol import Cause

__all__ = ["count_failure", "trust_again"]


def count_failure(draft: Draft, before: Job, fact: Fact, nodes: Sequence[Node]) -> None:
    """Count a failure of the hardware of a job or a refused seat, or the proof that it works.

    A job that lost a learner to it, or with its node, restarts on other devices. `before`: the job before the fact
    was applied.
    """
    if isinstance(fact, LearnerDown) and fact.failure is not None:
        settings = draft.settings
        found, text = struck(settings.suspects, before, fact, nodes_in_force(nodes, settings), draft.now_s)
        if found is not settings.suspects and found != settings.suspects:
            what = "had a hardware failure" if fact.failure.cause is Cause.HARDWARE else "was killed or hung"
            draft.set(replace(settings, suspects=found), text or f"A learner of {before.id} {what}.")
    elif draft.settings.suspects and isinstance(fact, CheckpointSaved | JobCompleted):
        found = cleared(draft.settings.suspects, before, fact)
        if found is not draft.settings.suspects:
            draft.set(replace(draft.settings, suspects=found), f"{before.id} trains where learners had failed before.")
    elif isinstance(fact, SeatRefused) and concerning(before, (fact,)):
        seats = refused_again(draft.settings.refused, before, (fact,), draft.now_s)
        draft.set(replace(draft.settings, refused=seats), f"A seat of {before.id} was refused: {fact.what}")
    elif isinstance(fact, LearnerUp):
        seats = proven(draft.settings.refused, before, fact)
        draft.set(replace(draft.settings, refused=seats), f"A learner of {before.id} started on a seat refused before.")
    elif isinstance(fact, GenerationLost):
        job = draft.job(before.id)
        if (why := node_without_seats(job, nodes)) is not None:
            draft.apply(job.id, MovedFromSuspect(why=why))
        elif restarts_on_suspect(job, draft.settings.suspects):
            draft.apply(job.id, MovedFromSuspect())


def trust_again(draft: Draft) -> None:
    """Return devices to service that have not failed for a while, and seats whose refusal was a while ago."""
    trusted = trusted_again(draft.settings.suspects, draft.now_s)
    if trusted is not draft.settings.suspects:
        draft.set(replace(draft.settings, suspects=trusted), "A device that had failed is back in service.")
    seats = retried(draft.settings.refused, draft.now_s)
    draft.set(replace(draft.settings, refused=seats), "A seat that had been refused is tried again.")
