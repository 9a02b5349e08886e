"""Backward slice: the steps that the training cell needs, from the last to the first. Pure."""

from __future__ import annotations

import builtins
from collections.abc import Collection, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from enum import IntEnum
from itertools import pairwise

from jupyter_dlaas.analysis.effects import COLLECTS, GIVEN_IN_JOBS, changes_directory
from jupyter_dlaas.analysis.model import ResultRef
from jupyter_dlaas.analysis.own_modules import is_module_state
from jupyter_dlaas.analysis.steps import Step, altered_names, changed_in_turn, changed_surely

BUILTINS = frozenset(dir(builtins)) | {"__name__", "__file__", "__doc__", "__builtins__"}


SAVED = ("saved", "writes a file, which exists already; the job does not write it again")
SHOWN = ("shown", "only shows something")
UNNEEDED = ("unneeded", "the training cell does not need it")


@dataclass(frozen=True, slots=True)
class Given:
    """Line that binds names by value or by reference, inserted before the step `index`.

    A pushed value and a literal are the kernel's current ones, so no later statement that bound or changed these names
    may run in the job. A result is the value that a job returned at that point.
    """

    index: int
    names: tuple[str, ...]
    source: str
    kind: str  # "pushed", "result", "literal"
    needs: frozenset[str] = frozenset()  # classes and functions that must be defined before it
    reason: str = ""
    cell: str = ""  # place in the notebook for tracebacks of this line
    line: int = 0
    late: frozenset[str] = frozenset()  # names that its objects read when used
    refs: tuple[ResultRef, ...] = ()  # for a result: the source of each name

    into: frozenset[str] = frozenset()  # names that are loaded into objects of earlier steps

    def only(self, wanted: Collection[str]) -> Given:
        """Return the same line restricted to the needed results."""
        pairs = [(n, ref) for n, ref in zip(self.names, self.refs, strict=True) if n in wanted or n in self.into]
        names, refs = tuple(name for name, _ in pairs), tuple(ref for _, ref in pairs)
        arguments = [f'"{one}"' for one in (refs[0].job, *(ref.name for ref in refs))]
        if self.into:
            objects = ", ".join(f'"{ref.name}": {name}' for name, ref in pairs if name in self.into)
            arguments.append(f"into={{{objects}}}")
        source = f"{', '.join(names)} = dlaas.result({', '.join(arguments)})"
        return replace(self, names=names, refs=refs, source=source)


@dataclass(frozen=True, slots=True)
class Plan:
    """Decisions made before a pass over the steps."""

    goal: int  # index of the training cell's first step
    outputs: tuple[str, ...] = ()
    given: tuple[Given, ...] = ()
    with_cells: frozenset[int] = frozenset()
    draws: frozenset[int] = frozenset()  # steps that run for the random numbers they draw before a kept step
    poison: Mapping[int, str] = field(default_factory=dict)  # steps that cannot run again, with the reason
    stars: bool = False
    goal_trains: frozenset[str] = frozenset()  # names that the training cell trains
    goal_changes: frozenset[str] = frozenset()  # names of earlier cells that the training cell changes in a loop
    followers: Mapping[int, int] = field(default_factory=dict)  # steps that read a value of an omitted training
    known: Mapping[int, frozenset[str]] = field(default_factory=dict)  # omitted training -> such values as literals


class Need(IntEnum):
    """Certainty with which a name is read."""

    BOUND = 0  # names that a loop of the reader binds before, if it has an iteration
    OWN = 1  # names that the reader may bind itself before; lazy annotations
    PERHAPS = 2  # names that the reader may read before it binds them itself
    LATE = 3  # by a function that may be called
    SURE = 4


@dataclass(frozen=True, slots=True)
class Blocked:
    """Needed name whose value cannot be recreated."""

    name: str
    index: int | None  # the step that bound it; None: no step did
    reason: str
    readers: frozenset[int]
    need: Need
    is_rare: bool = False  # no reader certainly runs


@dataclass(slots=True)
class Want:
    """Name that later steps need. Scratch data of one pass."""

    need: Need
    readers: set[int]
    may_be_bound: bool = False
    is_rare: bool = True  # all reads are in branches that may not run
    left_by: int | None = None  # the omitted training that bound it
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Trained:
    """Earlier training that is omitted, or kept because its result is needed."""

    index: int
    names: tuple[str, ...]
    """Names of it that the job needs: trained objects; for a kept training, the names that it binds."""
    is_kept: bool
    also: tuple[str, ...] = ()
    """For an omitted training: other needed names that it, or a follower of it, certainly changed."""


@dataclass(slots=True)
class Slice:
    """Result of one pass."""

    kept: dict[int, str] = field(default_factory=dict)  # step -> reason
    left: dict[int, tuple[str, str]] = field(default_factory=dict)  # step -> kind, reason
    lines: list[Given] = field(default_factory=list)
    trained: list[Trained] = field(default_factory=list)
    blocked: list[Blocked] = field(default_factory=list)
    unsure: list[int] = field(default_factory=list)  # in a cell that raised an error: may have changed a needed name
    builtins: set[str] = field(default_factory=set)  # needed, and bound by no kept step


def slice_steps(steps: Sequence[Step], plan: Plan) -> Slice:
    """Run one pass over the steps, backwards. The caller resolves blocked names with another plan."""
    return _Pass(steps, plan).run()


def is_training(step: Step, plan: Plan) -> bool:
    """Return whether an earlier step is a training; also an interrupted loop that did what the training cell does."""
    if step.statement.node is None or step.is_definition:
        return False
    is_interrupted = step.statement.ran == "partly" and step.is_block
    is_earlier_run = is_interrupted and not changed_in_turn(step).isdisjoint(plan.goal_changes)
    return step.trains or is_earlier_run or not step.fits.isdisjoint(plan.goal_trains)


class _Pass:
    def __init__(self, steps: Sequence[Step], plan: Plan) -> None:
        self.steps, self.plan = steps, plan
        self.wanted: dict[str, Want] = {}
        self.slice = Slice()
        self.dotted: set[str] = set()  # submodules that kept steps name
        self.imported: set[str] = set()  # texts of imports that are kept for their names
        self.loose: set[str] = set()  # wanted names that loops of the training cell bind before: constants suffice
        self.followed: dict[int, frozenset[str]] = {}  # omitted training -> names that its omitted followers changed
        self.wants_gradients = False  # a kept step uses gradients of an earlier one
        self.adds_gradients = False  # the training cell adds to gradients of an earlier step
        pushed = frozenset(name for given in plan.given if given.kind == "pushed" for name in given.names)
        self.has_pushed_gradients = bool(pushed) and not pushed.isdisjoint(altered_names(steps[plan.goal :], None))
        # no given values, no requested cells: names alone decide
        self.is_simple = not plan.given and not plan.with_cells and not plan.poison and not plan.draws
        # a result includes its job's changes; later changes by the notebook are repeated
        self.given_at = {n: given.index for given in plan.given if given.kind != "result" for n in given.names}

    def run(self) -> Slice:
        for name in self.plan.outputs:
            self.want(name, len(self.steps), Need.SURE)
        for given in self.plan.given:
            for name in given.late:
                self.want(name, given.index, Need.LATE)
        for index in range(len(self.steps), -1, -1):
            for given in self.plan.given:
                if given.index == index:
                    self.give(given)
            if index > 0:
                self.step(index - 1)
        for name, want in sorted(self.wanted.items()):
            if is_module_state(name):
                continue  # its first state comes with the import
            if want.need is Need.BOUND:
                continue  # no error if only an omitted training bound it before
            if want.left_by is not None and not want.may_be_bound:
                place = self.steps[want.left_by].statement.label
                self.block(name, want.left_by, want.reason or f"{place} trained it, and earlier trainings are omitted")
            elif name in BUILTINS | GIVEN_IN_JOBS:
                self.slice.builtins.add(name)
            elif not want.may_be_bound:
                self.block(name, None, want.reason)
        self.drop_repeats()
        self.drop_detours()
        return self.slice

    def drop_repeats(self) -> None:
        """Drop definitions that ran again unchanged, with no different definition in between."""
        in_force: dict[str, tuple[str, int]] = {}  # name -> text of its definition, step
        rebound: dict[str, int] = {}
        repeated = [i for i in sorted(self.slice.kept) if i < self.plan.goal and self.steps[i].is_definition]
        last = repeated[-1] if repeated else -1
        read = frozenset().union(*(self.steps[i].flow.reads for i in repeated))
        for index in sorted(self.slice.kept):
            step = self.steps[index]
            names = step.flow.binds
            if index < self.plan.goal and step.is_definition and names and not step.is_future and not step.changes:
                source = step.statement.source
                again = [in_force.get(name, ("", -1)) for name in names]
                first = again[0][1]
                is_same = all(text == source and at == first for text, at in again)
                if is_same and all(rebound.get(name, -1) < first for name in step.flow.reads):
                    del self.slice.kept[index]
                    self.leave(index, "unneeded", "the same definition appears above")
                    continue
                in_force.update(dict.fromkeys(names, (source, index)))
            else:
                for name in in_force.keys() & (names | step.changes):
                    del in_force[name]
            if index < last:
                rebound.update(dict.fromkeys(names, index))
                rebound.update(dict.fromkeys(step.changes & read, index))

    def drop_detours(self) -> None:
        """Drop changes of directory after which no needed statement runs."""
        for index, follower in pairwise(sorted(self.slice.kept)):
            if self._only_changes_directory(index) and self._only_changes_directory(follower):
                del self.slice.kept[index]
                self.leave(index, "unneeded", "no needed statement ran there")

    def _only_changes_directory(self, index: int) -> bool:
        statement = self.steps[index].statement
        return statement.kind == "moved" and statement.node is not None and changes_directory(statement.node)

    # names
    def want(self, name: str, reader: int, need: Need, *, is_rare: bool = False) -> None:
        known = self.wanted.get(name)
        is_rare = is_rare or need is not Need.SURE
        if known is None:
            self.wanted[name] = Want(need, {reader}, is_rare=is_rare)
        else:
            known.is_rare = known.is_rare and is_rare
            if known.need < need:
                known.need = need
            known.readers.add(reader)
            if need is Need.SURE:
                known.may_be_bound = False
        if need is not Need.BOUND or reader < self.plan.goal:
            self.loose.discard(name)
        elif known is None:
            self.loose.add(name)

    def block(self, name: str, index: int | None, reason: str) -> None:
        want = self.wanted.pop(name)
        self.slice.blocked.append(Blocked(name, index, reason, frozenset(want.readers), want.need, want.is_rare))

    def give(self, given: Given) -> None:
        if given.kind != "pushed" and not given.into and not any(name in self.wanted for name in given.names):
            return
        if given.refs:
            given = given.only(self.wanted)
        self.slice.lines.append(given)
        for name in given.names:
            self.wanted.pop(name, None)
        for name in given.into:
            self.want(name, given.index, Need.SURE)
        for name in given.needs:
            self.want(name, given.index, Need.LATE)

    def settled(self, index: int) -> frozenset[str]:
        """Return names whose given value already includes this step. Changes by the job itself come later."""
        if index >= self.plan.goal:
            return frozenset()
        return frozenset(name for name, at in self.given_at.items() if at <= index)

    # steps
    def step(self, index: int) -> None:
        step, plan = self.steps[index], self.plan
        if index < plan.goal and step.is_plain and self.is_simple and self.wanted.keys().isdisjoint(step.provides):
            self.slice.left[index] = _idle(step)
            return
        statement = step.statement
        makes, clears = step.gradients.makes, step.gradients.clears
        if (clears and not makes) or (makes and index >= plan.goal):
            self.wants_gradients = self.adds_gradients = False
        if index >= plan.goal or step.is_future:
            self.keep(index, "the training cell" if index >= plan.goal else "applies to the whole program")
            return
        if statement.node is None:
            self.leave(index, *_magic(step))
            return
        if statement.cell in plan.with_cells and statement.ran != "no":
            self.keep(index, f"--with-cell {statement.cell}")
            return
        if index in plan.draws and not self._why_blocked(index, step) and not self._replaces_given(index, step):
            self.keep(index, "draws random numbers before a kept statement")
            return
        if statement.ran == "no" or (statement.ran == "partly" and not step.is_block):
            self.leave(index, "raised", f"{statement.label} raised an error at or before this line")
            if statement.ran == "partly" and self._trains(step):
                settled = self.settled(index)
                still_wanted = self.wanted.keys() - settled
                self._report_training(index, frozenset(), self._changes(step, still_wanted, settled), still_wanted)
            elif statement.ran == "partly" and step.altered & self.wanted.keys():
                self.slice.unsure.append(index)
            return
        if step.is_star and plan.stars and not step.foreign:
            self.keep(index, "provides names")
            return
        if step.is_star and not step.calls:
            self.leave(index, "unneeded", "other statements bind all required names")
            return
        if step.is_setup and index not in plan.poison and not step.foreign:
            self.keep(index, "setup for the following statements")
            return
        is_bare = not step.gradients.updates and not step.trained
        is_needed = self.wants_gradients or (self.adds_gradients and is_bare)
        if makes and is_needed and not self._why_blocked(index, step):
            self.keep(index, "computes gradients that are used later")
            if clears:  # earlier ones
                self.wants_gradients = self.adds_gradients = False
            return
        settled = self.settled(index)
        self.deleted(index, step)
        unneeded = settled if step.is_definition or not self.loose else settled | self.loose
        wanted: Set[str] = self.wanted.keys() - unneeded if unneeded else self.wanted.keys()
        binds = frozenset(wanted & (step.flow.binds | step.globals_bound))
        changes = self._changes(step, wanted, settled)
        if changes and self._trains(step):
            changes = frozenset(name for name in changes if not is_module_state(name))
        if index in self.followed and not self._gives_result(step, binds):
            self._leave_training(index, binds, changes, wanted)
        elif changes and not binds and index in plan.followers:
            self._leave_follower(index, changes)
        elif not binds | changes and not step.loads.isdisjoint(self.dotted):
            self.keep(index, f"loads {_list(sorted(step.loads & self.dotted))}")
        elif not binds | changes and self._may_register(step):
            self.keep(index, "may register or enable something")
        elif not binds | changes:
            self.leave(index, *self._why_unneeded(step, settled))
        elif self._trains(step) and not self._gives_result(step, self._required(binds)):
            self._leave_training(index, binds, changes, wanted)
        elif reason := self._why_blocked(index, step):
            self._cannot(index, step, binds | changes, reason)
        else:
            if self._trains(step):
                trained = changes & (step.trained | step.fits)
                self.slice.trained.append(Trained(index, tuple(sorted(binds | trained or changes)), is_kept=True))
            if step.may_register:
                self.imported.add(statement.source)
            self.keep(index, _because(binds, changes))

    def _replaces_given(self, index: int, step: Step) -> bool:
        """Return whether a step would replace or change a value that an earlier line gives."""
        names = step.flow.binds | step.globals_bound | step.changes
        return any(given.index <= index and not names.isdisjoint(given.names) for given in self.plan.given)

    def _may_register(self, step: Step) -> bool:
        """Return whether an import may matter for its side effects; a repeated import for its names does not."""
        statement = step.statement
        return step.may_register and statement.ran == "yes" and statement.source not in self.imported

    def _changes(self, step: Step, wanted: Set[str], settled: frozenset[str]) -> frozenset[str]:
        """Return the needed names that a step changes, except for changes that a given value already includes."""
        if not settled:
            return frozenset(wanted & step.changes)
        found: frozenset[str] = frozenset()
        for touch in step.touches:
            if touch.below.isdisjoint(settled) or touch.name in wanted:
                found |= touch.affects
        return frozenset(wanted & found)

    def keep(self, index: int, reason: str) -> None:
        step = self.steps[index]
        self.slice.kept[index] = reason
        self.dotted |= step.dotted
        if index < self.plan.goal or not self.has_pushed_gradients:
            self.wants_gradients = self.wants_gradients or step.gradients.uses
            self.adds_gradients = self.adds_gradients or (step.gradients.adds and index >= self.plan.goal)
        settled = self.settled(index)
        for name in step.flow.kills:
            if name not in settled:
                self.wanted.pop(name, None)
        for name in (step.flow.binds - step.flow.kills) | step.globals_bound:
            if name in self.wanted:
                self.wanted[name].may_be_bound = True
                if name in step.flow.likely and name not in settled:
                    self.wanted[name].need = Need.BOUND
                    self.loose |= {name} if min(self.wanted[name].readers) >= self.plan.goal else set()
        rare = step.flow.conditional if index < self.plan.goal else step.flow.rare  # an earlier cell has ended
        for name in step.flow.reads:
            self.want(name, index, Need.SURE, is_rare=name in rare)
        perhaps = step.flow.binds | step.flow.soft
        for name in step.reads_late:  # thousands in a large notebook: the usual case first
            known = self.wanted.get(name)
            if known is not None and known.need >= Need.LATE:
                known.readers.add(index)
            else:
                self.want(name, index, Need.PERHAPS if name in perhaps else Need.LATE)
        for name in step.flow.soft - step.flow.reads:
            is_bound = name in step.flow.bound
            self.want(name, index, Need.BOUND if is_bound else Need.PERHAPS if name in step.flow.early else Need.OWN)

    def leave(self, index: int, kind: str, reason: str) -> None:
        self.slice.left[index] = (kind, reason)

    def deleted(self, index: int, step: Step) -> None:
        for name in step.flow.deletes & self.wanted.keys():
            if name in BUILTINS:
                self.wanted.pop(name)  # `del list` gives the builtin back
            elif name not in self.settled(index):
                self.block(name, None, f"{step.statement.label}, line {step.statement.line} deleted it")

    def _trains(self, step: Step) -> bool:
        return is_training(step, self.plan)

    def _required(self, names: frozenset[str]) -> frozenset[str]:
        """Return the names of these that their readers do not bind before by a loop of their own."""
        return frozenset(name for name in names if self.wanted[name].need is not Need.BOUND)

    def _gives_result(self, step: Step, binds: frozenset[str]) -> bool:
        """Return whether a training has a needed result, as `history = model.fit(x)`, not `model = train(model)`."""
        return bool(binds) and not step.is_block and not binds <= (step.flow.reads | step.flow.soft)

    def _leave_training(self, index: int, binds: frozenset[str], changes: frozenset[str], wanted: Set[str]) -> None:
        """Omit a training; record it if its trained objects are needed or it certainly changed other needed names."""
        statement = self.steps[index].statement
        self.leave(index, "trained", "an earlier training; the job starts with new weights")
        self._report_training(index, self._required(binds), changes, wanted)
        reason = f"{statement.label}, line {statement.line} created it during training"
        for name in sorted(binds):
            if name in self.plan.known.get(index, ()) and min(self.wanted[name].readers) < self.plan.goal:
                self.block(name, index, reason)  # an earlier step read it: not the value from before the training
            elif self.wanted[name].left_by is None:
                self.wanted[name].left_by = index
                self.wanted[name].reason = reason

    def _leave_follower(self, index: int, changes: frozenset[str]) -> None:
        """Omit a step that puts values of an omitted training into needed objects: `model.load_state_dict(best)`."""
        training = self.plan.followers[index]
        self.leave(index, "trained", "uses a value of an earlier training, which is omitted")
        direct = frozenset(touch.name for touch in self.steps[index].touches)
        self.followed[training] = self.followed.get(training, frozenset()) | (changes & direct or changes)

    def _report_training(self, index: int, binds: frozenset[str], changes: frozenset[str], wanted: Set[str]) -> None:
        step = self.steps[index]
        known = step.trained | step.fits
        certain = changed_surely(step)
        own = changes & certain
        fresh = step.flow.binds - changed_in_turn(step)
        fresh |= {call.receiver for call in step.calls if call.verb in COLLECTS and call.receiver is not None}
        held = frozenset[str]().union(
            *(t.below for t in step.touches if t.name in wanted and t.name not in step.passive)
        )
        names = frozenset(wanted & known or held & known) if known else (own - fresh or own | binds) - step.passive
        also = (own if names else changes & step.altered) | self.followed.get(index, frozenset())
        also |= frozenset(name for name in binds if self._is_bound_before(name, index))
        also &= self.wanted.keys()
        also = frozenset(n for n in also if self.wanted[n].need > (Need.BOUND if n in step.altered else Need.OWN))
        if names or also:
            trained, beside = tuple(sorted(names)), tuple(sorted(also - names - (step.passive - step.altered)))
            self.slice.trained.append(Trained(index, trained, is_kept=False, also=beside))

    def _is_bound_before(self, name: str, index: int) -> bool:
        """Return whether a step before a training binds a name: the job uses that value."""
        earlier = (step for step in self.steps[:index] if name in step.flow.binds | step.globals_bound)
        return any(step.statement.ran != "no" and not self._trains(step) for step in earlier)

    def _why_blocked(self, index: int, step: Step) -> str:
        statement = step.statement
        if index in self.plan.poison:
            return self.plan.poison[index]
        if step.foreign:
            return f"{statement.label}, line {statement.line} got it from {step.foreign}"
        if statement.ran == "partly" or (statement.ran == "unknown" and not step.is_definition):
            return f"{statement.label} raised an error, so the effect of line {statement.line} on it is unknown"
        return ""

    def _cannot(self, index: int, step: Step, names: frozenset[str], reason: str) -> None:
        if step.statement.ran == "unknown" and not step.flow.binds & names:
            self.slice.unsure.append(index)
            self.leave(index, "raised", reason)
            return
        self.leave(index, "literal", reason)
        for name in sorted(names):
            self.block(name, index, reason)

    def _why_unneeded(self, step: Step, settled: frozenset[str]) -> tuple[str, str]:
        touched = (step.flow.binds | step.changes) & settled
        if touched:
            kinds = sorted(given.kind for given in self.plan.given if touched & set(given.names))
            reasons = [given.reason for given in self.plan.given if touched & set(given.names) and given.reason]
            return kinds[0], (reasons or [f"{_list(sorted(touched))} is given with its current value"])[0]
        return _idle(step)


def _idle(step: Step) -> tuple[str, str]:
    if step.saves and not step.flow.binds:
        return SAVED
    return UNNEEDED if step.flow.binds or step.changes else SHOWN


def _magic(step: Step) -> tuple[str, str]:
    if step.statement.kind == "job":
        return "job", "a training cell runs as a job, not in this kernel"
    return "magic", "a notebook command; its effects on files and packages persist"


def _because(binds: frozenset[str], changes: frozenset[str]) -> str:
    if binds:
        return f"binds {_list(sorted(binds))}"
    return f"changes {_list(sorted(changes))}"


def _list(names: Sequence[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)
