"""Writer of a job's journal: records each event once, also across a change of guardian."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from jupyter_dlaas.jobdir.atomic_files import read_json
from jupyter_dlaas.jobdir.checkpoint_manifest import Range, manifests
from jupyter_dlaas.jobdir.journal_file import Journal
from jupyter_dlaas.jobdir.journal_replay import Told, told
from jupyter_dlaas.runtime.guardian.exit_status import Result, how_it_ended, read_result
from jupyter_dlaas.runtime.guardian.learner_process import Learner
from jupyter_dlaas.runtime.guardian.stragglers import Profile, Slow
from jupyter_dlaas.runtime.system.process import Identity
from jupyter_dlaas.wire.codec import decode
from jupyter_dlaas.wire.journal import JOURNAL_FORMAT, FactKind
from jupyter_dlaas.wire.protocol import Failure, Note
from jupyter_dlaas.wire.secret_masking import NO_MASK, Mask

__all__ = ["JournalWriter"]

_REPORTS_MAX: Final = 50
"""Maximum number of notes per job."""


class JournalWriter:
    """Journal of a job, and the state that it already records."""

    def __init__(
        self, job_dir: Path, mask: Mask = NO_MASK, explained: Callable[[Failure], Failure] = lambda failure: failure
    ) -> None:
        self._job_dir, self._mask = job_dir, mask
        self._explained = explained
        """Function that adds to a failure what the guardian knows of its cause."""
        self.journal = Journal(job_dir / "journal.jsonl", mask=mask)
        self.earlier: Told = told(self.journal.earlier)
        self.guardians = sum(1 for fact in self.journal.earlier if fact.kind is FactKind.GUARDIAN_UP)
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
        asked = (fact for fact in self.journal.earlier if fact.kind is FactKind.ASKED)
        self._asked = {(fact.step, fact.learners) for fact in asked}
        self._reports = {fact.note for fact in self.journal.earlier if fact.note is not None}
        self._is_alone = any(fact.kind is FactKind.ALONE for fact in self.journal.earlier)

    def guardian_up(self, me: Identity, took_over: bool) -> None:
        self.journal.append(
            FactKind.GUARDIAN_UP,
            pid=me.pid,
            start=me.start,
            boot=me.boot,
            took_over=True if took_over else None,
            format=JOURNAL_FORMAT,
        )

    def seen(self, revision: int) -> None:
        if revision > self._revision:
            self._revision = revision
            self.journal.append(FactKind.SEEN, revision=revision)

    def up(self, one: Learner) -> None:
        self.journal.append(
            FactKind.LEARNER_UP,
            member=one.member,
            rank=one.rank,
            generation=one.generation,
            pid=one.who.pid,
            start=one.who.start,
            boot=one.who.boot,
        )

    def ready(self, one: Learner) -> None:
        self.journal.append(FactKind.LEARNER_READY, member=one.member, generation=one.generation)

    def down(self, one: Learner) -> Failure | None:
        """Record a learner's last checkpoints and steps, and its end. Return its failure unless it was asked to end."""
        result = read_result(self._job_dir, one.member)
        code, number, failure = how_it_ended(one, result)
        failure = failure and self._explained(failure)
        self.checkpoints()
        if one.rank == 0:
            self._last_step_s = result.at_s if result is not None and result.at_s else self._last_progress_s()
            if result is not None and result.outcome == "ok":
                self.committed(one.trains_as, [decode(Range, part) for part in result.trained])
        self.journal.append(
            FactKind.LEARNER_DOWN,
            member=one.member,
            generation=one.generation,
            code=code,
            signal=number,
            failure=failure,
        )
        return failure

    def _last_progress_s(self) -> float | None:
        at_s = (read_json(self._job_dir / "progress.json") or {}).get("at_s")
        return float(at_s) if isinstance(at_s, int | float) and at_s else self._last_step_s

    def checkpoints(self) -> None:
        """Record checkpoints that are not in the journal yet. The files on disk are authoritative."""
        for _, one in manifests(self._job_dir):
            if (one.generation, one.step) in self._checkpoints and one.asked <= self.kept:
                continue
            asked, self.kept = one.asked if one.asked > self.kept else None, max(self.kept, one.asked)
            self._checkpoints.add((one.generation, one.step))
            self.committed(one.generation, one.trained)
            self.journal.append(
                FactKind.CHECKPOINT,
                generation=one.generation,
                step=one.step,
                epoch=one.epoch,
                seconds=one.seconds,
                bytes=one.bytes,
                asked=asked,
            )

    def committed(self, generation: int, ranges: Sequence[Range]) -> None:
        """Record the part of these step ranges that is new; `ranges` begin where the generation began."""
        for part in ranges:
            first = max(part.first, self._committed.get(generation, 0))
            if part.end > first:
                self._committed[generation] = part.end
                self.journal.append(
                    FactKind.COMMITTED, generation=generation, first_step=first, step=part.end, epoch=part.epoch
                )

    def checkpoint_step(self) -> int | None:
        """Return the step of the last checkpoint."""
        found = manifests(self._job_dir)
        return found[-1][1].step if found else None

    def together(self, generation: int, step: int | None, at_s: float | None = None, *, live: bool = False) -> None:
        if self._together >= generation:
            if step is not None and self._plain == generation:
                self._plain = -1
                self.journal.append(FactKind.BEGUN, generation=generation)
            return
        self._together = generation
        idle_s = None
        if self._last_step_s is not None and at_s is not None:
            idle_s = max(0.0, at_s - self._last_step_s)
        self._plain = generation if step is None else -1
        plain = step is None or None
        self.journal.append(
            FactKind.GENERATION, generation=generation, step=step or 0, idle_s=idle_s, live=live or None, plain=plain
        )

    def regrouped(
        self, generation: int, members: Sequence[int], step: int, idle_s: float | None, failure: Failure | None
    ) -> None:
        """Record that the gang changed to another process group while it trained.

        The fact is a new generation, or a regrouping of the current one after a loss.
        """
        kind = FactKind.GENERATION if self._together < generation else FactKind.REGROUPED
        self._together = max(self._together, generation)
        self.journal.append(
            kind, generation=generation, members=tuple(members), step=step, idle_s=idle_s, failure=failure, live=True
        )

    def pace(self, generation: int, told: Mapping[str, Any]) -> None:
        """Record the gang's training speed."""
        left_s = told.get("left_s")
        self.journal.append(
            FactKind.PACE,
            generation=generation,
            learners=int(told["learners"]),
            steps=int(told["steps"]),
            rate=float(told["rate"]),
            spread=float(told["spread"]),
            left_s=None if left_s is None else float(left_s),
        )

    def of_program(self, state: Mapping[str, Any]) -> None:
        """Record what a learner reports of its program. The learner repeats the report with each hello."""
        if isinstance(asks := state.get("asks"), list):
            self.asked(*asks)
        if isinstance(alone := state.get("alone"), list):
            self.alone(*alone)
        for code, text in state.get("reports", ()):
            self.report(Note(code=code, text=text))

    def asked(self, learners: int, step: int) -> None:
        """Record that the program requests another number of learners. A repeated request is recorded once."""
        if (step, learners) not in self._asked:
            self._asked.add((step, learners))
            self.journal.append(FactKind.ASKED, learners=learners, step=step)

    def alone(self, why: str, learners: int | None) -> None:
        """Record that the learners share nothing or keep a fixed number. Recorded once in a job's life."""
        if not self._is_alone:
            self._is_alone = True
            self.journal.append(FactKind.ALONE, why=why, learners=learners)

    def report(self, note: Note) -> None:
        """Record a note of training for the job's owner. Each note is recorded once in a job's life."""
        note = replace(note, text=self._mask.text(note.text))
        if note not in self._reports and len(self._reports) < _REPORTS_MAX:
            self._reports.add(note)
            self.journal.append(FactKind.REPORT, note=note)

    def awaited(self, member: int | None, at: str) -> None:
        """Record the busy learner that the others wait for, or None when they no longer wait."""
        self.journal.append(FactKind.AWAITED, member=member, why=at or None)

    def slow(self, found: Slow | None) -> None:
        """Record the straggler, or None when there is none any more."""
        member, speed = (None, None) if found is None else (found.member, found.speed)
        self.journal.append(FactKind.SLOW, member=member, rate=speed)

    def profile(self, generation: int, found: Profile) -> None:
        """Record the communication cost of the gang."""
        self.journal.append(FactKind.PROFILE, generation=generation, communication=found.communication, skew=found.skew)

    def has_begun(self, generation: int) -> bool:
        """Return whether everything about a generation's begin is recorded."""
        return self._together >= generation and self._plain != generation

    def storing(self, generation: int) -> None:
        if self._storing < generation:
            self.together(generation, None)
            self._storing = generation
            self.journal.append(FactKind.STORING, generation=generation)

    def lost(self, generation: int, failure: Failure | None) -> None:
        self.journal.append(FactKind.LOST, generation=generation, failure=failure, step=self.checkpoint_step())

    def halted(self) -> None:
        step = self.checkpoint_step()
        self.journal.append(FactKind.HALTED, step=step or 0, has_checkpoint=step is not None)

    def completed(self, generation: int, result: Result | None) -> None:
        if self._is_completed:
            return
        self._is_completed = True
        self.together(generation, None)
        results, step = (result.results, result.step) if result is not None else ((), None)
        self.journal.append(FactKind.COMPLETED, generation=generation, results=results, step=step)

    def closed(self, why: str) -> None:
        self.journal.append(FactKind.CLOSED, why=why)
