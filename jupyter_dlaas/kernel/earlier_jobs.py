"""Jobs that were submitted from a kernel, with the names that they changed and did not return."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from types import FunctionType
from typing import Final

from jupyter_dlaas.analysis.model import Capture, EarlierJob
from jupyter_dlaas.api.jobs import Job
from jupyter_dlaas.wire.codec import DlaasError
from jupyter_dlaas.wire.protocol import State

__all__ = ["EarlierJobs"]

_JOBS_MAX: Final = 50
"""Maximum number of jobs that a kernel remembers."""


@dataclass(slots=True)
class _Submitted:
    """Submitted job, and what its training cell changes."""

    job: Job
    changes: EarlierJob
    objects: Mapping[str, int]
    """Identities of the notebook's objects at submission."""


class EarlierJobs:
    """Record of the jobs of one kernel, the newest last. Failed and cancelled jobs are dropped."""

    def __init__(self) -> None:
        self._jobs: dict[str, _Submitted] = {}

    def note(self, job: Job, made: Capture, cell: int, outputs: tuple[str, ...], space: Mapping[str, object]) -> None:
        """Record a submission."""
        altered, bound = frozenset(made.altered), frozenset(made.bound)
        changes = EarlierJob(
            job=job.id,
            cell=cell,
            outputs=outputs,
            altered=altered,
            bound=bound,
            computes_gradients=made.computes_gradients,
            is_completed=False,
        )
        objects = {name: id(value) for name, value in space.items()}
        self._jobs[job.id] = _Submitted(Job(job.last_view, job.follow().client), changes, objects)
        while len(self._jobs) > _JOBS_MAX:
            del self._jobs[next(iter(self._jobs))]

    def facts(self) -> tuple[EarlierJob, ...]:
        """Return the jobs that have completed, or not ended yet. Each unfinished one costs a request."""
        for one in [one for one in self._jobs.values() if not one.changes.is_completed]:
            view = None  # unknown: the record was deleted, or no engine answers
            with suppress(DlaasError):
                view = one.job.follow().client.without_start().job(one.job.id)
            if view is not None and view.state is State.COMPLETED:
                self.note_unstored(one.job.id, {*one.changes.outputs} - {*view.results})
                one.changes = replace(one.changes, is_completed=True)
            elif view is not None and view.state.is_final:
                del self._jobs[one.job.id]
        return tuple(one.changes for one in self._jobs.values())

    def note_changed(self, job: str, names: Collection[str]) -> None:
        """Record names of the notebook whose objects the job has changed, as far as its text does not show it."""
        one = self._jobs.get(job)
        if one is not None:
            found = frozenset(name for name in names if name in one.objects)
            one.changes = replace(one.changes, altered=one.changes.altered | found)

    def note_loaded(
        self, job: str, space: Mapping[str, object], loaded: Collection[int], *, has_gradients: bool = False
    ) -> None:
        """Record the identities of existing objects that received the job's state as parts of its results.

        `has_gradients`: whether weights in them received the job's gradients.
        """
        one = self._jobs.get(job)
        if one is not None:
            changes = one.changes
            found = frozenset(name for name in changes.altered if name in space and id(space[name]) in loaded)
            one.changes = replace(
                changes,
                loaded=changes.loaded | found,
                computes_gradients=changes.computes_gradients and not has_gradients,
            )

    def note_unstored(self, job: str, names: Collection[str]) -> None:
        """Record names of -o that the job could not store, or that could not be loaded here."""
        one = self._jobs.get(job)
        if one is not None:
            one.changes = replace(one.changes, unstored=one.changes.unstored.union(names))

    def not_returned(self, job: str, space: Mapping[str, object]) -> tuple[str, ...]:
        """Return the names that still have the object from before the job, which changed it and did not return it."""
        one = self._jobs.get(job)
        if one is None:
            return ()
        # A class or function is returned by name, without its attributes.
        returned = {name for name in one.changes.outputs if not isinstance(space.get(name), type | FunctionType)}
        names = one.changes.altered - one.changes.loaded - returned
        return tuple(sorted(name for name in names if name in space and id(space[name]) == one.objects.get(name)))
