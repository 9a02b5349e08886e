"""A step that is made again after others were lost in it: what the program's own objects were, and how they are again.

Plain values are noted at the start of the step. Everything else is noted only once the step has failed, in its backward
pass, before the program goes on with the rest of it (a moving average of the weights, a schedule, a counter): that rest
is undone. So steps that count pay for plain values alone. What else the program changes before the backward pass is
found when the step is made again, and reported.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from jupyter_dlaas.learner.checkpoint import user_state
from jupyter_dlaas.learner.reporting.notes import REPEATED, report

if TYPE_CHECKING:
    from jupyter_dlaas.learner.control.context import Context
    from jupyter_dlaas.learner.training_run.run import Run

__all__ = ["RepeatedStep"]

_LISTED: Final = 6


class RepeatedStep:
    """The state of a program within one step, to go back to."""

    def __init__(self, run: Run, context: Context) -> None:
        self._run, self._context = run, context
        self._names = run._namespace.mark()
        self._state = user_state.mark(run.state)
        self._at_failure: Any = None
        self._why = ""
        self._step = run._step + 1

    def note(self) -> None:
        """The step has failed: note what all objects are, before the program changes them by what does not count."""
        try:
            self._at_failure = self._snapshot()
            self._at_failure.keep_arrays(self._run._namespace)
        except Exception as error:  # noqa: BLE001 - objects of any class may refuse in any way; training goes on
            self._why = f"{type(error).__name__}: {error}"

    def _snapshot(self) -> Any:
        run = self._run
        module = importlib.import_module("jupyter_dlaas.learner.checkpoint.namespace")
        objects = [one for _, one in run._objects]
        return module.Namespace(self._context.script, run._namespace.files, objects, also={"run.state": run.state})

    def undo(self) -> None:
        """The step is over and is made again: everything is what it was at its start."""
        run = self._run
        changed: list[str] = []
        if self._at_failure is not None:
            try:
                changed = self._at_failure.revert()
            except Exception as error:  # noqa: BLE001 - as above
                self._why = f"{type(error).__name__}: {error}"
            self._at_failure = None
        run._namespace.back_to(self._names)
        user_state.back_to(run.state, self._state)
        if self._why:
            self._tell(f"what the loop changes beside the prepared objects ({self._why})")
        elif changed:
            self._tell_of(changed)

    def watch_again(self) -> Callable[[], None] | None:
        """Return what is to be called before the optimiser's step when this step is made again, at most once."""
        run = self._run
        marked = set[int]().union(*map(user_state.marked_objects, (*self._names.values(), self._state)))
        try:
            before = self._snapshot()
        except Exception as error:  # noqa: BLE001 - as above
            self._tell_unwatched(error)
            return None

        def compare() -> None:
            run._gate.on_step = None
            try:
                found = before.changed_in_place()
            except Exception as error:  # noqa: BLE001 - as above
                self._tell_unwatched(error)
                return
            self._tell_of([path for path, one in found.items() if id(one) not in marked])

        return compare

    def _tell_unwatched(self, error: Exception) -> None:
        self._tell(f"what the loop changes before its backward pass ({type(error).__name__}: {error})")

    def _tell_of(self, paths: list[str]) -> None:
        if paths:
            self._tell(", ".join(f"`{path}`" for path in paths[:_LISTED]))

    def _tell(self, said: str) -> None:
        if not self._run.rank:
            report(
                REPEATED,
                f"Step {self._step} is made again, as a learner was lost in it: {said} may count it twice. "
                "Give models, optimisers and schedules to run.prepare, and keep counts in plain values or run.state.",
            )
