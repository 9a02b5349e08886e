"""`%%train` changes nothing in the kernel, and its checks run nothing of the user's."""

from __future__ import annotations

import importlib
import importlib.util
import json
import subprocess
import sys
import types
from collections.abc import Iterator
from pathlib import Path
from textwrap import dedent
from typing import Any

import numpy as np
import pytest
import torch
from IPython.core.interactiveshell import InteractiveShell

from jupyter_dlaas.analysis.effects import words
from jupyter_dlaas.kernel import submit
from jupyter_dlaas.kernel.magics import _loaded, _parser
from jupyter_dlaas.kernel.options import parse
from jupyter_dlaas.wire.protocol import MIME
from tests.notebook_e2e.rooms import Kernel, Pool, until
from tests.notebook_e2e.shells import refusal
from tests.notebook_e2e.shells import shell as new_shell

# ------------------------------------------------------------------------------------- nothing in the kernel changes

LOOK = dedent(
    """
    import os, random, signal, sys, threading, warnings
    import numpy as np, torch
    OURS = ("jupyter_dlaas", "torch.utils.serialization")  # the second is what torch.save imports
    def look():
        mine = {k: v for k, v in get_ipython().user_ns.items() if not k.startswith("_") and k not in (
            "In", "Out", "before", "after", "found", "NAMES")}
        weights = [p.detach().tolist() for p in model.parameters()]
        return {
            "the names and what they are bound to": {k: id(v) for k, v in mine.items()},
            "values": repr((numbers, table, weights, opt.state_dict(), [p.grad is None for p in model.parameters()])),
            "devices": [str(p.device) for p in model.parameters()],
            "Python's random numbers": random.getstate(),
            "NumPy's": repr(np.random.get_state()),
            "torch's": torch.get_rng_state().tolist(),
            "directory": os.getcwd(),
            "sys.path": list(sys.path),
            "environment": dict(os.environ),
            "modules": [m for m in sorted(sys.modules) if not m.startswith(OURS)],
            "warnings": [repr(one) for one in warnings.filters],
            "signals": [repr(signal.getsignal(n)) for n in sorted(signal.valid_signals())],
            "wakeup": (fd := signal.set_wakeup_fd(-1), signal.set_wakeup_fd(fd))[0],
            "threads": sorted(t.name for t in threading.enumerate()),
            "umask": (mask := os.umask(0), os.umask(mask))[0],
            "streams": [repr(one) for one in (sys.stdout, sys.stderr, sys.excepthook, print, open, input)],
            "gradients and types": [torch.is_grad_enabled(), str(torch.get_default_dtype()), torch.get_num_threads()],
            "hooks": [repr(one) for one in (sys.meta_path, sys.path_hooks, threading.excepthook)],
        }
    """
)
MADE = """
numbers, table = [1, 2, 3], {"a": (1, 2)}
model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Dropout(0.5))
opt = torch.optim.Adam(model.parameters(), lr=0.1)
"""
TRAIN = "opt.zero_grad()\nmodel(torch.ones(4, 2)).sum().backward()\nopt.step()\nnumbers.append(4)\nrandom.random()"


@pytest.fixture(scope="module")
def quiet(kernel: Kernel) -> Kernel:
    """Start a kernel that has submitted a job: the side effects of a first import are over."""
    kernel.run(LOOK)
    kernel.run(MADE)
    return kernel


OF_JOBS = "[t.name for t in threading.enumerate() if t.name.startswith('dlaas-') and t.name != 'dlaas-engine-reaper']"


def untouched(kernel: Kernel) -> None:
    kernel.run("after = look()")
    kernel.run("found = {k: repr((before[k], after[k]))[:2000] for k in before if before[k] != after[k]}")
    assert kernel.value("found") == {}


@pytest.mark.parametrize(
    "line",
    [
        "plain",
        "sent --push model,opt,numbers",
        "dry --dry-run",
        "both --dry-run --push model,opt",
        "shown --suggest",
        "two --gpus 1:2",
    ],
)
def test_a_submit_changes_nothing(quiet: Kernel, pool: Pool, line: str) -> None:
    quiet.run("before = look()")

    sent = quiet.run(f"%%train {line}\n{TRAIN}")

    for card in (one for one in sent.displays if MIME in one["data"]):
        pool.until(card["data"][MIME]["job"]["id"], "COMPLETED")
        until(lambda: quiet.value(OF_JOBS) == [])
    untouched(quiet)


@pytest.mark.parametrize(
    "cell",
    [
        "%%train\nprint(nowhere)",
        "%%train --push nowhere\nprint(1)",
        "%%train --push model,guard\nprint(guard)",
        "%%train --gpus many\nprint(1)",
        "%%train --gpus 1000\nrun = dlaas.run()",
        "%%train -o nowhere\nmodel.train()",
        "%%train\ninput()",
        "%%train --include nowhere.txt\nprint(1)",
    ],
)
def test_a_refusal_changes_nothing(quiet: Kernel, cell: str) -> None:
    quiet.run("class Guard:\n    pass\nguard = Guard()\nguard.lock = threading.Lock()\nbefore = look()")

    refused = quiet.run(cell, fails=True)

    assert refused.evalue.startswith("Not submitted: ")
    untouched(quiet)


def test_waiting_and_an_interrupt_change_nothing(quiet: Kernel, pool: Pool) -> None:
    quiet.run("before = look()")
    asked = quiet.start("%%train waits --wait\nimport time\nprint('it runs', flush=True)\ntime.sleep(60)")
    quiet.wait_for(asked, until_said="it runs")
    quiet.interrupt()
    quiet.wait_for(asked)
    pool.client.act(pool.job("waits").id, "cancel")
    pool.until("waits", "CANCELLED")
    until(lambda: quiet.value(OF_JOBS) == [])

    untouched(quiet)


def test_awaited_failing_job_changes_nothing(quiet: Kernel) -> None:
    quiet.run("before = look()")

    quiet.run("%%train fails --wait\n1 / 0", fails=True)

    until(lambda: quiet.value(OF_JOBS) == [])
    untouched(quiet)


# ------------------------------------------------------------------------------- nothing of the user's is run to check


class Calls:
    """Calls that must not have happened."""

    def __init__(self) -> None:
        self.made: list[str] = []

    def method(self, name: str) -> Any:
        def called(*_: object, **__: object) -> Any:
            self.made.append(name)
            raise AssertionError(f"{name} was called")

        return called


DUNDERS = words(
    """__repr__ __str__ __bytes__ __format__ __len__ __length_hint__ __bool__ __eq__ __ne__ __lt__ __le__ __gt__
    __ge__ __hash__ __getattr__ __getattribute__ __setattr__ __delattr__ __dir__ __get__ __set__ __delete__
    __call__ __getitem__ __setitem__ __delitem__ __missing__ __iter__ __next__ __reversed__ __contains__
    __add__ __radd__ __index__ __int__ __float__ __complex__ __enter__ __exit__ __reduce__ __reduce_ex__
    __getstate__ __setstate__ __copy__ __deepcopy__ __sizeof__ __array__ __array_function__
    __array_ufunc__ __array_interface__ __dlpack__ __torch_function__ __fspath__ __instancecheck__
    __subclasscheck__ __subclasshook__ _repr_html_ _repr_mimebundle_ _ipython_display_ parameters modules
    children named_parameters buffers state_dict memory_usage element_size nelement keys items values tolist
    numpy"""
)


def spying(calls: Calls, *bases: type, leave: tuple[str, ...] = ()) -> type:
    """Create a class whose methods, also of the class itself, record each call."""
    names = [name for name in DUNDERS if name not in leave]
    meta_names = [
        n
        for n in names
        if n
        not in (
            "__setattr__",
            "__delattr__",
            "__getattribute__",
            "__get__",
            "__set__",
            "__delete__",
            "__call__",
        )
    ]
    kind = type(bases[0]) if bases else type
    meta = type("Meta", (kind,), {name: calls.method(f"the class' {name}") for name in meta_names})
    body: dict[str, Any] = {name: calls.method(name) for name in names}
    body |= {"__class__": property(calls.method("__class__")), "shape": property(calls.method("shape"))}
    return type.__new__(meta, "Spy", bases, body | {"__module__": "__main__"})


@pytest.fixture
def calls() -> Calls:
    return Calls()


@pytest.fixture
def spied(calls: Calls, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[InteractiveShell]:
    """Create a shell full of objects that record each call, and of modules that record an import."""
    monkeypatch.setenv("JUPYTER_DLAAS_POOL_DIR", str(tmp_path / "pool"))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "never.py").write_text("raise AssertionError('never was imported')\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    spec = importlib.util.spec_from_file_location("lazy_one", tmp_path / "never.py")
    assert spec is not None
    assert spec.loader is not None
    spec.loader = importlib.util.LazyLoader(spec.loader)
    lazy = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(lazy)
    odd = type("Odd", (types.ModuleType,), {"__getattribute__": calls.method("a module's __getattribute__")})("odd_one")
    monkeypatch.setitem(sys.modules, "lazy_one", lazy)
    monkeypatch.setitem(sys.modules, "odd_one", odd)
    with new_shell() as one:
        plain = spying(calls)
        made = {
            "thing": object.__new__(plain),
            "kind": plain,
            "words": dict.__new__(spying(calls, dict)),
            "row": list.__new__(spying(calls, list)),
            "pair": tuple.__new__(spying(calls, tuple)),
            "text": str.__new__(spying(calls, str)),
            "number": int.__new__(spying(calls, int)),
            "array": np.ndarray.__new__(spying(calls, np.ndarray, leave=("__array_finalize__",)), (2, 2)),
            "net": object.__new__(spying(calls, torch.nn.Module)),
            "frame": object.__new__(spying(calls, importlib.import_module("pandas").DataFrame)),
            "function": lambda: None,
            "lazy": lazy,
            "odd": odd,
        }
        nested = {"held": [{"a": (made["thing"], made["words"])}, made["net"]], "by_key": {"k": made["row"]}}
        dict.update(one.user_ns, made | nested)
        yield one
        for name in (*made, *nested):
            del one.user_ns[name]
        sys.modules.pop("lazy_one", None), sys.modules.pop("odd_one", None)
        calls.made.clear()  # calls of a later garbage collection do not count


NAMES = "thing kind words row pair text number array net frame function lazy odd held by_key"
CELL = "import never\nfrom never import that\nprint(" + NAMES.replace(" ", ", ") + ")"


def captured(one: InteractiveShell, line: str, cell: str) -> Any:
    magics = _loaded[one]
    asked = parse(_parser(magics.train), line)
    return submit.capture_cell(one, magics.recorder.cells(), submit.Cell(cell, 99), asked, {})


def test_a_look_at_the_kernel_calls_nothing(spied: InteractiveShell, calls: Calls) -> None:
    said = captured(spied, "", CELL)

    assert calls.made == []
    assert "never" not in sys.modules
    assert {name for error in said.errors for name in error.names} >= {"thing", "net", "held"}


def test_push_preview_calls_no_user_code(spied: InteractiveShell, calls: Calls) -> None:
    said = captured(spied, f"--push {NAMES.replace(' ', ',')}", CELL)

    assert calls.made == []
    assert [error.names for error in said.errors] == [("lazy",), ("odd",)], "modules do not travel"


def test_a_refusal_by_the_magic_calls_nothing(spied: InteractiveShell, calls: Calls) -> None:
    said = refusal(spied, "%%train\n" + CELL + "\nprint(nowhere)")

    assert calls.made == []
    assert "reads `nowhere`" in said
    assert "`thing` (Spy)" in said


HOSTILE = [
    "import never\nfrom never import thing\n__import__('never')",
    "%run never.py\n%load never.py\n!touch shell_ran\n%%time\n!touch shell_ran",
    "exec(open('never.py').read())\nopen('written', 'w').write('x')",
    "import pickle\nthing = pickle.load(open('thing.pickle', 'rb'))",
    "class A(metaclass=never.Meta):\n    x = open('written', 'w')\ndef f(a=open('written', 'w')): ...",
    "import torch\nmodel = torch.load('thing.pickle')\nopt = torch.optim.SGD(model.parameters())",
    "for x, y in thing:\n    opt.zero_grad()\n    model(x).backward()\n    opt.step()",
]
WATCHED = """
import json, sys
from pathlib import Path
from jupyter_dlaas.cli import main as cli
cli.main(["check", "first.ipynb"])
seen = []
RUNS = "import exec pickle.find_class os.system os.fork os.posix_spawn subprocess.Popen socket.connect".split()
sys.addaudithook(lambda event, given: seen.append((event, str(given[0]) if given else "", str(given[1:2]))))
code = cli.main(["check", "hostile.ipynb", "--json"])
print("SEEN", json.dumps([one for one in seen if one[0] in RUNS]))
opened = [one[1:] for one in seen if one[0] == "open" and one[1].endswith(("never.py", "written", "thing.pickle"))]
print("OPENED", json.dumps(opened))
"""


def test_a_check_runs_imports_and_unpickles_nothing_of_a_notebook(tmp_path: Path) -> None:
    for name, cells in {"first": ["files = !ls", HOSTILE[-1]], "hostile": HOSTILE}.items():
        page = [{"cell_type": "code", "source": c, "outputs": [], "metadata": {}, "execution_count": 1} for c in cells]
        text = json.dumps({"cells": page, "metadata": {}, "nbformat": 4, "nbformat_minor": 5})
        (tmp_path / f"{name}.ipynb").write_text(text)
    (tmp_path / "never.py").write_text("open('imported', 'w')\n")
    (tmp_path / "thing.pickle").write_bytes(b"cos\nsystem\n(S'touch unpickled'\ntR.")

    done = subprocess.run([sys.executable, "-c", WATCHED], cwd=tmp_path, capture_output=True, text=True, check=True)

    seen = json.loads(next(line[5:] for line in done.stdout.splitlines() if line.startswith("SEEN ")))
    assert seen == []
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "first.ipynb",
        "hostile.ipynb",
        "never.py",
        "thing.pickle",
    ]
    # The texts of files that %run names and of own modules are read, like cells.
    opened = json.loads(next(line[7:] for line in done.stdout.splitlines() if line.startswith("OPENED ")))
    assert {(Path(path).name, mode) for path, mode in opened} == {("never.py", "('r',)")}
