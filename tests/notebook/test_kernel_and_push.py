"""Facts of a kernel, and objects sent by value as one graph."""

from __future__ import annotations

import datetime as dt
import random
import socket
import sqlite3
import subprocess
import sys
import threading
import uuid
import warnings
import weakref
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from jupyter_dlaas.kernel.recorder import _fact as fact
from jupyter_dlaas.kernel.recorder import own_modules
from jupyter_dlaas.transfer.pushed_objects import NotPushed, NotSendable, TooLarge, load_pushed, write_pushed


def test_small_plain_values_are_known_as_source_text() -> None:
    values = [1, 2.5, "a", None, True, [1, (2,)], {"k": {3}}, b"x", ()]

    assert [eval(str(fact(value, None).literal)) for value in values] == values


def test_times_unique_names_and_paths_are_known_as_source_text() -> None:
    now = dt.datetime(2026, 3, 4, 5, 6, 7, tzinfo=dt.UTC)
    values = [now, now.replace(tzinfo=None), now.date(), dt.timedelta(1), uuid.UUID(int=3), Path("a/b"), [Path("c")]]
    elsewhere = now.replace(tzinfo=dt.timezone(dt.timedelta(hours=1)))

    assert [eval(str(fact(value, None).literal), {}) for value in values] == values
    assert fact(elsewhere, None).literal is None


def test_numbers_that_have_no_literal_are_written_as_calls() -> None:
    assert [fact(value, None).literal for value in (float("inf"), float("nan"))] == ['float("inf")', 'float("nan")']


def test_large_values_and_objects_have_no_literal() -> None:
    assert [fact(value, None).literal for value in ("x" * 5000, list(range(1000)), object(), [object()])] == [None] * 4


def test_process_bound_objects_are_recognised(tmp_path: Path) -> None:
    with (tmp_path / "f").open("w") as file:
        values = [file, threading.Lock(), (n for n in "a"), sys, [1]]
        reasons = [fact(value, None).cannot_travel for value in values]

    assert reasons == ["an open file", "a lock", "a running generator", "a module", None]


def test_modules_below_the_working_directory_are_the_users_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "mine_dlaas_test.py").write_text("x = 1\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    __import__("mine_dlaas_test")

    found = [(module.name, module.path) for module in own_modules(tmp_path)]
    del sys.modules["mine_dlaas_test"]
    assert found == [("mine_dlaas_test", "mine_dlaas_test.py")]


def test_pushed_objects_come_back_as_one_graph(tmp_path: Path) -> None:
    shared = [1, 2]
    done = write_pushed(tmp_path / "p", {"a": {"inner": shared}, "b": shared})
    a, b = load_pushed(tmp_path / "p", ["a", "b"])

    assert a["inner"] is b
    assert b == [1, 2]
    assert load_pushed(tmp_path / "p", ["b"]) == [1, 2]
    assert done.size_bytes == (tmp_path / "p").stat().st_size


def test_a_pushed_optimiser_trains_the_pushed_model(tmp_path: Path) -> None:
    model = torch.nn.Linear(2, 1)
    optimiser = torch.optim.SGD(model.parameters(), lr=0.1)
    write_pushed(tmp_path / "p", {"model": model, "optimiser": optimiser})
    model_2, optimiser_2 = load_pushed(tmp_path / "p", ["model", "optimiser"])
    before = model_2.weight.detach().clone()
    model_2(torch.ones(1, 2)).sum().backward()
    optimiser_2.step()

    assert not torch.equal(before, model_2.weight)
    assert torch.equal(before, model.weight)


def test_a_scheduler_that_has_not_stepped_yet_warns_of_nothing(tmp_path: Path) -> None:
    net = torch.nn.Linear(1, 1)
    optimiser = torch.optim.SGD(net.parameters(), lr=1.0)
    plan = torch.optim.lr_scheduler.LambdaLR(optimiser, lambda step: 0.5**step)
    write_pushed(tmp_path / "p", {"optimiser": optimiser, "plan": plan})
    optimiser_2, plan_2 = load_pushed(tmp_path / "p", ["optimiser", "plan"])

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        optimiser_2.step()
        plan_2.step()
    assert [group["lr"] for group in optimiser_2.param_groups] == [0.5]


def test_loader_is_pushed_without_its_workers(tmp_path: Path) -> None:
    data = torch.utils.data.TensorDataset(torch.arange(6.0))
    loader = torch.utils.data.DataLoader(data, 2, num_workers=1, persistent_workers=True, collate_fn=lambda b: len(b))
    assert list(loader) == [2, 2, 2]
    write_pushed(tmp_path / "p", {"loader": loader})

    again = load_pushed(tmp_path / "p", ["loader"])
    assert list(again) == [2, 2, 2]
    assert again.collate_fn is not loader.collate_fn


def test_gpu_tensors_load_on_the_cpu_without_a_gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    net = torch.nn.Linear(2, 2)
    optimiser = torch.optim.Adam(net.parameters())
    net(torch.ones(1, 2)).sum().backward()
    optimiser.step()
    monkeypatch.setattr("torch.serialization.location_tag", lambda storage: "cuda:3")  # as a kernel with GPUs writes it
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    write_pushed(tmp_path / "p", {"net": net, "optimiser": optimiser, "where": {"device": torch.device("cuda:3")}})

    net_2, optimiser_2, where = load_pushed(tmp_path / "p", ["net", "optimiser", "where"])
    assert where == {"device": torch.device("cpu")}
    assert {p.device.type for p in net_2.parameters()} == {"cpu"}
    assert {state["exp_avg"].device.type for state in optimiser_2.state.values()} == {"cpu"}
    assert torch.equal(net_2.weight, net.weight)


def test_push_leaves_gradients_and_random_streams_unchanged(tmp_path: Path) -> None:
    net = torch.nn.Linear(2, 2)
    net(torch.ones(1, 2)).sum().backward()
    gradients = [p.grad for p in net.parameters()]
    before = random.getstate(), repr(np.random.get_state()), torch.get_rng_state().tolist()

    write_pushed(tmp_path / "p", {"net": net, "drawn": Draws()})

    assert all(p.grad is gradient for p, gradient in zip(net.parameters(), gradients, strict=True))
    assert before == (random.getstate(), repr(np.random.get_state()), torch.get_rng_state().tolist())


class Draws:
    """Takes numbers from every random stream when it is written and when it is loaded."""

    def __getstate__(self) -> dict[str, float]:
        return {"drawn": random.random() + np.random.rand() + torch.rand(1).item()}

    def __setstate__(self, state: dict[str, float]) -> None:
        self.drawn = state["drawn"] + random.random() + np.random.rand() + torch.rand(1).item()


# --------------------------------------------------------------------------------------------- what is refused, and how


class Holder:
    """Holds something."""

    def __init__(self, **fields: object) -> None:
        self.__dict__.update(fields)


class Slotted:
    __slots__ = ("held",)

    def __init__(self, held: object) -> None:
        self.held = held


def refusal(tmp_path: Path, **objects: object) -> str:
    with pytest.raises(NotSendable) as caught:
        write_pushed(tmp_path / "p", objects)
    assert list(tmp_path.iterdir()) == []
    return str(caught.value)


END = " and cannot be sent to a job. Create it in the training cell, or push the data it was created from."


@pytest.mark.parametrize(
    ("make", "what"),
    [
        (threading.Lock, "a lock"),
        (lambda: (n for n in "a"), "a running generator"),
        (lambda: Path(__file__).open(), "an open file"),  # noqa: SIM115 - it is the test's
        (lambda: socket.socket(), "a network connection"),
        (lambda: sqlite3.connect(":memory:"), "a database connection"),
        (lambda: weakref.ref(Holder), "a weak reference"),
        (lambda: memoryview(b"x"), "a memory view"),
    ],
)
def test_process_bound_object_is_refused_with_its_path(tmp_path: Path, make: Callable[[], Any], what: str) -> None:
    part = make()
    model = Holder(fine=[1], cache={"a": [0, Slotted(part)]})

    said = refusal(tmp_path, other=[1], model=model)

    with suppress(AttributeError):
        part.close()
    assert said == f"--push model: `model.cache['a'][1].held` is {what}{END}"


def test_torch_submodule_has_its_name_in_the_model(tmp_path: Path) -> None:
    model: Any = torch.nn.Sequential(torch.nn.Linear(1, 1), torch.nn.Sequential(torch.nn.Linear(1, 1)))
    model[1].guard = threading.Lock()

    assert refusal(tmp_path, model=model) == f"--push model: `model[1].guard` is a lock{END}"


def test_closure_content_is_named_by_its_variable(tmp_path: Path) -> None:
    lock = threading.Lock()

    assert refusal(tmp_path, hook=lambda: lock) == f"--push hook: `hook (its `lock`)` is a lock{END}"


def test_an_object_that_refuses_is_quoted(tmp_path: Path) -> None:
    assert refusal(tmp_path, a={"k": Refuses()}) == (
        "--push a: `a['k']` (Refuses) cannot be sent to a job: not today. "
        "Create it in the training cell, or push the data it was created from."
    )


class Refuses:
    def __reduce__(self) -> str:
        raise KeyError("not today")


class Forgets:
    """Pickles, and fails to come back."""

    def __setstate__(self, state: object) -> None:
        raise ValueError("no way back")

    def __getstate__(self) -> dict[str, int]:
        return {"a": 1}


def test_object_that_does_not_load_is_refused(tmp_path: Path) -> None:
    with pytest.raises(NotSendable, match="cannot be loaded again: ValueError: no way back"):
        write_pushed(tmp_path / "p", {"x": Forgets()})


def test_more_than_the_limit_is_refused_and_leaves_no_file(tmp_path: Path) -> None:
    with pytest.raises(TooLarge, match=r"exceeds the maximum of 1\.0 kB"):
        write_pushed(tmp_path / "p", {"x": b"x" * 5000}, bytes_max=1000)

    assert list(tmp_path.iterdir()) == []


def test_a_name_that_was_not_sent_is_named(tmp_path: Path) -> None:
    write_pushed(tmp_path / "p", {"a": 1})

    with pytest.raises(NotPushed, match=r"b was not sent with this job\. Resubmit the job with --push a,b"):
        load_pushed(tmp_path / "p", ["a", "b"])


def test_push_works_and_stays_private_without_torch(tmp_path: Path) -> None:
    code = (
        "import sys, pathlib\n"
        "from jupyter_dlaas.transfer.pushed_objects import write_pushed, load_pushed\n"
        "class Net:\n    def __init__(self): self.w = [1.0]\n"
        "path = pathlib.Path(sys.argv[1])\n"
        "done = write_pushed(path, {'net': Net()})\n"
        "print(load_pushed(path, ['net']).w, done.main_names, oct(path.stat().st_mode & 0o777), 'torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path / "p")], capture_output=True, text=True, check=True)

    assert done.stdout.strip() == "[1.0] ('Net',) 0o600 False"
