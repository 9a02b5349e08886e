"""tqdm in a job: text bars in every variant, redrawn at most twice a second, and read for metrics and progress."""

from __future__ import annotations

import functools
import importlib
import sys
import time
from collections.abc import Iterator
from typing import Any, Final

from jupyter_dlaas.learner.environment import import_hooks
from jupyter_dlaas.learner.log_capture.bar_position import Bar, Bars
from jupyter_dlaas.learner.log_capture.log_position import Place
from jupyter_dlaas.learner.log_capture.recorder import Source, record_metrics, record_progress, recorder
from jupyter_dlaas.learner.log_capture.vocabulary import COUNTERS, EPOCHS, NEVER, may_matter, words_of
from jupyter_dlaas.learner.reporting.progress_bars import OPEN, Numbered

__all__ = ["install"]

_EVERY_S: Final = 0.5
_REPORT_S: Final = 0.2
_MININTERVAL: Final = 6  # the position among tqdm's parameters
_PLAIN: Final = (range, list, tuple, str, dict, set)
"""Iterables whose items are yielded once each."""


def install(place: Place | None) -> None:
    """Patch tqdm once it is loaded. `place`: the position from printed lines; None: bars are only drawn, not read."""
    import_hooks.after("tqdm.std", lambda std: _patch(std, None if place is None else _Reader(place)))
    import_hooks.after("tqdm.notebook", _to_text)
    import_hooks.after("tqdm", lambda tqdm: setattr(tqdm, "__getattr__", _variant))


def _variant(name: str) -> Any:
    """Import `tqdm.notebook` after a plain `import tqdm`: in a kernel, another module has already done so."""
    if name in ("notebook", "auto", "autonotebook"):
        return importlib.import_module(f"tqdm.{name}")
    raise AttributeError(f"module 'tqdm' has no attribute {name!r}", name=name)


def _to_text(module: Any) -> None:
    """Replace the bar of `tqdm.notebook` with the text bar, with or without ipywidgets."""
    std = sys.modules["tqdm.std"]
    module.tqdm = module.tqdm_notebook = std.tqdm
    module.trange = module.tnrange = std.trange


class _Reader:
    """The reader of bars in rank 0 of a job."""

    def __init__(self, place: Place) -> None:
        self._bars = Bars(place)
        self._reported_s = 0.0

    def opened(self, bar: Any) -> Bar | None:
        if recorder() is None:
            return None
        total = None if bar.total is None else int(bar.total)
        mine = Bar(total=total, counts_numbers=isinstance(bar.iterable, range), label=bar.desc or "", done=int(bar.n))
        self._bars.add(mine)
        self.tell(is_due=True)
        self.said(bar.desc or "")
        return mine

    def moved(self, mine: Bar, bar: Any, *, iterates: bool) -> None:
        if not iterates:
            mine.done = int(bar.n)
        self.tell()

    def closed(self, mine: Bar, bar: Any) -> None:
        mine.done = int(bar.n)
        self.tell(is_due=True)
        self._bars.remove(mine)
        one = recorder()
        if not self._bars.open and one is not None:
            one.release(Source.BAR)

    def tell(self, *, is_due: bool = False) -> None:
        now = time.monotonic()
        if not is_due and now - self._reported_s < _REPORT_S:
            return
        self._reported_s = now
        spot = self._bars.spot()
        if spot is not None:
            record_progress(
                source=Source.BAR,
                epoch=spot.done,
                epochs=spot.epochs,
                step=spot.step,
                steps=spot.steps,
                fraction=spot.fraction,
            )

    def said(self, text: str) -> None:
        """Read a description or a postfix as text: "loss: 0.5"."""
        if not may_matter(text):
            return
        from jupyter_dlaas.learner.log_capture.line_parser import (
            Recogniser,  # its patterns take milliseconds to compile
        )

        found = Recogniser().read(text)
        if found is not None and found.values:
            self._record(found.values)

    def named(self, values: dict[str, Any]) -> None:
        """Record the numbers given to `set_postfix`, which the program chose to display."""
        found = {}
        for name, value in values.items():
            if _is_watched(name):
                found[name] = _plain(value)
        if found:
            self._record(found)

    def _record(self, values: dict[str, Any]) -> None:
        self.tell(is_due=True)  # so that the point has the bar's current step
        record_metrics(values, source=Source.BAR)


@functools.lru_cache(100)
def _is_watched(name: str) -> bool:
    words = words_of(name)
    return bool(words) and words[-1] not in EPOCHS | COUNTERS and not NEVER.intersection(words)


def _plain(value: Any) -> Any:
    """Return a number given as text as a float: "0.512", "92.3%"."""
    if isinstance(value, str):
        try:
            return float(value.strip().removesuffix("%")) / (100 if value.strip().endswith("%") else 1)
        except ValueError:
            return value
    return value


def _patch(std: Any, reader: _Reader | None) -> None:
    """Wrap tqdm's methods in the base class of all its variants."""
    cls = std.tqdm
    begin, walk, update, close = cls.__init__, cls.__iter__, cls.update, cls.close

    @functools.wraps(begin)
    def begun(self: Any, *args: Any, **kwargs: Any) -> None:
        kwargs.pop("display", None)  # a parameter of the notebook's variant
        if len(args) <= _MININTERVAL:
            kwargs.setdefault("mininterval", _EVERY_S)
        self._dlaas_bar = None
        self._dlaas_drawn_s = 0.0
        begin(self, *args, **kwargs)
        if not self.disable:
            OPEN.add(self)
        if reader is not None and not self.disable:
            self._dlaas_bar = reader.opened(self)

    @functools.wraps(walk)
    def walked(self: Any) -> Iterator[Any]:
        mine: Bar | None = getattr(self, "_dlaas_bar", None)
        self._dlaas_iterates = True
        if not self.disable and not isinstance(self.iterable, _PLAIN):
            yield from _walk(self, mine)
            return
        if mine is None:
            yield from walk(self)
            return
        first = int(self.n)
        for count, one in enumerate(walk(self), first):
            mine.done = count
            yield one

    @functools.wraps(update)
    def moved(self: Any, n: float | None = 1) -> Any:
        done = update(self, n)
        mine = getattr(self, "_dlaas_bar", None)
        if mine is not None and reader is not None:
            reader.moved(mine, self, iterates=getattr(self, "_dlaas_iterates", False))
        return done

    @functools.wraps(close)
    def closed(self: Any) -> None:
        close(self)
        OPEN.discard(self)
        mine, self._dlaas_bar = getattr(self, "_dlaas_bar", None), None
        if mine is not None and reader is not None:
            reader.closed(mine, self)

    cls.__init__, cls.__iter__, cls.update, cls.close = begun, walked, moved, closed
    _patch_words(cls, reader)


def _walk(bar: Any, mine: Bar | None) -> Iterator[Any]:
    """Iterate as tqdm does, but with `bar.n` as the only count, so that it can be restored when a step is repeated."""
    numbered = bar.iterable if isinstance(bar.iterable, Numbered) else None
    try:
        for one in bar.iterable:
            if numbered is not None and numbered.index > bar.n:  # a restart continued in the middle
                bar.initial = bar.n = bar.last_print_n = numbered.index
            if mine is not None:
                mine.done = int(bar.n)
            yield one
            bar.update(1 if numbered is None else max(0, numbered.index + 1 - bar.n))
    finally:
        bar.close()


def _patch_words(cls: Any, reader: _Reader | None) -> None:
    """Wrap the methods that set a bar's text, and limit their redraws.

    tqdm redraws the bar on each call, up to ten thousand times a second.
    """
    postfix, postfix_str = cls.set_postfix, cls.set_postfix_str
    description, description_str = cls.set_description, cls.set_description_str

    def is_due(self: Any) -> bool:
        now = time.monotonic()
        if now - getattr(self, "_dlaas_drawn_s", 0.0) < _EVERY_S:
            return False
        self._dlaas_drawn_s = now
        return True

    @functools.wraps(postfix)
    def set_postfix(self: Any, ordered_dict: Any = None, refresh: bool | None = True, **kwargs: Any) -> None:
        postfix(self, ordered_dict, bool(refresh) and is_due(self), **kwargs)
        if reader is not None and getattr(self, "_dlaas_bar", None) is not None:
            reader.named({**dict(ordered_dict or {}), **kwargs})

    def with_text(original: Any) -> Any:
        @functools.wraps(original)
        def said(self: Any, text: str | None = None, refresh: bool | None = True) -> None:
            original(self, text or "", bool(refresh) and is_due(self))
            mine = getattr(self, "_dlaas_bar", None)
            if reader is not None and mine is not None:
                if original is not postfix_str:
                    mine.label = text or ""
                reader.said(text or "")

        return said

    cls.set_postfix = set_postfix
    cls.set_postfix_str = with_text(postfix_str)
    cls.set_description = with_text(description)
    cls.set_description_str = with_text(description_str)
