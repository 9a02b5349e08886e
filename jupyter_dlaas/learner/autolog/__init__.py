"""Automatic metrics, progress, halt and resume for frameworks: hooks that run when a framework is imported.

Nothing is loaded for programs that use none. If a hook fails with an unknown version of a framework, the log reports
it, and the training continues without it.
"""

from __future__ import annotations

import functools
import importlib
from typing import Any, Final

from jupyter_dlaas.learner.environment import import_hooks

__all__ = ["install"]

_HOOKS: Final = {
    "keras": "keras",
    "lightning.pytorch.trainer.trainer": "lightning",
    "pytorch_lightning.trainer.trainer": "lightning",
    "transformers.trainer": "huggingface",
    "fastai.learner": "fastai",
    "xgboost.training": "boosting",
    "lightgbm.engine": "boosting",
    "sklearn.base": "sklearn",
}
"""Imported module -> our module that hooks into it."""


def install() -> None:
    """Register the hooks of all supported frameworks."""
    for name, part in _HOOKS.items():
        import_hooks.after(name, functools.partial(_hook, part))


def _hook(part: str, module: Any) -> None:
    from jupyter_dlaas.learner.autolog.fit_calls import print_once

    try:
        importlib.import_module(f"jupyter_dlaas.learner.autolog.{part}").hook(module)
    except Exception as error:  # noqa: BLE001 - an unknown version may lack anything; the program must not suffer
        version = getattr(module, "__version__", "")
        print_once(
            f"no automatic metrics from {module.__name__} {version}: {type(error).__name__}: {error}; log with run.log"
        )
