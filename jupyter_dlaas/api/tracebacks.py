"""Errors of the public API without this package's frames: the user's line, then the sentence."""

from __future__ import annotations

import functools
from collections.abc import Callable
from inspect import isfunction
from typing import ParamSpec, TypeVar

from jupyter_dlaas.wire.codec import DlaasError

__all__ = ["hides_frames", "hides_frames_of_methods"]

P = ParamSpec("P")
R = TypeVar("R")
C = TypeVar("C")


def hides_frames(function: Callable[P, R]) -> Callable[P, R]:
    """Decorate a public function: its DlaasErrors leave it without the frames in which they were raised.

    A DlaasError is an answer to the user (no such job, not permitted), not a fault of this package. IPython and pytest
    hide the remaining frame, by `__tracebackhide__`.
    """

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        __tracebackhide__ = True
        try:
            return function(*args, **kwargs)
        except DlaasError as error:
            raise error.with_traceback(None) from None

    return call


def hides_frames_of_methods(cls: type[C]) -> type[C]:
    """Decorate a class: like `hides_frames` for each of its public methods."""
    for name, method in list(vars(cls).items()):
        if isfunction(method) and not name.startswith("_"):
            setattr(cls, name, hides_frames(method))
    return cls
