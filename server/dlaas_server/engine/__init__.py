"""The lifecycle manager: one process per pool, the only writer of what should be."""

from __future__ import annotations
