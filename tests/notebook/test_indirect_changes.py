"""Statements that change an object indirectly: through a callback, a view, a buffer, an operator or a class hook."""

from __future__ import annotations

import pytest

from jupyter_dlaas.analysis.model import ExecutedCell, TrainingCell
from jupyter_dlaas.capture.capture import capture
from tests.notebook.cases import job, prelude

REGISTERING = "known = []\nclass Base:\n    def __init_subclass__(cls):\n        known.append(cls)\n"
READING = """
import collections
ids = collections.defaultdict(lambda: len(ids))
def code(words):
    return [ids[w] for w in words]
"""
COUNTED = """
class Counted:
    n = 0
    def __enter__(self):
        self.n += 1
    def __exit__(self, *_):
        pass
counted = Counted()
"""
PIPE = """
class Pipe:
    def __init__(self):
        self.parts = []
    def __or__(self, other):
        self.parts.append(other)
        return self
pipe = Pipe()
"""
RUN_ALL = "def run_all(all):\n    for one in all:\n        one()"
CHANGES = {
    "default of a parameter": (
        "losses = []\ndef note(x, log=losses):\n    log.append(x)\n    return x",
        "last = note(3)",
        "losses",
    ),
    "default of a keyword": (
        "seen = {}\ndef note(x, *, log=seen):\n    log[x] = 1\n    return x",
        "last = note(3)",
        "seen",
    ),
    "method given to a call": ("items = []", "done = list(map(items.append, range(3)))", "items"),
    "method given to a thread": (
        "import threading\nitems = []",
        "worker = threading.Thread(target=items.append, args=(3,))\nworker.start()",
        "items",
    ),
    "method given to a consumer": (
        "import collections\nfound = set()",
        "collections.deque(map(found.add, [3]), maxlen=0)",
        "found",
    ),
    "lambda that changes an argument": (
        "import functools\nacc = {}",
        "functools.reduce(lambda a, b: a.update(b) or a, [{'x': 1}], acc)",
        "acc",
    ),
    "lambda that changes a list": (
        "sizes = []",
        "total = df.groupby('k')['v'].agg(lambda g: sizes.append(len(g)) or 0)",
        "sizes",
    ),
    "lambda that changes the rows": ("rows = [[1], [2]]", "done = list(map(lambda row: row.append(0), rows))", "rows"),
    "view of a flat array": ("import numpy as np\na = np.zeros((2, 3))", "flat = a.ravel()\nflat[5] = 1", "a"),
    "view by a function": ("import numpy as np\na = np.zeros(6)", "b = np.reshape(a, (2, 3))\nb[0] = 1", "a"),
    "view of a part": ("import torch\nt = torch.zeros(4)", "left, right = t.chunk(2)\nright.zero_()", "t"),
    "heap whose smallest is taken": ("import heapq\nheap = [1, 2]", "smallest = heapq.heappop(heap)", "heap"),
    "item bound by with": ("d = {}", "with open_it() as d['k']:\n    pass", "d"),
    "item bound by a comprehension": ("d = {}", "n = [1 for d['i'] in range(3)]", "d"),
    "subclass that registers itself": (
        "class Base:\n    known = []\n    def __init_subclass__(cls):\n        Base.known.append(cls)",
        "class Left(Base):\n    pass",
        "Base",
    ),
    "subclass of a subclass": (
        REGISTERING + "class Mid(Base):\n    pass",
        "class Left(Mid):\n    pass",
        "known",
    ),
    "metaclass that registers": (
        "known = []\nclass Meta(type):\n    def __init__(cls, *_):\n        known.append(cls)",
        "class Left(metaclass=Meta):\n    pass",
        "known",
    ),
    "dictionary that grows when it is read": (
        "from collections import defaultdict\nids = defaultdict(lambda: len(ids))",
        "numbers = [ids[word] for word in 'a b'.split()]",
        "ids",
    ),
    "dictionary that a function reads": (
        READING,
        "numbers = code('a b'.split())",
        "ids",
    ),
    "buffer that is printed to": ("import io\nbuffer = io.StringIO()", "print('loss', file=buffer)", "buffer"),
    "buffer that is saved to": ("import io, torch\na, data = 1, io.BytesIO()", "torch.save([1], data)", "data"),
    "scaler fitted by what returns the data": ("scaler = Scaler()", "shown = scaler.fit_transform(x)", "scaler"),
    "attribute through the type": ("class Box:\n    shared = []\nbox = Box()", "type(box).shared.append(5)", "box"),
    "context manager with a count": (
        COUNTED,
        "with counted:\n    pass",
        "counted",
    ),
    "operator that adds": (
        PIPE,
        "pipe | 1 | 2",
        "pipe",
    ),
    "callable that counts": (
        "class Key:\n    n = 0\n    def __call__(self, x):\n        self.n += 1\n        return x\nkey = Key()",
        "order = sorted([2, 1], key=key)",
        "key",
    ),
    "lambda in an attribute": (
        "class Hooks:\n    pass\nhooks, calls = Hooks(), []\nhooks.end = lambda k: calls.append(k)",
        "hooks.end(3)",
        "calls",
    ),
    "functions in a list": (
        f"state = []\ndef add():\n    state.append(1)\n{RUN_ALL}\nsteps = [add]",
        "run_all(steps)",
        "state",
    ),
    "lambdas in a list": (
        f"state = []\n{RUN_ALL}\nsteps = [lambda: state.append(1)]",
        "run_all(steps)",
        "state",
    ),
    "iterator under another name": (
        "numbers = iter(range(6))\nsame = numbers",
        "pairs = list(zip(same, same))[:1]",
        "numbers",
    ),
}


@pytest.mark.parametrize("name", CHANGES)
def test_indirect_change_of_a_needed_object_is_captured(name: str) -> None:
    made, change, needed = CHANGES[name]
    text = prelude(job(made, change, train=f"print({needed})"))

    assert change.splitlines()[-1] in text


SETUP = {
    "module by hand": "import sys, types\nsys.modules['own'] = types.ModuleType('own')",
    "search path of a library": "import nltk\nnltk.data.path.append('data')",
    "table of a library": "import registry\nregistry.models['own'] = 3",
}


@pytest.mark.parametrize("name", SETUP)
def test_change_of_a_module_is_setup(name: str) -> None:
    assert prelude(job("x = 1", SETUP[name], train="print(x)"))[-1] == SETUP[name].splitlines()[-1]


LOOKS = {
    "lambda that computes": ("model = make()", "shown = data.map(lambda x: model.predict(x))", "model"),
    "lambda as a key": ("rows = make()", "best = max(rows, key=lambda row: row[1])", "rows"),
    "read of an item": ("d = make()", "first = d['a']", "d"),
    "item of a dictionary": ("d = {'a': 1}", "print(d['a'])", "d"),
    "variable named like a function": ("chunk = make()", "part = chunk[0]\npart.show()", "chunk"),
    "class of a library's base": ("base = 1\nimport torch", "class Net(torch.nn.Module):\n    pass", "base"),
    "model beside a class that is called": (
        "class Stopper:\n    def __call__(self, x):\n        self.best = x\nclass Net:\n    pass\nnet = Net()",
        "score = rate(net)",
        "net",
    ),
    "object given to a constructor": (
        "class Stopper:\n    def __call__(self, x):\n        self.best = x\nstop = Stopper()",
        "other = Trainer(stop)",
        "stop",
    ),
    "operators of numbers": ("a = make()", "a + 1", "a"),
}


@pytest.mark.parametrize("name", LOOKS)
def test_look_at_a_needed_object_is_left_out(name: str) -> None:
    made, look, needed = LOOKS[name]
    assert look.splitlines()[-1] not in prelude(job(made, look, train=f"print({needed})"))


@pytest.mark.parametrize(("has_value", "is_kept"), [(False, True), (True, False), (None, False)])
def test_last_call_of_a_cell_without_a_value_is_captured(*, has_value: bool | None, is_kept: bool) -> None:
    cells = [
        ExecutedCell(count=1, source="import faiss, numpy as np\nx = np.ones(3)"),
        ExecutedCell(count=2, source="faiss.normalize_L2(x)", has_value=has_value),
    ]
    made = capture(cells, TrainingCell(count=3, source="print(x)"))

    assert ("faiss.normalize_L2(x)" in prelude(made)) is is_kept


BASE = "class Base:\n    def run(self):\n        return self.helper()"
ADD = "def add_to_class(cls):\n    def wrap(f):\n        setattr(cls, f.__name__, f)\n    return wrap"
METHOD = "def helper(self):\n    return 1"


@pytest.mark.parametrize(
    "change",
    [
        f"{METHOD}\nBase.helper = helper",
        "setattr(Base, 'helper', lambda self: 1)",
        "for name in ['helper']:\n    setattr(Base, name, lambda self: 1)",
        "def patch_all():\n    Base.helper = lambda self: 1\npatch_all()",
        f"@add_to_class(Base)\n{METHOD}",
    ],
)
@pytest.mark.parametrize("made", ["before", "after"])
def test_change_of_a_base_reaches_its_subclasses_and_objects(change: str, made: str) -> None:
    sub = "class Sub(Base):\n    pass"
    cells = (change, "s = Sub()") if made == "after" else ("s = Sub()", change)

    assert change.splitlines()[-1] in prelude(job(ADD, BASE, sub, *cells, train="s.run()"))


def test_change_of_a_replaced_base_is_left_out() -> None:
    made = job(
        "class Base:\n    x = 1", "class Sub(Base):\n    pass", "class Base:\n    x = 2\nBase.x = 3", train="Sub()"
    )

    assert "Base.x = 3" not in made.text


@pytest.mark.parametrize(
    ("decorator", "first"),
    [
        ("@patch", "self: Base"),
        ("@patch", 'self: "Base"'),
        ("@patch", "self: Base | Other"),
        ("@fc.patch(as_prop=True)", "self: Base"),
        ("@patch", "self: Learner"),
        ("@patch_to(Base)", "self"),
        ("@d2l.add_to_class(Base)", "self"),
        ("@d2l.add_to_class(d2l.Module)", "self"),
        ("@own", "self: Base"),
    ],
)
def test_method_that_a_decorator_adds_to_a_class_is_captured(decorator: str, first: str) -> None:
    made = job(
        "import fastcore.all as fc\nfrom fastcore.all import patch, patch_to\nfrom d2l import torch as d2l",
        "from fastai.vision.all import Learner\ndef own(f):\n    setattr(f.__annotations__['self'], f.__name__, f)",
        f"class Other:\n    pass\n{BASE}\nclass Sub(Base, d2l.Module):\n    pass",
        "s, learn = Sub(), Learner()",
        f"{decorator}\ndef helper({first}):\n    return 1",
        train="s.run()\nlearn.run()",
    )

    assert decorator in prelude(made)


def test_decorated_function_without_a_class_stays_out() -> None:
    made = job(
        "import torch\nfrom functools import partial\nfrom torch import nn",
        "class Net(nn.Module):\n    pass\nnet = Net()",
        "@torch.no_grad()\ndef predict(net: Net):\n    return net(1)",
        "@partial(torch.vmap, in_dims=0)\ndef f(x):\n    return x",
        train="net(1)",
    )

    assert "predict" not in made.text
    assert "vmap" not in made.text
