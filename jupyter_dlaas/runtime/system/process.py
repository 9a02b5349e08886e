"""Identity of processes: a pid may be reused, so it is combined with start time, boot and job."""

from __future__ import annotations

import ctypes
import functools
import os
import select
import signal
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

__all__ = [
    "JOB_MARK",
    "MEMBER_MARK",
    "PRIVATE",
    "Activity",
    "Identity",
    "Stat",
    "activity_of",
    "become_subreaper",
    "boot_id",
    "environment_of",
    "family",
    "has_ended",
    "identity",
    "is_alive",
    "kill_round",
    "log_writers",
    "marked",
    "open_process",
    "own",
    "parse_environment",
    "recorded",
    "send",
    "slept_s",
    "stat_of",
    "thread_count",
    "uptime_s",
]

JOB_MARK: Final = "DLAAS_JOB_DIR"
MEMBER_MARK: Final = "DLAAS_MEMBER"
PRIVATE: Final = "DLAAS_PRIVATE_FILES"
"""Variable of learners whose job directory is their own: no other learner and no guardian uses its files."""
_PR_SET_CHILD_SUBREAPER: Final = 36


@dataclass(frozen=True, slots=True)
class Identity:
    """Unique identity of a process: pid, start in clock ticks after boot, and boot id."""

    pid: int
    start: int
    boot: str


@dataclass(frozen=True, slots=True)
class Stat:
    """Kernel state of a process that has not been reaped."""

    parent: int
    session: int
    state: str
    start: int

    @property
    def is_dead(self) -> bool:
        """True for a zombie: it runs no more, and only its exit status is left."""
        return self.state in ("Z", "X")


def recorded(body: Mapping[str, object] | None) -> Identity | None:
    """Return the process that a record file names by `pid`, `start` and `boot`, alive or not; None if it names none."""
    pid, start, boot = ((body or {}).get(name) for name in ("pid", "start", "boot"))
    if isinstance(pid, int) and isinstance(start, int) and isinstance(boot, str) and pid > 0:
        return Identity(pid, start, boot)
    return None


def uptime_s() -> float:
    """Return the seconds since the machine was started, including suspension. This clock cannot be set."""
    return time.clock_gettime(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))


def slept_s() -> float:
    """Return the seconds for which the machine was suspended since its start; 0 if the system does not report it."""
    return max(0.0, uptime_s() - time.clock_gettime(time.CLOCK_MONOTONIC))


@functools.cache
def boot_id() -> str:
    """Return the id of this boot of the machine."""
    return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()


def _read(pid: int, name: str) -> bytes:
    # Without Path: a scan of all processes reads some hundred files and delays a start.
    fd = os.open(f"/proc/{pid}/{name}", os.O_RDONLY | os.O_CLOEXEC)
    try:
        data = os.read(fd, 1 << 16)
        while len(data) >= 1 << 16 and (more := os.read(fd, 1 << 16)):
            data += more
        return data
    finally:
        os.close(fd)


def stat_of(pid: int) -> Stat | None:
    """Return the state of a process, or None if there is none with this pid."""
    try:
        text = _read(pid, "stat")
    except OSError:
        return None
    # The name in parentheses may itself contain spaces and parentheses: the fields start after the last one.
    rest = text[text.rindex(b")") + 2 :].split()
    return Stat(parent=int(rest[1]), session=int(rest[3]), state=rest[0].decode(), start=int(rest[19]))


@dataclass(frozen=True, slots=True)
class Activity:
    """Processor time and state of a process's main thread."""

    ticks: int
    state: str

    @property
    def is_stopped(self) -> bool:
        return self.state == "T"

    @property
    def is_out_of_reach(self) -> bool:
        """True if it is traced by a debugger or waits for a disk, which may take any time."""
        return self.state in ("t", "D")


def activity_of(who: Identity) -> Activity | None:
    """Return the activity of a process; None if it is gone."""
    try:
        text = _read(who.pid, f"task/{who.pid}/stat")
    except OSError:
        return None
    rest = text[text.rindex(b")") + 2 :].split()
    return Activity(ticks=int(rest[11]) + int(rest[12]), state=rest[0].decode()) if int(rest[19]) == who.start else None


def identity(pid: int) -> Identity | None:
    """Return the identity of the living process with this pid; None if there is none."""
    stat = stat_of(pid)
    return None if stat is None or stat.is_dead else Identity(pid, stat.start, boot_id())


def own(pid: int) -> Identity:
    """Return the identity of this process or of a child that has not been reaped, dead or alive."""
    stat = stat_of(pid)
    assert stat is not None
    return Identity(pid, stat.start, boot_id())


def environment_of(pid: int) -> dict[str, str]:
    """Return the environment with which a process was started; empty if it is gone or not readable."""
    try:
        return parse_environment(_read(pid, "environ"))
    except OSError:
        return {}


def parse_environment(raw: bytes) -> dict[str, str]:
    """Return a block of `NAME=value` strings, each ended by a zero byte, as a mapping."""
    # A process that shows another environment pads it with thousands of zero bytes.
    pairs = (entry.partition(b"=") for entry in raw.rstrip(b"\0").split(b"\0"))
    return {os.fsdecode(name): os.fsdecode(value) for name, sign, value in pairs if sign}


def open_process(who: Identity, job_dir: str | None = None) -> int | None:
    """Return a pidfd of exactly this process, or None if it is gone or another process has its pid.

    The pidfd is opened before the comparison, because it pins the pid in between. With `job_dir`, the process must also
    carry that job's mark.
    """
    try:
        fd = os.pidfd_open(who.pid)
    except (ProcessLookupError, OSError):
        return None
    if identity(who.pid) == who and (job_dir is None or environment_of(who.pid).get(JOB_MARK) == job_dir):
        return fd
    os.close(fd)
    return None


def has_ended(pidfd: int) -> bool:
    """Return whether a process has ended with all its threads."""
    return bool(select.select([pidfd], [], [], 0)[0])


def is_alive(who: Identity) -> bool:
    """Return whether exactly this process still runs (a zombie does not)."""
    return identity(who.pid) == who


def send(who: Identity, number: int) -> bool:
    """Send a signal to exactly this process. Return False if it is gone."""
    fd = open_process(who)
    if fd is None:
        return False
    try:
        signal.pidfd_send_signal(fd, number)
    except ProcessLookupError:
        return False
    finally:
        os.close(fd)
    return True


def thread_count() -> int:
    """Return the number of threads of this process, including those of C libraries."""
    return sum(1 for _ in os.scandir("/proc/self/task"))


def become_subreaper() -> None:
    """Become the parent of orphaned descendants, so that none is lost from view. Raise OSError."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_CHILD_SUBREAPER)")


def _pids() -> Iterator[int]:
    with os.scandir("/proc") as entries:
        yield from [int(entry.name) for entry in entries if entry.name.isdigit()]


def marked(job_dir: str, member: int | None = None) -> list[tuple[Identity, int | None]]:
    """Return all living processes with the mark of a job (and of a member), oldest first, with their member numbers."""
    mark = os.fsencode(f"{JOB_MARK}={job_dir}")
    found: list[tuple[Identity, int | None]] = []
    for pid in _pids():
        try:
            raw = _read(pid, "environ")
        except OSError:  # gone, or another user's
            continue
        if mark not in raw:
            continue
        environment = parse_environment(raw)
        who = identity(pid)
        if environment.get(JOB_MARK) != job_dir or who is None:
            continue
        text = environment.get(MEMBER_MARK, "")
        its_member = int(text) if text.isdigit() else None
        if member is None or its_member == member:
            found.append((who, its_member))
    return sorted(found, key=lambda pair: (pair[0].start, pair[0].pid))


def _family(roots: Iterable[int], sessions: Iterable[Identity]) -> set[Identity]:
    """Return the descendants of `roots` and all processes in the sessions that `sessions` started.

    A session id becomes free once the session is empty, so a later holder of the id may be unrelated.
    """
    stats = {pid: stat for pid in _pids() if (stat := stat_of(pid)) is not None}
    children: dict[int, list[int]] = {}
    for pid, stat in stats.items():
        children.setdefault(stat.parent, []).append(pid)
    wanted = {
        who.pid
        for who in sessions
        if who.boot == boot_id() and ((leader := stats.get(who.pid)) is None or leader.start == who.start)
    }
    found = {pid for pid, stat in stats.items() if stat.session in wanted}
    todo = list(roots)
    while todo:
        for child in children.get(todo.pop(), []):
            if child not in found:
                found.add(child)
                todo.append(child)
    for pid in list(found):
        todo.append(pid)
    while todo:  # descendants of processes that were found by session
        for child in children.get(todo.pop(), []):
            if child not in found:
                found.add(child)
                todo.append(child)
    return {Identity(pid, stats[pid].start, boot_id()) for pid in found if not stats[pid].is_dead}


def family(who: Identity) -> set[Identity]:
    """Return a process, its descendants, and the rest of the session that it started."""
    return {who} | _family((who.pid,), (who,))


def log_writers(job_dir: str) -> set[Identity]:
    """Return processes that hold a learner's log open for writing: they belong to its program in any case.

    A scan of all descriptors of all processes takes some ten milliseconds.
    """
    found: set[Identity] = set()
    for pid in _pids():
        with suppress(OSError):  # gone, or another user's
            if any(_writes_log(pid, fd, job_dir) for fd in os.listdir(f"/proc/{pid}/fd")):  # noqa: PTH208 - faster
                who = identity(pid)
                found |= {who} if who is not None else set()
    return found


def _writes_log(pid: int, fd: str, job_dir: str) -> bool:
    try:
        target = os.readlink(f"/proc/{pid}/fd/{fd}").removesuffix(" (deleted)")  # noqa: PTH115 - faster
        if not (target.startswith(f"{job_dir}/learner-") and target.endswith("/stdout.log")):
            return False
        flags = next(line for line in _read(pid, f"fdinfo/{fd}").splitlines() if line.startswith(b"flags:"))
        return int(flags.split()[1], 8) & os.O_ACCMODE != os.O_RDONLY
    except (OSError, StopIteration):
        return False


def kill_round(
    job_dir: str,
    *,
    member: int | None = None,
    roots: Iterable[int] = (),
    sessions: Iterable[Identity] = (),
    by_log: bool = False,
) -> int:
    """Stop, then kill, once, all processes of a job (or of one member), found by mark, descent and session.

    `sessions` holds the processes that started them; a session that was seen empty after the end of its first process
    must not be named again. `by_log` includes processes that write to a learner's log. A process that left its session
    and cleared its environment is found by the guardian that inherits it as an orphan; if that guardian was killed,
    only the log identifies it.

    Return the number of processes; repeat until it is 0. All are stopped first, so that none forks while others are
    killed. The caller and its ancestors are spared.
    """
    spared = {os.getpid(), os.getppid(), 0, 1}
    targets = {who for who, _ in marked(job_dir, member)} | _family(roots, sessions)
    targets |= log_writers(job_dir) if by_log else set()
    opened = (open_process(who) for who in targets if who.pid not in spared)
    fds = [fd for fd in opened if fd is not None]
    for number in (signal.SIGSTOP, signal.SIGKILL):
        for fd in fds:
            with suppress(ProcessLookupError, PermissionError):
                signal.pidfd_send_signal(fd, number)
    for fd in fds:
        os.close(fd)
    return len(fds)
