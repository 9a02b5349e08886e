"""Reads of files that change: one read at a time per job, and another one if its file changes meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator

__all__ = ["ChangeReader"]


class ChangeReader:
    """Reads a job's file after each change, so that the last read sees the last change."""

    def __init__(self, name: str, read: Callable[[str], Awaitable[None]]) -> None:
        self._name, self._read = name, read
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._unread: set[str] = set()

    def __iter__(self) -> Iterator[asyncio.Task[None]]:
        """Iterate over the running reads."""
        return iter(self._tasks.values())

    def changed(self, job: str) -> None:
        """Read the job's file, now or after the read in progress."""
        self._unread.add(job)
        if job not in self._tasks:
            self._tasks[job] = asyncio.create_task(self._read_changes(job), name=f"{self._name} {job}")

    async def _read_changes(self, job: str) -> None:
        try:
            while job in self._unread:
                self._unread.discard(job)
                await self._read(job)
        finally:
            self._unread.discard(job)
            del self._tasks[job]
