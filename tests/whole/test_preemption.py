"""A job of high priority arrives: a lower one gives its devices up at a checkpoint and goes on later at its step."""

from __future__ import annotations

from collections.abc import Callable

from tests.whole.programs import assert_told, comes, hurry, leaves, training, trains, waiting_at
from tests.whole.site import Site

Build = Callable[..., Site]


def test_who_is_preempted_waits_with_a_sentence_and_goes_on_at_its_step(site: Build) -> None:
    here = site(slots=2)
    low = here.submit(training(epochs=100, step_s=0.4), name="low", gpus="2", checkpoint_every="1h")
    trains(low)

    urgent = comes(here, "urgent", "2", priority="high")
    waiting, at = waiting_at(low)
    assert "Preempted: urgent-2" in waiting.reason
    assert "has priority 100. Nothing was lost: it continues from step" in waiting.reason

    hurry(here)
    leaves(here, urgent)
    low.wait(120)
    assert (urgent.status, low.status) == ("COMPLETED", "COMPLETED")
    story = low.story()
    assert f"learners from step {at}." in story
    assert f"The pool, for {urgent.id} (" in story
    assert "requested a checkpoint; it is written at the next step." in story
    told = (
        "Preempted: urgent-2",
        "Back in the queue. Nothing was lost",
        "Waiting: needs 2 CPU slots",
        "Placed 2 learners",
    )
    assert_told(story, *told)
    assert "trained steps 400" in low.logs()  # the script's own count goes on too: none lost, none twice
