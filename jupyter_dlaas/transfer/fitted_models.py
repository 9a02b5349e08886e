"""Keras models and layers from another process: what their own pickling omits.

Keras does not store the random generators of dropout and of augmentation, and not whether a Sequential is frozen: these
states travel beside the weights. It stores a model as a file of its own. A layer or model that is a part of another one
is found in that one again.

Before its first `fit` in a process, Keras reads a batch of the data to build metrics and losses, which draws from the
random streams. For a model that was fitted elsewhere, the draws are undone: a second `fit` reads the samples in the
order in which the notebook would have read them.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Mapping, Sequence
from types import FunctionType
from typing import Any, Final

from jupyter_dlaas import stored
from jupyter_dlaas.objects import keras_objects
from jupyter_dlaas.transfer import rng_state
from jupyter_dlaas.transfer.object_traversal import walk

__all__ = ["Parts", "load", "load_state", "own_definitions", "part", "reduce_state", "treat_as_fitted", "was_fitted"]

_OBJECTS_MAX: Final = 200_000
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
    trainable = [one.trainable for one in keras_objects.layers_in(value)]
    if not is_fitted and not states and all(trainable):
        return NotImplemented
    reduced = value.__reduce__()
    if not isinstance(reduced, tuple):
        return NotImplemented
    return (stored.fitted_model, (*reduced[:2], states, is_fitted, trainable), *reduced[2:])


def load(
    rebuild: Callable[..., Any],
    arguments: tuple[Any, ...],
    states: Sequence[Any] = (),
    is_fitted: bool = True,
    trainable: Sequence[bool] = (),
) -> Any:
    """Load a Keras model or layer."""
    model = rebuild(*arguments)
    keras_objects.put_generator_states(model, states)
    _put_trainable(model, trainable)
    if is_fitted:
        treat_as_fitted(model)
    return model


def _put_trainable(model: Any, trainable: Sequence[bool]) -> None:
    """Freeze and unfreeze layers, the outer ones first: Keras stores no flag of a Sequential itself."""
    for layer, is_trained in zip(keras_objects.layers_in(model), trainable, strict=False):
        if layer.trainable != is_trained:
            layer.trainable = is_trained


# -- models that consist of models


class Parts:
    """The Keras layers and models in some values that are parts of another model in them."""

    def __init__(self, values: Mapping[str, object]) -> None:
        self._places: dict[int, tuple[Any, int]] = {}
        self.apart: tuple[Any, Any] | None = None
        """Two models that share layers although neither contains the other: Keras cannot store them together."""
        if "keras" not in sys.modules:
            return
        is_layer, is_model = keras_objects.is_layer, keras_objects.is_model
        found = [one for _, one in walk(values, _OBJECTS_MAX, stops_at=is_layer) if is_layer(one)]
        for model in filter(is_model, found):
            for number, one in enumerate(keras_objects.layers_in(model)):
                if number:
                    self._places.setdefault(id(one), (model, number))
        whole = [one for one in found if is_model(one) and id(one) not in self._places]
        pairs = ((one, other) for at, one in enumerate(whole) for other in whole[:at])
        self.apart = next((pair for pair in pairs if _share_weights(*pair)), None)

    def reduce(self, value: Any) -> Any:
        """Return the reduction of a layer or model as a part of another one; NotImplemented for all other objects."""
        place = self._places.get(id(value))
        return NotImplemented if place is None else (stored.keras_part, (*place, _compilation(value)))


def _share_weights(one: Any, other: Any) -> bool:
    """Return whether two models share weights that one of them trains."""
    shared = {id(weight) for weight in one.weights} & {id(weight) for weight in other.weights}
    return any(id(weight) in shared for weight in (*one.trainable_weights, *other.trainable_weights))


def part(model: Any, number: int, compilation: _Compilation | None) -> Any:
    """Return a layer of a loaded model, by its number in `keras_objects.layers_in`, and compile it."""
    found = keras_objects.layers_in(model)[number]
    if compilation is not None:
        _compile(found, compilation)
    return found


_Compilation = tuple[Any, list[int], list[Any], bool]
"""The configuration; the numbers of the variables that are trained; those of the optimiser; whether it was fitted."""


def own_definitions() -> dict[str, Any]:
    """Return the classes and functions of this program, by which Keras finds those of its models."""
    return {name: one for name, one in vars(sys.modules["__main__"]).items() if isinstance(one, type | FunctionType)}


def _settings(model: Any) -> tuple[Any, list[int]] | None:
    """Return how a model is compiled: the configuration, and the numbers of the trained variables."""
    if not keras_objects.is_model(model) or not getattr(model, "compiled", False):
        return None
    config = model.get_compile_config()
    numbers = {id(one): number for number, one in enumerate(model.variables)}
    trained = keras_objects.trained_by(getattr(model, "optimizer", None))
    return (config, [numbers[id(one)] for one in trained if id(one) in numbers]) if config else None


def _compilation(model: Any) -> _Compilation | None:
    settings = _settings(model)
    if settings is None:
        return None
    optimizer = getattr(model, "optimizer", None)
    return *settings, keras_objects.values_of(optimizer.variables if optimizer is not None else []), was_fitted(model)


def _compile(model: Any, compilation: _Compilation) -> None:
    config, trained, values, is_fitted = compilation
    saving: Any = sys.modules["keras"].saving
    with saving.custom_object_scope(own_definitions()):
        compiled = saving.deserialize_keras_object(config)
    model.compile(**compiled)
    optimizer = getattr(model, "optimizer", None)
    if optimizer is not None and trained:
        optimizer.build([model.variables[number] for number in trained])
        keras_objects.assign(optimizer.variables, values)
    if is_fitted:
        treat_as_fitted(model)


def load_state(old: Any, new: Any) -> str:
    """Load the state of a Keras model or layer into another one of the same structure, and compile it alike.

    Return why it could not be compiled, or "".
    """
    old.set_weights(new.get_weights())
    keras_objects.put_generator_states(old, keras_objects.generator_states(new))
    _put_trainable(old, [one.trainable for one in keras_objects.layers_in(new)])
    settings = _settings(new)
    if settings is not None and not _are_alike(settings, _settings(old)):
        compilation = _compilation(new)
        assert compilation is not None, "it is compiled"
        try:
            _compile(old, compilation)
        except Exception as error:  # noqa: BLE001 - losses and metrics of any origin may refuse in any way
            return " ".join(f"{type(error).__name__}: {error}".split())
        return ""
    optimizers = getattr(old, "optimizer", None), getattr(new, "optimizer", None)
    are_both = None not in optimizers and type(optimizers[0]) is type(optimizers[1])
    if are_both and keras_objects.fits(*optimizers, [old]):
        keras_objects.load_state(*optimizers, [old])
    if keras_objects.is_model(new) and was_fitted(new):
        treat_as_fitted(old)
    return ""


def _are_alike(made: tuple[Any, list[int]], there: tuple[Any, list[int]] | None) -> bool:
    """Return whether two models are compiled alike, up to the state of their optimisers."""
    if there is None:
        return False
    configs = [_without_rate(config) for config in (made[0], there[0])]
    return configs[0] == configs[1] and (made[1] == there[1] or not there[1])


def _without_rate(config: Any) -> Any:
    """Return a compilation without names and a constant learning rate, which is a variable of the optimiser."""
    if isinstance(config, dict):
        omitted = {"name"} if isinstance(config.get("learning_rate"), dict) else {"name", "learning_rate"}
        return {key: _without_rate(one) for key, one in config.items() if key not in omitted}
    return [_without_rate(one) for one in config] if isinstance(config, list | tuple) else config
