"""Jobs that are gone when their test is: the same as the guardian's."""

from __future__ import annotations

from tests.runtime.conftest import job

__all__ = ["job"]
