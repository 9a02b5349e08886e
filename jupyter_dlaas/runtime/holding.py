"""Who guards a job: one process at a time, by a lock that the system takes back when its holder is gone."""

from __future__ import annotations

import fcntl
import os
import time
from pathlib import Path
from typing import Final

from jupyter_dlaas.runtime.gang import told
from jupyter_dlaas.runtime.journal import read_facts
from jupyter_dlaas.runtime.keeper import keep

__all__ = ["hold"]

_PATIENCE_S: Final = 5.0


def hold(job_dir: Path) -> bool:
    """Become the one who guards this job, for as long as this process lives; False where another one does.

    One that has said its last word and is about to be gone is waited for. Who holds it leaves a keeper behind.
    """
    fd = os.open(job_dir / "guardian.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    deadline = time.monotonic() + _PATIENCE_S
    while True:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if told(read_facts(job_dir / "journal.jsonl")[0]).closed_revision is None or time.monotonic() > deadline:
                return False
        else:
            keep(job_dir)
            return True
        time.sleep(0.005)
