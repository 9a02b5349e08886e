"""Interface of a pool, the engine's only access to a job's directory, processes and sockets."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from dlaas_server.core.lifecycle.recovery import StoredJob
from dlaas_server.core.model.cluster import Node
from jupyter_dlaas.wire.codec import DlaasError, Json
from jupyter_dlaas.wire.journal import Fact, SeatRefused, Wanted
from jupyter_dlaas.wire.protocol import JobSpec
from jupyter_dlaas.wire.waiting import WaitingReason

__all__ = [
    "JOURNAL",
    "METRICS",
    "PROGRESS",
    "WAITING",
    "Chunk",
    "InterpreterMissing",
    "Loss",
    "Pool",
    "PoolError",
    "PoolUnavailable",
    "log_of",
]

JOURNAL = "journal"
METRICS = "metrics"
PROGRESS = "progress"
WAITING = "waiting"
"""Not a stream: the name under which changes of `Pool.waiting` are reported."""


def log_of(member: int) -> str:
    """Return the stream name of a learner's log."""
    return f"log:{member}"


class PoolError(DlaasError):
    """Failure of a request to the pool, which answered; it may be repeated.

    From `act`: no guardian could be started. The engine counts it as a failed start.
    """

    code = "unavailable"
    http_status = 503


class PoolUnavailable(PoolError):
    """The pool cannot be reached now: API server down, network cut, disk not mounted, too many requests.

    The request may have taken effect or not. This says nothing about the job: the engine counts no failed start,
    changes no job, and repeats the request until the pool answers.
    """


class InterpreterMissing(PoolError):
    """The job's interpreter is missing or cannot be executed: a retry would fail in the same way."""


@dataclass(frozen=True, slots=True)
class Chunk:
    """Bytes [start, end) of a stream that is `size` bytes long now.

    Streams only grow (progress is replaced as a whole).
    """

    start: int
    end: int
    size: int
    data: bytes


Changed = Callable[[str, str], None]
"""Callback in the event loop with (job, stream) when a stream of the job may have new data.

Also called with `JOURNAL` when the job's guardian has ended or a seat was refused, and with `WAITING` when the result
of `Pool.waiting` has changed.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Loss:
    """Loss of a guardian, or a start that failed after `act` had returned."""

    text: str = "The guardian process ended"
    """Beginning of a sentence."""
    has_exited: bool = False
    """True if it exited by itself: its program or its files may be the cause."""
    is_permanent: bool = False
    """True if another start would fail in the same way, as with InterpreterMissing."""


class Pool(Protocol):
    """Pool in which jobs run. Every call may be repeated. Unknown jobs and streams raise NotFound.

    Each coroutine may raise PoolUnavailable. NotFound is a proof: a pool that cannot be reached never raises it for a
    job that it may have. A pool that becomes reachable again calls `nodes_changed`, and `changed` for each stream that
    may have grown.
    """

    name: str
    unit: str
    """"GPU" or "CPU slot"."""
    isolation: str
    """Isolation level in force, as text."""

    async def open(self, changed: Changed, nodes_changed: Callable[[], None]) -> None:
        """Find the devices and start watching. A pool that cannot be reached opens, too, and keeps trying."""

    async def close(self) -> None:
        """Stop watching. Jobs continue."""

    def nodes(self) -> tuple[Node, ...]:
        """Return the nodes and devices as last observed, in stable order. They remain while it cannot be reached."""

    def unavailable(self) -> str | None:
        """Return why the pool is unavailable now, in sentences that name its address or another engine; or None.

        Until then the engine plans nothing new, and keeps what people ask for.
        """

    def no_devices(self) -> str | None:
        """Return why the pool has no devices and what to do, in sentences; None if it has some, or just has none."""

    async def create(self, job: str, owner: str, spec: JobSpec, environment: Mapping[str, str]) -> None:
        """Create a job's directory; an existing one is unchanged.

        Only the owner can read the stored environment.
        """

    async def put(self, job: str, path: str, data: bytes) -> None:
        """Store one file of the job (train.py, files/…, inputs/…) atomically. Refuses paths that leave the job."""

    async def put_file(self, job: str, path: str, source: str) -> None:
        """Store one file of the job from a file on the engine's disk (pushed objects may be large)."""

    async def act(self, job: str, wanted: Wanted) -> None:
        """Make the document durable at the pool, which carries it out: it starts a guardian if none is alive.

        Older revisions are dropped. Returns as soon as the pool will act on the document without the engine, not when a
        guardian has it: the next document, perhaps a cancel, must not wait behind an image pull or a slow start.
        Raises PoolError if it is known at once that no guardian can be started, InterpreterMissing if none ever can.
        A start that fails later shows as `is_guarded` False, with its cause in `loss_of`.

        A seat that the pool cannot provide raises nothing; see `refused`.
        """

    async def warm(self, interpreter: str | None, environment: Mapping[str, str], framework: str | None) -> bool:
        """Prewarm this Python interpreter, so that its jobs start fast. Return at once; True if it is already warm.

        Raises PoolError if the interpreter cannot be started.
        """

    async def is_guarded(self, job: str) -> bool | None:
        """Return whether a guardian is alive; None if unknown (silence proves nothing).

        It is unknown while a guardian is about to start (pending, its image being pulled) and while its machine or the
        pool cannot be reached. Does not raise PoolUnavailable.
        """

    def loss_of(self, job: str) -> Loss:
        """Return how the job's last guardian was lost, or why it could not be started."""

    def waiting(self, job: str) -> Sequence[WaitingReason]:
        """Return why processes of the job's newest document do not run yet, as last observed; () if none waits.

        In the order of members, the guardian first. A process that runs has no reason. () for unknown jobs.
        """

    def refused(self, job: str) -> Sequence[SeatRefused]:
        """Return the seats of the job's newest generation that the pool could not provide; () if none was refused.

        Once a seat is refused, the pool gives up the seats of all members that this generation was to add, since a gang
        starts whole or not at all: when it reports the refusal, no process of theirs is left. Members that run already
        are left alone. The result stays until a document of another generation or with another goal is accepted; a
        repeated document tries again. These facts have no number (`n` is -1). () for unknown jobs.
        """

    async def end(self, job: str, *, kill: bool) -> bool:
        """Return whether it is proven that no process of the job is left: no guardian, learner or descendant.

        `kill`: first kill what is left, including the guardian. Works also for a job whose directory was removed.
        What cannot be seen is not proven.
        """

    async def facts(self, job: str, offset: int) -> tuple[Sequence[Fact], int]:
        """Return the whole lines of the journal after byte `offset`, and the offset after them.

        A fact of the kind `damaged` replaces each unreadable line, and marks a truncated journal.
        """

    async def streams(self, job: str) -> Mapping[str, int]:
        """Return the streams of the job with their sizes in bytes."""

    async def read(self, job: str, stream: str, offset: int, limit: int) -> Chunk:
        """Return at most `limit` bytes from `offset` on (negative: counted from the end).

        Past the end, the chunk is empty.
        """

    async def time_of(self, job: str, member: int, offset: int) -> float | None:
        """Return the time at which the byte at `offset` of a learner's log was written, as exactly as known."""

    async def files(self, job: str, folder: str) -> Mapping[str, int]:
        """Return the files below `folder` (files, inputs, output, results, checkpoints), relative to it, with sizes.

        A missing folder has none.
        """

    async def get(self, job: str, path: str, offset: int, limit: int) -> bytes:
        """Return bytes of a file of the job (train.py, spec.json, results/…, output/…). Refuses paths that leave it."""

    async def remove(self, job: str) -> None:
        """Remove the files of an ended job."""

    async def directories(self) -> Sequence[str]:
        """Return the ids of all jobs that have a directory, whatever it contains."""

    async def stored_job(self, job: str) -> StoredJob:
        """Return the job as stored in its directory. Raises PoolError if it is unreachable."""

    async def payload(self, job: str) -> Mapping[str, Json]:
        """Return the submitted source, files and environment from the job's directory."""

    def directory(self, job: str) -> str:
        """Return the path of the job's files for people."""
