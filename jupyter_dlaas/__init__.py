"""Deep learning as a service in the notebook: `%load_ext jupyter_dlaas`, then `%%train` at the top of a cell.

`%%train?` lists the options of a cell, `%dlaas?` the verbs for jobs and pool. In Python: `submit` starts a script as a
job, `job` and `jobs` find jobs, `result` loads results, `pool` shows the devices. A training program uses `run`.

Importing this package loads nothing else (PEP 562): neither torch nor widgets nor any part of the server.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from IPython.core.interactiveshell import InteractiveShell

    from jupyter_dlaas._version import __version__
    from jupyter_dlaas.api.jobs import Job, JobFailed, JobHalted, NotRestored, job, jobs, pool, result, submit, train
    from jupyter_dlaas.learner import Run, pushed, random_anew, random_as_before, run, shell, shell_lines
    from jupyter_dlaas.wire.codec import DlaasError, Invalid
    from jupyter_dlaas.wire.protocol import Forbidden, NotAllowed, NotFound, Refused, Unavailable

_MODULE_OF: Final = {
    "Job": "jupyter_dlaas.api.jobs",
    "JobFailed": "jupyter_dlaas.api.jobs",
    "JobHalted": "jupyter_dlaas.api.jobs",
    "NotRestored": "jupyter_dlaas.api.jobs",
    "job": "jupyter_dlaas.api.jobs",
    "jobs": "jupyter_dlaas.api.jobs",
    "pool": "jupyter_dlaas.api.jobs",
    "result": "jupyter_dlaas.api.jobs",
    "submit": "jupyter_dlaas.api.jobs",
    "train": "jupyter_dlaas.api.jobs",
    "DlaasError": "jupyter_dlaas.wire.codec",
    "Invalid": "jupyter_dlaas.wire.codec",
    "Forbidden": "jupyter_dlaas.wire.protocol",
    "NotAllowed": "jupyter_dlaas.wire.protocol",
    "NotFound": "jupyter_dlaas.wire.protocol",
    "Refused": "jupyter_dlaas.wire.protocol",
    "Unavailable": "jupyter_dlaas.wire.protocol",
    "Run": "jupyter_dlaas.learner",
    "pushed": "jupyter_dlaas.learner",
    "random_anew": "jupyter_dlaas.learner",
    "random_as_before": "jupyter_dlaas.learner",
    "run": "jupyter_dlaas.learner",
    "shell": "jupyter_dlaas.learner",
    "shell_lines": "jupyter_dlaas.learner",
    "__version__": "jupyter_dlaas._version",
}
__all__ = [
    "DlaasError",
    "Forbidden",
    "Invalid",
    "Job",
    "JobFailed",
    "JobHalted",
    "NotAllowed",
    "NotFound",
    "NotRestored",
    "Refused",
    "Run",
    "Unavailable",
    "__version__",
    "job",
    "jobs",
    "load_ipython_extension",
    "pool",
    "pushed",
    "random_anew",
    "random_as_before",
    "result",
    "run",
    "shell",
    "shell_lines",
    "submit",
    "train",
    "unload_ipython_extension",
]


def __getattr__(name: str) -> object:
    if name not in _MODULE_OF:
        raise AttributeError(f"module 'jupyter_dlaas' has no attribute {name!r}")
    value: object = getattr(importlib.import_module(_MODULE_OF[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)


def load_ipython_extension(shell: InteractiveShell) -> None:
    """Add `%%train` and `%dlaas`, and the name `dlaas` if it is unbound. Called by `%load_ext jupyter_dlaas`."""
    from jupyter_dlaas.kernel.magics import load

    load(shell)


def unload_ipython_extension(shell: InteractiveShell) -> None:
    """Remove the magics and the history hook. Called by `%unload_ext jupyter_dlaas`."""
    from jupyter_dlaas.kernel.magics import unload

    unload(shell)


def _jupyter_labextension_paths() -> list[dict[str, str]]:
    return [{"src": "labextension", "dest": "jupyter-dlaas"}]
