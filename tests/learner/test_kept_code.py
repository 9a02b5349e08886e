"""Hooks, code, classes, modules and settings that a loop changes: kept over halts, or reported with what to type."""

from __future__ import annotations

import atexit
import contextlib
import csv
import decimal
import gc
import importlib
import locale
import logging
import os
import reprlib
import signal
import sys
import threading
import types
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import matplotlib as mpl
import numpy as np
import pytest
import torch

from jupyter_dlaas.learner.checkpoint import namespace
from jupyter_dlaas.objects import object_values
from jupyter_dlaas.objects.process_settings import SETTINGS as PROCESS
from tests.learner.in_process import SETUP, run_with_halts, start
from tests.learner.test_kept_objects import Outcomes, with_and_without_halts
from tests.learner.test_namespace import PARTS, Part, program

pytestmark = pytest.mark.timeout(400)


@pytest.fixture(scope="module", autouse=True)
def _record_each_epoch() -> Iterator[None]:
    """Record settings at each epoch: those of these programs take less than a millisecond."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(namespace, "_RECORD_SHARE", float("inf"))
        yield


CODE: Final = {
    "hooks of tensors": Part(
        "(of_tensor, updates, flat(layer))",
        """
            if run.step == 2: first_hook.remove(); second_hook = layer.weight.register_hook(halve)
            if run.step == 3: third_hook = layer.bias.register_post_accumulate_grad_hook(lambda p: updates.append(1))
            layer.zero_grad(); layer(batch[0]).sum().backward(); layer_opt.step()
            if run.step == 12: second_hook.remove()
        """,
        above="""
            layer, of_tensor, updates = nn.Linear(4, 2), [], []
            layer_opt = torch.optim.SGD(layer.parameters(), lr=0.1)
            def halve(grad):
                of_tensor.append('halved')
                return grad / 2
            first_hook = layer.weight.register_hook(lambda grad: of_tensor.append('first'))
        """,
    ),
    "hooks of all modules": Part(
        "len(of_all)",
        "if run.step == 2: all_hook = nn.modules.module.register_module_forward_hook(lambda *_: of_all.append(1))",
        epoch="if epoch == 2: all_hook.remove()",
        above="of_all = []; nn.modules.module._global_forward_hooks.clear()",
    ),
    "code and defaults of a function": Part(
        "(scale(2), shift(2), shift.__kwdefaults__)",
        "if run.step == 2: scale.__code__ = other.__code__; shift.__defaults__, shift.__kwdefaults__ = (5,), {'z': 6}",
        above="""
            def scale(x): return x * 2
            def other(x): return x * 3
            def shift(x, y=1, *, z=None): return x + y
        """,
    ),
    "methods that are replaced": Part(
        "(Thing().f(), Thing().g, Thing.s(), Thing()(), own_thing.f())",
        """
            if run.step == 2:
                Thing.f, Thing.g, Thing.s = later, property(lambda self: 9), staticmethod(lambda: 8)
                Thing.__call__, own_thing.f = lambda self: 7, types.MethodType(lambda self: self.n, own_thing)
        """,
        above="""
            import types
            class Thing:
                n = 4
                def f(self): return 1
                @property
                def g(self): return 2
                def __call__(self): return 3
            def later(self): return self.n
            own_thing = Thing()
        """,
    ),
    "values behind methods": Part(
        "(len(Logbook().log(0)), Logbook.log.calls, Logbook().count(), Logbook.each())",
        "Logbook().log(run.step); Logbook.log.calls += 1; Logbook().count(); Logbook.each()",
        above="""
            def counted(function):
                n = 0
                def inner(self):
                    nonlocal n
                    n += 1
                    return n
                return inner
            class Logbook:
                def log(self, x, seen=[]):
                    seen.append(x)
                    return seen
                log.calls = 0
                @counted
                def count(self): pass
                @staticmethod
                def each(seen=[]):
                    seen.append(1)
                    return len(seen)
        """,
    ),
    "names and bases": Part(
        "(named.__name__, named.__qualname__, named.__doc__, Based.__name__, Based().f(), Based.__mro__[1] is Second)",
        """
            if run.step == 2:
                named.__name__, named.__qualname__, named.__doc__ = 'new', 'of.new', 'Text'
                Based.__name__, Based.__bases__ = 'Rebased', (Second,)
        """,
        above="""
            def named(): pass
            class First:
                def f(self): return 1
            class Second:
                def f(self): return 2
            class Based(First): pass
        """,
    ),
    "class of an object": Part(
        "(type(stage).__name__, stage.n)",
        "stage.n += 1; stage.__class__ = Late if stage.n > 2 else Early",
        above="""
            class Early: n = 0
            class Late(Early): pass
            stage = Early()
        """,
    ),
    "attributes of constants": Part(
        "(Colour.RED.uses, triple.uses, triple.log)",
        "Colour.RED.uses += 1; triple.uses += 1; triple.log.append(1)",
        above="""
            import enum
            class Colour(enum.Enum): RED = 1
            class Triple(tuple): pass
            triple = Triple((1, 2)); Colour.RED.uses = triple.uses = 0; triple.log = []
        """,
    ),
    "addresses as keys": Part(
        "([by_id[id(p)] for p in model.parameters()], [late_id.get(id(m)) for m in model], id(opt) in seen_ids)",
        """
            for p in model.parameters(): by_id[id(p)] += 1
            if epoch == 0: late_id = {}; seen_ids = set()
            late_id[id(model[run.step % 3])] = run.step; seen_ids.add(id(opt))
        """,
        above="by_id = {id(p): 0 for p in model.parameters()}",
    ),
    "function that the loop defines": Part(
        "(plus(1), [one(1) for one in made])",
        """
            if run.step == 2:
                def plus(x): return x + len(made)
            if run.step >= 2: made.append(plus)
        """,
        above="made = []",
    ),
    "fields that a class does not pickle": Part(
        "(tally.n, tally.seen, tally.kept, tally.lock.locked())",
        "tally.n += 1; tally.seen.append(run.step); tally.kept += 2",
        above="""
            import threading
            class Tally:
                def __init__(self): self.n, self.kept, self.seen, self.lock = 0, 0, [], threading.Lock()
                def __getstate__(self): return {"kept": self.kept}
            tally = Tally()
        """,
    ),
    "default of a dictionary": Part(
        "found['new']",
        "if run.step == 2: found.default_factory = list",
        above="found = collections.defaultdict(int)",
    ),
    "values of ctypes": Part(
        "(cells[:], number.value, pair.a)",
        "cells[run.step % 3] += 1; number.value += 2; pair.a += 3",
        above="""
            import ctypes
            class Pair(ctypes.Structure): _fields_ = [("a", ctypes.c_int)]
            cells, number, pair = (ctypes.c_int * 3)(), ctypes.c_double(0), Pair()
        """,
    ),
    "order of a tensor's memory": Part(
        "(image.weight.stride(), flat(image))",
        "if run.step == 2: image.to(memory_format=torch.channels_last)",
        above="image = nn.Conv2d(2, 3, 2)",
    ),
}
SETTINGS: Final = {
    "threads of torch": ("torch.set_num_threads({})", "torch.get_num_threads()", "1", "2"),
    "limit of recursion": ("sys.setrecursionlimit({})", "sys.getrecursionlimit()", "3000", "4321"),
    "locale": ("locale.setlocale(0, {})", "locale.setlocale(0)", "'C'", "'C.UTF-8'"),
    "decimal": ("decimal.getcontext().prec = {}", "decimal.getcontext().prec", "28", "9"),
    "attention": (
        "torch.backends.cuda.enable_flash_sdp({})",
        "torch.backends.cuda.flash_sdp_enabled()",
        "True",
        "False",
    ),
    "default device": ("torch.set_default_device({})", "str(torch.get_default_device())", "None", "'cpu:0'"),
    "collector": ("gc.set_threshold({}, 10, 10)", "gc.get_threshold()[0]", "700", "900"),
    "printed arrays": ("np.set_printoptions(precision={})", "np.get_printoptions()['precision']", "8", "3"),
    "printed tensors": ("torch.set_printoptions(precision={})", "str(torch.tensor([1 / 3]))", "4", "2"),
    "level of a logger": (
        "logging.getLogger('kept').setLevel({})",
        "logging.getLogger('kept').level",
        "'WARNING'",
        "'DEBUG'",
    ),
    "all loggers": ("logging.disable({})", "logging.root.manager.disable", "0", "20"),
    "checks of distributions": (
        "torch.distributions.Distribution.set_default_validate_args({})",
        "torch.distributions.Distribution._validate_args",
        "True",
        "False",
    ),
    "denormal numbers": (
        "torch.set_flush_denormal({})",
        "bool(torch.full((1,), 1e-310, dtype=torch.float64) * 1 != 0)",
        "False",
        "True",
    ),
    "reductions": (
        "torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = {}",
        "torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction",
        "True",
        "False",
    ),
    "type of autocast": (
        "torch.set_autocast_dtype('cpu', {})",
        "str(torch.get_autocast_dtype('cpu'))",
        "torch.bfloat16",
        "torch.float16",
    ),
    "import path": (
        "sys.path[:] = [one for one in sys.path if 'kept-path' not in one] + {}",
        "sum('kept-path' in one for one in sys.path)",
        "[]",
        "['/kept-path']",
    ),
    "time zone": (
        "os.environ['TZ'] = {}; time.tzset()",
        "time.localtime(0).tm_hour",
        "'UTC'",
        "'UTC-9'",
    ),
    "filters of warnings": (
        "warnings.simplefilter({}, ResourceWarning)",
        "next(one[0] for one in warnings.filters if one[2] is ResourceWarning)",
        "'ignore'",
        "'error'",
    ),
    "mask of new files": ("os.umask({})", "[os.umask(mask) for mask in (0, os.umask(0))][1]", "0o22", "0o77"),
    "dialects of csv": (
        "csv.register_dialect('kept', delimiter={})",
        "csv.get_dialect('kept').delimiter",
        "';'",
        "'|'",
    ),
    "lengths of reprlib": ("reprlib.aRepr.maxlist = {}", "reprlib.repr([1, 2, 3, 4, 5, 6, 7])", "6", "2"),
    "folder of torch.hub": ("torch.hub.set_dir({})", "torch.hub.get_dir()", "'first'", "'second'"),
    "figures": ("matplotlib.rcParams['lines.linewidth'] = {}", "matplotlib.rcParams['lines.linewidth']", "1.5", "4.0"),
    "stack of threads": ("threading.stack_size({})", "threading.stack_size()", "0", "1 << 20"),
    "buffer of numpy": ("np.setbufsize({})", "np.getbufsize()", "8192", "16384"),
}
"""By name: how a setting is set and read, its value above the loop and the value that the loop sets."""
_IMPORTS: Final = """
import csv, decimal, gc, locale, logging, os, reprlib, sys, threading, time, warnings
import matplotlib, torch.distributions, torch.hub
"""


@pytest.fixture(scope="module")
def code(tmp_path_factory: pytest.TempPathFactory) -> Outcomes:
    """Return the results of one program with all kinds of code."""
    return with_and_without_halts(tmp_path_factory.mktemp("code"), CODE)


@pytest.mark.parametrize("name", CODE)
def test_code_continues_after_two_halts(name: str, code: Outcomes) -> None:
    alone, halted = code
    assert halted[name] == alone[name]


@contextlib.contextmanager
def usual_settings() -> Iterator[None]:
    """Restore the settings of this process, in which the programs run."""
    threads, limit = torch.get_num_threads(), sys.getrecursionlimit()
    places, collector, level = locale.setlocale(locale.LC_ALL), gc.get_threshold(), logging.root.manager.disable
    path, printing = [*sys.path], np.get_printoptions()
    mask, figures = os.umask(0o22), mpl.rcParams.copy()
    try:
        with warnings.catch_warnings(), decimal.localcontext(), pytest.MonkeyPatch.context() as patch:
            patch.setenv("TZ", "UTC")
            patch.setattr(torch.hub, "_hub_dir", None)
            yield
    finally:
        torch.set_num_threads(threads)
        torch.set_default_device(None)
        torch.set_flush_denormal(False)
        torch.set_printoptions(profile="default")
        torch.set_autocast_dtype("cpu", torch.bfloat16)
        torch.backends.cuda.enable_flash_sdp(True)
        torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = True
        torch.distributions.Distribution.set_default_validate_args(True)
        sys.setrecursionlimit(limit)
        sys.path[:] = path
        locale.setlocale(locale.LC_ALL, places)
        gc.set_threshold(*collector)
        logging.disable(level)
        np.set_printoptions(**printing)
        np.setbufsize(8192)
        os.umask(mask)
        mpl.rcParams.update(figures)
        csv.unregister_dialect("kept")
        reprlib.aRepr.maxlist = 6
        threading.stack_size(0)


@pytest.fixture(scope="module")
def settings(tmp_path_factory: pytest.TempPathFactory) -> Outcomes:
    """Return the values of all settings at the end of one program that changes them in its loop."""
    kinds = {
        name: Part(read, f"if run.step == 2: {put.format(later)}", above=f"{_IMPORTS}\n{put.format(first)}")
        for name, (put, read, first, later) in SETTINGS.items()
    }
    with usual_settings():
        return with_and_without_halts(tmp_path_factory.mktemp("settings"), kinds)


@pytest.mark.parametrize("name", SETTINGS)
def test_setting_continues_after_two_halts(name: str, settings: Outcomes) -> None:
    alone, halted = settings
    assert halted[name] == alone[name]


WITHIN: Final = f"""{SETUP}
import contextvars, threading
np.seterr(under="ignore")
data = torch.ones(20, 1)
run = dlaas.run()
seen, free, level = [], threading.Semaphore(1), contextvars.ContextVar("level", default=None)
for epoch in run.epochs(3):
    seen.append((epoch, np.geterr()["under"], torch.is_grad_enabled()))
    if epoch == 1: np.seterr(under="print")
    assert free.acquire(blocking=False)
    token = level.set(epoch)
    with np.errstate(under="raise"), torch.no_grad():
        for batch in run.batches(data, 5):
            seen.append((np.geterr()["under"], torch.is_grad_enabled(), free._value, level.get()))
    level.reset(token)
    free.release()
    seen.append(level.get())
result = seen
"""


@pytest.mark.parametrize("halts", [(2,), (5,), (6, 3)])
def test_setting_of_a_with_statement_ends_with_it(tmp_path: Path, halts: tuple[int, ...]) -> None:
    with np.errstate():
        alone = run_with_halts(tmp_path / "alone", WITHIN)["result"]
        halted = run_with_halts(tmp_path / "halted", WITHIN, halts)["result"]
    assert halted == alone


OWN: Final = {
    "counter.py": """
        import store
        class Net:
            made = 0
            def __init__(self): type(self).made += 1
        def up():
            store.n += 1
            store.seen.append(1)
            return store.n
    """,
    "store.py": "n, seen = 0, []",
}


@pytest.fixture
def own_modules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Return a function that runs a program with modules of its own, which each start imports again."""

    def run(folder: Path, source: str, halts: tuple[int, ...] = ()) -> Any:
        files = folder / "files"
        files.mkdir(parents=True)
        for name, text in OWN.items():
            (files / name).write_text("\n".join(line[8:] if line[:8].isspace() else line for line in text.split("\n")))
        monkeypatch.syspath_prepend(str(files))
        found = None
        for stop_at in (*halts, None):
            for name in ("counter", "store"):
                sys.modules.pop(name, None)
            importlib.invalidate_caches()
            found = start(folder, source, stop_at=stop_at)
        assert found is not None
        return found["result"]

    yield run
    for name in ("counter", "store"):
        sys.modules.pop(name, None)


def test_state_of_own_modules_continues_after_two_halts(
    tmp_path: Path, own_modules: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    part = Part("(up(), Net.made)", "up(); Net()", above="from counter import *")
    monkeypatch.setitem(PARTS, "own", part)
    source = program("own")
    assert own_modules(tmp_path / "halted", source, (4, 3)) == own_modules(tmp_path / "alone", source)


@pytest.mark.parametrize("is_learner", [False, True])
def test_own_modules_are_found_whatever_is_imported_and_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_learner: bool
) -> None:
    monkeypatch.setattr(object_values, "_job_dir", lambda: str(tmp_path))
    monkeypatch.setattr(object_values, "_last_preloaded", [])
    if is_learner:
        object_values.begin_program()
    found = []
    for name in ("first", "second", "third"):
        module = types.ModuleType(name)
        module.__file__ = f"{tmp_path}/files/{name}.py"
        with monkeypatch.context() as patch:  # as many modules each time
            patch.setitem(sys.modules, name, module)
            found.append(object_values.own_modules())

    assert found == [("first",), ("second",), ("third",)]
    assert object_values.own_modules() == ()


def test_recording_settings_takes_a_hundredth_of_the_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(namespace, "_RECORD_SHARE", 0.01)
    now_s, records = [0.0], []
    one = namespace.Namespace({}, [], (), also={"process": PROCESS}, clock=lambda: now_s[0])

    def record(paths: Any) -> dict[str, Any]:
        records.append(now_s[0])
        now_s[0] += 0.5
        return {}

    monkeypatch.setattr(one._graph, "changes_of", record)
    for at_s in (1.0, 2.0, 51.0, 52.0, 60.0, 500.0):
        now_s[0] = at_s
        one.begin_epoch()

    assert records == [1.0, 52.0, 500.0]


REPORTED: Final = {
    "`thread work`": (
        "it was started in the loop: start it above the loop",
        Part(
            "end.set()",
            "if run.step == 2: threading.Thread(target=end.wait, args=(60,), name='idle').start(); go()",
            above="""
                import threading
                end = threading.Event()
                def work(): end.wait(60)
                def go(): threading.Thread(target=work, name='work', daemon=True).start()
            """,
        ),
    ),
    "`handlers and filters of the logger reported`": (
        "they were changed in the loop: add them above the loop",
        Part(
            "1",
            "if run.step == 2: logging.getLogger('reported').addFilter(lambda record: True)",
            above="import logging",
        ),
    ),
    "`handler of SIGUSR2`": (
        "it was set in the loop: call signal.signal above the loop",
        Part(
            "1",
            "if run.step == 2: signal.signal(signal.SIGUSR2, on_signal)",
            above="import signal\ndef on_signal(*_): pass\nusual = signal.signal(signal.SIGUSR2, signal.SIG_DFL)",
        ),
    ),
    "`cache of drawn`": (
        "keep the results in a dictionary",
        Part(
            "1",
            "drawn(1)",
            above="import functools\n@functools.lru_cache\ndef drawn(n): return torch.randn(n).tolist()",
        ),
    ),
    "`cache of counted`": (
        "count the calls in a variable",
        Part(
            "counted.cache_info()",
            "counted(1)",
            above="import functools\n@functools.lru_cache\ndef counted(n): return n",
        ),
    ),
    "`lock`": (
        "it was acquired in the loop: acquire it above the loop",
        Part("1", "if run.step == 2: lock.acquire()", above="import threading\nlock = threading.Lock()"),
    ),
    "`again`": (
        "it was acquired in the loop: acquire it above the loop",
        Part("1", "if run.step == 2: again.acquire()", above="import threading\nagain = threading.RLock()"),
    ),
    "`classes registered with Sized`": (
        "it was registered in the loop: register it above the loop",
        Part(
            "1",
            "if run.step == 2: collections.abc.Sized.register(Mine)",
            above="import collections.abc\nclass Mine: pass",
        ),
    ),
    "`entries of copyreg.dispatch_table`": (
        "it was registered in the loop: register it above the loop",
        Part(
            "copyreg.dispatch_table.pop(Plain, None)",
            "if run.step == 2: copyreg.pickle(Plain, lambda one: (Plain, ()))",
            above="import copyreg\nclass Plain: pass",
        ),
    ),
    "`functions of atexit`": (
        "it was registered in the loop: register it above the loop",
        Part("1", "if run.step == 2: atexit.register(int)", above="import atexit"),
    ),
    "`timer of signal.setitimer`": (
        "it was started in the loop: start it above the loop",
        Part("1", "if run.step == 2: signal.setitimer(signal.ITIMER_REAL, 3600)", above="import signal"),
    ),
    "`Late`": (
        "the class Late is defined in the loop: define it above the loop",
        Part("1", "if run.step == 1:\n    class Late: pass"),
    ),
    "`target._parameters['weight']`": (
        "it uses the memory of `online._parameters['weight']` since the loop began: assign it above the loop",
        Part(
            "1",
            "if run.step == 1: target.weight.data = online.weight.data",
            above="online, target = nn.Linear(2, 2), nn.Linear(2, 2)",
        ),
    ),
}


@pytest.mark.parametrize("name", REPORTED)
def test_change_that_a_halt_loses_is_reported(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    remedy, part = REPORTED[name]
    monkeypatch.setitem(PARTS, name, part)
    try:
        start(tmp_path, program(name), stop_at=6)
    finally:
        signal.signal(signal.SIGUSR2, signal.SIG_DFL)
        signal.setitimer(signal.ITIMER_REAL, 0)
        atexit.unregister(int)
    said = capfd.readouterr().err
    assert f"cannot keep {name} (" in said
    assert remedy in said


def test_thread_that_each_epoch_starts_is_not_reported(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    above = "import threading\ndef work(end): end.wait(60)"
    begin = (
        "if run.step % 4 == 1: end = threading.Event(); one = threading.Thread(target=work, args=(end,)); one.start()"
    )
    part = Part("1", begin, epoch="end.set(); one.join(); del end, one", above=above)
    monkeypatch.setitem(PARTS, "thread of an epoch", part)
    start(tmp_path, program("thread of an epoch"), stop_at=6)
    assert "it was started in the loop" not in capfd.readouterr().err


def test_cache_of_a_pure_function_is_not_reported(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    above = "import functools, math\n@functools.lru_cache\ndef root(n): return math.sqrt(n)"
    monkeypatch.setitem(PARTS, "pure", Part("1", "root(run.step)", above=above))
    start(tmp_path, program("pure"), stop_at=4)
    assert "cannot keep" not in capfd.readouterr().err
