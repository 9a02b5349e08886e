"""Operations of the engine, one method per operation of `rest.routes.ROUTES`. Independent of HTTP."""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from heapq import nsmallest
from math import inf
from typing import Final

from dlaas_server.core.forecast.track_record import track_record
from dlaas_server.core.lifecycle.job_events import JobSubmitted, original
from dlaas_server.core.lifecycle.requests import (
    CancelJob,
    ChangeJob,
    DeleteJob,
    HaltJob,
    JobRequest,
    RequestCheckpoint,
    ResumeJob,
    SubmitJob,
)
from dlaas_server.core.model.job import Job
from dlaas_server.core.model.phrases import clause
from dlaas_server.core.model.pool import Pool as Picture
from dlaas_server.core.model.states import Event
from dlaas_server.core.planning.decisions import Wait
from dlaas_server.core.planning.plan import plan
from dlaas_server.core.planning.pool_settings import check_queue
from dlaas_server.core.presentation import artifact_paths
from dlaas_server.core.presentation.explain import deciding_events, why_it_waits
from dlaas_server.core.presentation.job_view import learners_of
from dlaas_server.core.presentation.waiting_text import waiting_sentences
from dlaas_server.engine.admission import check_feasible_on
from dlaas_server.engine.blobs import Blobs
from dlaas_server.engine.job_stream import (
    WANTS,
    Message,
    Reader,
    Watchers,
    cursor_of,
    curves,
    metric_records,
    text_of,
    thinned,
)
from dlaas_server.engine.lifecycle import Lifecycle
from dlaas_server.engine.request_handlers import check_user
from dlaas_server.pools.base import METRICS, Chunk, PoolError, log_of
from dlaas_server.rest.routes import Change, Keyed, Warm
from jupyter_dlaas.wire.codec import DlaasError, Invalid, Json, encode
from jupyter_dlaas.wire.journal import LearnerUp
from jupyter_dlaas.wire.learner_view import places_text
from jupyter_dlaas.wire.protocol import (
    ID_PATTERN,
    NAME_PATTERN,
    Elastic,
    File,
    JobSpec,
    JobView,
    NotAllowed,
    NotFound,
    Refused,
    State,
    Submit,
)
from jupyter_dlaas.wire.secret_masking import mask_of

__all__ = ["Requests"]

READ_BYTES_MAX: Final = 8 * 2**20
METRICS_BYTES_MAX: Final = 64 * 2**20
REPORT_LINES: Final = 200
CLOSE_S: Final = 10.0
PROGRESS_EVERY_S: Final = 1.0
"""Interval at which a long poll returns if there is nothing but progress."""
_ACTS: Final[Mapping[Event, type[HaltJob | ResumeJob | CancelJob | RequestCheckpoint]]] = {
    Event.HALT: HaltJob,
    Event.RESUME: ResumeJob,
    Event.CANCEL: CancelJob,
    Event.CHECKPOINT: RequestCheckpoint,
}
NAME_BYTES: Final = 255
"""Maximum length of a file name in bytes."""
_TRANSFORMERS: Final = re.compile(r"^\s*(?:import|from)\s+(?:transformers|trl)\b", re.MULTILINE)
_LIGHTNING: Final = re.compile(r"^\s*(?:import|from)\s+(?:lightning|pytorch_lightning)\b", re.MULTILINE)


@dataclass(slots=True)
class Requests:
    """Operations on jobs. `user` is the caller, known from the socket or a trusted relay, never from the request."""

    lifecycle: Lifecycle
    watchers: Watchers
    blobs: Blobs

    # -- lookup -------------------------------------------------------------------------------------------------------

    def find(self, user: str, handle: str) -> Job:
        """Return a job by handle, or the user's newest job of that name. Raises NotFound."""
        jobs = self.lifecycle.jobs
        job = jobs.get(handle) if re.fullmatch(ID_PATTERN, handle) else None
        if job is None and re.fullmatch(NAME_PATTERN, handle):
            own = [j for j in jobs.values() if j.name == handle and j.owner == user]
            job = max(own, key=lambda j: j.number, default=None)
        if job is None:
            raise NotFound(f"there is no job '{handle[:80]}'; run `jupyter dlaas jobs` to list all jobs")
        if job.owner != user:
            raise NotFound(f"{job.id} belongs to {job.owner}; only its owner can see and change it")
        return job

    def jobs(self, user: str, *, state: str | None, owner: str | None, limit: int) -> list[JobView]:
        """Return the user's jobs, newest first. Beyond `limit`: running ones, the first of the queue, the newest."""
        states, waits = _states(state), self.lifecycle.waits
        found = [
            j
            for j in self.lifecycle.jobs.values()
            if j.owner == user and (owner is None or j.owner == owner) and (states is None or j.state in states)
        ]
        if len(found) > limit:
            found = nsmallest(limit, found, key=lambda j: _use_to_list(j, waits.get(j.id)))
        return [self.lifecycle.view(j) for j in sorted(found, key=lambda j: -j.number)]

    # -- changes ------------------------------------------------------------------------------------------------------

    async def submit(self, user: str, submit: Submit) -> tuple[JobView, bool]:
        """Store a job durably. The same key returns the same job. Also return whether it is new."""
        digest = hashlib.sha256(json.dumps(encode(submit), sort_keys=True).encode()).hexdigest()
        self._check(submit)
        mask = mask_of(submit.environment)
        notes = tuple(replace(note, text=mask.text(note.text)) for note in submit.spec.notes)
        submit = replace(submit, spec=replace(submit.spec, notes=notes))
        payload: dict[str, Json] = {
            "source": submit.source,
            "files": encode(submit.files),
            "environment": dict(submit.environment),
        }

        request = SubmitJob(
            by=user, key=submit.key, digest=digest, spec=submit.spec, wish=_first_wish(submit), payload=payload
        )
        submitted = await self.lifecycle.post(request)
        self.blobs.stored([file.sha256 for file in submit.files if file.sha256 is not None])
        return self.lifecycle.view(self.lifecycle.jobs[submitted.job]), submitted.is_new

    def _check(self, submit: Submit) -> None:
        """Check what the rules of single fields cannot express. Raises Invalid, Refused."""
        spec = submit.spec
        if spec.learners_min > spec.learners_max:
            raise Invalid(f"spec.learners_min: {spec.learners_min} exceeds learners_max, {spec.learners_max}")
        if submit.learners is not None and not spec.learners_min <= submit.learners <= spec.learners_max:
            raise Invalid(f"learners: {submit.learners} is not within {spec.learners_min} to {spec.learners_max}")
        check_queue(spec.queue, self.lifecycle.policy)
        _check_schedule(spec)
        _check_auto(submit)
        _check_apart([file.path for file in submit.files])
        for i, file in enumerate(submit.files):
            _check_path(file.path, f"files[{i}].path")
            if (file.text is None) == (file.sha256 is None):
                raise Invalid(f"files[{i}]: set either text or sha256")
            if file.sha256 is not None:
                self.blobs.hold(file.sha256)
                if not self.blobs.path(file.sha256).is_file():
                    raise Invalid(
                        f"files[{i}].sha256: blob not found; upload it first with PUT dlaas/blobs/{file.sha256}"
                    )
        _check_environment(submit.environment)
        for name in spec.outputs:
            if not name.isidentifier():
                raise Invalid(f"spec.outputs: '{name[:60]}' is not a valid variable name")
        for pattern in spec.metric_patterns:
            try:
                re.compile(pattern)
            except (re.error, RecursionError, OverflowError) as error:
                raise Invalid(f"spec.metric_patterns: '{pattern[:60]}' is not a regular expression ({error})") from None

    async def preflight(self, user: str, submit: Submit) -> dict[str, Json]:
        """Return the problems of this submit and its start estimate. Stores nothing."""
        lifecycle = self.lifecycle
        try:
            self._check(submit)
            wish, unit, number = _first_wish(submit), lifecycle.pool.unit, lifecycle.next_number
            origin = JobSubmitted(by=user, key=submit.key, number=number, wish=wish, unit=unit)
            job = original(submit.spec, origin, lifecycle.clock())
            is_admin = lifecycle.is_admin(user)
            check_user(user, job, lifecycle.jobs.values(), lifecycle.user_limits, is_admin=is_admin)
            check_feasible_on(self.lifecycle.pool, job)
        except DlaasError as error:
            return {"problems": [{"code": error.code, "text": str(error)}], "estimate": ""}
        active = {j.id: j for j in lifecycle.jobs.values() if not (j.state.is_final and j.is_closed)}
        jobs, now_s = {**active, job.id: job}, lifecycle.clock()
        known = lifecycle.lengths.known(jobs.values(), lifecycle.progress, now_s)
        picture, policy = Picture(nodes=lifecycle.nodes(), jobs=jobs, known=known), lifecycle.policy
        decided = plan(picture, now_s, policy, lifecycle.lengths.order(policy.order))
        waits = {w.job: w for w in decided.waits}
        estimate = f"would wait: {clause(waits[job.id].reason)}" if job.id in waits else "would start now"
        return {"problems": [], "estimate": estimate}

    async def warm(self, request: Warm) -> bool:
        """Prewarm this Python interpreter for jobs. Raises Refused or Invalid."""
        _check_environment(request.environment)
        if request.interpreter is not None and not os.access(request.interpreter, os.X_OK):
            raise Refused(f"interpreter: {request.interpreter[:200]} is not an executable on this machine")
        try:
            return await self.lifecycle.pool.warm(request.interpreter, request.environment, request.framework)
        except PoolError as error:
            raise Refused(str(error)) from error

    async def change(self, user: str, handle: str, change: Change) -> JobView:
        """Change requested size, priority and elastic mode, atomically."""
        if change.elastic is Elastic.AUTO:
            await self._check_auto_now(self.find(user, handle))

        job_id = self.find(user, handle).id
        return await self._post(
            ChangeJob(by=user, job=job_id, learners=change.learners, priority=change.priority, elastic=change.elastic)
        )

    async def _check_auto_now(self, job: Job) -> None:
        """Raise NotAllowed if this job cannot be scaled automatically."""
        payload = await self.lifecycle.store.payload(job.id)
        why = _why_not_auto(job.spec, str(payload["source"]), has_files=bool(payload["files"]))
        if job.spec.schedule:
            why = "cannot follow a schedule, and this job has one; submit it without --schedule"
        if why is not None:
            raise NotAllowed(f"{job.id} stays {job.elastic}: auto {why}")

    async def act(self, user: str, handle: str, event: Event) -> JobView:
        """Halt, resume, cancel, or request a checkpoint. A request for the present state changes nothing."""
        return await self._post(_ACTS[event](by=user, job=self.find(user, handle).id))

    async def _post(self, request: JobRequest) -> JobView:
        await self.lifecycle.post(request)
        return self.lifecycle.view(self.lifecycle.jobs[request.job])

    async def retry(self, user: str, handle: str, keyed: Keyed) -> tuple[JobView, bool]:
        """Submit the same source, files, environment and spec as a new job."""
        job = self.find(user, handle)
        if not job.state.is_final and not job.needs_decision:
            raise NotAllowed(f"{job.id} is {job.state}; only a job that has ended can be retried")
        payload = await self.lifecycle.store.payload(job.id)
        key = keyed.key or f"retry:{job.id}:{self.lifecycle.next_number}"
        files, environment = payload["files"], payload["environment"]
        assert isinstance(files, list), "the store keeps what submit put there"
        assert isinstance(environment, dict), "the store keeps what submit put there"
        submit = Submit(
            key=key,
            spec=job.spec,
            source=str(payload["source"]),
            files=tuple(File(**f) for f in files if isinstance(f, dict)),
            environment={k: str(v) for k, v in environment.items()},
            learners=job.wish,
        )
        return await self.submit(user, submit)

    async def delete(self, user: str, handle: str) -> dict[str, Json]:
        """Remove an ended job's record and files."""
        job_id = self.find(user, handle).id
        await self._closed(job_id)
        await self.lifecycle.post(DeleteJob(by=user, job=job_id))
        await self.lifecycle.pool.remove(job_id)
        await self.blobs.collect(self.lifecycle.store)
        return {}

    async def _closed(self, job_id: str) -> None:
        """Wait briefly for the last processes of an ended job."""
        reader = Reader(self.lifecycle, job_id, want=("view",))
        self.watchers.add(reader)
        try:
            async with asyncio.timeout(CLOSE_S):
                while (job := self.lifecycle.jobs.get(job_id)) and job.state.is_final and not job.is_closed:
                    await reader.news.wait()
                    reader.news.clear()
        except TimeoutError:
            return  # the caller refuses the request with its reason
        finally:
            self.watchers.remove(reader)

    # -- queries ------------------------------------------------------------------------------------------------------

    async def why(self, user: str, handle: str) -> list[str]:
        """Return sentences that explain the job's state."""
        lifecycle, job = self.lifecycle, self.find(user, handle)
        view = lifecycle.view(job)
        state = view.state_label.lower() if view.state is State.FAILED else f"is {view.state_label.lower()}"
        first = f"{view.id} {state}{f' ({view.status_line})' if view.status_line else ''}."
        out = [first] + ([view.reason] if view.reason else [])
        out += waiting_sentences(view.waiting_for, lifecycle.clock() + lifecycle.drift())
        if view.failure is not None:
            where = [f"Where: {view.failure.where.text}."] if view.failure.where is not None else []
            out += [f"{view.failure.what}", *where, f"What to do: {view.failure.advice}"]
        out += [note.text for note in job.reports]
        waits, has_estimate = tuple(lifecycle.waits.values()), lifecycle.has_estimate(job)
        blockers = why_it_waits(job, lifecycle.picture(), waits, lifecycle.policy, has_estimate=has_estimate)
        out += blockers
        if blockers and (record := track_record(lifecycle.forecasts)):
            out.append(record)
        history = [(row.at_s, row.kind, row.text) for row in await lifecycle.store.history(view.id)]
        return out + deciding_events(history, lifecycle.clock())

    async def events(self, user: str, handle: str) -> list[dict[str, Json]]:
        """Return the job's events with a text, oldest first."""
        events, drift_s = await self.lifecycle.store.history(self.find(user, handle).id), self.lifecycle.drift()
        return [{"row": e.row, "at_s": e.at_s + drift_s, "kind": e.kind, "text": e.text} for e in events]

    async def source(self, user: str, handle: str) -> dict[str, Json]:
        """Return train.py and the paths of the files sent with it."""
        payload = await self.lifecycle.store.payload(self.find(user, handle).id)
        files = payload["files"]
        paths: list[Json] = [f["path"] for f in files if isinstance(f, dict)] if isinstance(files, list) else []
        return {"source": payload["source"], "files": paths}

    async def log(self, user: str, handle: str, *, member: int | None, offset: int, limit: int) -> dict[str, Json]:
        """Return part of a learner's log; without a member, of the newest rank 0."""
        job = self.find(user, handle)
        if member is None:
            member = await self._main_member(job)
        chunk = await self._read(job.id, log_of(member), offset, min(limit, READ_BYTES_MAX))
        text, used = text_of(chunk)
        return {"member": member, "from": chunk.start, "to": chunk.start + used, "size": chunk.size, "text": text}

    async def _main_member(self, job: Job) -> int:
        gang = job.gang
        if gang:
            return gang[0].member
        try:  # it has ended, so it has no members any more: the journal names the last rank 0
            facts, _ = await self.lifecycle.pool.facts(job.id, 0)
        except NotFound:
            return 0
        first = [fact.member for fact in facts if isinstance(fact, LearnerUp) and fact.rank == 0]
        return first[-1] if first and first[-1] is not None else 0

    async def _read(self, job: str, stream: str, offset: int, limit: int) -> Chunk:
        try:
            return await self.lifecycle.pool.read(job, stream, offset, limit)
        except NotFound:
            return Chunk(0, 0, 0, b"")  # nothing was written yet

    async def metrics(self, user: str, handle: str, *, offset: int) -> dict[str, Json]:
        """Return metric records from a byte offset on, whole lines."""
        chunk = await self._read(self.find(user, handle).id, METRICS, offset, READ_BYTES_MAX)
        whole = chunk.data.rfind(b"\n") + 1
        records: list[Json] = list(metric_records(chunk.data[:whole]))
        return {"from": chunk.start, "to": chunk.start + whole, "size": chunk.size, "records": records}

    async def curves(self, user: str, handle: str, *, points: int) -> dict[str, Json]:
        """Return metrics thinned for drawing."""
        chunk = await self._read(self.find(user, handle).id, METRICS, 0, METRICS_BYTES_MAX)
        lines = await asyncio.to_thread(lambda: curves(metric_records(chunk.data[: chunk.data.rfind(b"\n") + 1])))
        return {"curves": {name: encode(thinned(found, points)) for name, found in sorted(lines.items())}}

    async def artifacts(self, user: str, handle: str) -> list[dict[str, Json]]:
        """Return the files below output/ and checkpoints/."""
        job = self.find(user, handle).id
        out: list[dict[str, Json]] = []
        for folder in artifact_paths.FOLDERS:
            try:
                found = await self.lifecycle.pool.files(job, folder)
            except NotFound:
                continue
            out += [{"path": f"{folder}/{path}", "bytes": size} for path, size in sorted(found.items())]
        return out

    async def file_of(self, user: str, handle: str, path: str) -> tuple[str, str, int]:
        """Return job, path and size of an artifact or a result. Raises NotFound, which lists the artifacts."""
        job = self.find(user, handle).id
        folder, _, rest = path.partition("/")
        if folder in (*artifact_paths.FOLDERS, "results"):
            found = await self.lifecycle.pool.files(job, folder)
            if rest in found:
                return job, path, found[rest]
        artifacts = {str(one["path"]): int(str(one["bytes"])) for one in await self.artifacts(user, handle)}
        full = artifact_paths.full_path(path, artifacts)
        if full is None:
            raise NotFound(artifact_paths.missing_text(job, path, artifacts))
        return job, full, artifacts[full]

    async def result(self, user: str, handle: str, name: str) -> tuple[str, str, int]:
        """Return job, path and size of a result file. Raises NotFound, which lists the available ones."""
        job = self.find(user, handle)
        if name not in job.results:
            available = ", ".join(job.results) or "none"
            when = "" if job.state.is_final else f"; the job is {job.state}, results are available when it completes"
            raise NotFound(f"{job.id} has no result '{name[:60]}' (available: {available}){when}")
        return await self.file_of(user, handle, f"results/{name}.bin")

    async def report(self, user: str, handle: str) -> str:
        """Return spec, failure, events and last log lines as text, with secrets masked and without the environment."""
        job = self.find(user, handle)
        view = self.lifecycle.view(job)
        environment = (await self.lifecycle.store.payload(job.id)).get("environment")
        mask = mask_of({k: str(v) for k, v in environment.items()} if isinstance(environment, dict) else {})
        member = await self._main_member(job)
        chunk = await self._read(job.id, log_of(member), -262_144, 262_144)
        lines = chunk.data.decode("utf-8", "replace").splitlines()[-REPORT_LINES:]
        history = [
            f"{e.at_s + self.lifecycle.drift():.3f} {e.text}" for e in await self.lifecycle.store.history(job.id)
        ]
        parts = [
            f"Job {view.id}: {view.state_label}",
            json.dumps({k: v for k, v in encode(job.spec).items() if k not in ("cells", "notes")}, indent=1),
        ]
        if view.failure is not None:
            where = [f"Where: {view.failure.where.text}"] if view.failure.where is not None else []
            parts += [f"What: {view.failure.what}", *where, f"What to do: {view.failure.advice}"]
            parts += [view.failure.traceback or ""]
        parts += [f"Learners: {places}"] if (places := places_text(learners_of(job))) else []
        parts += ["Events:", *history, f"Log of learner {member}, last {len(lines)} lines:", *lines]
        text = "\n".join(parts) + "\n"
        return mask.text(text)

    async def stream(
        self, user: str, handle: str, *, row: int, metrics: int, logs: str, want: str, wait_s: float
    ) -> dict[str, Json]:
        """Return the WebSocket's messages by long poll.

        The cursor does not cover progress: the present progress is sent only to a new reader, and later progress is
        collected for a while; otherwise a client that waits for a job's end would poll five times a second.
        """
        job = self.find(user, handle)
        cursor = cursor_of(row, metrics, logs)
        wants = _wants(want)
        reader = Reader(self.lifecycle, job.id, cursor.row, cursor.metrics, dict(cursor.logs), wants)
        if row:
            reader.skip_progress()
        clock = asyncio.get_running_loop().time
        begin = clock()
        messages: list[Message] = []
        self.watchers.add(reader)
        try:
            while True:
                messages = await reader.messages() or messages  # earlier messages can only be progress, outdated by now
                until = begin + (min(wait_s, PROGRESS_EVERY_S) if messages else wait_s)
                if any(m["type"] != "progress" for m in messages) or clock() >= until:
                    break
                with suppress(TimeoutError):
                    async with asyncio.timeout(until - clock()):
                        await reader.news.wait()
        finally:
            self.watchers.remove(reader)
        return {"messages": list(messages), "cursor": encode(reader.cursor())}


def _wants(text: str) -> Sequence[str]:
    """Return the kinds of a query string; all if it is empty. Raises Invalid."""
    if not text:
        return WANTS
    chosen = text.split(",")
    if any(kind not in WANTS for kind in chosen):
        raise Invalid(f"want: '{text[:80]}' is not valid; use one or more of {','.join(WANTS)}")
    return chosen


def _use_to_list(job: Job, wait: Wait | None) -> tuple[float, ...]:
    """Return the sort key of a limited list: running jobs, then the queue in order, then ended ones, newest first."""
    if job.state is State.QUEUED:
        return 1, inf if wait is None else wait.place, job.number
    return 2 if job.state.is_final or job.state is State.HALTED else 0, -job.number


def _states(text: str | None) -> set[State] | None:
    if not text:
        return None
    out: set[State] = set()
    for word in text.split(","):
        if word.upper() not in State.__members__:
            raise Invalid(f"state: '{word[:40]}' is not one of {', '.join(State)}")
        out.add(State[word.upper()])
    return out


def _check_path(path: str, where: str) -> None:
    parts = path.split("/")
    if path.startswith("/") or "\\" in path or any(p in ("", ".", "..") for p in parts) or len(parts) > 40:
        raise Invalid(f"{where}: '{path[:80]}' must be a plain relative path")
    if parts[0] not in ("files", "inputs") or len(parts) < 2:
        raise Invalid(f"{where}: '{path[:80]}' must be below files/ or inputs/")
    if any(len(p.encode()) > NAME_BYTES for p in parts):
        raise Invalid(f"{where}: a name in '{path[:80]}' is longer than {NAME_BYTES} bytes")


def _first_wish(submit: Submit) -> int:
    """Return the requested size; by default the maximum, or the minimum if autoscaling or the schedule grows it."""
    spec = submit.spec
    if submit.learners is not None:
        return submit.learners
    if spec.schedule and spec.schedule[0].epoch == 0:
        return spec.schedule[0].learners
    grows = spec.elastic is Elastic.AUTO or (spec.schedule and spec.schedule[0].learners == spec.learners_max)
    return spec.learners_min if grows else spec.learners_max


def _check_auto(submit: Submit) -> None:
    """Raise Invalid if the field contradicts the rest of the submit."""
    if submit.spec.elastic is Elastic.AUTO:
        why = _why_not_auto(submit.spec, submit.source, has_files=bool(submit.files))
        if why is not None:
            raise Invalid(f"spec.elastic: auto {why}")


def _why_not_auto(spec: JobSpec, source: str, *, has_files: bool) -> str | None:
    """Return why this job cannot be scaled automatically: no range of sizes, or no measurable steps. None if it can."""
    if spec.learners_min == spec.learners_max:
        return "needs a range of sizes, such as --gpus 1:4"
    if "batches(" not in source and not has_files and not _trains_together(source):
        return (
            "measures the steps of run.batches, which this program does not use; "
            "write its loop with run.batches (%%train --suggest shows how), or choose the size yourself"
            " (apart from such loops, only the Trainer of transformers and Lightning's with ddp use several learners)"
        )
    return None


def _trains_together(source: str) -> bool:
    """Return whether a framework's own loop trains one model on all learners and reports its speed."""
    if "Trainer(" not in source:
        return False
    return _TRANSFORMERS.search(source) is not None or (_LIGHTNING.search(source) is not None and "ddp" in source)


def _check_schedule(spec: JobSpec) -> None:
    """Raise Invalid if the field contradicts the rest of the submit."""
    if spec.schedule and spec.elastic is not Elastic.MANUAL:
        raise Invalid(f"spec.schedule: requires elastic manual, not {spec.elastic}; set only one of them")
    epochs = [entry.epoch for entry in spec.schedule]
    if epochs != sorted(set(epochs)):
        raise Invalid("spec.schedule: epochs must increase from entry to entry")
    for entry in spec.schedule:
        if not spec.learners_min <= entry.learners <= spec.learners_max:
            bounds = f"{spec.learners_min} to {spec.learners_max}"
            raise Invalid(f"spec.schedule: epoch {entry.epoch}: {entry.learners} learners are not within {bounds}")
        if spec.epochs is not None and entry.epoch >= spec.epochs:
            raise Invalid(
                f"spec.schedule: epoch {entry.epoch} does not exist: the job has {spec.epochs} epochs, counted from 0"
            )


def _check_apart(paths: Sequence[str]) -> None:
    """Raise Invalid if a file has the path of another file's folder."""
    known = set(paths)
    for i, path in enumerate(paths):
        parts = path.split("/")
        for k in range(1, len(parts)):
            if "/".join(parts[:k]) in known:
                raise Invalid(f"files[{i}].path: '{path[:80]}' needs a folder where another path is a file")


def _check_environment(environment: Mapping[str, str]) -> None:
    """Raise Invalid for variables with which no process can be started."""
    for name, value in environment.items():
        if not name or "=" in name or "\0" in name:
            raise Invalid(
                f"environment: {name[:60]!r} is not a variable name: it is empty or contains '=' or a zero byte"
            )
        if "\0" in value:
            raise Invalid(f"environment: the value of {name[:60]} contains a zero byte")
