"""The slice gives the asked names the value that all cells give, for programs without hidden effects."""

from __future__ import annotations

from hypothesis import example, given
from hypothesis import strategies as st

from jupyter_dlaas.analysis.model import ExecutedCell, KernelFacts, NameFact, TrainingCell
from jupyter_dlaas.capture.capture import capture
from jupyter_dlaas.capture.render import ENTRY

NUMBERS = ["a", "b", "c"]
LISTS = ["p", "q"]
START = """a, b, c = 1, 2, 3
p, q = [1], [2, 3]
def f(x):
    return x + a
def g(xs):
    xs.append(b)
    return len(xs)"""

number, other, third = st.sampled_from(NUMBERS), st.sampled_from(NUMBERS), st.sampled_from(NUMBERS)
items, more = st.sampled_from(LISTS), st.sampled_from(LISTS)
small = st.integers(-3, 5)


def _template(text: str) -> st.SearchStrategy[str]:
    """Return a statement with its `<x>` filled in."""
    parts = {"x": number, "y": other, "z": third, "s": items, "t": more, "k": small, "m": st.integers(0, 3)}
    used = {key: strategy for key, strategy in parts.items() if f"<{key}>" in text}
    return st.fixed_dictionaries(used).map(lambda values: _filled(text, values))


def _filled(text: str, values: dict[str, object]) -> str:
    for key, value in values.items():
        text = text.replace(f"<{key}>", str(value))
    return text


STATEMENTS = [
    "<x> = <y> + <k>",
    "<x> += <y>",
    "<x> = f(<y>)",
    "<x> = g(<s>)",
    "g(<s>)",
    "<s> = [<x>, <y>]",
    "<s> = <t>",
    "<s> = list(<t>)",
    "<s>.append(<x>)",
    "<s>[0] = <x>",
    "<s> += [<k>]",
    "<s> = <s> + <t>[:2]",
    "<x> = sum(<s>)",
    "<x> = <s>.pop() if len(<s>) > 1 else <k>",
    "if <x> > <k>:\n    <y> = <z>",
    "if <x> > <k>:\n    <y> = 1\nelse:\n    <y> = <z> - 1",
    "for i in range(<m>):\n    <s>.append(i)",
    "for i in <s>[:4]:\n    <x> = i\n    if i > <k>:\n        break",
    "for i in range(3):\n    if i == <m>:\n        continue\n    <x> = <y> + i",
    "while <x> > 20:\n    <x> -= 7",
    "try:\n    <x> = <s>[9]\nexcept IndexError:\n    <y> = <z>",
    "try:\n    <x> = 1 // <y>\nexcept ZeroDivisionError:\n    <x> = 0\nfinally:\n    <z> = 4",
    "def f(v):\n    return v + <x>",
    "def g(xs):\n    global <x>\n    <x> = <k>\n    xs.append(<y>)\n    return <y>",
    "def g(xs):\n    return sum(xs) + f(<x>)",
    "<x>, <y> = <y>, <z>",
    "<s> = [v + <x> for v in <t>][:5]",
    "w = <s>\nw.append(<x>)",
    "w = {'k': <s>}\nw['k'].append(<x>)",
    "<x> = (n := <y> + 1) * 2",
    "match <x>:\n    case 1:\n        <y> = 5\n    case int(v) if v > <k>:\n        <z> = v",
    "print(<x>, <s>)",
    "<s>",
    "del <x>\n<x> = <k>",
    "<x> = (lambda v: v + <y>)(<z>)",
    "<s>.sort(key=lambda v: v * <x>)",
    "def h():\n    def inner():\n        return f(<x>)\n    return inner\n<y> = h()()",
    "class C:\n    k = <x>\n    def put(self, xs):\n        xs.append(self.k + <y>)\nC().put(<s>)",
    "class D:\n    def __init__(self, xs):\n        self.xs = xs\nd = D(<s>)\nd.xs.append(<x>)",
    "from math import *\n<x> = floor(<y> + 0.5)",
    "with open('/dev/null') as z:\n    <x> = <y>",
    "<s> = sorted(<t>)[:4]\n<s>.reverse()",
    "u, *v = [<x>, <y>, <k>]\n<s>.extend(v)",
    "def note(v, log=[]):\n    log.append(v)\n    return len(log)\n<x> = note(<k>)",
    (
        "def counter():\n    n = <x>\n    def up():\n        nonlocal n\n"
        "        n += <k>\n        return n\n    return up\ntick = counter()\n<y> = tick() + tick()"
    ),
    "put = <s>.append\nput(<x>)",
    "r = t = <s>\nt.insert(0, <x>)",
    "rows = [<s>, <t>]\nfor row in rows:\n    row.append(<x>)",
    "rows = []\nrows.append(<s>)\nrows[0].append(<k>)",
    "gen = (v + <x> for v in [1, 2, 3])\n<y> = next(gen)\n<s> = list(gen)",
    (
        "def numbers(n):\n    for v in range(n):\n        yield v + <x>\n"
        "many = numbers(3)\n<y> = next(many)\n<s> = [*many]"
    ),
    (
        "def shout(func):\n    def inner(*args):\n        <s>.append(len(args))\n        return func(*args)\n"
        "    return inner\n@shout\ndef k(v):\n    return v + <x>\n<y> = k(<z>)"
    ),
    "def put_in(func):\n    <s>.append(func(1))\n    return func\n@put_in\ndef q1(v):\n    return v + <x>",
    (
        "class A:\n    total = <x>\n    def __enter__(self):\n        A.total += 1\n"
        "        return self\n    def __exit__(self, *why):\n        <s>.append(A.total)\n"
        "with A() as here:\n    <y> = here.total"
    ),
    "class B:\n    def __init__(self):\n        <s>.append(<x>)\nB()",
    "from functools import partial\nadd = partial(<s>.insert, 0)\nadd(<x>)",
    "import itertools\n<s> = [*itertools.islice(itertools.cycle([*<t>, 1]), 3)]",
    "try:\n    raise ValueError(<x>)\nexcept ValueError as error:\n    <y> = error.args[0]\nelse:\n    <z> = 1",
    "def f(x):\n    return g2(x) - <y>\ndef g2(x):\n    return x * <k>",
    "<s>, <x> = [<y>, *<t>][:4], <z>",
    "if (m := <x>) > <k>:\n    <s>.append(m)",
    "<x> = [<y>, <z>][<y> > <z>]",
    "def g(xs, ys=<s>):\n    ys.append(len(xs))\n    return <x>",
    "box = {}\nbox.setdefault('k', <s>).append(<x>)",
    "<s>[:] = [*<t>, <x>][-3:]",
    "[<s>.append(v) for v in (<x>, <y>)]",
]
statements = st.sampled_from(STATEMENTS).flatmap(_template)
programs = st.lists(st.lists(statements, min_size=1, max_size=3).map("\n".join), min_size=1, max_size=8)
histories = programs.flatmap(lambda cells: st.lists(st.sampled_from(cells), min_size=1, max_size=12))


def _run(source: str) -> dict[str, object]:
    space: dict[str, object] = {"__name__": "__main__", "print": lambda *values: None}
    exec(compile(source, "<program>", "exec"), space)
    return space


@given(histories, st.sets(st.sampled_from([*NUMBERS, *LISTS]), min_size=1, max_size=3))
@example(  # a decorator that calls what it decorates: what that reads is needed as it is now
    [
        "b = a + 0",
        "def put_in(func):\n    p.append(func(1))\n    return func\n@put_in\ndef q1(v):\n    return v + b",
        "b = a + 9",
    ],
    {"b", "p"},
)
def test_slice_computes_the_same_values_as_all_cells(cells: list[str], asked: set[str]) -> None:
    names = sorted(asked)
    everything = _run("\n".join([START, *cells]))
    made = capture(
        [ExecutedCell(count=n, source=source) for n, source in enumerate([START, *cells], 1)],
        TrainingCell(count=99, source=f"print({', '.join(names)}, f(1))"),
        KernelFacts(names={name: NameFact(type_name="object") for name in everything}),
    )

    assert made.errors == ()
    part = _run(made.text.split(ENTRY)[0])
    assert {name: part[name] for name in names} == {name: everything[name] for name in names}
    assert _called(part["f"]) == _called(everything["f"])


def _called(function: object) -> object:
    assert callable(function)
    return function(1)
