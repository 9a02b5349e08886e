"""A job of one learner, and libraries that take torchrun's variables for a gang.

Each learner has `LOCAL_RANK`, so that programs for torchrun run unchanged with one learner, too. accelerate wraps
models in DistributedDataParallel as soon as it finds the variable. In the notebook it does not, so that `model[0]` or
`model.fc` would fail in the job, and the model could not be returned.
"""

from __future__ import annotations

import functools
import os
from typing import Any, Final

from jupyter_dlaas.learner.environment import import_hooks

__all__ = ["train_alone"]

_VARIABLE: Final = "LOCAL_RANK"


def train_alone() -> None:
    """Let accelerate find this process as it finds a script or a notebook. Call it if the job never has a gang."""
    import_hooks.after("accelerate.state", _patch)


def _patch(module: Any) -> None:
    kind: Any = module.PartialState
    usual = kind.__init__

    @functools.wraps(usual)
    def init(self: Any, *arguments: Any, **options: Any) -> None:
        given = os.environ.pop(_VARIABLE, None)
        try:
            usual(self, *arguments, **options)
        finally:
            if given is not None:
                os.environ[_VARIABLE] = given

    kind.__init__ = init
