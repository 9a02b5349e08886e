"""A job's random numbers go on where the notebook's did, though what drew some is left out."""

from __future__ import annotations

from collections.abc import Mapping

from jupyter_dlaas.notebook.capture import capture
from jupyter_dlaas.notebook.records import Capture, ExecutedCell, KernelFacts, TrainingCell

SEED = "import torch\ntorch.manual_seed(0)"


def job(*cells: str, train: str, streams: str | None) -> Capture:
    """A letter of `streams` per cell, and one for the training cell: equal letters, nothing drawn in between."""
    ran = [
        ExecutedCell(count=n, source=source, chance=streams[n - 1] if streams else None)
        for n, source in enumerate(cells, 1)
    ]
    facts = KernelFacts(chance=streams[-1] if streams else None)
    return capture(ran, TrainingCell(count=len(cells) + 1, source=train), facts)


def restored(made: Capture) -> Mapping[int, str]:
    lines = [line for line in made.text.splitlines() if line.startswith("dlaas.random_as_before(")]
    assert [line.partition("(")[2].partition(")")[0] for line in lines] == [str(cell) for cell in made.chance]
    return made.chance


def test_a_look_at_random_numbers_is_made_up_for_in_the_next_cell() -> None:
    made = job(SEED, "print(torch.rand(3))", "w = torch.rand(3)", train="w.sum()", streams="abcd")

    assert restored(made) == {3: "c"}
    assert "print" not in made.text
    assert made.text.index("random_as_before(3)") < made.text.index("w = torch.rand(3)")
    assert "import jupyter_dlaas as dlaas" in made.text


def test_another_models_training_is_made_up_for_in_the_training_cell() -> None:
    made = job(SEED, "x = torch.rand(3)\nfor i in [1]:\n    fit(torch.rand(2))", train="x * 2", streams="abc")

    assert restored(made) == {3: "c"}
    assert made.text.index("random_as_before(3)") < made.text.index("__main__")


def test_nothing_is_made_up_for_where_nothing_was_drawn() -> None:
    assert not restored(job(SEED, "show(3)", "w = torch.rand(3)", train="w.sum()", streams="abbc"))


def test_nothing_is_made_up_for_where_all_that_drew_goes_along() -> None:
    assert not restored(job(SEED, "w = torch.rand(3)\nprint(w)\nw.shape", train="w.sum()", streams="abc"))


def test_a_notebook_that_seeds_nothing_gets_the_jobs_own_numbers() -> None:
    assert not restored(job("import torch", "print(torch.rand(3))", train="torch.rand(3)", streams="abc"))


def test_what_was_drawn_before_the_seed_does_not_count() -> None:
    assert not restored(job("import torch\ntorch.rand(3)", SEED, train="torch.rand(3)", streams="abc"))


def test_the_first_of_two_runs_of_a_cell_is_made_up_for() -> None:
    made = job(SEED, "w = torch.rand(3)", "w = torch.rand(3)", train="w.sum()", streams="abcd")

    assert restored(made) == {3: "c"}


def test_without_a_kernel_nothing_is_known_and_nothing_is_done() -> None:
    assert not restored(job(SEED, "print(torch.rand(3))", "w = torch.rand(3)", train="w.sum()", streams=None))


def test_a_path_that_says_seed_seeds_nothing() -> None:
    first = "import sys\nsys.path.append('/data/seed_bank')  # the seed bank"

    assert not restored(job(first, "print(rand(3))", "w = rand(3)", train="w.sum()", streams="abcd"))
