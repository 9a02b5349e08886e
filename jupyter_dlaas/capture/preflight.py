"""Problems that can be found before a job starts, in under 200 ms. Pure.

Each message names the thing, its place (cell and line) and the fix. The pool's size is checked elsewhere.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from jupyter_dlaas.analysis.cells import Cleaned, parse
from jupyter_dlaas.analysis.effects import SAVES, walk_now, words
from jupyter_dlaas.analysis.model import (
    EarlierJob,
    ExecutedCell,
    KernelFacts,
    Problem,
    TrainingCell,
    size_text,
)
from jupyter_dlaas.analysis.steps import (
    Step,
    Trace,
    computes_gradients,
    may_alter,
    names_needed,
    only_shows,
    uses_earlier_gradients,
)
from jupyter_dlaas.analysis.syntax.names import LEAVES, children
from jupyter_dlaas.capture.nondeterminism import ends_by_interrupt, ends_early
from jupyter_dlaas.capture.resolve import Solved
from jupyter_dlaas.capture.slicer import Given, Slice, Trained
from jupyter_dlaas.capture.spelling import closest_name

PUSH_BYTES_MAX = 2**30
SOURCE_CHARS_MAX = 5_000_000  # takes about ten seconds, during which the kernel is blocked
SLOW_S = 30.0
SHORT_CHARS = 500  # length of a literal: a slow cell does not compute such a value
LOADERS = re.compile(r"DataLoader(Shard|Dispatcher)?$")
"""Types of objects that refer to data, and to no model."""
FORGETFUL = words("sklearn xgboost lightgbm catboost imblearn")
"""Libraries whose estimators forget earlier fits with each `fit`."""
REFITS = words("fit fit_predict fit_transform")
WRITERS = SAVES - {"save"}
SAVING_ROOTS = words("torch np numpy jnp plt model net cv2 keras tf sns fig")
EVENT_WRITERS = frozenset({"SummaryWriter"})
RANKS = frozenset({"rank", "local_rank", "global_rank", "RANK", "LOCAL_RANK"})


def check_size(cells: Sequence[ExecutedCell], training: TrainingCell) -> tuple[Problem, ...]:
    """Refuse more source text than can be parsed in a reasonable time."""
    sizes = [*((len(cell.source), cell.count) for cell in cells), (len(training.source), training.count)]
    total = sum(size for size, _ in sizes)
    if total <= SOURCE_CHARS_MAX:
        return ()
    longest, count = max(sizes)
    label = f"cell [{count}]"
    text = (
        f"the executed cells have {total:,} characters; %%train accepts at most {SOURCE_CHARS_MAX:,}. "
        f"The longest is {label} ({longest:,}): move its data to a file, restart the kernel, "
        "and read the file instead."
    )
    return (Problem("too_long", text, label, 1),)


def too_deep(training: TrainingCell) -> Problem:
    """Report that a cell cannot be analysed. Python runs no program that is nested this deeply."""
    text = "a cell is nested too deeply to be parsed; split its expression into several statements."
    return Problem("too_deep", text, f"cell [{training.count}]", training.first_line)


def check_request(
    cells: Sequence[ExecutedCell], training: TrainingCell, facts: KernelFacts | None
) -> tuple[Problem, ...]:
    """Check the names and numbers on the %%train line itself."""
    return (*_bad_cells(cells, training), *_bad_pushes(training, facts))


def check_source(goal: Cleaned, training: TrainingCell, label: str) -> tuple[Problem, ...]:
    """Check the training cell's text."""
    if goal.kind == "job":
        text = f"{label} contains %%train twice; remove one of them."
        return (Problem("train_twice", text, label, training.first_line),)
    if goal.kind == "magic":
        magic = training.source.split()[0]
        place = f"{label}, line {training.first_line}"
        text = f"{place}: {magic} does not run Python code of this notebook; remove it from the cell."
        return (Problem("not_python", text, label, training.first_line),)
    if goal.kind == "broken":
        text = f"{label}, line {goal.error_line}: {goal.error}. Fix the line and run the cell again."
        return (Problem("syntax_error", text, label, goal.error_line),)
    if goal.refused:
        return check_commands(goal, label)
    if not parse(goal.source).body:
        text = f"{label} is empty below %%train; write the training code there."
        return (Problem("empty_cell", text, label, training.first_line),)
    return ()


def check_commands(goal: Cleaned, label: str) -> tuple[Problem, ...]:
    """Report notebook commands in the training cell that a job cannot run."""
    return tuple(
        Problem(
            "magic_in_job",
            f"{label}, line {line.line}: a job cannot run the notebook command `{line.text}`. "
            "Move it to an earlier cell.",
            label,
            line.line,
        )
        for line in goal.refused
    )


def check_prompts(trace: Trace, goal: int) -> tuple[Problem, ...]:
    """Report calls of input(), which cannot be answered in a job."""
    return tuple(
        Problem(
            "input_in_job",
            f"{place.label}, line {place.line}: input() does not work in a job. "
            "Call it in an earlier cell and use the variable here.",
            place.label,
            place.line,
        )
        for place in _places(trace, goal)
        if isinstance(place.call.func, ast.Name)
        and place.call.func.id == "input"
        and not any("input" in step.flow.binds for step in trace.steps)
    )


def check_writes(trace: Trace, goal: int, learners_max: int) -> tuple[Problem, ...]:
    """Warn of files that every learner would overwrite."""
    if learners_max < 2:
        return ()
    found = []
    for place in _places(trace, goal):
        if place.is_guarded or not (what := _written(place.call)):
            continue
        text = (
            f"{place.label}, line {place.line}: each of up to {learners_max} learners runs {what}, so they overwrite "
            "each other's file. Put it under `if run.is_main:`."
        )
        found.append(Problem("every_learner_writes", text, place.label, place.line))
    return tuple(found)


def check_trainings(
    trace: Trace, found: Slice, goal: int, facts: KernelFacts | None, drawn: Sequence[str] = ()
) -> tuple[Problem, ...]:
    """Warn of earlier trainings that are omitted, or that run again because their result is needed.

    `drawn`: names whose random values would differ in a job that gets the trained objects by --push.
    """
    problems: dict[tuple[str, int], Problem] = {}
    cells: dict[tuple[str, int], list[int]] = {}  # runs of one cell have one label
    for trained in sorted(found.trained, key=lambda t: t.index):
        statement = trace.steps[trained.index].statement
        line = next((x.line for x in statement.lines if not x.text.lstrip().startswith("#")), statement.line)
        place = f"{statement.label}, line {line}"
        refitted = frozenset() if trained.is_kept else _refitted(trace, trained, goal, facts)
        names = [name for name in trained.names if name not in refitted]
        if not trained.is_kept:  # counters and lists are no weights
            names = [name for name in names if not _is_plain(name, facts)]
        others = sorted({*trained.names, *trained.also} - {*names} - refitted)
        step = trace.steps[trained.index]
        bound = step.flow.binds | step.globals_bound
        others = [n for n in others if facts is None or n in bound or only_shows(n, facts) or may_alter(step, n, facts)]
        also = [name for name in others if name not in trace.behaviours and _may_be_sent(name, facts)]
        unsent = [name for name in others if facts is not None and name in facts.names and name not in also]
        needed = (*names, *also)
        if not needed:
            continue
        beside = [] if trained.is_kept else [name for name in drawn if name not in needed]
        push = f"--push {','.join([*needed, *beside])}"
        runs = cells.setdefault((statement.label, line), [])
        runs.append(statement.cell)
        again = f", or --with-cell {','.join(map(str, runs))} to run that cell in the job."
        until = "" if statement.ran == "yes" else ", until it raised an error"
        may_end_elsewhere = ends_early(step) or (statement.node is not None and bool(ends_by_interrupt(statement.node)))
        until = ", until it was interrupted" if ends_early(step) else until
        again = again if statement.ran == "yes" and not may_end_elsewhere else "."
        if trained.is_kept:
            text = (
                f"{place} trains again in the job, which needs its {_list(needed)}. To send the current value instead: "
                f"{push}."
            )
        elif names and also:
            text = (
                f"{place} trained {_list(names)} and changed {_list(also)} here{until}, but the job starts with new "
                f"weights and the values from before. Use {push} to send the current ones{again}"
            )
        elif names:
            text = (
                f"{place} trained {_list(names)} here{until}, but the job starts with new weights. "
                f"Use {push} to send the current ones{again}"
            )
        else:
            text = (
                f"{place} changed {_list(also)} while training something else. The job omits that training, so "
                f"{_list(also)} lacks the change. Use {push} to send the current value{again}"
            )
        if unsent and not trained.is_kept:
            text += f" {_list(unsent)} changed as well and cannot be sent: the job uses {_them(unsent)} from before."
        if beside:
            text += f" {_list(beside)} must go with them: its cell drew it after values that the job then omits."
        code = "training_again" if trained.is_kept else "earlier_training"
        problems[statement.label, line] = Problem(code, text, statement.label, line, (*needed, *beside))
    return tuple(problems.values())


def _may_be_sent(name: str, facts: KernelFacts | None) -> bool:
    """Return whether --push may name a variable: it exists and is not a definition, connection or progress bar."""
    fact = facts.names.get(name) if facts is not None else None
    return facts is None or (fact is not None and not fact.is_callable and fact.cannot_travel is None)


def _is_plain(name: str, facts: KernelFacts | None) -> bool:
    """Return whether a variable holds a number, a text or a plain collection of values."""
    fact = facts.names.get(name) if facts is not None else None
    return fact is not None and (fact.is_immutable or fact.literal is not None)


def _refitted(trace: Trace, trained: Trained, goal: int, facts: KernelFacts | None) -> frozenset[str]:
    """Return the estimators that the training cell fits before it uses them: their `fit` forgets earlier fits."""
    found = set()
    for name in trained.names if facts is not None else ():
        fact = facts.names.get(name) if facts is not None else None
        if fact is not None and fact.type_name.partition(".")[0] in FORGETFUL:
            calls = [call for step in trace.steps[goal:] for call in step.calls if name in call.args | {call.receiver}]
            before = [call for call in trace.steps[trained.index].calls if call.receiver == name]
            if all(call.verb in REFITS for call in [*calls[:1], *before]) and calls and calls[0].receiver == name:
                found.add(name)
    return frozenset(found)


def check_earlier_jobs(
    trace: Trace, solved: Solved, goal: int, training: TrainingCell, facts: KernelFacts | None
) -> tuple[Problem, ...]:
    """Warn of names that an earlier job changed and whose value from before that job this one uses."""
    jobs = facts.jobs if facts is not None else ()
    if facts is None or not jobs:
        return ()
    named, reached = names_needed(trace, goal)
    order = {one.job: number for number, one in enumerate(jobs)}
    taken = {ref.name: order.get(ref.job, -1) for line in solved.slice.lines for ref in line.refs}
    settled = frozenset(training.push)
    # pickle stores them by name: -o does not return their attributes
    by_name = frozenset[str]().union(*(step.flow.kills for step in trace.steps[:goal] if step.is_definition))
    problems: list[Problem] = []
    for number, one in reversed([*enumerate(jobs)]):
        later = [step for step in trace.steps[:goal] if step.statement.cell > one.cell and step.statement.ran == "yes"]
        rebound = frozenset[str]().union(*(step.flow.kills | step.flow.deletes for step in later))
        stale = (((one.altered | one.unstored) & reached) | (one.bound & named)) - settled - rebound
        stale = (stale & facts.names.keys()) - one.loaded
        stale = frozenset(name for name in stale if name in by_name or taken.get(name, -1) < number)
        settled |= stale | one.altered | one.bound
        definitions = frozenset(name for name in stale if facts.names[name].is_callable)
        problems += _stale_names(one, sorted(stale - definitions), sorted(definitions), training, facts)
    trained = [one for one in jobs if one.computes_gradients]
    later = [step for step in trace.steps[:goal] if trained and step.statement.cell > trained[-1].cell]
    if trained and uses_earlier_gradients(trace.steps[goal:]) and not computes_gradients(later):
        place, line = f"cell [{training.count}]", training.first_line - 1
        text = (
            f"{place} uses gradients before it computes any. {trained[-1].job} (cell [{trained[-1].cell}]) did not "
            "return those that it computed. Call backward() in this cell first, or return the model with -o there."
        )
        problems.append(Problem("not_returned", text, place, line))
    return tuple(problems[::-1])


def _stale_names(
    one: EarlierJob, stale: Sequence[str], definitions: Sequence[str], training: TrainingCell, facts: KernelFacts
) -> Iterator[Problem]:
    """Yield the problems of the names that a job changed without returning them here, or not yet."""
    place, line = f"cell [{training.count}]", training.first_line - 1
    unstored = [name for name in stale if name in one.unstored or facts.names[name].cannot_travel]
    lost = [name for name in stale if name not in (*one.outputs, *unstored)]
    late = [] if one.is_completed else [n for n in stale if n in one.outputs and n not in unstored]
    if lost:
        outputs = ",".join([*one.outputs, *lost])
        text = (
            f"{one.job} (cell [{one.cell}]) changed {_list(lost)} but did not return {_them(lost)}; this job uses the "
            f"notebook's value{'s' if len(lost) > 1 else ''}, from before. To continue from {one.job}, run its cell "
            f"again with -o {outputs}."
        )
        yield Problem("not_returned", text, place, line, tuple(lost))
    if unstored:
        text = (
            f"{one.job} (cell [{one.cell}]) changed {_list(unstored)}, which cannot be returned; this job uses the "
            f"notebook's, from before. Create {_them(unstored)} in the training cell, or assign the needed part to a "
            "variable there and return the variable."
        )
        yield Problem("not_returned", text, place, line, tuple(unstored))
    if definitions:
        text = (
            f"{one.job} (cell [{one.cell}]) changed values that belong to {_list(definitions)}, which -o does not "
            "return; this job uses the notebook's, from before. To keep such a value, assign it to a variable in that "
            "cell and return the variable."
        )
        yield Problem("not_returned", text, place, line, tuple(definitions))
    if late:
        text = (
            f"{one.job} (cell [{one.cell}]) has not ended; this job starts from the notebook's current {_list(late)}. "
            f'To start from the result, run dlaas.job("{one.job}").wait() in a cell first.'
        )
        yield Problem("job_unfinished", text, place, line, tuple(late))


def _them(names: Sequence[str]) -> str:
    return "it" if len(names) == 1 else "them"


def check_pushes(trace: Trace, solved: Solved, facts: KernelFacts | None) -> tuple[Problem, ...]:
    """Report objects of the program that would not refer to the pushed object, or that lose their own state."""
    pushed = next((given for given in solved.plan.given if given.kind == "pushed"), None)
    if pushed is None:
        return ()
    immutable = {n for n, fact in facts.names.items() if fact.is_immutable} if facts is not None else set()
    loaders = {n for n, fact in facts.names.items() if LOADERS.search(fact.type_name)} if facts is not None else set()
    fresh: dict[str, Step] = {}
    found = list(_duplicated_models(trace, solved, pushed, facts))
    if found:
        return tuple(found)
    for index in sorted(solved.slice.kept):
        step = trace.steps[index]
        if index >= solved.plan.goal or step.is_definition:
            continue
        touched = sorted(holders_of(trace, step, pushed.names) - immutable - loaders)
        if index < pushed.index and touched:
            names = ",".join([*pushed.names, *touched])
            text = (
                f"{step.statement.label}, line {step.statement.line}: {_list(touched)} would refer to a different "
                f"{_list(pushed.names)} than the pushed one. Push both: --push {names}."
            )
            found.append(Problem("push_apart", text, step.statement.label, step.statement.line, tuple(touched)))
        elif touched:
            fresh.update(dict.fromkeys(touched, step))
        if index >= pushed.index and step.changes & frozenset(pushed.names) and not touched and not step.is_setup:
            text = (
                f"{step.statement.label}, line {step.statement.line} changes the pushed {_list(pushed.names)} a "
                "second time in the job, because other names need it. Push those too, or remove the line."
            )
            found.append(Problem("push_changed_again", text, step.statement.label, step.statement.line, pushed.names))
    if fresh:
        places = ", ".join(f"`{n}` ({s.statement.label}, line {s.statement.line})" for n, s in sorted(fresh.items()))
        names = ",".join([*pushed.names, *sorted(fresh)])
        first = min(fresh.values(), key=lambda s: s.statement.cell).statement
        text = (
            f"recreated in the job around the pushed {_list(pushed.names)}, without their own state: {places}. "
            f"To send their state, too: --push {names}."
        )
        found.append(Problem("push_fresh", text, first.label, first.line, tuple(sorted(fresh))))
    return tuple(found)


def _duplicated_models(trace: Trace, solved: Solved, pushed: Given, facts: KernelFacts | None) -> Iterator[Problem]:
    """Yield a problem if a pushed optimiser includes its own copy of a model that the job also creates."""
    goal = solved.plan.goal
    for name in pushed.names if facts is not None else ():
        fact = facts.names.get(name) if facts is not None else None
        taken = {one: ref for given in solved.slice.lines for one, ref in zip(given.names, given.refs, strict=False)}
        if fact is not None and (same := sorted(taken.keys() & {*fact.shares})):
            text = (
                f"{pushed.cell}, line {pushed.line}: the job would load {_list(same)} from {taken[same[0]].job}, but "
                f"the pushed `{name}` refers to a different one. Push both: "
                f"--push {','.join([*pushed.names, *same])}."
            )
            yield Problem("push_apart", text, pushed.cell, pushed.line, tuple(same))
            return
        for index in sorted(solved.slice.kept):
            step = trace.steps[index]
            same = sorted(step.flow.binds & frozenset(fact.shares)) if fact is not None and index < goal else []
            if same and not holders_of(trace, step, pushed.names):
                place = f"{step.statement.label}, line {step.statement.line}"
                text = (
                    f"{place}: the job would create a new {_list(same)}, but the pushed `{name}` refers to the "
                    f"current one. Push both: --push {','.join([*pushed.names, *same])}."
                )
                yield Problem("push_apart", text, step.statement.label, step.statement.line, tuple(same))
                return


def holders_of(trace: Trace, step: Step, names: Iterable[str]) -> frozenset[str]:
    """Return the names bound by a step whose objects refer to one of `names`."""
    others = frozenset(names)
    direct = step.flow.reads & others
    return frozenset(name for name in step.flow.binds - others if direct and name in trace.holds)


def check_raised(trace: Trace, found: Slice) -> tuple[Problem, ...]:
    """Warn of lines in cells that raised an error, which may have changed something that is needed."""
    problems = []
    for index in sorted(found.unsure):
        step = trace.steps[index]
        place = f"{step.statement.label} raised an error"
        text = (
            f"{place}, so it is unknown whether line {step.statement.line} changed "
            f"{_list(sorted(step.changes))}; the job omits the line. To include it: --with-cell {step.statement.cell}."
        )
        if step.statement.ran == "partly":  # it would raise the error again
            changed = sorted(step.altered & step.changes)
            part = f", in `{step.statement.raised_in}`" if step.statement.raised_in else ""
            text = (
                f"{place} in line {step.statement.line}{part}, which may have changed {_list(changed)} before; the job "
                f"omits all of the line. To send the current value: --push {','.join(changed)}."
            )
        problems.append(Problem("raised_cell", text, step.statement.label, step.statement.line))
    return tuple(problems)


def check_texts(trace: Trace, found: Slice, goal: int) -> tuple[Problem, ...]:
    """Warn of omitted statements that ran a text by exec(): what it changed is unknown."""
    problems = []
    for index, step in enumerate(trace.steps[:goal]):
        place = step.statement
        if step.runs_text and index not in found.kept and place.ran != "no":
            text = (
                f"{place.label}, line {place.line}: the job omits `{place.head}`, since the text that it ran is not in "
                f"the notebook. If that text changed something that the job needs: --with-cell {place.cell}."
            )
            problems.append(Problem("text_omitted", text, place.label, place.line))
    return tuple(problems)


def check_slow(
    trace: Trace,
    found: Slice,
    cells: Sequence[ExecutedCell],
    goal: int,
    pushed: Sequence[str],
    facts: KernelFacts | None,
) -> tuple[Problem, ...]:
    """Warn of kept cells that took long here, since they take as long in the job."""
    working = [i for i in sorted(found.kept) if i < goal and not trace.steps[i].is_definition]
    # The duration of a cell that also trained says nothing about the duration of its other lines.
    trained = {trace.steps[t.index].statement.cell for t in found.trained if not t.is_kept}
    counts = {trace.steps[i].statement.cell for i in working} - trained - _loading(trace)
    slow = [(c.duration_s, c.count) for c in cells if c.count in counts and c.duration_s is not None]
    total = sum(duration for duration, _ in slow)
    if total <= SLOW_S:
        return ()
    duration, count = max(slow)
    steps = [trace.steps[i] for i in working if trace.steps[i].statement.cell == count]
    needed = {name for i in found.kept if trace.steps[i].statement.cell != count for name in trace.steps[i].flow.reads}
    bound = [name for step in steps for name in sorted(step.flow.binds) if _may_go(name, facts)]
    ends = [name for name in bound if name in needed] or bound[-1:]
    offer = f" To send their result: --push {','.join(dict.fromkeys([*pushed, *ends]))}." if ends else ""
    label = steps[0].statement.label
    text = f"the cells that the job runs again took {total:.0f} s here, mostly {label} ({duration:.0f} s).{offer}"
    return (Problem("slow_prelude", text, label, steps[0].statement.line, tuple(dict.fromkeys(ends))),)


def _loading(trace: Trace) -> set[int]:
    """Return the cells that first import a library: pushing values saves none of that time."""
    seen: set[str] = set(sys.stdlib_module_names)
    found = set()
    for step in trace.steps:
        for node in walk_now([step.statement.node]) if step.statement.node is not None else ():
            modules = [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            modules += [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            roots = {module.partition(".")[0] for module in modules} - seen
            if roots:
                found.add(step.statement.cell)
                seen |= roots
    return found


def _may_go(name: str, facts: KernelFacts | None) -> bool:
    """Return whether sending the value is possible and worthwhile."""
    fact = facts.names.get(name) if facts is not None else None
    is_short = fact is not None and fact.literal is not None and len(fact.literal) <= SHORT_CHARS
    return fact is None or not (fact.is_callable or fact.cannot_travel or is_short)


def _bad_cells(cells: Sequence[ExecutedCell], training: TrainingCell) -> Iterator[Problem]:
    counts = sorted(cell.count for cell in cells)
    for number in training.with_cells:
        if number not in counts:
            near = min(counts, key=lambda c: (abs(c - number), c)) if counts else None
            hint = f"The nearest is --with-cell {near}." if near is not None else "No cell has run yet."
            text = f"--with-cell {number}: no cell with this number has run in this kernel. {hint}"
            yield Problem("unknown_cell", text, f"cell [{training.count}]", training.first_line - 1)


def _bad_pushes(training: TrainingCell, facts: KernelFacts | None) -> Iterator[Problem]:
    if facts is None:
        return
    label, line = f"cell [{training.count}]", training.first_line - 1
    total = 0
    for name in dict.fromkeys(training.push):
        fact = facts.names.get(name)
        if fact is None:
            close = closest_name(name, facts.names)
            hint = f"Did you mean --push {close}?" if close else "Run the cell that creates it first."
            yield Problem("push_unknown", f"--push {name}: the kernel has no `{name}`. {hint}", label, line, (name,))
        elif fact.cannot_travel:
            instead = "Create it in the training cell, or push the data it was created from."
            if fact.type_name == "module":
                instead = "Import it in a cell."
            text = f"--push {name}: `{name}` is {fact.cannot_travel} and cannot be sent to a job. {instead}"
            yield Problem("cannot_travel", text, label, line, (name,))
        elif fact.module == "__main__" and name in fact.main_names:
            what = "function" if fact.type_name == "function" else "class"
            text = (
                f"--push {name}: `{name}` is a {what} of this notebook and is sent automatically if it is used. "
                "Remove it from --push."
            )
            yield Problem("push_definition", text, label, line, (name,))
        else:
            total += fact.size_bytes or 0
    if total > PUSH_BYTES_MAX:
        names = ", ".join(dict.fromkeys(training.push))
        text = (
            f"--push {names}: {size_text(total)} exceeds the maximum of {size_text(PUSH_BYTES_MAX)}. "
            "Save the value to a file and load it in the training cell."
        )
        yield Problem("push_too_big", text, label, line, tuple(training.push))


@dataclass(frozen=True, slots=True)
class _Place:
    call: ast.Call
    label: str
    line: int
    is_guarded: bool


def _places(trace: Trace, goal: int) -> Iterator[_Place]:
    """Yield all calls that run in the job: in the training cell, and in own functions that it may call."""
    used = {name for step in trace.steps[goal:] for name in step.flow.reads | step.reads_late}
    newest: dict[str, Step] = {}
    for step in trace.steps[:goal]:
        if isinstance(step.statement.node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            newest[step.statement.node.name] = step
    for step in [newest[name] for name in sorted(used & newest.keys())] + list(trace.steps[goal:]):
        if step.statement.node is not None:
            yield from _with_guards(step, step.statement.node)


def _with_guards(step: Step, top: ast.AST) -> Iterator[_Place]:
    todo = [(top, False)]
    while todo:
        node, is_guarded = todo.pop()
        if isinstance(node, ast.Call):
            yield _Place(node, step.statement.label, _page_line(step, node), is_guarded)
        if isinstance(node, ast.If) and _is_guard(node.test):
            todo += [(part, is_guarded or part is not node.test) for part in children(node)]
        elif type(node) not in LEAVES:
            todo += [(part, is_guarded) for part in children(node)]


def _page_line(step: Step, node: ast.AST) -> int:
    top, lines = step.statement.node, step.statement.lines
    at: int | None = getattr(node, "lineno", None)
    if top is None or at is None:
        return step.statement.line
    first: int = min([top.lineno, *(d.lineno for d in getattr(top, "decorator_list", []))])
    lead = next((i for i, line in enumerate(lines) if not line.text.lstrip().startswith("#")), 0)
    return lines[min(max(at - first + lead, 0), len(lines) - 1)].line


def _is_guard(test: ast.expr) -> bool:
    """Return whether a condition selects one learner: `run.is_main`, `rank == 0`, `not rank`, and the like."""
    names = {n.attr for n in ast.walk(test) if isinstance(n, ast.Attribute)}
    names |= {n.id for n in ast.walk(test) if isinstance(n, ast.Name)}
    names |= {n.value for n in ast.walk(test) if isinstance(n, ast.Constant) and isinstance(n.value, str)}
    return bool(names & (RANKS | {"is_main", "is_main_process", "is_global_zero"})) or "get_rank" in names


def _written(call: ast.Call) -> str:
    """Return code for a call that writes to a fixed file, or ""."""
    match call.func:
        case ast.Name(id=name) if name in EVENT_WRITERS:
            return f"{name}(…)"
        case ast.Name(id="open"):
            modes = [*call.args[1:2], *(k.value for k in call.keywords if k.arg == "mode")]
            texts = [m.value for m in modes if isinstance(m, ast.Constant) and isinstance(m.value, str)]
            return f"open(…, {texts[0]!r})" if texts and set(texts[0]) & set("wax+") else ""
        case ast.Attribute(value=ast.Name(id=root), attr="save") if root in SAVING_ROOTS:
            return f"{root}.save(…)"
        case ast.Attribute(attr=attr) if attr in WRITERS | EVENT_WRITERS:
            return f"{ast.unparse(call.func)}(…)"
        case _:
            return ""


def _list(names: Sequence[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)
