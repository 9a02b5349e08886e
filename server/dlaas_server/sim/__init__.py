"""The simulator: a trace replayed in virtual time, through the production core or by others' rules."""

from __future__ import annotations
