"""What is sent to the REST API, and what only the server makes: one record per body. The routes are in `routes.py`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from jupyter_dlaas.wire.codec import rule
from jupyter_dlaas.wire.protocol import Elastic, JobSpec, PoolOrder, PoolPlacement

__all__ = [
    "Cell",
    "Change",
    "CheckedCell",
    "DrainAsked",
    "Keyed",
    "NotebookCheck",
    "NotebookChecked",
    "NotebookSubmit",
    "PoolChange",
    "QueueChange",
    "SaidOfCell",
    "Warm",
]

_KEY: Final = rule(pattern=r"[A-Za-z0-9_.:-]{8,100}", says="is not a valid request key")


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """What may be changed of a job that exists. Absolute; a field that is None stays."""

    learners: int | None = field(default=None, metadata=rule(least=1, most=100_000))
    priority: int | None = field(default=None, metadata=rule(least=-1_000_000, most=1_000_000))
    elastic: Elastic | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Keyed:
    """The body of an action. `key` makes it safe to repeat."""

    key: str | None = field(default=None, metadata=_KEY)


@dataclass(frozen=True, slots=True, kw_only=True)
class DrainAsked:
    """The body of a drain. `plan`: of the preview that was looked at; another one is refused."""

    plan: str | None = field(default=None, metadata=rule(pattern=r"[0-9a-f]{16}", says="is not a valid drain plan"))


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueChange:
    """A queue's share. Absolute; a field that is None stays (a new queue: nothing guaranteed, weight 1)."""

    weight: float | None = field(default=None, metadata=rule(least=0.001, most=10**6))
    guaranteed: int | None = field(default=None, metadata=rule(least=0, most=10**6))


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolChange:
    """How the pool is shared. Absolute; a field that is None stays."""

    order: PoolOrder | None = None
    preemption: bool | None = None
    placement: PoolPlacement | None = None
    spot_price: float | None = field(default=None, metadata=rule(least=0, most=1))
    spot_notice_s: float | None = field(default=None, metadata=rule(least=0, most=86_400))


@dataclass(frozen=True, slots=True, kw_only=True)
class Warm:
    """A Python that will train soon: its interpreter, what it reads of the environment at start, its framework."""

    interpreter: str | None = field(default=None, metadata=rule(longest=4096))
    environment: Mapping[str, str] = field(default_factory=dict, metadata=rule(longest=5000))
    framework: str | None = field(default=None, metadata=rule(longest=40))


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """One cell of a notebook as the page has it."""

    source: str = field(metadata=rule(longest=8_000_000))
    tags: tuple[str, ...] = field(default=(), metadata=rule(longest=1000))
    id: str | None = field(default=None, metadata=rule(longest=200))


@dataclass(frozen=True, slots=True, kw_only=True)
class NotebookSubmit:
    """*Train this notebook*: its cells, the kernel that would run it, and what the job asks for."""

    key: str = field(metadata=_KEY)
    path: str = field(metadata=rule(longest=4096))
    cells: tuple[Cell, ...] = field(metadata=rule(longest=5000))
    kernel_name: str = field(metadata=rule(longest=200))
    spec: JobSpec = field(default_factory=JobSpec)
    learners: int | None = field(default=None, metadata=rule(least=1, most=100_000))


@dataclass(frozen=True, slots=True, kw_only=True)
class NotebookCheck:
    """A notebook's cells, to be looked at; one that shall not go has no text."""

    path: str = field(metadata=rule(longest=4096))
    cells: tuple[Cell, ...] = field(metadata=rule(longest=5000))


@dataclass(frozen=True, slots=True, kw_only=True)
class SaidOfCell:
    """What is wrong with a cell, or to be known: what, where, what to do."""

    code: str
    cell: int
    """Counted from 1; 0 for the notebook as a whole."""
    id: str | None
    line: int
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckedCell:
    """A cell that trains, and what it would take along."""

    cell: int
    id: str | None
    why: str
    kept: int
    """Statements of earlier cells."""
    kept_cells: tuple[int, ...]
    left_out: int
    errors: tuple[SaidOfCell, ...]
    warnings: tuple[SaidOfCell, ...]
    type: str
    """The line to put on top of the cell; "" while something is to fix."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NotebookChecked:
    """What `jupyter dlaas check` says of these cells."""

    cells: tuple[CheckedCell, ...]
    notes: tuple[SaidOfCell, ...]
    error: str | None
    """Why they cannot be read at all."""
