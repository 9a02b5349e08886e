"""Replacements of `enumerate` and `zip` in a job: they know the place of a batch or an epoch in the whole training.

The built-in functions would restart at 0 after a halt and in a joining learner, and be one ahead after a repeated step.
"""

from __future__ import annotations

import builtins
import sys
import types
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Final

from jupyter_dlaas.learner.training_run.batches import Batches

__all__ = ["numbered", "paired"]

_INDEXED: Final = (list, tuple, range, str, bytes)
_PACKAGE: Final = __name__.rpartition(".")[0]
Place = Callable[[Any], int]
"""Function that returns the place of the item last yielded, given the item."""


def numbered(iterable: Iterable[Any], start: int = 0) -> Iterator[tuple[int, Any]]:
    """Replace `enumerate`: number batches by their index in the whole pass, and epochs from the first."""
    place = _place_in(iterable)
    if place is None:
        return builtins.enumerate(iterable, start)
    return ((start + place(item), item) for item in iterable)


def paired(*iterables: Any, strict: bool = False) -> Iterator[tuple[Any, ...]]:
    """Replace `zip`: take the items of lists and arrays by the place of the batch or the epoch beside them."""
    places = [_place_in(one) for one in iterables]
    known = [at for at, place in enumerate(places) if place is not None]
    if strict or len(known) != 1 or not all(map(_is_indexed, iterables[: known[0]] + iterables[known[0] + 1 :])):
        return builtins.zip(*iterables, strict=strict)
    (at,) = known
    place = places[at]
    assert place is not None
    return _pairs(iterables[at], place, iterables[:at], iterables[at + 1 :])


def _pairs(
    source: Iterable[Any], place: Place, before: Sequence[Any], after: Sequence[Any]
) -> Iterator[tuple[Any, ...]]:
    number = -1
    items = iter(source)
    while all(len(one) > number + 1 for one in before):  # as `zip`, draw no item that has no partner
        try:
            item = next(items)
        except StopIteration:
            return
        number = place(item)
        if any(len(one) <= number for one in (*before, *after)):
            return
        yield (*(one[number] for one in before), item, *(one[number] for one in after))


def _place_in(iterable: Any) -> Place | None:
    """Return how to find the place of an item of `run.batches` or `run.epochs`; None for other iterables."""
    inner = getattr(iterable, "iterable", iterable)  # the iterable inside a progress bar
    frame = inner.gi_frame if isinstance(inner, types.GeneratorType) else None
    if frame is not None and frame.f_globals["__name__"].rpartition(".")[0] == _PACKAGE:
        if frame.f_code is _pairs.__code__:
            return lambda _: int(frame.f_locals["number"])
        owner = frame.f_locals.get("self")
        if not isinstance(owner, Batches):
            return lambda epoch: epoch
        inner = owner
    return (lambda _: inner.index) if isinstance(inner, Batches) else None


def _is_indexed(one: Any) -> bool:
    """Return whether the items of an iterable are those at 0, 1, 2 …, and reading them changes nothing."""
    numpy, torch = sys.modules.get("numpy"), sys.modules.get("torch")
    is_array = (numpy is not None and type(one) is numpy.ndarray) or (torch is not None and type(one) is torch.Tensor)
    return type(one) in _INDEXED or (is_array and one.ndim > 0)
