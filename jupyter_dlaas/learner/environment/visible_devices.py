"""CUDA_VISIBLE_DEVICES in a learner: a program's numbers count the GPUs that the pool has assigned.

Many notebooks set it in their first cell, for the machine on which they were written. In a job it would replace the
assignment: the learner would train on a GPU of another job, or find none.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable
from typing import Final

__all__ = ["NAME", "keep_assigned", "within_assigned"]

NAME: Final = "CUDA_VISIBLE_DEVICES"
_NONE: Final = ("-1", "", "none", "void", "NoDevFiles")
"""Values by which programs ask for no GPU."""


def within_assigned(value: str, assigned: str) -> tuple[str, bool]:
    """Return which of the assigned GPUs a program's value selects, and whether it names no others.

    Numbers select by position; as in CUDA, the list ends at the first invalid one. If a value names other GPUs, as many
    of those assigned take their place.
    """
    mine = [one for one in assigned.split(",") if one]
    wanted = list(itertools.takewhile(lambda one: one not in _NONE, (part.strip() for part in value.split(","))))
    found = [_gpu(one, mine) for one in wanted]
    names_others = bool(mine) and None in found
    return ",".join(mine[: len(wanted)] if names_others else [one for one in found if one]), not names_others


def _gpu(wanted: str, mine: list[str]) -> str | None:
    """Return the assigned GPU that a program names by its position or by the beginning of its UUID."""
    if wanted.isdecimal():
        return mine[int(wanted)] if int(wanted) < len(mine) else None
    return next((gpu for gpu in mine if gpu.startswith(wanted)), None)


def keep_assigned(report: Callable[[str], object]) -> None:
    """Keep the program's changes of CUDA_VISIBLE_DEVICES within the assigned GPUs; `report` those that cannot be met.

    Without that variable nothing changes: in a pod, the container has no other GPUs.
    """
    if NAME not in os.environ:
        return
    assigned = os.environ[NAME]
    reported: set[str] = set()

    class _Environ(type(os.environ)):  # type: ignore[misc]
        def __setitem__(self, name: str, value: str) -> None:
            if name == NAME and isinstance(value, str):
                found, is_met = within_assigned(value, assigned)
                if not is_met and value not in reported:
                    reported.add(value)
                    report(f"{NAME}={value} names GPUs that this job does not have; it uses its own: {found}")
                value = found
            super().__setitem__(name, value)

        def __delitem__(self, name: str) -> None:
            super().__delitem__(name)
            if name == NAME:
                super().__setitem__(name, assigned)

        def clear(self) -> None:
            for name in list(self):
                del self[name]

    _Environ.__name__ = _Environ.__qualname__ = "_Environ"
    _Environ.__module__ = "os"
    os.environ.__class__ = _Environ
