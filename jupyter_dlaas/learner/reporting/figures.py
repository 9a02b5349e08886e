"""Pictures that a program draws or displays, kept as files among the job's artifacts: the card shows them."""

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
"""Files of one job: a program may show a figure at each of a million steps."""

_FORMS: Final = (
    ("_repr_png_", "image/png", "png"),
    ("_repr_jpeg_", "image/jpeg", "jpg"),
    ("_repr_svg_", "image/svg+xml", "svg"),
)


class Pictures:
    """Keeps pictures under numbered names. What is drawn again after a `redraw` takes the place of what was there."""

    def __init__(self, output: Callable[[], Path], *, keeps: bool = True) -> None:
        self._output = output
        self._keeps = keeps
        self._pid = os.getpid()
        self._count = 0
        self._since: list[Path] = []
        """Kept since the last redraw."""
        self._again: list[Path] = []
        """To be overwritten, in this order."""
        self._shown: weakref.WeakSet[Any] = weakref.WeakSet()

    # -- matplotlib ----------------------------------------------------------------------------------------------------

    def patch_pyplot(self, pyplot: Any) -> None:
        pyplot.show = lambda *_, **__: self.show()

    def patch_figure(self, module: Any) -> None:
        def show(figure: Any, *_: Any, **__: Any) -> None:
            self.keep(figure)

        module.Figure.show = show

    def show(self) -> None:
        """What plt.show() does: every open figure becomes a PNG. As in a notebook they are closed then."""
        pyplot: Any = sys.modules.get("matplotlib.pyplot")
        if pyplot is None:
            return
        for number in pyplot.get_fignums():
            self.keep(pyplot.figure(number))
        pyplot.close("all")

    def show_rest(self) -> None:
        """At the end: figures that were left open, as a notebook shows them below the cell."""
        pyplot: Any = sys.modules.get("matplotlib.pyplot")
        for number in pyplot.get_fignums() if pyplot is not None else ():
            figure = pyplot.figure(number)
            if figure not in self._shown and figure.axes:
                self.keep(figure)

    # -- anything that has a picture -----------------------------------------------------------------------------------

    def keep(self, one: Any) -> None:
        """Keep the picture of an object, where it has one."""
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
        """What is kept next takes the place of what was kept since the last redraw."""
        self._again, self._since = [*self._since, *self._again], []

    def _next(self, stem: str, ending: str) -> tuple[Path | None, bool]:
        """Where the next picture goes, and whether it is a new one; None: there are enough."""
        for path in self._again:
            if re.fullmatch(rf"{stem}-\d+\.{ending}", path.name):
                self._again.remove(path)
                self._since.append(path)
                return path, False
        folder, number = self._output(), 1
        if self._count >= MOST:
            if self._count == MOST:
                self._count += 1
                print(f"[{MOST} pictures are kept; further ones are not]")
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
    """An object's picture as Jupyter would ask for it, and the ending of its file."""
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
