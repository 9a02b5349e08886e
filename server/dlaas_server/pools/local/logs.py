"""Reading of learners' logs: secrets are masked, and dropped middles are skipped."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from dlaas_server.pools.base import Chunk
from jupyter_dlaas.jobdir.log_cap import CutLog
from jupyter_dlaas.wire.secret_masking import Mask

__all__ = ["read_log"]

TRIES: Final = 5


def read_log(fd: int, folder: Path, offset: int, limit: int, mask: Mask, *, is_live: bool) -> Chunk:
    """Return bytes of the log open as `fd`, in a learner's folder; if `offset` is in a gap, from the end of the gap.

    `is_live`: the log may grow; the beginning of a secret at its end is held back until the rest follows.
    """
    tries = 0
    while True:
        log = CutLog(fd, folder)
        start = log.next_offset(max(0, log.size + offset) if offset < 0 else min(offset, log.size))
        data = _masked(log, start, max(0, limit), mask, is_live=is_live)
        tries += 1
        if log.is_current() or tries == TRIES:  # else it may have been dropped while it was read
            return Chunk(start, start + len(data), log.size, data)


def _masked(log: CutLog, offset: int, limit: int, mask: Mask, *, is_live: bool) -> bytes:
    """Return bytes from `offset` on with secrets masked, including those that cross the ends of the range."""
    if not mask.forms:
        return log.pread(offset, limit)
    around = mask.longest_bytes
    first = max(log.start(offset), offset - around)
    end = offset - first + limit
    data = log.pread(first, end + around)
    if is_live and end >= len(data) and first + len(data) >= log.size:
        end = len(data) - mask.unfinished(data)
    return mask.data(data)[offset - first : end]
