"""What is said about a result that cannot be written at the end of a job."""

from __future__ import annotations

from pathlib import Path

import pytest

from jupyter_dlaas.transfer import results


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
def test_a_model_that_cannot_be_stored_says_in_one_line_what_can(
    tmp_path: Path, parts: dict[str, object], says: str
) -> None:
    _, errors = results.store(tmp_path / "results", ["vae"], {**parts, "vae": _Layer(**parts)})

    assert errors["vae"].endswith(says)
    assert "\n" not in errors["vae"]
    assert "created by passing non-serializable values." in errors["vae"]
