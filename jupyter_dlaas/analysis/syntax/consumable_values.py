"""Values that reading changes: iterators, generators of random numbers, buffers, pipelines that count their passes."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Collection
from typing import Final

__all__ = ["is_consumable", "is_counting_pipeline"]

GENERATORS: Final = frozenset(
    {"default_rng", "RandomState", "Random", "Generator", "PCG64", "MT19937", "Rngs", "SeedGenerator", "PRNGSequence"}
)
BUFFERS: Final = frozenset({"StringIO", "BytesIO"})
"""Printing and saving to them changes them."""
_PIPELINE: Final = re.compile(
    "apply|batch|cache|concatenate|enumerate|filter|flat_map|interleave|map|padded_batch|prefetch|ragged_batch"
    "|rebatch|repeat|shard|shuffle|skip|take|unbatch|with_options|zip"
)
"""Methods of tf.data that return another pipeline over the same data."""


def is_consumable(value: ast.expr | None, iterators: Collection[str], is_generator: Callable[[str], bool]) -> bool:
    """Return whether a value is used up by iteration, or changes with each draw or write.

    `iterators`: the names that hold such values. `is_generator`: whether an own function has a `yield`.
    """
    match value:
        case ast.GeneratorExp() | ast.Call(func=ast.Name(id="iter" | "zip" | "map" | "filter" | "open")):
            return True
        case ast.Name(id=name):
            return name in iterators
        case ast.Call(func=ast.Name(id=verb) | ast.Attribute(attr=verb), keywords=options) if (
            verb in GENERATORS | BUFFERS
            or (verb[:1].isupper() and any(option.arg == "generator" for option in options))
        ):
            return True  # each draw changes its state
        case ast.Call(func=ast.Attribute(value=ast.Call() as maker, attr="manual_seed")):
            return is_consumable(maker, iterators, is_generator)
        case ast.Call(func=ast.Name(id=name)):
            return is_generator(name)
        case _:
            return False


def is_counting_pipeline(value: ast.expr | None, iterators: Collection[str]) -> bool:
    """Return whether a value is a pipeline of tf.data that shuffles: each pass has an order of its own.

    `iterators`: the names that hold such pipelines.
    """
    counts = False
    while (
        isinstance(value, ast.Call) and isinstance(value.func, ast.Attribute) and _PIPELINE.fullmatch(value.func.attr)
    ):
        is_fixed = any(
            option.arg == "reshuffle_each_iteration"
            and isinstance(option.value, ast.Constant)
            and option.value.value is False
            for option in value.keywords
        )
        counts = counts or (value.func.attr == "shuffle" and bool(value.args or value.keywords) and not is_fixed)
        value = value.func.value
    return counts or (isinstance(value, ast.Name) and value.id in iterators)
