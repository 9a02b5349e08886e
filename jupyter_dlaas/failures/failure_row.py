"""Row of the table of known failures."""

from __future__ import annotations

from dataclasses import dataclass

from jupyter_dlaas.wire.protocol import Cause

__all__ = ["Row"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """Known failure. A field that is not set matches anything; `raised` names the exception's class or a base class."""

    code: str
    cause: Cause
    advice: str
    raised: tuple[str, ...] = ()
    message: str | None = None
    """Regular expression that must match in the message."""
    traced: str | None = None
    """Regular expression that must match in the traceback."""
    exit_code: int | None = None
    signal: int | None = None
    out_of_memory: bool | None = None
    """True to match only if the kernel meanwhile killed a process of this machine or container for lack of memory."""
    what: str | None = None
    """Text shown in place of a message that says little by itself."""
    is_collateral: bool = False
    """True if it follows from another learner's end: another failure is then preferred as the first cause."""
    has_gpus: bool | None = None
    """True matches only learners with GPUs, False only those without."""
