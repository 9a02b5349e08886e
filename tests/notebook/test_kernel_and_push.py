"""Facts of a kernel, and objects sent by value as one graph."""

from __future__ import annotations

import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from jupyter_dlaas.notebook.kernel import _fact as fact
from jupyter_dlaas.notebook.kernel import own_modules
from jupyter_dlaas.notebook.push import CannotTravel, NotPushed, TooLarge, load_pushed, write_pushed


def test_small_plain_values_are_known_as_source_text() -> None:
    values = [1, 2.5, "a", None, True, [1, (2,)], {"k": {3}}, b"x", ()]

    assert [eval(str(fact(value, None).literal)) for value in values] == values


def test_numbers_that_have_no_literal_are_written_as_calls() -> None:
    assert [fact(value, None).literal for value in (float("inf"), float("nan"))] == ['float("inf")', 'float("nan")']


def test_large_values_and_objects_have_no_literal() -> None:
    assert [fact(value, None).literal for value in ("x" * 1000, list(range(1000)), object(), [object()])] == [None] * 4


def test_what_lives_only_in_this_process_is_told_apart(tmp_path: Path) -> None:
    with (tmp_path / "f").open("w") as file:
        values = [file, threading.Lock(), (n for n in "a"), sys, [1]]
        reasons = [fact(value, None).cannot_travel for value in values]

    assert reasons == ["an open file", "a lock", "a generator that has begun", "a module", None]


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
    torch: Any = pytest.importorskip("torch")
    model = torch.nn.Linear(2, 1)
    optimiser = torch.optim.SGD(model.parameters(), lr=0.1)
    write_pushed(tmp_path / "p", {"model": model, "optimiser": optimiser})
    model_2, optimiser_2 = load_pushed(tmp_path / "p", ["model", "optimiser"])
    before = model_2.weight.detach().clone()
    model_2(torch.ones(1, 2)).sum().backward()
    optimiser_2.step()

    assert not torch.equal(before, model_2.weight)
    assert torch.equal(before, model.weight)


def test_an_object_that_cannot_leave_the_process_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(CannotTravel, match=r"--push lock: `lock` \(lock\) cannot leave this process"):
        write_pushed(tmp_path / "p", {"fine": [1], "lock": threading.Lock()})

    assert list(tmp_path.iterdir()) == []


class Forgets:
    """Pickles, and fails to come back."""

    def __setstate__(self, state: object) -> None:
        raise ValueError("no way back")

    def __getstate__(self) -> dict[str, int]:
        return {"a": 1}


def test_what_does_not_load_again_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CannotTravel, match="does not load again: ValueError: no way back"):
        write_pushed(tmp_path / "p", {"x": Forgets()})


def test_more_than_the_limit_is_refused_and_leaves_no_file(tmp_path: Path) -> None:
    with pytest.raises(TooLarge, match=r"more than 1\.0 kB"):
        write_pushed(tmp_path / "p", {"x": b"x" * 5000}, bytes_max=1000)

    assert list(tmp_path.iterdir()) == []


def test_a_name_that_was_not_sent_is_named(tmp_path: Path) -> None:
    write_pushed(tmp_path / "p", {"a": 1})

    with pytest.raises(NotPushed, match=r"b was not sent with this job\. Submit it again with --push a,b"):
        load_pushed(tmp_path / "p", ["a", "b"])


def test_push_works_and_stays_private_without_torch(tmp_path: Path) -> None:
    code = (
        "import sys, pathlib\n"
        "from jupyter_dlaas.notebook.push import write_pushed, load_pushed\n"
        "class Net:\n    def __init__(self): self.w = [1.0]\n"
        "path = pathlib.Path(sys.argv[1])\n"
        "done = write_pushed(path, {'net': Net()})\n"
        "print(load_pushed(path, ['net']).w, done.main_names, oct(path.stat().st_mode & 0o777), 'torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path / "p")], capture_output=True, text=True, check=True)

    assert done.stdout.strip() == "[1.0] ('Net',) 0o600 False"
