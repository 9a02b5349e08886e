"""Data flow beside plain names: generators that are objects, names as text, patches by decorators."""

from __future__ import annotations

import pytest

from tests.notebook.cases import codes, job, prelude

GENERATOR = "import numpy as np\nrng = np.random.default_rng(0)"
TORCH = "import torch\ng = torch.Generator().manual_seed(0)"


@pytest.mark.parametrize(
    ("made", "look", "train"),
    [
        (GENERATOR, "print(rng.random())", "x = rng.normal(size=3)"),
        ("import random\nr = random.Random(1)", "repr(r.random())", "x = r.random()"),
        (TORCH, "print(torch.rand(2, generator=g))", "x = torch.rand(2, generator=g)"),
        (TORCH, "torch.randperm(4, generator=g)", "x = torch.rand(2, generator=g)"),
        (f"{TORCH}\nloader = L([1], shuffle=True, generator=g)", "b = next(iter(loader))", "for b in loader: pass"),
        ("dls = DataLoaders(1)", "dls.one_batch()", "fit(dls)"),
    ],
)
def test_look_that_draws_from_a_needed_generator_is_captured(made: str, look: str, train: str) -> None:
    assert look in prelude(job(made, look, train=train))


def test_asking_a_generator_for_its_state_draws_nothing() -> None:
    assert prelude(job(TORCH, "print(g.initial_seed())", train="torch.rand(2, generator=g)")) == TORCH.splitlines()


def test_a_name_that_is_looked_up_as_text_is_needed() -> None:
    again = 'scale = globals().get("scale", 1) * 2'

    assert prelude(job(again, again, train="print(scale)")) == [again, again]


@pytest.mark.parametrize(
    "guarded",
    ['rate = rate / 2 if "rate" in globals() else 0.2', 'if "rate" not in globals():\n    rate = 0.2\nrate = rate / 2'],
)
def test_name_read_only_if_defined_is_not_missing(guarded: str) -> None:
    made = job(guarded, train="print(rate)")

    assert codes(made) == []
    assert made.is_ready


def test_method_added_by_a_decorator_is_captured() -> None:
    patch = (
        "def patch(cls):\n    def inner(f):\n        setattr(cls, f.__name__, f)\n        return f\n    return inner"
    )
    method = "@patch(Learner)\ndef fit(self):\n    return 1"
    made = job(patch, "class Learner: pass", method, "learn = Learner()", train="learn.fit()")

    assert "@patch(Learner)" in prelude(made)


def test_class_registered_by_a_decorator_is_captured() -> None:
    inner = "    def inner(c):\n        KINDS[kind] = c\n        return c\n    return inner"
    register = f"KINDS = {{}}\ndef register(kind):\n{inner}"
    made = job(register, '@register("mlp")\nclass Net: pass', train='net = KINDS["mlp"]()')

    assert '@register("mlp")' in prelude(made)
