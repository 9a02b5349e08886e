"""What notebooks take for granted and a job does not have: input(), display(), plt.show(), get_ipython()."""

from __future__ import annotations

import builtins
import importlib.abc
import importlib.machinery
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any, Final

__all__ = ["NoKeyboard", "install", "save_figures"]

_FORMS: Final = (("_repr_png_", "png"), ("_repr_svg_", "svg"))


class NoKeyboard(EOFError):
    """Training code asked for input."""


def install(output: Callable[[], Path]) -> None:
    """Put the stand-ins where notebook code looks for them. `output()` gives the folder of the job's artifacts."""

    def no_input(prompt: object = "") -> str:
        raise NoKeyboard(
            f"input({str(prompt)!r}) asks a person, but a job runs without one. Bind the value in a cell before the "
            "training cell: small values travel with the job."
        )

    def display(*objects: object, **_: Any) -> None:
        for one in objects:
            print(_text_of(one))
            _keep_pictures(one, output)

    builtins.input = no_input
    vars(builtins)["display"] = display
    vars(builtins)["get_ipython"] = lambda: None
    if "matplotlib.pyplot" in sys.modules:
        _patch_pyplot(sys.modules["matplotlib.pyplot"], output)
    else:
        sys.meta_path.insert(0, _Pyplot(output))


def _text_of(one: object) -> str:
    return one if isinstance(one, str) else repr(one)


def _keep_pictures(one: object, output: Callable[[], Path]) -> None:
    for method, ending in _FORMS:
        form = getattr(one, method, None)
        data = form() if callable(form) and not isinstance(one, type) else None
        if isinstance(data, tuple):  # (data, metadata)
            data = data[0]
        if isinstance(data, str | bytes):
            path = _free(output(), "display", ending)
            path.write_bytes(data.encode() if isinstance(data, str) else data)
            print(f"[kept as {path.name}]")
            return


def _free(folder: Path, stem: str, ending: str) -> Path:
    number = 1
    while (path := folder / f"{stem}-{number:03}.{ending}").exists():
        number += 1
    return path


def save_figures(pyplot: Any, output: Callable[[], Path]) -> None:
    """What plt.show() does in a job: every open figure becomes a PNG among the artifacts."""
    for number in pyplot.get_fignums():
        path = _free(output(), "figure", "png")
        pyplot.figure(number).savefig(path)
        print(f"[figure kept as {path.name}]")
    pyplot.close("all")


def _patch_pyplot(pyplot: Any, output: Callable[[], Path]) -> None:
    pyplot.show = lambda *_, **__: save_figures(pyplot, output)


class _Pyplot(importlib.abc.MetaPathFinder):
    """Waits for matplotlib.pyplot: loading it for those who never draw would cost half a second."""

    def __init__(self, output: Callable[[], Path]) -> None:
        self._output = output

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname != "matplotlib.pyplot":
            return None
        sys.meta_path.remove(self)
        spec = importlib.machinery.PathFinder.find_spec(fullname, path, target)
        if spec is not None and spec.loader is not None:
            loader: Any = spec.loader
            run, output = loader.exec_module, self._output

            def exec_module(module: ModuleType) -> None:
                run(module)
                _patch_pyplot(module, output)

            loader.exec_module = exec_module
        return spec
