"""Selection of the cases of `make test`; `make test-all` runs all.

A product of options has far more cases than ways to fail. `make test` runs a covering part of each product, chosen
here; the others carry the mark `exhaustive`, which `pytest --exhaustive` runs too.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import combinations
from typing import Any, Final

import pytest

__all__ = ["covering", "each_nth", "exhaustive"]

exhaustive: Final = pytest.mark.exhaustive
_PARAM: Final = type(pytest.param())


def covering(cases: Iterable[Any], strength: int = 1) -> list[Any]:
    """Mark as exhaustive all cases but a covering few. A case is a tuple, one value for each argument of the test.

    With strength 1, each value of each argument occurs in a case that is not marked (each-choice coverage); with 2,
    each pair of values that occurs at all (pairwise coverage). Chosen greedily and always alike.
    Source: Ammann, Offutt, "Introduction to Software Testing", 2nd ed., section 6.2.
    """
    cases = list(cases)
    missing = {part for case in cases for part in _parts(case, strength)}
    chosen: set[int] = set()
    while missing:
        gains = [len(missing.intersection(_parts(case, strength))) for case in cases]
        best = gains.index(max(gains))
        chosen.add(best)
        missing.difference_update(_parts(cases[best], strength))
    return [case if at in chosen else _marked(case) for at, case in enumerate(cases)]


def each_nth(cases: Sequence[Any], n: int) -> list[Any]:
    """Mark as exhaustive all cases but each n-th: they hardly differ."""
    return [_marked(case) if at % n else case for at, case in enumerate(cases)]


def _parts(case: tuple[Any, ...], strength: int) -> Iterator[tuple[tuple[int, Any], ...]]:
    return combinations(enumerate(case), strength)


def _marked(case: Any) -> Any:
    if isinstance(case, _PARAM):
        return pytest.param(*case.values, id=case.id, marks=[*case.marks, exhaustive])
    return pytest.param(*(case if isinstance(case, tuple) else [case]), marks=exhaustive)
