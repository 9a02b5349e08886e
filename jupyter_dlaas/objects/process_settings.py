"""Settings of the process and of libraries that a loop may change: a checkpoint keeps those that changed in it.

Settings above the loop are made again when the program runs again.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from functools import reduce
from pathlib import Path
from typing import Any, Final

from jupyter_dlaas.objects.array_digests import Budget
from jupyter_dlaas.objects.object_aspects import Aspect

__all__ = ["SETTINGS", "Settings"]

_OF_THE_JOB: Final = ("DLAAS_", "JUPYTER_", "MASTER_", "RANK", "LOCAL_", "WORLD_SIZE", "CUDA_VISIBLE", "NCCL_", "GLOO_")
"""Prefixes of environment variables that differ between learners and runs."""
_VARIABLE: Final = "environment variable "


_WITHHELD: Final = "it holds a secret: set it above the loop, or pass it with --secret {name}"


class _Process:
    """Stands for the process in the object graph."""

    def __init__(self) -> None:
        self.without_secrets: Callable[[Mapping[str, str]], Mapping[str, str]] = dict
        """Returns environment variables without those that hold secrets, which are not stored."""


SETTINGS: Final = _Process()


def _flag(owner: Callable[[Any], Any], name: str) -> tuple[Callable[[Any], Any], Callable[[Any, Any], object]]:
    return lambda torch: getattr(owner(torch), name), lambda torch, value: setattr(owner(torch), name, value)


_BACKENDS: Final = ("", "cuda.matmul", "cudnn", "cudnn.conv", "cudnn.rnn", "mkldnn", "mkldnn.matmul", "mkldnn.conv")
"""Parts of `torch.backends` with an `fp32_precision`, which newer releases of torch have, the most general first."""


def _precisions(torch: Any) -> dict[str, str]:
    """Return the precision of float32 products, for all backends ("all") and for each."""
    found = {part: _backend(torch, part) for part in _BACKENDS}
    precisions = {part: str(one.fp32_precision) for part, one in found.items() if hasattr(one, "fp32_precision")}
    with suppress(RuntimeError):  # torch raises it if the program has set the precision of a backend
        precisions["all"] = str(torch.get_float32_matmul_precision())
    return precisions


def _set_precisions(torch: Any, precisions: dict[str, str]) -> None:
    if "all" in precisions:
        torch.set_float32_matmul_precision(precisions["all"])
    for part in _BACKENDS:
        if part in precisions and (backend := _backend(torch, part)).fp32_precision != precisions[part]:
            backend.fp32_precision = precisions[part]


def _backend(torch: Any, part: str) -> Any:
    return reduce(lambda module, name: getattr(module, name, None), filter(None, part.split(".")), torch.backends)


_TORCH: Final[dict[str, tuple[Callable[[Any], Any], Callable[[Any, Any], object]]]] = {
    "torch default type": (lambda torch: torch.get_default_dtype(), lambda torch, one: torch.set_default_dtype(one)),
    "torch precision of float32": (_precisions, _set_precisions),
    "torch deterministic algorithms": (
        lambda torch: (
            torch.are_deterministic_algorithms_enabled(),
            torch.is_deterministic_algorithms_warn_only_enabled(),
        ),
        lambda torch, one: torch.use_deterministic_algorithms(one[0], warn_only=one[1]),
    ),
    "torch anomaly detection": (
        lambda torch: torch.is_anomaly_enabled(),
        lambda torch, one: torch.autograd.set_detect_anomaly(one),
    ),
    "cudnn benchmark": _flag(lambda torch: torch.backends.cudnn, "benchmark"),
    "cudnn deterministic": _flag(lambda torch: torch.backends.cudnn, "deterministic"),
    "cudnn": _flag(lambda torch: torch.backends.cudnn, "enabled"),
}


class Settings(Aspect):
    """Values of all known settings, by name."""

    def read(self, value: Any, budget: Budget) -> dict[str, Any]:
        return dict(_settings())

    def carry(self, value: Any, base: dict[str, Any], now: dict[str, Any]) -> dict[str, Any]:
        secret = _secret_changes(base, now)
        changed = {name: one for name, one in now.items() if name not in base or base[name] != one}
        gone = {name: None for name in base if name not in now and name.startswith(_VARIABLE)}
        return {name: one for name, one in changed.items() if name not in secret} | gone

    def withheld(self, base: dict[str, Any], now: dict[str, Any]) -> dict[str, str]:
        names = [name.removeprefix(_VARIABLE) for name in _secret_changes(base, now)]
        return {f"os.environ[{name!r}]": _WITHHELD.format(name=name) for name in names}

    def put(self, value: Any, carried: dict[str, Any]) -> None:
        torch: Any = sys.modules.get("torch")
        numpy: Any = sys.modules.get("numpy")
        for name, one in carried.items():
            if name in _TORCH and torch is not None:
                _TORCH[name][1](torch, one)
            elif name == "numpy errors" and numpy is not None:
                numpy.seterr(**one)
            elif name == "directory" and Path(one).is_dir():
                os.chdir(one)
            elif name.startswith(_VARIABLE):
                _set_variable(name.removeprefix(_VARIABLE), one)


def _settings() -> Iterator[tuple[str, Any]]:
    torch: Any = sys.modules.get("torch")
    numpy: Any = sys.modules.get("numpy")
    if torch is not None:
        yield from ((name, get(torch)) for name, (get, _) in _TORCH.items())
    if numpy is not None:
        yield "numpy errors", numpy.geterr()
    yield "directory", str(Path.cwd())
    yield from ((_VARIABLE + name, one) for name, one in os.environ.items() if not name.startswith(_OF_THE_JOB))


def _secret_changes(base: dict[str, Any], now: dict[str, Any]) -> list[str]:
    """Return the changed environment variables that hold secrets: their values must not be in a checkpoint."""
    environment = {name.removeprefix(_VARIABLE): one for name, one in now.items() if name.startswith(_VARIABLE)}
    kept = SETTINGS.without_secrets({**dict(os.environ), **environment})
    return [
        _VARIABLE + name for name, one in environment.items() if name not in kept and base.get(_VARIABLE + name) != one
    ]


def _set_variable(name: str, value: str | None) -> None:
    if value is None:
        os.environ.pop(name, None)
    else:
        os.environ[name] = value
