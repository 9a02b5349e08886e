"""Replacements for what notebooks provide and jobs lack: input(), display(), plt.show(), get_ipython() and others."""

from __future__ import annotations

import builtins
import os
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from jupyter_dlaas.learner.environment import import_hooks
from jupyter_dlaas.learner.process import ipython_shim
from jupyter_dlaas.learner.process.last_expression import SHOW
from jupyter_dlaas.learner.reporting.figures import Pictures

__all__ = ["NoKeyboard", "Redrawing", "install"]

_SHOWERS: Final = ("IPython.display", "IPython.core.display_functions", "IPython.core.display")
_VALUE_MAX: Final = 20_000
_GUI: Final = re.compile(r"module://|tk|qt|gtk|wx|macosx|nbagg|notebook|inline|ipympl|widget|webagg", re.IGNORECASE)


class NoKeyboard(EOFError):
    """The error for training code that requests keyboard input."""


def install(output: Callable[[], Path], *, program: str = "", keeps: bool = True) -> Callable[[], dict[str, Any]]:
    """Install the replacements; return a function to call at the program's end.

    `output()` returns the directory of the job's artifacts. If `keeps` is False, images are dropped, since rank 0
    stores them. `program` is the text of the program.
    """
    pictures = Pictures(output, keeps=keeps)
    showing = _Showing(pictures)
    builtins.input = _refusing("input")
    vars(builtins)["display"] = showing.display
    ipython_shim.install(program)
    vars(builtins)[SHOW] = showing.show_value
    for name in ("exit", "quit"):  # `site` defines them, if it is loaded
        vars(builtins).setdefault(name, sys.exit)
    sys.breakpointhook = _no_debugger
    # Not imported here: loading these modules for programs that do not use them would take half a second.
    import_hooks.after("getpass", _patch_getpass)
    import_hooks.after("matplotlib", _patch_backend)
    import_hooks.after("matplotlib.figure", pictures.patch_figure)
    import_hooks.after("matplotlib.pyplot", pictures.patch_pyplot)
    for name in _SHOWERS:
        import_hooks.after(name, showing.patch)
    pid = os.getpid()

    def end() -> dict[str, Any]:
        if os.getpid() == pid:
            pictures.show_rest()
            showing.end()
        return {}

    return end


def _refusing(name: str) -> Callable[..., str]:
    def refuse(prompt: object = "", *_: object, **__: object) -> str:
        raise NoKeyboard(
            f"{name}({str(prompt)!r}) cannot prompt for input in a job. Assign the value in a cell before the "
            "training cell; small values are sent with the job."
        )

    return refuse


def _patch_getpass(module: Any) -> None:
    module.getpass = _refusing("getpass")


def _no_debugger(*_: object, **__: object) -> None:
    print("[breakpoint() was skipped: a job has no terminal]", file=sys.stderr)


def _patch_backend(matplotlib: Any) -> None:
    """Ignore requests for a window or a notebook backend: a job has no screen, which is no reason to fail."""
    use = matplotlib.use

    def with_files_only(backend: str, *, force: bool = True) -> None:
        if not _GUI.search(str(backend)):
            use(backend, force=force)

    matplotlib.use = with_files_only


class Redrawing:
    """A stream whose last line can be overwritten: its newline is held back until more text follows."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream
        self._is_held = False

    def write(self, text: str) -> int:
        if text:
            if self._is_held:
                self._stream.write("\n")
            self._is_held = text.endswith("\n")
            self._stream.write(text[:-1] if self._is_held else text)
        return len(text)

    def redraw(self) -> None:
        """Let the next text overwrite the last line."""
        if self._is_held:
            self._is_held = False
            self._stream.write("\r")

    def release(self) -> None:
        if self._is_held:
            self._is_held = False
            self._stream.write("\n")

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


class _Showing:
    """Replacements for IPython's display() and clear_output() that write to a log."""

    def __init__(self, pictures: Pictures) -> None:
        self._pictures = pictures
        self._redrawing: Redrawing | None = None

    def display(self, *objects: object, display_id: object = None, clear: bool = False, **_: Any) -> _Handle | None:
        """Print each object as text, and store its image, if it has one."""
        if clear:
            self.clear_output()
        elif display_id is not None:
            self._stream()
        for one in objects:
            text = _text_of(one)
            if text:
                print(text)
            self._pictures.keep(one)
        return None if display_id is None else _Handle(self)

    def show_value(self, one: object) -> None:
        """Show the value of a cell's last expression. A value that cannot be shown does not end the job."""
        if one is None:
            return
        try:
            text = _text_of(one) if type(one).__module__.startswith("IPython.") else repr(one)
            if text:
                print(text if len(text) <= _VALUE_MAX else f"{text[:_VALUE_MAX]}… ({len(text):,} characters)")
            self._pictures.keep(one)
        except Exception as error:  # noqa: BLE001 - its own code raises; as in a notebook, the cell itself has run
            print(f"[the value of the last expression cannot be shown: {type(error).__name__}: {error}]")

    def update(self, one: object, **_: Any) -> None:
        self.clear_output()
        self.display(one)

    def clear_output(self, wait: bool = False) -> None:
        """Let the next output replace the last line and the last images."""
        self._stream().redraw()
        self._pictures.redraw()

    def _stream(self) -> Redrawing:
        """Return the output stream that can overwrite its last line; install it on first use."""
        if self._redrawing is None:
            self._redrawing = Redrawing(sys.stdout)
            sys.stdout = self._redrawing
        return self._redrawing

    def patch(self, module: Any) -> None:
        stand_ins = {"display": self.display, "clear_output": self.clear_output, "update_display": self.update}
        for name, stand_in in stand_ins.items():
            if hasattr(module, name):
                setattr(module, name, stand_in)

    def end(self) -> None:
        if self._redrawing is not None:
            self._redrawing.release()


class _Handle:
    """The result of display(…, display_id=…): updates the displayed object in place."""

    def __init__(self, showing: _Showing) -> None:
        self._showing = showing

    def update(self, one: object, **_: Any) -> None:
        self._showing.update(one)

    def display(self, one: object, **_: Any) -> None:
        self._showing.display(one)


def _text_of(one: object) -> str:
    """Return the text that a notebook would show, without what only a browser can draw."""
    if isinstance(one, str):
        return one
    kind = type(one)
    if kind.__module__.startswith("IPython."):
        data = getattr(one, "data", None)
        if not isinstance(data, str):
            return ""
        return re.sub(r"<[^>]*>", "", data).strip() if kind.__name__ in ("HTML", "SVG") else data
    return repr(one)
