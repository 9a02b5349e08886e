"""Findings about a training, reported in its log and as notes on the job's card."""

from __future__ import annotations

import sys
from typing import Final

from jupyter_dlaas.learner.control.context import current
from jupyter_dlaas.wire.protocol import Note

__all__ = [
    "LEFT",
    "LOSS",
    "NOT_FINITE",
    "NOT_KEPT",
    "NOT_LOADED",
    "NOT_PREPARED",
    "OPTIMIZER",
    "REPEATED",
    "STOP_IGNORED",
    "THREAD_ENDED",
    "report",
]

NOT_FINITE: Final = "report_not_finite"
OPTIMIZER: Final = "report_optimizer"
LOSS: Final = "report_loss"
LEFT: Final = "report_left"
NOT_PREPARED: Final = "report_not_prepared"
NOT_KEPT: Final = "report_not_kept"
NOT_LOADED: Final = "report_not_loaded"
REPEATED: Final = "report_repeated"
STOP_IGNORED: Final = "report_stop_ignored"
THREAD_ENDED: Final = "report_thread_ended"


def report(code: str, text: str) -> None:
    """Print the text, bypassing log capture, and show it on the card. Call it once per finding."""
    print(f"[{text}]", file=sys.__stderr__, flush=True)
    context = current()
    if context is not None:
        context.control.report(Note(code=code, text=text))
