"""Store of the desired state in SQLite: an append-only event table and the records derived from it."""

from __future__ import annotations

from dlaas_server.store.sqlite import (
    STORE_FILE,
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
    "STORE_FILE",
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
