"""Iterators that a program puts around `run.batches` or `run.epochs` and that count by themselves: `zip`, `islice`.

The interpreter holds them for the loop. No variable leads to them, and a checkpoint cannot store their position.
"""

from __future__ import annotations

import gc
import itertools
from typing import Any, Final

from jupyter_dlaas.objects.object_values import program_mentions

__all__ = ["remedies_of", "surrounding"]

_BY_INDEX: Final = "read the other items by index in `for index, {item} in enumerate({loop}):`"
_IN_VARIABLES: Final = "keep what it counts in variables of the loop"
_REMEDIES: Final = {
    zip: _BY_INDEX,
    map: _BY_INDEX,
    itertools.zip_longest: _BY_INDEX,
    enumerate: "call `enumerate` in the cell or the script, not in a module",
    itertools.islice: "use `for index, {item} in enumerate({loop}):`, and `break` at the last one",
    itertools.compress: _BY_INDEX,
    itertools.accumulate: _IN_VARIABLES,
    itertools.pairwise: _IN_VARIABLES,
    itertools.cycle: "use a loop over run.epochs instead",
    itertools.dropwhile: "skip items with `continue`",
    itertools.groupby: _IN_VARIABLES,
    **({itertools.batched: _IN_VARIABLES} if hasattr(itertools, "batched") else {}),
    type(itertools.tee(())[0]): _IN_VARIABLES,
}
_OF_ONE: Final = (zip, map)
"""Iterators that count nothing if they have a single iterable, which they hold in a tuple."""
_INSIDE: Final = ("tuple", "_tee_dataobject", "filter", "filterfalse", "starmap", "takewhile", "chain", "map", "zip")
"""Types of objects between an iterator and those around it."""
_DEPTH_MAX: Final = 6
_WORDS: Final = ("zip", "map", "enumerate", "itertools")
"""Words in the text of programs with such iterators: a search takes milliseconds."""


def surrounding(iterator: object) -> list[object]:
    """Return the iterators with a position of their own through which a loop reads this one."""
    if not any(map(program_mentions, _WORDS)):
        return []
    found: list[object] = []
    inner: list[Any] = [iterator]
    for _ in range(_DEPTH_MAX):
        outer = [one for one in gc.get_referrers(*inner) if type(one).__name__ in _INSIDE or type(one) in _REMEDIES]
        known = {id(one) for one in (*inner, *found)}
        inner = [one for one in outer if id(one) not in known]
        found += [one for one in inner if _counts(one)]
        if not inner:
            break
    return found


def remedies_of(iterators: list[object], *, item: str, loop: str) -> dict[str, str]:
    """Return what to type instead of each iterator, by its name."""
    return {type(one).__name__.lstrip("_"): _REMEDIES[type(one)].format(item=item, loop=loop) for one in iterators}


def _counts(one: object) -> bool:
    if type(one) in _OF_ONE:
        return any(isinstance(part, tuple) and len(part) > 1 for part in gc.get_referents(one))
    return type(one) in _REMEDIES
