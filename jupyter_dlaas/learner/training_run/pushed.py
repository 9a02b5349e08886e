"""Access to objects that were sent with the job by value (`--push`)."""

from __future__ import annotations

import importlib
from typing import Any

from jupyter_dlaas.learner.control.context import current
from jupyter_dlaas.wire.codec import DlaasError

__all__ = ["pushed"]


class NothingPushed(DlaasError):
    """The error for a job without pushed objects."""

    code = "nothing_pushed"


def pushed(*names: str) -> Any:
    """Return the pushed objects with these names as a tuple; for a single name, return the object itself.

    All names of a job are loaded together, so that shared references (an optimiser and its model) stay shared. Raises
    NothingPushed.
    """
    context = current()
    path = None if context is None else context.job_dir / "inputs" / "pushed.bin"
    if path is None or not path.exists():
        raise NothingPushed(f"{', '.join(names)}: nothing was pushed with this job; use %%train --push NAME")
    load = importlib.import_module("jupyter_dlaas.transfer.pushed_objects").load_pushed
    return load(path, names)
