"""Gradients that one cell makes and another uses."""

from __future__ import annotations

import pytest

from tests.notebook.cases import codes, job, prelude

WEIGHTS = "import torch\nw = torch.ones(1)\nw.requires_grad_()"
MODEL = "import torch\nmodel = torch.nn.Linear(2, 1)\nopt = torch.optim.SGD(model.parameters())\nx = torch.ones(3, 2)"


def test_gradient_reader_needs_backward_pass_and_loss() -> None:
    update = "with torch.no_grad():\n    w -= w.grad * 0.1"
    made = job(WEIGHTS, "loss = (w ** 2).sum()", "loss.backward()", update, train="print(w)")

    assert prelude(made)[3:5] == ["loss = (w ** 2).sum()", "loss.backward()"]
    assert "    w -= w.grad * 0.1" in prelude(made)
    assert codes(made) == []


def test_a_training_cell_that_only_steps_needs_the_backward_pass() -> None:
    made = job(MODEL, "loss = model(x).sum()", "loss.backward()", train="opt.step()\nprint(loss)")

    assert prelude(made)[-2:] == ["loss = model(x).sum()", "loss.backward()"]
    assert codes(made) == []


def test_training_cell_with_backward_needs_no_earlier_gradient() -> None:
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


COMPUTES = {
    "a function": ("def compute():\n    loss = model(x).sum()\n    loss.backward()\n    return loss", "compute()"),
    "a function of arguments": ("def compute(m, x):\n    m(x).sum().backward()", "compute(model, x)"),
    "a function in another one": (
        "def backward(loss):\n    loss.backward()\ndef compute():\n    backward(model(x).sum())",
        "loss = compute()",
    ),
    "a method": (
        "class Task:\n    def compute(self):\n        model(x).sum().backward()\ntask = Task()",
        "task.compute()",
    ),
    "a function that clears first": (
        "def compute():\n    opt.zero_grad()\n    model(x).sum().backward()",
        "compute()",
    ),
}


@pytest.mark.parametrize("way", COMPUTES)
def test_gradients_made_by_a_function_are_kept_for_readers(way: str) -> None:
    definition, call = COMPUTES[way]
    made = job(MODEL, definition, call, train="opt.step()\nprint(model.weight)")

    assert call in prelude(made)
    assert codes(made) == []


def test_a_function_that_uses_gradients_needs_them() -> None:
    apply = "def apply():\n    opt.step()"
    made = job(MODEL, apply, "loss = model(x).sum()", "loss.backward()", train="apply()")

    assert "loss.backward()" in prelude(made)


def test_backward_in_a_called_function_needs_no_earlier_gradient() -> None:
    compute = "def compute():\n    model(x).sum().backward()"
    train = "for i in range(3):\n    opt.zero_grad()\n    compute()\n    opt.step()"
    made = job(MODEL, compute, "compute()", train=train)

    assert "compute()" not in prelude(made)


def test_a_function_that_trains_is_no_source_of_gradients() -> None:
    fit = "def fit():\n    for i in range(3):\n        model(x).sum().backward()\n        opt.step()"
    made = job(MODEL, fit, "fit()", train="opt.step()\nprint(model)")

    assert "fit()" not in prelude(made)


OWN_OPTIMISERS = {
    "another name": "sgd = torch.optim.SGD([w], 0.1)",
    "a subclass": (
        "class Mine(torch.optim.Optimizer):\n    def step(self, closure=None):\n        pass\nlearn = Mine([w], {})"
    ),
    "a class of its own": (
        "class Rule:\n    def __init__(self, w):\n        self.w = w\n    def step(self, k=1):\n"
        "        self.w.data -= self.w.grad\n    def zero_grad(self):\n        pass\nrule = Rule([w])"
    ),
    "a wrapper": (
        "class Noam:\n    def __init__(self, inner):\n        self.inner = inner\n    def step(self):\n"
        "        self.inner.step()\nnoam = Noam(torch.optim.SGD([w], 0.1))"
    ),
    "a wrapper of a library": (
        "from slow import Lookahead\nsgd = torch.optim.SGD([w], 0.1)\nahead = Lookahead(sgd, k=5)"
    ),
}


@pytest.mark.parametrize("way", OWN_OPTIMISERS)
def test_an_optimiser_of_any_name_needs_the_backward_pass(way: str) -> None:
    cells = OWN_OPTIMISERS[way].split("\n")
    name = cells[-1].partition(" ")[0]
    made = job(WEIGHTS, "\n".join(cells), "loss = (w ** 2).sum()", "loss.backward()", train=f"{name}.step()\nprint(w)")

    assert prelude(made)[-2:] == ["loss = (w ** 2).sum()", "loss.backward()"]
    assert codes(made) == []


@pytest.mark.parametrize("way", OWN_OPTIMISERS)
def test_optimiser_loop_of_any_name_makes_no_gradients(way: str) -> None:
    cells = OWN_OPTIMISERS[way].split("\n")
    name = cells[-1].partition(" ")[0]
    loop = f"for i in range(3):\n    (w ** 2).sum().backward()\n    {name}.step()"
    made = job(WEIGHTS, "\n".join(cells), loop, train=f"{name}.step()\nprint(w)")

    assert f"    {name}.step()" not in prelude(made)


@pytest.mark.parametrize("step", ["env.step(action)", "scheduler.step()", "prof.step()"])
def test_steps_of_other_objects_need_no_backward_pass(step: str) -> None:
    name = step.partition(".")[0]
    made = job(MODEL, f"action = 1\n{name} = make()", "loss = model(x).sum()\nloss.backward()", train=step)

    assert "loss.backward()" not in prelude(made)


LOSS = "model(x).sum().backward()"
DEFINED = f"def go(clear):\n    opt.zero_grad()\n    {LOSS}\n    opt.step()\ndef add():\n    {LOSS}\n    opt.step()"


@pytest.mark.parametrize(
    ("body", "is_cleared"),
    [
        (f"opt.zero_grad(); {LOSS}; opt.step()", True),
        (f"for p in model.parameters(): p.grad = None\n    {LOSS}; opt.step()", True),
        ("go(True)", True),
        (f"{LOSS}; opt.step(); opt.zero_grad()", False),
        (f"if i % 4 == 3: opt.zero_grad()\n    {LOSS}; opt.step()", False),
        (f"{LOSS}\n    if i % 4 == 3:\n        opt.step(); opt.zero_grad()", False),
        ("add()", False),
        ("opt.step(); opt.zero_grad()", False),
        (f"try:\n        pass\n    except ValueError:\n        opt.zero_grad()\n    {LOSS}; opt.step()", False),
    ],
)
def test_gradients_of_an_earlier_cell_are_sent_unless_cleared_first(body: str, is_cleared: bool) -> None:
    made = job(MODEL, DEFINED, LOSS, train=f"for i in range(3):\n    {body}")

    assert made.clears_gradients_first == is_cleared
    assert (LOSS in prelude(made)) == (not is_cleared), "what an earlier cell computed is added to"


@pytest.mark.parametrize(
    "body",
    [
        f"    if i:\n        opt.zero_grad(); {LOSS}; opt.step()",
        f"    opt.zero_grad()\n    if i:\n        {LOSS}; opt.step()",
    ],
)
def test_gradients_cleared_in_the_same_branch_need_no_earlier_ones(body: str) -> None:
    assert LOSS not in prelude(job(MODEL, LOSS, train=f"for i in range(3):\n{body}"))


def test_a_statement_that_may_clear_gradients_keeps_earlier_ones() -> None:
    made = job(MODEL, LOSS, train=f"if x.sum() > 9:\n    opt.zero_grad()\n{LOSS}\nopt.step()")

    assert LOSS in prelude(made)
    assert not made.clears_gradients_first


def test_earlier_training_with_an_own_update_is_not_repeated() -> None:
    sgd = "def sgd(ps):\n    for p in ps:\n        p.data -= p.grad\n        p.grad.zero_()"
    loop = "for i in range(3):\n    l = (w * 2).sum()\n    l.backward()\n    sgd([w])"
    made = job(WEIGHTS, sgd, loop, train=loop)

    assert "    l.backward()" not in prelude(made)
    assert codes(made) == ["earlier_training"]


@pytest.mark.parametrize(("push", "is_kept"), [(("x",), True), (("model", "opt"), False)])
def test_backward_pass_of_pushed_objects_does_not_run_again(push: tuple[str, ...], is_kept: bool) -> None:
    made = job(MODEL, LOSS, train="opt.step()\nprint(model)", push=push)

    assert (LOSS in prelude(made)) == is_kept


def test_pushed_model_has_its_gradients_from_the_notebook() -> None:
    made = job(MODEL, LOSS, train=f"for i in range(3):\n    {LOSS}; opt.step(); opt.zero_grad()", push=("model", "opt"))

    assert not made.clears_gradients_first
    assert LOSS not in prelude(made)
