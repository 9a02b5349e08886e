"""Random state of a learner: stored in checkpoints and restored exactly."""

from __future__ import annotations

import base64
import functools
import importlib
import json
import random
import sys
from array import array
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from jupyter_dlaas.learner.environment import import_hooks
from jupyter_dlaas.objects import keras_objects
from jupyter_dlaas.transfer import cuda_streams

__all__ = [
    "LAYERS",
    "RESTORERS",
    "completed",
    "note_beginnings",
    "put_back",
    "put_written",
    "read_state",
    "snapshot",
    "written",
]


def snapshot() -> dict[str, Any]:
    """Return the states of the random streams of Python, NumPy, torch, TensorFlow and Keras that are in use."""
    found: dict[str, Any] = {"python": random.getstate()}
    numpy_random = sys.modules.get("numpy.random")
    if numpy_random is not None:
        found["numpy"] = numpy_random.get_state()
    torch = sys.modules.get("torch")
    if torch is not None:
        found["torch"] = torch.get_rng_state()
        if gpus := cuda_streams.states(torch):
            found["cuda"] = gpus
    tensorflow = _tensorflow_state()
    if tensorflow is not None:
        found["tensorflow"] = tensorflow
    keras = _keras_generator()
    if keras is not None:
        found["keras"] = [int(number) for number in keras.state.numpy()]
    return found


def put_back(found: dict[str, Any]) -> None:
    """Restore the random state of a snapshot."""
    random.setstate(found["python"])
    numpy_random, torch = sys.modules.get("numpy.random"), sys.modules.get("torch")
    if numpy_random is not None and "numpy" in found:
        numpy_random.set_state(found["numpy"])
    if torch is not None and "torch" in found:
        torch.set_rng_state(found["torch"])
        cuda_streams.put(torch, found.get("cuda", ()))
    if "tensorflow" in found and "tensorflow" in sys.modules:
        _put_tensorflow(found["tensorflow"], sys.modules["tensorflow"])
    keras = _keras_generator()
    if keras is not None and "keras" in found:
        keras.state.assign(found["keras"])


def _tensorflow_state() -> tuple[int, Any] | None:
    """Return TensorFlow's global seed and the generator of operation seeds, or None if no seed is set.

    Without a global seed each operation draws its seed from the system, which cannot be repeated.
    """
    context = getattr(sys.modules.get("tensorflow.python.eager.context"), "_context", None)
    seed, generator = getattr(context, "_seed", None), getattr(context, "_rng", None)
    return (int(seed), generator.getstate()) if seed is not None and generator is not None else None


def _put_tensorflow(found: Any, module: Any) -> None:
    seed, (version, numbers, gauss) = found
    now = _tensorflow_state()
    if now is None or now[0] != seed:
        module.random.set_seed(seed)  # this also drops compiled operations, so only if necessary
    context = sys.modules["tensorflow.python.eager.context"]
    context._context._rng.setstate((version, tuple(numbers), gauss))


def _keras_generator() -> Any:
    """Return the generator that Keras 3 uses without an explicit seed, or None if it was never used."""
    state = sys.modules.get("keras.src.backend.common.global_state")
    return None if state is None else state.get_global_attribute("global_seed_generator")


# --------------------------------------------------------------------------------- those of a notebook's cells


LIBRARIES: Final = ("numpy.random", "torch")
"""Modules whose initial random state differs in each process."""
_LAYERS_MAX: Final = 100
LAYERS: Final = "keras.layers"
"""Key of the states of the layers' own generators, by variable."""


def written(names: Mapping[str, object] | None = None) -> str:
    """Return the random state as text for `random_as_before`: equal texts mean equal future numbers.

    `names`: variables whose Keras layers have generators of their own (dropout, augmentation).
    """
    found: dict[str, Any] = {"random": _written_state(random.getstate())}
    found |= {name: state for name in LIBRARIES if (state := _written_of(name)) is not None}
    tensorflow = _tensorflow_state()
    if tensorflow is not None:
        found["tensorflow"] = [tensorflow[0], _written_state(tensorflow[1])]
    keras = _keras_generator()
    if keras is not None:
        found["keras"] = [int(number) for number in keras.state.numpy()]
    if names and LAYERS in sys.modules and (layers := _written_layers(names)):
        found[LAYERS] = layers
    return json.dumps(found)


def note_beginnings(note: Callable[[str, Any], None]) -> None:
    """Call `note(library, state)` with the initial state whenever a library with random streams is imported."""
    for name in LIBRARIES:
        if name not in sys.modules:
            import_hooks.after(name, functools.partial(_note, note, name))


def completed(text: str, beginnings: Mapping[str, Any]) -> str:
    """Return a text of `written` completed by the initial states of libraries imported since."""
    new = {name: state for name, state in beginnings.items() if f'"{name}": [' not in text}
    return json.dumps(json.loads(text) | new) if new else text


def _note(note: Callable[[str, Any], None], name: str, _module: Any) -> None:
    state = _written_of(name)
    if state is not None:
        note(name, state)


def _written_of(name: str) -> Any:
    module = sys.modules.get(name)
    if module is None:
        return None
    if name == "numpy.random":
        kind, keys, *rest = module.get_state()
        return [kind, _text(array("I", keys.tolist())), *rest]
    return [_text(state.numpy().tobytes()) for state in (module.get_rng_state(), *cuda_streams.states(module))]


def _written_state(state: tuple[Any, ...]) -> list[Any]:
    version, numbers, gauss = state
    return [version, _text(array("I", numbers)), gauss]


def read_state(found: Sequence[Any]) -> tuple[Any, ...]:
    version, numbers, gauss = found
    return version, tuple(array("I", _bytes(numbers))), gauss


def put_written(text: str) -> None:
    """Restore a state of `written` for the libraries that are loaded here."""
    found = json.loads(text)
    for name, act in RESTORERS.items():
        if name in found and name in sys.modules:
            act(found[name], sys.modules[name])
    random.setstate(read_state(found["random"]))


def _put_keras(found: list[int], module: Any) -> None:
    python = random.getstate()  # creating the generator draws its first seed there
    importlib.import_module(f"{module.__name__}.src.random.seed_generator").global_seed_generator().state.assign(found)
    random.setstate(python)


def _written_layers(names: Mapping[str, object]) -> dict[str, list[list[list[int]]]]:
    found = {name: _states_of(value) for name, value in list(names.items()) if not name.startswith("_")}
    return {name: states for name, states in found.items() if any(states)}


def _states_of(value: object) -> list[list[list[int]]]:
    try:
        return [[one.tolist() for one in keras_objects.generator_states(layer)] for layer in _layers_in(value)]
    except Exception:  # noqa: BLE001 - an interrupted fit on JAX leaves deleted arrays, and any class may refuse
        return []


def _put_layers(found: Mapping[str, list[list[list[int]]]], _module: Any) -> None:
    names = vars(sys.modules["__main__"])
    for name, states in found.items():
        for layer, each in zip(_layers_in(names.get(name)), states, strict=False):
            keras_objects.put_generator_states(layer, each)


def _layers_in(value: object) -> list[Any]:
    """Return a layer or model of Keras, or those in a list."""
    parts = value[:_LAYERS_MAX] if type(value) in (list, tuple) else [value]  # type: ignore[index]  # it is one
    return [one for one in parts if keras_objects.is_layer(one)]


def _put_written_tensorflow(found: list[Any], module: Any) -> None:
    _put_tensorflow((found[0], read_state(found[1])), module)


def _put_numpy(found: list[Any], module: Any) -> None:
    kind, keys, *rest = found
    numpy = sys.modules["numpy"]
    module.set_state((kind, numpy.array(array("I", _bytes(keys)), dtype="uint32"), *rest))


def _put_torch(found: list[str], module: Any) -> None:
    states = [module.frombuffer(bytearray(_bytes(text)), dtype=module.uint8) for text in found]
    module.set_rng_state(states[0])
    cuda_streams.put(module, states[1:])


RESTORERS: Final[Mapping[str, Callable[[Any, Any], None]]] = {
    "keras": _put_keras,
    LAYERS: _put_layers,
    "numpy.random": _put_numpy,
    "torch": _put_torch,
    "tensorflow": _put_written_tensorflow,
}


def _text(data: Any) -> str:
    return base64.b64encode(bytes(data)).decode()


def _bytes(text: str) -> bytes:
    return base64.b64decode(text)
