"""Metrics of SummaryWriter, in PyTorch and tensorboardX: what it writes for TensorBoard is shown on the card, too."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

from jupyter_dlaas.learner.environment import import_hooks
from jupyter_dlaas.learner.log_capture.recorder import Source, record_metrics

__all__ = ["install"]


def install() -> None:
    """Patch each SummaryWriter once it is loaded."""
    for name in ("torch.utils.tensorboard.writer", "tensorboardX.writer"):
        import_hooks.after(name, _patch)


def _patch(module: Any) -> None:
    cls = module.SummaryWriter
    scalar, scalars = cls.add_scalar, cls.add_scalars

    @functools.wraps(scalar)
    def add_scalar(self: Any, tag: str, scalar_value: Any, global_step: Any = None, *args: Any, **kwargs: Any) -> Any:
        done = scalar(self, tag, scalar_value, global_step, *args, **kwargs)
        _record({tag: scalar_value}, global_step)
        return done

    @functools.wraps(scalars)
    def add_scalars(
        self: Any, main_tag: str, tag_scalar_dict: Mapping[str, Any], global_step: Any = None, *args: Any, **kwargs: Any
    ) -> Any:
        done = scalars(self, main_tag, tag_scalar_dict, global_step, *args, **kwargs)
        _record({f"{main_tag}/{name}": value for name, value in tag_scalar_dict.items()}, global_step)
        return done

    cls.add_scalar, cls.add_scalars = add_scalar, add_scalars


def _record(values: Mapping[str, Any], global_step: Any) -> None:
    step = None if global_step is None else int(global_step)
    record_metrics(values, source=Source.WRITER, step=step)
