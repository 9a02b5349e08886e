"""Error isolation for callbacks: an error is reported once in the log, and never breaks the training."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeVar

from jupyter_dlaas.learner.autolog.fit_calls import print_once
from jupyter_dlaas.learner.checkpoint.checkpoint_files import CheckpointError

__all__ = ["attempt", "guarded", "made_of"]

F = TypeVar("F", bound=Callable[..., Any])


def guarded(method: F) -> F:
    """Disable a callback's method after its first error. `Leave` is not an Exception, and passes."""

    @functools.wraps(method)
    def wrapper(self: Any, *args: Any, **kwargs: Any) -> Any:
        if getattr(self, "_is_broken", False):
            return None
        try:
            return method(self, *args, **kwargs)
        except CheckpointError:
            raise
        except Exception as error:  # noqa: BLE001 - an unknown version may pass us anything
            self._is_broken = True
            print_once(
                f"automatic metrics stopped: {method.__qualname__}: {type(error).__name__}: {error}; log with run.log"
            )
            return None

    return wrapper  # type: ignore[return-value]  # the same signature


def attempt(prepare: Callable[[], Any]) -> Any:
    """Return what is needed to observe a call; None if that fails, so that the call runs unobserved.

    So a call with wrong arguments is rejected by its framework with its own error.
    """
    try:
        return prepare()
    except CheckpointError:  # otherwise the call would train from step 0
        raise
    except Exception as error:  # noqa: BLE001 - see above
        print_once(f"no automatic metrics from this call: {type(error).__name__}: {error}")
        return None


def made_of(watch: type, base: Any) -> Any:
    """Return a framework's callback class made of our class, without importing the framework here."""
    return type("Autolog", (watch, base), {"__module__": watch.__module__})
