"""Control loop of the engine: collect events, plan, commit one transaction, reconcile, act.

Submits, requests, crashes, evictions and restarts of the engine take the same path: there is no recovery code.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final, Protocol, overload

from dlaas_server.core.elasticity.size_requests import due
from dlaas_server.core.forecast.track_record import Forecast, track_record
from dlaas_server.core.lifecycle import time_limit
from dlaas_server.core.lifecycle.job_events import (
    JobObserved,
    Preempted,
    Resized,
    ScheduleApplied,
    Started,
    TimeLimitAdopted,
)
from dlaas_server.core.lifecycle.reconcile import RETRY_MAX_S, reconcile
from dlaas_server.core.lifecycle.requests import DrainNode, SubmitJob, UnansweredRequest, UserRequest
from dlaas_server.core.model.cluster import Node
from dlaas_server.core.model.job import Job
from dlaas_server.core.model.pool import Pool as Picture
from dlaas_server.core.planning.checkpoint_requests import checkpoint_requests
from dlaas_server.core.planning.decisions import Wait, in_queue
from dlaas_server.core.planning.plan import plan
from dlaas_server.core.planning.pool_settings import Settings, nodes_in_force, policy_in_force
from dlaas_server.core.planning.pruning import pruned
from dlaas_server.core.planning.refused_seats import retry_s
from dlaas_server.core.planning.suspect_devices import expiry_s
from dlaas_server.core.planning.user_limits import UserLimits
from dlaas_server.core.presentation.clock_shift import shifted_view
from dlaas_server.core.presentation.job_view import HOW_TO_LOG, job_view, pool_view
from dlaas_server.core.presentation.waiting_text import unreachable
from dlaas_server.core.scheduling.run_length import width_factor
from dlaas_server.core.scheduling.scheduler import Policy
from dlaas_server.engine import recovery
from dlaas_server.engine.draining import emptied, request_checkpoint
from dlaas_server.engine.estimation.length_history import Lengths
from dlaas_server.engine.estimation.start_estimator import StartEstimator
from dlaas_server.engine.reconciliation.delivery import Delivery
from dlaas_server.engine.reconciliation.guardians import apply_events
from dlaas_server.engine.reconciliation.hardware import trust_again
from dlaas_server.engine.reconciliation.transaction import Draft
from dlaas_server.engine.request_handlers import Context, Request, Submitted, apply_request
from dlaas_server.engine.time_limits import enforce_time_limits, next_limit_s
from dlaas_server.engine.wait_messages import waits_of_long_queue, waits_while_unavailable, waits_with_estimates
from dlaas_server.pools.base import JOURNAL, METRICS, PROGRESS, WAITING, Pool, PoolError
from dlaas_server.pools.change_reader import ChangeReader
from dlaas_server.store import Store, StoreDamaged, StoreError
from jupyter_dlaas.wire.codec import DlaasError, decode
from jupyter_dlaas.wire.protocol import DrainView, JobView, NotFound, PoolView, Progress, Unavailable

__all__ = ["Lifecycle", "Listener"]

log = logging.getLogger("dlaas.engine")
STORE_RETRY_S: Final = 1.0
INBOX_MAX: Final = 20_000
FORECASTS_MAX: Final = 1000
NOTICES_S: Final = 7 * 86400.0
LONG_QUEUE: Final = 100
"""Queue length above which new jobs are accepted at once and planned together."""
PLAN_INTERVAL_PER_JOB_S: Final = 100e-6
"""Interval between such plans per waiting job: a plan examines all of them and takes a fraction of this time."""
PRUNED_JOBS_MIN: Final = 1000
"""Number of prunable waiting jobs above which a turn skips them; their reasons are then computed beside the loop."""


class Listener(Protocol):
    """Receiver of changes. Called in the event loop; must not block."""

    def job_changed(self, job: str) -> None:
        """Handle a change of a job's view."""

    def stream_changed(self, job: str, stream: str) -> None:
        """Handle possible new data in a job's log, metrics or progress."""

    def pool_changed(self) -> None:
        """Handle a change of devices or queue."""


@dataclass(slots=True)
class _Item:
    request: Request
    done: asyncio.Future[Any]


class Lifecycle:
    """The only writer of jobs. All others post requests and read committed jobs."""

    def __init__(self, store: Store, pool: Pool, user: str, clock: Callable[[], float] = time.time) -> None:
        self.pool = pool
        self.store = store
        self.user = user
        self.clock = clock
        self.jobs: dict[str, Job] = {}
        self.rows: dict[str, int] = {}
        self.keys: dict[tuple[str, str], tuple[str, str]] = {}
        self.progress: dict[str, Progress] = {}
        self.waits: Mapping[str, Wait] = {}
        self.last_row = 0
        self.next_number = 1
        self.wake_s: float | None = None
        """Time of the next turn if no event arrives."""
        self.listeners: list[Listener] = []
        self.idle_since_s: float | None = clock()
        self.drift: Callable[[], float] = lambda: 0.0
        """Function that returns how far the time of day is ahead of the clock, in seconds."""
        self.slept: Callable[[], float] = lambda: 0.0
        """Function that returns how long the machine was suspended so far, in seconds."""
        self._slept_s = 0.0
        self.engine_id = f"{os.getpid()}-{clock():.6f}"
        """Identifier that changes when the engine restarts."""
        self.blobs: Callable[[str], str] = _no_blobs
        self.configured = Policy()
        """Policy of the configuration."""
        self.runs_on = ""
        """Place where the pool's jobs run, in words."""
        self.settings = Settings()
        """Settings made at run time, which override the configuration."""
        self.admins: frozenset[str] = frozenset()
        """Users who may change the settings, besides the pool's own user."""
        self.user_limits = UserLimits()
        self.forecasts: list[Forecast] = []
        """Start estimates of jobs that have started, newest last."""
        self.notices: tuple[tuple[float, str], ...] = ()
        """Times and texts of losses of the store."""
        self.lengths = Lengths()
        self.keep_s: float | None = None
        """Time in seconds that ended jobs are kept; None: forever."""
        self.keep_jobs: int | None = None
        """Maximum number of ended jobs that are kept; None: all."""
        self._active: dict[str, Job] = {}
        self._delivery = Delivery(
            store,
            pool,
            clock,
            job_of=lambda job: self.jobs[job],
            blobs=lambda sha256: self.blobs(sha256),
            post=self._observe,
            carried_out=self._carried_out,
        )
        self._measured: set[str] = set()  # jobs with the note on logging whose first metric has arrived
        self._metrics = ChangeReader("metrics", self._read_metrics)
        self._inbox: list[_Item] = []
        self._due: dict[str, None] = {}  # jobs whose journal may have new facts, in order
        self._unread: dict[str, None] = {}  # jobs whose journal could not be read, to be read again
        self._wake = asyncio.Event()
        self._reports = ChangeReader("progress", self._read_progress)
        self._estimator = StartEstimator(self._wake.set)
        self._planned = _Planned({}, None, 0)
        self._plan_s = 0.0  # time of the next plan if only new jobs arrive
        self._must_plan = False
        self._is_unavailable = False  # whether the pool could not be reached when it last reported
        self._is_closing = False

    # -- public operations --------------------------------------------------------------------------------------------

    async def open(self) -> None:
        """Load the store, find running jobs, and reconcile: a restart is a turn like any other."""
        await self.pool.open(self._stream_changed, self._nodes_changed)
        loaded = await recovery.load(self.store, self.pool, self.clock())
        self.jobs, self.rows, self.keys = dict(loaded.jobs), dict(loaded.rows), dict(loaded.keys)
        self.last_row = loaded.last_row
        self.settings, self.forecasts = loaded.settings, list(loaded.forecasts)
        self.next_number = 1 + loaded.last_number
        self.notices = loaded.notices
        for name in [name for name, job in self.jobs.items() if time_limit.adopted(job) is not job]:
            self._observe(JobObserved(job=name, event=TimeLimitAdopted()))
        self._slept_s = self.slept()
        self._active = {j.id: j for j in self.jobs.values() if _is_active(j)}
        for known in sorted(self.jobs.values(), key=lambda j: j.number):
            self.lengths.learn(known)
        for job in self._active:
            self._due[job] = None
            self._stream_changed(job, PROGRESS)
            self._stream_changed(job, METRICS)
        self._wake.set()

    async def run(self) -> None:
        """Run turns until cancelled or closed."""
        while not self._is_closing:
            await self._sleep(self.wake_s)
            try:
                await self.turn()
            except StoreDamaged:
                raise  # the next engine moves the store aside and recovers the jobs from their directories
            except StoreError as error:
                log.error("%s; retrying in %.0f s", error, STORE_RETRY_S)
                self.wake_s = self.clock() + STORE_RETRY_S

    async def close(self) -> None:
        """Stop the loop. Jobs continue without the engine."""
        self._is_closing = True
        self._wake.set()
        await self.acted()
        for item in self._inbox:
            _fail(item, Unavailable("the engine is shutting down; try again"))
        await self.pool.close()

    @overload
    async def post(self, request: SubmitJob) -> Submitted: ...

    @overload
    async def post(self, request: DrainNode) -> DrainView: ...

    @overload
    async def post(self, request: UnansweredRequest) -> None: ...

    async def post(self, request: UserRequest) -> Any:
        """Apply a request in the next turn; return its answer once durable. Raises its refusal, or Unavailable."""
        if self._is_closing or len(self._inbox) >= INBOX_MAX:
            raise Unavailable("the engine is overloaded or shutting down; try again in a second")
        done: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._inbox.append(_Item(request, done))
        self._wake.set()
        return await done

    def _observe(self, observed: JobObserved) -> None:
        self._inbox.append(_Item(observed, _ignored()))

    def touch(self) -> None:
        """Restart the idle time: the engine is in use."""
        if self.idle_since_s is not None:
            self.idle_since_s = self.clock()

    @property
    def has_work(self) -> bool:
        """Return whether events wait for the next turn."""
        return bool(self._inbox or self._due or self._estimator.has_news)

    async def acted(self) -> None:
        """Wait until no task runs beside the loop."""
        while tasks := [*self._delivery.tasks.values(), *self._reports, *self._metrics]:
            await asyncio.wait(tasks)
        if self._estimator.task is not None:
            await asyncio.wait([self._estimator.task])

    def has_estimate(self, job: Job) -> bool:
        """Return whether the job has a start estimate."""
        return job.id in self._estimator.expected

    @property
    def policy(self) -> Policy:
        """Policy in force."""
        return policy_in_force(self.configured, self.settings)

    def nodes(self) -> tuple[Node, ...]:
        """Return the nodes with cordons applied."""
        return nodes_in_force(self.pool.nodes(), self.settings)

    def picture(self) -> Picture:
        """Return the snapshot from which a plan would be made now."""
        jobs = self._active
        known = self.lengths.known(jobs.values(), self.progress, self.clock())
        return Picture(nodes=self.nodes(), jobs=jobs, known=known)

    def view(self, job: Job) -> JobView:
        """Return the view of a job."""
        progress = self.progress.get(job.id)
        view = job_view(
            job,
            row=self.rows[job.id],
            directory=self.pool.directory(job.id),
            wait=self.waits.get(job.id),
            progress=self.lengths.paces.as_of(job, progress, self.clock()) if progress else None,
            has_metrics=job.id in self._measured,
            waiting_for=unreachable(job, self.pool.unavailable()) or self.pool.waiting(job.id),
        )
        return shifted_view(view, self.drift())

    def is_admin(self, user: str) -> bool:
        """Return whether the user may drain nodes and change queues and order."""
        return user == self.user or user in self.admins

    def pool_view(self) -> PoolView:
        """Return the view of the pool."""
        waiting = in_queue(self.waits.values())
        return pool_view(
            row=self.last_row,
            name=self.pool.name,
            unit=self.pool.unit,
            user=self.user,
            nodes=self.nodes(),
            jobs=self._active,
            queue=[w.job for w in waiting],
            isolation=self.pool.isolation,
            runs_on=self.runs_on,
            policy=self.policy,
            track_record=track_record(self.forecasts),
            notices=self._notices(),
        )

    def _notices(self) -> list[str]:
        why, no_devices = self.pool.unavailable(), self.pool.no_devices()
        unavailable = [] if why is None else [f"The pool is unavailable. {why} Nothing is started meanwhile."]
        if why is None and no_devices is not None:
            unavailable = [f"The pool has no devices. {no_devices}"]
        return unavailable + [text for at_s, text in self.notices if at_s > self.clock() - NOTICES_S]

    # -- the loop -----------------------------------------------------------------------------------------------------

    async def _sleep(self, wake_s: float | None) -> None:
        timeout = None if wake_s is None else max(wake_s - self.clock(), 0.0)
        try:
            async with asyncio.timeout(timeout):  # Python 3.11's wait_for may lose a cancellation
                await self._wake.wait()
        except TimeoutError:
            return
        finally:
            self._wake.clear()

    async def turn(self) -> None:
        """Run one turn: events and plan in one transaction, then the acts. Raises StoreError."""
        items, self._inbox = self._inbox, []
        due, self._due = self._due | self._unread, {}
        self._unread = {}
        has_news, self._estimator.has_news = self._estimator.has_news, False
        slept_s = self.slept()
        draft = Draft(self.jobs, self.rows, self.last_row, self.clock(), settings=self.settings)
        draft.next_number = self.next_number
        context = self._context()
        answers: list[tuple[_Item, Any]] = []
        try:
            for item in items:
                try:
                    answers.append((item, apply_request(draft, item.request, context)))
                except DlaasError as error:
                    _fail(item, error)
            self.next_number = draft.next_number  # not used again, even if the transaction fails
            for job in due:
                if not await apply_events(draft, self.pool, self._delivery, job):
                    self._unread[job] = None
            is_postponed = self._may_postpone(draft, due)
            planned = self._planned if is_postponed else self._decide(draft, has_news=has_news)
            if draft.batch:
                await self.store.commit(draft.batch)
        except StoreError as error:
            self._due = due | self._due
            self._estimator.has_news |= has_news
            for item, _ in answers:
                _fail(item, Unavailable(str(error)))
            raise
        self._publish(draft, planned.waits)
        self._slept_s = slept_s
        if not is_postponed:
            waiting = max(len(planned.waits), planned.left_out)
            self._planned, self._must_plan = planned, False
            self._plan_s = draft.now_s + waiting * PLAN_INTERVAL_PER_JOB_S if waiting > LONG_QUEUE else 0.0
        for item, answer in answers:
            if not item.done.done():
                item.done.set_result(answer)
        if is_postponed:
            self._estimator.has_news |= has_news
            self.wake_s = min(self._plan_s, planned.wake_s or self._plan_s)
            return
        factor = width_factor(forecast.held for forecast in self.forecasts)
        waiting = max(sum(1 for wait in self.waits.values() if wait.is_queued), planned.left_out)
        spread = self.lengths.spread
        policy = self.policy
        order = self.lengths.order(policy.order)
        version, is_pruned = (self.last_row, self.pool.nodes(), policy), planned.left_out > 0
        estimate_s = self._estimator.update(
            waiting, self.picture, policy, order, spread, factor, draft.now_s, version, is_pruned=is_pruned
        )
        wakes = [at_s for at_s in (self._act(planned.wake_s), estimate_s) if at_s is not None]
        self.wake_s = min(wakes, default=None)

    def _context(self) -> Context:
        return Context(
            pool=self.pool,
            configured=self.configured,
            limits=self.user_limits,
            is_admin=self.is_admin,
            keys=self.keys,
            active=self._active,
            picture=self.picture,
        )

    def _may_postpone(self, draft: Draft, due: Mapping[str, None]) -> bool:
        """Return whether to postpone planning: only new jobs of a long queue arrived, shortly after the last plan."""
        if due or self._must_plan or not draft.now_s < self._plan_s:
            return False
        submitted = {inserted.job.id for inserted in draft.batch.inserted}
        is_submits_only = draft.changed.keys() == submitted and not draft.deleted
        return bool(submitted) and is_submits_only and draft.settings == self.settings

    def _decide(self, draft: Draft, *, has_news: bool) -> _Planned:
        trust_again(draft)
        active = self._active | draft.changed
        for name in [*draft.deleted, *(name for name, job in draft.changed.items() if not _is_active(job))]:
            active.pop(name, None)
        enforce_time_limits(draft, active, self.slept() - self._slept_s)
        for job in [j for j in active.values() if j.spec.schedule]:
            active[job.id] = draft.apply(job.id, ScheduleApplied(epoch=self._epoch(job.id)))
        if (why := self.pool.unavailable()) is not None:  # what cannot be seen is left as it is
            waits = waits_while_unavailable(active.values(), self.waits, why)
            return _Planned(waits, next_limit_s(active, draft.now_s), 0)
        known = self.lengths.known(active.values(), self.progress, draft.now_s)
        nodes = nodes_in_force(self.pool.nodes(), draft.settings)
        policy = policy_in_force(self.configured, draft.settings)
        picture = Picture(nodes=nodes, jobs=active, known=known)
        order = self.lengths.order(policy.order)
        kept = pruned(picture, draft.now_s, policy, order) if len(active) > PRUNED_JOBS_MIN else picture
        left_out = len(active) - len(kept.jobs)
        is_pruned = left_out > PRUNED_JOBS_MIN
        picture, staying = emptied(draft, kept if is_pruned else picture, policy.placement)
        decisions = plan(picture, draft.now_s, policy, order)
        for preempt in decisions.preempts:
            draft.apply(preempt.job, Preempted(reason=preempt.reason, notice_s=preempt.notice_s))
        for start in decisions.starts:
            job = draft.job(start.job)
            if job.start_estimate is not None:
                draft.batch.forecasts.append(Forecast(job=job.id, estimate=job.start_estimate, started_s=draft.now_s))
            draft.apply(job.id, Started(seats=start.seats))
        for resize in decisions.resizes:
            event = Resized(seats=resize.seats, by=resize.by, why=resize.why, notice_s=resize.notice_s)
            draft.apply(resize.job, event)
        for name, winner in checkpoint_requests(picture, decisions.waits, policy).items():
            request_checkpoint(draft, name, f"The pool, for {winner} ({active[winner].owner}),")
        settings = draft.settings
        limits = [next_limit_s(active, draft.now_s), expiry_s(settings.suspects), retry_s(settings.refused)]
        wakes = [t for t in [decisions.wake_s, *limits] if t is not None and t > draft.now_s]
        if is_pruned:
            waits = waits_of_long_queue(
                draft, picture, decisions.waits, self._estimator, active, self.waits, has_news=has_news
            )
        else:
            waits = waits_with_estimates(draft, picture, decisions.waits, self._estimator)
        return _Planned(waits | staying, min(wakes, default=None), left_out if is_pruned else 0)

    def _publish(self, draft: Draft, waits: Mapping[str, Wait]) -> None:
        """Replace the state by the committed one and notify the listeners."""
        before, self.waits = self.waits, waits
        self.last_row = draft.last_row
        self.jobs.update(draft.changed)
        for job in draft.changed.values():
            self.lengths.learn(job)
        self.rows.update(draft.new_rows)
        self.keys.update(draft.new_keys)
        is_set, self.settings = draft.settings != self.settings, draft.settings
        self.forecasts = [*self.forecasts, *draft.batch.forecasts][-FORECASTS_MAX:]
        for job_id in draft.deleted:
            for table in (self.jobs, self.rows, self.progress, self._active, self._unread):
                table.pop(job_id, None)
            self._delivery.forget(job_id)
            self._measured.discard(job_id)
            self.lengths.paces.forget(job_id)
        for job in draft.changed.values():
            if _is_active(job):
                self._active[job.id] = job
            else:
                self._active.pop(job.id, None)
                self._delivery.known.pop(job.id, None)
        changed = {*draft.changed, *draft.deleted}
        if waits is not before:
            changed |= before.keys() ^ waits.keys()
            changed |= {j for j, wait in waits.items() if before.get(j) is not wait and before.get(j) != wait}
        for listener in self.listeners:
            for job_id in sorted(changed):
                listener.job_changed(job_id)
            if changed or is_set:
                listener.pool_changed()
        if self._active:
            self.idle_since_s = None
        elif self.idle_since_s is None:
            self.idle_since_s = self.clock()

    def _act(self, wake_s: float | None) -> float | None:
        """Start the acts that lead from the observed to the desired state. One act per job at a time."""
        now_s = self.clock()
        known = self._delivery.known
        for act in reconcile(self._active.values(), known, now_s):
            self._delivery.start(act)
        delayed = [j.not_before_s for j in self._active.values() if j.not_before_s > now_s]
        delayed += [one.retry_s for one in known.values() if one.retry_s > now_s]
        delayed += [now_s + RETRY_MAX_S] if self._unread else []
        return min([*delayed, *([wake_s] if wake_s is not None else [])], default=None)

    def _carried_out(self, job: str) -> None:
        self._due[job] = None  # the guardian may have written a fact, or ended, before the check
        self._wake.set()

    # -- callbacks of the pool ----------------------------------------------------------------------------------------

    def _stream_changed(self, job: str, stream: str) -> None:
        if stream == JOURNAL:
            self._due[job] = None
            self._wake.set()
        elif stream == PROGRESS:
            self._reports.changed(job)
        elif stream == METRICS and self._has_logging_note(job):
            self._metrics.changed(job)
        for listener in self.listeners:
            if stream == WAITING:
                listener.job_changed(job)
            elif stream not in (JOURNAL, PROGRESS):
                listener.stream_changed(job, stream)

    def _has_logging_note(self, job_id: str) -> bool:
        job = self.jobs.get(job_id)
        return job is not None and job_id not in self._measured and any(n.code == HOW_TO_LOG for n in job.spec.notes)

    async def _read_metrics(self, job: str) -> None:
        """Check for a first metric, which removes the note on logging."""
        try:
            chunk = await self.pool.read(job, METRICS, 0, 1)
        except (NotFound, PoolError):
            return
        if chunk.data:
            self._measured.add(job)
            for listener in self.listeners:
                listener.job_changed(job)

    async def _read_progress(self, job: str) -> None:
        try:
            chunk = await self.pool.read(job, PROGRESS, 0, 65536)
            if chunk.data:
                progress = decode(Progress, json.loads(chunk.data), unknown="ignore")
                progress = replace(progress, at_s=self.clock())  # by our clock, not the learner's
                self.progress[job] = self.lengths.paces.report(job, progress, self.jobs.get(job))
                if (known := self.jobs.get(job)) is not None and due(known, self._epoch(job)) is not None:
                    self._must_plan = True
                    self._wake.set()
        except NotFound:
            return  # its directory does not exist yet: it waits
        except (DlaasError, ValueError) as error:
            log.warning("cannot read the progress of %s: %s", job, error)
        for listener in self.listeners:
            listener.stream_changed(job, PROGRESS)

    def _epoch(self, job: str) -> int:
        """Return the number of completed epochs; -1 without a report."""
        return self.progress[job].epoch if job in self.progress else -1

    def _nodes_changed(self) -> None:
        self._must_plan = True
        self._delivery.retry_now()
        self._wake.set()
        was_unavailable, self._is_unavailable = self._is_unavailable, self.pool.unavailable() is not None
        for listener in self.listeners:
            for job in self._active if was_unavailable is not self._is_unavailable else ():
                listener.job_changed(job)
            listener.pool_changed()


@dataclass(frozen=True, slots=True)
class _Planned:
    waits: Mapping[str, Wait]
    wake_s: float | None
    left_out: int
    """Number of waiting jobs that the plan skipped."""


def _is_active(job: Job) -> bool:
    """Return whether the job can still change or may have processes left."""
    return not job.state.is_final or not job.is_closed


def _fail(item: _Item, error: DlaasError) -> None:
    if not item.done.done():
        item.done.set_exception(error)


def _ignored() -> asyncio.Future[Any]:
    """Return a future for a change whose result is ignored."""
    future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
    future.add_done_callback(lambda f: f.exception())
    return future


def _no_blobs(sha256: str) -> str:
    raise PoolError(f"no bytes were uploaded for {sha256}")
