"""The only door to a job. The engine never opens a job's directory, pid or socket itself."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from dlaas_server.core.lifecycle.recovery import StoredJob
from dlaas_server.core.model.cluster import Node
from jupyter_dlaas.wire.codec import DlaasError, Json
from jupyter_dlaas.wire.journal import Fact, Wanted
from jupyter_dlaas.wire.protocol import JobSpec

__all__ = ["JOURNAL", "METRICS", "PROGRESS", "Chunk", "InterpreterMissing", "Loss", "Pool", "PoolError", "log_of"]

JOURNAL = "journal"
METRICS = "metrics"
PROGRESS = "progress"


def log_of(member: int) -> str:
    """The name of a learner's log among the streams of a job."""
    return f"log:{member}"


class PoolError(DlaasError):
    """The pool could not do what was asked now; asking again is safe."""

    code = "unavailable"
    http_status = 503


class InterpreterMissing(PoolError):
    """The job's interpreter is missing or cannot be executed: asking again would fail in the same way."""


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
"""Called in the event loop with (job, stream) when a stream of the job may have news.

`JOURNAL` also when its guardian went away.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Loss:
    """How a guardian was lost."""

    text: str = "It went away"
    """The begin of a sentence."""
    has_exited: bool = False
    """It exited by itself: its program or its files may be the cause."""


class Pool(Protocol):
    """Where jobs run. Every method may be repeated. Unknown jobs and streams give NotFound."""

    name: str
    unit: str
    """"GPU" or "CPU slot"."""
    isolation: str
    """The level in force, in words."""

    async def open(self, changed: Changed, nodes_changed: Callable[[], None]) -> None:
        """Find the devices and begin to watch."""

    async def close(self) -> None:
        """Stop watching. Jobs go on."""

    def nodes(self) -> tuple[Node, ...]:
        """The nodes and devices as last seen, in stable order."""

    async def create(self, job: str, owner: str, spec: JobSpec, environment: Mapping[str, str]) -> None:
        """Make room for a job. Repeated: leaves what is there.

        The environment is kept where only the owner can read it.
        """

    async def put(self, job: str, path: str, data: bytes) -> None:
        """Store one file of the job (train.py, files/…, inputs/…), whole or not at all. Refuses paths that lead out."""

    async def put_file(self, job: str, path: str, source: str) -> None:
        """Like put, from a file on the engine's disk (pushed objects may be large)."""

    async def act(self, job: str, wanted: Wanted) -> None:
        """Make the document known to the job's guardian, starting one where none lives. Older revisions are dropped.

        Returns when that is done, not when the wish is fulfilled. Raises PoolError when no guardian can be started,
        InterpreterMissing when none ever can.
        """

    async def warm(self, interpreter: str | None, environment: Mapping[str, str], framework: str | None) -> bool:
        """See to it that jobs of this Python start fast. Does not wait for it; True when they already do.

        Raises PoolError when that Python cannot be started.
        """

    async def is_guarded(self, job: str) -> bool | None:
        """Whether a guardian lives. None: not known (not heard from is never proof)."""

    def loss_of(self, job: str) -> Loss:
        """How the job's last guardian was lost."""

    async def end(self, job: str, *, kill: bool) -> bool:
        """Whether it is proven that no process of the job is left: no guardian, no learner, nothing they started.

        `kill`: end what is left first, the guardian too. Also for a job whose directory is gone.
        """

    async def facts(self, job: str, offset: int) -> tuple[Sequence[Fact], int]:
        """The whole lines of the journal after byte `offset`, and the offset after them.

        A fact of the kind `damaged` stands for each line that cannot be read, and for a journal that was cut.
        """

    async def streams(self, job: str) -> Mapping[str, int]:
        """The streams of the job with their sizes in bytes."""

    async def read(self, job: str, stream: str, offset: int, limit: int) -> Chunk:
        """At most `limit` bytes from `offset` on (negative: counted from the end).

        Past the end: an empty chunk there.
        """

    async def time_of(self, job: str, member: int, offset: int) -> float | None:
        """When the byte at `offset` of a learner's log was written, as well as is known."""

    async def files(self, job: str, folder: str) -> Mapping[str, int]:
        """Files below `folder` (files, inputs, output, results, checkpoints), named from there, with their sizes.

        A folder that is not there has none.
        """

    async def get(self, job: str, path: str, offset: int, limit: int) -> bytes:
        """Bytes of one file of the job (train.py, spec.json, results/…, output/…). Refuses paths that lead out."""

    async def remove(self, job: str) -> None:
        """Forget a job that ended: its files go."""

    async def directories(self) -> Sequence[str]:
        """The ids of all jobs that have a directory here, whatever is in it."""

    async def stored_job(self, job: str) -> StoredJob:
        """What the job's directory tells of it. Raises PoolError where it cannot be reached."""

    async def payload(self, job: str) -> Mapping[str, Json]:
        """Source, files and environment, as they were submitted, from the job's directory."""

    def directory(self, job: str) -> str:
        """Where a person finds the job's files."""
