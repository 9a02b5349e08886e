"""Names that only a branch reads: what no cell binds is a warning where the branch need not run."""

from __future__ import annotations

import pytest

from tests.notebook.cases import codes, facts, job, prelude

PYTHON_2 = "import sys\ntext = 'a'\nif sys.version_info < (3, 0):\n    text = unicode(text)"


@pytest.mark.parametrize(
    "train",
    [
        "try:\n    print(x)\nexcept HTTPError as error:\n    print(error)",
        "import sys\nif sys.version_info < (3, 0):\n    x = unicode(x)\nprint(x)",
        "try:\n    text = unicode\nexcept NameError:\n    text = str\nprint(text(x))",
        "for i in range(3):\n    try:\n        print(x)\n    except (ValueError, HTTPError):\n        pass",
    ],
)
def test_name_read_only_in_except_or_if_is_a_warning(train: str) -> None:
    made = job("x = 1", train=train)

    assert codes(made) == ["late_undefined"]
    assert "which is not defined anywhere. If that line runs in the job, it fails." in made.warnings[0].message


@pytest.mark.parametrize("train", ["print(x, losss)", "for i in range(3):\n    if i == x:\n        print(losss)"])
def test_a_misspelt_name_in_the_training_itself_is_still_refused(train: str) -> None:
    assert codes(job("x = 1", train=train)) == ["undefined_name"]


def test_statements_not_reached_by_an_earlier_cell_are_a_warning() -> None:
    assert codes(job(PYTHON_2, train="print(text)")) == ["late_undefined"]
    assert codes(job("x = []\nfor i in [1]:\n    if not i:\n        x.append(unicode(i))")) == ["late_undefined"]


def test_names_read_by_a_branch_are_captured() -> None:
    made = job("from urllib.error import HTTPError", train="try:\n    print(1)\nexcept HTTPError:\n    pass")

    assert prelude(made) == ["from urllib.error import HTTPError"]


def test_a_name_that_something_else_surely_reads_is_refused() -> None:
    assert codes(job(train="if flag():\n    print(y)\nprint(y)\ndef flag():\n    return 0")) == ["undefined_name"] * 2


@pytest.mark.parametrize("word", ["break", "continue"])
def test_binding_that_a_loop_may_skip_keeps_the_earlier_one(word: str) -> None:
    loop = f"for i in [1, 2]:\n    if flag:\n        {word}\n    x = i"

    assert prelude(job("x = 0", "flag = True", loop))[0] == "x = 0"


BINDERS = (
    "exec(code)",
    "exec(code, globals())",
    "space = globals()\nexec(code, space)",
    "from math import *",
    "if code:\n    from math import *",
    "fill(globals())",
    "unpack()",
)
ABOVE = (
    "code = open('w.py').read()",
    "def fill(space):\n    space['w'] = 1\ndef unpack():\n    for name in ['w']:\n        globals()[name] = 1",
)


CERTAIN = (
    "exec('w = 1')",
    "exec(compile('w = 1', 'w.py', 'exec'), globals())",
    "text = 'w = 1'\nexec(text)",
    "globals().update({'w': 1})",
    "globals()['w'] = 1",
    "space = globals()\nspace['w'] = 1",
    "vars().setdefault('w', 1)",
    "import sys\nsetattr(sys.modules[__name__], 'w', 1)",
    "import __main__\n__main__.w = 1",
)


@pytest.mark.parametrize("binder", CERTAIN)
def test_name_bound_through_the_namespace_is_known(binder: str) -> None:
    assert codes(job(*ABOVE, train=binder, outputs=("w",))) == []
    assert codes(job(*ABOVE, train=f"{binder}\nprint(w)")) == []
    assert codes(job(*ABOVE, binder, train="print(w)")) == []


COMPUTED = (
    "for i in range(2):\n    globals()[f'net_{i}'] = nn.Linear(1, 1)",
    "globals()['net_%d' % k] = nn.Linear(1, 1)",
    "globals()['net_{}'.format(k)] = nn.Linear(1, 1)",
    "globals()['net_' + str(k)] = nn.Linear(1, 1)",
    "globals()[name] = nn.Linear(1, 1)",
    "globals()[names[k]] = nn.Linear(1, 1)",
    "globals().update({f'net_{i}': nn.Linear(1, 1) for i in range(2)})",
    "globals().update(dict(zip(names, made())))",
    "import sys\nsetattr(sys.modules[__name__], f'net_{k}', nn.Linear(1, 1))",
    "def put(name, value):\n    globals()[name] = value\nput('net_0', nn.Linear(1, 1))",
    "def put_all(**values):\n    globals().update(values)\nput_all(**{'net_0': nn.Linear(1, 1)})",
)
NETS = "from torch import nn\nk, name, names, net_0, net_1, other = 0, 'net_0', ['net_0', 'net_1'], None, 1, 'others'"
MADE = "def made():\n    return nn.Linear(1, 1), nn.Linear(1, 1)"


@pytest.mark.parametrize("binder", COMPUTED)
def test_names_that_are_computed_are_bound_again(binder: str) -> None:
    bound = job(NETS, MADE, binder, train="print(net_0, net_1)")
    read = job(NETS, MADE, binder, train="print(other)")

    assert codes(bound) == []
    assert set(binder.splitlines()) < set(prelude(bound))
    assert NETS.splitlines()[1] in prelude(bound)
    assert prelude(read) == NETS.splitlines()[1:]


def test_names_that_are_computed_are_changed_and_read() -> None:
    bound = job(NETS, train="for i in range(2):\n    globals()[f'net_{i}'] = i")
    added = job("n_1 = 1", "globals()[f'n_{1}'] += 1", train="print(n_1)")
    read = job(NETS, train="nets = [globals()[f'net_{i}'] for i in range(2)]")

    assert {"net_0", "net_1"} < {*bound.bound}
    assert prelude(added) == ["n_1 = 1", "globals()[f'n_{1}'] += 1"]
    assert prelude(read) == NETS.splitlines()[1:]


@pytest.mark.parametrize("binder", BINDERS)
def test_a_name_that_text_may_bind_is_a_warning(binder: str) -> None:
    brought_back, read = job(*ABOVE, train=binder, outputs=("w",)), job(*ABOVE, train=f"{binder}\nprint(w)")
    held = job(*ABOVE, train=binder, outputs=("w",), facts=facts(w=object()))

    assert (codes(brought_back), codes(read), codes(held)) == (["perhaps_bound"],) * 3
    assert brought_back.is_ready
    assert read.is_ready
    assert held.is_ready
    assert brought_back.warnings[0].message.startswith("-o w: only cell [3], line ")
    assert "reads `w`, which only cell [3], line " in read.warnings[0].message


@pytest.mark.parametrize(
    "line",
    [
        "print('x' in globals())",
        "if 'x' not in locals():\n    x = 1",
        "print(globals().get('x'), sorted(vars()), dir())",
        "names = [name for name in globals() if name]",
        "if code:\n    print(code)",
    ],
)
def test_lookups_bind_nothing(line: str) -> None:
    assert codes(job(*ABOVE, train=line, outputs=("w",))) == ["output_unbound"]
    assert codes(job(*ABOVE, train=f"print(w)\n{line}\nexec(code)")) == ["undefined_name"]
