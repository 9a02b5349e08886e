"""Processes by identity: a pid alone may be reused, so start time, boot and job go with it."""

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
_PR_SET_CHILD_SUBREAPER: Final = 36


@dataclass(frozen=True, slots=True)
class Identity:
    """One process for ever: pid, start in clock ticks after boot, and the boot."""

    pid: int
    start: int
    boot: str


@dataclass(frozen=True, slots=True)
class Stat:
    """What the kernel says of a process that has not been waited for."""

    parent: int
    session: int
    state: str
    start: int

    @property
    def is_dead(self) -> bool:
        """True for a zombie: it does nothing any more, only its exit code is left."""
        return self.state in ("Z", "X")


def recorded(body: Mapping[str, object] | None) -> Identity | None:
    """Return the process that a record file names by `pid`, `start` and `boot`, alive or not; None where none does."""
    pid, start, boot = ((body or {}).get(name) for name in ("pid", "start", "boot"))
    if isinstance(pid, int) and isinstance(start, int) and isinstance(boot, str) and pid > 0:
        return Identity(pid, start, boot)
    return None


def uptime_s() -> float:
    """Seconds since the machine was started, time asleep included. Nobody can set this clock."""
    return time.clock_gettime(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))


def slept_s() -> float:
    """Seconds that the machine was suspended since it was started; 0 where the system does not tell."""
    return max(0.0, uptime_s() - time.clock_gettime(time.CLOCK_MONOTONIC))


@functools.cache
def boot_id() -> str:
    """The id of this boot of the machine."""
    return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()


def _read(pid: int, name: str) -> bytes:
    # Not through Path: a walk over all processes reads some hundred of these, and stands in the way of a start.
    fd = os.open(f"/proc/{pid}/{name}", os.O_RDONLY | os.O_CLOEXEC)
    try:
        data = os.read(fd, 1 << 16)
        while len(data) >= 1 << 16 and (more := os.read(fd, 1 << 16)):
            data += more
        return data
    finally:
        os.close(fd)


def stat_of(pid: int) -> Stat | None:
    """The state of a process, or None when there is none of this pid."""
    try:
        text = _read(pid, "stat")
    except OSError:
        return None
    # The name in parentheses may hold spaces and parentheses itself: what counts begins after the last one.
    rest = text[text.rindex(b")") + 2 :].split()
    return Stat(parent=int(rest[1]), session=int(rest[3]), state=rest[0].decode(), start=int(rest[19]))


@dataclass(frozen=True, slots=True)
class Activity:
    """What the first thread of a process has used of the processor, and what it does now."""

    ticks: int
    state: str

    @property
    def is_stopped(self) -> bool:
        return self.state == "T"

    @property
    def is_out_of_reach(self) -> bool:
        """In a debugger's hands, or in those of a disk: nobody can tell how long that takes."""
        return self.state in ("t", "D")


def activity_of(who: Identity) -> Activity | None:
    """What a process is at; None when it is gone."""
    try:
        text = _read(who.pid, f"task/{who.pid}/stat")
    except OSError:
        return None
    rest = text[text.rindex(b")") + 2 :].split()
    return Activity(ticks=int(rest[11]) + int(rest[12]), state=rest[0].decode()) if int(rest[19]) == who.start else None


def identity(pid: int) -> Identity | None:
    """Who has this pid now; None when nobody alive has."""
    stat = stat_of(pid)
    return None if stat is None or stat.is_dead else Identity(pid, stat.start, boot_id())


def own(pid: int) -> Identity:
    """Of this process, or of a child that nobody has waited for yet: dead or alive."""
    stat = stat_of(pid)
    assert stat is not None
    return Identity(pid, stat.start, boot_id())


def environment_of(pid: int) -> dict[str, str]:
    """The environment a process was started with; empty when it is gone or not ours to read."""
    try:
        return parse_environment(_read(pid, "environ"))
    except OSError:
        return {}


def parse_environment(raw: bytes) -> dict[str, str]:
    """The block of `NAME=value` texts, ended by zero bytes, as a mapping."""
    pairs = (entry.partition(b"=") for entry in raw.split(b"\0") if b"=" in entry)
    return {os.fsdecode(name): os.fsdecode(value) for name, _, value in pairs}


def open_process(who: Identity, job_dir: str | None = None) -> int | None:
    """A pidfd of exactly this process, or None when it is gone or its pid belongs to another one by now.

    The pidfd comes first and the comparison second: between the two the pid cannot be given to anybody else.
    With `job_dir` the process must also carry that job's mark.
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
    """Whether a process, all its threads included, has ended."""
    return bool(select.select([pidfd], [], [], 0)[0])


def is_alive(who: Identity) -> bool:
    """Whether exactly this process still runs (a zombie does not)."""
    return identity(who.pid) == who


def send(who: Identity, number: int) -> bool:
    """Signal exactly this process; False when it is gone."""
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
    """How many threads this process has, those of C libraries included."""
    return sum(1 for _ in os.scandir("/proc/self/task"))


def become_subreaper() -> None:
    """Orphans among this process' descendants become its children, so that none gets out of sight."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_CHILD_SUBREAPER)")


def _pids() -> Iterator[int]:
    with os.scandir("/proc") as entries:
        yield from [int(entry.name) for entry in entries if entry.name.isdigit()]


def marked(job_dir: str, member: int | None = None) -> list[tuple[Identity, int | None]]:
    """All living processes with the mark of a job (and of a member), oldest first, each with its member number."""
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
    """Descendants of `roots` and everybody in the sessions that these began.

    A session's number is free for others once nobody is left in it: who has it by now may be a stranger.
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
    while todo:  # descendants of those who were found by session
        for child in children.get(todo.pop(), []):
            if child not in found:
                found.add(child)
                todo.append(child)
    return {Identity(pid, stats[pid].start, boot_id()) for pid in found if not stats[pid].is_dead}


def family(who: Identity) -> set[Identity]:
    """A process, its descendants, and the rest of the session that it began."""
    return {who} | _family((who.pid,), (who,))


def log_writers(job_dir: str) -> set[Identity]:
    """Processes that hold a learner's log open for writing: its program's, whatever else they have shed.

    A walk over all descriptors of all processes takes some ten milliseconds.
    """
    found: set[Identity] = set()
    for pid in _pids():
        with suppress(OSError):  # gone, or another user's
            if any(_writes_log(pid, fd, job_dir) for fd in os.listdir(f"/proc/{pid}/fd")):  # noqa: PTH208 - in a hurry
                who = identity(pid)
                found |= {who} if who is not None else set()
    return found


def _writes_log(pid: int, fd: str, job_dir: str) -> bool:
    try:
        target = os.readlink(f"/proc/{pid}/fd/{fd}").removesuffix(" (deleted)")  # noqa: PTH115 - in a hurry
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
    """Stop, then kill, once, all that belongs to a job (or to one member): by mark, descent and session.

    `sessions`: those who began them; nobody may name one again that was seen empty after its first process had ended.
    `by_log`: those who write to a learner's log, too. Who left its session and cleared its environment is found by its
    guardian, who inherits it; where that was killed, only so.
    Returns how many there were; repeat until 0. Stopped first, so that none forks on while the others are killed.
    The caller and its ancestors are spared.
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
