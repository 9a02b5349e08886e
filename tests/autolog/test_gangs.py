"""Frameworks that train on several learners grow, shrink and lose learners, and train what one learner trains."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jupyter_dlaas.learner.autolog.batch_share import Shares, share, share_loader
from jupyter_dlaas.wire.journal import FactKind
from tests.autolog.programs import AVERAGED_LIGHTNING, GANG_LIGHTNING, GANG_TRANSFORMERS, KERAS
from tests.autolog.test_halting import DEADLINE_S, end_of, go_on, keras_environment, reach, result, result_of
from tests.runtime.jobs import Job
from tests.selection import each_nth, exhaustive

Build = Callable[..., Job]

pytestmark = pytest.mark.timeout(900)


@pytest.mark.parametrize(
    ("source", "framework"),
    each_nth([(GANG_LIGHTNING, "lightning"), (GANG_TRANSFORMERS, "transformers")], 2),
    ids=["lightning", "transformers"],
)
def test_changing_gang_trains_as_one_learner_does(job: Build, source: str, framework: str) -> None:
    untouched = job(source, outputs=("weights",), autolog=False, framework=framework)
    untouched.run()
    assert end_of(untouched) == "completed"
    one = job(source, outputs=("weights",), framework=framework, learners_max=2, checkpoint_every_s=0.0001)
    one.output("pause").write_text("0-25 0-50 0-53")
    one.run(learners=1)
    reach(one, "0-25")
    one.run(learners=2)
    go_on(one, "0-25", "stop")
    reach(one, "0-50")
    one.kill_learner(2)
    one.wait(FactKind.LOST)
    go_on(one, "0-50")
    one.run(learners=2)
    reach(one, "0-53")
    one.run(learners=1)
    go_on(one, "0-53", "stop")
    assert end_of(one) == "completed"

    assert result_of(one, "weights") == pytest.approx(result_of(untouched, "weights"), abs=1e-5)
    counted = [step for fact in one.facts(FactKind.COMMITTED) for step in range(fact.first_step or 0, fact.step or 0)]
    assert sorted(set(counted)) == list(range(60)), "each step of ten for six epochs, at any size"
    paces = {fact.learners: fact for fact in one.facts(FactKind.PACE)}
    assert set(paces) == {1, 2}
    changes = [fact for fact in one.facts(FactKind.GENERATION) if fact.generation != 1]
    assert [fact.idle_s is not None and fact.idle_s > 0 for fact in changes] == [True, True, True], one.report()


def test_epoch_averages_of_a_halted_gang_hold_all_learners_parts(job: Build) -> None:
    untouched = job(AVERAGED_LIGHTNING, outputs=("averages",), framework="lightning", learners_max=2)
    untouched.run(learners=2)
    assert end_of(untouched) == "completed"
    one = job(AVERAGED_LIGHTNING, outputs=("averages",), framework="lightning", learners_max=2, checkpoint_every_s=0.0)
    one.output("pause").write_text("0-25")
    one.run(learners=2)
    reach(one, "0-25")
    one.halt(grace_s=DEADLINE_S)
    go_on(one, "0-25", "stop")
    assert end_of(one) == "halted"
    one.run(learners=2)
    assert end_of(one, 2) == "completed"

    found, expected = result_of(one, "averages"), result_of(untouched, "averages")
    assert len(found) == len(expected) == 6
    assert found == [pytest.approx(part, rel=1e-5) for part in expected]
    assert "contain only the first learner's part" not in one.report()


@exhaustive
@pytest.mark.parametrize("backend", ["tensorflow", "torch", "jax"])
def test_keras_on_several_learners_reports_no_gain(job: Build, backend: str) -> None:
    environment = keras_environment(backend)
    untouched = job(KERAS, outputs=("result",), autolog=False, environment=environment)
    untouched.run()
    one = job(KERAS, outputs=("result",), learners_max=2, checkpoint_every_s=0.0001, environment=environment)
    is_long = backend == "torch"  # the second half is the same in all of them, and each start takes long
    one.output("pause").write_text("1-5 1-10 1-14 1-20" if is_long else "1-5 1-10")
    one.run(learners=1)
    reach(one, "1-5")
    (report,) = one.facts(FactKind.ALONE)
    assert "Keras' fit trains in a single process" in (report.why or ""), "before it grows"
    one.run(learners=2)
    go_on(one, "1-5", "stop")
    reach(one, "1-10")
    one.kill_learner(2)
    one.wait(FactKind.LOST)
    go_on(one, "1-10")
    one.run(learners=1)
    if is_long:
        reach(one, "1-14")
        one.halt(grace_s=DEADLINE_S)
        go_on(one, "1-14", "stop")
        assert end_of(one) == "halted"
        one.run(learners=2)
        reach(one, "1-20")
        one.kill_learner(4)
        one.wait(FactKind.LOST, 2)
        go_on(one, "1-20")
        one.run(learners=1)
    assert end_of(one, 1 + is_long) == "completed"
    assert end_of(untouched) == "completed"

    assert result(one) == result(untouched)
    assert len(one.facts(FactKind.ALONE)) == 1


# By its name one that parts the model, as no strategy does that runs here.
PARTED = "from lightning.pytorch.strategies import DDPStrategy\nclass DeepSpeedStrategy(DDPStrategy): pass\n"
PARTED += GANG_LIGHTNING.replace('strategy="ddp"', "strategy=DeepSpeedStrategy()")


def test_sharded_model_refuses_another_size_with_a_reason(job: Build) -> None:
    one = job(PARTED, framework="lightning", learners_max=2, checkpoint_every_s=0.0001)
    one.output("pause").write_text("0-25")
    one.run(learners=1)
    reach(one, "0-25")
    (report,) = one.facts(FactKind.ALONE)
    assert report.learners == 1
    assert "The job stays at 1" in (report.why or "")
    one.run(learners=2)
    go_on(one, "0-25", "stop")
    lost = one.wait(FactKind.LOST, deadline_s=DEADLINE_S)

    assert lost.failure is not None
    assert "scale the job back to 1" in lost.failure.what
    one.run(learners=1)
    assert one.closed(deadline_s=DEADLINE_S) == "completed", one.report()
    assert max(fact.step or 0 for fact in one.facts(FactKind.COMMITTED)) == 60, "nothing was lost"


def test_sharded_model_trains_at_its_initial_size(job: Build) -> None:
    one = job(PARTED, framework="lightning", learners_max=2)
    one.run(learners=2)
    assert end_of(one) == "completed"

    assert [fact.learners for fact in one.facts(FactKind.ALONE)] == [2]


@given(st.lists(st.integers(), min_size=1, max_size=40), st.integers(1, 9))
def test_shares_are_of_one_size_and_hold_the_whole_batch(batch: list[int], learners: int) -> None:
    parts = [share(batch, rank, learners) for rank in range(learners)]

    assert len({len(part) for part in parts}) == 1
    assert [one for part in parts for one in part][: len(batch)] == batch
    assert sum(map(len, parts)) < len(batch) + learners


def test_shared_sampler_keeps_length_and_attributes() -> None:
    class Batches(list[list[int]]):
        sampler = "the order"

    shares = Shares(Batches([[1, 2, 3, 4], [5, 6]]), rank=1, learners=2)

    assert list(shares) == [[3, 4], [6]]
    assert len(shares) == 2
    assert shares.sampler == "the order"


def test_loader_of_hugging_face_divides_each_batch() -> None:
    import torch
    from accelerate.data_loader import prepare_data_loader

    batches = [[[0, 1], [4, 5], [8]], [[2, 3], [6, 7], [9]]]
    for rank, expected in enumerate(batches):
        data: Any = list(range(10))
        loader = torch.utils.data.DataLoader(data, batch_size=4)
        prepared = prepare_data_loader(loader, num_processes=2, process_index=rank)
        assert len(prepared) == 2, "as accelerate divides: by whole batches"

        shared = share_loader(prepared, rank, learners=2)

        assert [batch.tolist() for batch in shared] == expected
        assert len(shared) == 3, "as many steps as one learner trains"
