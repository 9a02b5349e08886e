"""Sites whose pools are those of former releases."""

from __future__ import annotations

from tests.whole.conftest import ground, site

__all__ = ["ground", "site"]
