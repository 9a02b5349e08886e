"""The output of `suggest` runs: outside of any job, the rewritten notebook trains like the original."""

from __future__ import annotations

import difflib
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.suggest.programs import BATCHES, EPOCHS, LEDGER, PROGRAMS, SAMPLES
from tests.suggest.running import executed, rewritten, suggestion_for

NAMES = sorted(PROGRAMS)


@pytest.fixture(autouse=True)
def _in_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def error_before(name: str) -> float:
    """Return the error of the untrained model."""
    cells = [LEDGER, *PROGRAMS[name][:-1], "net = globals().get('net') or nn.Linear(4, 1)\nerror = error_of(net)"]
    return float(executed(cells)["error"])


def check(space: dict[str, Any], before: float) -> None:
    passes = [space["asked"][n : n + SAMPLES] for n in range(0, len(space["asked"]), SAMPLES)]
    assert [Counter(one) for one in passes] == [Counter(range(SAMPLES))] * EPOCHS
    assert len(space["steps"]) == EPOCHS * BATCHES
    assert space["error_of"](space["net"]) < before / 4


@pytest.mark.parametrize("name", NAMES)
def test_the_notebook_trains_as_it_is(name: str) -> None:
    check(executed([LEDGER, *PROGRAMS[name]]), error_before(name))


@pytest.mark.parametrize("name", NAMES)
def test_rewritten_loop_takes_the_same_steps_and_learns(name: str) -> None:
    check(executed(rewritten(LEDGER, *PROGRAMS[name])), error_before(name))


@pytest.mark.parametrize("name", NAMES)
def test_rewritten_loop_gets_no_further_suggestion(name: str) -> None:
    assert suggestion_for(*rewritten(LEDGER, *PROGRAMS[name])).why == "it already uses dlaas.run(): nothing to change."


@pytest.mark.parametrize("name", NAMES)
def test_only_loops_and_new_lines_change(name: str) -> None:
    before = "\n".join([LEDGER, *PROGRAMS[name]]).split("\n")
    after = "\n".join(rewritten(LEDGER, *PROGRAMS[name])).split("\n")
    gone = [row[2:].strip() for row in difflib.ndiff(before, after) if row.startswith("- ")]

    assert all(row.startswith(("for ", "torch.save(", "bar = ")) for row in gone)
    assert len(gone) <= 3


def test_a_plain_loop_takes_five_lines_and_keeps_the_rest() -> None:
    (cell,) = suggestion_for(LEDGER, *PROGRAMS["plain"]).cells

    assert cell.diff(1) == (
        "--- cell [3]\n"
        "+++ cell [3], elastic\n"
        "@@ -1,3 +1,5 @@\n"
        "-for epoch in range(4):\n"
        "-    for x, y in train_loader:\n"
        "+run = dlaas.run()\n"
        "+net, opt = run.prepare(net, opt)\n"
        "+for epoch in run.epochs(4):\n"
        "+    for x, y in run.batches(train_loader):\n"
        "         opt.zero_grad()\n"
        "@@ -6 +8,2 @@\n"
        "         opt.step()\n"
        "+    run.log(loss=loss)"
    )


def test_logged_metrics_have_the_names_of_the_notebook() -> None:
    space = executed(rewritten(LEDGER, *PROGRAMS["validated"]))

    assert len(space["run"].history["val_loss"]) == EPOCHS
