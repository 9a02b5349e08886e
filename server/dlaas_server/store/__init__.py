"""What should be, kept: an append-only event table and what follows from it, in SQLite."""

from __future__ import annotations

from dlaas_server.store.sqlite import Batch, Event, Inserted, Loaded, Store, StoreError, StoreTooNew

__all__ = ["Batch", "Event", "Inserted", "Loaded", "Store", "StoreError", "StoreTooNew"]
