"""Jobs of a pool that a change of the pool would interrupt, and the pool's lock while it is changed."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from dlaas_server.pools.pool_lock import open_pool_lock, take_pool_lock
from dlaas_server.store import STORE_FILE, Store
from jupyter_dlaas.client import engine_control
from jupyter_dlaas.client.discovery import SocketEndpoint
from jupyter_dlaas.client.http import Client
from jupyter_dlaas.wire.protocol import State, Unavailable

__all__ = ["UnfinishedJob", "jobs_at_engine", "jobs_in_store", "without_engine"]

LOCK_S: Final = 20.0
POLL_S: Final = 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class UnfinishedJob:
    """A job that still runs, waits or can be resumed."""

    id: str
    state: State


def jobs_at_engine(directory: Path) -> Sequence[UnfinishedJob]:
    """Return the unfinished jobs that the running engine knows; none if no engine runs."""
    if engine_control.state(directory) is None:
        return ()
    states = ",".join(state for state in State if not state.is_final)
    views = Client(at=[SocketEndpoint(directory, may_start=False)]).jobs(state=states)
    return tuple(UnfinishedJob(id=view.id, state=view.state) for view in views)


def jobs_in_store(directory: Path) -> Sequence[UnfinishedJob]:
    """Return the unfinished jobs of the store, and those that are about to end. Only where no engine runs."""
    path = directory / STORE_FILE
    if not path.exists():
        return ()
    return asyncio.run(_stored(path))


async def _stored(path: Path) -> Sequence[UnfinishedJob]:
    store = await Store.open(path)
    try:
        jobs = (await store.load()).jobs.values()
    finally:
        await store.close()
    return tuple(
        UnfinishedJob(id=job.id, state=job.state) for job in jobs if not (job.state.is_final and job.is_closed)
    )


@contextmanager
def without_engine(directory: Path) -> Iterator[None]:
    """Stop the pool's engine and keep others from starting. Jobs keep running. Raises Unavailable or PoolError."""
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    lock = open_pool_lock(directory)
    try:
        until_s = time.monotonic() + LOCK_S
        while not _stop_and_take(directory, lock):
            if time.monotonic() > until_s:
                raise Unavailable(f"the pool in {directory} is locked by another process, perhaps on another machine")
            time.sleep(POLL_S)  # an engine that is starting has the lock, but no socket yet
        yield
    finally:
        os.close(lock)


def _stop_and_take(directory: Path, lock: int) -> bool:
    engine_control.stop(directory)
    return take_pool_lock(lock)
