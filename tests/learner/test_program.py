"""Rules about a program look at its syntax tree: prose in comments and strings is not the program."""

from __future__ import annotations

import pytest

from jupyter_dlaas.learner.environment.program_identifiers import Words, words_of

PROSE = '''"""Notes: run.batches( and loss.backward( come later; not distributed, needs torch."""
# run = dlaas.run(); run.log(loss=1)
print("run.log(x), .backward( and import torch")
'''


def test_comments_and_prose_say_nothing_of_the_program() -> None:
    words = words_of(PROSE)

    assert words.names == {"print"}
    assert (words.methods, words.modules, words.logs) == (frozenset(), frozenset(), False)


def test_identifiers_modules_and_strings_of_one_word_count() -> None:
    words = words_of("import torch.distributed as dist\nrank = int(os.environ['RANK'])\nstep(world=f'{size}')")

    assert {"torch", "distributed", "dist", "rank", "environ", "RANK", "world", "size"} <= words.names
    assert words.modules == {"torch"}


def test_methods_count_where_they_are_called() -> None:
    assert words_of("f = loss.backward").methods == frozenset()
    assert words_of("loss . backward ( )\nfor x in run.batches(d): pass").methods == {"backward", "batches"}


@pytest.mark.parametrize(
    "text",
    [
        "run = dlaas.run()\nrun.log(loss=1)",
        "r: object = run()\nr.log(a=1)",
        "dlaas.run().log(a=1)",
        "def f():\n    (r := jupyter_dlaas.run()).log(a=1)\n    r.log(a=2)",
    ],
)
def test_a_program_that_logs_is_known_by_its_calls(text: str) -> None:
    assert words_of(text).logs


@pytest.mark.parametrize("text", ["run = dlaas.run()\nmath.log(2)", "x = wandb.init()\nx.log(1)"])
def test_other_logs_are_not_ours(text: str) -> None:
    assert not words_of(text).logs


def test_invalid_python_gives_no_findings() -> None:
    assert words_of("print 'Python 2: run.batches('") == Words()
