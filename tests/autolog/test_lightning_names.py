"""Private names of Lightning: a release without them breaks no job, and a note says what is lost."""

from __future__ import annotations

import sys
import types
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from jupyter_dlaas.learner.autolog import lightning, lightning_sums


def test_missing_name_is_reported_once_with_its_consequence(capfd: pytest.CaptureFixture[str]) -> None:
    for _ in range(2):
        found = lightning_sums.optional("_renamed", "averages are lost", lambda: SimpleNamespace()._renamed, {"a": 1})
        assert found == {"a": 1}

    said = capfd.readouterr().err
    assert said.count("This release of Lightning has no usable `_renamed`") == 1
    assert "averages are lost" in said


def test_release_without_fetchers_trains_with_a_note(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    class Trainer:
        strategy = object()

        def fit(self, model: object) -> str:
            return "trained"

    module: Any = types.ModuleType("renamed.trainer.trainer")
    module.Trainer = Trainer
    callbacks: Any = types.ModuleType("renamed.callbacks")
    callbacks.Callback = object
    monkeypatch.setitem(sys.modules, "renamed.callbacks", callbacks)
    lightning.hook(module)

    assert Trainer().fit(model=None) == "trained"
    assert "This release of Lightning cannot be halted at a batch" in capfd.readouterr().err


def kept(value: float, size: int, name: str = "mean", **how: Any) -> tuple[dict[str, Any], int, dict[str, Any]]:
    """Return the sum of a logged value as a checkpoint holds it."""
    states = {"value": torch.tensor(value), "cumulated_batch_size": torch.tensor(size)}
    return states, 1, {"reduce_fx": name, "sync_dist": True, "metric_attribute": None, **how}


def test_sums_of_others_are_added_or_reported(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    at = (2, 5, 25)
    first = {"logged": {"loss": kept(3.0, 8), "own": kept(1.0, 8, sync_dist=False)}, "metrics": {}}
    other = {"logged": {"loss": kept(5.0, 4), "own": kept(9.0, 4, sync_dist=False)}, "metrics": {}}
    module = torch.nn.Module()
    lightning_sums.write_own_sums(tmp_path, 0, 1, at, other)

    lightning_sums.add_sums_of_others(module, tmp_path, 0, 2, at, first)

    assert [one.item() for one in first["logged"]["loss"][0].values()] == [8.0, 12]
    assert first["logged"]["own"][0]["value"] == 1.0, "Lightning does not reduce it"
    assert capfd.readouterr().err == ""
    lightning_sums.add_sums_of_others(module, tmp_path, 0, 2, (2, 6, 26), first)
    assert first["logged"]["loss"][0]["value"] == 8.0, "the sums of another step"
    said = capfd.readouterr().err
    assert "Averages over the interrupted epoch (loss) contain only the first learner's part of its first 6" in said
