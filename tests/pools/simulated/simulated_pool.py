"""A pool that says it is a fake: jobs are scripts in virtual time, files live in memory, faults come on request.

For the engine's tests and for the simulator. Its reports obey the same contract as the real pools; the tests in
`tests/pools/contract.py` hold for both.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from dlaas_server.core.lifecycle.recovery import StoredJob
from dlaas_server.core.model.cluster import Node
from dlaas_server.pools.base import (
    JOURNAL,
    METRICS,
    PROGRESS,
    WAITING,
    Changed,
    Chunk,
    InterpreterMissing,
    Loss,
    PoolError,
    PoolUnavailable,
    log_of,
)
from dlaas_server.pools.journal_lines import facts_in
from dlaas_server.pools.paths import readable, safe_parts, writable
from jupyter_dlaas.wire.codec import Json, encode
from jupyter_dlaas.wire.journal import Fact, Goal, LearnerDown, LearnerUp, SeatRefused, Wanted, fact_to_line
from jupyter_dlaas.wire.protocol import JobSpec, NotFound
from jupyter_dlaas.wire.waiting import WaitingReason
from tests.pools.simulated.scripted_job import Fault, Script, ScriptedJob
from tests.pools.simulated.virtual_clock import Clock, VirtualClock

__all__ = ["Clock", "Fault", "Script", "SimulatedPool", "Trouble", "VirtualClock"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Trouble:
    """Disturbance of facts on their way to the engine. `seed` makes repeats and shuffles the same each time."""

    late_s: float = 0.0
    """A fact is readable only so long after it was written."""
    is_repeated: bool = False
    """A read brings some facts that were read before."""
    is_reordered: bool = False
    """The facts of one read come shuffled."""
    is_silent: bool = False
    """The engine gets no notice of new facts."""
    seed: int = 0


def _bytes_of(source: str) -> bytes:
    return Path(source).read_bytes()  # not in a thread: a virtual clock must not wait for real things


@dataclass(slots=True)
class _Job:
    """A simulated job's directory, in memory."""

    play: ScriptedJob
    files: dict[str, bytes]
    streams: dict[str, bytearray] = field(default_factory=dict)
    times: dict[int, list[tuple[int, float]]] = field(default_factory=dict)
    journal_shown: int = 0
    wanted: Wanted | None = None
    """The newest document that was accepted."""
    refused: tuple[SeatRefused, ...] = ()


class SimulatedPool:
    """A fake pool. Give it nodes, a clock and (per job, or for all) scripts; then drive the clock.

    `conflicts` lists each time that two learners held one device at once, or one was started on a device that does not
    exist: it must stay empty. `acts` lists what was asked, in order.
    """

    isolation = "none: this pool is simulated and runs nothing"

    def __init__(
        self,
        nodes: Sequence[Node],
        clock: Clock,
        *,
        name: str = "simulated",
        unit: str = "GPU",
        script: Script | None = None,
        trouble: Trouble | None = None,
    ) -> None:
        self.name = name
        self.unit = unit
        self.script = script or Script()
        self.scripts: dict[str, Script] = {}
        self.trouble = trouble or Trouble()
        self.conflicts: list[str] = []
        self.acts: list[tuple[str, Wanted]] = []
        self.starts_refused: dict[str, int] = {}
        """Job -> how many of the next starts of its guardian fail with PoolError."""
        self.starts_impossible: set[str] = set()
        """Jobs whose interpreter is missing."""
        self.unreachable: set[str] = set()
        """Jobs that cannot be reached: is_guarded() is None, act() and facts() raise PoolUnavailable."""
        self.seats_refused: dict[tuple[str, str], int] = {}
        """(node, device) -> how many of the next documents are refused a seat there."""
        self._cut: str | None = None
        self._delayed: dict[str, WaitingReason] = {}
        self._nodes = tuple(nodes)
        self._clock = clock
        self._jobs: dict[str, _Job] = {}
        self._held: dict[tuple[str, str], tuple[str, int]] = {}
        self._changed: Changed | None = None
        self._nodes_changed: Callable[[], None] | None = None
        self._random = random.Random(self.trouble.seed)

    # ---- the contract ----------------------------------------------------------------------------------------

    async def open(self, changed: Changed, nodes_changed: Callable[[], None]) -> None:
        """Begin to tell about news."""
        self._changed, self._nodes_changed = changed, nodes_changed

    def no_devices(self) -> str | None:
        """Return None: a simulated pool has the devices that it was given."""
        return None

    def unavailable(self) -> str | None:
        """Return the reason why the pool cannot be reached, as set for this simulation."""
        return self._cut

    async def close(self) -> None:
        """Stop reporting. Jobs continue as the clock does."""
        self._changed = self._nodes_changed = None

    def nodes(self) -> tuple[Node, ...]:
        """Return the nodes it was given."""
        return self._nodes

    async def create(self, job: str, owner: str, spec: JobSpec, environment: Mapping[str, str]) -> None:
        """Make room for a job."""
        safe_parts(job)
        self._reach()
        if job in self._jobs:
            return
        about = {"id": job, "spec": encode(spec), "owner": owner}
        files = {"spec.json": json.dumps(about).encode(), "environment.json": json.dumps(dict(environment)).encode()}
        play = ScriptedJob(
            self.scripts.get(job, self.script),
            self._clock,
            tell=lambda fact: self._tell(job, fact),
            say=lambda member, text: self._say(job, member, text),
            note=lambda line: self._note(job, line),
            gone=lambda: self._news(job, JOURNAL),
            outputs=spec.outputs,
        )
        self._jobs[job] = _Job(play, files)

    async def put(self, job: str, path: str, data: bytes) -> None:
        """Keep one file in memory."""
        self._reach()
        self._job(job).files["/".join(writable(path))] = bytes(data)

    async def put_file(self, job: str, path: str, source: str) -> None:
        """Keep a copy of one file in memory."""
        await self.put(job, path, _bytes_of(source))

    async def act(self, job: str, wanted: Wanted) -> None:
        """Hand the document to the scripted guardian, starting one where none lives."""
        one = self._job(job)
        self._heard(job)
        self.acts.append((job, wanted))
        before = one.wanted
        if before is not None and wanted.revision < before.revision:
            return
        if one.play.guardian is None and job in self.starts_impossible:
            raise InterpreterMissing("/nowhere/python could not be started: No such file or directory")
        if one.play.guardian is None and self.starts_refused.get(job, 0) > 0:
            self.starts_refused[job] -= 1
            raise PoolError(f"no guardian could be started for job {job} (as asked of this simulation)")
        if self._refuses(job, one, wanted):
            return
        one.wanted = wanted
        if job in self._delayed and wanted.goal is Goal.RUN:
            self._news(job, WAITING)
            return
        if self._delayed.pop(job, None) is None or one.play.guardian is not None:
            one.play.give(wanted)
        else:
            self._news(job, JOURNAL)  # nothing has started, so nothing has to end

    def _refuses(self, job: str, one: _Job, wanted: Wanted) -> bool:
        """Return whether a seat of a new member is unavailable; then the whole document is not carried out."""
        old = frozenset[int]() if one.wanted is None else frozenset(m.member for m in one.wanted.members)
        known = {node.name: {device.id for device in node.devices} for node in self._nodes}
        refused = []
        for member in wanted.members if wanted.goal is Goal.RUN else ():
            for device in member.devices or ("",) if member.member not in old else ():
                seat = (member.node, device)
                is_missing = member.node not in known or (device and device not in known[member.node])
                if is_missing or self.seats_refused.get(seat, 0) > 0:
                    self.seats_refused[seat] = max(self.seats_refused.get(seat, 0) - 1, 0)
                    what = f"{member.node} has no room for learner {member.member} (as asked of this simulation)."
                    refused.append(
                        SeatRefused(
                            generation=wanted.generation,
                            member=member.member,
                            code="unschedulable",
                            what=what,
                            advice="Ask the simulation for fewer refusals.",
                        )
                    )
                    break
        one.refused = tuple(refused)
        if refused:
            self._news(job, JOURNAL)
        return bool(refused)

    def waiting(self, job: str) -> Sequence[WaitingReason]:
        """Return the reasons that were set."""
        one = self._jobs.get(job)
        reason = self._delayed.get(job)
        if one is None or one.wanted is None or reason is None or one.play.guardian is not None:
            return ()
        return (reason, *(replace(reason, member=member.member) for member in one.wanted.members))

    def refused(self, job: str) -> Sequence[SeatRefused]:
        """Return the refused seats of the newest document."""
        return self._jobs[job].refused if job in self._jobs else ()

    async def warm(self, interpreter: str | None, environment: Mapping[str, str], framework: str | None) -> bool:
        """Nothing is cold here."""
        return True

    async def is_guarded(self, job: str) -> bool | None:
        """Return whether the scripted guardian lives."""
        one = self._job(job)
        if job in self.unreachable or self._cut is not None:
            return None
        return True if one.play.guardian is not None else None if job in self._delayed and one.wanted else False

    def loss_of(self, job: str) -> Loss:
        """Guardians just die here."""
        return Loss()

    async def end(self, job: str, *, kill: bool) -> bool:
        """Return whether no process of the scripted job lives; with `kill`, none does."""
        one = self._jobs.get(job)
        if one is None:
            return True
        if job in self.unreachable or self._cut is not None:
            return False
        if kill:
            one.play.kill_all()
        return one.play.guardian is None and not one.play.learners

    async def facts(self, job: str, offset: int) -> tuple[Sequence[Fact], int]:
        """Return the facts after `offset`, with the disturbance that was set."""
        one = self._job(job)
        self._heard(job)
        journal = one.streams.get(JOURNAL, bytearray())
        found, end = facts_in(bytes(journal[offset : one.journal_shown]), offset)
        if found and self.trouble.is_repeated:
            earlier, _ = facts_in(bytes(journal[:offset]), 0)
            found = self._random.sample(earlier, min(len(earlier), 2)) + found
        if self.trouble.is_reordered:
            self._random.shuffle(found)
        return found, end

    async def streams(self, job: str) -> Mapping[str, int]:
        """Return the streams of the job with their sizes."""
        self._reach()
        one = self._job(job)
        sizes = {name: len(data) for name, data in sorted(one.streams.items())}
        if one.journal_shown:
            sizes[PROGRESS] = len(self._stream(job, PROGRESS))
        return sizes

    async def read(self, job: str, stream: str, offset: int, limit: int) -> Chunk:
        """Bytes of a stream."""
        self._reach()
        data = self._stream(job, stream)
        start = max(0, len(data) + offset) if offset < 0 else min(offset, len(data))
        end = min(len(data), start + max(0, limit))
        return Chunk(start, end, len(data), data[start:end])

    async def time_of(self, job: str, member: int, offset: int) -> float | None:
        """Return the time at which the line that holds the byte was written."""
        known = [at_s for first, at_s in self._job(job).times.get(member, []) if first <= offset]
        return known[-1] if known else None

    async def files(self, job: str, folder: str) -> Mapping[str, int]:
        """Files below a folder, named from there."""
        prefix = "/".join(readable(job, folder)) + "/"
        kept = sorted(self._job(job).files.items())
        return {path.removeprefix(prefix): len(data) for path, data in kept if path.startswith(prefix)}

    async def get(self, job: str, path: str, offset: int, limit: int) -> bytes:
        """Bytes of one file."""
        one, name = self._job(job), "/".join(readable(job, path))
        if name not in one.files:
            raise NotFound(f"job {job} has no file {path!r}")
        return one.files[name][max(0, offset) : max(0, offset) + max(0, limit)]

    async def directories(self) -> Sequence[str]:
        """Return nothing: simulated jobs have no directories."""
        return ()

    async def stored_job(self, job: str) -> StoredJob:
        """Refuse: simulated jobs have no directories."""
        raise NotFound(f"the pool has no job {job!r}")

    async def payload(self, job: str) -> Mapping[str, Json]:
        """Refuse: simulated jobs have no directories."""
        raise NotFound(f"the pool has no job {job!r}")

    async def remove(self, job: str) -> None:
        """Forget the job."""
        self._reach()
        one = self._jobs.pop(job, None)
        if one is not None:
            one.play.kill_all()
        for device in [d for d, (holder, _) in self._held.items() if holder == job]:
            del self._held[device]

    def directory(self, job: str) -> str:
        """Return the place where a person would look."""
        return f"simulated:{job}"

    # ---- faults, on request ----------------------------------------------------------------------------------

    def set_nodes(self, nodes: Sequence[Node]) -> None:
        """Other nodes from now on: added, lost, cordoned, devices out of service."""
        self._nodes = tuple(nodes)
        if self._nodes_changed is not None:
            self._nodes_changed()

    def cut(self, why: str = "The simulated pool cannot be reached (as asked of it).") -> None:
        """Make the pool unreachable from now on; its jobs continue."""
        self._cut = why

    def restore(self) -> None:
        """Make the pool reachable again; it reports all that happened."""
        self._cut = None
        for job, one in self._jobs.items():
            for stream in one.streams:
                self._news(job, stream)
        if self._nodes_changed is not None:
            self._nodes_changed()

    def delay_start(self, job: str, code: str = "image_pull", what: str = "The image sim:1 is being pulled.") -> None:
        """No process of the job starts until `release_start`."""
        self._delayed[job] = WaitingReason(
            code=code, object=f"simulated pod {job}", what=what, advice="Wait.", since_s=self._clock.now_s()
        )

    def release_start(self, job: str) -> None:
        """Start now what was to start."""
        one = self._jobs.get(job)
        if self._delayed.pop(job, None) is not None and one is not None and one.wanted is not None:
            one.play.give(one.wanted)
            self._news(job, WAITING)

    def kill_guardian(self, job: str) -> None:
        """Kill the guardian; learners continue."""
        self._job(job).play.kill_guardian()

    def kill_learner(self, job: str, member: int) -> None:
        """One learner dies."""
        self._job(job).play.kill_learner(member)

    def kill_all(self, job: str) -> None:
        """Guardian and learners die at once."""
        self._job(job).play.kill_all()

    def tear_journal(self, job: str, tail: bytes = b'{"n":') -> None:
        """Leave a torn line at the end of the journal, as a full disk does."""
        self._append(job, JOURNAL, tail)

    def learners(self, job: str) -> tuple[int, ...]:
        """Return the members whose simulated processes live."""
        return tuple(m.member for m in self._job(job).play.learners)

    def step(self, job: str) -> int:
        """Return the step that training has reached."""
        return self._job(job).play.step

    # ---- inside ----------------------------------------------------------------------------------------------

    def _job(self, job: str) -> _Job:
        if job not in self._jobs:
            raise NotFound(f"the pool has no job {job!r}")
        return self._jobs[job]

    def _reach(self) -> None:
        if self._cut is not None:
            raise PoolUnavailable(self._cut)

    def _heard(self, job: str) -> None:
        self._reach()
        if job in self.unreachable:
            raise PoolUnavailable(f"job {job} cannot be reached now (as asked of this simulation)")

    def _stream(self, job: str, stream: str) -> bytes:
        one = self._job(job)
        if stream == JOURNAL:
            return bytes(one.streams.get(JOURNAL, b"")[: one.journal_shown])
        if stream == PROGRESS and one.journal_shown:
            return json.dumps(encode(one.play.progress)).encode()
        if stream in (METRICS, PROGRESS):
            return bytes(one.streams.get(stream, b""))
        if stream not in one.streams:
            raise NotFound(f"job {job} has no stream {stream!r}")
        return bytes(one.streams[stream])

    def _tell(self, job: str, fact: Fact) -> None:
        self._watch_devices(job, fact)
        self._append(job, JOURNAL, fact_to_line(fact))

    def _say(self, job: str, member: int, text: str) -> None:
        one = self._jobs.get(job)
        if one is not None:
            size = len(one.streams.get(log_of(member), b""))
            one.times.setdefault(member, []).append((size, self._clock.now_s()))
            self._append(job, log_of(member), text.encode())

    def _note(self, job: str, line: str) -> None:
        self._append(job, METRICS, line.encode())
        if job in self._jobs:
            self._news(job, PROGRESS)

    def _append(self, job: str, stream: str, data: bytes) -> None:
        one = self._jobs.get(job)
        if one is None:
            return  # removed while its script continued
        kept = one.streams.setdefault(stream, bytearray())
        kept += data
        if stream != JOURNAL:
            self._news(job, stream)
        elif self.trouble.late_s > 0:
            size = len(kept)
            self._clock.call_at(self._clock.now_s() + self.trouble.late_s, lambda: self._show(job, size))
        else:
            self._show(job, len(kept))

    def _show(self, job: str, size: int) -> None:
        one = self._jobs.get(job)
        if one is not None and size > one.journal_shown:
            one.journal_shown = size
            self._news(job, JOURNAL)

    def _news(self, job: str, stream: str) -> None:
        if self._changed is not None and not self.trouble.is_silent and self._cut is None:
            self._changed(job, stream)

    def _watch_devices(self, job: str, fact: Fact) -> None:
        """Keep book of who holds which device, to catch an engine that lends one twice."""
        one = self._jobs[job]
        if isinstance(fact, LearnerUp):
            member = next((m for m in one.play.learners if m.member == fact.member), None)
            known = {(n.name, d.id) for n in self._nodes for d in n.devices}
            for seat in [(member.node, d) for d in member.devices] if member else []:
                if seat not in known:
                    self.conflicts.append(
                        f"{job}: learner {fact.member} starts on {seat}, which the pool does not have"
                    )
                elif seat in self._held:
                    self.conflicts.append(f"{job}: learner {fact.member} starts on {seat}, held by {self._held[seat]}")
                self._held[seat] = (job, fact.member)
        elif isinstance(fact, LearnerDown):
            for seat in [s for s, holder in self._held.items() if holder == (job, fact.member)]:
                del self._held[seat]
