"""Preemption: a job of higher priority gets the devices at a checkpoint, and the other continues later at its step."""

from __future__ import annotations

from collections.abc import Callable

from tests.whole.programs import assert_in_order, end_brief, hurry, submit_brief, training, trains, waiting_at
from tests.whole.site import Site

Build = Callable[..., Site]


def test_preempted_job_waits_with_a_reason_and_continues_later(site: Build) -> None:
    here = site(slots=2)
    low = here.submit(training(epochs=100, step_s=0.4), name="low", gpus="2", checkpoint_every="1h")
    trains(low)

    urgent = submit_brief(here, "urgent", "2", priority="high")
    waiting, at = waiting_at(low)
    assert "Preempted: urgent-2" in waiting.reason
    assert "has priority 100. Nothing was lost: it continues from step" in waiting.reason

    hurry(here)
    end_brief(here, urgent)
    low.wait(120)
    assert (urgent.status, low.status) == ("COMPLETED", "COMPLETED")
    events = low.events()
    assert f"learners from step {at}." in events
    assert f"The pool, for {urgent.id} (" in events
    assert "requested a checkpoint; it is written at the next step." in events
    entries = (
        "Preempted: urgent-2",
        "Back in the queue. Nothing was lost",
        "Waiting: needs 2 CPU slots",
        "Placed 2 learners",
    )
    assert_in_order(events, *entries)
    assert "trained steps 400" in low.logs()  # the script's own count continues too: none lost, none twice
