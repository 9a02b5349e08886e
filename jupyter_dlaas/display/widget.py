"""A job as core ipywidgets, for front ends without the JupyterLab extension (VS Code, Colab) or on request.

A background thread follows the job and sets the widgets' values, which reach the page even while a cell runs.
Buttons only call the REST API.
"""

from __future__ import annotations

import html
import os
import sys
import threading
from collections import deque
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from jupyter_dlaas.api.jobs import Job
from jupyter_dlaas.client.follow import Follower, LogLines
from jupyter_dlaas.display import formatting
from jupyter_dlaas.display.html import cleaned
from jupyter_dlaas.wire.codec import DlaasError, decode, decode_float
from jupyter_dlaas.wire.protocol import ActionId, JobView, Progress, State, is_report

if TYPE_CHECKING:
    from ipywidgets import VBox

__all__ = ["JobWidget", "is_wanted", "widget"]

_LINES: Final = 12
_LINE_MAX: Final = 200
_COLOURS: Final[Mapping[str, str]] = {"good": "success", "bad": "danger", "warn": "warning", "active": "info"}
_LABELS: Final = ((ActionId.HALT, "Halt"), (ActionId.RESUME, "Resume"), (ActionId.CANCEL, "Cancel"))


def is_wanted(space: Mapping[str, Any] | None = None, environ: Mapping[str, str] | None = None) -> bool:
    """Return whether no extension can run here: a kernel of VS Code or Colab. `space`: the user's namespace."""
    values = os.environ if environ is None else environ
    if "COLAB_RELEASE_TAG" in values or "COLAB_JUPYTER_IP" in values or "google.colab" in sys.modules:
        return True
    if space is not None and "__vsc_ipynb_file__" in space:
        return True
    # A Jupyter server that was started in a terminal of VS Code passes these on too, but names its notebook.
    return "JPY_SESSION_NAME" not in values and ("VSCODE_PID" in values or "VSCODE_CWD" in values)


def widget(job: Job) -> VBox:
    """Return a view of the job that lives as long as the kernel; closing it ends its thread."""
    made = JobWidget(job)
    made.start()
    return made.box


class JobWidget:
    """Widgets of one job and the thread that updates them."""

    def __init__(self, job: Job) -> None:
        import ipywidgets

        self._job = Job(job.last_view, job.follow().client)
        self._lines: deque[str] = deque(maxlen=_LINES)
        self._values: dict[str, float] = {}
        self._is_closed = threading.Event()
        self._unconfirmed: ActionId | None = None
        self.head = ipywidgets.HTML()
        self.progress = ipywidgets.FloatProgress(min=0.0, max=1.0, layout=ipywidgets.Layout(width="100%"))
        self.less = ipywidgets.Button(description="−", tooltip="Remove one learner", layout={"width": "2.5em"})
        self.size = ipywidgets.Label()
        self.more = ipywidgets.Button(description="+", tooltip="Add one learner", layout={"width": "2.5em"})
        self.buttons = {one: ipywidgets.Button(description=label, tooltip=label) for one, label in _LABELS}
        self.message = ipywidgets.Label()
        self.log = ipywidgets.HTML()
        controls = ipywidgets.HBox([self.less, self.size, self.more, *self.buttons.values(), self.message])
        self.box = ipywidgets.VBox([self.head, self.progress, controls, self.log])
        self.less.on_click(lambda _: self._scale(-1))
        self.more.on_click(lambda _: self._scale(+1))
        for action, button in self.buttons.items():
            button.on_click(lambda _, action=action: self._press(action))
        self.box.observe(self._on_comm, names="comm")
        self._draw(self._job.last_view)

    def start(self) -> threading.Thread:
        """Follow the job until it ends or the widget is closed."""
        thread = threading.Thread(target=self._follow, name=f"dlaas-widget-{self._job.id}", daemon=True)
        thread.start()
        return thread

    def _on_comm(self, change: Mapping[str, Any]) -> None:
        if change["new"] is None:  # the box was closed
            self._is_closed.set()

    # -------------------------------------------------------------------------------------------------- to the pool

    def _scale(self, by: int) -> None:
        wish = self._view.size.wish + by
        self._send(lambda: self._job.follow().client.change(self._job.id, learners=max(1, wish)))

    def _press(self, action: ActionId) -> None:
        """Perform an action. If it loses work, ask for a second press first."""
        loss = next((offered.confirm for offered in self._view.actions if offered.id is action), None)
        if loss is not None and self._unconfirmed is not action:
            self._unconfirmed = action
            self.message.value = f"{loss} Press {dict(_LABELS)[action]} again to confirm."
            return
        self._unconfirmed = None
        self._send(lambda: self._job.follow().client.act(self._job.id, str(action)))

    def _send(self, request: Any) -> None:
        """Send a button's request and show the pool's answer beside the buttons."""
        try:
            self._draw(request())
            self.message.value = ""
        except DlaasError as error:
            self.message.value = str(error)

    # ------------------------------------------------------------------------------------------------ from the pool

    def _follow(self) -> None:
        client = self._job.follow().client
        lines = LogLines(is_marked=self._view.size.max > 1)
        reader = Follower(client.without_start(), self._job.id, is_lossless=False)
        while not self._is_closed.is_set():
            is_over = reader.view is not None and reader.view.state.is_final
            yielded = 0
            try:
                for message in reader.once(0.0 if is_over else None):
                    yielded += message["type"] != "progress"
                    self._take(message, reader.view, lines)
            except DlaasError as error:
                self.message.value = f"not connected: {error}"
                if self._is_closed.wait(5.0):
                    return
                continue
            if is_over and not yielded:
                return

    def _take(self, message: dict[str, Any], view: JobView | None, lines: LogLines) -> None:
        kind = message["type"]
        if kind == "job" and view is not None:
            self._draw(view)
        elif kind == "progress":
            self._draw_progress(decode(Progress, message["progress"], unknown="ignore"))
        elif kind == "metrics":
            for record in message["records"]:
                self._values.update((name, decode_float(value)) for name, value in record.get("values", {}).items())
            self._draw_head()
        elif kind in ("log", "log_skipped"):
            self._lines.extend(cleaned(line)[:_LINE_MAX] for line in lines.feed(message))
            text = html.escape("\n".join(self._lines))
            self.log.value = f"<details open><summary>Log</summary><pre>{text}</pre></details>"

    # ------------------------------------------------------------------------------------------------------ drawing

    def _draw(self, view: JobView) -> None:
        self._view = view
        each = max(1, view.gpus_per_learner)
        held, wish = view.size.held * each, view.size.wish * each
        arrow = f" → {wish}" if held != wish and not view.state.is_final else ""
        self.size.value = f"{held}{arrow} {view.unit}{'' if held == 1 else 's'}"
        actions = {action.id: action for action in view.actions}
        scale = actions.get(ActionId.SCALE)
        can_scale = scale is not None and scale.enabled
        self.less.disabled = not can_scale or view.size.wish <= view.size.min
        self.more.disabled = not can_scale or view.size.wish >= view.size.max
        for one, button in self.buttons.items():
            action = actions.get(one)
            button.layout.display = None if action is not None else "none"
            button.disabled = action is None or not action.enabled
            button.tooltip = (action.why_not if action is not None else None) or button.description
        self.progress.bar_style = _COLOURS.get(view.tone, "")
        if view.state is State.COMPLETED:
            self.progress.value = 1.0
        elif view.progress is not None:
            self._draw_progress(view.progress)
        self._draw_head()

    def _draw_progress(self, progress: Progress) -> None:
        self.progress.value = progress.fraction or 0.0
        self.progress.description = formatting.percent(progress.fraction) if progress.fraction is not None else ""
        self.progress.tooltip = formatting.place(progress.epoch, progress.epochs, progress.step)

    def _draw_head(self) -> None:
        view = self._view
        values = [view.state_label or str(view.state), view.status_line, view.reason]
        if view.failure is not None:
            where = view.failure.where
            place = f"{where.label}, line {where.line}" if where is not None else ""
            values += [view.failure.what, place, view.failure.advice]
        values += [f"{name} {formatting.number(value)}" for name, value in list(self._values.items())[:4]]
        values += [note.text for note in view.notes if is_report(note)]
        rest = " · ".join(html.escape(part) for part in values if part)
        self.head.value = f"<b>{html.escape(view.id)}</b> · {rest}"
