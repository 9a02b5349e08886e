"""Keras models that were fitted in another process.

Before its first `fit` in a process, Keras reads a batch of the data to build metrics and losses, which draws from the
random streams. For a model that was fitted elsewhere, the draws are undone: a second `fit` reads the samples in the
order in which the notebook would have read them.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Sequence
from typing import Any, Final

from jupyter_dlaas import stored
from jupyter_dlaas.transfer import rng_state

__all__ = ["load", "reduce_state", "treat_as_fitted", "was_fitted"]

_BUILD: Final = "_symbolic_build"


def was_fitted(model: Any) -> bool:
    """Return whether a Keras model was fitted, here or where it came from: then `fit` draws nothing more."""
    is_built = any(getattr(one, "built", False) for one in _compiled(model))
    return is_built or _are_same(getattr(vars(model).get(_BUILD), "_compiled", ()), _compiled(model))


def _compiled(model: Any) -> tuple[Any, ...]:
    """Return loss and metrics. `compile` makes new ones, for which the next `fit` draws again."""
    return getattr(model, "_compile_loss", None), getattr(model, "_compile_metrics", None)


def _are_same(some: Sequence[Any], others: Sequence[Any]) -> bool:
    return len(some) == len(others) and all(one is other for one, other in zip(some, others, strict=True))


def treat_as_fitted(model: Any) -> None:
    """Let the model's next `fit` draw what it draws for a model that was fitted before."""
    build = getattr(model, _BUILD, None)
    if build is None:
        return
    compiled = _compiled(model)

    @functools.wraps(build)
    def build_as_fitted(*args: Any, **kwargs: Any) -> Any:
        vars(model).pop(_BUILD, None)
        if not _are_same(compiled, _compiled(model)):
            return build(*args, **kwargs)
        streams = rng_state.snapshot()
        try:
            return build(*args, **kwargs)
        finally:
            rng_state.put_back(streams)

    vars(build_as_fitted)["_compiled"] = compiled
    object.__setattr__(model, _BUILD, build_as_fitted)


def reduce_state(value: Any) -> Any:
    """Return how to pickle a fitted Keras model; NotImplemented for other objects."""
    keras: Any = sys.modules.get("keras")
    kind = getattr(keras, "Model", None)
    if not isinstance(kind, type) or not isinstance(value, kind) or not was_fitted(value):
        return NotImplemented
    reduced = value.__reduce__()
    return (stored.fitted_model, reduced[:2], *reduced[2:]) if isinstance(reduced, tuple) else NotImplemented


def load(rebuild: Callable[..., Any], arguments: tuple[Any, ...]) -> Any:
    """Load a fitted Keras model."""
    model = rebuild(*arguments)
    treat_as_fitted(model)
    return model
