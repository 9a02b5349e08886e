"""A pool's lock: the process that holds it is the only one that may lend the pool's devices or change its kind."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

from dlaas_server.pools.base import PoolError

__all__ = ["open_pool_lock", "take_pool_lock"]


def open_pool_lock(folder: Path) -> int:
    """Return a descriptor of the lock of the pool in `folder`, not yet taken. Closing it releases the lock."""
    return os.open(folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)


def take_pool_lock(lock: int) -> bool:
    """Take the lock, or return False if another process has it. Raises PoolError on a file system without locks."""
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        raise PoolError(
            f"its file system does not support locks ({error.strerror}), so two engines could allocate the "
            "same devices. Set JUPYTER_DLAAS_POOL_DIR to a directory on a local disk"
        ) from error
    return True
