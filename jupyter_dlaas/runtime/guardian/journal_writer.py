"""Writer of a job's journal: records each event once, also across a change of guardian."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Final

from jupyter_dlaas.failures.cell_map import CellMap
from jupyter_dlaas.failures.crash_location import CRASHES, crash_location
from jupyter_dlaas.jobdir.atomic_files import read_json
from jupyter_dlaas.jobdir.checkpoint_manifest import manifests
from jupyter_dlaas.jobdir.journal_file import Journal
from jupyter_dlaas.jobdir.journal_replay import JournalState, replay
from jupyter_dlaas.jobdir.layout import learner_folder
from jupyter_dlaas.jobdir.log_index import LOG
from jupyter_dlaas.runtime.guardian.exit_status import Result, how_it_ended, read_result
from jupyter_dlaas.runtime.guardian.learner_process import Learner
from jupyter_dlaas.runtime.guardian.stragglers import Profile, Slow
from jupyter_dlaas.runtime.system.process import Identity, uptime_s
from jupyter_dlaas.wire.codec import decode
from jupyter_dlaas.wire.journal import (
    JOURNAL_FORMAT,
    CheckpointSaved,
    CommunicationProfiled,
    GenerationLost,
    GenerationStarted,
    GuardianUp,
    IndependenceFound,
    JobClosed,
    JobCompleted,
    JobHalted,
    LearnerAwaited,
    LearnerDown,
    LearnerReady,
    LearnersLost,
    LearnerUp,
    LoopBegun,
    NoteReported,
    ResultsStoring,
    SizeRequested,
    StepsCommitted,
    StragglerFound,
    ThroughputMeasured,
    WantedSeen,
)
from jupyter_dlaas.wire.learner_messages import LearnerState, Throughput
from jupyter_dlaas.wire.protocol import Failure, Note, Where
from jupyter_dlaas.wire.secret_masking import NO_MASK, Mask
from jupyter_dlaas.wire.step_range import Range

__all__ = ["JournalWriter"]

_REPORTS_MAX: Final = 50
"""Maximum number of notes per job."""
_CRASH_BYTES_MAX: Final = 1 << 16
"""Bytes at the end of a log in which the stack of a crash is searched."""


class JournalWriter:
    """Journal of a job, and the state that it already records."""

    def __init__(
        self, job_dir: Path, mask: Mask = NO_MASK, explained: Callable[[Failure], Failure] = lambda failure: failure
    ) -> None:
        self._job_dir, self._mask = job_dir, mask
        self._explained = explained
        """Function that adds to a failure what the guardian knows of its cause."""
        self.journal = Journal(job_dir / "journal.jsonl", mask=mask)
        self.earlier: JournalState = replay(self.journal.earlier)
        self.guardians = sum(isinstance(fact, GuardianUp) for fact in self.journal.earlier)
        """Number of guardians that held this job before."""
        self._together = self.earlier.together
        self._plain = self.earlier.plain
        self._storing = self.earlier.storing
        self._checkpoints = set(self.earlier.checkpoints)
        self.kept = self.earlier.kept
        """Number of the last checkpoint request that was answered."""
        self._committed = dict(self.earlier.committed)
        self._revision = self.earlier.revision
        self._is_completed = self.earlier.is_completed
        self._last_step_s: float | None = None
        asked = (fact for fact in self.journal.earlier if isinstance(fact, SizeRequested))
        self._asked = {(fact.step, fact.learners) for fact in asked}
        self._reports = {fact.note for fact in self.journal.earlier if isinstance(fact, NoteReported)}
        self._is_alone = any(isinstance(fact, IndependenceFound) for fact in self.journal.earlier)

    def guardian_up(self, me: Identity, took_over: bool) -> None:
        self.journal.append(
            GuardianUp(
                pid=me.pid,
                start=me.start,
                boot=me.boot,
                took_over=True if took_over else None,
                format=JOURNAL_FORMAT,
            )
        )

    def seen(self, revision: int) -> None:
        if revision > self._revision:
            self._revision = revision
            self.journal.append(WantedSeen(revision=revision))

    def up(self, one: Learner) -> None:
        self.journal.append(
            LearnerUp(
                member=one.member,
                rank=one.rank,
                generation=one.generation,
                pid=one.process.pid,
                start=one.process.start,
                boot=one.process.boot,
                node=one.node,
                pod=one.pod,
            )
        )

    def ready(self, one: Learner) -> None:
        self.journal.append(LearnerReady(member=one.member, generation=one.generation))

    def down(self, one: Learner) -> Failure | None:
        """Record a learner's last checkpoints and steps, and its end. Return its failure unless it was asked to end."""
        result = read_result(self._job_dir, one.member)
        code, number, failure = how_it_ended(one, result)
        if failure is not None and one.failure is None and number in CRASHES:
            failure = replace(failure, where=self._crash_location(one.member, number))
        failure = failure and self._explained(failure)
        self.checkpoints()
        if one.rank == 0:
            knows_end = result is not None and result.up_s and one.shares_clock
            self._last_step_s = result.up_s if result is not None and knows_end else self._last_progress_s()
            if result is not None and result.outcome == "ok":
                self.committed(one.trains_as, [decode(Range, part) for part in result.trained])
        self.journal.append(
            LearnerDown(
                member=one.member,
                generation=one.generation,
                code=code,
                signal=number,
                failure=failure,
            )
        )
        return failure

    def _crash_location(self, member: int, number: int) -> Where | None:
        """Return the user's line in which a learner crashed, if its log shows it."""
        with suppress(OSError), (learner_folder(self._job_dir, member) / LOG).open("rb") as log:
            log.seek(max(0, log.seek(0, os.SEEK_END) - _CRASH_BYTES_MAX))
            text = log.read().decode("utf-8", "replace")
            spec = (read_json(self._job_dir / "spec.json") or {}).get("spec")
            cells, script = (spec.get("cells"), spec.get("script")) if isinstance(spec, dict) else (None, None)
            mapped = CellMap(
                self._job_dir / "train.py",
                cells if isinstance(cells, dict) else {},
                script if isinstance(script, str) else None,
            )
            return crash_location(text, number, mapped, str(self._job_dir / "files"))
        return None

    def _last_progress_s(self) -> float | None:
        """Return the uptime at the last step that a killed learner reported."""
        at_s = (read_json(self._job_dir / "progress.json") or {}).get("at_s")
        if not isinstance(at_s, int | float) or not at_s:
            return self._last_step_s
        return uptime_s() - max(0.0, time.time() - at_s)

    def checkpoints(self, ended: int = -1) -> None:
        """Record checkpoints that are not in the journal yet. The files on disk are authoritative.

        Those of a generation are recorded after its begin: else that fact would say that they could not be used.
        `ended`: generation that ended, whether or not its begin was recorded.
        """
        for _, one in manifests(self._job_dir):
            if one.generation > max(self._together, ended):
                continue
            if (one.generation, one.step) in self._checkpoints and one.asked <= self.kept:
                continue
            asked, self.kept = one.asked if one.asked > self.kept else None, max(self.kept, one.asked)
            self._checkpoints.add((one.generation, one.step))
            self.committed(one.generation, one.trained)
            self.journal.append(
                CheckpointSaved(
                    generation=one.generation,
                    step=one.step,
                    epoch=one.epoch,
                    seconds=one.seconds,
                    bytes=one.bytes,
                    asked=asked,
                )
            )

    def committed(self, generation: int, ranges: Sequence[Range]) -> None:
        """Record the part of these step ranges that is new; `ranges` begin where the generation began."""
        for part in ranges:
            first = max(part.first, self._committed.get(generation, 0))
            if part.end > first:
                self._committed[generation] = part.end
                self.journal.append(
                    StepsCommitted(generation=generation, first_step=first, step=part.end, epoch=part.epoch)
                )

    def checkpoint_step(self) -> int | None:
        """Return the step of the last checkpoint."""
        found = manifests(self._job_dir)
        return found[-1][1].step if found else None

    def together(self, generation: int, step: int | None, up_s: float | None = None, *, live: bool = False) -> None:
        if self._together >= generation:
            if step is not None and self._plain == generation:
                self._plain = -1
                self.journal.append(LoopBegun(generation=generation))
            return
        self._together = generation
        idle_s = None
        if self._last_step_s is not None and up_s is not None:
            idle_s = max(0.0, up_s - self._last_step_s)  # not by the time of day, which may be set meanwhile
        self._plain = generation if step is None else -1
        plain = step is None or None
        self.journal.append(
            GenerationStarted(generation=generation, step=step or 0, idle_s=idle_s, live=live or None, plain=plain)
        )
        self.checkpoints()

    def regrouped(
        self, generation: int, members: Sequence[int], step: int | None, idle_s: float | None, failure: Failure | None
    ) -> None:
        """Record that the gang changed to another process group while it trained.

        The fact is a new generation, or a regrouping of the current one after a loss.
        """
        record = GenerationStarted if self._together < generation else LearnersLost
        self._together = max(self._together, generation)
        self.journal.append(
            record(generation=generation, members=tuple(members), step=step, idle_s=idle_s, failure=failure, live=True)
        )
        self.checkpoints()

    def pace(self, generation: int, measured: Throughput) -> None:
        """Record the gang's training speed."""
        self.journal.append(
            ThroughputMeasured(
                generation=generation,
                learners=measured.learners,
                steps=measured.steps,
                rate=measured.rate,
                spread=measured.spread,
                left_s=measured.left_s,
            )
        )

    def of_program(self, state: LearnerState) -> None:
        """Record what a learner reports of its program. The learner repeats the report with each state."""
        if state.size_request is not None:
            self.asked(*state.size_request)
        if state.independence is not None:
            self.alone(*state.independence)
        for code, text in state.notes:
            self.report(Note(code=code, text=text))

    def asked(self, learners: int, step: int) -> None:
        """Record that the program requests another number of learners. A repeated request is recorded once."""
        if (step, learners) not in self._asked:
            self._asked.add((step, learners))
            self.journal.append(SizeRequested(learners=learners, step=step))

    def alone(self, why: str, learners: int | None) -> None:
        """Record that the learners share nothing or keep a fixed number. Recorded once in a job's life."""
        if not self._is_alone:
            self._is_alone = True
            self.journal.append(IndependenceFound(why=why, learners=learners))

    def report(self, note: Note) -> None:
        """Record a note of training for the job's owner. Each note is recorded once in a job's life."""
        note = replace(note, text=self._mask.text(note.text))
        if note not in self._reports and len(self._reports) < _REPORTS_MAX:
            self._reports.add(note)
            self.journal.append(NoteReported(note=note))

    def awaited(self, member: int | None, at: str) -> None:
        """Record the busy learner that the others wait for, or None when they no longer wait."""
        self.journal.append(LearnerAwaited(member=member, why=at or None))

    def slow(self, found: Slow | None) -> None:
        """Record the straggler, or None when there is none any more."""
        member, speed = (None, None) if found is None else (found.member, found.speed)
        self.journal.append(StragglerFound(member=member, rate=speed))

    def profile(self, generation: int, found: Profile) -> None:
        """Record the communication cost of the gang."""
        self.journal.append(
            CommunicationProfiled(generation=generation, communication=found.communication, skew=found.skew)
        )

    def has_begun(self, generation: int) -> bool:
        """Return whether everything about a generation's begin is recorded."""
        return self._together >= generation and self._plain != generation

    def storing(self, generation: int) -> None:
        if self._storing < generation:
            self.together(generation, None)
            self._storing = generation
            self.journal.append(ResultsStoring(generation=generation))

    def lost(self, generation: int, failure: Failure | None) -> None:
        self.checkpoints(generation)
        self.journal.append(GenerationLost(generation=generation, failure=failure, step=self.checkpoint_step()))

    def halted(self, generation: int) -> None:
        self.checkpoints(generation)
        step = self.checkpoint_step()
        self.journal.append(JobHalted(step=step or 0, has_checkpoint=step is not None))

    def completed(self, generation: int, result: Result | None) -> None:
        if self._is_completed:
            return
        self._is_completed = True
        self.together(generation, None)
        results, step = (result.results, result.step) if result is not None else ((), None)
        self.journal.append(JobCompleted(generation=generation, results=results, step=step))

    def closed(self, why: str) -> None:
        self.journal.append(JobClosed(why=why))
