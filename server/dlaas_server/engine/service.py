"""Engine of one pool.

Takes the pool's lock first, then opens the store, then serves. A second engine of the same pool exits 0 at once.
Exits after `--idle-s` seconds without requests and unfinished jobs.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import logging
import os
import signal
import socket
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

import tornado.httpserver

from dlaas_server.core.lifecycle.requests import ExpireJobs
from dlaas_server.core.planning.user_limits import UserLimits
from dlaas_server.engine.blobs import Blobs
from dlaas_server.engine.http import BODY_BYTES_MAX, application, user_name
from dlaas_server.engine.job_stream import Watchers
from dlaas_server.engine.lifecycle import Lifecycle
from dlaas_server.engine.operations import Requests
from dlaas_server.engine.pool_clock import PoolClock
from dlaas_server.engine.websocket import StreamHandler
from dlaas_server.pools.base import Pool
from dlaas_server.pools.config import PoolConfig, load_config
from dlaas_server.pools.local import LocalPool
from dlaas_server.pools.local.job_folder import in_words
from dlaas_server.pools.pool_lock import open_pool_lock, take_pool_lock
from dlaas_server.pools.selection.recorded_place import check_place, place_text
from dlaas_server.store import STORE_FILE, Store
from jupyter_dlaas._version import __version__
from jupyter_dlaas.jobdir.atomic_files import read_json
from jupyter_dlaas.runtime.system.process import boot_id, identity, is_alive, recorded
from jupyter_dlaas.wire.codec import DlaasError
from jupyter_dlaas.wire.protocol import PROTOCOL

__all__ = ["configured_pool", "main", "remove_old_jobs", "serve"]

log = logging.getLogger("dlaas.engine")
IDLE_S: Final = 600.0
RETENTION_INTERVAL_S: Final = 3600.0


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command and return the exit code."""
    description = "Serve the jobs of one pool, in the foreground, until it was idle for some time."
    parser = argparse.ArgumentParser(prog="python -m dlaas_server.engine", description=description)
    parser.add_argument("--pool-dir", type=Path, required=True, help="the pool's directory, created if missing")
    parser.add_argument("--idle-s", type=float, default=IDLE_S, help="exit after this many idle seconds; 0: never")
    options = parser.parse_args(argv)
    logging.basicConfig(
        level=logging.INFO,
        stream=sys.stderr,
        format="%(asctime)s.%(msecs)03d %(levelname)s %(message)s",
        datefmt="%F %T",
    )
    # Whoever started the engine may have blocked its signals, or ignored the ends of child processes.
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    folder: Path = options.pool_dir.absolute()
    try:
        with in_words("its directory is not writable"):
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            lock = open_pool_lock(folder)
        if not _locked(lock) or _other_engine(folder):
            print(f"another engine already serves {folder}", file=sys.stderr)
            return 0
        asyncio.run(serve(folder, options.idle_s))
    except DlaasError as error:
        print(f"the engine of {folder} cannot start: {error}", file=sys.stderr)
        return 1
    return 0


def _locked(lock: int) -> bool:
    """Take the pool's lock until this process ends, and record in it who has it."""
    if not take_pool_lock(lock):
        return False
    with contextlib.suppress(OSError):  # only informative: a full disk must not prevent the deletion of jobs
        os.ftruncate(lock, 0)
        os.write(lock, json.dumps({"host": socket.gethostname(), "boot": boot_id(), "pid": os.getpid()}).encode())
    return True


def _other_engine(folder: Path) -> bool:
    """Return whether another engine is alive although this one has the lock: the lock file was removed by hand."""
    other = recorded(read_json(folder / "engine.json"))
    return other is not None and other.pid != os.getpid() and is_alive(other)


def configured_pool(folder: Path, config: PoolConfig, at_uptime: Callable[[float], float]) -> Pool:
    """Return the pool that a configuration describes: this machine, or a cluster."""
    if config.cluster is None:
        return LocalPool(folder, config=config, at_uptime=at_uptime)
    from dlaas_server.pools.kubernetes.pool import KubernetesPool  # other pools never load it

    return KubernetesPool(folder, config.cluster, config=config, at_uptime=at_uptime)


async def serve(folder: Path, idle_s: float) -> None:
    """Serve the pool until a signal arrives or it was idle for `idle_s`."""
    store = await Store.open(folder / STORE_FILE)
    if store.warning:
        log.warning("%s", store.warning)
    clock = PoolClock(folder)
    config = load_config(folder)
    try:
        jobs = (await store.load()).jobs.values()
        check_place(folder, config, [job.id for job in jobs if not (job.state.is_final and job.is_closed)])
    except DlaasError:
        await store.close()
        raise
    pool = configured_pool(folder, config, clock.at_uptime)
    retention = config.retention
    lifecycle = Lifecycle(store, pool, user_name(os.getuid()), clock.now_s)
    lifecycle.drift, lifecycle.slept = clock.drift_s, clock.slept_s
    clock.start_after(await store.last_s())
    lifecycle.configured = config.policy
    lifecycle.runs_on = place_text(config)
    lifecycle.admins = frozenset(config.pool.admins)
    blobs = Blobs(folder / "blobs")
    lifecycle.blobs = lambda sha256: str(blobs.path(sha256))
    limits = config.pool
    lifecycle.user_limits = UserLimits(queued=limits.queued_per_user, priority=limits.priority_max)
    lifecycle.keep_s = None if retention.days is None else retention.days * 86400
    lifecycle.keep_jobs = retention.jobs
    watchers = Watchers()
    lifecycle.listeners.append(watchers)
    await lifecycle.open()
    server = tornado.httpserver.HTTPServer(
        application(Requests(lifecycle, watchers, blobs), StreamHandler), max_buffer_size=BODY_BYTES_MAX
    )
    ended = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):  # before a client finds the socket and stops the engine
        asyncio.get_running_loop().add_signal_handler(number, ended.set)
    with in_words("its socket cannot be created"):
        bound = _bound(folder)
    with bound as listening:
        server.add_socket(listening)
        try:
            _announce(folder)
        except OSError:  # the disk is full
            store.release_reserve()
            with in_words("its directory is not writable"):
                _announce(folder)
        log.info("serving pool %s in %s", pool.name, folder)
        loop_task = asyncio.create_task(lifecycle.run(), name="lifecycle")
        loop_task.add_done_callback(lambda _: ended.set())
        retention_task = asyncio.create_task(_enforce_retention(lifecycle, blobs), name="retention")
        await _until_idle(lifecycle, ended, idle_s)
        retention_task.cancel()
        server.stop()
        if not loop_task.done():  # else it crashed: a client that finds the socket of a dead engine starts another one
            (folder / "engine.sock").unlink(missing_ok=True)
    await lifecycle.close()
    await loop_task
    await store.close()
    log.info("ended")


async def _enforce_retention(lifecycle: Lifecycle, blobs: Blobs) -> None:
    """Remove ended jobs beyond the retention limits periodically."""
    while True:
        try:
            await blobs.collect(lifecycle.store)  # records the blobs that are needed now
            gone = await remove_old_jobs(lifecycle)
            if gone:
                log.info("removed %d ended jobs beyond the retention limits", len(gone))
            await blobs.collect(lifecycle.store)
        except DlaasError as error:
            log.warning("cannot remove old jobs: %s", error)
        await asyncio.sleep(RETENTION_INTERVAL_S)


async def remove_old_jobs(lifecycle: Lifecycle) -> list[str]:
    """Remove ended jobs that are older, or more, than the retention limits allow. Return their ids."""
    now_s, keep_s, keep_jobs = lifecycle.clock(), lifecycle.keep_s, lifecycle.keep_jobs
    ended = [j for j in lifecycle.jobs.values() if j.state.is_final and j.is_closed]
    ended.sort(key=lambda j: (-(j.ended_s or j.submitted_s), -j.number))
    old = [j.id for j in ended if keep_s is not None and (j.ended_s or j.submitted_s) < now_s - keep_s]
    surplus = [] if keep_jobs is None else [j.id for j in ended[keep_jobs:]]
    gone = sorted({*old, *surplus})
    if gone:
        await lifecycle.post(ExpireJobs(jobs=tuple(gone)))
    for job in gone:
        await lifecycle.pool.remove(job)
    return gone


async def _until_idle(lifecycle: Lifecycle, ended: asyncio.Event, idle_s: float) -> None:
    while not ended.is_set():
        since_s = lifecycle.idle_since_s
        left = None
        if idle_s > 0:
            left = idle_s if since_s is None else since_s + idle_s - lifecycle.clock()
            if left <= 0:
                log.info("exiting after %.0f s without work", idle_s)
                return
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(left):
                await ended.wait()


def _bound(folder: Path) -> socket.socket:
    """Return the pool's socket, for this user only. It is bound through the folder's descriptor: paths may be long."""
    listening = socket.socket(socket.AF_UNIX)
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        (folder / "engine.sock").unlink(missing_ok=True)
        mask = os.umask(0o177)
        try:
            here = f"/proc/self/fd/{descriptor}" if sys.platform == "linux" else str(folder)
            listening.bind(f"{here}/engine.sock")
        finally:
            os.umask(mask)
    finally:
        os.close(descriptor)
    listening.listen(128)
    listening.setblocking(False)
    return listening


def _announce(folder: Path) -> None:
    """Write the discovery file atomically."""
    me = identity(os.getpid())
    assert me is not None, "this process is alive"
    record = {
        "pid": me.pid,
        "start": me.start,
        "boot": me.boot,
        "host": socket.gethostname(),
        "version": __version__,
        "protocol": PROTOCOL,
        "socket": str(folder / "engine.sock"),
        "python": sys.executable,
    }
    partial = folder / ".engine.json"
    partial.write_text(json.dumps(record))
    partial.replace(folder / "engine.json")
