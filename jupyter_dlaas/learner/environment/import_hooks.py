"""Acts at the moment a module is loaded, without loading it for those who do not use it.

One finder for all who wait (seeds, pictures, autolog): as long as nothing is found it costs a look into a dict.
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
"""Takes the module, just loaded."""


def after(name: str, act: Act) -> None:
    """Call `act(module)` once the module of this name is loaded; at once where it is."""
    module = sys.modules.get(name)
    if module is not None:
        act(module)
        return
    _waiting.setdefault(name, []).append(act)
    if _finder not in sys.meta_path:
        sys.meta_path.insert(0, _finder)


class _Finder(importlib.abc.MetaPathFinder):
    """Lets the others find a module, and puts itself around its loader."""

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
    """Another loader, and what is to be done after it. Gone from the module once that is loaded."""

    def __init__(self, loader: Any) -> None:
        self._loader = loader

    def __getattr__(self, name: str) -> Any:  # what tools ask loaders for before the module runs
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
