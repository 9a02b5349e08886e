"""Figures and images that a program draws or displays, stored as artifacts of the job and shown on its card."""

from __future__ import annotations

import base64
import os
import re
import sys
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

__all__ = ["MOST", "Pictures"]

MOST: Final = 200
"""The maximum number of files per job: a program may show a figure at each of a million steps."""

_FORMS: Final = (
    ("_repr_png_", "image/png", "png"),
    ("_repr_jpeg_", "image/jpeg", "jpg"),
    ("_repr_svg_", "image/svg+xml", "svg"),
)


class Pictures:
    """Image files with numbered names. After a `redraw`, new images replace the ones before."""

    def __init__(self, output: Callable[[], Path], *, keeps: bool = True) -> None:
        self._output = output
        self._keeps = keeps
        self._pid = os.getpid()
        self._count = 0
        self._since: list[Path] = []
        """Files written since the last redraw."""
        self._again: list[Path] = []
        """Files to overwrite, in this order."""
        self._shown: weakref.WeakSet[Any] = weakref.WeakSet()

    # -- matplotlib ----------------------------------------------------------------------------------------------------

    def patch_pyplot(self, pyplot: Any) -> None:
        pyplot.show = lambda *_, **__: self.show()

    def patch_figure(self, module: Any) -> None:
        def show(figure: Any, *_: Any, **__: Any) -> None:
            self.keep(figure)

        module.Figure.show = show

    def show(self) -> None:
        """Replace plt.show(): store every open figure as a PNG, and close them, as a notebook does."""
        pyplot: Any = sys.modules.get("matplotlib.pyplot")
        if pyplot is None:
            return
        for number in pyplot.get_fignums():
            self.keep(pyplot.figure(number))
        pyplot.close("all")

    def show_rest(self) -> None:
        """Store figures that are still open at the end, which a notebook would show below the cell."""
        pyplot: Any = sys.modules.get("matplotlib.pyplot")
        for number in pyplot.get_fignums() if pyplot is not None else ():
            figure = pyplot.figure(number)
            if figure not in self._shown and figure.axes:
                self.keep(figure)

    # -- objects with an image -----------------------------------------------------------------------------------------

    def keep(self, one: Any) -> None:
        """Store the image of an object, if it has one."""
        if not self._keeps or os.getpid() != self._pid:
            return
        if _is_figure(one):
            self._shown.add(one)
            path, is_new = self._next("figure", "png")
            if path is not None:
                one.savefig(path, bbox_inches="tight")
                if is_new:
                    print(f"[figure kept as {path.name}]")
            return
        found = _form_of(one)
        if found is None:
            return
        path, is_new = self._next("display", found[1])
        if path is not None:
            path.write_bytes(found[0])
            if is_new:
                print(f"[kept as {path.name}]")

    def redraw(self) -> None:
        """Let the next images replace those stored since the last redraw."""
        self._again, self._since = [*self._since, *self._again], []

    def _next(self, stem: str, ending: str) -> tuple[Path | None, bool]:
        """Return the path of the next image, and whether it is new; a path of None if the limit is reached."""
        for path in self._again:
            if re.fullmatch(rf"{stem}-\d+\.{ending}", path.name):
                self._again.remove(path)
                self._since.append(path)
                return path, False
        folder, number = self._output(), 1
        if self._count >= MOST:
            if self._count == MOST:
                self._count += 1
                print(f"[only the first {MOST} pictures are kept]")
            return None, False
        while (path := folder / f"{stem}-{number:03}.{ending}").exists():
            number += 1
        self._count += 1
        self._since.append(path)
        return path, True


def _is_figure(one: Any) -> bool:
    module: Any = sys.modules.get("matplotlib.figure")
    return module is not None and isinstance(one, module.Figure)


def _form_of(one: Any) -> tuple[bytes, str] | None:
    """Return an object's image in the first format that Jupyter would use, and its file extension."""
    if isinstance(one, type):
        return None
    bundle = _called(one, "_repr_mimebundle_")
    for method, mime, ending in _FORMS:
        data = bundle.get(mime) if isinstance(bundle, dict) else None
        if data is None:
            data = _called(one, method)
        if isinstance(data, str):
            return (data.encode() if ending == "svg" else base64.b64decode(data)), ending
        if isinstance(data, bytes):
            return data, ending
    return None


def _called(one: Any, method: str) -> Any:
    form = getattr(one, method, None)
    if not callable(form):
        return None
    data = form()
    return data[0] if isinstance(data, tuple) and data else data  # (data, metadata)
