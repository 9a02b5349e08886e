"""What watches a training must never break it: told once in the log, and quiet from then on."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeVar

from jupyter_dlaas.learner.autolog.fit_calls import tell
from jupyter_dlaas.learner.checkpoint.checkpoint_files import CheckpointError

__all__ = ["attempt", "guarded", "made_of"]

F = TypeVar("F", bound=Callable[..., Any])


def guarded(method: F) -> F:
    """A callback's method that is left out from its first error on. (`Leave` is no error, and passes.)"""

    @functools.wraps(method)
    def wrapper(self: Any, *args: Any, **kwargs: Any) -> Any:
        if getattr(self, "_is_broken", False):
            return None
        try:
            return method(self, *args, **kwargs)
        except CheckpointError:
            raise
        except Exception as error:  # noqa: BLE001 - a version that we do not know may hand us anything
            self._is_broken = True
            tell(f"no curves from here on: {method.__qualname__}: {type(error).__name__}: {error}; log with run.log")
            return None

    return wrapper  # type: ignore[return-value]  # the same signature


def attempt(prepare: Callable[[], Any]) -> Any:
    """What is needed to watch a call; None where that fails: then the call is made without us.

    So a call with wrong arguments, too, is refused by its framework in its own words.
    """
    try:
        return prepare()
    except CheckpointError:  # without us the call would train from step 0
        raise
    except Exception as error:  # noqa: BLE001 - see above
        tell(f"no curves from this call: {type(error).__name__}: {error}")
        return None


def made_of(watch: type, base: Any) -> Any:
    """A class of ours as a framework's callback, without importing the framework to write it."""
    return type("Autolog", (watch, base), {"__module__": watch.__module__})
