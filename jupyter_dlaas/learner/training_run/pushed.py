"""Objects that travelled with the job by value (`--push`)."""

from __future__ import annotations

import importlib
from typing import Any

from jupyter_dlaas.learner.control.context import current
from jupyter_dlaas.wire.codec import DlaasError

__all__ = ["pushed"]


class NothingPushed(DlaasError):
    """The job brought no objects along."""

    code = "nothing_pushed"


def pushed(*names: str) -> Any:
    """The pushed objects of these names, as one tuple (a single name: the object itself).

    All names of a job are read together, so that what they share (an optimiser and its model) stays shared.
    """
    context = current()
    path = None if context is None else context.job_dir / "inputs" / "pushed.bin"
    if path is None or not path.exists():
        raise NothingPushed(f"{', '.join(names)}: nothing was pushed with this job; use %%train --push NAME")
    load = importlib.import_module("jupyter_dlaas.transfer.pushed_objects").load_pushed
    return load(path, names)
