"""Each sample once per epoch: held against the journal, for every live program in every mode, at every size.

The programs write which samples they train in which step, before they train them. The journal says which steps were
committed, in which generation, and where a loss or a restart began again.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from jupyter_dlaas.wire.journal import Fact, GenerationLost, GenerationStarted, JobClosed, LearnerUp, StepsCommitted

__all__ = ["Row", "check", "faults", "rows_of"]


@dataclass(frozen=True, slots=True)
class Row:
    """Samples that one learner began to train in one step, in the group of one membership epoch."""

    start: int
    """The how-manieth start of the gang it was: rounds begin at 0 again at each."""
    round: int
    step: int
    epoch: int
    learners: int
    samples: tuple[int, ...]


def rows_of(folder: Path, starts: Mapping[int, int]) -> list[Row]:
    """All rows below a job's output folder. `starts`: of each member, the start of the gang that it came with."""
    found: list[Row] = []
    for path in sorted(folder.glob("live-*")):
        member = int(path.name.removeprefix("live-"))
        for line in path.read_text().splitlines():
            parts = line.split(" ")
            if len(parts) == 5 and parts[4]:  # else torn by a kill, or nothing was trained
                number, step, epoch, size = map(int, parts[:4])
                samples = tuple(int(one) for one in parts[4].split(","))
                found.append(Row(starts[member], number, step, epoch, size, samples))
    return found


def faults(facts: Iterable[Fact], rows: Sequence[Row], samples: Collection[int], epochs: int) -> list[str]:
    """Return the faults; none if each sample was committed exactly once in each epoch."""
    found: list[str] = []
    committed: dict[int, int] = {}
    """Per step its epoch."""
    for fact in facts:
        if isinstance(fact, GenerationStarted) and fact.members is None:  # it was started, and did not change over
            committed = {step: epoch for step, epoch in committed.items() if step <= (fact.step or 0)}
        elif isinstance(fact, StepsCommitted):
            assert fact.first_step is not None
            assert fact.step is not None
            assert fact.epoch is not None
            for step in range(fact.first_step + 1, fact.step + 1):
                if step in committed:
                    found.append(f"step {step} was committed twice")
                committed[step] = fact.epoch
    found += [f"step {step} was not committed" for step in range(1, max(committed, default=0)) if step not in committed]
    last: dict[int, tuple[int, int]] = {}
    for row in rows:
        # Begun in several groups: a learner was lost in the earlier ones, or what came of them was taken back.
        last[row.step] = max(last.get(row.step, (0, 0)), (row.start, row.round))
    trained: dict[int, Counter[int]] = {}
    for row in rows:
        if row.step in committed and (row.start, row.round) == last[row.step]:
            if row.epoch != committed[row.step]:
                found.append(f"step {row.step} was trained in epoch {row.epoch}, committed in {committed[row.step]}")
            trained.setdefault(row.epoch, Counter()).update(row.samples)
    found += [f"epoch {epoch} was not trained" for epoch in range(epochs) if epoch not in trained]
    whole = Counter(samples)
    for epoch, counts in sorted(trained.items()):
        if counts != whole:
            found.append(f"epoch {epoch}: too often {dict(counts - whole)}, missing {dict(whole - counts)}")
    return found


def check(facts: Sequence[Fact], folder: Path, samples: Collection[int], epochs: int) -> None:
    """Raise AssertionError unless each sample was committed exactly once in each epoch."""
    starts: dict[int, int] = {}
    start, is_closed = 0, False
    for fact in facts:
        if isinstance(fact, JobClosed | GenerationLost):
            is_closed = True
        elif isinstance(fact, LearnerUp):
            start, is_closed = start + is_closed, False
            starts[fact.member] = start
    wrong = faults(facts, rows_of(folder, starts), samples, epochs)
    assert not wrong, "\n".join(wrong)
