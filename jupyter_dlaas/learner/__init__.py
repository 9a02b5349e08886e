"""What training code uses: `run = dlaas.run()`, and `pushed(...)` for objects that travelled by value.

Standard library only at import: torch and numpy are loaded where the user's own code uses them.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from jupyter_dlaas.learner.inputs import pushed
    from jupyter_dlaas.learner.running import Run, run
    from jupyter_dlaas.learner.shell_commands import shell, shell_lines
    from jupyter_dlaas.learner.streams import random_anew, random_as_before

__all__ = ["Run", "pushed", "random_anew", "random_as_before", "run", "shell", "shell_lines"]

_HOME: Final = {
    "Run": "jupyter_dlaas.learner.running",
    "pushed": "jupyter_dlaas.learner.inputs",
    "random_anew": "jupyter_dlaas.learner.streams",
    "random_as_before": "jupyter_dlaas.learner.streams",
    "run": "jupyter_dlaas.learner.running",
    "shell": "jupyter_dlaas.learner.shell_commands",
    "shell_lines": "jupyter_dlaas.learner.shell_commands",
}


def __getattr__(name: str) -> object:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value: object = getattr(importlib.import_module(_HOME[name]), name)
    globals()[name] = value
    return value
