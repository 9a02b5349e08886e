"""Settings of the process and of libraries that a loop may change: a checkpoint keeps those that changed in it.

Settings above the loop are made again when the program runs again.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from jupyter_dlaas.objects.array_digests import Budget
from jupyter_dlaas.objects.library_settings import LIBRARY_SETTINGS, read_settings, restore_setting
from jupyter_dlaas.objects.object_aspects import Aspect
from jupyter_dlaas.objects.process_activity import is_repeated, read_activity, remedy_of

__all__ = ["SETTINGS", "Settings"]

_OF_THE_JOB: Final = (
    "DLAAS_",
    "JUPYTER_",
    "MASTER_",
    "RANK",
    "LOCAL_",
    "WORLD_SIZE",
    "CUDA_VISIBLE",
    "CUPY_SEED",
    "NCCL_",
    "GLOO_",
)
"""Prefixes of environment variables that differ between learners and runs."""
_VARIABLE: Final = "environment variable "
_PATH: Final = "import path"
_ACTIVITY: Final = "activity"

_WITHHELD: Final = "it holds a secret: set it above the loop, or pass it with --secret {name}"


class _Process:
    """Stands for the process in the object graph."""

    def __init__(self) -> None:
        self.without_secrets: Callable[[Mapping[str, str]], Mapping[str, str]] = dict
        """Returns environment variables without those that hold secrets, which are not stored."""
        self.at_epoch: dict[str, Any] | None = None
        """Threads, handlers and modules of the program when the epoch began; None outside of epochs."""


SETTINGS: Final = _Process()


class Settings(Aspect):
    """Values of all known settings, by name."""

    is_of_epoch = True

    def read(self, value: Any, budget: Budget) -> dict[str, Any]:
        return dict(_settings())

    def carry(self, value: Any, base: dict[str, Any], now: dict[str, Any]) -> dict[str, Any]:
        secret = _secret_changes(base, now)
        known = {name: one for name, one in now.items() if name != _ACTIVITY}
        changed = {name: one for name, one in known.items() if name not in base or base[name] != one}
        gone = {name: None for name in base if name not in now and name.startswith(_VARIABLE)}
        if _PATH in changed:
            changed[_PATH] = _added(base.get(_PATH, ()), now[_PATH])
        return {name: one for name, one in changed.items() if name not in secret} | gone

    def mark(self, value: Any, now: dict[str, Any]) -> None:
        value.at_epoch = now[_ACTIVITY]

    def withheld(self, base: dict[str, Any], now: dict[str, Any]) -> dict[str, str]:
        names = [name.removeprefix(_VARIABLE) for name in _secret_changes(base, now)]
        started = [label for label, one in now[_ACTIVITY].items() if base[_ACTIVITY].get(label) != one]
        if (before := SETTINGS.at_epoch) is not None:
            activity = now[_ACTIVITY]
            started = [one for one in started if not is_repeated(one) or before.get(one) == activity[one]]
        return {
            **{f"os.environ[{name!r}]": _WITHHELD.format(name=name) for name in names},
            **{label: remedy_of(label) for label in started},
        }

    def put(self, value: Any, carried: dict[str, Any]) -> None:
        variables = {name: one for name, one in carried.items() if name.startswith(_VARIABLE)}
        for name, one in variables.items():
            _set_variable(name.removeprefix(_VARIABLE), one)
        for name, one in carried.items():
            if name in LIBRARY_SETTINGS:
                restore_setting(name, one)
            elif name == "directory" and Path(one).is_dir():
                os.chdir(one)
            elif name == _PATH:
                sys.path[:] = [*one[0], *(folder for folder in sys.path if folder not in {*one[0], *one[1]}), *one[1]]


def _settings() -> Iterator[tuple[str, Any]]:
    yield from read_settings()
    yield "directory", str(Path.cwd())
    yield _PATH, tuple(sys.path)
    yield _ACTIVITY, dict(read_activity())
    yield from ((_VARIABLE + name, one) for name, one in os.environ.items() if not name.startswith(_OF_THE_JOB))


def _added(base: tuple[str, ...], now: tuple[str, ...]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the folders that were put before and behind the former import path, which differs between learners."""
    places = [place for place, folder in enumerate(now) if folder in base]
    first, last = (places[0], places[-1]) if places else (0, -1)
    return now[:first], now[last + 1 :]


def _secret_changes(base: dict[str, Any], now: dict[str, Any]) -> list[str]:
    """Return the changed environment variables that hold secrets: their values must not be in a checkpoint."""
    environment = {name.removeprefix(_VARIABLE): one for name, one in now.items() if name.startswith(_VARIABLE)}
    if all(base.get(_VARIABLE + name) == one for name, one in environment.items()):
        return []
    kept = SETTINGS.without_secrets({**dict(os.environ), **environment})
    return [
        _VARIABLE + name for name, one in environment.items() if name not in kept and base.get(_VARIABLE + name) != one
    ]


def _set_variable(name: str, value: str | None) -> None:
    if value is None:
        os.environ.pop(name, None)
    else:
        os.environ[name] = value
