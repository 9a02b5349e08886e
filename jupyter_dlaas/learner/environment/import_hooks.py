"""Actions that run when a module is imported, without importing it for programs that do not use it.

All actions (seeds, figures, autolog) share one finder, which costs one dict lookup per import of another module.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import sys
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any, Final

__all__ = ["Act", "after"]

Act = Callable[[Any], object]
"""Called with the module that has just been imported."""


def after(name: str, act: Act) -> None:
    """Call `act(module)` once the module with this name is imported; immediately if it is already."""
    module = sys.modules.get(name)
    if module is not None:
        act(module)
        return
    _waiting.setdefault(name, []).append(act)
    if _finder not in sys.meta_path:
        sys.meta_path.insert(0, _finder)


class _Finder(importlib.abc.MetaPathFinder):
    """A finder that delegates to the others and wraps the loader of an awaited module."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname not in _waiting:
            return None
        for finder in sys.meta_path:
            spec = None if finder is self else finder.find_spec(fullname, path, target)
            if spec is not None:
                if spec.loader is not None:
                    spec.loader = _Loader(spec.loader)
                return spec
        return None


class _Loader(importlib.abc.Loader):
    """A loader that runs the actions after another loader, and removes itself from the module."""

    def __init__(self, loader: Any) -> None:
        self._loader = loader

    def __getattr__(self, name: str) -> Any:  # for tools that query loaders before the module runs
        return getattr(self._loader, name)

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType | None:
        module: ModuleType | None = self._loader.create_module(spec)
        return module

    def exec_module(self, module: ModuleType) -> None:
        module.__loader__ = self._loader
        if module.__spec__ is not None:
            module.__spec__.loader = self._loader
        self._loader.exec_module(module)
        for act in _waiting.pop(module.__name__, ()):
            act(module)


_finder: Final = _Finder()
_waiting: Final[dict[str, list[Act]]] = {}
