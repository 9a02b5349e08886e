"""Settings of the interpreter and of libraries that a loop may change: how each is read and restored.

A setting is read only if its module is imported. Its value is plain data, so that it can be compared and stored.
"""

from __future__ import annotations

import importlib
import locale
import logging
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import reduce
from pathlib import Path
from typing import Any, Final

from jupyter_dlaas.objects.object_values import is_atom

__all__ = ["LIBRARY_SETTINGS", "LibrarySetting", "read_settings", "restore_setting"]


@dataclass(frozen=True, slots=True)
class LibrarySetting:
    """One setting: the module that has it, and how it is read and restored."""

    module: str
    read: Callable[[Any], Any]
    restore: Callable[[Any, Any], object]


def read_settings() -> Iterator[tuple[str, Any]]:
    """Yield the values of all settings whose modules are imported, by name."""
    for name, setting in LIBRARY_SETTINGS.items():
        module = sys.modules.get(setting.module)
        if module is not None:
            with suppress(AttributeError, RuntimeError, OSError):  # another release; torch refuses to read mixed flags
                yield name, setting.read(module)


def restore_setting(name: str, value: Any) -> None:
    """Restore a setting unless it has that value. Its module is imported, as the loop has done."""
    setting = LIBRARY_SETTINGS[name]
    module = sys.modules.get(setting.module) or importlib.import_module(setting.module)
    with suppress(AttributeError, RuntimeError, OSError):
        if setting.read(module) == value:
            return
    setting.restore(module, value)


def _found(owner: Any, path: str) -> Any:
    return reduce(lambda found, name: getattr(found, name, None), filter(None, path.split(".")), owner)


def _attribute(owner: Any, path: str) -> Any:
    """Return an attribute; None if this release does not have it, or if torch refuses to read flags that are mixed."""
    try:
        return _found(owner, path)
    except RuntimeError:
        return None


def _attributes(module: str, *paths: str) -> LibrarySetting:
    """Return the setting that consists of these attributes, as far as this release has them."""

    def read(found: Any) -> dict[str, Any]:
        values = {path: _attribute(found, path) for path in paths}
        return {path: one for path, one in values.items() if one is not None and is_atom(one)}

    def restore(found: Any, values: Mapping[str, Any]) -> None:
        for path, one in values.items():
            owner, _, name = path.rpartition(".")
            if _attribute(found, path) != one:
                setattr(_found(found, owner), name, one)

    return LibrarySetting(module, read, restore)


def _pair(module: str, get: str, put: str) -> LibrarySetting:
    """Return the setting that one function returns and another sets, by their paths in the module."""
    return LibrarySetting(module, lambda found: _found(found, get)(), lambda found, value: _found(found, put)(value))


def _options(module: str, get: str, put: str) -> LibrarySetting:
    """Return the setting that one function returns as a dictionary, whose items are keywords of another."""

    def read(found: Any) -> dict[str, Any]:
        return {key: one for key, one in _found(found, get)().items() if is_atom(one)}

    return LibrarySetting(module, read, lambda found, values: _found(found, put)(**values))


# -- the interpreter and the standard library


def _decimal(decimal: Any) -> tuple[Any, ...]:
    one = decimal.getcontext()
    signals = tuple(sorted((kind.__name__, bool(on)) for kind, on in one.traps.items()))
    return one.prec, one.rounding, one.Emin, one.Emax, one.capitals, one.clamp, signals


def _set_decimal(decimal: Any, values: tuple[Any, ...]) -> None:
    one = decimal.getcontext()
    one.prec, one.rounding, one.Emin, one.Emax, one.capitals, one.clamp, signals = values
    for name, is_on in signals:
        one.traps[getattr(decimal, name)] = is_on


def _collector(gc: Any) -> tuple[Any, ...]:
    return gc.isenabled(), gc.get_threshold()


def _set_collector(gc: Any, values: tuple[Any, ...]) -> None:
    (gc.enable if values[0] else gc.disable)()
    gc.set_threshold(*values[1])


def _set_warnings(warnings: Any, filters: list[Any]) -> None:
    warnings.resetwarnings()  # also makes the interpreter read the filters again
    warnings.filters[:] = filters


def _loggers(module: Any) -> dict[str, tuple[int, bool, bool]]:
    """Return level, propagation and state of the loggers that do not have the usual ones."""
    root: Any = logging.getLogger()
    every = [("", root), *root.manager.loggerDict.items()]
    unusual = [
        (name, (one.level, one.propagate, bool(one.disabled)))
        for name, one in every
        if isinstance(one, logging.Logger) and (one.level != logging.NOTSET or not one.propagate or one.disabled)
    ]
    return dict(sorted(unusual))


def _set_loggers(module: Any, values: Mapping[str, tuple[int, bool, bool]]) -> None:
    for name in {**_loggers(module), **values}:
        one = logging.getLogger(name or None)
        level, one.propagate, one.disabled = values.get(name, (logging.NOTSET, True, False))
        one.setLevel(level)


_DIALECT: Final = (
    *("delimiter", "doublequote", "escapechar", "lineterminator", "quotechar", "quoting", "skipinitialspace", "strict"),
)


def _dialects(csv: Any) -> dict[str, tuple[Any, ...]]:
    """Return the attributes of all registered dialects by name."""
    found = {name: csv.get_dialect(name) for name in csv.list_dialects()}
    return {name: tuple(getattr(one, attribute) for attribute in _DIALECT) for name, one in found.items()}


def _set_dialects(csv: Any, values: Mapping[str, tuple[Any, ...]]) -> None:
    for name in _dialects(csv).keys() - values.keys():
        csv.unregister_dialect(name)
    for name, one in values.items():
        csv.register_dialect(name, **dict(zip(_DIALECT, one, strict=True)))


_STATUS: Final = Path("/proc/self/status")


def _umask(_: Any) -> int:
    """Return the mask of new files. `os.umask` would have to set it, and other threads create files meanwhile."""
    with _STATUS.open("rb", buffering=0) as file:
        _, _, mask = file.read(1024).partition(b"\nUmask:")
    if not mask:
        raise OSError
    return int(mask.split(maxsplit=1)[0], 8)


_STANDARD: Final = {
    "mask of new files": LibrarySetting("os", _umask, lambda os, value: os.umask(value)),
    "dialects of csv": LibrarySetting("csv", _dialects, _set_dialects),
    "lengths of reprlib": LibrarySetting(
        "reprlib",
        lambda found: {name: one for name, one in vars(found.aRepr).items() if is_atom(one)},
        lambda found, values: vars(found.aRepr).update(values),
    ),
    "stack size of threads": _pair("threading", "stack_size", "stack_size"),
    "limit of recursion": _pair("sys", "getrecursionlimit", "setrecursionlimit"),
    "interval of thread switches": _pair("sys", "getswitchinterval", "setswitchinterval"),
    "digits of integers": _pair("sys", "get_int_max_str_digits", "set_int_max_str_digits"),
    "locale": LibrarySetting(
        "locale",
        lambda _: locale.setlocale(locale.LC_ALL),
        lambda _, value: locale.setlocale(locale.LC_ALL, value),
    ),
    "context of decimal": LibrarySetting("decimal", _decimal, _set_decimal),
    "garbage collector": LibrarySetting("gc", _collector, _set_collector),
    "filters of warnings": LibrarySetting("warnings", lambda found: list(found.filters), _set_warnings),
    "loggers": LibrarySetting("logging", _loggers, _set_loggers),
    "level of all loggers": LibrarySetting(
        "logging", lambda found: found.root.manager.disable, lambda found, value: found.disable(value)
    ),
    "time limit of sockets": _pair("socket", "getdefaulttimeout", "setdefaulttimeout"),
    "limit of csv": _pair("csv", "field_size_limit", "field_size_limit"),
    "start of processes": LibrarySetting(
        "multiprocessing",
        lambda found: found.get_start_method(allow_none=True),
        lambda found, value: found.set_start_method(value, force=True),
    ),
    "time zone": LibrarySetting(
        "time", lambda found: (found.tzname, found.timezone, found.altzone), lambda *_: time.tzset()
    ),
}


# -- torch

_BACKENDS: Final = ("", "cuda.matmul", "cudnn", "cudnn.conv", "cudnn.rnn", "mkldnn", "mkldnn.matmul", "mkldnn.conv")
"""Parts of `torch.backends` with an `fp32_precision`, which newer releases of torch have, the most general first."""


def _precisions(torch: Any) -> dict[str, str]:
    """Return the precision of float32 products, for all backends ("all") and for each."""
    found = {part: _found(torch.backends, part) for part in _BACKENDS}
    precisions = {part: str(one.fp32_precision) for part, one in found.items() if hasattr(one, "fp32_precision")}
    with suppress(RuntimeError):  # torch raises it if the program has set the precision of a backend
        precisions["all"] = str(torch.get_float32_matmul_precision())
    return precisions


def _set_precisions(torch: Any, precisions: dict[str, str]) -> None:
    if "all" in precisions:
        torch.set_float32_matmul_precision(precisions["all"])
    for part in _BACKENDS:
        if part in precisions and (backend := _found(torch.backends, part)).fp32_precision != precisions[part]:
            backend.fp32_precision = precisions[part]


_ATTENTION: Final = ("flash", "mem_efficient", "math", "cudnn")


def _attention(torch: Any) -> dict[str, bool]:
    readers = {kind: getattr(torch.backends.cuda, f"{kind}_sdp_enabled", None) for kind in _ATTENTION}
    return {kind: bool(reader()) for kind, reader in readers.items() if reader is not None}


def _set_attention(torch: Any, values: Mapping[str, bool]) -> None:
    for kind, is_on in values.items():
        getattr(torch.backends.cuda, f"enable_{kind}_sdp")(is_on)


def _autocast(torch: Any) -> dict[str, tuple[bool, Any]]:
    return {kind: (torch.is_autocast_enabled(kind), torch.get_autocast_dtype(kind)) for kind in ("cpu", "cuda")}


def _set_autocast(torch: Any, values: Mapping[str, tuple[bool, Any]]) -> None:
    for kind, (is_on, dtype) in values.items():
        torch.set_autocast_enabled(kind, is_on)
        torch.set_autocast_dtype(kind, dtype)


def _flushes_denormals(torch: Any) -> bool:
    """Return whether this thread's processor takes tiny numbers for zero: torch has no function that returns it."""
    return _TINY / 2.0 == 0.0


_TINY: Final = 1e-310


_TORCH: Final = {
    "torch default type": _pair("torch", "get_default_dtype", "set_default_dtype"),
    "torch default device": LibrarySetting(
        "torch",
        lambda torch: str(torch.get_default_device()),
        lambda torch, value: torch.set_default_device(None if value == "cpu" else value),
    ),
    "torch threads": _pair("torch", "get_num_threads", "set_num_threads"),
    "torch gradients": _pair("torch", "is_grad_enabled", "set_grad_enabled"),
    "torch precision of float32": LibrarySetting("torch", _precisions, _set_precisions),
    "torch deterministic algorithms": LibrarySetting(
        "torch",
        lambda torch: (
            torch.are_deterministic_algorithms_enabled(),
            torch.is_deterministic_algorithms_warn_only_enabled(),
        ),
        lambda torch, value: torch.use_deterministic_algorithms(value[0], warn_only=value[1]),
    ),
    "torch anomaly detection": _pair("torch", "is_anomaly_enabled", "autograd.set_detect_anomaly"),
    "torch attention kernels": LibrarySetting("torch", _attention, _set_attention),
    "torch autocast": LibrarySetting("torch", _autocast, _set_autocast),
    "torch denormal numbers": LibrarySetting(
        "torch", _flushes_denormals, lambda torch, value: torch.set_flush_denormal(value)
    ),
    "torch warnings": _pair("torch", "is_warn_always_enabled", "set_warn_always"),
    "torch printing": _options("torch._tensor_str", "get_printoptions", "set_printoptions"),
    "torch fast path of attention": _pair(
        "torch", "backends.mha.get_fastpath_enabled", "backends.mha.set_fastpath_enabled"
    ),
    "torch converted parameters": _pair(
        "torch",
        "__future__.get_overwrite_module_params_on_conversion",
        "__future__.set_overwrite_module_params_on_conversion",
    ),
    "torch folder of models": LibrarySetting(
        "torch.hub", lambda found: found._hub_dir, lambda found, value: setattr(found, "_hub_dir", value)
    ),
    "torch shared memory": _pair("torch.multiprocessing", "get_sharing_strategy", "set_sharing_strategy"),
    "torch checks of distributions": LibrarySetting(
        "torch.distributions",
        lambda found: found.Distribution._validate_args,
        lambda found, value: found.Distribution.set_default_validate_args(value),
    ),
    "torch backends": _attributes(
        "torch.backends",
        *("cudnn.benchmark", "cudnn.deterministic", "cudnn.enabled", "cudnn.benchmark_limit", "quantized.engine"),
        *("mkldnn.enabled", "mkldnn.deterministic", "opt_einsum.enabled", "opt_einsum.strategy"),
        *("cuda.matmul.allow_fp16_reduced_precision_reduction", "cuda.matmul.allow_bf16_reduced_precision_reduction"),
        *("cuda.matmul.allow_fp16_accumulation", "cuda.matmul.allow_tf32", "cudnn.allow_tf32"),
    ),
    "torch uninitialized memory": _attributes("torch.utils.deterministic", "fill_uninitialized_memory"),
    "torch compiler": _attributes(
        "torch._dynamo.config", "suppress_errors", "cache_size_limit", "recompile_limit", "capture_scalar_outputs"
    ),
}


# -- other libraries


def _pandas(module: Any) -> dict[str, Any]:
    def plain(part: Mapping[str, Any], path: str) -> Iterator[tuple[str, Any]]:
        for key, one in part.items():
            if isinstance(one, dict):
                yield from plain(one, f"{path}{key}.")
            elif is_atom(one):
                yield path + key, one

    return dict(plain(module.options.d, ""))


def _set_pandas(module: Any, values: Mapping[str, Any]) -> None:
    now = _pandas(module)
    for key, one in values.items():
        if key in now and now[key] != one:
            module.set_option(key, one)


def _jax(module: Any) -> dict[str, Any]:
    return {key: one for key, one in module.config.values.items() if is_atom(one)}


def _set_jax(module: Any, values: Mapping[str, Any]) -> None:
    now = _jax(module)
    for key, one in values.items():
        if key in now and now[key] != one:
            module.config.update(key, one)


_OF_FIGURES: Final = frozenset({"backend", "backend_fallback", "path.effects"})
"""Parameters of matplotlib that the process chooses, or that hold objects."""


def _figures(matplotlib: Any) -> dict[str, Any]:
    """Return all other parameters, without calling the function that checks each: none is changed in place."""
    return {key: one for key, one in dict.items(matplotlib.rcParams) if key not in _OF_FIGURES}


_OTHERS: Final = {
    "matplotlib": LibrarySetting("matplotlib", _figures, lambda found, values: dict.update(found.rcParams, values)),
    "xgboost": _options("xgboost", "get_config", "set_config"),
    "numpy errors": _options("numpy", "geterr", "seterr"),
    "numpy printing": _options("numpy", "get_printoptions", "set_printoptions"),
    "numpy buffer": _pair("numpy", "getbufsize", "setbufsize"),
    "scipy errors": _options("scipy.special", "geterr", "seterr"),
    "pandas options": LibrarySetting("pandas", _pandas, _set_pandas),
    "scikit-learn": _options("sklearn", "get_config", "set_config"),
    "jax": LibrarySetting("jax", _jax, _set_jax),
    "keras type": _pair("keras", "config.floatx", "config.set_floatx"),
    "keras epsilon": _pair("keras", "config.epsilon", "config.set_epsilon"),
    "keras image format": _pair("keras", "config.image_data_format", "config.set_image_data_format"),
    "keras types of layers": LibrarySetting(
        "keras",
        lambda found: str(found.config.dtype_policy().name),
        lambda found, value: found.config.set_dtype_policy(value),
    ),
}
LIBRARY_SETTINGS: Final[Mapping[str, LibrarySetting]] = {**_STANDARD, **_TORCH, **_OTHERS}
