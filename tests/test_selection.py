"""The cases that `make test` leaves out are few enough to miss nothing, and are counted."""

from __future__ import annotations

from itertools import combinations, product
from pathlib import Path
from typing import Any

import pytest

from tests.selection import covering, each_nth
from tests.test_skips import run_skipping

FACTORS = ("ab", "cde", "fg")
EXHAUSTIVE = "import pytest\n@pytest.mark.exhaustive\ndef test_rare(): pass\n"


def kept(cases: list[Any]) -> list[Any]:
    """Return the cases without a mark."""
    return [case for case in cases if not hasattr(case, "marks")]


@pytest.mark.parametrize(("strength", "most"), [(1, 3), (2, 8)])
def test_covering_keeps_each_combination_once_at_least(strength: int, most: int) -> None:
    cases = list(product(*FACTORS))
    chosen = covering(cases, strength)

    def parts(some: list[Any]) -> set[Any]:
        return {part for case in some for part in combinations(enumerate(case), strength)}

    assert len(chosen) == len(cases)
    assert parts(kept(chosen)) == parts(cases)
    assert len(kept(chosen)) <= most


def test_each_nth_keeps_the_first_of_every_n() -> None:
    assert kept(each_nth(range(7), 3)) == [0, 3, 6]


@pytest.mark.parametrize(
    ("options", "says", "passed"),
    [
        ((), "1 left out: exhaustive, run by `make test-all`", 1),
        (("--numprocesses=2", "--dist=loadfile"), "1 left out: exhaustive, run by `make test-all`", 1),
        (("--exhaustive",), "1 skipped: needs a GPU", 2),
    ],
    ids=["alone", "workers", "all"],
)
def test_exhaustive_tests_run_only_when_asked_for_and_are_counted(
    tmp_path: Path, options: tuple[str, ...], says: str, passed: int
) -> None:
    (tmp_path / "test_rare.py").write_text(EXHAUSTIVE)
    done = run_skipping("needs a GPU", tmp_path, "true", *options)

    assert says in done.stdout
    assert f"{passed} passed" in done.stdout
