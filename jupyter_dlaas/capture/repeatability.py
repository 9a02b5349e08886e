"""Statements whose value would differ in the job: use the kernel's value, or warn the user. Pure."""

from __future__ import annotations

from collections.abc import Sequence, Set
from dataclasses import dataclass, field
from typing import Final

from jupyter_dlaas.analysis.model import KernelFacts, NameFact, Problem, TrainingCell
from jupyter_dlaas.analysis.steps import Step
from jupyter_dlaas.capture.nondeterminism import Draw, Kind, Scan
from jupyter_dlaas.capture.resolve import Solved
from jupyter_dlaas.capture.rng_restore import Streams

__all__ = ["Verdict", "judge"]

CODE: Final = "drawn_again"
_LISTED: Final = 5
_PLAIN: Final = frozenset({"list", "tuple", "dict", "set", "frozenset", "str"})


_READ: Final = {Kind.NETWORK: "the network", Kind.DATABASE: "a database"}
"""Kinds that are reported once for all statements."""


@dataclass(slots=True)
class Verdict:
    """Values to take from the kernel, and warnings, for statements that the job would not repeat exactly."""

    literals: dict[int, str] = field(default_factory=dict)
    """Steps whose values are written into the program, with the reasons."""
    warnings: list[Problem] = field(default_factory=list)


def judge(
    steps: Sequence[Step],
    solved: Solved,
    training: TrainingCell,
    facts: KernelFacts | None,
    scan: Scan,
    streams: Streams,
    refused: Set[int] = frozenset(),
) -> Verdict:
    """Examine the kept steps before the training cell. Without a kernel there are no values to compare with.

    `refused`: steps that the kernel's values cannot replace.
    """
    found = Verdict()
    if facts is None or not scan.draws:
        return found
    values = _Values(steps, solved, training, facts)
    drawn: list[tuple[Step, Draw, list[str]]] = []
    without: dict[str, tuple[int, Draw]] = {}  # names whose value would differ in the job -> the cause
    reported: set[str] = set()
    for index in values.kept:
        step = steps[index]
        draw = _unsteady(scan.draws.get(index, ()), streams.elsewhere.get(index, frozenset()), facts)
        taken = sorted(step.flow.reads & without.keys()) if without and not step.is_definition else []
        if (draw is None and not taken) or step.statement.cell in training.with_cells:
            continue
        cause, reason = (index, draw) if draw is not None else without[taken[0]]
        names = values.needed(index)
        if reason.kind is Kind.HASH and draw is not None:
            names = [name for name in names if name not in facts.names or _may_hold_order(facts.names[name])]
        if not names:
            continue
        if index not in refused and all(values.has_literal(name, index) for name in names):
            statement = steps[cause].statement
            found.literals[index] = f"{statement.label}, line {statement.line} {_reason(reason)}"
            continue
        current = [name for name in names if values.is_current(name, index)]
        if current and (draw is not None or reported.isdisjoint(taken)):
            drawn.append((steps[cause], reason, current))
        if current or not reported.isdisjoint(taken):
            reported.update(names)
        without.update(dict.fromkeys(names, (cause, reason)))
    sendable = [n for _, _, names in drawn for n in names if facts.names[n].cannot_travel is None]
    push = tuple(dict.fromkeys([*training.push, *sendable]))
    for step, draw, names in drawn:
        if draw.kind not in _READ:
            is_seeded = draw.library in streams.seeded
            found.warnings.append(_warning(step, draw, names, push, is_seeded=is_seeded))
    for kind in _READ:
        if same := [one for one in drawn if one[1].kind is kind]:
            found.warnings.append(_read_again(same, push))
    return found


class _Values:
    """Values of the kernel that may replace steps."""

    def __init__(self, steps: Sequence[Step], solved: Solved, training: TrainingCell, facts: KernelFacts) -> None:
        self.steps, self.facts = steps, facts
        goal = solved.plan.goal
        self.kept = sorted(index for index in solved.slice.kept if index < goal)
        self.given: dict[str, list[int]] = {}  # name -> steps before which a line binds it
        for line in solved.slice.lines:
            for name in line.names:
                self.given.setdefault(name, []).append(line.index)
        self.reads: dict[str, set[int]] = {name: {len(steps)} for name in training.outputs}
        self.last_bound: dict[str, int] = {}
        for index in sorted(solved.slice.kept):
            for names in (steps[index].flow.reads, steps[index].flow.soft, steps[index].reads_late):
                for name in names:
                    self.reads.setdefault(name, set()).add(index)
        for index, step in enumerate(steps[:goal]):
            if step.statement.ran != "no":
                self.last_bound.update(dict.fromkeys(step.flow.binds | step.globals_bound, index))

    def needed(self, index: int) -> list[str]:
        """Return the variables that a step binds or changes and that a later step reads before a value is given."""
        step = self.steps[index]
        made = step.flow.binds | step.globals_bound | step.changes
        return sorted(name for name in made if not self._is_code(name, index) and self._is_read(name, index))

    def _is_read(self, name: str, index: int) -> bool:
        """Return whether a step after this one reads the name, and no value is given in between."""
        given = min((at for at in self.given.get(name, ()) if at >= index), default=len(self.steps) + 1)
        return any(index < at < given for at in self.reads.get(name, ()))

    def has_literal(self, name: str, index: int) -> bool:
        """Return whether the value is a literal and still the one that this step bound or changed."""
        return self.is_current(name, index) and self.facts.names[name].literal is not None

    def is_current(self, name: str, index: int) -> bool:
        """Return whether the kernel still has the value that this step bound or changed."""
        return name in self.facts.names and self.last_bound.get(name, -1) <= index

    def _is_code(self, name: str, index: int) -> bool:
        if not self.is_current(name, index):
            return False
        fact = self.facts.names[name]
        return fact.is_callable or fact.type_name == "module"


def _unsteady(draws: Sequence[Draw], elsewhere: frozenset[str], facts: KernelFacts) -> Draw | None:
    """Return the first reason why a step gives another value in the job."""
    for draw in draws:
        if draw.kind is Kind.STREAM and draw.library not in elsewhere:
            continue
        if draw.kind is Kind.HASH and facts.hash_seed is not None:
            continue  # the job uses the same seed
        return draw
    return None


def _may_hold_order(fact: NameFact) -> bool:
    """Return whether the value may depend on the order of strings, unlike a list of numbers."""
    return fact.has_text or fact.type_name not in _PLAIN | {"int", "float", "bool"}


def _reason(draw: Draw) -> str:
    match draw.kind:
        case Kind.STREAM | Kind.GENERATOR:
            return f"draws it at random ({draw.what}) without a seed"
        case Kind.CLOCK:
            return f"reads it from a clock ({draw.what})"
        case Kind.UNIQUE:
            return f"creates a different value each time ({draw.what})"
        case Kind.NETWORK:
            return f"reads it from the network ({draw.what})"
        case Kind.DATABASE:
            return f"reads it from a database ({draw.what})"
        case Kind.INTERRUPT:
            return f"computes it until it is interrupted ({draw.what})"
        case Kind.HASH:
            return "depends on the order of a set" if draw.what != "hash()" else "computes it with hash()"


def _read_again(drawn: Sequence[tuple[Step, Draw, list[str]]], push: Sequence[str]) -> Problem:
    """Report once all values that cells have read from remote sources and the job reads again."""
    places = list(dict.fromkeys(f"{step.statement.label}, line {_line(step)}" for step, _, _ in drawn))
    names = list(dict.fromkeys(name for _, _, found in drawn for name in found))
    whats = list(dict.fromkeys(draw.what for _, draw, _ in drawn))
    where = f"{'; '.join(places[:_LISTED])}{'; …' if len(places) > _LISTED else ''}"
    text = (
        f"{where} read{'s' if len(places) == 1 else ''} {', '.join(f'`{name}`' for name in names)} from "
        f"{_READ[drawn[0][1].kind]} ({', '.join(whats[:_LISTED])}); the job will read "
        f"{'it' if len(names) == 1 else 'them'} again and may get other data. "
    )
    is_sent = set(names) <= set(push)
    values = "value" if len(names) == 1 else "values"
    text += (
        f"Use --push {','.join(push)} to send the notebook's {values}."
        if is_sent
        else "Save the data to a file in a cell."
    )
    step = drawn[0][0]
    return Problem(CODE, text, step.statement.label, _line(step), tuple(names))


def _warning(step: Step, draw: Draw, names: Sequence[str], push: Sequence[str], *, is_seeded: bool) -> Problem:
    statement = step.statement
    listed = ", ".join(f"`{name}`" for name in names)
    drawn = f"draws {listed} at random ({draw.what})"
    unseeded = f"{drawn} without a seed, so the job would draw other values"
    what = {
        Kind.STREAM: f"{drawn} after other draws, which the job omits" if is_seeded else unseeded,
        Kind.GENERATOR: unseeded,
        Kind.CLOCK: f"reads {listed} from a clock ({draw.what}), so the job would get another value",
        Kind.UNIQUE: f"creates {listed} with {draw.what}, which gives another value in the job",
        Kind.INTERRUPT: (
            f"computes {listed} until it is interrupted (it catches {draw.what}), but the job would run it to its end"
        ),
        Kind.HASH: f"creates {listed} from the order of a set (`{draw.what}`), which differs in the job",
    }[draw.kind]
    way = {
        Kind.STREAM: "move the draw to a separate cell to get the same values" if is_seeded else "set a seed",
        Kind.GENERATOR: "set a seed",
        Kind.HASH: "use sorted(…) for a fixed order",
    }.get(draw.kind, "")
    if draw.what == "hash()":
        what, way = f"computes {listed} with hash(), which gives other numbers for strings in the job", ""
    values = "value" if len(names) == 1 else "values"
    ways = [f"use --push {','.join(push)} to send the notebook's {values}"] if set(names) <= set(push) else []
    ways += [way] if way else []
    advice = ", or ".join(ways) or "create it in the training cell"
    text = f"{statement.label}, line {_line(step)} {what}. {advice[0].upper()}{advice[1:]}."
    return Problem(CODE, text, statement.label, _line(step), tuple(names))


def _line(step: Step) -> int:
    """Return the first line of a statement that is not a comment."""
    statement = step.statement
    return next((x.line for x in statement.lines if not x.text.lstrip().startswith("#")), statement.line)
