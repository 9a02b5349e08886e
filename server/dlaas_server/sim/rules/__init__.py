"""Rules of others' simulators, kept apart from the core: they are here to be compared with, not to decide."""

from __future__ import annotations
