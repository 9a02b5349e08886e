"""Reading learners' logs: secrets are masked, and what a cap has dropped is passed over."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from dlaas_server.pools.base import Chunk
from jupyter_dlaas.jobdir.log_cap import CutLog
from jupyter_dlaas.wire.secret_masking import Mask

__all__ = ["read_log"]

TRIES: Final = 5


def read_log(fd: int, folder: Path, offset: int, limit: int, mask: Mask, *, is_live: bool) -> Chunk:
    """Bytes of the log that `fd` is open on, in a learner's folder; after a gap where `offset` lies in one.

    `is_live`: more may come; the beginning of a secret at the end of the log waits for its rest.
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
    """Bytes from `offset` on, with secrets masked, also those that begin before or end after what is read."""
    if not mask.forms:
        return log.pread(offset, limit)
    around = mask.longest_bytes
    first = max(log.start(offset), offset - around)
    end = offset - first + limit
    data = log.pread(first, end + around)
    if is_live and end >= len(data) and first + len(data) >= log.size:
        end = len(data) - mask.unfinished(data)
    return mask.data(data)[offset - first : end]
