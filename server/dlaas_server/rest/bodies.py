"""Request and answer bodies of the REST API, one record each. The routes are in `routes.py`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from jupyter_dlaas.wire.codec import rule
from jupyter_dlaas.wire.protocol import KEY_RULE, Elastic, JobSpec, PoolOrder, PoolPlacement

__all__ = [
    "Cell",
    "CellFinding",
    "Change",
    "CheckedCell",
    "DrainAsked",
    "Keyed",
    "NotebookCheck",
    "NotebookChecked",
    "NotebookSubmit",
    "PoolChange",
    "QueueChange",
    "Warm",
]

_KEY: Final = rule(pattern=r"[A-Za-z0-9_.:-]{8,100}", says=KEY_RULE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """Change of a job. Values are absolute; a field that is None keeps its value."""

    learners: int | None = field(default=None, metadata=rule(least=1, most=100_000))
    priority: int | None = field(default=None, metadata=rule(least=-1_000_000, most=1_000_000))
    elastic: Elastic | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Keyed:
    """Body of an action. `key` makes it safe to repeat."""

    key: str | None = field(default=None, metadata=_KEY)


@dataclass(frozen=True, slots=True, kw_only=True)
class DrainAsked:
    """Body of a drain. `plan`: plan of the reviewed preview; a different plan is refused."""

    plan: str | None = field(
        default=None,
        metadata=rule(
            pattern=r"[0-9a-f]{16}", says="is not a drain plan: use `plan` of the preview, GET dlaas/nodes/{node}/drain"
        ),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueChange:
    """Share of a queue. Values are absolute; None keeps the value (a new queue: no guarantee, weight 1)."""

    weight: float | None = field(default=None, metadata=rule(least=0.001, most=10**6))
    guaranteed: int | None = field(default=None, metadata=rule(least=0, most=10**6))


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolChange:
    """Change of the pool's scheduling policy. Values are absolute; None keeps the value."""

    order: PoolOrder | None = None
    preemption: bool | None = None
    placement: PoolPlacement | None = None
    spot_price: float | None = field(default=None, metadata=rule(least=0, most=1))
    spot_notice_s: float | None = field(default=None, metadata=rule(least=0, most=86_400))


@dataclass(frozen=True, slots=True, kw_only=True)
class Warm:
    """Prewarm request for a Python interpreter: path, environment that it reads at start, and framework."""

    interpreter: str | None = field(default=None, metadata=rule(longest=4096))
    environment: Mapping[str, str] = field(default_factory=dict, metadata=rule(longest=5000))
    framework: str | None = field(default=None, metadata=rule(longest=40))


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """Cell of a notebook as the page has it."""

    source: str = field(metadata=rule(longest=8_000_000))
    tags: tuple[str, ...] = field(default=(), metadata=rule(longest=1000))
    id: str | None = field(default=None, metadata=rule(longest=200))


@dataclass(frozen=True, slots=True, kw_only=True)
class NotebookSubmit:
    """*Train this notebook*: its cells, the kernel that would run it, and the job's options."""

    key: str = field(metadata=_KEY)
    path: str = field(metadata=rule(longest=4096))
    cells: tuple[Cell, ...] = field(metadata=rule(longest=5000))
    kernel_name: str = field(metadata=rule(longest=200))
    spec: JobSpec = field(default_factory=JobSpec)
    learners: int | None = field(default=None, metadata=rule(least=1, most=100_000))


@dataclass(frozen=True, slots=True, kw_only=True)
class NotebookCheck:
    """Cells of a notebook to be checked; an excluded one has no text."""

    path: str = field(metadata=rule(longest=4096))
    cells: tuple[Cell, ...] = field(metadata=rule(longest=5000))


@dataclass(frozen=True, slots=True, kw_only=True)
class CellFinding:
    """Finding about a cell: what, where, what to do."""

    code: str
    cell: int
    """Number counted from 1; 0 for the notebook as a whole."""
    id: str | None
    line: int
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckedCell:
    """Training cell and the code that it requires."""

    cell: int
    id: str | None
    why: str
    kept: int
    """Number of required statements of earlier cells."""
    kept_cells: tuple[int, ...]
    left_out: int
    errors: tuple[CellFinding, ...]
    warnings: tuple[CellFinding, ...]
    type: str
    """Line to put on top of the cell; "" while there is a problem."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NotebookChecked:
    """Result of `jupyter dlaas check` for these cells."""

    cells: tuple[CheckedCell, ...]
    notes: tuple[CellFinding, ...]
    error: str | None
    """Reason if the cells cannot be read at all."""
