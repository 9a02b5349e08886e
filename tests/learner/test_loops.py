"""Loops as people write them, in a gang that grows, shrinks, and loses learners: as if nothing had happened."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.learner.coverage import rows_of
from tests.learner.live_programs import assert_each_sample_once, result, trains
from tests.learner.loop_programs import LOOPS, program
from tests.runtime.jobs import Job
from tests.selection import each_nth

Build = Callable[..., Job]
OPTIONS: dict[str, Any] = {
    "learners_min": 1,
    "learners_max": 4,
    "framework": "torch",
    "outputs": ("weights", "result"),
    "checkpoint_every_s": 0.0,
}


@pytest.mark.parametrize("name", LOOPS)
def test_loop_trains_the_same_on_a_changing_gang(job: Build, name: str) -> None:
    alone, live = job(program(LOOPS[name]), **OPTIONS), job(program(LOOPS[name]), **OPTIONS)
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
    bad = {3, 50, 77} if name == "bad samples" else set()
    assert {int(line.split()[0]) for line in live.lines("bad-samples.txt")} == bad
    assert_each_sample_once(live, samples=101, epochs=6, without=bad)
    found, expected = result(live, "weights"), result(alone, "weights")
    for key, value in expected.items():
        assert found[key].numpy() == pytest.approx(value.numpy(), abs=1e-9), key
    assert result(live, "result") == result(alone, "result")


GROWING = """
    model, opt = run.prepare(model, opt)
    for epoch in run.epochs(EPOCHS):
        for x, y, i in run.batches((data, labels, torch.arange(SAMPLES)), 6, batch="grow", max_batch=15, rate="RULE"):
            step(i)
            opt.zero_grad()
            loss_of(x, y).backward()
            opt.step()
            seen.append((run.world_size, run.internals.growth.factor()))
"""


@pytest.mark.parametrize("rule", each_nth(["sqrt", "linear", "adascale", "none"], 2))
def test_batches_that_grow_with_the_gang_have_each_sample_once(job: Build, rule: str) -> None:
    live = job(program(GROWING.replace("RULE", rule)), **OPTIONS)
    live.run(1)
    trains(live, 0)
    live.resize(0, fresh=2)
    trains(live, 2, size=3, steps=4)
    live.kill_learner(0)
    trains(live, 1, size=2)
    live.resize(2)
    trains(live, 2, size=1)
    live.output("hurry").touch()

    assert live.closed() == "completed", live.report()
    assert_each_sample_once(live, samples=101, epochs=6)
    counts = {row.learners: set[int]() for row in rows_of(live.dir / "output", dict.fromkeys(range(3), 0))}
    for row in rows_of(live.dir / "output", dict.fromkeys(range(3), 0)):
        counts[row.learners].add(len(row.samples))
    assert {size: max(found) for size, found in counts.items()} == {1: 6, 2: 6, 3: 5}, "15 at most, all together"
    factors = dict(result(live, "result")["seen"])
    assert sorted(factors) == [1, 2, 3]
    if rule == "sqrt":
        assert factors == {1: 1.0, 2: pytest.approx(2**0.5), 3: pytest.approx(2.5**0.5)}
    elif rule == "none":
        assert set(factors.values()) == {1.0}
    else:
        assert factors[1] == pytest.approx(1.0, abs=0.5)
        assert 1.0 < factors[3] <= 2.5
