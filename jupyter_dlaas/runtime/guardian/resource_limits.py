"""`--memory` and `--cpus` of a learner, as real limits.

By a cgroup (version 2) of its own where this user may make one; else the guardian watches what a learner and all that
it started use and ends it above its limit, and CPU affinity keeps it to as many cores. The learner itself sets a limit
on its data (`learner/environment/malloc.py`), so that one large allocation fails at once.
"""

from __future__ import annotations

import math
import os
import re
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from jupyter_dlaas.runtime.guardian.learner_process import Learner
from jupyter_dlaas.runtime.system.process import Identity, family, send
from jupyter_dlaas.wire.protocol import Cause, Failure, JobSpec

__all__ = ["Limits", "cgroup_parent", "limits_in_words", "memory_used", "size_in_words"]

LOOK_S: Final = 0.25
IDLE_LOOK_S: Final = 1.0
"""While it uses less than half of its limit."""
LOOK_COST: Final = 0.02
"""Looking takes no larger part of the time than this."""
FAMILY_S: Final = 2.0
"""What a learner has started is looked up this often."""
PERIOD_US: Final = 100_000
_CGROUPS: Final = (Path("/sys/fs/cgroup"), Path("/proc/self/cgroup"))


@dataclass(slots=True)
class _Watched:
    family: set[Identity]
    family_s: float
    due_s: float = 0.0


class Limits:
    """For a guardian: applies the limits of its job to each learner, and says when one was ended by them."""

    def __init__(self, job: str, spec: JobSpec, *, cgroups: tuple[Path, Path] = _CGROUPS) -> None:
        self._job = job
        self._memory, self._cpus = spec.memory_bytes_per_learner, spec.cpus_per_learner
        needed = {name for name, limit in (("memory", self._memory), ("cpu", self._cpus)) if limit}
        self._parent = cgroup_parent(needed, *cgroups) if needed else None
        self._groups: dict[int, Path] = {}
        self._watched: dict[int, _Watched] = {}
        self.close()  # what a guardian that was killed has left

    def begin(self, one: Learner, devices: Sequence[str]) -> None:
        """Limit a learner that was just started."""
        if self._parent is not None and self._group(one, self._parent):
            return
        if self._memory:
            self._watched[one.member] = _Watched({one.who}, 0.0)
        if self._cpus:
            with suppress(OSError, AttributeError):  # gone already; or a system without affinity
                os.sched_setaffinity(one.who.pid, _cores(self._cpus, devices, sorted(os.sched_getaffinity(0))))

    def _group(self, one: Learner, parent: Path) -> bool:
        """Put a learner into a cgroup of its own; False where that fails."""
        group = parent / f"dlaas-{self._job}-{one.member}"
        try:
            group.mkdir(exist_ok=True)
            if self._memory:
                (group / "memory.max").write_text(str(self._memory))
                with suppress(OSError):  # no swap on this machine
                    (group / "memory.swap.max").write_text("0")
                (group / "memory.oom.group").write_text("1")
            if self._cpus:
                (group / "cpu.max").write_text(f"{max(1000, round(self._cpus * PERIOD_US))} {PERIOD_US}")
            (group / "cgroup.procs").write_text(str(one.who.pid))
        except OSError:
            with suppress(OSError):
                group.rmdir()
            return False
        self._groups[one.member] = group
        return True

    def due(self) -> float | None:
        """When to look again."""
        return min((watched.due_s for watched in self._watched.values()), default=None)

    def look(self, alive: Iterable[Learner], now: float) -> None:
        """End learners that use more memory than they may."""
        for one in alive:
            if self._memory and one.is_adopted and one.member not in self._watched | self._groups:
                self._adopt(one)
            watched = self._watched.get(one.member)
            if watched is None or now < watched.due_s:
                continue
            if now >= watched.family_s:
                watched.family, watched.family_s = family(one.who), now + FAMILY_S
            began_s = time.monotonic()
            used = memory_used(watched.family, self._memory)
            pause_s = LOOK_S if used > self._memory / 2 else IDLE_LOOK_S
            watched.due_s = now + max(pause_s, (time.monotonic() - began_s) / LOOK_COST)
            if used > self._memory and one.failure is None:
                one.failure = self._failure(f"used {size_in_words(used)} of memory")
                send(one.who, 9)  # what it started is swept after it

    def _adopt(self, one: Learner) -> None:
        group = None if self._parent is None else self._parent / f"dlaas-{self._job}-{one.member}"
        if group is not None and group.is_dir():
            self._groups[one.member] = group
        else:
            self._watched[one.member] = _Watched({one.who}, 0.0)

    def end(self, one: Learner) -> None:
        """A learner has ended, and what it left was swept: say so where the kernel ended it for its limit."""
        self._watched.pop(one.member, None)
        group = self._groups.pop(one.member, None)
        if group is None:
            return
        with suppress(OSError):
            kills = re.search(r"^oom_kill (\d+)", (group / "memory.events").read_text(), re.MULTILINE)
            if kills is not None and int(kills[1]) and one.failure is None:
                one.failure = self._failure("used more memory than it may")
        with suppress(OSError):
            group.rmdir()

    def close(self) -> None:
        """Remove the cgroups of the job in which nobody is any more."""
        for group in self._parent.glob(f"dlaas-{self._job}-*") if self._parent is not None else ():
            with suppress(OSError):
                group.rmdir()

    def explained(self, failure: Failure) -> Failure:
        """A failure for want of memory, with the limit where there is one: it is not the machine that is full."""
        is_raised = failure.where is not None or failure.traceback is not None  # else the machine itself was full
        if failure.code != "host_memory" or not self._memory or not is_raised:
            return failure
        limit = self._failure("")
        return replace(failure, what=f"{failure.what} [limit: --memory {_option(self._memory)}]", advice=limit.advice)

    def _failure(self, what: str) -> Failure:
        return Failure(
            cause=Cause.RESOURCES,
            code="memory_limit",
            what=f"{what}; its limit is {size_in_words(self._memory)} (--memory {_option(self._memory)})",
            advice=f"Ask for more, for example --memory {_option(2 * self._memory)}; or load less at once, use a "
            "smaller batch or fewer DataLoader workers.",
        )


def _cores(cpus: float, devices: Sequence[str], cores: Sequence[int]) -> set[int]:
    """As many cores as CPUs were asked for; learners on neighbouring devices get neighbouring cores."""
    count = max(1, math.ceil(cpus))
    number = re.search(r"(\d+)$", devices[0]) if devices else None
    first = int(number[1]) * count if number else 0
    return {cores[(first + n) % len(cores)] for n in range(count)}


def memory_used(processes: Iterable[Identity], limit: int) -> int:
    """Bytes of memory that processes use, pages of files apart.

    Pages that several share count once: exactly, which costs more, only where the sum of all is above the limit.
    """
    pids = [who.pid for who in processes]
    used = sum(_kib(pid, "status", ("RssAnon:", "RssShmem:")) for pid in pids) << 10
    if used > limit:
        used = sum(_kib(pid, "smaps_rollup", ("Pss_Anon:", "Pss_Shmem:")) for pid in pids) << 10
    return used


def _kib(pid: int, name: str, fields: tuple[str, ...]) -> int:
    found = 0
    with suppress(OSError):
        for line in Path(f"/proc/{pid}/{name}").read_text(encoding="ascii", errors="replace").splitlines():
            if line.startswith(fields):
                found += int(line.split()[1])
    return found


def cgroup_parent(needed: Iterable[str], root: Path = _CGROUPS[0], own: Path = _CGROUPS[1]) -> Path | None:
    """The nearest cgroup above this process in which this user may make others with these controllers."""
    with suppress(OSError):
        place = next(line[3:] for line in own.read_text().splitlines() if line.startswith("0::"))
        here = root / place.lstrip("/")
        for folder in (here, *here.parents):
            if not folder.is_relative_to(root):
                return None
            with suppress(OSError):
                enabled = (folder / "cgroup.subtree_control").read_text().split()
                may_write = os.access(folder, os.W_OK) and os.access(folder / "cgroup.procs", os.W_OK)
                if may_write and set(needed) <= set(enabled):
                    return folder
    return None


def limits_in_words() -> str:
    """How `--memory` and `--cpus` are enforced on this machine."""
    by_cgroup = {name for name in ("memory", "cpu") if cgroup_parent({name}) is not None}
    watches = Path("/proc/self/smaps_rollup").exists()
    memory = "by cgroup" if "memory" in by_cgroup else "by watching each learner" if watches else "not enforced"
    pins = hasattr(os, "sched_setaffinity")
    cpus = "by cgroup" if "cpu" in by_cgroup else "by CPU affinity" if pins else "not enforced"
    return f"--memory is {memory if memory.startswith('not') else f'enforced {memory}'}, --cpus {cpus}"


def size_in_words(count: int) -> str:
    """ "812 MiB", "1.5 GiB"."""
    return f"{count / 2**30:.1f} GiB" if count >= 2**30 else f"{count / 2**20:.0f} MiB"


def _option(count: int) -> str:
    """As `--memory` takes it."""
    if count >= 2**30 and count % 2**30 == 0:
        return f"{count >> 30}G"
    return f"{max(1, math.ceil(count / 2**20))}M"
