"""Messages about results that cannot be written at the end of a job."""

from __future__ import annotations

import types
from pathlib import Path

import pytest
import torch

from jupyter_dlaas.transfer import results
from jupyter_dlaas.transfer.pushed_objects import NotSendable, write_pushed


class _Layer:
    """As a layer of Keras, which has weights and says over many lines that its constructor cannot be repeated."""

    def __init__(self, **parts: object) -> None:
        self.__dict__.update(parts)

    def get_weights(self) -> list[float]:
        return [1.0]

    def __reduce__(self) -> tuple[object, ...]:
        raise NotImplementedError("Object VAE was created by passing\nnon-serializable values.\n\nExample:\n")


@pytest.mark.parametrize(
    ("parts", "says"),
    [
        ({}, "its weights can be: vae_weights = vae.get_weights() in the cell, and -o vae_weights"),
        ({"encoder": _Layer()}, "and -o vae_weights; so can its models: -o encoder"),
        ({"encoder": _Layer(), "decoder": _Layer(), "size": 3}, "so can its models: -o encoder,decoder"),
    ],
)
def test_unstorable_model_says_what_can_be_stored(tmp_path: Path, parts: dict[str, object], says: str) -> None:
    _, errors = results.store(tmp_path / "results", ["vae"], {**parts, "vae": _Layer(**parts)})

    assert errors["vae"].endswith(says)
    assert "\n" not in errors["vae"]
    assert "created by passing non-serializable values." in errors["vae"]


def _scaler_without_update() -> torch.amp.GradScaler:
    weight, scaler = torch.nn.Parameter(torch.ones(2)), torch.amp.GradScaler("cpu", 8.0)
    scaler.scale(weight.sum()).backward()
    scaler.step(torch.optim.SGD([weight], lr=0.1))
    return scaler


def test_a_scaler_between_step_and_update_names_the_update(tmp_path: Path) -> None:
    scaler = _scaler_without_update()
    trainer = types.SimpleNamespace(amp=scaler)

    _, errors = results.store(tmp_path / "results", ["scaler"], {"scaler": scaler})
    with pytest.raises(NotSendable) as refused:
        write_pushed(tmp_path / "pushed.bin", {"trainer": trainer})

    assert errors["scaler"].endswith("; call scaler.update() after its last step")
    assert str(refused.value).endswith("Call trainer.amp.update() in a cell, then send it.")
    scaler.update()
    assert results.store(tmp_path / "results", ["scaler"], {"scaler": scaler})[1] == {}


def test_object_without_weights_has_only_a_state(tmp_path: Path) -> None:
    opt = torch.optim.SGD([torch.ones(1)], lr=0.1)
    plan = torch.optim.lr_scheduler.LambdaLR(opt, lambda epoch: 0.5**epoch)
    plan.held = (number for number in range(0))  # type: ignore[attr-defined]

    _, errors = results.store(tmp_path / "results", ["plan"], {"plan": plan})

    assert errors["plan"].endswith("its state can be: plan_state = plan.state_dict() in the cell, and -o plan_state")


def test_unstorable_holder_of_a_model_names_the_model(tmp_path: Path) -> None:
    model, opt = torch.nn.Linear(2, 1), torch.optim.SGD([torch.ones(1)], lr=0.1)
    trainer = types.SimpleNamespace(net=model, opt=opt, rows=(number for number in range(0)))

    _, errors = results.store(tmp_path / "results", ["trainer"], {"model": model, "opt": opt, "trainer": trainer})

    assert errors["trainer"].endswith("; what it trains can be: -o model,opt")
