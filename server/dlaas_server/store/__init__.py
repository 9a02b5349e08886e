"""What should be, kept: an append-only event table and what follows from it, in SQLite."""

from __future__ import annotations

from dlaas_server.store.sqlite import (
    Batch,
    DamagedRow,
    Event,
    Inserted,
    Loaded,
    Store,
    StoreDamaged,
    StoreError,
    StoreTooNew,
)

__all__ = [
    "Batch",
    "DamagedRow",
    "Event",
    "Inserted",
    "Loaded",
    "Store",
    "StoreDamaged",
    "StoreError",
    "StoreTooNew",
]
