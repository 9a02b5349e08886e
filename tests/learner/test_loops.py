"""Loops as people write them, in a gang that grows, shrinks, and loses learners: as if nothing had happened."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.learner.live_programs import assert_each_sample_once, result, trains
from tests.learner.loop_programs import LOOPS, program
from tests.runtime.jobs import Job
from tests.runtime.test_zygote import warm_up

Build = Callable[..., Job]
OPTIONS: dict[str, Any] = {
    "learners_min": 1,
    "learners_max": 4,
    "framework": "torch",
    "outputs": ("weights", "result"),
    "checkpoint_every_s": 0.0,
}


@pytest.mark.parametrize("name", LOOPS)
def test_a_loop_trains_on_a_changing_gang_what_it_trains_on_one_learner(job: Build, zygotes: Path, name: str) -> None:
    alone, live = job(program(LOOPS[name]), **OPTIONS), job(program(LOOPS[name]), **OPTIONS)
    for one in (alone, live):
        one.zygote_dir = zygotes
        warm_up(one, zygotes, "torch")
    alone.output("hurry").touch()
    alone.run(1)
    live.run(2)
    trains(live, 1)
    live.kill_learner(0)
    trains(live, 1, size=1)
    live.resize(1, fresh=2)
    trains(live, 3, size=3)
    live.kill_learner(3)
    trains(live, 2, size=2)
    live.output("hurry").touch()

    assert alone.closed() == "completed", alone.report()
    assert live.closed() == "completed", live.report()
    if name == "bad samples":
        assert {int(line.split()[0]) for line in live.lines("bad-samples.txt")} == {3, 50, 77}
    else:
        assert_each_sample_once(live, samples=101, epochs=6)
    found, expected = result(live, "weights"), result(alone, "weights")
    for key, value in expected.items():
        assert found[key].numpy() == pytest.approx(value.numpy(), abs=1e-9), key
    assert result(live, "result") == result(alone, "result")
