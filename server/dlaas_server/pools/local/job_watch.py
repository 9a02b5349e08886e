"""Watch for writes into jobs and ends of guardians: inotify and a pidfd per guardian, in the event loop."""

from __future__ import annotations

import asyncio
import fcntl
import logging
import os
import signal
import struct
import termios
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Final

from dlaas_server.pools.base import JOURNAL, Changed, Loss
from dlaas_server.pools.local.job_folder import STREAM_FILES, JobFolder, stream_of
from dlaas_server.pools.local.liveness import HUNG_CHECKS, LivenessProbe
from jupyter_dlaas.jobdir.journal_file import is_closed
from jupyter_dlaas.jobdir.log_index import LOG
from jupyter_dlaas.runtime.fencing.lock import find_guardian
from jupyter_dlaas.runtime.system.inotify import Watch
from jupyter_dlaas.runtime.system.process import Identity, activity_of, open_process, send
from jupyter_dlaas.runtime.zygote.start_guardian import exit_code_of

__all__ = ["JobWatch"]

BATCH_S: Final = 0.01
"""Time within which changes are reported once: a log of 10,000 lines a second must not wake the loop as often."""
POLL_S: Final = 0.25
"""Interval of polling if inotify is missing or exhausted."""
CHECK_S: Final = 1.0
STOPPED_S: Final = 5.0
"""Time that a guardian may be stopped (SIGSTOP), since its gang may wait for it."""
log = logging.getLogger(__name__)


def _queue_length() -> int:
    """Return the number of events that the kernel keeps before it drops new ones."""
    try:
        return int(Path("/proc/sys/fs/inotify/max_queued_events").read_text(encoding="ascii"))
    except (OSError, ValueError):
        return 16384


class JobWatch:
    """Watch of jobs until it is closed. Belongs to the event loop in which it was created.

    `changed(job, stream)` for each stream that may have grown, `gone(job)` once for each guardian that ended.
    """

    def __init__(self, changed: Changed, gone: Callable[[str], None]) -> None:
        self._loop = asyncio.get_running_loop()
        self._changed, self._gone = changed, gone
        self._watch = Watch()
        self._folders: dict[str, JobFolder] = {}
        self._by_root: dict[Path, JobFolder] = {}
        self._guardians: dict[str, tuple[int, Identity]] = {}
        self._batch_timer: asyncio.TimerHandle | None = None
        self._poll_timer: asyncio.TimerHandle | None = None
        self._check_timer: asyncio.TimerHandle | None = None
        self._stopped: dict[str, float] = {}
        """Guardian -> time since which it is stopped."""
        self._liveness = LivenessProbe()
        self._losses: dict[str, Loss] = {}
        """Losses of guardians that were killed here, or that exited by themselves."""
        self._removed: set[str] = set()
        """Jobs whose directory was missing at the last check."""
        self._queue = _queue_length()
        self._listen()

    # ---- folders ---------------------------------------------------------------------------------------------

    def follow(self, folder: JobFolder) -> None:
        """Start watching the job; may be repeated. Raises FileNotFoundError if its directory is missing."""
        if folder.job in self._folders:
            return
        self._watch.add(folder.root)
        self._folders[folder.job] = self._by_root[folder.root] = folder
        for _, learner in folder.learners():
            with suppress(FileNotFoundError):
                self._watch.add(learner)
        if self._watch.must_poll and self._poll_timer is None:
            self._poll()

    def unfollow(self, job: str) -> None:
        """Stop watching the job's streams; its guardian, if any, stays watched."""
        folder = self._folders.pop(job, None)
        if folder is not None:
            del self._by_root[folder.root]
            for _, learner in folder.learners():
                self._watch.remove(learner)
            self._watch.remove(folder.root)

    def follows(self) -> tuple[str, ...]:
        """Return the watched jobs."""
        return tuple(self._folders)

    def _listen(self) -> None:
        self._batch_timer = None
        if self._watch.fd is not None:
            self._loop.add_reader(self._watch.fd, self._read)

    def _poll(self) -> None:
        self._poll_timer = None
        if self._watch.must_poll:
            self._poll_timer = self._loop.call_later(POLL_S, self._poll)
            self._read_now()

    def _read(self) -> None:
        assert self._watch.fd is not None
        self._loop.remove_reader(self._watch.fd)
        self._batch_timer = self._loop.call_later(BATCH_S, self._listen)
        self._read_now()

    def _read_now(self) -> None:
        news: dict[tuple[str, str], None] = {}
        is_flooded = self._is_flooded()
        for path in sorted(self._watch.read()):
            folder = self._by_root.get(path.parent) or self._by_root.get(path.parent.parent)
            if folder is None:
                continue
            if path.parent == folder.root and path.name.startswith("learner-"):
                with suppress(OSError):  # a file of that name, or removed meanwhile
                    self._watch.add(path)
                path = path / LOG  # it may have been written before it was watched
            if path == folder.root / "status.json":
                self._find(folder)
            elif (grown := stream_of(path, folder.root)) is not None:
                news[(folder.job, grown)] = None
        if is_flooded:
            self._check_all_jobs(news)
        for job, stream in news:
            self._changed(job, stream)

    def _is_flooded(self) -> bool:
        """Return whether the kernel may have dropped events, judged by its unread bytes: an event has at least 16."""
        if self._watch.fd is None:
            return False
        waiting = struct.unpack("i", fcntl.ioctl(self._watch.fd, termios.FIONREAD, bytes(4)))[0]
        return bool(waiting >= 16 * self._queue)

    def _check_all_jobs(self, news: dict[tuple[str, str], None]) -> None:
        """Check all jobs, because the kernel dropped events."""
        for folder in self._folders.values():
            for _, learner in folder.learners():
                with suppress(OSError):
                    self._watch.add(learner)
            self._find(folder)
            for stream in folder.stream_files():
                news[(folder.job, stream)] = None

    # ---- guardians -------------------------------------------------------------------------------------------

    def hold(self, job: str, guardian: Identity) -> bool:
        """Watch a guardian's process. Return False if exactly this process is not alive."""
        if job in self._guardians and self._guardians[job][1] == guardian:
            return True
        fd = open_process(guardian)
        if fd is None:
            return False
        self._drop(job)
        self._losses.pop(job, None)  # of an earlier guardian
        self._guardians[job] = (fd, guardian)
        self._loop.add_reader(fd, self._ended, job, fd)
        if self._check_timer is None:
            self._check_timer = self._loop.call_later(CHECK_S, self._check_guardians)
        return True

    def _check_guardians(self) -> None:
        """Kill guardians that stay stopped or hang: the learners outlive them, and new guardians take over."""
        self._check_timer = self._loop.call_later(CHECK_S, self._check_guardians) if self._guardians else None
        self._report_removed()
        now_s, before = self._loop.time(), self._stopped
        self._stopped = {}
        for job, (_, guardian) in self._guardians.items():
            activity = activity_of(guardian)
            if activity is not None and activity.is_stopped:
                since_s = self._stopped[job] = before.get(job, now_s)
                if now_s - since_s >= STOPPED_S:
                    self._end(job, guardian, f"It was stopped (SIGSTOP) for {STOPPED_S:.0f} s and was ended")
        living = {job: (held[1], self._folders[job].root) for job, held in self._guardians.items() if self._has(job)}
        for job in self._liveness.check(living):
            self._end(job, living[job][0], f"It did not answer for {HUNG_CHECKS * CHECK_S:.0f} s and was ended")

    def _has(self, job: str) -> bool:
        return job in self._folders and job not in self._stopped

    def _end(self, job: str, guardian: Identity, why: str) -> None:
        """End exactly this process: by pid and start time."""
        log.warning("guardian %d of %s: %s", guardian.pid, job, why)
        self._losses[job] = Loss(text=why)
        send(guardian, signal.SIGKILL)

    def see_exit(self, job: str, guardian: Identity) -> None:
        """Note how a guardian exited, if it did so by itself."""
        code = exit_code_of(guardian.pid)
        if code is not None:
            self._losses[job] = Loss(text=f"It ended with exit code {code}", has_exited=True)

    def loss_of(self, job: str) -> Loss:
        """Return how the last guardian of the job was lost, as far as is known, and drop the record."""
        return self._losses.pop(job, Loss())

    def _report_removed(self) -> None:
        """Report directories missing for a whole interval; the kernel does so only once nothing in them is open."""
        gone = {job for job, folder in self._folders.items() if not folder.root.is_dir()}
        for job in sorted(gone & self._removed):
            self._changed(job, JOURNAL)
        self._removed = gone

    def is_guarded(self, folder: JobFolder) -> bool:
        """Return whether a guardian of the job is alive, including one that is not watched."""
        return folder.job in self._guardians or self._find(folder)

    def guardian_of(self, job: str) -> Identity | None:
        """Return the watched guardian of the job; None if there is none."""
        held = self._guardians.get(job)
        return None if held is None else held[1]

    def guarded(self) -> tuple[str, ...]:
        """Return the jobs whose guardians are watched."""
        return tuple(self._guardians)

    def _find(self, folder: JobFolder) -> bool:
        if folder.job in self._guardians:
            return True
        guardian = folder.guardian()
        if guardian is not None and self.hold(folder.job, guardian):
            return True
        if is_closed(folder.root / STREAM_FILES[JOURNAL]):
            return False  # its last guardian has ended, and the next one will report itself
        guardian = find_guardian(folder.root)  # status.json may be lost, or name another guardian
        return guardian is not None and self.hold(folder.job, guardian)

    def _ended(self, job: str, fd: int) -> None:
        """Handle the end of a guardian's process; another one may have replaced it already."""
        self._loop.remove_reader(fd)
        if job in self._guardians and self._guardians[job][0] == fd:
            self.see_exit(job, self._guardians[job][1])
            del self._guardians[job]
        os.close(fd)
        if job in self._folders:
            self._find(self._folders[job])
        self._gone(job)

    def _drop(self, job: str) -> None:
        held = self._guardians.pop(job, None)
        if held is not None:
            self._loop.remove_reader(held[0])
            os.close(held[0])

    def forget(self, job: str) -> None:
        """Drop everything about this job."""
        self._losses.pop(job, None)
        self.unfollow(job)
        self._drop(job)

    def close(self) -> None:
        """Stop, and release all descriptors and timers."""
        self._liveness.close()
        for timer in (self._batch_timer, self._poll_timer, self._check_timer):
            if timer is not None:
                timer.cancel()
        for job in list(self._guardians):
            self._drop(job)
        self._folders.clear()
        self._by_root.clear()
        if self._watch.fd is not None:
            self._loop.remove_reader(self._watch.fd)
        self._watch.close()
