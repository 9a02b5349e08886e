"""Decision core: pure functions over frozen records. No IO, clock, randomness, logging or asyncio."""

from __future__ import annotations
