"""The deciding part: pure functions over frozen records. No IO, no clock, no random, no logging, no asyncio."""

from __future__ import annotations
