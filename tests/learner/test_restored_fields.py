"""Fields of any kind, replaced methods and hooks follow a model into its result, beside its state_dict."""

from __future__ import annotations

import copy
import datetime as dt
import enum
import functools
import importlib
import pathlib
import sys
import types
from collections import namedtuple
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.optim import lr_scheduler

from jupyter_dlaas.transfer import results
from jupyter_dlaas.transfer.result_restore import Restored, restore
from tests.learner.test_restore import Trainer

pd: Any = importlib.import_module("pandas")
Best = namedtuple("Best", "epoch losses")


class Phase(enum.Enum):
    WARM = 1


def made() -> nn.Sequential:
    return nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 1))


def brought_back(there: Any, changed: Any) -> Restored:
    """Return what a notebook with one value gets if a job made another one of it."""
    return restore({"model": results.load(results.dump(changed))}, {"model": there})


def over(model: nn.Module, kind: Any = torch.optim.SGD) -> Any:
    return kind(model.parameters(), lr=0.1)


def loader() -> Any:
    return torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.ones(3)))


FIELDS: dict[str, Callable[[nn.Module], Any]] = {
    "table": lambda _: pd.DataFrame({"loss": [1.0, 0.5]}),
    "path": lambda _: pathlib.Path("best.pt"),
    "moment": lambda _: dt.datetime(2026, 1, 2, tzinfo=dt.UTC),
    "named tuple": lambda _: Best(3, [0.5]),
    "member": lambda _: Phase.WARM,
    "dtype": lambda _: torch.float16,
    "partial": lambda _: functools.partial(nn.functional.cross_entropy, label_smoothing=0.1),
    "library's function": lambda _: nn.functional.relu,
    "class": lambda _: nn.GELU,
    "method": lambda model: model.eval,
    "copies of the model": lambda model: [copy.deepcopy(model)],
    "optimiser": over,
    "optimiser with attributes": lambda model: torch.optim.LBFGS(model.parameters()),
    "schedule": lambda model: lr_scheduler.StepLR(over(model), 1),
    "loader": lambda _: loader(),
}


@pytest.mark.parametrize("before", [None, "absent"])
@pytest.mark.parametrize("name", FIELDS)
def test_field_that_a_job_has_set_is_taken_over(name: str, before: str | None) -> None:
    there, changed = made(), made()
    if before is None:
        there.extra = None  # type: ignore[assignment]
    changed.extra = FIELDS[name](changed)
    restored = brought_back(there, changed)

    assert restored.values["model"] is there
    assert type(there.extra) is type(changed.extra)
    assert not restored.notes
    found: Any = there.extra
    if isinstance(found, torch.optim.Optimizer):
        assert [id(one) for one in found.param_groups[0]["params"]] == [id(one) for one in there.parameters()]
        found.step(lambda: there(torch.ones(1, 2)).sum())
    elif isinstance(found, types.MethodType):
        assert found.__self__ is there


def test_function_with_the_same_code_and_a_librarys_object_stay() -> None:
    def with_loss() -> nn.Sequential:
        model = made()
        model.loss = lambda x: x.sum()  # type: ignore[assignment]
        model.loader = loader()
        return model

    there = with_loss()
    before = there.loss, there.loader
    brought_back(there, with_loss())

    assert (there.loss, there.loader) == before


def program(lines: str, **names: Any) -> dict[str, Any]:
    """Run lines of a program as the module that a job or a notebook is."""
    space: dict[str, Any] = {"__name__": "__main__", "torch": torch, **names}
    exec(lines, space)
    return space


def test_function_that_reads_what_was_not_returned_is_reported() -> None:
    there, changed = made(), made()
    program("scale = 2\nmodel.rule = lambda x: x * scale\nmodel.register_forward_hook(lambda *_: scale)", model=changed)
    restored = brought_back(there, changed)

    assert not hasattr(there, "rule")
    assert not there._forward_hooks
    assert len(restored.notes) == 2
    assert all("it reads `scale`, which the job did not return; add scale to -o" in one for one in restored.notes)

    restored = restore({"model": results.load(results.dump(changed))}, {"model": there}, bound={"scale"})
    assert hasattr(there, "rule")
    assert not restored.notes


def test_function_that_reads_a_rebound_name_is_reported() -> None:
    space = program("scale = 1\ndef rule(x): return x * scale")
    there, changed = made(), made()
    there.rule = changed.rule = space["rule"]
    restored = restore({"model": changed}, {"model": there}, assigned={"scale", "model"})

    assert restored.notes == (
        "model.rule is not the job's: it reads `scale`, which the job did not return; add scale to -o.",
    )
    assert not restore({"model": changed}, {"model": there}, assigned={"scale"}, bound={"scale"}).notes
    nested = restore({"one": [Trainer(changed)]}, {"one": [Trainer(there)]}, assigned={"scale"})
    assert nested.notes[0].startswith("one[0].model.rule is not")


def test_field_that_a_job_has_deleted_is_reported() -> None:
    there, changed = made(), made()
    there[0].warm = True  # type: ignore[assignment]

    assert brought_back(there, changed).notes == (
        "model.0 still has warm here, which it did not have at the job's end.",
    )


def test_hooks_of_a_job_are_called_and_removed_by_handles() -> None:
    calls: list[str] = []

    def mine(*_: object) -> None:
        calls.append("mine")

    there, changed = made(), made()
    for model in (there, changed):
        model[0].register_forward_hook(mine)
    there[1].register_forward_hook(mine)
    number = next(iter(there[1]._forward_hooks))

    def job(module: nn.Module, args: object, kwargs: object, output: torch.Tensor) -> torch.Tensor:
        return output * 2

    handle = changed[1].register_forward_hook(job, with_kwargs=True)
    changed[1]._forward_hooks[number] = changed[1]._forward_hooks.pop(handle.id)  # the same number as another hook's
    changed[1]._forward_hooks_with_kwargs[number] = changed[1]._forward_hooks_with_kwargs.pop(handle.id)
    handle.id = number
    plain = made()
    plain.load_state_dict(changed.state_dict())
    loaded = results.load(results.dump({"model": changed, "handle": handle}))
    restored = restore(loaded, {"model": there})

    x = torch.ones(1, 2)
    assert there(x).item() == pytest.approx(2 * plain(x).item())
    assert calls == ["mine", "mine"]
    assert restored.notes == ("model still has a hook here that it did not have at the job's end.",)
    restored.values["handle"].remove()
    assert there(x).item() == pytest.approx(plain(x).item())
    assert list(there[1]._forward_hooks) == [number]


def halve(gradient: torch.Tensor) -> torch.Tensor:
    return gradient / 2


def quadruple(weight: torch.Tensor) -> None:
    assert weight.grad is not None
    weight.grad *= 4


def test_hooks_of_weights_and_optimisers_come_along() -> None:
    there, changed = (Trainer(model, over(model)) for model in (made(), made()))
    steps: list[int] = []
    for one in changed.model.parameters():
        one.register_hook(halve)
        one.register_post_accumulate_grad_hook(quadruple)
    changed.opt.register_step_post_hook(lambda *_: steps.append(1))  # type: ignore[union-attr]
    restored = brought_back(there, changed)

    assert restored.values["model"].model is there.model
    there.model(torch.ones(1, 2)).sum().backward()
    bias: Any = there.model.get_parameter("1.bias")
    assert bias.grad.tolist() == [2.0]
    assert len(there.opt._optimizer_step_post_hooks) == 1  # type: ignore[union-attr]
    brought_back(there, changed)
    assert len(bias._backward_hooks) == 1, "once, however often it is brought back"


def test_model_with_hooks_that_cannot_be_stored_is_returned(tmp_path: pathlib.Path) -> None:
    changed = made()
    weight: Any = changed.get_parameter("0.weight")
    with (tmp_path / "log").open("w") as file:
        weight.register_hook(lambda gradient: file.write(str(gradient)))
        opt = over(changed)
        opt.register_step_post_hook(lambda *_: file.write("step"))
        found, its_opt = results.load(results.dump([changed, opt]))

    assert torch.equal(found[0].weight, weight)
    assert not found[0].weight._backward_hooks
    assert its_opt.param_groups[0]["params"][0] is found[0].weight
    assert not its_opt._optimizer_step_post_hooks


def test_generator_is_restored_in_place_without_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    there = np.random.default_rng(1)
    loaded = {"draw": results.load(results.dump(there))}
    loaded["draw"].random()
    for name in [one for one in sys.modules if one.partition(".")[0] == "torch"]:
        monkeypatch.delitem(sys.modules, name)
    restored = restore(loaded, {"draw": there}, changed={"draw"})

    assert not restored.reason
    assert restored.values["draw"] is there
    assert there.random() == loaded["draw"].random()
