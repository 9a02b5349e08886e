"""Exact mode in real jobs: the same weights to the last bit, whatever happens to the gang."""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from jupyter_dlaas.learner.training_run import run as running
from jupyter_dlaas.wire.journal import FactKind
from tests.learner.exact_programs import EXACT, disturb
from tests.learner.fault_matrix import warmed
from tests.learner.live_programs import assert_each_sample_once, result, trains
from tests.runtime.jobs import Job, make_job
from tests.selection import each_nth, exhaustive

Build = Callable[..., Job]
OPTIONS: dict[str, Any] = {
    "learners_min": 1,
    "learners_max": 4,
    "framework": "torch",
    "outputs": ("losses", "steps", "weights"),
    "checkpoint_every_s": 0.0,
}


@pytest.fixture(scope="module")
def epochs(request: pytest.FixtureRequest) -> int:
    """Return the number of epochs of each job. A run with twice as many events takes twice as long."""
    return 24 if request.config.getoption("exhaustive") else 12


@pytest.fixture(scope="module")
def source(epochs: int) -> str:
    assert "16, 12, 8" in EXACT
    return EXACT.replace("16, 12, 8", f"16, {epochs}, 8")


SEEDS: list[int | None] = [int(one) for one in os.environ.get("DLAAS_EXACT_SEEDS", "").split()] or [None]
"""Of random lives. None: another one at each run, which prints it; DLAAS_EXACT_SEEDS="1 2 3" says which."""


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory, zygotes: Path, source: str, epochs: int) -> dict[str, Any]:
    """Return what one undisturbed learner trains."""
    one = warmed(make_job(tmp_path_factory.mktemp("alone") / "job", source, **OPTIONS), zygotes)
    one.output("hurry").touch()
    one.run(1)
    assert one.closed(deadline_s=120.0) == "completed", one.report()
    found = {name: result(one, name) for name in ("losses", "steps", "weights")}
    assert found["steps"] == 10 * epochs
    assert found["losses"][-1][1] < found["losses"][0][1]
    return found


@pytest.fixture
def live(job: Build, source: str) -> Job:
    return job(source, **OPTIONS)


def assert_same(job: Job, alone: dict[str, Any]) -> None:
    assert_each_sample_once(job, samples=150, epochs=alone["steps"] // 10)
    assert {name: result(job, name) for name in alone} == alone


def assert_lived(job: Job, kills: int) -> None:
    """Each `kill -9` was seen, and a group without the dead continued: one group where two died in quick succession."""
    dead = [fact for fact in job.facts(FactKind.LEARNER_DOWN) if fact.failure is not None]
    groups = [fact for fact in job.facts(FactKind.REGROUPED, FactKind.GENERATION) if fact.live]
    assert len(dead) == kills, job.report()
    for one in dead:
        assert any(group.n > one.n and one.member not in (group.members or ()) for group in groups), job.report()
    assert not job.facts(FactKind.LOST), job.report()


@exhaustive
@pytest.mark.parametrize("learners", each_nth([3, 2, 4], 3))
def test_any_number_of_learners_trains_the_same_bits(live: Job, alone: dict[str, Any], learners: int) -> None:
    live.output("hurry").touch()
    live.run(learners)

    assert live.closed(deadline_s=120.0) == "completed", live.report()
    assert_same(live, alone)


@exhaustive
@pytest.mark.parametrize("given", SEEDS)
def test_a_random_life_trains_the_same_bits(live: Job, alone: dict[str, Any], given: int | None, epochs: int) -> None:
    seed = random.randrange(10**6) if given is None else given
    print(f"DLAAS_EXACT_SEEDS={seed} is this life again")
    disturbances = disturb(live, seed, changes=epochs // 3, kills=epochs // 6)
    live.output("hurry").touch()

    assert live.closed(deadline_s=120.0) == "completed", f"seed {seed}: {disturbances}\n{live.report()}"
    assert_lived(live, sum(one.startswith("kill") for one in disturbances))
    assert_same(live, alone)
    assert not list(live.dir.glob("checkpoints/step-*")), "no checkpoint was needed"


def test_halts_and_restarts_at_other_sizes_train_the_same_bits(live: Job, alone: dict[str, Any]) -> None:
    live.run(2)
    trains(live, 1, steps=5)
    live.halt()
    assert live.closed() == "halted"
    live.run(3)
    trains(live, 4, steps=14)
    live.resize(2, 4)
    trains(live, 4, size=2)
    live.halt()
    assert live.closed(2) == "halted"
    live.output("hurry").touch()
    live.run(1)

    assert live.closed(3) == "completed", live.report()
    assert_same(live, alone)


def test_layers_unfrozen_and_added_while_training_are_trained() -> None:
    """Outside of a job, beside the same loop without exact mode."""

    def trained(*, is_exact: bool) -> list[float]:
        torch.manual_seed(0)
        model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Linear(4, 1)).double()
        model[0].requires_grad_(requires_grad=False)
        opt = torch.optim.SGD(model.parameters(), lr=0.1)
        run = running.run()
        if is_exact:
            run.prepare(model, opt, shards=2)
        data = torch.randn(8, 3, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
        for epoch in run.epochs(3):
            if epoch == 1:
                model.requires_grad_(requires_grad=True)
            if epoch == 2:
                torch.manual_seed(1)
                model.append(torch.nn.Linear(1, 1).double())
                opt.add_param_group({"params": model[2].parameters()})
            for batch in run.batches(data, 4, shuffle=False):
                if is_exact:
                    run.train_step(lambda part: model(part).square().mean(), batch)
                else:
                    opt.zero_grad()
                    model(batch).square().mean().backward()
                    opt.step()
        return [float(value) for one in model.parameters() for value in one.detach().flatten()]

    threads = torch.get_num_threads()
    try:
        assert trained(is_exact=True) == pytest.approx(trained(is_exact=False))
    finally:
        torch.use_deterministic_algorithms(mode=False)
        torch.set_num_threads(threads)
