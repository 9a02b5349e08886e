"""The pool's clock: it starts at the time of day and then only runs forward, whatever is done to the time of day.

It goes by the machine's uptime, so that limits, delays and estimates survive a clock that is set, and its zero is kept
in the pool's directory, so that it goes on where it was when the engine is restarted. Times for people are shifted back
to the time of day by `drift_s`.
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
DRIFT_LEAST_S: Final = 1.0
"""Less than this is the ordinary steering of a clock that is synchronised."""


class PoolClock:
    """Seconds since 1970, as the time of day was when this pool was first opened since the machine started."""

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
        """The machine was started since: nothing tells how long it was off but the time of day."""
        self._zero_s = wall() - uptime() if self.is_new or not isinstance(zero_s, int | float) else float(zero_s)
        if self.is_new:
            self._keep()

    def _keep(self) -> None:
        with suppress(OSError):  # a full disk: an engine that is started later begins with the time of day
            write_whole(self._file, json.dumps({"boot": self._boot, "zero_s": self._zero_s}).encode())

    def now_s(self) -> float:
        """The time now."""
        return self._zero_s + self._uptime()

    def at_uptime(self, uptime_s: float) -> float:
        """The time at which this machine was up for so long."""
        return self._zero_s + uptime_s

    def start_after(self, time_s: float) -> None:
        """After a restart of the machine: begin no earlier than what was stored, though its clock was set back."""
        if self.is_new and self.now_s() < time_s:
            self._zero_s = time_s - self._uptime()
            self._keep()

    def drift_s(self) -> float:
        """How far the time of day is ahead of this clock; 0 unless it was set."""
        drift_s = self._wall() - self.now_s()
        return drift_s if abs(drift_s) >= DRIFT_LEAST_S else 0.0

    def slept_s(self) -> float:
        """How long the machine was suspended since it started."""
        return self._slept()
