"""Spot job on all slots: an ordinary job gets them after a notice, and the spot job continues later at its step."""

from __future__ import annotations

from collections.abc import Callable

from tests.whole.programs import assert_in_order, end_brief, hurry, submit_brief, training, trains, waiting_at
from tests.whole.site import Site, until

Build = Callable[..., Site]
TRAINS = training(epochs=100, step_s=0.3)
STUBBORN = (
    "import signal, time\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\nprint('here', flush=True)\ntime.sleep(600)\n"
)


def test_spot_job_yields_with_a_checkpoint_and_continues_later(site: Build) -> None:
    here = site(slots=2)
    lent = here.submit(TRAINS, name="lent", gpus="2", spot=True, priority="high", checkpoint_every="60s")
    trains(lent)
    assert lent.view.state_label == "Processing · spot"
    assert here.client.pool().gist == "2 of 2 CPU slots in use · 2 by spot jobs"

    ours = submit_brief(here, "ours", "2")
    waiting, at = waiting_at(lent)
    assert "A spot job uses only devices that ordinary jobs leave idle." in waiting.reason
    assert "Preempted: 2 CPU slots go back to" in waiting.reason
    assert "It is a spot job: it starts after all others" in lent.why()

    hurry(here)
    end_brief(here, ours)
    lent.wait(120)
    events = lent.events()
    entries = (
        "Preempted: 2 CPU slots go back to",
        "It writes a checkpoint within 30 s",
        "Back in the queue",
        "Placed 2 learners",
    )
    assert_in_order(events, *entries)
    assert f"learners from step {at}." in events
    assert "trained steps 400" in lent.logs()  # none lost, none twice


def test_an_elastic_one_only_shrinks_and_grows_again(site: Build) -> None:
    here = site(slots=2)
    lent = here.submit(TRAINS, name="lent", gpus="1:2", spot=True, checkpoint_every="1s")
    trains(lent)

    ours = submit_brief(here, "ours", "1")
    assert (lent.view.state, lent.view.size.held) == ("PROCESSING", 1)

    end_brief(here, ours)
    until(lambda: lent.view.size.held == 2, "it has grown again", 60)
    hurry(here)
    lent.wait(120)
    assert "It is a spot job: 1 CPU slot goes back to" in lent.events()
    assert [(one.before, one.after) for one in lent.view.resizes] == [(2, 1), (1, 2)]


def test_spot_job_without_checkpoint_is_gone_after_its_notice(site: Build) -> None:
    here = site(slots=1)
    with (here.pool / "config.toml").open("a") as config:
        config.write("spot_notice_s = 1\n")
    lent = here.submit(STUBBORN, name="lent", spot=True)
    until(lambda: "here" in lent.logs(), "the spot job runs", 60)

    ours = submit_brief(here, "ours", "1")

    end_brief(here, ours)
    assert "It had no checkpoint and starts over." in lent.events()
    lent.cancel()
