"""State of results is loaded into the objects that are there, so that all that refers to them stays connected."""

from __future__ import annotations

import copy
import importlib
import random
from collections import defaultdict, deque
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.optim import lr_scheduler

from jupyter_dlaas.transfer import results
from jupyter_dlaas.transfer.class_definitions import changed_names, rebound_names
from jupyter_dlaas.transfer.pushed_objects import mend_schedulers
from jupyter_dlaas.transfer.result_restore import Restored, restore

pd: Any = importlib.import_module("pandas")


class Trainer:
    """A class of the user's that holds a model and an optimiser."""

    def __init__(self, model: nn.Module, opt: torch.optim.Optimizer | None = None) -> None:
        self.model, self.opt, self.losses = model, opt, [1.0]


class Counting(nn.Linear):
    """A module with a plain attribute of its own."""

    seen = 0


def trained(values: dict[str, Any]) -> dict[str, Any]:
    """Return the results of a job that trained a copy of these values."""
    data = results.dump(values)
    got: dict[str, Any] = results.load(data)
    mend_schedulers(got.values())
    for value in got.values():
        parts = [value, *(value if isinstance(value, list) else ()), *(vars(value).values() if is_own(value) else ())]
        for part in parts:
            if isinstance(part, torch.optim.Optimizer):
                for group in part.param_groups:
                    for one in group["params"]:
                        one.grad = torch.ones_like(one)
                part.step()
                part.zero_grad()
    for value in got.values():
        for part in [value, *(value if isinstance(value, list) else ())]:
            if isinstance(part, nn.Module):
                for one in part.parameters():
                    one.data.fill_(5.0)
    return got


def is_own(value: object) -> bool:
    return isinstance(value, Trainer)


def fives(*modules: nn.Module) -> bool:
    return all(bool((one == 5.0).all()) for module in modules for one in module.parameters())


def in_place(values: dict[str, Any]) -> Restored:
    return restore(trained(values), values)


def test_model_and_optimiser_keep_identity_and_get_the_state() -> None:
    model = nn.Linear(2, 1)
    opt = torch.optim.Adam(model.parameters(), lr=0.1)
    weight = model.weight

    found = in_place({"model": model, "opt": opt})

    assert found.values["model"] is model
    assert found.values["opt"] is opt
    assert model.weight is weight
    assert fives(model)
    assert opt.state[weight]["step"].item() == 1.0


def test_two_names_of_one_model_stay_one_model() -> None:
    model = nn.Linear(2, 1)

    found = in_place({"model": model, "net": model})

    assert found.values["model"] is found.values["net"] is model
    assert fives(model)


def test_trainer_keeps_identity_and_gets_new_fields() -> None:
    model = nn.Linear(2, 1)
    trainer = Trainer(model, torch.optim.SGD(model.parameters(), lr=0.1))
    values = {"model": model, "trainer": trainer}
    got = trained(values)
    got["trainer"].losses.append(0.5)
    got["trainer"].best = 0.5

    found = restore(got, values)

    assert found.values["trainer"] is trainer
    assert trainer.model is model
    assert fives(model)
    assert (trainer.losses, vars(trainer)["best"]) == ([1.0, 0.5], 0.5)


def test_scheduler_continues_over_the_existing_optimiser() -> None:
    model = nn.Linear(2, 1)
    opt = torch.optim.SGD(model.parameters(), lr=1.0)
    values = {"model": model, "opt": opt, "plan": torch.optim.lr_scheduler.StepLR(opt, 1, 0.1)}
    got = trained(values)
    got["plan"].step()

    found = restore(got, values)

    assert found.values["plan"] is values["plan"]
    assert values["plan"].optimizer is opt
    assert (values["plan"].last_epoch, opt.param_groups[0]["lr"]) == (1, 0.1)


def test_a_moving_average_is_loaded_beside_its_model() -> None:
    model = nn.Linear(2, 1)
    average = copy.deepcopy(model)

    found = in_place({"average": average, "model": model})

    assert found.values == {"average": average, "model": model}
    assert fives(model, average)


def test_tied_weights_stay_tied() -> None:
    one, other = nn.Linear(2, 2), nn.Linear(2, 2)
    other.weight = one.weight
    assert in_place({"one": one, "other": other}).values == {"one": one, "other": other}
    assert other.weight is one.weight

    apart = {"one": nn.Linear(2, 2), "other": nn.Linear(2, 2)}
    found = restore(trained({"one": one, "other": other}), apart)
    assert found.reason == "its parts are connected differently in the job"
    assert found.values["one"].weight is found.values["other"].weight
    assert not fives(apart["one"])


def test_two_models_of_one_optimiser_are_all_loaded() -> None:
    one, other = nn.Linear(2, 2), nn.Linear(2, 2)
    opt = torch.optim.SGD([*one.parameters(), *other.parameters()], lr=0.1)

    assert in_place({"one": one, "other": other, "opt": opt}).values == {"one": one, "other": other, "opt": opt}
    assert fives(one, other)


def test_a_new_list_holds_the_models_that_were_there() -> None:
    models = [nn.Linear(2, 2), nn.Linear(2, 2)]

    found = in_place({"models": models, "best": models[1]})

    assert [new is old for new, old in zip(found.values["models"], models, strict=True)] == [True, True]
    assert found.values["best"] is models[1]
    assert fives(*models)


def test_models_that_only_containers_hold_keep_their_identity() -> None:
    nets = {name: nn.Linear(2, 1) for name in "ab"}
    steppers = {name: torch.optim.Adam(net.parameters()) for name, net in nets.items()}
    plans = [lr_scheduler.StepLR(one, 2) for one in steppers.values()]
    got: dict[str, Any] = results.load(results.dump({"nets": nets, "steppers": steppers, "plans": plans}))
    got["nets"]["b"].weight.data.fill_(5.0)

    found = restore(got, {"nets": nets, "steppers": steppers, "plans": plans}).values

    assert [found["nets"][name] is net for name, net in nets.items()] == [True, True]
    assert found["steppers"]["b"] is steppers["b"]
    assert found["plans"][1].optimizer is steppers["b"]
    assert nets["b"].weight.tolist() == [[5.0, 5.0]]
    alone = restore({"steppers": got["steppers"]}, {"steppers": steppers})
    assert alone.values["steppers"]["b"] is not steppers["b"]
    assert "is not among the results" in alone.reason


def test_items_of_a_filled_dict_keep_their_identity() -> None:
    nets: dict[str, nn.Module] = {"same": nn.Linear(2, 1), "other": nn.Linear(2, 1)}
    same, other = nets["same"], nets["other"]
    got: dict[str, Any] = results.load(results.dump({"nets": {**nets, "other": nn.Linear(3, 1), "new": nn.ReLU()}}))
    got["nets"]["same"].weight.data.fill_(5.0)

    found = restore(got, {"nets": nets}, changed={"nets"})

    assert found.values["nets"] is nets
    assert (nets["same"] is same, nets["other"] is other, [*nets]) == (True, False, ["same", "other", "new"])
    assert same.weight.tolist() == [[5.0, 5.0]]  # type: ignore[operator]  # a tensor


def test_arrays_and_plain_values_are_new_and_stay_one_graph() -> None:
    array, model = np.zeros(2), nn.Linear(2, 1)
    values = {"array": array, "table": {"first": array}, "model": model, "pair": [model, array]}

    found = in_place(values).values

    assert found["array"] is not array
    assert found["table"]["first"] is found["array"] is found["pair"][1]
    assert found["pair"][0] is model


def test_trainable_tensors_of_an_optimiser_are_loaded() -> None:
    w = torch.zeros(2, requires_grad=True)
    opt = torch.optim.SGD([w], lr=1.0)

    found = in_place({"w": w, "opt": opt})

    assert found.values["w"] is w
    assert w.tolist() == [-1.0, -1.0]


def test_twice_is_as_good_as_once() -> None:
    model = nn.Linear(2, 1)
    values = {"model": model, "opt": torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)}

    for _ in range(2):
        assert in_place(values).values == values
    assert fives(model)
    assert values["opt"].param_groups[0]["params"][0] is model.weight  # type: ignore[attr-defined]


def test_plain_attributes_modes_and_frozen_weights_come_along() -> None:
    model = Counting(2, 1)
    got = trained({"model": model})
    got["model"].seen = 3
    got["model"].eval()
    got["model"].weight.requires_grad_(False)

    restore(got, {"model": model})

    assert (model.seen, model.training, model.weight.requires_grad) == (3, False, False)


@pytest.mark.parametrize(
    ("there", "why"),
    [
        (nn.Linear(3, 1), "its weights have different shapes or types"),
        (nn.Sequential(nn.Linear(2, 1)), "the job's value is a Linear"),
        (nn.Linear(2, 1, bias=False), "it is built differently"),
        (nn.Linear(2, 1).double(), "its weights have different shapes or types"),
    ],
)
def test_mismatched_model_is_new_with_its_graph(there: nn.Module, why: str) -> None:
    model = nn.Linear(2, 1)
    values = {"model": model, "opt": torch.optim.SGD(model.parameters(), lr=0.1)}
    before = {key: one.clone() for key, one in there.state_dict().items()}

    found = restore(trained(values), {**values, "model": there})

    assert found.reason == why
    assert found.values["opt"].param_groups[0]["params"][0] is found.values["model"].weight
    assert all(torch.equal(before[key], one) for key, one in there.state_dict().items())


def test_optimiser_without_its_model_is_new() -> None:
    model = nn.Linear(2, 1)
    opt = torch.optim.SGD(model.parameters(), lr=1.0)
    before = model.weight.detach().clone()

    found = in_place({"opt": opt})
    assert found.reason == "the model that it trains is not among the results"
    assert found.values["opt"] is not opt
    assert torch.equal(model.weight, before)

    assert restore(trained({"opt": opt}), {"opt": opt}, with_weights=True).values["opt"] is opt
    assert torch.equal(model.weight, before - 1)


def test_unbound_name_gets_the_existing_model() -> None:
    model = nn.Linear(2, 1)

    found = restore(trained({"model": model, "best": model}), {"model": model, "best": None})

    assert found.values["best"] is found.values["model"] is model


class Meter:
    """An average that a loop keeps."""

    def __init__(self) -> None:
        self.total, self.log = 0.0, [torch.zeros(1)]

    def update(self) -> None:
        self.total += 1.5
        self.log.append(torch.ones(1))

    def __str__(self) -> str:
        return str(vars(self))


class Slotted:
    __slots__ = ("total",)

    def __init__(self) -> None:
        self.total = 0

    def update(self) -> None:
        self.total += 1

    def __str__(self) -> str:
        return str(self.total)


class Metric(nn.Module):
    """A module that keeps tensors beside its state_dict, as torchmetrics does."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.total, self.outputs = torch.zeros(()), list[torch.Tensor]()
        self.hidden = [inner]
        self.opt = torch.optim.Adam(inner.parameters(), lr=0.1)
        self.rule = len


FILLED: list[tuple[Any, Callable[[Any], object]]] = [
    ([1.0], lambda one: one.append(2.0)),
    ({"loss": [1.0]}, lambda one: one["loss"].append(2.0)),
    (defaultdict(list, a=[1]), lambda one: one["b"].append(2)),
    ({1}, lambda one: one.add(2)),
    (deque([1, 2], maxlen=2), lambda one: one.append(3)),
    (np.zeros(3), lambda one: one.__setitem__(0, 2.0)),
    (Meter(), Meter.update),
    (Slotted(), Slotted.update),
    (SimpleNamespace(best=1), lambda one: setattr(one, "best", 2)),
    (pd.DataFrame({"a": [1.0, 2.0]}), lambda one: one.insert(1, "b", one["a"] * 2)),
    (pd.DataFrame({"a": [1.0, 2.0], "b": [3, 4]}, index=["x", "y"]), lambda one: one.pop("b")),
    (pd.Series([1, 2], name="a"), lambda one: one.update(pd.Series([5]))),
]
GENERATORS: list[tuple[Any, Callable[[Any], object]]] = [
    (random.Random(1), lambda one: one.random()),
    (np.random.default_rng(1), lambda one: one.random()),
    (np.random.RandomState(1), lambda one: one.rand()),
    (torch.Generator().manual_seed(1), lambda one: torch.rand(1, generator=one).item()),
]
SCHEDULES: list[Callable[[torch.optim.Optimizer], Any]] = [
    lambda opt: lr_scheduler.OneCycleLR(opt, 0.5, total_steps=50),
    lambda opt: lr_scheduler.CyclicLR(opt, 0.1, 0.5, 5, scale_fn=lambda n: 1 / n, cycle_momentum=False),
    lambda opt: lr_scheduler.SequentialLR(
        opt, [lr_scheduler.LinearLR(opt), lr_scheduler.CosineAnnealingLR(opt, 10)], [3]
    ),
    lambda opt: lr_scheduler.ChainedScheduler([lr_scheduler.LinearLR(opt), lr_scheduler.ExponentialLR(opt, 0.9)]),
    lambda opt: lr_scheduler.ReduceLROnPlateau(opt, patience=0),
]


@pytest.mark.parametrize(("value", "change"), FILLED)
def test_changed_container_is_filled_in_place(value: Any, change: Callable[[Any], object]) -> None:
    (got,) = results.load(results.dump([value]))
    change(got)
    expected = copy.deepcopy(got)

    found = restore({"kept": got}, {"kept": value}, changed={"kept"})

    assert found.values["kept"] is value
    assert str(value) == str(expected)
    assert found.kept == {"kept"}


@pytest.mark.parametrize(("value", "draw"), GENERATORS)
def test_generator_continues_and_keeps_its_identity(value: Any, draw: Callable[[Any], object]) -> None:
    got = results.load(results.dump(value))
    draw(got)
    expected = draw(copy.deepcopy(got))

    assert restore({"kept": got}, {"kept": value}, changed={"kept"}).values["kept"] is value
    assert draw(value) == expected


@pytest.mark.parametrize("is_enabled", [True, False])
def test_gradient_scaler_continues_over_two_jobs(*, is_enabled: bool) -> None:
    def scale(scaler: torch.amp.GradScaler, steps: int) -> None:
        weight = torch.ones(2, requires_grad=True)
        opt = torch.optim.SGD([weight], lr=0.1)
        for _ in range(steps):
            scaler.scale(weight.sum()).backward()
            scaler.step(opt)
            scaler.update()

    here, plain = (torch.amp.GradScaler("cpu", 8.0, growth_interval=3, enabled=is_enabled) for _ in range(2))
    for steps in (4, 3):
        got = results.load(results.dump(here))
        scale(got, steps)
        scale(plain, steps)
        assert restore({"scaler": got}, {"scaler": here}).values["scaler"] is here
        assert here.state_dict() == plain.state_dict()


@pytest.mark.parametrize("make", SCHEDULES)
def test_schedules_go_on_over_two_jobs(make: Callable[[torch.optim.Optimizer], Any]) -> None:
    def step(values: dict[str, Any], steps: int) -> None:
        for _ in range(steps):
            values["opt"].step()
            values["plan"].step(*([1.0] if isinstance(values["plan"], lr_scheduler.ReduceLROnPlateau) else []))

    opts = [torch.optim.SGD([nn.Parameter(torch.ones(1))], lr=0.1) for _ in range(2)]
    values, plain = ({"opt": opt, "plan": make(opt)} for opt in opts)
    for steps in (4, 3):
        got = results.load(results.dump(values))
        mend_schedulers([got])
        step(got, steps)
        step(plain, steps)
        assert restore(got, values, with_weights=True).values == values
        assert opts[0].param_groups[0]["lr"] == opts[1].param_groups[0]["lr"]


def test_module_attributes_beside_the_state_dict_are_restored() -> None:
    inner = nn.Linear(2, 1)
    metric = Metric(inner)
    values = {"inner": inner, "metric": metric}
    got = results.load(results.dump(values))
    got["metric"].total += 2.0
    got["metric"].outputs.append(torch.ones(1))
    got["inner"](torch.ones(2)).backward()
    got["metric"].opt.step()

    found = restore(got, values)

    assert found.values == values
    assert (metric.total.item(), metric.outputs) == (2.0, [torch.ones(1)])
    assert metric.hidden == [inner]
    assert metric.opt.param_groups[0]["params"][0] is inner.weight
    assert metric.opt.state[inner.weight]["step"].item() == 1.0
    assert torch.equal(inner.weight, got["inner"].weight)


def test_unregistered_submodule_is_loaded() -> None:
    metric = Metric(nn.Linear(2, 1))
    got = results.load(results.dump(metric))
    got.hidden[0].weight.data.fill_(5.0)

    restore({"metric": got}, {"metric": metric})

    assert next(metric.hidden[0].parameters()).tolist() == [[5.0, 5.0]]


def test_a_recurrent_network_computes_with_its_loaded_weights() -> None:
    model = nn.LSTM(2, 3)
    got = results.load(results.dump(model))
    for one in got.parameters():
        one.data.fill_(0.5)
    x = torch.ones(4, 1, 2)

    restore({"model": got}, {"model": model})

    assert torch.equal(model(x)[0], got(x)[0])
    assert model._flat_weights[0] is model.weight_ih_l0


def test_an_object_that_the_program_binds_is_new() -> None:
    meter, first = Meter(), Meter()
    meter.update()

    assert restore({"meter": meter}, {"meter": first}).values["meter"] is not first
    assert first.total == 0.0


def test_a_container_that_the_program_binds_is_new() -> None:
    value = [1]

    assert restore({"kept": [1, 2]}, {"kept": value}).values["kept"] is not value
    assert value == [1]


def test_a_filled_list_holds_the_models_that_are_there() -> None:
    model, models = nn.Linear(2, 1), list[nn.Module]()
    got = trained({"model": model, "models": models})
    got["models"].append(got["model"])

    found = restore(got, {"model": model, "models": models}, changed={"models"})

    assert found.values["models"] is models
    assert models == [model]


@pytest.mark.parametrize(
    ("cell", "is_changed"),
    [
        ("losses.append(1)", True),
        ("losses += [1]", True),
        ("losses[0] = 1\nfor x in losses:\n    pass", True),
        ("def f():\n    losses = 1\nf()", True),
        ("losses = []", False),
        ("for losses in [[1]]:\n    pass", False),
        ("if True:\n    losses, x = [], 1", False),
        ("with open(1) as losses:\n    pass", False),
        ("del losses", False),
    ],
)
def test_changed_and_bound_names_of_a_training_cell(cell: str, is_changed: bool) -> None:
    body = "\n".join(f"    {line}" for line in cell.splitlines())
    program = f"losses = []\n\n# --- cell [2], the training cell ---\nif __name__ == '__main__':\n{body}\n"

    assert bool(changed_names(program, {"losses"})) is is_changed
    assert not changed_names(f"def g():\n    global losses\n    losses = []\n{program}", {"losses"})


@pytest.mark.parametrize(
    ("cell", "is_rebound"),
    [
        ("net = Net()", True),
        ("net, opt = build()", True),
        ("for fold in range(3):\n    net = Net().to('cpu')", True),
        ("net, opt = run.prepare(net, opt)", False),
        ("net = net.to('cpu')", False),
        ("net = train(net)", False),
        ("net.fit(1)", False),
        ("other = net", False),
        ("def make():\n    net = Net()", False),
        ("net.model = Net()", True),
        ("net.models['a'] = Net()", True),
        ("net.models[key] = Net()", True),
        ("net.model[0] = Net()", True),
        ("x, net.model = 1, Net()", True),
        ("net.space.model = Net()", True),
        ("net.losses = list(1)", False),
        ("net.models['new'] = Net()", False),
        ("net.best['loss'] = float(1)", False),
        ("net.best[key] = float(1)", False),
    ],
)
def test_rebound_names_of_a_training_cell(cell: str, is_rebound: bool) -> None:
    body = "\n".join(f"    {line}" for line in cell.splitlines())
    program = f"net = Net()\n\n# --- cell [2], the training cell ---\nif __name__ == '__main__':\n{body}\n"

    model = nn.Sequential(nn.Linear(1, 1))
    net: Any = Trainer(model)
    net.models, net.space, net.best = {"a": model}, SimpleNamespace(model=model), {"loss": 1.0}

    assert bool(rebound_names(program, {"net": net})) is is_rebound


class Wrapping(torch.optim.Optimizer):
    """An optimiser around another one, as SAM and Lookahead are."""

    def __init__(self, params: Any, rho: float) -> None:
        super().__init__(params, {"rho": rho, "lr": 0.5})
        self.inner = torch.optim.SGD(self.param_groups[0]["params"], lr=0.5)
        self.calls = 0

    def step(self, closure: Callable[[], Any] | None = None) -> None:  # type: ignore[override]
        self.calls += 1
        self.inner.step(closure)


@pytest.mark.parametrize(
    "kind", [lambda params: torch.optim.LBFGS(params, max_iter=2), lambda params: Wrapping(params, 0.1)]
)
def test_an_optimiser_is_brought_back_with_its_classs_own_attributes(kind: Callable[[Any], Any]) -> None:
    model = nn.Linear(2, 1)
    optimizer = kind(model.parameters())
    lr_scheduler.ConstantLR(optimizer)  # replaces `step` of the object

    def closure() -> torch.Tensor:
        loss: torch.Tensor = loaded["model"](torch.ones(1, 2)).square().sum()
        loss.backward()
        return loss

    loaded = results.load(results.dump({"model": model, "optimizer": optimizer}))
    before = loaded["model"].weight.detach().clone()
    loaded["optimizer"].step(closure)

    assert not torch.equal(loaded["model"].weight, before)
    assert getattr(loaded["optimizer"], "calls", 1) == 1
