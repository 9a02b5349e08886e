"""The same training ran in the notebook before: the cell is submitted, and all advice is right."""

from __future__ import annotations

import ast
from dataclasses import replace
from typing import Any

import pytest

from jupyter_dlaas.analysis.model import ExecutedCell, KernelFacts, NameFact, Problem, TrainingCell
from jupyter_dlaas.analysis.own_modules import states_of
from jupyter_dlaas.capture.capture import capture
from jupyter_dlaas.capture.nondeterminism import ends_by_interrupt
from tests.notebook.cases import codes, facts, job, prelude

IMPORTS = "import contextlib, torch\nfrom torch import nn\nfrom tqdm import tqdm"
SETUP = (
    "torch.manual_seed(0)\nx = torch.randn(8, 2)\nloader = [(x, x[:, :1])]\nmodel = nn.Linear(2, 1)\n"
    "opt = torch.optim.SGD(model.parameters(), lr=0.1)\nn, kind, item = 3, 'a', None"
)
STEP = "opt.zero_grad(); loss.backward(); opt.step()"
TENSOR = KernelFacts(names={"loss": NameFact(type_name="torch.Tensor", shape="()", size_bytes=4)})
LOOPS = (
    "for a, b in loader:",
    "for i, (a, b) in enumerate(loader):",
    "for i in range(n):",
    "while step < n:",
    "for a, b in ((p, q) for p, q in loader):",
    "async for a, b in loader:",
)
BINDINGS = (
    "loss = model(x).sum()",
    "with torch.autocast('cpu'):\n    loss = model(x).sum()",
    "with torch.no_grad():\n    out = model(x)\nwith torch.autocast('cpu'), tqdm(loader) as b:\n    loss = out.sum()",
    "with accelerator.accumulate(model):\n    loss = model(x).sum()",
    "with contextlib.suppress(RuntimeError):\n    loss = model(x).sum()",
    "try:\n    loss = model(x).sum()\nexcept RuntimeError:\n    print('out of memory')",
    "try:\n    loss = model(x).sum()\nexcept RuntimeError:\n    continue",
    "if n > 2:\n    loss = model(x).sum()\nelse:\n    loss = model(x).mean()",
    "match kind:\n    case 'a':\n        loss = model(x).sum()",
    "for part in loader:\n    with torch.enable_grad():\n        loss = model(part[0]).sum()",
    "if item is None:\n    with tqdm(loader) as bar:\n        loss = model(x).sum()",
    "async with item:\n    loss = model(x).sum()",
)


PLAIN = (LOOPS[0], BINDINGS[0])


def indented(text: str, by: int) -> str:
    return "\n".join(" " * by + line for line in text.split("\n"))


def loop(head: str, binding: str) -> str:
    body = indented(f"{binding}\n{STEP}", 8)
    return f"step = 0\nfor epoch in range(2):\n    {head}\n{body}\n    print(epoch, loss.item())"


@pytest.mark.parametrize(
    ("head", "binding"), [*((one, BINDINGS[1]) for one in LOOPS), *((LOOPS[0], one) for one in BINDINGS)]
)
def test_name_bound_by_the_loop_itself_is_not_refused(head: str, binding: str) -> None:
    train = loop(head, binding)
    cells = (IMPORTS, "def make():\n    pass\naccelerator = make()", SETUP, train, SETUP)

    assert codes(job(*cells, train=train, facts=TENSOR)) == []
    assert codes(job(*cells, train=f"{train}\nprint(loss)", facts=TENSOR)) == []


def test_name_read_before_the_loop_binds_it_is_a_warning() -> None:
    train = f"for i in range(3):\n    if i % 2 == 0:\n        print(loss)\n    loss = model(x).sum()\n    {STEP}"
    made = job(IMPORTS, SETUP, train, SETUP, train=train, facts=TENSOR)

    assert codes(made) == ["late_undefined"]
    assert "may read `loss` (torch.Tensor, (), 4 bytes) before it is defined there." in made.warnings[0].message
    assert "Use --push loss to send its current value" in made.warnings[0].message


def test_training_is_not_repeated_for_names_of_a_loop() -> None:
    define = f"def train(m):\n    loss = m(x).sum()\n    {STEP}\n    return loss"
    made = job(IMPORTS, SETUP, define, "loss = train(model)", SETUP, train=loop(LOOPS[0], BINDINGS[0]), facts=TENSOR)

    assert codes(made) == []
    assert "loss = train(model)" not in made.text


def advice(*sources: str, train: str, known: KernelFacts | None = None, **options: Any) -> list[tuple[str, ...]]:
    """Return the names of each warning about an earlier training; nothing else is reported."""
    made = job(*sources, train=train, facts=known, **options)
    assert {*codes(made)} <= {"earlier_training"}, codes(made)
    return [one.names for one in made.warnings]


BEST = (
    f"for epoch in range(3):\n    loss = model(x).sum()\n    {STEP}\n    history.append(loss.item())\n"
    "    if loss < best:\n        best, state = loss.item(), model.state_dict()\nmodel.load_state_dict(state)"
)
START = "best, state, history = 9.0, None, []"


def test_advice_names_all_that_the_training_changed() -> None:
    made = job(IMPORTS, SETUP, START, BEST, train=BEST)

    assert [one.message for one in made.warnings] == [
        (
            "cell [4], line 1 trained `model`, `opt` and changed `best`, `history`, `state` here, but the job starts "
            "with new weights and the values from before. Use --push model,opt,best,history,state to send the current "
            "ones, or --with-cell 4 to run that cell in the job."
        )
    ]
    assert "load_state_dict" not in "\n".join(prelude(made))
    assert advice(IMPORTS, SETUP, START, BEST, SETUP, START, train=BEST) == []
    assert advice(IMPORTS, SETUP, START, BEST, SETUP, train=BEST) == [("best", "history", "state")]


DRAWN = ("torch.manual_seed(0)\n{}\nx = torch.randn(8, 2)", "for i in range(2):\n    {}.sum().backward(); opt.step()")
LAYER = "model = nn.Linear(2, 1)\nopt = torch.optim.SGD(model.parameters())"


@pytest.mark.parametrize(
    ("setup", "pushed", "beside"),
    [
        (LAYER, (), ("x",)),
        (LAYER, ("x",), ()),
        (f"x = torch.randn(8, 2)\n{LAYER}", (), ("x",)),
        (f"{LAYER}\ntorch.manual_seed(1)", (), ()),
    ],
)
def test_data_drawn_after_a_trained_model_are_in_its_advice(
    setup: str, pushed: tuple[str, ...], beside: tuple[str, ...]
) -> None:
    imports, cell, train = IMPORTS, DRAWN[0].format(setup), DRAWN[1].format("model(x)")
    ran = [
        ExecutedCell(count=n, source=source, random_state=state)
        for n, (source, state) in enumerate(((imports, "a"), (cell, "a"), (train, "b")), 1)
    ]
    known = {name: NameFact(type_name="torch.Tensor") for name in ("model", "opt", "x")}

    def warned(push: tuple[str, ...]) -> list[Problem]:
        made = capture(ran, TrainingCell(count=4, source=train, push=push), KernelFacts(names=known, random_state="b"))
        return [one for one in made.warnings if one.code in ("earlier_training", "drawn_again")]

    first = warned(pushed)
    names = (*(name for name in ("model", "opt") if name not in pushed), *beside)
    assert [one.names for one in first] == [names]
    assert f"--push {','.join(names)} " in first[0].message
    assert ("`x` must go with them" in first[0].message) == bool(beside)
    assert warned((*pushed, *names)) == []


def test_data_of_a_training_are_not_called_trained() -> None:
    train = "loss = nn.functional.mse_loss(model(x[:, :2]), x[:, :1])\nloss.backward(); opt.step(); opt.zero_grad()"
    pushed = job(
        IMPORTS, SETUP, train, train=f"for i in range(3):\n    {train.replace(chr(10), '; ')}", push=("model", "opt")
    )

    assert "earlier_training" not in codes(pushed)
    assert advice(IMPORTS, SETUP, train, train=train) == [("model", "opt")]


MAKER = (
    f"def make(model, opt):\n    def step(x):\n        loss = model(x).sum()\n        {STEP}\n    return step",
    "step = make(model, opt)",
)
AVERAGE = f"loss = model(x).sum()\n{STEP}\nfor p, q in zip(ema.parameters(), model.parameters()):\n    p.lerp_(q, 0.1)"
NETS = (
    "nets = {k: nn.Linear(2, 1) for k in 'ab'}",
    "opts = {k: torch.optim.SGD(m.parameters()) for k, m in nets.items()}",
)
ACCUMULATED = (
    "for a, b in loader:\n    with accelerator.accumulate(model):\n        loss = model(a).sum()\n"
    "        accelerator.backward(loss); opt.step()"
)
COUNTED = (
    "count = 0\ndef step():\n    global count, last\n    last = model(x).sum()\n    last.backward(); opt.step()\n"
    "    count += 1"
)
CLOSURE = "def closure():\n    loss = model(x).sum()\n    loss.backward()\n    return loss"


@pytest.mark.parametrize(
    ("cells", "train", "names"),
    [
        ((CLOSURE,), "for i in range(2):\n    loss = opt.step(closure)", ("model", "opt")),
        (MAKER, "for i in range(2):\n    value = step(x)", ("model", "opt")),
        (("import copy", "ema = copy.deepcopy(model)"), AVERAGE, ("model", "opt")),
        (NETS, "for k in nets:\n    nets[k](x).sum().backward(); opts[k].step()", ("nets", "opts")),
        (("model, opt, loader = accelerator.prepare(model, opt, loader)",), ACCUMULATED, ("model", "opt")),
        ((COUNTED,), "for i in range(2):\n    step()\n    print(count, last)", ("model", "opt", "count")),
    ],
)
def test_trained_objects_are_found(cells: tuple[str, ...], train: str, names: tuple[str, ...]) -> None:
    first = advice(IMPORTS, SETUP, "accelerator = object()", *cells, train, train=train)[0]

    assert first == names


def test_training_whose_result_is_bound_again_is_reported() -> None:
    train = "out = trainer.train()\nprint(out)"
    cells = ("from transformers import Trainer", "trainer = Trainer(model='m')", train)

    assert advice(*cells, train=train) == [("trainer",)]
    assert advice(*cells, "trainer = Trainer(model='m')", train=train) == []


def test_interrupted_training_is_reported_without_running_it_again() -> None:
    fit = "from sklearn.neural_network import MLPClassifier\nnet = MLPClassifier(warm_start=True)"
    made = job(
        fit, "x, y = [[1.0], [2.0]], [0, 1]", "net.partial_fit(x, y)", train="net.partial_fit(x, y)", raised={3: 1}
    )

    assert [one.message for one in made.warnings] == [
        (
            "cell [3], line 1 trained `net` here, until it raised an error, but the job starts with new weights. "
            "Use --push net to send the current ones."
        )
    ]


CAUGHT = "try:\n    {}\nexcept KeyboardInterrupt:\n    print('stopped')"
SUPPRESSED = "with contextlib.suppress(KeyboardInterrupt):\n    {}"
ALL_CAUGHT = "try:\n    {}\nexcept (ValueError, BaseException) as error:\n    print(error)"
ALL_SUPPRESSED = "with contextlib.suppress(BaseException):\n    {}"


@pytest.mark.parametrize("catch", [CAUGHT, SUPPRESSED, ALL_CAUGHT, ALL_SUPPRESSED])
def test_loops_that_catch_their_interruption_are_reported(catch: str) -> None:
    train = catch.format(f"for i in range(9):\n        loss = model(x).sum(); {STEP}")
    collect = "seen = []\n" + catch.format("for i in range(9):\n        seen.append(i); n = i")
    known = facts(
        seen=NameFact(type_name="list"), n=4, model=NameFact(type_name="Linear"), opt=NameFact(type_name="SGD")
    )
    made = job(IMPORTS, SETUP, collect, train, train=f"print(seen, n)\n{train}", facts=known)

    assert [(one.code, one.names) for one in made.warnings] == [
        ("earlier_training", ("model", "opt")),
        ("drawn_again", ("n", "seen")),
    ]
    assert "--with-cell" not in made.warnings[0].message
    assert "Use --push n,seen to send the notebook's values" in made.warnings[1].message
    assert codes(job(IMPORTS, SETUP, collect, train=f"print(seen, n)\n{train}", push=("n", "seen"), facts=known)) == []


ENDLESS = "while True:\n        n += 1"


@pytest.mark.parametrize(
    ("source", "what"),
    [
        (f"try:\n    {ENDLESS}\nexcept:\n    pass", "KeyboardInterrupt in `except:`"),
        ("for n in range(9):\n    try:\n        f(n)\n    except BaseException:\n        break", "BaseException"),
        ("while True:\n    try:\n        n += 1\n    except KeyboardInterrupt:\n        break", "KeyboardInterrupt"),
        (
            f"for _ in range(1):\n    try:\n        {indented(ENDLESS, 4).strip()}\n    finally:\n        break",
            "KeyboardInterrupt by `break` in `finally:`",
        ),
        (
            "def count(n):\n    try:\n        for n in range(9): f(n)\n    finally:\n        return n",
            "KeyboardInterrupt by `return` in `finally:`",
        ),
        (f"try:\n    {ENDLESS}\nexcept* BaseException:\n    pass", "BaseException"),
    ],
)
def test_each_way_to_catch_an_interrupt_is_recognised(source: str, what: str) -> None:
    assert ends_by_interrupt(ast.parse(source)) == what


@pytest.mark.parametrize(
    "source",
    [
        "try:\n    for n in range(9): f(n)\nexcept:\n    print('failed')",
        "try:\n    while True: n = next(it)\nexcept:\n    pass",
        "try:\n    while True:\n        n += 1\n        if n > 9: break\nexcept:\n    pass",
        "while True:\n    try:\n        n = next(it)\n    except:\n        break",
        "for n in range(9):\n    try:\n        f(n)\n    except BaseException:\n        continue",
        f"try:\n    {ENDLESS}\nexcept KeyboardInterrupt:\n    raise\nexcept:\n    pass",
        "try:\n    for n in range(9): f(n)\nexcept BaseException:\n    print(n)\n    raise",
        "try:\n    for n in range(9): f(n)\nfinally:\n    for one in handles:\n        if not one: break",
        "try:\n    f()\nexcept BaseException:\n    pass",
    ],
)
def test_loops_that_an_interrupt_need_not_end_are_not_reported(source: str) -> None:
    assert ends_by_interrupt(ast.parse(source)) == ""


def test_number_of_an_interrupted_loop_comes_from_the_kernel() -> None:
    count = "n = 0\n" + CAUGHT.format("while True:\n        n += 1")
    made = job(IMPORTS, count, train="print(n)", facts=facts(n=4))

    assert codes(made) == []
    assert prelude(made)[-1].startswith("n = 4 ")


BARE = "try:\n    {}\nexcept:\n    print('stopped')"
IN_FUNCTION = (
    "def run():\n    try:\n        for i in range(n):\n            losses.append(i)\n    except:\n        pass\n"
)


@pytest.mark.parametrize(
    "cells",
    [
        (BARE.format("for i in range(n):\n        losses.append(i)"),),
        (IN_FUNCTION, "run()"),
        ("for i in range(n):\n    try:\n        losses.append(i)\n    except:\n        break",),
    ],
)
def test_interrupted_loop_in_a_bare_except_is_reported(cells: tuple[str, ...]) -> None:
    sources = ("n, losses = 99, []", *cells)
    ran = [ExecutedCell(count=n, source=source) for n, source in enumerate(sources, 1)]
    known = facts(n=99, losses=NameFact(type_name="list", size_bytes=10**6))
    training = TrainingCell(count=9, source="print(losses)")
    quiet = capture(ran, training, known)
    made = capture([*ran[:-1], replace(ran[-1], interrupted=True)], training, known)

    assert codes(quiet) == []
    assert codes(made) == ["drawn_again"]
    assert "losses" in made.warnings[0].names
    assert "until it is interrupted (it catches KeyboardInterrupt in `except:`)" in made.warnings[0].message


def test_training_whose_interrupt_was_caught_cannot_run_again() -> None:
    cells = ("import torch, engine", SETUP, "trainer = Trainer(model, opt)", "trainer.fit(model, loader)")
    ran = [ExecutedCell(count=n, source=source) for n, source in enumerate(cells, 1)]
    training = TrainingCell(count=9, source=cells[-1])
    known = facts(model=NameFact(type_name="torch.nn.Linear"))
    (whole,) = capture(ran, training, known).warnings
    (early,) = capture([*ran[:-1], replace(ran[-1], interrupted=True)], training, known).warnings

    assert whole.message.endswith("or --with-cell 4 to run that cell in the job.")
    assert "here, until it was interrupted, but the job starts with new weights" in early.message
    assert early.message.endswith("to send the current ones.")


def test_interrupted_loop_of_arrays_is_an_earlier_training() -> None:
    descent = "for i in range(9):\n    error = x @ w - y\n    w -= 0.1 * x.T @ error\n    costs.append(error.sum())"
    cells = ("import numpy as np\nx, y = np.eye(2), np.ones(2)", "w, costs = np.zeros(2), []", descent)

    assert advice(*cells, train=descent, raised={3: 3}) == [("w", "costs")]
    assert codes(job(*cells, train=descent)) == []


def test_estimators_that_begin_with_each_fit_are_not_mentioned() -> None:
    cells = ("from sklearn.svm import SVC", "x, y, net = [[1.0], [2.0]], [0, 1], SVC()", "net.fit(x, y)")
    known = KernelFacts(names={"net": NameFact(type_name="sklearn.svm._classes.SVC")})

    assert advice(*cells, train="net.fit(x, y)\nprint(net.score(x, y))", known=known) == []
    assert advice(*cells, train="print(net.score(x, y))\nnet.fit(x, y)", known=known) == [("net",)]


def test_runs_of_one_cell_are_repeated_together() -> None:
    made = job(IMPORTS, SETUP, START, "", loop(*PLAIN), loop(*PLAIN), train=loop(*PLAIN))

    assert made.warnings[-1].message.endswith("or --with-cell 5,6 to run that cell in the job.")


def test_value_found_by_an_earlier_training_comes_from_the_kernel() -> None:
    search = (
        "for lr in (0.1, 0.2):\n    model = nn.Linear(2, 1)\n    opt = torch.optim.SGD(model.parameters(), lr)\n"
        f"    loss = model(x).sum()\n    {STEP}\n    if loss < best:\n        best, best_lr = loss.item(), lr"
    )
    last = "model = nn.Linear(2, 1)\nopt = torch.optim.SGD(model.parameters(), lr=best_lr)"
    made = job(IMPORTS, SETUP, "best, best_lr = 9.0, None", search, last, train=loop(*PLAIN), facts=facts(best_lr=0.2))

    assert codes(made) == []
    assert "best_lr = 0.2" in made.text


def test_pushed_values_replace_those_of_statements_that_are_kept() -> None:
    train = f"for i in range(n):\n    loss = model(x).sum()\n    {STEP}\n    n -= 1"
    made = job(
        IMPORTS, SETUP, train, train=f"print(kind)\n{train}", push=("model", "opt", "n"), facts=facts(n=1, kind="a")
    )
    lines = prelude(made)

    assert lines.index("n = 1  # the kernel's value: sent by --push") > lines.index("n, kind, item = 3, 'a', None")


ENGINE = """
from torch.optim import SGD
from .steps import inner
def one_pass(net, data):
    step = SGD(net.parameters(), lr=0.1)
    for a, b in data:
        net(a).sum().backward()
        step.step()
def through_another(net, data):
    return inner(net, data, SGD(net.parameters(), lr=0.1))
def score(net, data):
    return sum(net(a).sum() for a, b in data)
class Coach:
    def __init__(self, net, optimizer):
        self.net, self.optimizer = net, optimizer
    def go(self, data):
        for a, b in data:
            self.net(a).sum().backward()
            self.optimizer.step()
    def show(self):
        print(self.net)
"""
INNER = "def inner(net, data, optimizer):\n    for a, b in data:\n        net(a).sum().backward(); optimizer.step()"
MODULES = states_of({"own/engine.py": ENGINE, "own/steps.py": INNER, "own/__init__.py": ""})
OWN = "from own import engine\nfrom own.engine import *\nfrom own.engine import one_pass as do_it"


@pytest.mark.parametrize(
    "call",
    [
        "engine.one_pass(model, loader)",
        "do_it(model, data=loader)",
        "out = engine.through_another(model, loader)",
        "coach = Coach(model, opt)\ncoach.go(loader)",
        "coach = engine.Coach(model, opt)\nfor epoch in range(3):\n    coach.go(loader)",
    ],
)
def test_imported_functions_of_any_name_train(call: str) -> None:
    known = replace(facts(model=NameFact(type_name="torch.nn.Linear"), loader=[]), module_states=MODULES)
    setup = f"{IMPORTS}\n{SETUP}\n{OWN}"
    before = job(setup, call, train="print(model(x))", facts=known)
    trains = job(setup, train=call, facts=known)

    assert codes(before) == ["earlier_training"]
    assert "model" in before.warnings[0].names
    assert "model" in trains.altered
    assert "loader" not in trains.altered


def test_imported_functions_that_train_nothing_are_quiet() -> None:
    known = replace(facts(model=NameFact(type_name="torch.nn.Linear"), loader=[]), module_states=MODULES)
    look = "out = engine.score(model, loader)\nprint(score(model, loader))\nengine.Coach(model, opt).show()"

    assert codes(job(f"{IMPORTS}\n{SETUP}\n{OWN}", look, train="print(model(x))", facts=known)) == []
