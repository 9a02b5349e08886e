"""A job's random numbers continue the notebook's, although statements that drew some are left out."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

import pytest

from jupyter_dlaas.analysis.model import Capture, ExecutedCell, KernelFacts, NameFact, TrainingCell
from jupyter_dlaas.capture.capture import capture

SEED = "import torch\ntorch.manual_seed(0)"


def job(*cells: str, train: str, streams: Sequence[str] | None) -> Capture:
    """Return a letter of `streams` per cell, and one for the training cell. Equal letters: nothing drawn in between."""
    ran = [
        ExecutedCell(count=n, source=source, random_state=streams[n - 1] if streams else None)
        for n, source in enumerate(cells, 1)
    ]
    facts = KernelFacts(random_state=streams[-1] if streams else None)
    return capture(ran, TrainingCell(count=len(cells) + 1, source=train), facts)


def restored(made: Capture) -> Mapping[int, str]:
    lines = [line for line in made.text.splitlines() if line.startswith("dlaas.random_as_before(")]
    assert [line.partition("(")[2].partition(")")[0] for line in lines] == [str(cell) for cell in made.random_state]
    return made.random_state


def test_random_draws_of_a_skipped_look_are_replayed() -> None:
    made = job(SEED, "print(torch.rand(3))", "w = torch.rand(3)", train="w.sum()", streams="abcd")

    assert restored(made) == {3: "c"}
    assert "print" not in made.text
    assert made.text.index("random_as_before(3)") < made.text.index("w = torch.rand(3)")
    assert "import jupyter_dlaas as dlaas" in made.text


KERAS = "import keras\nkeras.utils.set_random_seed(1)\naug = keras.layers.RandomFlip()"


@pytest.mark.parametrize(
    ("counts", "cells"),
    [((None, 0, 3), {3}), ((None, 0, 0), set[int]()), ((0, 2, 2), set[int]()), ((None, 1, 1), set[int]())],
)
def test_draws_of_a_keras_layer_are_replayed(counts: tuple[int | None, ...], cells: set[int]) -> None:
    states = [{"random": 1} | ({"keras.layers": {"aug": [[[9, one]]]}} if one is not None else {}) for one in counts]
    made = job(KERAS, "print(aug(X).shape)", train="fit(aug)", streams=[json.dumps(one) for one in states])

    assert restored(made).keys() == cells


def test_a_look_beside_new_layers_draws_from_none() -> None:
    seed, layer = KERAS.rsplit("\n", 1)
    seeded = json.dumps({"random": 1})
    states = [seeded, seeded, json.dumps({"random": 1, "keras.layers": {"aug": [[[9, 0]]]}})]
    made = job(seed, f"{layer}\nprint(compute(X))", train="fit(aug)", streams=states)

    assert "print" not in made.text
    assert not restored(made)


def test_seed_of_cupy_seeds_no_other_library() -> None:
    made = job("import torch, cupy as cp\ncp.random.seed(0)\nw = torch.rand(3)", train="w.sum()", streams="ab")

    assert restored(made) == {1: "a"}


def test_random_draws_of_another_training_are_replayed() -> None:
    made = job(SEED, "x = torch.rand(3)\nfor i in [1]:\n    fit(torch.rand(2))", train="x * 2", streams="abc")

    assert restored(made) == {3: "c"}
    assert made.text.index("random_as_before(3)") < made.text.index("__main__")


@pytest.mark.parametrize(
    "before",
    [
        "net = torch.nn.Linear(2, 1)",
        "look = torch.rand(5)",
        "net = Net(2)",
        "print(shuffled(range(3)))",
        "for _ in range(2):\n    torch.rand(1)",
    ],
)
def test_statements_that_draw_before_a_kept_draw_are_kept(before: str) -> None:
    own = "def shuffled(items):\n    return list(items)\nclass Net:\n    def __init__(self, size):\n        pass"
    made = job(own, f"{SEED}\n{before}\nw = torch.rand(3)", train="w.sum()", streams="aab")

    assert made.errors == ()
    assert [text for text in made.text.splitlines() if "torch.rand(3)" in text or text == before.splitlines()[-1]] == [
        before.splitlines()[-1],
        "w = torch.rand(3)",
    ]
    assert not restored(made)
    assert not made.warnings


@pytest.mark.parametrize(
    "cell",
    [
        f"{SEED}\nw = torch.rand(3)\nshow(w)\nnet = torch.nn.Linear(2, 1)",
        f"show(3)\n{SEED}\nw = torch.rand(3)",
        f"{SEED}\nshow(net)\nw = torch.arange(3).sin()",
        f"{SEED}\nprint(torch.ones(3))\nshown = torch.optim.SGD([torch.ones(3)])\nw = torch.rand(3)",
    ],
)
def test_statements_that_shift_no_kept_draw_are_left_out(cell: str) -> None:
    made = job(cell, train="w.sum()", streams="ab")

    assert not {"show", "print", "shown", "Linear"} & {
        word for word in made.text.replace("(", " ").split() if word.isalpha()
    }


def test_a_pushed_value_is_not_drawn_again() -> None:
    cell = ExecutedCell(count=1, source=f"{SEED}\nnet = Net()\nw = torch.rand(3)", random_state="a")
    names = {"net": NameFact(type_name="Net"), "w": NameFact(type_name="torch.Tensor")}
    training = TrainingCell(count=2, source="net(w)", push=("net",))
    made = capture([cell], training, KernelFacts(names=names, random_state="b"))

    assert "Net()" not in made.text
    assert 'net = dlaas.pushed("net")' in made.text


def test_a_draw_that_cannot_run_again_is_reported_instead() -> None:
    cell = ExecutedCell(count=1, source=f"{SEED}\nnet = Net(options)\nw = torch.rand(3)", random_state="a")
    large = NameFact(type_name="Options", cannot_travel="an open file")
    names = {"net": NameFact(type_name="Net"), "options": large, "w": NameFact(type_name="torch.Tensor")}
    made = capture([cell], TrainingCell(count=2, source="w.sum()"), KernelFacts(names=names, random_state="b"))

    assert made.errors == ()
    assert "Net(options)" not in made.text
    assert [problem.code for problem in made.warnings] == ["drawn_again"]


def test_nothing_is_made_up_for_where_nothing_was_drawn() -> None:
    assert not restored(job(SEED, "show(3)", "w = torch.rand(3)", train="w.sum()", streams="abbc"))


def test_no_replay_if_all_drawing_code_is_captured() -> None:
    assert not restored(job(SEED, "w = torch.rand(3)\nprint(w)\nw.shape", train="w.sum()", streams="abc"))


def test_a_notebook_that_seeds_nothing_gets_the_jobs_own_numbers() -> None:
    made = job("import torch", "print(torch.rand(3))", train="torch.rand(3)", streams="abc")

    assert not restored(made)
    assert "import jupyter_dlaas" not in made.text


def test_draws_of_an_unseeded_notebook_are_reproduced() -> None:
    made = job("import torch", "w = torch.rand(3)", "x = 2", "v = f(w)", train="w.sum() * x * v", streams="aabbc")

    assert restored(made) == {2: "a"}
    assert made.text.index("random_as_before(2)") < made.text.index("w = torch.rand(3)")
    assert made.text.index("x = 2") < made.text.index("dlaas.random_anew()") < made.text.index("__main__")


def test_each_library_has_its_own_seed() -> None:
    first = streams(torch=1)
    after = streams(torch=2)
    split = streams(torch=2, numpy=2)
    cells = ("import torch, numpy as np\ntorch.manual_seed(0)", "i = np.random.permutation(9)")
    ran = [
        ExecutedCell(count=n, source=s, random_state=c)
        for n, (s, c) in enumerate(zip(cells, (first, after), strict=True), 1)
    ]

    made = capture(ran, TrainingCell(count=3, source="print(i)"), KernelFacts(random_state=split))

    assert restored(made) == {2: after}
    assert "random_anew" not in made.text  # seeded generators continue as in the notebook


@pytest.mark.parametrize(
    "seed", ["torch.seed()", "random.seed()", "np.random.seed(None)", "torch.manual_seed(int(time.time()))"]
)
def test_a_seed_that_is_another_one_each_time_seeds_nothing(seed: str) -> None:
    made = job(f"import torch, random, time, numpy as np\n{seed}", "w = torch.rand(3)", train="print(w)", streams="abc")

    assert restored(made) == {2: "b"}


def streams(**libraries: int) -> str:
    """Return the kernel's record in short form."""
    return json.dumps({"random": [0], "numpy.random": [libraries.get("numpy", 0)], "torch": [libraries["torch"]]})


def test_draws_before_the_seed_do_not_count() -> None:
    assert not restored(job("import torch\ntorch.rand(3)", SEED, train="torch.rand(3)", streams="abc"))


def test_draws_of_the_first_of_two_runs_are_replayed() -> None:
    made = job(SEED, "w = torch.rand(3)", "w = torch.rand(3)", train="w.sum()", streams="abcd")

    assert restored(made) == {3: "c"}


def test_without_a_kernel_nothing_is_known_and_nothing_is_done() -> None:
    assert not restored(job(SEED, "print(torch.rand(3))", "w = torch.rand(3)", train="w.sum()", streams=None))


def test_path_containing_seed_seeds_nothing() -> None:
    first = "import sys\nsys.path.append('/data/seed_bank')  # the seed bank"

    assert not restored(job(first, "print(rand(3))", train="rand(3)", streams="abc"))


@pytest.mark.parametrize(
    "generator",
    [
        "torch.Generator().manual_seed(0)",
        "torch.Generator()\n    g.manual_seed(0)",
        "np.random.RandomState()\n    g.seed(0)",
        "random.Random()\n    g.seed(0)",
    ],
)
def test_a_function_that_seeds_its_own_generator_sets_nothing_up(generator: str) -> None:
    data = f"def data():\n    g = {generator}\n    return draw(g)\ndef accuracy(net):\n    return net(data())"

    made = job(SEED, data, "net = Net()", "print(accuracy(net))", train="use(data())", streams="aabbb")

    assert "def data" in made.text
    assert "accuracy" not in made.text
    assert not restored(made)


@pytest.mark.parametrize(
    "seed", ["torch.manual_seed(0)", "np.random.seed(0)", "import torch\n    torch.manual_seed(0)"]
)
def test_function_that_seeds_global_streams_is_captured(seed: str) -> None:
    made = job(SEED, f"def again():\n    {seed}", "again()", train="w = torch.rand(3)", streams="aab")

    assert "again()" in made.text
