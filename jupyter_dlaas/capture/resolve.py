"""Slicing until every needed name has a source: a step, the kernel's value, a push or a job's result. Pure."""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from math import inf

from jupyter_dlaas.analysis.effects import reach
from jupyter_dlaas.analysis.model import KernelFacts, Literal, NameFact, Problem, ResultRef, TrainingCell, size_text
from jupyter_dlaas.analysis.steps import Step, Trace, changed_in_turn
from jupyter_dlaas.analysis.syntax.text_lookups import may_bind_any_name
from jupyter_dlaas.capture.slicer import BUILTINS, Blocked, Given, Need, Plan, Slice, is_training, slice_steps
from jupyter_dlaas.capture.spelling import closest_name

DLAAS = "dlaas"
OUTPUTS = re.compile(r"_{1,3}|_\d+|Out|_oh|In|_ih|_i{1,3}|_i\d+|_dh")
"""Names under which IPython keeps a notebook's outputs and inputs."""


@dataclass(slots=True)
class Solved:
    """Last slice, and the sources it uses."""

    slice: Slice
    plan: Plan
    needs_dlaas: bool = False
    literals: list[Literal] = field(default_factory=list)
    unbound: list[str] = field(default_factory=list)
    errors: list[Problem] = field(default_factory=list)
    warnings: list[Problem] = field(default_factory=list)


def solve(
    trace: Trace,
    goal: int,
    training: TrainingCell,
    facts: KernelFacts | None,
    unsteady: Mapping[int, str] | None = None,
    draws: Set[int] = frozenset(),
) -> Solved:
    """Find what the training cell (the steps from `goal` on) needs, and report what cannot be provided.

    `unsteady`: steps that would give another value than before, with the reason; the kernel's value replaces them.
    `draws`: steps to keep for the random numbers that they draw.
    """
    solver = _Solver(trace, goal, training, facts)
    solver.plan = replace(solver.plan, draws=frozenset(draws))
    if unsteady:
        solver.plan = replace(solver.plan, poison=unsteady)
    return solver.solve()


class _Solver:
    def __init__(self, trace: Trace, goal: int, training: TrainingCell, facts: KernelFacts | None) -> None:
        self.trace, self.steps, self.goal = trace, trace.steps, goal
        self.training, self.facts = training, facts
        self.literals: dict[str, Literal] = {}
        trains: frozenset[str] = frozenset()
        for step in self.steps[goal:]:
            trains |= step.fits | (step.changes if step.trains else frozenset())
        self.plan = Plan(
            goal=goal,
            outputs=training.outputs,
            given=(*self._pushed(), *self._results()),
            with_cells=frozenset(training.with_cells),
            goal_trains=trains,
            goal_changes=frozenset[str]().union(
                *(changed_in_turn(step) for step in self.steps[goal:] if step.is_block)
            ),
        )
        followers, known = self._left_values()
        self.plan = replace(self.plan, followers=followers, known=known)

    def solve(self) -> Solved:
        for _ in range(4 * len(self.steps) + 16):  # each round settles at least one name or step
            found = slice_steps(self.steps, self.plan)
            solved = Solved(found, self.plan)
            plan = self._next_plan(found, solved)
            if plan is None:
                solved.literals = [self.literals[g.names[0]] for g in found.lines if g.kind == "literal"]
                return solved
            self.plan = plan
        raise AssertionError("the slice did not settle")

    def fact(self, name: str) -> NameFact | None:
        return self.facts.names.get(name) if self.facts is not None else None

    # names that come by value or by reference
    def _last_binding(self, name: str) -> int | None:
        for index in range(self.goal - 1, -1, -1):
            step = self.steps[index]
            if name in step.flow.binds | step.globals_bound and step.statement.ran != "no":
                return index
        return None

    def _left_values(self) -> tuple[dict[int, int], dict[int, frozenset[str]]]:
        """Map steps to the earlier training from which they read a value that the job does not have.

        And map trainings to the values that such steps read and that the kernel still has, as literals.
        """
        found: dict[int, int] = {}
        known: dict[int, frozenset[str]] = {}
        binder: dict[str, int] = {}
        for index, step in enumerate(self.steps[: self.goal]):
            is_omitted = self._is_omitted(step)
            for name in () if is_omitted or step.is_definition else sorted(step.flow.reads & binder.keys()):
                at, fact = binder[name], self.fact(name)
                if name in self.training.push:
                    continue
                if fact is not None and fact.literal is not None and self._is_last(name, at):
                    known[at] = known.get(at, frozenset()) | {name}
                else:
                    found[index] = at
            for name in step.flow.binds | step.globals_bound if step.statement.ran != "no" else ():
                if is_omitted:
                    binder[name] = index
                else:
                    binder.pop(name, None)
        return found, known

    def _is_last(self, name: str, index: int) -> bool:
        last = self._last_binding(name)
        return last is None or last <= index

    def _is_omitted(self, step: Step) -> bool:
        """Return whether the job omits a step since it is a training and has no result."""
        own = step.flow.reads | step.flow.soft
        return (
            is_training(step, self.plan)
            and (step.is_block or step.flow.binds <= own)
            and step.statement.cell not in self.plan.with_cells
        )

    def _pushed(self) -> tuple[Given, ...]:
        names = tuple(dict.fromkeys(self.training.push))
        if not names:
            return ()
        needs = self._definitions_in(names)
        bindings = [at for name in names if (at := self._last_binding(name)) is not None]
        behind = [at + 1 for name in needs if (at := self._last_binding(name)) is not None]
        index = max([min(bindings, default=self.goal), *behind])
        left = f"{names[0]}" if len(names) == 1 else ", ".join(names)
        quoted = ", ".join(f'"{name}"' for name in names)
        source = f"{left} = {DLAAS}.pushed({quoted})"
        late = reach(needs, self.trace.late) - needs - frozenset(names) - BUILTINS
        return (Given(index, names, source, "pushed", needs, "", *self._command_line(), late),)

    def _command_line(self) -> tuple[str, int]:
        return f"cell [{self.training.count}]", self.training.first_line - 1

    def _results(self) -> tuple[Given, ...]:
        """Return one line per job for all its results, since their objects may form one graph."""
        if self.facts is None:
            return ()
        groups: dict[tuple[int, str], list[str]] = {}
        needs_of: dict[str, frozenset[str]] = {}
        for name, fact in sorted(self.facts.names.items()):
            ref = fact.result
            if ref is None or name in self.training.push:
                continue
            index = self.goal
            if ref.after_cell is not None:
                place = (ref.after_cell, inf if ref.after_line is None else ref.after_line)
                later = (i for i, s in enumerate(self.steps) if (s.statement.cell, s.statement.line) > place)
                index = min(next(later, self.goal), self.goal)
            at_of = {need: self._last_binding(need) for need in self._definitions_in((name,))}
            needs_of[name] = frozenset(
                need for need, at in at_of.items() if at is not None
            )  # the job's program has the others
            behind = [at + 1 for at in at_of.values() if at is not None]
            groups.setdefault((max([index, *behind]), ref.job), []).append(name)
        return tuple(
            Given(
                index,
                tuple(names),
                "",
                "result",
                frozenset().union(*(needs_of[name] for name in names)),
                "",
                *self._command_line(),
                refs=tuple(self._ref(name) for name in names),
            )
            for (index, _), names in groups.items()
        )

    def _ref(self, name: str) -> ResultRef:
        fact = self.fact(name)
        ref = fact.result if fact is not None else None
        assert ref is not None, "a result line comes from a fact"
        return ref

    def _definitions_in(self, names: Sequence[str]) -> frozenset[str]:
        """Return the notebook's own classes and functions that unpickling these objects needs."""
        facts = [fact for name in names if (fact := self.fact(name)) is not None]
        named = frozenset(main for fact in facts for main in fact.main_names)
        made_of = reach(reach(names, self.trace.holds), self.trace.late)
        return (named | (made_of & self.trace.definitions)) - frozenset(names)

    # one round
    def _next_plan(self, found: Slice, solved: Solved) -> Plan | None:
        """Return a better plan, or None if nothing is left to try; remaining problems are in `solved`."""
        stars = [step for step in self.steps[: self.goal] if step.is_star]
        if stars and not self.plan.stars:
            in_kernel = self.facts.names if self.facts is not None else {}
            missing = {b.name for b in found.blocked if b.index is None} - {DLAAS}
            missing = {n for n in missing if self.facts is None or n in in_kernel or _is_pylab(stars)}
            if missing | {name for name in found.builtins if name in in_kernel}:
                return replace(self.plan, stars=True)
        for blocked in found.blocked:
            if (plan := self._way_out(blocked, stars, solved)) is not None:
                return plan
        if (plan := self._loaded_into(found) or self._pushed_later(found)) is not None:
            return plan
        solved.errors += self._results_apart(found)
        if any(given.kind != "literal" for given in found.lines):
            solved.needs_dlaas = True
        return None

    def _loaded_into(self, found: Slice) -> Plan | None:
        """Load results into the objects that kept steps create, as the kernel did: other names may refer to them.

        Names that kept steps bind may also refer to parts of a result; then the job creates its object, too.
        """
        for given in self.plan.given:
            bound = self._bound_before(found, given)
            into = frozenset(
                n
                for n, ref in zip(given.names, given.refs, strict=False)
                if ref.is_restored and (n in bound or not ref.parts.isdisjoint(bound))
            )
            if not into <= given.into:
                new = replace(given, into=given.into | into)
                return replace(self.plan, given=tuple(new if one is given else one for one in self.plan.given))
        return None

    def _pushed_later(self, found: Slice) -> Plan | None:
        """Give pushed values again after a kept statement that binds their names beside others: `n, best = 2, inf`.

        Objects that are no literals may share parts with the other pushed ones, so all of them come later.
        """
        for given in (one for one in self.plan.given if one.kind == "pushed"):
            for index in sorted(i for i in found.kept if given.index <= i < self.goal):
                again = self.steps[index].flow.binds & frozenset(given.names)
                if any((fact := self.fact(name)) is None or fact.literal is None for name in again):
                    later = replace(given, index=index + 1)
                    return replace(self.plan, given=tuple(later if one is given else one for one in self.plan.given))
                known = {one.names[0] for one in self.plan.given if one.kind == "literal" and one.index > index}
                for name in sorted(again - known):
                    fact = self.fact(name)
                    literal = fact.literal if fact is not None else None
                    return self._with_value(name, literal or "", index + 1, "sent by --push", self._command_line())
        return None

    def _bound_before(self, found: Slice, given: Given) -> frozenset[str]:
        """Return the names of a result that kept steps bind, also those bound only by a text: `exec(text)`."""
        kept = [self.steps[index] for index in sorted(found.kept) if index < given.index]
        bound = frozenset[str]().union(*(step.flow.binds | step.globals_bound for step in kept))
        if any(step.is_star for step in kept):
            by_jobs = (one.bound for one in self.facts.jobs) if self.facts is not None else ()
            others = frozenset(given.names).difference(*by_jobs)
            bound |= frozenset(name for name in others if self._last_binding(name) is None)
        return bound

    def _results_apart(self, found: Slice) -> list[Problem]:
        """Report objects around a model that an earlier job's result has replaced: they would train the wrong model."""
        problems = []
        for given in found.lines:
            replaced = frozenset(given.names) - given.into if given.refs else frozenset()
            for index in sorted(i for i in found.kept if i < given.index) if replaced else ():
                step = self.steps[index]
                models = sorted(step.flow.reads & replaced)
                holders = step.flow.binds - frozenset(given.names) if models and not step.is_definition else frozenset()
                stale = sorted(n for n in holders if self._has_weights(n) and self._reads_later(found, n, given.index))
                if stale:
                    place = step.statement
                    text = (
                        f"{place.label}, line {place.line}: {_list(stale)} would not refer to the {_list(models)} "
                        f"that {given.refs[0].job} returned. Create {_list(stale)} again in a later "
                        "cell, or in the training cell."
                    )
                    problems.append(Problem("result_apart", text, place.label, place.line, tuple(stale)))
        return problems

    def _has_weights(self, name: str) -> bool:
        fact = self.fact(name)
        return fact is not None and fact.has_weights

    def _reads_later(self, found: Slice, name: str, index: int) -> bool:
        return any(name in self.steps[i].flow.reads | self.steps[i].reads_late for i in found.kept if i >= index)

    def _way_out(self, blocked: Blocked, stars: Sequence[Step], solved: Solved) -> Plan | None:
        name, fact = blocked.name, self.fact(blocked.name)
        if name == DLAAS and blocked.index is None:
            solved.needs_dlaas = True
            return None
        if blocked.index is None and self.plan.stars and self._comes_from_star_import(fact, stars):
            return None
        if blocked.index is None and blocked.need is not Need.SURE and self._is_bound_later(blocked):
            return None  # its possible readers did not read it: it did not exist yet
        if blocked.need is Need.BOUND:
            return None
        last = self._last_binding(name)
        # the kernel's value is the newest; an earlier statement may have read another one
        is_in_force = last is None or (blocked.index is not None and last <= blocked.index)
        if fact is not None and fact.literal is not None and is_in_force and name not in self.literals:
            return self._with_literal(blocked, fact.literal)
        if blocked.need is Need.OWN and (blocked.index is None or is_training(self.steps[blocked.index], self.plan)):
            return None
        readers = [i for i in blocked.readers if i < self.goal and self.steps[i].statement.ran == "yes"]
        can_poison = [i for i in sorted(readers) if i not in self.plan.poison and not self.steps[i].is_setup]
        is_output = OUTPUTS.fullmatch(name) is not None
        known_bad = blocked.index is not None or fact is not None or is_output
        if known_bad and can_poison and len(can_poison) == len(blocked.readers):
            reason = blocked.reason or f"no recorded cell defines `{name}`"
            if is_output:
                first = self.steps[can_poison[0]].statement
                reason = f"{first.label}, line {first.line} got it from `{name}`, an output of the notebook"
            return replace(self.plan, poison={**self.plan.poison, **dict.fromkeys(can_poison, reason)})
        self._report(blocked, fact, solved)
        return None

    def _is_bound_later(self, blocked: Blocked) -> bool:
        """Return whether a step binds the name after all its possible readers have run."""
        first = min(blocked.readers)
        return any(blocked.name in s.flow.binds | s.globals_bound for s in self.steps[first:])

    def _with_literal(self, blocked: Blocked, literal: str) -> Plan:
        index = blocked.index if blocked.index is not None else 0
        place = self._command_line()
        if blocked.index is not None:
            statement = self.steps[blocked.index].statement
            place = (statement.label, statement.line)
        return self._with_value(blocked.name, literal, index, blocked.reason or "no recorded cell defines it", place)

    def _with_value(self, name: str, literal: str, index: int, reason: str, place: tuple[str, int]) -> Plan:
        self.literals[name] = Literal(name, literal, reason)
        source = f"{name} = {literal}  # the kernel's value: {reason}"
        given = Given(index, (name,), source, "literal", reason=reason, cell=place[0], line=place[1])
        return replace(self.plan, given=(*self.plan.given, given))

    def _comes_from_star_import(self, fact: NameFact | None, stars: Sequence[Step]) -> bool:
        if self.facts is None:
            return True
        if fact is None:
            return _is_pylab(stars)
        if any(step.calls for step in stars):  # `exec(text)` may bind any name
            return True
        # names re-exported by a library count, too: `from fastai.tabular.all import *` binds fastcore's `range_of`
        own = {module.name.partition(".")[0] for module in self.facts.own_modules} | {"__main__"}
        modules = [s.statement.node.module or "" for s in stars if isinstance(s.statement.node, ast.ImportFrom)]
        roots = {module.partition(".")[0] for module in modules}
        return fact.module is None or fact.module.partition(".")[0] not in own - roots

    # messages
    def _report(self, blocked: Blocked, fact: NameFact | None, solved: Solved) -> None:
        name = blocked.name
        where, cell, line = self._where(blocked)
        if blocked.index is None and (binder := self._may_bind(blocked)) is not None:
            solved.warnings.append(self._perhaps_bound(blocked, binder))
            return
        if fact is None and blocked.index is None:
            if blocked.need <= Need.PERHAPS:
                return
            if blocked.need is Need.LATE or blocked.is_rare:
                text = (
                    f"{where} may read `{name}`, which is not defined anywhere. If that line runs in the job, it fails."
                )
                solved.warnings.append(Problem("late_undefined", text, cell, line, (name,)))
                return
            solved.unbound.append(name)
            solved.errors.append(self._undefined(blocked, where, cell, line))
            return
        kind = _kind(fact)
        reason = blocked.reason or "it exists in the kernel, but no recorded cell defines it"
        ways = f"use --push {name} to send its current value"
        if fact is not None and fact.cannot_travel is not None:
            ways = f"it is {fact.cannot_travel} and cannot be sent: create it in the training cell"
        elif fact is not None and fact.type_name.startswith("ipywidgets."):
            ways = f"write {name}_value = {name}.value in a separate cell, and use that variable"
        if (
            blocked.index is not None
            and self._is_trained(blocked.index)
            and self.steps[blocked.index].statement.ran == "yes"
        ):
            ways += f", or --with-cell {self.steps[blocked.index].statement.cell} to run that cell in the job"
        ways = ways[0].upper() + ways[1:]
        if blocked.need <= Need.PERHAPS:
            text = (
                f"{where} may read `{name}`{kind} before it is defined there. The job cannot recreate the notebook's "
                f"value: {reason}. {ways}."
            )
            solved.warnings.append(Problem("late_undefined", text, cell, line, (name,)))
            return
        solved.unbound.append(name)
        text = f"{where} needs `{name}`{kind}, which the job cannot recreate: {reason}. {ways}."
        solved.errors.append(Problem("not_reproducible", text, cell, line, (name,)))

    def _may_bind(self, blocked: Blocked) -> Step | None:
        """Return the statement of the training cell that may bind any name, such as `exec(text)` or a star import."""
        for step in self.steps[self.goal : min(blocked.readers) + 1]:
            called = step.flow.reads | step.flow.soft | step.reads_late
            bodies = [one.statement.node for one in self.steps if one.is_definition and one.flow.binds & called]
            if any(node is not None and may_bind_any_name(node) for node in (step.statement.node, *bodies)):
                return step
        return None

    def _perhaps_bound(self, blocked: Blocked, binder: Step) -> Problem:
        name = blocked.name
        where, cell, line = self._where(blocked)
        place = f"{binder.statement.label}, line {binder.statement.line} (`{binder.statement.head}`)"
        if self._is_output(blocked):
            text = f"-o {name}: only {place} can define `{name}`. If it does not, the job returns no `{name}`."
            return Problem("perhaps_bound", text, cell, line, (name,))
        text = f"{where} reads `{name}`, which only {place} can define. If it does not, the job fails there."
        return Problem("perhaps_bound", text, cell, line, (name,))

    def _is_output(self, blocked: Blocked) -> bool:
        """Return whether only -o needs the name. `globals()["w"] = 1` names it without reading it."""
        end = len(self.steps)
        readers = [self.steps[index] for index in blocked.readers - {end}]
        return end in blocked.readers and not any(
            blocked.name in step.flow.reads | (step.reads_late - step.flow.soft) for step in readers
        )

    def _undefined(self, blocked: Blocked, where: str, cell: str, line: int) -> Problem:
        name = blocked.name
        if self._is_output(blocked):
            close = closest_name(name, self._bound_names())
            hint = f" Did you mean -o {close}?" if close else ""
            hint = hint or " Use the name from the cell."
            text = f"-o {name}: `{name}` is not defined in the training cell or before it.{hint}"
            return Problem("output_unbound", text, cell, line, (name,))
        if OUTPUTS.fullmatch(name):
            what = "inputs" if "i" in name.lower() else "outputs"
            text = (
                f"{where} reads `{name}`; {what} of the notebook do not exist in a job. Assign the value to a variable."
            )
            return Problem("undefined_name", text, cell, line, (name,))
        failed = self._failed_before(name)
        if failed is not None:
            text = (
                f"{where} reads `{name}`, but {failed} did not define it because the cell raised an error first. "
                "Fix that cell and run it again."
            )
            return Problem("undefined_name", text, cell, line, (name,))
        binders = [one for one in self.facts.jobs if name in one.bound] if self.facts is not None else []
        if binders:
            one = binders[-1]
            way = f"run its cell [{one.cell}] again with -o {','.join(dict.fromkeys([*one.outputs, name]))}"
            if name in one.unstored:
                way = "create it in the training cell, since it could not be returned"
            elif name in one.outputs and not one.is_completed:
                way = f'run dlaas.job("{one.job}").wait() in a cell first'
            elif name in one.outputs:
                way = f"run %dlaas attach {one.job} in a cell first"
            text = f"{where} reads `{name}`, which only {one.job} defined. To get it here, {way}."
            return Problem("undefined_name", text, cell, line, (name,))
        because = f" ({blocked.reason})" if blocked.reason else ""
        close = closest_name(name, self._bound_names() - {name})
        hint = f"Did you mean `{close}`?" if close else _run_its_cell(name)
        text = f"{where} reads `{name}`, which no executed cell defines{because}. {hint}"
        return Problem("undefined_name", text, cell, line, (name,))

    def _failed_before(self, name: str) -> str | None:
        """Return the newest line that would have bound a name if its cell had not raised an error first."""
        failed = (
            s.statement
            for s in reversed(self.steps[: self.goal])
            if s.statement.ran in {"no", "partly"} and name in s.flow.binds
        )
        return next((f"{one.label}, line {one.line}," for one in failed), None)

    def _bound_names(self) -> set[str]:
        return {name for step in self.steps for name in step.flow.binds} | (BUILTINS - {"__name__"}) & {"range", "len"}

    def _is_trained(self, index: int) -> bool:
        step = self.steps[index]
        return step.trains or bool(step.fits)

    def _writes(self, index: int, name: str) -> bool:
        node = self.steps[index].statement.node
        return node is not None and any(isinstance(n, ast.Name) and n.id == name for n in ast.walk(node))

    def _where(self, blocked: Blocked) -> tuple[str, str, int]:
        """Return the place that reads the name, preferably in the training cell."""
        last = len(self.steps)
        inside = sorted(i for i in blocked.readers if i < last)
        inside = [i for i in inside if i >= self.goal] or inside
        if not inside:
            return f"-o {blocked.name}", f"cell [{self.training.count}]", self.training.first_line - 1
        index = inside[0]
        if blocked.need is Need.LATE:  # read by a function: use its definition
            written = (i for i in range(index, -1, -1) if self.steps[i].is_definition and self._writes(i, blocked.name))
            index = next(written, index)
        statement = self.steps[index].statement
        line = _line_of(self.steps[index], blocked.name)
        return f"{statement.label}, line {line},", statement.label, line


def _list(names: Sequence[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)


def _is_pylab(stars: Sequence[Step]) -> bool:
    """Return whether `%pylab` was used, whose names do not appear among the kernel's variables."""
    return any(isinstance(s.statement.node, ast.ImportFrom) and s.statement.node.module == "pylab" for s in stars)


def _line_of(step: Step, name: str) -> int:
    """Return the line of a statement that contains a name, for messages."""
    statement = step.statement
    node = statement.node
    if node is None:
        return statement.line
    first: int = min([node.lineno, *(d.lineno for d in getattr(node, "decorator_list", []))])
    lead = next((i for i, line in enumerate(statement.lines) if not line.text.lstrip().startswith("#")), 0)
    for part in ast.walk(node):
        if isinstance(part, ast.Name) and part.id == name:
            offset = part.lineno - first + lead
            return statement.lines[min(offset, len(statement.lines) - 1)].line
    return statement.lines[lead].line


def _kind(fact: NameFact | None) -> str:
    if fact is None:
        return ""
    words = [fact.type_name]
    if fact.shape:
        words.append(fact.shape)
    if fact.size_bytes is not None:
        words.append(size_text(fact.size_bytes))
    return f" ({', '.join(words)})"


def _run_its_cell(name: str) -> str:
    return f"Run the cell that defines `{name}`, or define it here."


def joined(problems: Sequence[Problem]) -> tuple[Problem, ...]:
    """Return the problems; more than two names of one cell that no executed cell defines become one problem.

    This is what a cell reports that runs first after a restart of the kernel.
    """
    places: dict[str, list[Problem]] = {}
    for problem in problems:
        name = problem.names[0] if problem.names else ""
        if problem.message.endswith(f"which no executed cell defines. {_run_its_cell(name)}"):
            places.setdefault(problem.cell, []).append(problem)
    many = {cell: found for cell, found in places.items() if len(found) > 2}
    first = {found[0]: cell for cell, found in many.items()}
    rest = {problem for found in many.values() for problem in found[1:]}
    return tuple(
        _of_one_cell(first[problem], many[first[problem]]) if problem in first else problem
        for problem in problems
        if problem not in rest
    )


def _of_one_cell(cell: str, found: Sequence[Problem]) -> Problem:
    in_order = sorted(found, key=lambda problem: (problem.line, problem.names))
    names = ", ".join(f"`{problem.names[0]}` (line {problem.line})" for problem in in_order)
    text = (
        f"{cell} reads {names}, which no executed cell defines. Run the cells that define them first. After a restart "
        "of the kernel, Run > Run All Above Selected Cell does this."
    )
    return Problem("undefined_name", text, cell, in_order[0].line, tuple(problem.names[0] for problem in in_order))
