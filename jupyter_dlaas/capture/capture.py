"""Training cell, with what it needs from the cells that ran before, as one readable program.

Executes, imports and reads nothing: cells and facts in, a frozen `Capture` out. `recorder.py` collects both from a
running kernel.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Sequence, Set
from dataclasses import replace
from typing import Final

from jupyter_dlaas.analysis.cells import (
    RUN_AGAIN,
    Line,
    files_run,
    files_written,
    labels,
    statements_of,
    training_statements,
)
from jupyter_dlaas.analysis.dataflow import trace
from jupyter_dlaas.analysis.effects import reach, words
from jupyter_dlaas.analysis.model import (
    Capture,
    ExecutedCell,
    Kept,
    KernelFacts,
    OmittedStatement,
    OwnModule,
    Problem,
    TrainingCell,
)
from jupyter_dlaas.analysis.steps import (
    Step,
    Trace,
    altered_names,
    bound_names,
    clears_gradients_first,
    computes_gradients,
)
from jupyter_dlaas.analysis.syntax.syntax_depth import deep_trees
from jupyter_dlaas.capture.forward_looks import check_looks
from jupyter_dlaas.capture.input_files import check_files, check_former_classes, check_modules, check_reloaded
from jupyter_dlaas.capture.keras_output_check import check_keras_outputs
from jupyter_dlaas.capture.loss_check import check_losses
from jupyter_dlaas.capture.nondeterminism import scan
from jupyter_dlaas.capture.preflight import (
    check_earlier_jobs,
    check_prompts,
    check_pushes,
    check_raised,
    check_request,
    check_size,
    check_slow,
    check_source,
    check_texts,
    check_trainings,
    check_writes,
    too_deep,
)
from jupyter_dlaas.capture.render import render
from jupyter_dlaas.capture.repeatability import judge
from jupyter_dlaas.capture.resolve import Solved, solve
from jupyter_dlaas.capture.rng_restore import Streams, follow
from jupyter_dlaas.capture.slicer import Given
from jupyter_dlaas.capture.working_dir import with_directories

__all__ = ["capture", "files_run"]

_OWN_MAGIC: Final = re.compile(r"%(re)?load_ext\s+jupyter_dlaas\b|%dlaas\b")


@deep_trees()
def capture(cells: Sequence[ExecutedCell], training: TrainingCell, facts: KernelFacts | None = None) -> Capture:
    """Turn the training cell into a program.

    `cells` are the executed cells in order of execution, without the training cell. `facts` is the kernel's state; with
    None, as for `jupyter dlaas check`, values are not examined. Never raises for anything that a user may have typed:
    `errors` holds the problems.
    """
    if too_long := check_size(cells, training):
        return _refused(too_long)
    try:
        return _capture(cells, training, facts)
    except RecursionError:
        return _refused((too_deep(training),))


def _capture(cells: Sequence[ExecutedCell], training: TrainingCell, facts: KernelFacts | None) -> Capture:
    names = labels(cells)
    files = facts.files if facts is not None else {}
    label = f"cell [{training.count}]"
    ran = zip(cells, files_written(cells, files), strict=True)
    history = with_directories(cells, [statements_of(c, names[c.count], f) for c, f in ran], facts, label)
    goal_statements, goal_text = training_statements(training, label)
    source_errors = check_source(goal_text, training, label)
    if source_errors:
        return _refused(source_errors)
    immutable = [n for n, fact in facts.names.items() if fact.is_immutable] if facts is not None else []
    traced = trace([*history, *goal_statements], immutable, facts.module_states if facts is not None else None)
    goal = len(history)
    solved, random, again = _solve(cells, traced, goal, training, facts)
    modules = _own_modules(traced, solved, facts)
    prelude = [i for i in sorted(solved.slice.kept) if i < goal]
    lines = sorted(solved.slice.lines, key=lambda g: (g.index, g.names))
    placed = [*lines, *(_restoring(traced, restore.index, restore.cell) for restore in random.restores)]
    placed += [_new_numbers(traced, goal)] if random.uses_new_numbers else []
    text, refs = render(
        [traced.steps[i] for i in prelude],
        [(sum(1 for i in prelude if i < line.index), line) for line in placed],
        goal_text,
        traced.steps[goal:],
        label,
        needs_dlaas=solved.needs_dlaas or bool(random.restores),
    )
    beside = _drawn_beside(cells, traced, solved, training, facts, again)
    problems = (
        *check_request(cells, training, facts),
        *solved.errors,
        *check_prompts(traced, goal),
        *check_pushes(traced, solved, facts),
        *solved.warnings,
        *check_trainings(traced, solved.slice, goal, facts, beside),
        *check_earlier_jobs(traced, solved, goal, training, facts),
        *check_raised(traced, solved.slice),
        *check_texts(traced, solved.slice, goal),
        *check_looks(traced, solved.slice, goal, facts),
        *again,
        *check_slow(traced, solved.slice, cells, goal, training.push, facts),
        *check_modules((*modules, *_imported(traced, solved, facts.edited_elsewhere if facts is not None else ()))),
        *check_reloaded(traced, solved.slice, goal, facts),
        *check_former_classes(traced, solved.slice, goal, training, facts),
        *check_files(traced, solved.slice, cells, goal, facts),
        *check_writes(traced, goal, training.learners_max),
        *check_losses(cells, training, training.learners_max),
        *check_keras_outputs(traced, training),
    )
    return Capture(
        text=text,
        lines=refs,
        kept=tuple(_kept(traced.steps[i], solved.slice.kept[i]) for i in prelude),
        left_out=(*_left_out(traced, solved), *(_command(line, label) for line in goal_text.magics)),
        pushed=tuple(name for g in lines if g.kind == "pushed" for name in g.names),
        results=tuple(ref for g in lines for ref in g.refs),
        literals=tuple(solved.literals),
        modules=modules,
        unbound=tuple(solved.unbound),
        errors=tuple(p for p in problems if p.code not in WARNINGS),
        warnings=tuple(p for p in problems if p.code in WARNINGS),
        random_state={one.cell: one.state for one in random.restores},
        reached=_reached(traced, goal),
        altered=tuple(sorted(altered_names(traced.steps[goal:], facts))),
        bound=tuple(sorted(bound_names(traced.steps[goal:]))),
        computes_gradients=computes_gradients(traced.steps[goal:]),
        clears_gradients_first=clears_gradients_first(traced.steps[goal:]),
    )


def _reached(traced: Trace, goal: int) -> tuple[str, ...]:
    steps = traced.steps[goal:]
    read = frozenset[str]().union(*(step.flow.reads | step.flow.soft | step.reads_late for step in steps))
    return tuple(sorted(reach(reach(read, traced.late), traced.holds)))


def _solve(
    cells: Sequence[ExecutedCell], traced: Trace, goal: int, training: TrainingCell, facts: KernelFacts | None
) -> tuple[Solved, Streams, list[Problem]]:
    """Find what the training cell needs. Small values that a rerun would draw differently come from the kernel."""
    scanned = scan(traced.steps, goal, facts)
    now = facts.random_state if facts is not None else None
    literals: dict[int, str] = {}
    draws: frozenset[int] = frozenset()  # steps to keep for the random numbers that they draw
    lost: frozenset[int] = frozenset()  # those of them that cannot be kept
    refused: set[int] = set()  # steps of which other names need the effects: their values cannot replace them
    new: Set[int] = frozenset()
    errors_max: int | None = None
    while True:
        solved = solve(traced, goal, training, facts, literals, draws - lost)
        if errors_max is None:
            errors_max = len(solved.errors)
        elif len(solved.errors) > errors_max and draws - lost:
            lost = draws  # what they need cannot be provided; what is drawn after them is reported
            continue
        elif len(solved.errors) > errors_max:
            refused |= new
            literals = {index: reason for index, reason in literals.items() if index not in new}
            solved = solve(traced, goal, training, facts, literals, draws - lost)
        lost |= draws - solved.slice.kept.keys()
        random = follow(cells, traced.steps, solved.slice.kept, goal, training.count, now, scanned, lost)
        if not random.missing <= draws:
            draws |= random.missing
            new = frozenset()
            continue
        verdict = judge(traced.steps, solved, training, facts, scanned, random, refused)
        new = verdict.literals.keys() - literals.keys()
        if not new:
            return solved, random, verdict.warnings
        literals |= verdict.literals


def _drawn_beside(
    cells: Sequence[ExecutedCell],
    traced: Trace,
    solved: Solved,
    training: TrainingCell,
    facts: KernelFacts | None,
    again: Sequence[Problem],
) -> list[str]:
    """Return the names whose random values differ once the advice about an earlier training is followed.

    A job that gets a model by --push does not create it, and what its cell drew after its weights gets other numbers.
    """
    goal = solved.plan.goal
    advice = check_trainings(traced, solved.slice, goal, facts)
    trained = [name for one in advice if one.code == "earlier_training" for name in one.names]
    if not trained:
        return []
    followed = replace(training, push=tuple(dict.fromkeys([*training.push, *trained])))
    _, _, found = _solve(cells, traced, goal, followed, facts)
    known = {*followed.push, *(name for one in again for name in one.names)}
    new = dict.fromkeys(name for one in found for name in one.names if name not in known)
    return [name for name in new if facts is not None and facts.names[name].cannot_travel is None]


WARNINGS = words(
    """late_undefined perhaps_bound earlier_training training_again raised_cell slow_prelude module_edited
    module_reloaded every_learner_writes push_fresh push_changed_again drawn_again loss_is_sum keras_config
    file_changed file_gone text_omitted look_omitted not_returned job_unfinished
    class_defined_again"""
)


def _refused(errors: tuple[Problem, ...]) -> Capture:
    return Capture(
        text="",
        lines=(),
        kept=(),
        left_out=(),
        pushed=(),
        results=(),
        literals=(),
        modules=(),
        unbound=(),
        errors=errors,
        warnings=(),
    )


def _restoring(traced: Trace, index: int, cell: int) -> Given:
    """Return the line that restores the random state from before a cell."""
    statement = traced.steps[index].statement
    text = f"dlaas.random_as_before({cell})  # restore the random state of the notebook"
    return Given(index, (), text, "chance", cell=statement.label, line=statement.line)


def _new_numbers(traced: Trace, goal: int) -> Given:
    """Return the line that gives the training a new random state, as in a notebook that sets no seed."""
    statement = traced.steps[goal].statement
    text = "dlaas.random_anew()  # no seed is set: use new random numbers"
    return Given(goal, (), text, "chance", cell=statement.label, line=statement.line)


def _kept(step: Step, reason: str) -> Kept:
    return Kept(step.statement.label, step.statement.line, step.statement.source, reason)


def _left_out(traced: Trace, solved: Solved) -> tuple[OmittedStatement, ...]:
    found = []
    for index in sorted(solved.slice.left):
        kind, reason = solved.slice.left[index]
        statement = traced.steps[index].statement
        if kind == "magic" and _OWN_MAGIC.match(statement.head):
            continue  # in every notebook, and no news to its author
        if kind == "raised" and statement.label.endswith(RUN_AGAIN):
            continue  # the job includes the later run
        option = f"--with-cell {statement.cell}" if kind in {"unneeded", "shown", "saved", "trained", "raised"} else ""
        found.append(OmittedStatement(statement.label, statement.line, statement.head, kind, reason, option))
    return tuple(found)


def _command(line: Line, label: str) -> OmittedStatement:
    reason = "a notebook command for display or setup; the job does not need it"
    return OmittedStatement(label, line.line, line.text, "magic", reason)


def _own_modules(traced: Trace, solved: Solved, facts: KernelFacts | None) -> tuple[OwnModule, ...]:
    """Return all modules of the user if the program imports one: they import each other, as only the kernel knows."""
    modules = facts.own_modules if facts is not None else ()
    return modules if _imported(traced, solved, modules) else ()


def _imported(traced: Trace, solved: Solved, modules: Sequence[OwnModule]) -> tuple[OwnModule, ...]:
    """Return the modules whose package the kept statements import."""
    roots: set[str] = set()
    for index in solved.slice.kept if modules else ():
        node = traced.steps[index].statement.node
        for part in ast.walk(node) if node is not None else ():
            names = [part.module or ""] if isinstance(part, ast.ImportFrom) else []
            names += [alias.name for alias in part.names] if isinstance(part, ast.Import) else []
            roots |= {name.partition(".")[0] for name in names}
    return tuple(module for module in modules if module.name.partition(".")[0] in roots)
