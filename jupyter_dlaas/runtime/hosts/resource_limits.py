"""Enforcement of a learner's `--memory` and `--cpus`.

A learner gets its own cgroup (version 2) if this user may create one. Otherwise its host measures the memory of the
learner and all processes it started and ends it above its limit, and CPU affinity restricts it to as many cores. The
learner itself limits its data segment (`learner/environment/malloc.py`), so that one large allocation fails at once.
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

from jupyter_dlaas.runtime.system.process import Identity, family, send
from jupyter_dlaas.wire.protocol import Cause, Failure, JobSpec

__all__ = ["Limits", "cgroup_parent", "explained", "limits_in_words", "memory_used", "size_in_words"]

LOOK_S: Final = 0.25
IDLE_LOOK_S: Final = 1.0
"""Seconds between measurements while a learner uses at most half of its limit."""
LOOK_COST: Final = 0.02
"""Maximum share of the guardian's time that measuring may take."""
FAMILY_S: Final = 2.0
"""Seconds between searches for the processes that a learner has started."""
PERIOD_US: Final = 100_000
_CGROUPS: Final = (Path("/sys/fs/cgroup"), Path("/proc/self/cgroup"))


@dataclass(slots=True)
class _Watched:
    process: Identity
    family: set[Identity]
    family_s: float
    due_s: float = 0.0


class Limits:
    """Limits of a job: applies them to each learner and reports the failures they cause."""

    def __init__(self, job: str, spec: JobSpec, *, cgroups: tuple[Path, Path] = _CGROUPS) -> None:
        self._job = job
        self._memory, self._cpus = spec.memory_bytes_per_learner, spec.cpus_per_learner
        needed = {name for name, limit in (("memory", self._memory), ("cpu", self._cpus)) if limit}
        self._parent = cgroup_parent(needed, *cgroups) if needed else None
        self._groups: dict[int, Path] = {}
        self._watched: dict[int, _Watched] = {}
        self._failures: dict[int, Failure] = {}
        """Learners that were ended for their limits."""
        self.close()  # remove what a killed guardian left behind

    def begin(self, member: int, process: Identity, devices: Sequence[str]) -> None:
        """Apply the limits to a learner that was just started."""
        if self._parent is not None and self._group(member, process, self._parent):
            return
        if self._memory:
            self._watched[member] = _Watched(process, {process}, 0.0)
        if self._cpus:
            with suppress(OSError, AttributeError):  # the process is gone, or the system has no affinity
                os.sched_setaffinity(process.pid, _cores(self._cpus, devices, sorted(os.sched_getaffinity(0))))

    def adopt(self, member: int, process: Identity) -> None:
        """Watch a learner that an earlier guardian has started."""
        group = None if self._parent is None else self._group_of(member, self._parent)
        if self._memory and group is not None and group.is_dir():
            self._groups[member] = group
        elif self._memory:
            self._watched[member] = _Watched(process, {process}, 0.0)

    def _group_of(self, member: int, parent: Path) -> Path:
        return parent / f"dlaas-{self._job}-{member}"

    def _group(self, member: int, process: Identity, parent: Path) -> bool:
        """Put a learner into its own cgroup. Return False if that fails."""
        group = self._group_of(member, parent)
        try:
            group.mkdir(exist_ok=True)
            if self._memory:
                (group / "memory.max").write_text(str(self._memory))
                with suppress(OSError):  # the machine has no swap
                    (group / "memory.swap.max").write_text("0")
                (group / "memory.oom.group").write_text("1")
            if self._cpus:
                (group / "cpu.max").write_text(f"{max(1000, round(self._cpus * PERIOD_US))} {PERIOD_US}")
            (group / "cgroup.procs").write_text(str(process.pid))
        except OSError:
            with suppress(OSError):
                group.rmdir()
            return False
        self._groups[member] = group
        return True

    def due(self) -> float | None:
        """Return the time of the next measurement."""
        return min((watched.due_s for watched in self._watched.values()), default=None)

    def look(self, now: float) -> None:
        """End learners that use more memory than their limit."""
        for member, watched in self._watched.items():
            if now < watched.due_s:
                continue
            if now >= watched.family_s:
                watched.family, watched.family_s = family(watched.process), now + FAMILY_S
            began_s = time.monotonic()
            used = memory_used(watched.family, self._memory)
            pause_s = LOOK_S if used > self._memory / 2 else IDLE_LOOK_S
            watched.due_s = now + max(pause_s, (time.monotonic() - began_s) / LOOK_COST)
            if used > self._memory and member not in self._failures:
                self._failures[member] = _failure(f"used {size_in_words(used)} of memory", self._memory)
                send(watched.process, 9)  # the processes it started are swept afterwards

    def end(self, member: int) -> Failure | None:
        """Remove an ended learner's cgroup. Return the failure if the learner was ended for its limit."""
        self._watched.pop(member, None)
        failure = self._failures.pop(member, None)
        group = self._groups.pop(member, None)
        if group is None:
            return failure
        with suppress(OSError):
            kills = re.search(r"^oom_kill (\d+)", (group / "memory.events").read_text(), re.MULTILINE)
            if kills is not None and int(kills[1]) and failure is None:
                failure = _failure("ran out of memory", self._memory)
        with suppress(OSError):
            group.rmdir()
        return failure

    def close(self) -> None:
        """Remove the job's cgroups that hold no process."""
        for group in self._parent.glob(f"dlaas-{self._job}-*") if self._parent is not None else ():
            with suppress(OSError):
                group.rmdir()


def explained(failure: Failure, memory: int) -> Failure:
    """Return the failure with the memory limit added if the learner, and not the machine, ran out of memory."""
    is_raised = failure.where is not None or failure.traceback is not None  # otherwise the machine itself was full
    if failure.code != "host_memory" or not memory or not is_raised:
        return failure
    advice = _failure("", memory).advice
    return replace(failure, what=f"{failure.what} [limit: --memory {_option(memory)}]", advice=advice)


def _failure(what: str, memory: int) -> Failure:
    return Failure(
        cause=Cause.RESOURCES,
        code="memory_limit",
        what=f"{what}; its limit is {size_in_words(memory)} (--memory {_option(memory)})",
        advice=f"Request more, for example --memory {_option(2 * memory)}; or load less at once, use a "
        "smaller batch or fewer DataLoader workers.",
    )


def _cores(cpus: float, devices: Sequence[str], cores: Sequence[int]) -> set[int]:
    """Return as many cores as CPUs were requested. Learners on neighbouring devices get neighbouring cores."""
    count = max(1, math.ceil(cpus))
    number = re.search(r"(\d+)$", devices[0]) if devices else None
    first = int(number[1]) * count if number else 0
    return {cores[(first + n) % len(cores)] for n in range(count)}


def memory_used(processes: Iterable[Identity], limit: int) -> int:
    """Return the bytes of memory that processes use, without file pages.

    Pages shared by several processes count once. This exact sum costs more, so it is only computed if the plain sum
    exceeds the limit.
    """
    pids = [process.pid for process in processes]
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
    """Return the nearest cgroup, from this process's upwards, in which the user may create children with `needed`."""
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
    """Return a sentence that says how `--memory` and `--cpus` are enforced on this machine."""
    by_cgroup = {name for name in ("memory", "cpu") if cgroup_parent({name}) is not None}
    watches = Path("/proc/self/smaps_rollup").exists()
    memory = "by cgroup" if "memory" in by_cgroup else "by watching each learner" if watches else "not enforced"
    pins = hasattr(os, "sched_setaffinity")
    cpus = "by cgroup" if "cpu" in by_cgroup else "by CPU affinity" if pins else "not enforced"
    return f"--memory is {memory if memory.startswith('not') else f'enforced {memory}'}, --cpus {cpus}"


def size_in_words(count: int) -> str:
    """Return a size as text: "812 MiB", "1.5 GiB"."""
    return f"{count / 2**30:.1f} GiB" if count >= 2**30 else f"{count / 2**20:.0f} MiB"


def _option(count: int) -> str:
    """Return a size in the form that `--memory` takes."""
    if count >= 2**30 and count % 2**30 == 0:
        return f"{count >> 30}G"
    return f"{max(1, math.ceil(count / 2**20))}M"
