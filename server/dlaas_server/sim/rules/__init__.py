"""Rules of other simulators, for comparison with the core."""

from __future__ import annotations
