"""Clock of the pool: it starts at the time of day and then only runs forward, even if the time of day is changed.

It follows the machine's uptime, so that limits, delays and estimates survive a change of the system clock. Its zero is
kept in the pool's directory, so that it continues when the engine restarts. Times for people are shifted back to the
time of day by `drift_s`.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Final

from jupyter_dlaas.jobdir.atomic_files import read_json, write_whole
from jupyter_dlaas.runtime.system.process import boot_id, slept_s, uptime_s

__all__ = ["CLOCK_FILE", "PoolClock"]

CLOCK_FILE: Final = "clock.json"
DRIFT_MIN_S: Final = 1.0
"""Largest drift in seconds that is attributed to ordinary clock synchronisation."""


class PoolClock:
    """Clock in seconds since 1970, by the time of day when this pool was first opened after the machine started."""

    def __init__(
        self,
        folder: Path,
        *,
        uptime: Callable[[], float] = uptime_s,
        slept: Callable[[], float] = slept_s,
        wall: Callable[[], float] = time.time,
        boot: str | None = None,
    ) -> None:
        self._file, self._uptime, self._slept, self._wall = folder / CLOCK_FILE, uptime, slept, wall
        self._boot = boot_id() if boot is None else boot
        kept = read_json(self._file) or {}
        zero_s = kept.get("zero_s")
        self.is_new = kept.get("boot") != self._boot or not isinstance(zero_s, int | float)
        """True if the machine was restarted since: only the time of day shows how long it was off."""
        self._zero_s = wall() - uptime() if self.is_new or not isinstance(zero_s, int | float) else float(zero_s)
        if self.is_new:
            self._keep()

    def _keep(self) -> None:
        with suppress(OSError):  # a full disk: an engine that is started later begins with the time of day
            write_whole(self._file, json.dumps({"boot": self._boot, "zero_s": self._zero_s}).encode())

    def now_s(self) -> float:
        """Return the present time."""
        return self._zero_s + self._uptime()

    def at_uptime(self, uptime_s: float) -> float:
        """Return the time at which the machine had this uptime."""
        return self._zero_s + uptime_s

    def start_after(self, time_s: float) -> None:
        """Start no earlier than the stored times after a restart of the machine, even if its clock was set back."""
        if self.is_new and self.now_s() < time_s:
            self._zero_s = time_s - self._uptime()
            self._keep()

    def drift_s(self) -> float:
        """Return how far the time of day is ahead of this clock; 0 unless it was changed."""
        drift_s = self._wall() - self.now_s()
        return drift_s if abs(drift_s) >= DRIFT_MIN_S else 0.0

    def slept_s(self) -> float:
        """Return how long the machine was suspended since it started."""
        return self._slept()
