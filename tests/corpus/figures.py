"""Run inside of a notebook's kernel, between its cells: what its names hold, as numbers to be compared elsewhere.

Loaded by `runpy.run_path`, so that nothing of it stays in the kernel. Imports nothing but the standard library; looks
at what is imported already. A leaf is (kind, dtype, shape, bytes), found at a path such as "model.fc.weight".
"""

from __future__ import annotations

import hashlib
import os
import pickle
import struct
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

Leaf = tuple[str, str, tuple[int, ...], bytes]

DEPTH_MAX = 9
PARTS_MAX = 20_000
NUMPY_KINDS = "biufc"


def look(space: Mapping[str, Any], names: list[str] | None, path: str) -> None:
    """Write the leaves of these names (None: only digests, of all names) and what else a job must leave alone."""
    state: dict[str, Any] = {
        "directory": str(Path.cwd()),
        "environment": dict(os.environ),
        "path": list(sys.path),
        "random": random_states(),
    }
    if names is None:
        users = {name: value for name, value in list(space.items()) if is_users(name, value)}
        state["ids"] = {name: id(value) for name, value in users.items()}
        state["digests"] = {name: digest(leaves(value)) for name, value in users.items()}
        state["has_weights"] = [name for name, value in users.items() if has_weights(value)]
        state["drivers"] = [name for name, value in users.items() if is_driver(value)]
    else:
        state["figures"] = {
            f"{name}{where}": leaf for name in names if name in space for where, leaf in leaves(space[name]).items()
        }
    Path(path).write_bytes(pickle.dumps(state))


def is_users(name: str, value: Any) -> bool:
    return not name.startswith("_") and name not in {"In", "Out", "exit", "quit", "get_ipython", "open", "dlaas"}


def is_driver(value: Any) -> bool:
    """Return whether a value trains a model and is none itself: Lightning's and Transformers' Trainer."""
    return any(one.__name__ in {"Trainer", "Learner"} and _package(one) != "__main__" for one in type(value).__mro__)


def has_weights(value: Any) -> bool:
    """Return whether a value is trained: a module, a Keras model, an estimator, a booster; not a number or an array."""
    names = {f"{_package(one)}.{one.__name__}" for one in type(value).__mro__}
    return bool(
        names & {"torch.Module", "keras.Layer", "sklearn.BaseEstimator", "xgboost.Booster", "lightgbm.Booster"}
        or is_driver(value)
    )


def random_states() -> dict[str, str]:
    """Digests of the random numbers to come, of what is loaded."""
    found = {}
    if random := sys.modules.get("random"):
        found["random"] = _sha(repr(random.getstate()).encode())
    if numpy := sys.modules.get("numpy"):
        found["numpy"] = _sha(repr(numpy.random.get_state()).encode())
    if torch := sys.modules.get("torch"):
        found["torch"] = _sha(torch.get_rng_state().numpy().tobytes())
    return found


def digest(found: Mapping[str, Leaf]) -> str:
    """ "" for a value without figures."""
    return _sha(repr([(k, v[:3], _sha(v[3])) for k, v in sorted(found.items())]).encode()) if found else ""


def leaves(value: Any) -> dict[str, Leaf]:
    found: dict[str, Leaf] = {}
    for where, leaf in _walk(value, "", 0, set()):
        found[where] = leaf
        if len(found) >= PARTS_MAX:
            break
    return found


# ------------------------------------------------------------------------------------------------------------ kinds


def _walk(value: Any, at: str, depth: int, above: set[int]) -> Iterator[tuple[str, Leaf]]:
    kind = type(value)
    if kind in (bool, int):
        yield at, ("number", "int", (), repr(value).encode())
        return
    if isinstance(value, float):
        yield at, ("number", "float64", (), struct.pack("=d", value))
        return
    if kind is str:
        yield at, ("text", "str", (), value.encode("utf-8", "replace"))
        return
    if depth > DEPTH_MAX or id(value) in above or isinstance(value, type):
        return
    package, name = _package(kind), kind.__name__
    bases = {f"{_package(one)}.{one.__name__}" for one in kind.__mro__}
    above = above | {id(value)}
    if "torch.Tensor" in bases:
        yield from _tensor(value, at)
    elif "numpy.ndarray" in bases or "numpy.generic" in bases:
        yield from _array(value, at)
    elif package in ("jax", "jaxlib") and hasattr(value, "dtype"):
        yield from _jax(value, at)
    elif package in ("tensorflow", "keras") and hasattr(value, "numpy") and hasattr(value, "dtype"):
        yield from _array(_numpy().asarray(value.numpy()), at)
    else:
        for key, part in _parts(value, kind, name, package, bases):
            yield from _walk(part, f"{at}{key}", depth + 1, above)


def _parts(value: Any, kind: type, name: str, package: str, bases: set[str]) -> Iterator[tuple[str, Any]]:
    """Yield the parts of a value."""
    if kind.__name__ == "function":  # a closure may count, or hold an average
        cells = zip(value.__code__.co_freevars, value.__closure__ or (), strict=True)
        yield from ((f".{name}", cell.cell_contents) for name, cell in cells if name != value.__name__)
    elif isinstance(value, dict):
        yield from ((f"[{key!r}]", part) for key, part in value.items() if isinstance(key, str | int | float | tuple))
    elif isinstance(value, list | tuple) or name == "deque":
        yield from ((f"[{n}]", part) for n, part in enumerate(value))
    elif isinstance(value, set | frozenset):
        plain = [one for one in value if isinstance(one, str | int | float | tuple)]
        yield from ((f"[{n}]", part) for n, part in enumerate(sorted(plain, key=repr)))
    elif "keras.Layer" in bases:  # on PyTorch it is a module, too
        yield ".get_weights()", value.get_weights()
    elif "torch.Module" in bases:
        yield from ((f".{key}", part) for key, part in (*value.named_parameters(), *value.named_buffers()))
        own = ((key, part) for key, part in vars(value).items() if not key.startswith("_"))
        yield from (
            (f".{key}", part) for key, part in own if isinstance(part, list | dict | float) and key != "training"
        )
    elif package == "torch" and callable(getattr(value, "state_dict", None)):  # optimisers, schedulers, scalers
        yield ".state_dict()", value.state_dict()
    elif package == "keras" and name == "History":
        yield ".history", value.history
    elif package == "pandas" and name in ("DataFrame", "Series"):
        columns = value.items() if name == "DataFrame" else [("", value)]
        yield from ((f".{key}", _column(column)) for key, column in columns)
    elif "xgboost.Booster" in bases:
        yield ".raw", bytes(value.save_raw("json")).decode()
    elif "lightgbm.Booster" in bases:
        yield ".text", value.model_to_string()
    elif "sklearn.BaseEstimator" in bases or package == "sklearn":
        state = value.__getstate__() if hasattr(value, "__getstate__") else vars(value)
        state = state if isinstance(state, dict) else {}
        yield from ((f".{key}", part) for key, part in state.items() if key not in ("evals_result_", "_Booster_params"))
    elif is_driver(value):
        yield ".model", getattr(value, "model", None)
        yield ".metrics", dict(getattr(value, "callback_metrics", {}))
        yield ".log", [_without_times(row) for row in getattr(getattr(value, "state", None), "log_history", ())]
    elif package in ("__main__", "types") or (sys.modules.get(kind.__module__) and _is_own(kind)) or _is_tree(value):
        held = getattr(value, "__dict__", {}).items()
        yield from ((f".{key}", part) for key, part in held if not key.startswith("_"))
        slots = [one for base in kind.__mro__ for one in getattr(base, "__slots__", ())]
        yield from ((f".{key}", getattr(value, key)) for key in slots if isinstance(key, str) and hasattr(value, key))


def _is_own(kind: type) -> bool:
    """Return whether a class belongs to a module beside the notebook."""
    file = getattr(sys.modules[kind.__module__], "__file__", None) or ""
    return bool(file) and Path(file).resolve().is_relative_to(Path.cwd())


def _is_tree(value: Any) -> bool:
    """Return whether a value holds parameters of JAX's libraries: flax modules, equinox modules, optax' states."""
    return _package(type(value)) in ("flax", "equinox", "optax")


def _without_times(row: Any) -> Any:
    timed = ("runtime", "per_second", "flos")
    return {k: v for k, v in row.items() if not any(word in k for word in timed)} if isinstance(row, dict) else row


def _column(column: Any) -> Any:
    found = column.to_numpy()
    return found if found.dtype.kind in NUMPY_KINDS else [str(one) for one in found]


def _tensor(value: Any, at: str) -> Iterator[tuple[str, Leaf]]:
    torch = sys.modules["torch"]
    if value.is_sparse or value.is_quantized or value.is_meta or hasattr(value, "materialize"):
        return
    plain = value.detach().as_subclass(torch.Tensor).cpu()
    if plain.dtype in (torch.bfloat16, torch.float16):
        plain = plain.float()
    array = plain.resolve_conj().contiguous().numpy()
    yield at, ("torch", str(array.dtype), tuple(array.shape), array.tobytes())


def _jax(value: Any, at: str) -> Iterator[tuple[str, Leaf]]:
    jax = sys.modules["jax"]
    if jax.numpy.issubdtype(value.dtype, jax.dtypes.prng_key):
        value = jax.random.key_data(value)
    yield from _array(_numpy().asarray(value), at)


def _array(value: Any, at: str) -> Iterator[tuple[str, Leaf]]:
    array = _numpy().asarray(value)
    if array.dtype.names:
        for field in array.dtype.names:
            yield from _array(array[field], f"{at}.{field}")
    elif array.dtype.kind in NUMPY_KINDS:
        yield at, ("array", str(array.dtype), tuple(array.shape), array.tobytes())
    elif array.dtype.name == "bfloat16":
        yield from _array(array.astype("float32"), at)
    elif array.dtype.kind == "U":
        yield at, ("text", "str", (), repr(array.tolist()).encode())
    elif array.dtype.kind == "O" and array.size < 1000:
        for n, part in enumerate(array.ravel().tolist()):
            if not isinstance(part, dict | list | tuple):
                yield from _walk(part, f"{at}[{n}]", DEPTH_MAX, set())


def _numpy() -> Any:
    return sys.modules["numpy"]


def _package(kind: type) -> str:
    return str(kind.__module__).partition(".")[0]


def _sha(data: bytes) -> str:
    return hashlib.blake2b(data, digest_size=12).hexdigest()
