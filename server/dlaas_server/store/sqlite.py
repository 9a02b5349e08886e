"""Store: one SQLite file, one writer thread, one transaction per turn of the loop (group commit).

WAL with synchronous=FULL: commits survive `kill -9` and power loss. A single connection reads and writes:
SQLite before 3.51.3 can corrupt a WAL database when two connections write or checkpoint at once. On a network file
system WAL does not work: there the rollback journal is used.
"""

from __future__ import annotations

import asyncio
import errno
import json
import os
import shutil
import sqlite3
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType
from typing import Final, TypeVar

from dlaas_server.core.forecast.track_record import Forecast
from dlaas_server.core.lifecycle.event_codec import StoredEvent, event_to_fields, job_event_from_fields
from dlaas_server.core.lifecycle.job_events import JobEvent, Origin, job_from_fields, job_to_fields
from dlaas_server.core.model.job import Intent, Job
from dlaas_server.core.planning.pool_settings import Settings
from dlaas_server.store import schema
from jupyter_dlaas.wire.codec import DlaasError, Invalid, Json, decode, encode
from jupyter_dlaas.wire.journal import Goal
from jupyter_dlaas.wire.protocol import JobSpec

__all__ = [
    "STORE_FILE",
    "Batch",
    "DamagedRow",
    "Event",
    "Inserted",
    "Loaded",
    "Store",
    "StoreDamaged",
    "StoreError",
    "StoreTooNew",
]

T = TypeVar("T")
FORMER_NAMES: Final = MappingProxyType({"said": "estimate"})
"""Fields of stored forecasts that earlier releases called differently."""
CHECK_BYTES: Final = 64 << 20
"""Largest size in bytes at which a store is checked for damage when it is opened."""
RESERVE_BYTES: Final = 1 << 19
"""Enough to open a store and to write a halt, a cancellation or a deletion; the disk then has room for more."""
FREE_PAGES: Final = 32
"""Minimum number of free pages in the store."""
PROBE_BYTES: Final = 1 << 16
"""Free space without which no job is accepted: its directory has a dozen small files."""
CHECKPOINT_S: Final = 60.0
"""Interval of WAL checkpoints."""
STORE_FILE: Final = "store.sqlite3"
"""Name of the store in a pool's directory."""
NETWORK_FILE_SYSTEMS: Final = frozenset(
    {"nfs", "nfs4", "cifs", "smb3", "smbfs", "lustre", "beegfs", "gpfs", "glusterfs", "ceph", "afs", "9p"}
)


class StoreError(DlaasError):
    """The store could not commit (disk full, no permission); nothing of the turn was stored."""

    code = "unavailable"
    http_status = 503


class StoreDamaged(StoreError):
    """The file is not a database, or is inconsistent."""

    code = "store_damaged"


class StoreFull(StoreError):
    """The disk is full."""


class StoreTooNew(DlaasError):
    """A newer version of this program wrote the store."""

    code = "store_too_new"


@dataclass(frozen=True, slots=True)
class Event:
    """Row of the event table."""

    row: int
    at_s: float
    job: str
    kind: str
    text: str
    """Text for people; "" if there is none."""
    event: StoredEvent | None = None
    """Event that led to this row and those after it with further texts."""


@dataclass(frozen=True, slots=True)
class Inserted:
    """New job with the data from which its directory can be rebuilt, and the key of its request."""

    job: Job
    row: int
    payload: Mapping[str, Json]
    key: str
    digest: str
    replaces: bool = False
    """True if a damaged row of the same id may exist."""


@dataclass(slots=True)
class Batch:
    """Changes of one turn of the loop, committed atomically."""

    events: list[Event] = field(default_factory=list)
    inserted: list[Inserted] = field(default_factory=list)
    updated: dict[str, tuple[int, Job]] = field(default_factory=dict)
    deleted: list[str] = field(default_factory=list)
    settings: Settings | None = None
    """All run-time settings; None: unchanged."""
    forecasts: list[Forecast] = field(default_factory=list)
    """Start estimates of jobs that have started."""

    @property
    def frees(self) -> bool:
        """True if the batch frees devices or space and inserts no job."""
        leaving = (
            job.goal is not Goal.RUN or job.intent is not Intent.RUN or job.state.is_final
            for _, job in self.updated.values()
        )
        return not self.inserted and (bool(self.deleted) or any(leaving))

    def __bool__(self) -> bool:
        return bool(
            self.events or self.inserted or self.updated or self.deleted or self.settings is not None or self.forecasts
        )


@dataclass(frozen=True, slots=True)
class DamagedRow:
    """Unreadable row of a job."""

    id: str
    number: int
    owner: str
    spec: JobSpec | None
    """None if the spec is unreadable, too."""
    why: str


@dataclass(frozen=True, slots=True)
class Loaded:
    """Contents of the store, with which a new engine continues."""

    jobs: Mapping[str, Job]
    rows: Mapping[str, int]
    keys: Mapping[tuple[str, str], tuple[str, str]]
    """(owner, key) -> (job, digest of the request)."""
    last_row: int
    settings: Settings = field(default_factory=Settings)
    forecasts: tuple[Forecast, ...] = ()
    """Newest last."""
    damaged: tuple[DamagedRow, ...] = ()
    last_number: int = 0
    """Highest known job number."""
    notices: tuple[tuple[float, str], ...] = ()
    """Times and texts of losses of the store."""


class Store:
    """Store in an SQLite file, opened by `Store.open`. Its methods may be called only in the event loop's thread."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="store")
        self._db: sqlite3.Connection | None = None
        self.warning: str | None = None
        """Warning for the administrator (network file system)."""
        self.lost: str | None = None
        """Sentence on the loss of an earlier store; None if this one is intact or the first."""
        self._checkpointed_s = time.monotonic()
        self.is_new = False
        """True if it had no tables when it was opened."""
        self._reserve_path = path.with_name(path.name + ".reserve")
        self._number_path = path.with_name("last_number")
        """File beside the store with the last number, so that no number is reused when the store is lost."""
        self._number = self._read_number()
        self._event_counts = Counter[str]()
        """Job -> number of its events without a text."""

    @classmethod
    async def open(cls, path: Path) -> Store:
        """Open or create the store; a damaged one is moved aside. Raises StoreTooNew, StoreError."""
        store = cls(path)
        try:
            await store._do(store._connect, is_urgent=True)
        except StoreDamaged as error:
            await store.replace(str(error))
        return store

    async def replace(self, why: str) -> None:
        """Move the damaged files aside, for a repair, and create an empty store."""

        def act() -> None:
            db, self._db = self._db, None
            if db is not None:
                with suppress(sqlite3.Error):
                    db.close()
            stamp = time.strftime("%Y%m%d-%H%M%S", time.gmtime())
            for part in ("", "-wal", "-shm"):
                old = self._path.with_name(self._path.name + part)
                with suppress(FileNotFoundError):
                    old.rename(self._path.with_name(f"{self._path.name}.damaged-{stamp}{part}"))
            self.lost = f"The pool's store was damaged and moved aside to {self._path.name}.damaged-{stamp}. ({why})"

        await asyncio.get_running_loop().run_in_executor(self._thread, act)
        await self._do(self._connect)

    async def close(self) -> None:
        """Write the rest of the log into the file and close it."""
        await self._do(lambda db: db.close())
        self._thread.shutdown()

    async def load(self) -> Loaded:
        """Return all contents as of the last commit."""

        def read(db: sqlite3.Connection) -> Loaded:
            self._event_counts = Counter(dict(db.execute(schema.SELECT_EVENT_COUNTS)))
            return _load(db)

        loaded = await self._do(read, is_urgent=True)
        number = max(loaded.last_number, self._number)
        with suppress(OSError):  # a full disk: the next submit writes it
            self._keep_number(number)
        return replace(loaded, last_number=number)

    async def commit(self, batch: Batch) -> None:
        """Commit the batch durably and atomically. Raises StoreError."""

        def write(db: sqlite3.Connection) -> None:
            if batch.inserted:
                self._keep_number(max(new.job.number for new in batch.inserted))
            counts, new = self._event_counts, Counter(one.job for one in batch.events if not one.text)
            full = [job for job in new.keys() & batch.updated.keys() if counts[job] + new[job] > schema.EVENTS_KEPT]
            _write(db, batch, full)
            counts.update(new)
            for job in (*full, *batch.deleted):
                counts.pop(job, None)
            if time.monotonic() - self._checkpointed_s > CHECKPOINT_S:
                self._checkpointed_s = time.monotonic()
                with suppress(sqlite3.Error):  # the batch is durable; the next commit does it
                    self._reserve(db)
                    db.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchall()

        await self._do(write, is_urgent=batch.frees)

    async def payload(self, job: str) -> Mapping[str, Json]:
        """Return what was submitted: source, files, environment."""

        def read(db: sqlite3.Connection) -> Mapping[str, Json]:
            found = db.execute(schema.SELECT_PAYLOAD, (job,)).fetchone()
            if found is None:
                raise StoreError(f"the store has no source of {job}")
            body: Mapping[str, Json] = json.loads(found[0])
            return body

        return await self._do(read)

    async def history(self, job: str) -> list[Event]:
        """Return all events of a job, oldest first."""
        return await self._do(lambda db: [Event(*row) for row in db.execute(schema.SELECT_HISTORY, (job,))])

    async def events(self, job: str) -> tuple[JobSpec, list[tuple[float, Origin | JobEvent]]]:
        """Return the job's spec and all its events with their times, oldest first. Raises StoreError, Invalid."""

        def read(db: sqlite3.Connection) -> tuple[JobSpec, list[tuple[float, Origin | JobEvent]]]:
            rows = db.execute(schema.SELECT_REPLAY, (job,)).fetchall()
            if not rows:
                raise StoreError(f"the store has no events of {job}")
            spec = decode(JobSpec, json.loads(rows[0][0]), unknown="ignore")
            return spec, [(at_s, job_event_from_fields(json.loads(event))) for _, at_s, event in rows]

        return await self._do(read)

    async def blobs(self) -> frozenset[str]:
        """Return the SHA-256 of all uploaded bytes that jobs need."""
        return await self._do(lambda db: frozenset(name for (name,) in db.execute(schema.SELECT_BLOBS)))

    async def last_s(self) -> float:
        """Return the time of the last event; 0 if there is none."""
        return await self._do(lambda db: float((db.execute(schema.SELECT_LAST_TIME).fetchone() or (0.0,))[0]))

    def release_reserve(self) -> bool:
        """Release the reserved disk space. Return False if there is none."""
        try:
            self._reserve_path.unlink()
        except OSError:
            return False
        return True

    def _reserve(self, db: sqlite3.Connection) -> None:
        """Reserve space, by which jobs can be halted, cancelled and deleted when the disk is full.

        Free pages in the store and its log serve a running engine: no other program can take them. The reserved file
        serves an engine that starts.
        """
        with suppress(OSError):
            if shutil.disk_usage(self._path.parent).free <= 8 * RESERVE_BYTES:
                return
            if not self._reserve_path.exists():
                self._reserve_path.write_bytes(b"\x01" * RESERVE_BYTES)
            if db.execute("PRAGMA freelist_count").fetchone()[0] < FREE_PAGES:
                db.executescript(schema.ADD_FREE_PAGES)
                db.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchall()

    def _reuse_log(self) -> None:
        """Write the log's content into the store's file, so that the log is written again from its beginning."""
        if self._db is not None:
            with suppress(sqlite3.Error):
                self._db.execute("PRAGMA wal_checkpoint(RESTART)").fetchall()

    async def _do(self, work: Callable[[sqlite3.Connection], T], *, is_urgent: bool = False) -> T:
        """Run `work` in the store's thread; urgent work may use the reserved space if the disk is full."""

        def run() -> T:
            try:
                return attempt()
            except StoreFull:
                self._reuse_log()
            try:
                return attempt()
            except StoreFull:
                if not (is_urgent and self.release_reserve()):
                    raise
                self._reuse_log()  # immediately: other programs fill the disk, too
                return attempt()

        def attempt() -> T:
            try:
                if self._db is None:
                    self._path.touch(mode=0o600)
                    self._db = sqlite3.connect(self._path, isolation_level=None)
                return work(self._db)
            except (sqlite3.Error, OSError) as error:
                code = getattr(error, "sqlite_errorcode", 0) & 0xFF
                if code in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB):
                    raise StoreDamaged(f"the store {self._path} is damaged: {error}") from error
                if code == sqlite3.SQLITE_FULL or getattr(error, "errno", None) in (errno.ENOSPC, errno.EDQUOT):
                    raise StoreFull(
                        f"the disk that holds the pool's directory {self._path.parent} is full: delete ended jobs "
                        "(`jupyter dlaas delete JOB`) or free some space to continue"
                    ) from error
                if code == sqlite3.SQLITE_READONLY or getattr(error, "errno", None) == errno.EROFS:
                    raise StoreError(
                        f"the pool's directory {self._path.parent} is read-only: make it writable, or choose "
                        "another with JUPYTER_DLAAS_POOL_DIR"
                    ) from error
                raise StoreError(f"the store {self._path} cannot be used: {error}") from error

        return await asyncio.get_running_loop().run_in_executor(self._thread, run)

    def _read_number(self) -> int:
        try:
            return int(self._number_path.read_text(encoding="ascii"))
        except (OSError, ValueError):
            return 0

    def _keep_number(self, number: int) -> None:
        """Store the last number. Raises OSError on a full disk, which would not hold a new job's directory either.

        It is written in place, always of the same length: replacing the file takes more than ten times as long.
        """
        if number > self._number:
            probe = self._number_path.with_name(".last_number")
            try:
                probe.write_bytes(bytes(PROBE_BYTES))
            finally:
                probe.unlink(missing_ok=True)
            fd = os.open(self._number_path, os.O_WRONLY | os.O_CREAT, 0o600)
            try:
                os.pwrite(fd, b"%020d\n" % number, 0)
            finally:
                os.close(fd)
            self._number = number

    def _connect(self, db: sqlite3.Connection) -> None:
        version: int = db.execute("PRAGMA user_version").fetchone()[0]
        if version > len(schema.MIGRATIONS):
            raise StoreTooNew(
                f"the store {self._path} was written by a newer jupyter_dlaas (store version {version}, "
                f"this release supports {len(schema.MIGRATIONS)}): update jupyter_dlaas"
            )
        self.is_new = version == 0
        if self._path.stat().st_size <= CHECK_BYTES:
            found = db.execute("PRAGMA quick_check(1)").fetchall()[0][0]
            if found != "ok":
                raise StoreDamaged(f"the store {self._path} is damaged: {found}")
        kind = _file_system(self._path)
        if kind in NETWORK_FILE_SYSTEMS or kind.startswith("fuse."):
            self.warning = (
                f"the pool's directory is on a network file system ({kind}): it is slower "
                "there, and only one host may use it"
            )
            db.execute("PRAGMA journal_mode = DELETE")
        else:
            db.execute("PRAGMA journal_mode = WAL").fetchall()
        db.execute("PRAGMA synchronous = FULL")
        db.execute("PRAGMA secure_delete = ON")
        for number, migration in enumerate(schema.MIGRATIONS[version:], start=version + 1):
            db.executescript(f"BEGIN IMMEDIATE; {migration} PRAGMA user_version = {number}; COMMIT;")
        if db.execute("PRAGMA application_id").fetchone()[0] != schema.DELETES_SECURELY:
            if db.execute("PRAGMA freelist_count").fetchone()[0]:
                db.execute("VACUUM")  # pages of jobs that were deleted before secure_delete was set
                db.execute(schema.EMPTY_LOG)
            db.execute(f"PRAGMA application_id = {schema.DELETES_SECURELY}")
        db.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchall()
        self._reserve(db)


def _load(db: sqlite3.Connection) -> Loaded:
    jobs: dict[str, Job] = {}
    rows: dict[str, int] = {}
    damaged: list[DamagedRow] = []
    for row, spec, body, job_id, number, owner in db.execute(schema.SELECT_JOBS):
        try:
            job = job_from_fields(json.loads(body), decode(JobSpec, json.loads(spec), unknown="ignore"))
        except (ValueError, TypeError, Invalid) as error:
            damaged.append(DamagedRow(job_id, number, owner, _decoded(JobSpec, spec), str(error)))
        else:
            jobs[job.id], rows[job.id] = job, row
    keys = {(owner, key): (job, digest) for owner, key, job, digest in db.execute(schema.SELECT_KEYS)}
    used = [j.number for j in jobs.values()] + [row.number for row in damaged]
    used += [int(digits) for job, _ in keys.values() if (digits := job.rpartition("-")[2]).isdigit()]
    notices = [(at_s, text) for at_s, text in db.execute(schema.SELECT_NOTICES)][::-1]
    forecasts = [_decoded(Forecast, body, FORMER_NAMES) for (body,) in db.execute(schema.SELECT_FORECASTS)]
    found = db.execute(schema.SELECT_SETTINGS).fetchone()
    settings = Settings() if found is None else _decoded(Settings, found[0])
    if settings is None:
        notices.append((time.time(), "The stored settings of queues, nodes and order are unreadable: set them again."))
    return Loaded(
        jobs,
        rows,
        keys,
        db.execute(schema.SELECT_LAST_ROW).fetchone()[0],
        settings or Settings(),
        tuple(forecast for forecast in forecasts if forecast is not None),
        tuple(damaged),
        max(used, default=0),
        tuple(notices),
    )


def _decoded(kind: type[T], text: str, former: Mapping[str, str] = MappingProxyType({})) -> T | None:
    """Return the record of stored JSON; None if it is unreadable. `former`: names of fields in earlier releases."""
    try:
        fields = json.loads(text)
        if isinstance(fields, dict):
            fields = {former.get(name, name): value for name, value in fields.items()}
        return decode(kind, fields, unknown="ignore")
    except (ValueError, TypeError, Invalid):
        return None


def _write(db: sqlite3.Connection, batch: Batch, full: Iterable[str]) -> None:
    """Write the batch. `full`: jobs with so many events that their replay is to begin with a snapshot."""
    db.execute("BEGIN IMMEDIATE")
    try:
        db.executemany(schema.INSERT_EVENT, [_row(event) for event in batch.events])
        for new in batch.inserted:
            job = new.job
            for statement in schema.REPLACED_JOB if new.replaces else ():
                db.execute(statement, (job.id,))
            spec = json.dumps(encode(job.spec), separators=(",", ":"))
            db.execute(schema.INSERT_JOB, (job.id, job.number, job.owner, job.name, new.row, spec, _body(job)))
            db.execute(schema.INSERT_PAYLOAD, (job.id, json.dumps(new.payload, separators=(",", ":"))))
            db.execute(schema.INSERT_KEY, (job.owner, new.key, job.id, new.digest))
        db.executemany(schema.UPDATE_JOB, [(row, _body(job), job.id) for row, job in batch.updated.values()])
        for job_id in full:
            for statement in schema.COMPACT:
                db.execute(statement, (job_id,))
        if batch.settings is not None:
            db.execute(schema.REPLACE_SETTINGS, (json.dumps(encode(batch.settings), separators=(",", ":")),))
        db.executemany(schema.REPLACE_FORECAST, [(f.job, json.dumps(encode(f))) for f in batch.forecasts])
        for deleted in batch.deleted:
            for statement in schema.DELETE_JOB:
                db.execute(statement, (deleted,))
        for statement in schema.COLLECT if batch.deleted else ():
            db.execute(statement)
        db.execute("COMMIT")
    except BaseException:
        if db.in_transaction:  # a full disk has ended the transaction already
            db.execute("ROLLBACK")
        raise
    if batch.deleted:
        with suppress(sqlite3.Error):  # the batch is durable; the next deletion or the close of the store does it
            db.execute(schema.EMPTY_LOG)  # else the log would still contain the submitted text with its secrets


def _row(one: Event) -> tuple[int, float, str, str, str, str | None]:
    event = None if one.event is None else json.dumps(event_to_fields(one.event), separators=(",", ":"))
    return one.row, one.at_s, one.job, one.kind, one.text, event


def _body(job: Job) -> str:
    return json.dumps(job_to_fields(job), separators=(",", ":"))


def _file_system(path: Path) -> str:
    """Return the type of the file system that holds `path`; "" if unknown."""
    mounts = Path("/proc/self/mounts")
    if not mounts.exists():
        return ""
    best, kind = "", ""
    here = str(path.resolve())
    for line in mounts.read_text().splitlines():
        point, found = line.split()[1:3]
        inside = here == point or here.startswith(point.rstrip("/") + "/")
        if inside and len(point) >= len(best):
            best, kind = point, found
    return kind
