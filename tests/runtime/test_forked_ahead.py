"""An elastic job has a learner forked ahead: who joins starts from it, and without it only later."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from jupyter_dlaas.runtime.system.process import MEMBER_MARK, Identity, environment_of, is_alive, stat_of
from jupyter_dlaas.wire.journal import FactKind
from tests.learner.live_programs import LIVE, trains
from tests.learner.test_live import OPTIONS
from tests.runtime.jobs import Job, until
from tests.runtime.test_nursery import SEEN, ended, guardian, killed
from tests.runtime.test_zygote import torch_zygote, warm_up

__all__ = ["torch_zygote"]
Build = Callable[..., Job]
_OF_A_LEARNER = ("DLAAS_GENERATION", "DLAAS_JOINS", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "TORCHELASTIC_RUN_ID")


def parked(job: Job, *, after: Identity | None = None) -> Identity:
    """Return the learner that was forked ahead: a child of the guardian, no member, with one socket and no log."""
    boss = guardian(job)

    def waiting() -> list[Identity]:
        children = [who for who in job.processes() if (stat := stat_of(who.pid)) and stat.parent == boss.pid]
        others = [who for who in children if MEMBER_MARK not in environment_of(who.pid) and who != after]
        return [who for who in others if _has_one_socket(who)]

    found: Identity = until(waiting, "a learner is forked ahead")[0]
    return found


def _has_one_socket(who: Identity) -> bool:
    links = [one.readlink() for one in Path(f"/proc/{who.pid}/fd").iterdir() if int(one.name) > 2]
    return len(links) == 1 and links[0].name.startswith("socket:")


@pytest.fixture
def started(job: Build, torch_zygote: Path) -> Job:
    one = job(SEEN + LIVE, environment={"MINE": "1", "OMP_NUM_THREADS": "2"}, command=("a",), **OPTIONS)
    warm_up(one, torch_zygote, "torch")
    one.zygote_dir = torch_zygote
    one.run(1)
    trains(one, 0)
    return one


def test_joiner_was_forked_ahead_and_looks_like_any_other(started: Job) -> None:
    waiting = parked(started)
    started.resize(0, fresh=1)
    trains(started, 1, size=2)
    assert started.learner(1).pid == waiting.pid
    again = parked(started, after=waiting)
    ended(started)

    assert not is_alive(again)
    first, joined = (json.loads(started.output(f"seen-{n}").read_text()) for n in (0, 1))
    for found in (first, joined):
        found.pop("fds")
        for name in _OF_A_LEARNER:
            found["environment"].pop(name)
    assert first == joined


def test_job_grows_when_its_learner_forked_ahead_was_killed(started: Job) -> None:
    killed(parked(started))
    started.resize(0, fresh=1)
    trains(started, 1, size=2)
    ended(started)


def test_learner_forked_ahead_ends_with_its_guardian(started: Job) -> None:
    waiting = parked(started)
    started.kill_guardian()
    until(lambda: not is_alive(waiting), "it has ended")
    started.start_guardian()
    started.wait(FactKind.GUARDIAN_UP, 2)
    started.resize(0, fresh=1)
    trains(started, 1, size=2)
    ended(started)
