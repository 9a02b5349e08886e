"""Pool on this machine: facts in files, work in processes, and no thread per job."""

from __future__ import annotations

import asyncio
import hashlib
import logging
import os
import shutil
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Final, Protocol, TypeVar

import jupyter_dlaas
from dlaas_server.core.lifecycle.recovery import StoredJob
from dlaas_server.core.model.cluster import Node
from dlaas_server.pools.base import (
    JOURNAL,
    Changed,
    Chunk,
    InterpreterMissing,
    Loss,
    PoolError,
    PoolUnavailable,
)
from dlaas_server.pools.config import PoolConfig, load_config
from dlaas_server.pools.devices import Holder, Probe, choose_probe, seat_environment
from dlaas_server.pools.local.fact_times import on_clock
from dlaas_server.pools.local.job_folder import JobFolder, in_words
from dlaas_server.pools.local.job_watch import JobWatch
from dlaas_server.pools.local.processes import end_processes, is_deserted
from dlaas_server.pools.local.seats import missing_seats
from dlaas_server.pools.local.slow_starts import SlowStarts, is_temporary
from dlaas_server.pools.local.stored_job import payload_of, stored_job
from dlaas_server.pools.paths import safe_parts
from jupyter_dlaas.jobdir.atomic_files import send_datagram
from jupyter_dlaas.runtime.hosts.resource_limits import limits_in_words
from jupyter_dlaas.runtime.system.process import JOB_MARK, Identity, environment_of, send
from jupyter_dlaas.runtime.zygote.start_guardian import (
    InterpreterUnusable,
    Started,
    StartError,
    reap,
    start_caretaker,
    start_guardian,
    warm,
)
from jupyter_dlaas.wire.codec import Json
from jupyter_dlaas.wire.journal import Fact, MemberWanted, SeatRefused, Wanted
from jupyter_dlaas.wire.masked_records import masked_fact
from jupyter_dlaas.wire.protocol import JobSpec, NotFound, Refused
from jupyter_dlaas.wire.secret_masking import NO_MASK, Mask, mask_of
from jupyter_dlaas.wire.waiting import WaitingReason

__all__ = ["LocalPool", "Starter"]

log = logging.getLogger(__name__)
T = TypeVar("T")

POOL_VARIABLE: Final = "JUPYTER_DLAAS_POOL_DIR"
PROBE_INTERVAL_S: Final = 10.0
EXIT_CHECKS: Final = 200
EXIT_CHECK_S: Final = 0.01
LEVEL_0: Final = "level 0: jobs run as you, each in its own session; CUDA_VISIBLE_DEVICES is not enforced"
SMALL_BYTES: Final = 1 << 18
"""Largest read without a thread: the page cache serves it in microseconds."""


class Starter(Protocol):
    """Function that starts a guardian and returns once its process exists."""

    def __call__(
        self,
        job_dir: Path,
        *,
        interpreter: str,
        package_dir: Path,
        environment: Mapping[str, str],
        zygote_dir: Path | None = None,
        framework: str | None = None,
    ) -> Started: ...


class LocalPool:
    """Pool of jobs on this machine, kept in `directory`.

    A job's directory contains its whole state, so a new engine knows what the previous one knew.
    """

    isolation = LEVEL_0

    def __init__(
        self,
        directory: Path,
        *,
        config: PoolConfig | None = None,
        probe: Probe | None = None,
        start: Starter = start_guardian,
        uses_zygote: bool | None = None,
        at_uptime: Callable[[float], float] | None = None,
        has_learners: bool = True,
    ) -> None:
        """Keep jobs in a directory. `has_learners` False: only guardians run here, and learners elsewhere."""
        directory = directory.resolve()  # a job is identified by its directory, so the path must be unique
        self.path = directory
        self.config = load_config(directory) if config is None else config
        self.name = self.config.pool.name or directory.name
        self.unit = "CPU slot"
        self._jobs_dir = directory / "jobs"
        self._jobs_inode = 0
        self._probe = probe
        self._start = start
        self._has_learners = has_learners
        if uses_zygote is None:
            uses_zygote = os.environ.get("JUPYTER_DLAAS_WARM", "1") != "0"
        self._zygote_dir = directory / "zygotes" if uses_zygote else None
        self._nodes: tuple[Node, ...] = ()
        self._package_dir = directory
        self._changed: Changed = lambda job, stream: None
        self._nodes_changed: Callable[[], None] = lambda: None
        self._watch: JobWatch | None = None
        self._probing: asyncio.Task[None] | None = None
        # One thread for all starts: they take milliseconds, and the runtime's list of children is not thread-safe.
        self._starting = ThreadPoolExecutor(1, thread_name_prefix="guardians")
        self._specs: dict[str, JobSpec] = {}
        self._warming: set[asyncio.Task[None]] = set()
        self._at_uptime = at_uptime
        self._locks: dict[str, asyncio.Lock] = {}
        self._masks: dict[str, Mask] = {}
        self._silent: dict[str, int] = {}
        """Job -> size of its journal when its guardian was started; if it has not grown, it wrote nothing."""
        self._lent: dict[str, tuple[frozenset[str], frozenset[str]]] = {}
        """Job -> devices of the last document and of the previous one, whose learners may still be stopping."""
        self._refused: dict[str, tuple[SeatRefused, ...]] = {}
        self._slow = SlowStarts(lambda job, stream: self._changed(job, stream))

    # ---- open and close --------------------------------------------------------------------------------------

    async def open(self, changed: Changed, nodes_changed: Callable[[], None]) -> None:
        """Find the devices, and the jobs and guardians of an earlier engine."""
        self._changed, self._nodes_changed = changed, nodes_changed
        self.isolation = f"{LEVEL_0}; {limits_in_words()}"
        with in_words(f"the pool's directory {self.path} is not usable"):
            self._jobs_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._jobs_inode = self._jobs_dir.stat().st_ino
            if self._zygote_dir is not None:
                self._zygote_dir.mkdir(mode=0o700, exist_ok=True)
            self._package_dir = await asyncio.to_thread(_package_dir, self.path / "runtime")
        if self._probe is None and self._has_learners:
            self._probe = await asyncio.to_thread(choose_probe, self.config, holder_of=self._holder_of)
        self._watch = JobWatch(changed, self._guardian_gone)
        for folder in await asyncio.to_thread(self._find_jobs):
            self._rediscover(folder)
        if self._probe is None:
            return
        self.unit = self._probe.unit
        self._nodes = await asyncio.to_thread(self._probe.nodes, self._lent_devices())
        if self.unit == "GPU":
            self._probing = asyncio.create_task(self._probe_again(), name="device probe")

    async def close(self) -> None:
        """Stop watching. Jobs continue."""
        await asyncio.gather(*self._warming)
        if self._probing is not None:
            self._probing.cancel()
            with suppress(asyncio.CancelledError):
                await self._probing
            self._probing = None
        if self._watch is not None:
            self._watch.close()
            self._watch = None
        self._slow.close()
        await asyncio.to_thread(self._starting.shutdown)
        if self._probe is not None:
            self._probe.close()

    def _find_jobs(self) -> list[JobFolder]:
        """Return the jobs that may have processes. Also remove directories that a crash left incomplete."""
        found: list[JobFolder] = []
        for entry in sorted(self._jobs_dir.iterdir()):
            if entry.name.startswith((".making-", ".removed-")):
                shutil.rmtree(entry, ignore_errors=True)
                continue
            folder = JobFolder(entry.name, entry)
            if entry.is_dir() and not folder.is_closed():
                found.append(folder)
        return found

    def _rediscover(self, folder: JobFolder) -> None:
        assert self._watch is not None
        self._watch.follow(folder)
        self._watch.is_guarded(folder)
        wanted = folder.wanted()
        if wanted is not None:
            self._lend(folder.job, wanted)

    async def directories(self) -> Sequence[str]:
        """Return the jobs that have a directory, whatever it contains."""
        return await asyncio.to_thread(
            lambda: sorted(e.name for e in os.scandir(self._jobs_dir) if e.is_dir() and not e.name.startswith("."))
        )

    async def stored_job(self, job: str) -> StoredJob:
        """Return the job as stored in its directory."""
        return await asyncio.to_thread(stored_job, self._folder(job))

    async def payload(self, job: str) -> Mapping[str, Json]:
        """Return what was submitted, from the directory."""
        return await asyncio.to_thread(payload_of, self._folder(job), self.path / "blobs")

    # ---- devices ---------------------------------------------------------------------------------------------

    def nodes(self) -> tuple[Node, ...]:
        """Return this machine, or the configured nodes."""
        return self._nodes

    async def _probe_again(self) -> None:
        assert self._probe is not None
        while True:
            await asyncio.sleep(PROBE_INTERVAL_S)
            nodes = await asyncio.to_thread(self._probe.nodes, self._lent_devices())
            if nodes != self._nodes:
                self._nodes = nodes
                self._nodes_changed()

    def _holder_of(self, pid: int) -> Holder:
        """Return what a process that uses a GPU is. In a container the driver reports pids of the host."""
        try:
            is_mine = Path(f"/proc/{pid}").stat().st_uid == os.getuid()
        except OSError:
            return Holder.UNSEEN
        environment = environment_of(pid)
        home = environment.get(JOB_MARK)
        if home is not None:
            return Holder.JOB if Path(home).parent == self._jobs_dir else Holder.OTHER
        return Holder.NOTEBOOK if is_mine and "JPY_PARENT_PID" in environment else Holder.OTHER

    def _lend(self, job: str, wanted: Wanted) -> None:
        now = frozenset(device for member in wanted.members for device in member.devices)
        before = self._lent.get(job, (frozenset[str](), frozenset[str]()))
        if before[0] != now:
            self._lent[job] = (now, before[0])

    def _lent_devices(self) -> Mapping[str, str]:
        return {device: job for job, both in self._lent.items() for some in both for device in some}

    def _seat(self, member: MemberWanted, spec: JobSpec) -> MemberWanted:
        """Return the member with the environment of its seat."""
        node = next((n for n in self._nodes if n.name == member.node), None)
        own = seat_environment(
            member.devices,
            cores_of_node=node.cpus if node else 1.0,
            slots_of_node=len(node.devices) if node else 1,
            cpus=spec.cpus_per_learner,
        )
        return replace(member, environment=own | dict(member.environment))

    # ---- jobs ------------------------------------------------------------------------------------------------

    async def create(self, job: str, owner: str, spec: JobSpec, environment: Mapping[str, str]) -> None:
        """Create the job's directory; an existing one is unchanged."""
        self._check_place()
        # So that train.py can load results of earlier jobs.
        variables = {POOL_VARIABLE: str(self.path), **environment} if self._has_learners else environment
        await asyncio.to_thread(self._folder(job).create, owner, spec, variables)

    async def put(self, job: str, path: str, data: bytes) -> None:
        """Store one file of the job atomically."""
        self._check_place()
        await asyncio.to_thread(self._folder(job).put, path, data)

    async def put_file(self, job: str, path: str, source: str) -> None:
        """Store a copy of a file."""
        self._check_place()
        await asyncio.to_thread(self._folder(job).put_file, path, source)

    async def remove(self, job: str) -> None:
        """Remove the job's files. Raises PoolError while its guardian is alive."""
        folder = self._folder(job)
        async with self._lock(job):
            await self._await_leaving_guardian(folder)
            if self._watching().is_guarded(folder):
                raise PoolError(f"job {job} cannot be removed: its guardian still runs")
            self._watching().forget(job)
            for kept in (self._specs, self._lent, self._masks, self._silent, self._refused):
                kept.pop(job, None)
            self._slow.forget(job)
            await asyncio.to_thread(folder.remove)
        self._locks.pop(job, None)

    def directory(self, job: str) -> str:
        """Return the job's directory."""
        return str(self._folder(job).root)

    def _folder(self, job: str) -> JobFolder:
        try:
            parts = safe_parts(job)
        except Refused as error:
            raise NotFound(f"the pool has no job {job!r}") from error
        if len(parts) != 1 or job.startswith("."):
            raise NotFound(f"the pool has no job {job!r}")
        return JobFolder(job, self._jobs_dir / job)

    def no_devices(self) -> str | None:
        """Return None: this machine has the devices that it has."""
        return None

    def unavailable(self) -> str | None:
        """Return what happened to the pool's directory, if the jobs cannot be found there."""
        try:
            is_ours = self._jobs_dir.stat().st_ino == self._jobs_inode
        except OSError:
            return f"{self._jobs_dir} does not exist; is its disk mounted?"
        if is_ours or self._watch is None:
            return None
        return (
            f"{self._jobs_dir} was moved or replaced while the engine was running; move it back, or restart the engine."
        )

    def _check_place(self) -> None:
        """Raise PoolUnavailable if the pool's directory was replaced: its jobs may belong to another pool."""
        why = self.unavailable()
        if why is not None:
            raise PoolUnavailable(why)

    def _watching(self) -> JobWatch:
        if self._watch is None:
            raise PoolError(f"pool {self.name} is not open")
        return self._watch

    def _lock(self, job: str) -> asyncio.Lock:
        return self._locks.setdefault(job, asyncio.Lock())

    # ---- guardians -------------------------------------------------------------------------------------------

    async def act(self, job: str, wanted: Wanted) -> None:
        """Write the document and wake the job's guardian; start one if none is alive."""
        folder, watch = self._folder(job), self._watching()
        async with self._lock(job):  # or two acts at once would start two guardians
            self._check_place()
            folder.must_exist()
            if job not in self._specs:
                self._specs[job] = folder.spec()
            spec = self._specs[job]
            stored = folder.wanted()
            if stored is not None and stored.revision > wanted.revision:
                return
            if self._has_learners:
                refused = self._refused[job] = missing_seats(wanted, stored, self._nodes)
                if refused:
                    self._changed(job, JOURNAL)
                    return  # the former document stays in force: no learner of a gang starts without the others
                wanted = replace(wanted, members=tuple(self._seat(m, spec) for m in wanted.members))
            if stored != wanted:
                folder.write_wanted(wanted)
            self._lend(job, wanted)
            with in_words(f"job {job} cannot be watched"):
                watch.follow(folder)
            await self._await_leaving_guardian(folder)
            if watch.is_guarded(folder):
                send_datagram(folder.root / "guardian.wake", b"wanted")
            else:
                await self._start_guardian(folder, spec)

    async def _await_leaving_guardian(self, folder: JobFolder) -> None:
        """Wait for the end of a guardian that closed the job: it reads nothing more. Kill it if it stays."""
        for check in range(2 * EXIT_CHECKS):
            closed_bytes = folder.closed_bytes()
            if not self._watching().is_guarded(folder) or closed_bytes < 0:
                return
            if self._silent.get(folder.job) == closed_bytes:
                return  # the previous guardian closed the job
            leaving = self._watching().guardian_of(folder.job)
            if check == EXIT_CHECKS and leaving is not None:
                log.warning("guardian %d of %s closed the job and did not exit: ended", leaving.pid, folder.job)
                send(leaving, signal.SIGKILL)
            await asyncio.sleep(EXIT_CHECK_S)

    async def warm(self, interpreter: str | None, environment: Mapping[str, str], framework: str | None) -> bool:
        """Start a zygote for this Python interpreter, unless there is one."""
        if self._zygote_dir is None:
            return False
        start = partial(
            warm,
            interpreter=interpreter or sys.executable,
            package_dir=self._package_dir,
            environment=environment,
            zygote_dir=self._zygote_dir,
            framework=framework,
        )
        try:
            return await asyncio.get_running_loop().run_in_executor(self._starting, start)
        except (OSError, StartError) as error:
            raise PoolError(f"{interpreter or sys.executable} cannot be prewarmed: {error}") from error

    async def _warm_after(self, spec: JobSpec, environment: Mapping[str, str]) -> None:
        """Prewarm the environment of a started job, which resizes and restarts use again."""
        try:
            await self.warm(spec.interpreter, environment, spec.framework)
        except PoolError as error:
            log.warning("%s", error)  # only an optimisation: jobs start without a zygote

    async def _start_guardian(self, folder: JobFolder, spec: JobSpec) -> None:
        environment, interpreter = folder.environment(), spec.interpreter or sys.executable

        def caretaker(*, is_unusable: bool) -> Started | None:
            return start_caretaker(
                folder.root,
                interpreter=interpreter,
                package_dir=self._package_dir,
                environment=environment,
                is_unusable=is_unusable,
            )

        def start() -> Started:
            try:
                return caretaker(is_unusable=False) or self._start(
                    folder.root,
                    interpreter=interpreter,
                    package_dir=self._package_dir,
                    environment=environment,
                    zygote_dir=self._zygote_dir,
                    framework=spec.framework,
                )
            except InterpreterUnusable:
                started = caretaker(is_unusable=True)
                if started is None:
                    raise
                return started

        self._silent[folder.job] = folder.journal_size()
        self._slow.began(folder.job, interpreter)
        try:
            started = await asyncio.get_running_loop().run_in_executor(self._starting, start)
        except InterpreterUnusable as error:
            raise InterpreterMissing(str(error)) from error
        except (OSError, StartError) as error:
            kind = PoolUnavailable if is_temporary(error) else PoolError
            raise kind(f"no guardian could be started for job {folder.job}: {error}") from error
        log.debug("guardian of %s: process %d, by %s", folder.job, started.pid, started.how)
        guardian = Identity(started.pid, started.start, started.boot)
        warming = asyncio.create_task(self._warm_after(spec, environment), name=f"warm for {folder.job}")
        self._warming.add(warming)
        warming.add_done_callback(self._warming.discard)
        if self._watch is not None and not self._watch.hold(folder.job, guardian):
            # It ended before it could be watched, so no watch reports its end.
            self._watch.see_exit(folder.job, guardian)
            asyncio.get_running_loop().call_soon(self._guardian_gone, folder.job)

    def _guardian_gone(self, job: str) -> None:
        """Check whether the guardian closed the journal; a closed job needs no watch."""
        self._starting.submit(reap)  # else each plainly started guardian would leave a zombie
        self._changed(job, JOURNAL)
        if self._watch is None or job in self._watch.guarded() or self._lock(job).locked():
            return  # another guardian is there, or is being started
        folder = self._folder(job)
        if folder.is_closed():
            for stream in folder.stream_files():
                self._changed(job, stream)
            self._watch.unfollow(job)
            for kept in (self._lent, self._specs, self._locks, self._silent):
                kept.pop(job, None)
            self._slow.forget(job)

    async def is_guarded(self, job: str) -> bool | None:
        """Return whether a guardian is alive; None while the pool's directory cannot be reached."""
        folder = self._folder(job)
        if self.unavailable() is not None:
            return None
        folder.must_exist()
        return self._watching().is_guarded(folder)

    def waiting(self, job: str) -> Sequence[WaitingReason]:
        """Return that the guardian's Python still starts, if that takes longer than usual."""
        if self._watch is None or self._watch.guardian_of(job) is None or job not in self._silent:
            return ()
        return () if self._folder(job).journal_size() > self._silent[job] else self._slow.reasons(job)

    def refused(self, job: str) -> Sequence[SeatRefused]:
        """Return the seats of the newest document that this machine does not have."""
        return self._refused.get(job, ())

    def loss_of(self, job: str) -> Loss:
        """Return how the job's last guardian was lost; if it exited by itself, with the last line of its log."""
        loss = self._watching().loss_of(job)
        if not loss.has_exited:
            return loss
        line = self._mask(job).text(self._folder(job).last_log_line())
        return replace(loss, text=f"{loss.text}: {line}") if line else loss

    async def end(self, job: str, *, kill: bool) -> bool:
        """Return whether it is proven that no process of the job is left. `kill`: first kill what is left."""
        folder, watch = self._folder(job), self._watching()
        self._check_place()
        async with self._lock(job):
            guardian = watch.guardian_of(job)
            if kill:
                is_over = await asyncio.to_thread(end_processes, folder.root, guardian)
            else:
                is_over = guardian is None and await asyncio.to_thread(is_deserted, folder.root)
            if is_over:
                folder.forget_wanted()
                watch.forget(job)
                for kept in (self._specs, self._lent, self._refused):
                    kept.pop(job, None)
        return is_over

    # ---- data of jobs ----------------------------------------------------------------------------------------

    async def facts(self, job: str, offset: int) -> tuple[Sequence[Fact], int]:
        """Return the facts after `offset`, which are synced to the disk."""
        folder = self._folder(job)
        try:
            facts, end = await asyncio.to_thread(folder.facts, offset)
        except NotFound:
            self._check_place()  # the directory of another pool proves nothing about our jobs
            raise
        if self._at_uptime is not None:
            facts = on_clock(facts, self._at_uptime, is_of_this_boot=folder.is_of_this_boot())
        mask = self._mask(job)
        return [masked_fact(fact, mask) for fact in facts], end  # an older guardian may have written them

    async def streams(self, job: str) -> Mapping[str, int]:
        """Return the existing streams with their sizes."""
        return self._folder(job).streams()

    async def read(self, job: str, stream: str, offset: int, limit: int) -> Chunk:
        """Return bytes of a stream."""
        mask, is_live = self._mask(job), job in self._watching().guarded()
        folder = self._folder(job)
        return await self._blocking(limit, lambda: folder.read(stream, offset, limit, mask=mask, is_live=is_live))

    def _mask(self, job: str) -> Mask:
        """Return the mask of the secrets in the job's environment."""
        if job not in self._masks:
            try:
                self._masks[job] = mask_of(self._folder(job).environment())
            except (NotFound, PoolError):
                return NO_MASK
        return self._masks[job]

    async def time_of(self, job: str, member: int, offset: int) -> float | None:
        """Return the time at which the byte at `offset` of a learner's log was written."""
        return self._folder(job).time_of(member, offset)

    async def files(self, job: str, folder: str) -> Mapping[str, int]:
        """Return the files below a folder, relative to it."""
        return await asyncio.to_thread(self._folder(job).files, folder)

    async def get(self, job: str, path: str, offset: int, limit: int) -> bytes:
        """Return bytes of one file of the job."""
        return await self._blocking(limit, lambda: self._folder(job).get(path, offset, limit))

    async def _blocking(self, limit: int, read: Callable[[], T]) -> T:
        return read() if limit <= SMALL_BYTES else await asyncio.to_thread(read)


def _package_dir(runtime: Path) -> Path:
    """Return a folder that contains only `jupyter_dlaas`, for the PYTHONPATH of jobs.

    The installation's own folder would add every package of the engine's environment to the user's.
    """
    package = Path(jupyter_dlaas.__file__).resolve().parent
    version = hashlib.sha256(f"{jupyter_dlaas.__version__}:{package}".encode()).hexdigest()[:16]
    folder = runtime / version
    link = folder / "jupyter_dlaas"
    if link.is_symlink() and link.resolve() == package:
        return folder
    making = runtime / f".making-{version}-{os.getpid()}"
    shutil.rmtree(making, ignore_errors=True)
    making.mkdir(mode=0o700, parents=True)
    (making / "jupyter_dlaas").symlink_to(package)
    if folder.exists():
        shutil.rmtree(folder)
    with suppress(FileExistsError):
        making.rename(folder)
    shutil.rmtree(making, ignore_errors=True)
    return folder
