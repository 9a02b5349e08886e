"""One row of the table of known failures."""

from __future__ import annotations

from dataclasses import dataclass

from jupyter_dlaas.wire.protocol import Cause

__all__ = ["Row"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One known failure. A field that is not set fits anything; `raised` are names of the exception or its bases."""

    code: str
    cause: Cause
    advice: str
    raised: tuple[str, ...] = ()
    says: str | None = None
    """A regular expression that the message must hold."""
    traced: str | None = None
    """A regular expression that the traceback must hold."""
    exit_code: int | None = None
    signal: int | None = None
    out_of_memory: bool | None = None
    """The kernel ended a process of this machine or container for want of memory meanwhile."""
    what: str | None = None
    """Said instead of the message, where the message alone tells little."""
    is_collateral: bool = False
    """Follows from another learner's end: never the first cause where there is another one."""
    has_gpus: bool | None = None
    """Fits only a learner with GPUs, or only one without."""
