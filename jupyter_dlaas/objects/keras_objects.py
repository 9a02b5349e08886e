"""Objects of Keras and TensorFlow: variables, and layers and optimisers that create theirs only at the first step.

A model without an input shape and the moments of an optimiser do not exist before a loop; they are built before their
values are restored.
"""

from __future__ import annotations

import importlib
import sys
import weakref
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from jupyter_dlaas import stored
from jupyter_dlaas.objects.array_digests import Budget, digest
from jupyter_dlaas.objects.object_aspects import Aspect
from jupyter_dlaas.objects.object_items import Items
from jupyter_dlaas.objects.object_values import is_atom

__all__ = [
    "LAYER_FIELDS",
    "aspect_of",
    "assign",
    "fits",
    "generator_states",
    "is_layer",
    "is_model",
    "is_stateful",
    "layers_in",
    "load_state",
    "owners",
    "put_generator_states",
    "recreate",
    "reduce_state",
    "trained_by",
    "values_of",
    "variables_of",
]

_seen: Final[weakref.WeakSet[Any]] = weakref.WeakSet()
"""Layers of this program, whose variables an optimiser trains."""


class LayerFields(Items):
    """Plain public attributes of a layer, such as the rate of a dropout.

    An attribute with another value stands as NotImplemented: it is not stored, and was not deleted either. A model's
    `train_function` is None until its first batch.
    """

    def items(self, value: Any) -> dict[Any, Any]:
        fields = [pair for pair in vars(value).items() if not pair[0].startswith("_") and pair[0] != "built"]
        return {name: one if is_atom(one) else NotImplemented for name, one in fields}

    def parts(self, value: Any) -> Iterator[tuple[str, Any]]:
        return iter(())

    def set(self, value: Any, key: Any, item: Any) -> None:
        if item is not NotImplemented:
            setattr(value, key, item)

    def delete(self, value: Any, key: Any) -> None:
        if key in vars(value) and is_atom(vars(value)[key]):
            delattr(value, key)


LAYER_FIELDS: Final = LayerFields()


def aspect_of(value: Any) -> Aspect | None:
    """Return the way in which an object of Keras or TensorFlow can change; None for others."""
    kind: Any = type(value)
    package = kind.__module__.partition(".")[0]
    if package in ("keras", "tensorflow") and hasattr(kind, "assign") and hasattr(value, "shape"):
        return _VARIABLE
    if _is(value, "optimizers", "Optimizer"):
        return _OPTIMIZER
    if _is(value, "layers", "Layer"):
        _seen.add(value)
        return _LAYER
    return _METRIC if _is(value, "metrics", "Metric") or _is(value, "losses", "Loss") else None


def _is(value: Any, part: str, name: str) -> bool:
    keras: Any = sys.modules.get("keras")
    kind = getattr(getattr(keras, part, None), name, None)
    return isinstance(kind, type) and isinstance(value, kind)


def values_of(variables: Sequence[Any]) -> list[Any]:
    """Return the values of variables, as arrays of NumPy."""
    numpy: Any = sys.modules["numpy"]
    return [numpy.array(variable) for variable in variables]


def assign(variables: Sequence[Any], values: Sequence[Any]) -> None:
    """Give variables their values. Raises ValueError if the numbers or shapes differ."""
    for one, value in zip(variables, values, strict=True):
        one.assign(value)


class _Variable(Aspect):
    can_revert = False

    def read(self, value: Any, budget: Budget) -> Any:
        return digest(sys.modules["numpy"].asarray(value), budget)

    def carry(self, value: Any, base: Any, now: Any) -> Any:
        return sys.modules["numpy"].asarray(value)

    def put(self, value: Any, carried: Any) -> None:
        value.assign(carried)

    def copy(self, value: Any) -> Any:
        return sys.modules["numpy"].array(value)

    def size(self, value: Any) -> int:
        return int(sys.modules["numpy"].asarray(value).nbytes)


class _Metric(Aspect):
    """Metrics and losses, which consist of their variables."""

    can_revert = False

    def parts(self, value: Any) -> Iterator[tuple[str, Any]]:
        for number, one in enumerate(getattr(value, "variables", ())):
            yield f".variables[{number}]", one

    def read(self, value: Any, budget: Budget) -> Any:
        return None

    def put(self, value: Any, carried: Any) -> None:
        """Do nothing: there is no state beside the parts."""


class _Layer(_Metric):
    """Layers and models: their trainable flags, and variables that are created later."""

    def parts(self, value: Any) -> Iterator[tuple[str, Any]]:
        yield from super().parts(value)
        optimizer = getattr(value, "optimizer", None)
        if optimizer is not None:
            yield ".optimizer", optimizer

    def read(self, value: Any, budget: Budget) -> Any:
        return len(value.variables), tuple(one.trainable for one in layers_in(value))

    def carry(self, value: Any, base: Any, now: Any) -> Any:
        is_new = base is None or base[0] != now[0]
        return now[1], values_of(value.variables) if is_new else None, _build_config(value) if is_new else None

    def put(self, value: Any, carried: Any) -> None:
        are_trained, values, config = carried
        if values is not None:
            _build(value, config)
            assign(value.variables, values)
        layers = layers_in(value) if isinstance(are_trained, tuple) else _layers_of_earlier_version(value)
        for layer, is_trained in zip(layers, are_trained, strict=False):
            if layer.trainable != is_trained:
                layer.trainable = is_trained


class _Optimizer(_Metric):
    """Optimisers: moments are created at the first step for the trained variables."""

    def read(self, value: Any, budget: Budget) -> Any:
        return len(value.variables)

    def carry(self, value: Any, base: Any, now: Any) -> Any:
        owners = {id(one): (layer, at) for layer in _seen for at, one in enumerate(layer.variables)}
        trained = [owners.get(id(one), (None, one)) for one in trained_by(value)]
        layers = list({id(layer): layer for layer, _ in trained if layer is not None}.values())
        return trained, [_build_config(one) for one in layers], layers, values_of(value.variables)

    def put(self, value: Any, carried: Any) -> None:
        trained, configs, layers, values = carried
        for layer, config in zip(layers, configs, strict=True):
            _build(layer, config)
        if len(value.variables) != len(values):
            value.build([one if layer is None else layer.variables[one] for layer, one in trained])
        assign(value.variables, values)


def layers_in(layer: Any) -> list[Any]:
    """Return a layer and all layers below it, each once, in the order of creation or naming."""
    found = {id(layer): layer}
    queue = deque(_layers_below(layer))
    while queue:
        one = queue.popleft()
        if id(one) not in found:
            found[id(one)] = one
            queue.extend(_layers_below(one))
    return list(found.values())


def _layers_below(layer: Any) -> Iterator[Any]:
    """Return the layers of a model, or those that a layer holds in its attributes."""
    queue = deque(layer.layers if _is(layer, "models", "Model") else vars(layer).values())
    while queue:
        one = queue.popleft()
        if _is(one, "layers", "Layer"):
            yield one
        elif isinstance(one, list | tuple | dict):
            queue.extend(one.values() if isinstance(one, dict) else one)


def _layers_of_earlier_version(layer: Any) -> list[Any]:
    """Return the layers in the order of checkpoints whose flags are a list: that of Keras' own private traversal."""
    walk = getattr(layer, "_flatten_layers", None)
    return [*walk()] if walk is not None else []


def _build_config(layer: Any) -> Any:
    return layer.get_build_config() if layer.built else None


def _build(layer: Any, config: Any) -> None:
    if not layer.built and config:
        layer.build_from_config(config)


def trained_by(optimizer: Any) -> list[Any]:
    """Return the variables that an optimiser was built for, in its order; none for other objects.

    Keras has no public name for them; without the private one, they are those of the model compiled with the optimiser.
    """
    variables = getattr(optimizer, "_trainable_variables", None)
    if variables is None and getattr(optimizer, "built", False):
        model = next((one for one in _seen if getattr(one, "optimizer", None) is optimizer), None)
        variables = None if model is None else model.trainable_variables
    return list(variables or ())


_VARIABLE, _METRIC, _LAYER, _OPTIMIZER = _Variable(), _Metric(), _Layer(), _Optimizer()


# -- results


def is_layer(value: Any) -> bool:
    """Return whether a value is a Keras layer or model."""
    return _is(value, "layers", "Layer")


def is_model(value: Any) -> bool:
    """Return whether a value is a Keras model."""
    return _is(value, "models", "Model")


def generator_states(layer: Any) -> list[Any]:
    """Return the states of a layer's random generators: Keras neither pickles them nor counts them as weights."""
    return values_of(_generator_variables(layer))


def put_generator_states(layer: Any, states: Sequence[Any]) -> None:
    """Restore the states of a layer's random generators."""
    variables = _generator_variables(layer)
    if len(variables) == len(states):  # a layer that creates a generator at its first call has none yet
        assign(variables, states)


def _generator_variables(layer: Any) -> list[Any]:
    weights = {id(one) for one in layer.weights}
    return [one for one in layer.variables if id(one) not in weights]


def is_stateful(value: Any) -> bool:
    """Return whether a value is a Keras optimiser or metric."""
    return _is(value, "optimizers", "Optimizer") or _is(value, "metrics", "Metric")


def variables_of(value: Any) -> Sequence[Any]:
    """Return the variables that connect Keras objects: those of a model, and those that an optimiser trains."""
    if _is(value, "optimizers", "Optimizer"):
        return trained_by(value)
    return list(value.variables) if _is(value, "layers", "Layer") else []


def owners(values: Mapping[str, object]) -> dict[str, str]:
    """Return the names of optimisers among these values, by the name of the model that was compiled with each."""
    models = [(name, one) for name, one in values.items() if is_model(one)]
    return {
        name: owner
        for name, one in values.items()
        for owner, model in models
        if one is not None and one is getattr(model, "optimizer", None)
    }


def reduce_state(value: Any) -> Any:
    """Return the reduction of a Keras optimiser or metric with its state; NotImplemented for other objects.

    Keras itself omits what its configuration does not recreate.
    """
    if not is_stateful(value) or type(value).from_config.__module__.partition(".")[0] != "keras":
        return NotImplemented
    shapes = [tuple(one.shape) for one in trained_by(value)]
    return stored.keras_object, (type(value), value.get_config(), shapes, values_of(value.variables))


def recreate(kind: Any, config: Any, shapes: Sequence[tuple[int, ...]], values: Sequence[Any]) -> Any:
    """Create an optimiser or metric; an optimiser uses variables of its own until it is connected to a model."""
    keras: Any = importlib.import_module("keras")
    made = kind.from_config(config)
    if shapes:
        made.build([keras.Variable(keras.ops.zeros(shape)) for shape in shapes])
    if len(made.variables) == len(values):
        assign(made.variables, values)
    return made


def fits(old: Any, new: Any, models: Sequence[Any]) -> bool:
    """Return whether `load_state` can load one into the other."""
    if _is(new, "optimizers", "Optimizer") and not old.built and new.built:
        return _model_of(new, models) is not None
    return [tuple(variable.shape) for variable in old.variables] == [tuple(one.shape) for one in new.variables]


def load_state(old: Any, new: Any, models: Sequence[Any]) -> None:
    """Load the state of an optimiser or metric; an unused optimiser is first built for its model."""
    if _is(new, "optimizers", "Optimizer") and not old.built and new.built:
        model = _model_of(new, models)
        old.build(model.trainable_variables)
    assign(old.variables, values_of(new.variables))


def _model_of(optimizer: Any, models: Sequence[Any]) -> Any:
    """Return the model of an optimiser, by the shapes of the variables that it trains."""
    shapes = [tuple(one.shape) for one in trained_by(optimizer)]
    found = (model for model in models if [tuple(part.shape) for part in model.trainable_variables] == shapes)
    return next(found, None)
