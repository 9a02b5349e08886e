"""The API for training code: `run = dlaas.run()`, and `pushed(...)` for objects sent by value.

Standard library only at import: torch and numpy are imported only if the user's own code uses them.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from jupyter_dlaas.learner.process.shell_commands import shell, shell_lines
    from jupyter_dlaas.learner.training_run.pushed import pushed
    from jupyter_dlaas.learner.training_run.rng_restore import random_anew, random_as_before
    from jupyter_dlaas.learner.training_run.run import Run, run

__all__ = ["Run", "pushed", "random_anew", "random_as_before", "run", "shell", "shell_lines"]

_HOME: Final = {
    "Run": "jupyter_dlaas.learner.training_run.run",
    "pushed": "jupyter_dlaas.learner.training_run.pushed",
    "random_anew": "jupyter_dlaas.learner.training_run.rng_restore",
    "random_as_before": "jupyter_dlaas.learner.training_run.rng_restore",
    "run": "jupyter_dlaas.learner.training_run.run",
    "shell": "jupyter_dlaas.learner.process.shell_commands",
    "shell_lines": "jupyter_dlaas.learner.process.shell_commands",
}


def __getattr__(name: str) -> object:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value: object = getattr(importlib.import_module(_HOME[name]), name)
    globals()[name] = value
    return value
