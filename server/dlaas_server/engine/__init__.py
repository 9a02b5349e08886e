"""Lifecycle manager: one process per pool, the only writer of the desired state."""

from __future__ import annotations
