"""Timing: one clock for all processes of the machine, interleaved runs, and a description of the machine."""

from __future__ import annotations

import os
import platform
import re
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tests.whole.site import Site

__all__ = [
    "TORCH",
    "TRIVIAL",
    "Bench",
    "Unmeasurable",
    "cpu_s",
    "in_turn",
    "load",
    "machine",
    "milliseconds",
    "plain",
    "stamps",
]

ROOT = Path(__file__).resolve().parents[2]
CACHE = ROOT / ".make" / "bench"
"""Where peers are installed, each into an environment of its own."""

# CLOCK_MONOTONIC is one for all processes, so a job can stamp its own first line and the submitter can subtract.
TRIVIAL = """import time
first = time.monotonic_ns()
print(f"BENCH first={first} ready={first}", flush=True)
"""
TORCH = """import time
first = time.monotonic_ns()
import torch
total = torch.ones(2).sum().item()
print(f"BENCH first={first} ready={time.monotonic_ns()}", flush=True)
history = [total]
"""


class Unmeasurable(Exception):
    """A row cannot be measured here and now; the message says why."""


@dataclass(frozen=True, slots=True)
class Bench:
    """Input of a row: a site with a pool, and the amount of work."""

    site: Site
    runs: int
    with_peers: bool
    scripts: dict[str, Path] = field(default_factory=dict)

    def script(self, source: str) -> Path:
        """Write the source to a file, for `python script.py`."""
        if source not in self.scripts:
            path = self.site.folder / f"script-{len(self.scripts)}.py"
            path.write_text(source)
            self.scripts[source] = path
        return self.scripts[source]


def milliseconds(begin_ns: int, end_ns: int) -> float:
    return (end_ns - begin_ns) / 1e6


def in_turn(runs: int, *sides: Callable[[], float]) -> list[list[float]]:
    """Run the sides A B A B …, so that a machine whose speed drifts treats them alike; without the first."""
    found: list[list[float]] = [[] for _ in sides]
    for i in range(runs + 1):
        for values, side in zip(found, sides, strict=True):
            value = side()
            if i:
                values.append(value)
    return found


def stamps(text: str) -> tuple[int, int]:
    """Return the times of the first line and of readiness, as the job printed them."""
    found = re.search(r"BENCH first=(\d+) ready=(\d+)", text)
    if found is None:
        raise Unmeasurable(f"the job did not say when it ran: {text[-300:]!r}")
    return int(found[1]), int(found[2])


def plain(script: Path, *, environment: dict[str, str] | None = None) -> tuple[int, str, int]:
    """`python script.py`: when it was started, what it printed, when it had ended."""
    begin = time.monotonic_ns()
    ended = subprocess.run(
        [sys.executable, str(script)], capture_output=True, text=True, check=True, env=environment, cwd=script.parent
    )
    return begin, ended.stdout, time.monotonic_ns()


def cpu_s(pid: int) -> float:
    """Return the CPU time that a process has used."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def load() -> str:
    return " ".join(f"{one:.2f}" for one in os.getloadavg())


def machine() -> str:
    """One line about where this runs."""
    model = re.search(r"model name\s*:\s*(.+)", Path("/proc/cpuinfo").read_text()) if sys.platform == "linux" else None
    memory_gib = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    parts: Sequence[str] = (
        f"{len(os.sched_getaffinity(0))} cores",
        model[1] if model else platform.processor() or platform.machine(),
        f"{memory_gib:.0f} GiB",
        f"{platform.system()} {platform.release()}",
        f"Python {platform.python_version()}",
    )
    return " · ".join(parts)
