"""Statements that would give the job another value than the notebook has: take the value, or tell the user. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

from jupyter_dlaas.notebook.chance import Streams
from jupyter_dlaas.notebook.drawing import Draw, Kind, Scan
from jupyter_dlaas.notebook.records import KernelFacts, NameFact, Problem, TrainingCell
from jupyter_dlaas.notebook.resolve import Solved
from jupyter_dlaas.notebook.tracing import Step

__all__ = ["Verdict", "judge"]

CODE: Final = "drawn_again"
_PLAIN: Final = frozenset({"list", "tuple", "dict", "set", "frozenset", "str"})


@dataclass(slots=True)
class Verdict:
    """What is to be done about values that the job would not make as the notebook did."""

    literals: dict[int, str] = field(default_factory=dict)
    """Steps whose values are written into the program, and why."""
    warnings: list[Problem] = field(default_factory=list)


def judge(
    steps: Sequence[Step],
    solved: Solved,
    training: TrainingCell,
    facts: KernelFacts | None,
    scan: Scan,
    streams: Streams,
) -> Verdict:
    """Look at the kept steps before the training cell. Without a kernel there is no value to differ from."""
    found = Verdict()
    if facts is None or not scan.draws:
        return found
    values = _Values(steps, solved, training, facts)
    drawn: list[tuple[Step, Draw, list[str]]] = []
    without: dict[str, str] = {}  # names that the job would have otherwise -> why
    for index in values.kept:
        step = steps[index]
        draw = _unsteady(scan.draws.get(index, ()), streams.elsewhere.get(index, frozenset()), facts)
        names = values.needed(index)
        if draw is not None and draw.kind is Kind.HASH:
            names = [name for name in names if _may_hold_order(facts.names[name])]
        taken = sorted(step.flow.reads & without.keys())
        if not names or (draw is None and (not taken or step.is_definition)):
            continue
        if step.statement.cell in training.with_cells:
            continue
        place = f"{step.statement.label}, line {step.statement.line}"
        reason = f"{place} {_reason(draw)}" if draw is not None else without[taken[0]]
        if all(values.has_literal(name, index) for name in names):
            found.literals[index] = reason
            continue
        without.update(dict.fromkeys(names, reason))
        if draw is not None:
            drawn.append((step, draw, names))
    sendable = [n for _, _, names in drawn for n in names if facts.names[n].cannot_travel is None]
    push = tuple(dict.fromkeys([*training.push, *sendable]))
    for step, draw, names in drawn:
        is_seeded = draw.library in streams.seeded
        found.warnings.append(_warning(step, draw, names, push, is_seeded=is_seeded))
    return found


@dataclass(frozen=True)
class _Values:
    """Which values of the kernel may stand for steps."""

    steps: Sequence[Step]
    solved: Solved
    training: TrainingCell
    facts: KernelFacts

    @property
    def kept(self) -> list[int]:
        return sorted(index for index in self.solved.slice.kept if index < self.solved.plan.goal)

    def needed(self, index: int) -> list[str]:
        """The variables that a step makes or changes and that a later one of the program reads."""
        step, given = self.steps[index], {n for line in self.solved.slice.lines for n in line.names}
        made = {name for name in step.flow.binds | step.globals_bound | step.changes if name in self.facts.names}
        made = {name for name in made - given if not self._is_code(self.facts.names[name])}
        return sorted(name for name in made if name in self.training.outputs or any(self._readers(index, name)))

    def has_literal(self, name: str, index: int) -> bool:
        """Its value is a small plain one, and is still that which this step made or changed."""
        later = range(index + 1, self.solved.plan.goal)
        is_bound_later = any(
            name in self.steps[i].flow.binds | self.steps[i].globals_bound and self.steps[i].statement.ran != "no"
            for i in later
        )
        return self.facts.names[name].literal is not None and not is_bound_later

    def _readers(self, index: int, name: str) -> Iterator[int]:
        for later in sorted(self.solved.slice.kept):
            step = self.steps[later]
            if later > index and name in step.flow.reads | step.flow.soft | step.reads_late:
                yield later

    @staticmethod
    def _is_code(fact: NameFact) -> bool:
        return fact.is_callable or fact.type_name == "module"


def _unsteady(draws: Sequence[Draw], elsewhere: frozenset[str], facts: KernelFacts) -> Draw | None:
    """The first reason why a step makes another value in the job."""
    for draw in draws:
        if draw.kind is Kind.STREAM and draw.library not in elsewhere:
            continue
        if draw.kind is Kind.HASH and facts.hash_seed is not None:
            continue  # the job has the same
        return draw
    return None


def _may_hold_order(fact: NameFact) -> bool:
    """The value may depend on the order of strings: not a list of numbers."""
    return fact.has_text or fact.type_name not in _PLAIN | {"int", "float", "bool"}


def _reason(draw: Draw) -> str:
    match draw.kind:
        case Kind.STREAM | Kind.GENERATOR:
            return f"draws it at random ({draw.what}) without a seed"
        case Kind.CLOCK:
            return f"takes it from a clock ({draw.what})"
        case Kind.UNIQUE:
            return f"makes another one each time ({draw.what})"
        case Kind.HASH:
            return "takes the order of a set" if draw.what != "hash()" else "takes it from hash()"


def _warning(step: Step, draw: Draw, names: Sequence[str], push: Sequence[str], *, is_seeded: bool) -> Problem:
    statement = step.statement
    listed = ", ".join(f"`{name}`" for name in names)
    drawn = f"draws {listed} at random ({draw.what})"
    unseeded = f"{drawn} without a seed, and the job would draw anew"
    what = {
        Kind.STREAM: f"{drawn} after other draws, which the job leaves out" if is_seeded else unseeded,
        Kind.GENERATOR: unseeded,
        Kind.CLOCK: f"takes {listed} from a clock ({draw.what}), and the job would do so anew",
        Kind.UNIQUE: f"makes {listed} by {draw.what}, which gives the job another one",
        Kind.HASH: f"makes {listed} from the order of a set (`{draw.what}`), which is another one in the job",
    }[draw.kind]
    way = {
        Kind.STREAM: "a cell of its own draws the same in both" if is_seeded else "a seed makes both the same",
        Kind.GENERATOR: "a seed makes both the same",
        Kind.HASH: "sorted(…) gives one order everywhere",
    }.get(draw.kind, "")
    if draw.what == "hash()":
        what, way = f"makes {listed} with hash(), which gives other numbers for text in the job", ""
    ways = [f"--push {','.join(push)} sends what the notebook has"] if set(names) <= set(push) else []
    ways += [way] if way else []
    text = f"{statement.label}, line {_line(step)} {what}. {'; '.join(ways) or 'Make it in the training cell'}."
    return Problem(CODE, text, statement.label, _line(step), tuple(names))


def _line(step: Step) -> int:
    """The first line of a statement that is no comment."""
    statement = step.statement
    return next((x.line for x in statement.lines if not x.text.lstrip().startswith("#")), statement.line)
