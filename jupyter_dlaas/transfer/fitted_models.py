"""Keras models and layers from another process: what their own pickling omits.

Keras does not store the random generators of dropout and of augmentation: their states travel beside the weights.

Before its first `fit` in a process, Keras reads a batch of the data to build metrics and losses, which draws from the
random streams. For a model that was fitted elsewhere, the draws are undone: a second `fit` reads the samples in the
order in which the notebook would have read them.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, Final

from jupyter_dlaas import stored
from jupyter_dlaas.objects import keras_objects
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
    """Return how to pickle a Keras model or layer with what Keras omits; NotImplemented for other objects."""
    if not keras_objects.is_layer(value):
        return NotImplemented
    is_fitted = keras_objects.is_model(value) and was_fitted(value)
    states = keras_objects.generator_states(value)
    if not is_fitted and not states:
        return NotImplemented
    reduced = value.__reduce__()
    if not isinstance(reduced, tuple):
        return NotImplemented
    return (stored.fitted_model, (*reduced[:2], states, is_fitted), *reduced[2:])


def load(
    rebuild: Callable[..., Any], arguments: tuple[Any, ...], states: Sequence[Any] = (), is_fitted: bool = True
) -> Any:
    """Load a Keras model or layer."""
    model = rebuild(*arguments)
    keras_objects.put_generator_states(model, states)
    if is_fitted:
        treat_as_fitted(model)
    return model
