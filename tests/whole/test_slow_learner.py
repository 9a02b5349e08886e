"""Straggler: it is replaced on a free slot while the others train, without a lost step."""

from __future__ import annotations

from collections.abc import Callable

from jupyter_dlaas.jobdir.journal_file import read_facts
from jupyter_dlaas.wire.journal import LearnerDown, StragglerFound
from tests.learner.coverage import check
from tests.learner.live_programs import LIVE
from tests.whole.site import Site, until

Build = Callable[..., Site]
SAMPLES, EPOCHS = 101, 60
SLOW = LIVE.replace(
    "            opt.zero_grad()\n",
    '            opt.zero_grad()\n            time.sleep(0.1 if me == "0" and not (out / "hurry").exists() else 0)\n',
).replace("me = os", "out.mkdir(exist_ok=True)\nme = os")


def test_straggler_is_replaced_and_each_sample_is_trained_once(site: Build) -> None:
    here = site(slots=4)
    gang = here.submit(SLOW, name="gang", gpus="1:3", start_with=3, framework="torch", checkpoint_every=0)

    until(lambda: "Learner 0 on" in gang.events(), f"the straggler is reported\n{gang.events()}", 60)
    until(lambda: here.job(gang.id).view.transition is None, "the replacement is there", 30)
    until(lambda: len(here.learners(gang.id)) == 3, "the slow one is gone", 30)
    (gang.directory / "output" / "hurry").touch()
    gang.wait(90)

    facts = read_facts(gang.directory / "journal.jsonl")[0]
    check(facts, gang.directory / "output", range(SAMPLES), EPOCHS)
    assert next(fact.member for fact in facts if isinstance(fact, StragglerFound)) == 0
    assert next(fact.member for fact in facts if isinstance(fact, LearnerDown) and not fact.failure) == 0
    assert not list(gang.directory.glob("checkpoints/step-*")), "no checkpoint was needed"
    assert "it is replaced by another learner. Moving, by the pool." in gang.events()
