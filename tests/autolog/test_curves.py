"""Curves and progress from frameworks, without a changed line, and with the same numbers as without us."""

from __future__ import annotations

import json
from collections.abc import Callable
from textwrap import dedent
from typing import Any

import pytest

from tests.autolog.programs import FASTAI, SKLEARN, TREES, TWO_IN_TURN
from tests.autolog.test_halting import curve, end_of, result
from tests.runtime.jobs import Job

Build = Callable[..., Job]
pytestmark = pytest.mark.timeout(900)


def with_and_without(job: Build, program: str) -> Job:
    """Train with our callbacks and without; all that the program found is the same, to the last bit."""
    untouched = job(program, outputs=("result",), autolog=False)
    one = job(program, outputs=("result",))
    for each in (untouched, one):
        each.run()
    for each in (untouched, one):
        assert end_of(each) == "completed"
    assert result(one) == result(untouched)
    assert not (untouched.dir / "metrics.jsonl").exists() or not (untouched.dir / "metrics.jsonl").read_text()
    assert "no automatic metrics" not in one.log()
    return one


def progress(job: Job) -> Any:
    return json.loads((job.dir / "progress.json").read_text())


def test_xgboost_and_lightgbm_show_their_rounds(job: Build) -> None:
    one = with_and_without(job, TREES)
    found = result(one)

    assert curve(one, "train_logloss") == pytest.approx(found["log"]["train"]["logloss"])
    assert curve(one, "validation_1_logloss") == pytest.approx(found["evals"][0]["validation_1"]["logloss"])
    assert curve(one, "valid_0_binary_logloss") == pytest.approx(found["log"]["valid_0"]["binary_logloss"])
    assert curve(one, "held_auc") == pytest.approx(found["evals"][1]["held"]["auc"])
    assert found["seen"] == list(range(6))
    assert found["given"] == 1
    assert (progress(one)["step"], progress(one)["steps"], progress(one)["fraction"]) == (4, 4, 1.0)


def test_scikit_learn_shows_epochs_stages_and_partial_fits(job: Build) -> None:
    one = with_and_without(job, SKLEARN)
    found = result(one)

    loss = curve(one, "loss")
    assert loss[:12] == pytest.approx(found["loss"])
    assert loss[12:17] == pytest.approx(found["small"])
    assert curve(one, "train_loss")[:7] == pytest.approx(found["train_score"])
    assert found["stages"] == list(range(7)), "the user's own monitor is asked, and ends it"


def test_alternating_estimators_keep_the_order_of_steps(job: Build) -> None:
    one = with_and_without(job, TWO_IN_TURN)
    found = result(one)

    in_turn = [loss for both in zip(found["first"], found["second"], strict=True) for loss in both]
    assert curve(one, "loss")[:16] == pytest.approx(in_turn + found["whole"])


def test_fastai_shows_epochs_and_leaves_lr_find_alone(job: Build) -> None:
    one = with_and_without(job, FASTAI)
    found = result(one)

    assert curve(one, "train_loss")[-2:] == pytest.approx([row[0] for row in found["values"]])
    assert len(curve(one, "valid_loss")) == 5
    assert curve(one, "accuracy")[-2:] == pytest.approx([row[2] for row in found["values"]])
    assert found["callbacks"] == ["TrainEvalCallback", "Recorder", "CastToTensor", "ProgressCallback"]
    assert (progress(one)["epoch"], progress(one)["epochs"]) == (2, 2)


def test_short_lightning_fit_ends_with_its_last_step(job: Build) -> None:
    program = """
        import lightning, torch
        from torch.utils.data import DataLoader, TensorDataset

        class Line(lightning.LightningModule):
            def __init__(self):
                super().__init__()
                self.net = torch.nn.Linear(2, 1)

            def training_step(self, batch, index):
                loss = self.net(batch[0]).pow(2).mean()
                self.log("loss", loss)
                return loss

            def configure_optimizers(self):
                return torch.optim.SGD(self.parameters(), lr=0.1)

        torch.manual_seed(0)
        data = DataLoader(TensorDataset(torch.randn(40, 2)), batch_size=10)
        options = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False}
        trainer = lightning.Trainer(max_epochs=60, accelerator="cpu", **options)
        trainer.fit(Line(), data)
        result = trainer.callback_metrics["loss"].item()
    """
    one = with_and_without(job, dedent(program))
    points = [json.loads(line) for line in (one.dir / "metrics.jsonl").read_text().splitlines()]

    assert len(points) >= 3
    assert points[-1]["values"] == {"loss": pytest.approx(result(one))}
    assert points[-1]["step"] == progress(one)["step"] == 240


def test_unsupported_version_costs_only_the_curves(job: Build) -> None:
    one = job(
        """
        from xgboost.training import train
        result = train
        """,
        files={
            "xgboost/__init__.py": "",
            "xgboost/training.py": "def train(params, data, num_boost_round=10):\n    return params + data\n",
        },
    )
    one.run()

    assert end_of(one) == "completed"
    assert one.log().count("no automatic metrics from xgboost.training") == 1
    assert "TrainingCallback" in one.log()
