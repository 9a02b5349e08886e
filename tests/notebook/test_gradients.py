"""Gradients that one cell makes and another uses."""

from __future__ import annotations

from tests.notebook.cases import codes, job, prelude

WEIGHTS = "import torch\nw = torch.ones(1)\nw.requires_grad_()"
MODEL = "import torch\nmodel = torch.nn.Linear(2, 1)\nopt = torch.optim.SGD(model.parameters())\nx = torch.ones(3, 2)"


def test_a_kept_reader_of_a_gradient_needs_the_backward_pass_and_its_loss() -> None:
    update = "with torch.no_grad():\n    w -= w.grad * 0.1"
    made = job(WEIGHTS, "loss = (w ** 2).sum()", "loss.backward()", update, train="print(w)")

    assert prelude(made)[3:5] == ["loss = (w ** 2).sum()", "loss.backward()"]
    assert "    w -= w.grad * 0.1" in prelude(made)
    assert codes(made) == []


def test_a_training_cell_that_only_steps_needs_the_backward_pass() -> None:
    made = job(MODEL, "loss = model(x).sum()", "loss.backward()", train="opt.step()\nprint(loss)")

    assert prelude(made)[-2:] == ["loss = model(x).sum()", "loss.backward()"]
    assert codes(made) == []


def test_a_training_cell_that_goes_backward_itself_does_not() -> None:
    train = "for i in range(3):\n    opt.zero_grad()\n    model(x).sum().backward()\n    opt.step()"
    made = job(MODEL, "model(x).sum().backward()", train=train)

    assert "model(x).sum().backward()" not in prelude(made)


def test_gradients_that_were_cleared_since_are_not_made_again() -> None:
    first, second = (f"{name} = model(x).sum()\n{name}.backward()" for name in ("first", "second"))
    made = job(MODEL, first, "opt.zero_grad()", second, train="opt.step()")

    assert "first.backward()" not in prelude(made)
    assert "second.backward()" in prelude(made)


def test_an_earlier_training_is_no_source_of_gradients() -> None:
    loop = "for i in range(3):\n    model(x).sum().backward()\n    opt.step()"
    made = job(MODEL, loop, train="opt.step()\nprint(model)")

    assert "    opt.step()" not in prelude(made)


def test_a_function_that_gives_gradients_is_no_gradient() -> None:
    made = job("import jax\ng = jax.grad(abs)", "loss.backward()", train="print(g(1.0), jax.grad)")

    assert prelude(made) == ["import jax", "g = jax.grad(abs)"]
