"""Rollback of the program's own objects when a step is repeated because learners were lost in it.

Plain values are recorded at the start of each step. All other objects are recorded only once the step has failed in its
backward pass, before the program runs the rest of it (a moving average of the weights, a scheduler, a counter). Those
later changes are undone. So successful steps only pay for plain values. Changes that the program makes before the
backward pass are detected while the step is repeated, and reported.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from jupyter_dlaas.learner.checkpoint import user_state
from jupyter_dlaas.learner.reporting import progress_bars
from jupyter_dlaas.learner.reporting.notes import REPEATED, report

if TYPE_CHECKING:
    from jupyter_dlaas.learner.control.context import Context
    from jupyter_dlaas.learner.training_run.state import RunState

__all__ = ["RepeatedStep"]

_LISTED: Final = 6


class RepeatedStep:
    """The state of a program within one step, for a rollback."""

    def __init__(self, run: RunState, context: Context) -> None:
        self._run, self._context = run, context
        self._names = run.namespace.mark()
        self._state = user_state.mark(run.user_values)
        self._bars = progress_bars.mark()
        self._at_failure: Any = None
        self._why = ""
        self._step = run.step + 1

    def note(self) -> None:
        """Record all objects when the step has failed, before the program changes them in the rest of the step."""
        try:
            self._at_failure = self._snapshot()
            self._at_failure.keep_arrays(self._run.namespace)
        except Exception as error:  # noqa: BLE001 - objects of any class may fail in any way; training continues
            self._why = f"{type(error).__name__}: {error}"

    def _snapshot(self) -> Any:
        run = self._run
        module = importlib.import_module("jupyter_dlaas.learner.checkpoint.namespace")
        objects = [one for _, one in run.objects]
        return module.Namespace(self._context.script, run.namespace.files, objects, also={"run.state": run.user_values})

    def undo(self) -> None:
        """Restore the state at the start of the failed step, and report what may be counted twice."""
        run = self._run
        changed: list[str] = []
        if self._at_failure is not None:
            try:
                changed = self._at_failure.revert()
            except Exception as error:  # noqa: BLE001 - as above
                self._why = f"{type(error).__name__}: {error}"
            self._at_failure = None
        run.namespace.back_to(self._names)
        user_state.back_to(run.user_values, self._state)
        progress_bars.back_to(self._bars)
        if self._why:
            self._report(f"what the loop changes beside the prepared objects ({self._why})")
        elif changed:
            self._tell_of(changed)

    def watch_again(self) -> Callable[[], None] | None:
        """Return a check to call once before the optimiser's step when this step is repeated; None on an error."""
        run = self._run
        marked = set[int]().union(*map(user_state.marked_objects, (*self._names.values(), self._state)))
        try:
            before = self._snapshot()
        except Exception as error:  # noqa: BLE001 - as above
            self._tell_unwatched(error)
            return None

        def compare() -> None:
            run.gate.on_step = None
            try:
                found = before.changed_in_place()
            except Exception as error:  # noqa: BLE001 - as above
                self._tell_unwatched(error)
                return
            self._tell_of([path for path, one in found.items() if id(one) not in marked])

        return compare

    def _tell_unwatched(self, error: Exception) -> None:
        self._report(f"what the loop changes before its backward pass ({type(error).__name__}: {error})")

    def _tell_of(self, paths: list[str]) -> None:
        if paths:
            self._report(", ".join(f"`{path}`" for path in paths[:_LISTED]))

    def _report(self, said: str) -> None:
        if not self._run.rank:
            report(
                REPEATED,
                f"Step {self._step} is repeated, because a learner was lost in it: {said} may count it twice. "
                "Pass models, optimisers and schedules to run.prepare, and keep counters in plain values or run.state.",
            )
