"""Gangs of all jobs: each is stepped after every change of its pods, and its outcome reaches guardian and engine."""

from __future__ import annotations

import asyncio
import hashlib
import json
import logging
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Final

from dlaas_server.pools.base import JOURNAL, WAITING, Changed, PoolError
from dlaas_server.pools.change_reader import ChangeReader
from dlaas_server.pools.kubernetes.api import ApiError, ApiUnreachable
from dlaas_server.pools.kubernetes.gang import Gang, GangOutcome
from dlaas_server.pools.kubernetes.gang_plan import has_seats, members_of
from dlaas_server.pools.kubernetes.job_creation import delete_job, delete_pods
from dlaas_server.pools.kubernetes.ledger import Ledger, Reservation
from dlaas_server.pools.kubernetes.manifests.job_manifests import JobObjects
from dlaas_server.pools.kubernetes.manifests.names import Json, object_name
from dlaas_server.pools.kubernetes.manifests.package_archive import package_archive
from dlaas_server.pools.kubernetes.manifests.pod_manifests import JobPods, Resources
from dlaas_server.pools.kubernetes.picture import GPU, Picture
from dlaas_server.pools.kubernetes.pod_endings import end_of_pod
from dlaas_server.pools.kubernetes.pod_waits import PodWait, wait_of_pod, wait_of_refusal
from dlaas_server.pools.local.job_folder import JobFolder
from jupyter_dlaas.jobdir.atomic_files import send_datagram, write_whole
from jupyter_dlaas.runtime.hosts.agent_settings import AGENTS, LOST, read_ending, read_lost, read_settings
from jupyter_dlaas.wire.codec import encode
from jupyter_dlaas.wire.journal import Goal, SeatRefused, Wanted
from jupyter_dlaas.wire.protocol import Failure, NotFound
from jupyter_dlaas.wire.waiting import WaitingReason

__all__ = ["TOKEN", "Gangs"]

log = logging.getLogger(__name__)

TOKEN: Final = "token"  # noqa: S105  # a file
RETRY_S: Final = 1.0
GONE_S: Final = 10.0
"""Time that the forced end of a job waits until its pods are gone."""
LEFT_S: Final = 5.0
"""Interval of deleting what is left of a closed job, in case that a deletion had no effect."""


@dataclass
class _Job:
    """State of one job in this engine."""

    folder: JobFolder
    wanted: Wanted
    gang: Gang
    closed_bytes: int
    """Size of the journal when the former guardian had closed the job; -1: it was not closed."""
    problem: PodWait | None = None
    """Refusal of the API server that is not about a pod."""
    refused: tuple[SeatRefused, ...] = ()
    waiting: tuple[WaitingReason, ...] = ()
    lost: Mapping[int, Failure] = field(default_factory=dict)
    ending: Mapping[int, Failure] = field(default_factory=dict)
    is_held: bool = False
    """True while the guardian does not have the document: it adds learners whose seats are not certain yet."""
    is_closed: bool = False
    """True once the job's guardian has closed it: no learner is left."""
    is_over: bool = False
    """True once the job is closed and nothing of it is left in the cluster."""
    timer: asyncio.TimerHandle | None = None


class Gangs:
    """Gangs of all jobs. Belongs to the event loop."""

    def __init__(
        self,
        picture: Picture,
        *,
        folder_of: Callable[[str], JobFolder],
        changed: Changed,
        give: Callable[[str, Wanted], Awaitable[None]],
    ) -> None:
        """Keep the pods of jobs. `give`: called with a document that was held back, once its seats are certain."""
        self._picture, self._folder_of, self._changed, self._give = picture, folder_of, changed, give
        self._jobs: dict[str, _Job] = {}
        self._locks: dict[str, asyncio.Lock] = {}
        self._steps = ChangeReader("gang of", self._step)
        self._pods_changed = asyncio.Condition()
        self._notices: set[asyncio.Task[None]] = set()

    async def close(self) -> None:
        """Stop. Pods continue."""
        for one in self._jobs.values():
            if one.timer is not None:
                one.timer.cancel()
        await asyncio.gather(*self._steps, *self._notices, return_exceptions=True)

    # ---- documents and news ----------------------------------------------------------------------------------

    def is_outdated(self, job: str, wanted: Wanted) -> bool:
        """Return whether a newer document of the job is held back."""
        known = self._jobs.get(job)
        return known is not None and known.is_held and wanted.revision < known.wanted.revision

    def withdraw(self, job: str) -> None:
        """Keep a document that is held back from the guardian for good: the job ends."""
        if job in self._jobs:
            self._jobs[job].is_held = False

    def accept(self, job: str, wanted: Wanted, *, was_closed_at: int = -1, is_held: bool = False) -> None:
        """Take a document that a guardian has, or (`is_held`) gets once its seats are certain.

        `was_closed_at`: size of the journal if a former guardian had closed the job.
        """
        known = self._jobs.get(job)
        if known is None or known.is_over or was_closed_at >= 0:
            known = self._jobs[job] = self._opened(self._folder_of(job), wanted, was_closed_at)
        known.wanted, known.refused, known.is_held = wanted, (), is_held
        known.gang.accept(wanted)
        self._picture.seats_changed()
        self._steps.changed(job)

    def _opened(self, folder: JobFolder, wanted: Wanted, was_closed_at: int) -> _Job:
        return _Job(folder=folder, wanted=wanted, gang=self._gang(folder, wanted), closed_bytes=was_closed_at)

    def _gang(self, folder: JobFolder, wanted: Wanted) -> Gang:
        return Gang(
            self._picture.api,
            _described(folder, wanted, self._picture),
            pins=self._picture.pins,
            now=time.monotonic,
            reserve=partial(self._reserve, folder.job),
        )

    def note_closed(self, job: str) -> None:
        """Count the pods of a job that its guardian has closed as leaving, unless the job was started again."""
        known = self._jobs.get(job)
        if known is None or known.folder.closed_bytes() not in (-1, known.closed_bytes):
            self._picture.note_closed(job)

    def changed(self, job: str) -> None:
        """Note a change of the job's pods, or of its journal."""
        if self._picture.unavailable() is None:
            self._steps.changed(job)
        notice = asyncio.create_task(self._notify())
        self._notices.add(notice)
        notice.add_done_callback(self._notices.discard)

    async def _notify(self) -> None:
        async with self._pods_changed:
            self._pods_changed.notify_all()

    def all_changed(self) -> None:
        """Step all jobs: the cluster can be reached again."""
        for job in sorted({*self._jobs, *self._picture.jobs()}):
            self.changed(job)

    def read_again(self) -> None:
        """Drop what is known of objects: another engine may have changed them since this one was the leader."""
        for job, known in list(self._jobs.items()):
            try:
                known.gang = self._gang(known.folder, known.wanted)
            except (NotFound, PoolError, ApiUnreachable) as error:
                log.warning("pods of %s are left as they are: %s", job, error)
                self.forget(job)
            else:
                known.gang.accept(known.wanted)

    # ---- seats in the ledger, in the threads of steps --------------------------------------------------------

    def _reserve(self, job: str, reservation: Reservation) -> None:
        """Commit the seats of a job. Raises SeatTaken and Fenced."""
        self._picture.commit(lambda ledger: ledger.place(job, reservation, self._live()))

    def _live(self) -> dict[str, set[str]]:
        """Return the members of all jobs that have a seat: wanted ones, and those whose pods have not ended."""
        found: dict[str, set[str]] = {}
        for job, known in list(self._jobs.items()):
            if not known.is_closed and known.wanted.goal is Goal.RUN:
                refused = {seat.member for seat in known.refused}
                found[job] = {str(one.member) for one in known.wanted.members if one.member not in refused}
        for job, pods in self._picture.jobs().items():
            running = (str(m) for m, pod in members_of(pods).items() if end_of_pod(pod) is None)
            found.setdefault(job, set()).update(running)
        return found

    def held(self) -> set[str]:
        """Return the devices of all jobs: those of wanted learners, and those in the ledger whose pods still run."""
        live = self._live()
        found = {device for _, devices in _seats(self._picture.ledger.kept(live)) for device in devices}
        for job, known in self._jobs.items():
            wanted = known.wanted.members if known.wanted.goal is Goal.RUN else ()
            found.update(device for one in wanted if str(one.member) in live.get(job, ()) for device in one.devices)
        return found

    # ---- steps -----------------------------------------------------------------------------------------------

    async def _step(self, job: str) -> None:
        async with self._locks.setdefault(job, asyncio.Lock()):
            try:
                known = self._jobs.get(job) or self._found(job)
            except (NotFound, PoolError, ApiUnreachable) as error:
                log.debug("pods of %s belong to no job of this pool: %s", job, error)
                return
            if known is None or known.is_over or self._picture.unavailable() is not None:
                return
            pods = self._picture.pods_of(job)
            try:
                outcome = await asyncio.to_thread(self._carry_out, known, pods)
            except (ApiUnreachable, ApiError) as error:
                log.warning("pods of %s: %s", job, error)
                known.problem = self._problem(job, error) if isinstance(error, ApiError) else None
                self._again(job, known, RETRY_S)
            else:
                known.problem = outcome.blocked
                if known.is_closed and not known.is_over:
                    self._picture.note_closed(job)  # an earlier engine may have learnt it
                    self._again(job, known, LEFT_S)
                await self._report(job, known, outcome)
        self._report_waiting(job, known)

    def _problem(self, job: str, error: ApiError) -> PodWait:
        anchor = {"namespace": self._picture.settings.namespace, "name": object_name(job)}
        return wait_of_refusal({"kind": "ConfigMap", "metadata": anchor}, error.reason, str(error))

    def _found(self, job: str) -> _Job | None:
        """Return a job of an earlier engine; None if this pool has no such job."""
        folder = self._folder_of(job)
        wanted = folder.wanted()
        if wanted is None:
            return None
        found = self._jobs[job] = self._opened(folder, wanted, -1)
        found.gang.accept(wanted)
        return found

    def _carry_out(self, known: _Job, pods: Mapping[str, Json]) -> GangOutcome:
        known.is_closed = known.folder.closed_bytes() not in (-1, known.closed_bytes)
        if known.is_closed:
            known.gang.close()
        outcome = known.gang.step(pods)
        if known.is_closed and not pods:
            settings = self._picture.settings
            delete_job(self._picture.api, settings.namespace, object_name(known.folder.job))
            self._picture.commit(lambda ledger: ledger.release(known.folder.job))
            known.is_over = True
        return outcome

    async def _report(self, job: str, known: _Job, outcome: GangOutcome) -> None:
        if outcome.lost.keys() - known.lost.keys() or outcome.ending.keys() - known.ending.keys():
            known.lost, known.ending = await asyncio.to_thread(_write_lost, known.folder.root, outcome)
            send_datagram(known.folder.root / "guardian.wake", b"lost")
        refused = tuple(
            SeatRefused(
                generation=known.wanted.generation,
                member=member,
                code=wait.code,
                what=wait.what,
                advice=wait.advice or None,
            )
            for member, wait in sorted(outcome.refused.items())
        )
        if refused != known.refused:
            known.refused = refused
            self._changed(job, JOURNAL)
        if known.is_held and not refused and has_seats(known.wanted, members_of(self._picture.pods_of(job))):
            await self._hand_over(job, known)
        if outcome.due_s is not None:
            self._again(job, known, max(0.0, outcome.due_s - time.monotonic()))

    async def _hand_over(self, job: str, known: _Job) -> None:
        """Give the guardian the document that was held back."""
        document = known.wanted
        try:
            await self._give(job, document)
        except PoolError as error:
            log.warning("document of %s: %s", job, error)
            self._again(job, known, RETRY_S)
        else:
            known.is_held = known.wanted.revision != document.revision and known.is_held

    def _again(self, job: str, known: _Job, after_s: float) -> None:
        if known.timer is not None:
            known.timer.cancel()
        known.timer = asyncio.get_running_loop().call_later(after_s, self._steps.changed, job)

    # ---- reasons ---------------------------------------------------------------------------------------------

    def _report_waiting(self, job: str, known: _Job) -> None:
        waiting = self._reasons(job, known)
        if waiting != known.waiting:
            known.waiting = waiting
            self._changed(job, WAITING)

    def _reasons(self, job: str, known: _Job) -> tuple[WaitingReason, ...]:
        if known.is_over or known.wanted.goal is not Goal.RUN:
            return ()
        found = []
        if known.problem is not None:
            problem = known.problem
            found.append(
                WaitingReason(code=problem.code, object=problem.object, what=problem.what, advice=problem.advice)
            )
        pods, learners = members_of(self._picture.pods_of(job)), len(known.wanted.members)
        for member in known.wanted.members:
            pod = pods.get(member.member)
            wait = None if pod is None else wait_of_pod(pod, self._picture.events_of(pod), learners=learners)
            if pod is None or wait is None:
                continue
            found.append(
                WaitingReason(
                    member=member.member,
                    code=wait.code,
                    object=wait.object,
                    what=wait.what,
                    advice=wait.advice,
                    since_s=_created_s(pod),
                )
            )
        return tuple(found)

    def waiting(self, job: str) -> Sequence[WaitingReason]:
        """Return why pods of the job do not run yet, in the order of its members."""
        known = self._jobs.get(job)
        return known.waiting if known is not None else ()

    def refused(self, job: str) -> Sequence[SeatRefused]:
        """Return the refused seats of the job's newest generation."""
        known = self._jobs.get(job)
        return known.refused if known is not None else ()

    # ---- end -------------------------------------------------------------------------------------------------

    async def end(self, job: str, *, kill: bool) -> bool:
        """Return whether no process of a pod is left. `kill`: first delete the pods and what belongs to them."""
        if self._picture.unavailable() is not None:
            return False
        if not kill:
            return all(end_of_pod(pod) is not None for pod in self._picture.pods_of(job).values())
        async with self._locks.setdefault(job, asyncio.Lock()):
            self.forget(job)
            await asyncio.to_thread(self._delete, job)
        try:
            async with asyncio.timeout(GONE_S), self._pods_changed:
                await self._pods_changed.wait_for(lambda: not self._picture.pods_of(job))
        except TimeoutError:
            return False
        return self._picture.unavailable() is None

    def _delete(self, job: str) -> None:
        api, namespace = self._picture.api, self._picture.settings.namespace
        delete_pods(api, namespace, self._picture.pods_of(job).values())
        delete_job(api, namespace, object_name(job))
        self._picture.commit(lambda ledger: ledger.release(job))

    def forget(self, job: str) -> None:
        """Drop what is known of the job."""
        known = self._jobs.pop(job, None)
        if known is not None and known.timer is not None:
            known.timer.cancel()


def _seats(ledger: Ledger) -> Iterator[tuple[str, tuple[str, ...]]]:
    return (seat for reservation in ledger.jobs.values() for seat in reservation.seats.values())


def _described(folder: JobFolder, wanted: Wanted, picture: Picture) -> JobObjects:
    """Return the job as its objects describe it. Its program, files and environment go over the link."""
    try:
        agents = read_settings(folder.root)
        token = (folder.root / TOKEN).read_bytes()
        digest = hashlib.sha256((folder.root / "spec.json").read_bytes()).hexdigest()
    except (OSError, ValueError) as error:
        raise PoolError(f"job {folder.job} has no settings for agents: {error}") from error
    if agents is None:
        raise PoolError(f"job {folder.job} was not made for a cluster: it has no {AGENTS}")
    spec = folder.spec()
    host = agents.own_address
    pods = JobPods(
        job=folder.job,
        settings=picture.settings,
        package=package_archive().name,
        resources=Resources(
            gpus=spec.gpus_per_learner if picture.unit == GPU else 0,
            cpus=spec.cpus_per_learner or None,
            memory_bytes=spec.memory_bytes_per_learner or None,
        ),
        grace_s=wanted.grace_s,
        guardian_address=f"{f'[{host}]' if ':' in host else host}:{agents.listen_address.port}",
    )
    return JobObjects(pods=pods, learners=(), spec_sha256=digest, wanted="{}", token=token)


def _write_lost(root: Path, outcome: GangOutcome) -> tuple[dict[int, Failure], dict[int, Failure]]:
    """Add members to those that are lost or being ended, and return all of them. What is known of one stays."""
    lost, ending = {**outcome.lost, **read_lost(root)}, {**outcome.ending, **read_ending(root)}
    body = {
        key: {str(member): encode(failure) for member, failure in sorted(found.items())}
        for key, found in (("members", lost), ("ending", ending))
    }
    write_whole(root / LOST, json.dumps(body).encode())
    return lost, ending


def _created_s(pod: Json) -> float | None:
    try:
        return datetime.fromisoformat(str(pod["metadata"]["creationTimestamp"])).timestamp()
    except (KeyError, ValueError):
        return None
