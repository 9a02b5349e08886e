"""Errors that end a thread of the program: in the log in terms of cells, and as a note on the job's card.

The program continues without the thread. It may later fail, or wait forever, for a reason that only this error shows.
"""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Final

from jupyter_dlaas.failures.cell_map import CellMap
from jupyter_dlaas.learner.process import failure_report
from jupyter_dlaas.learner.reporting.notes import THREAD_ENDED, report

__all__ = ["watch"]

_NOTES_MAX: Final = 3
_OURS: Final = "dlaas-"
"""Prefix of the names of the learner's own threads."""


def watch(cells: CellMap, own_folder: Path, log: Path) -> None:
    """Report errors that end threads, unless the program sets its own `threading.excepthook`."""
    notes: set[str] = set()

    def hook(args: threading.ExceptHookArgs) -> None:
        error, name = args.exc_value, args.thread.name if args.thread is not None else "unknown"
        if error is None or issubclass(type(error), SystemExit):  # it ends a thread silently
            return
        failure, text = failure_report.report(error, cells, own_folder)
        failure_report.show(f"Exception in thread {name}:\n{text}", log)
        at = f" in {failure.where.text}" if failure.where is not None else ""
        note = f'Thread "{name}" ended with an error{at}: {failure.what}'
        if note not in notes and len(notes) < _NOTES_MAX and not name.startswith(_OURS):
            notes.add(note)
            report(THREAD_ENDED, note)

    threading.excepthook = hook
