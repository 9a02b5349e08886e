"""Steps: statements with all their effects, and the trace of a notebook. Frozen records."""

from __future__ import annotations

import ast
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from jupyter_dlaas.analysis.call_effects import Behaviour
from jupyter_dlaas.analysis.cells import Statement
from jupyter_dlaas.analysis.effects import BLOCKS, Call, reach, walk_now, words
from jupyter_dlaas.analysis.gradients import Gradients
from jupyter_dlaas.analysis.model import KernelFacts
from jupyter_dlaas.analysis.syntax.flow import Flow
from jupyter_dlaas.analysis.syntax.names import bound_names as names_in_target

_MODES: Final = words(
    """train eval zero_grad backward to cuda cpu accumulate no_sync autocast clip_grad_norm_ clip_grad_value_
    set_postfix set_description"""
)
"""Methods that set a mode, a device or gradients, which each training sets itself, or the text of a bar."""
_DATA: Final = re.compile(
    r"^(torch\.Tensor$|torch\.nn\.modules\.loss\.|numpy\.ndarray|jaxlib\.|pandas\.)|(Config|Arguments|Namespace|DataLoader)$"
)
"""Types of data, losses and configurations: a training changes them only where its text says so."""
_SHOWN: Final = re.compile(r"^(tqdm|matplotlib|mpl_toolkits|IPython|ipywidgets|fastprogress|rich|plotly|bokeh)\.")
"""Types of progress bars, figures and displays: they show a state and hold none of the training."""
_ADVANCED: Final = re.compile(r"metric|stopping|checkpoint|callback\w*$", re.I)
"""Types of objects that a training advances though it does not train them: metrics, early stopping."""
_FUNCTIONS: Final = words("function builtin_function_or_method")


@dataclass(frozen=True, slots=True)
class Touch:
    """Change of an object through one of its names."""

    name: str
    below: frozenset[str]  # the name, and all names whose objects it holds
    affects: frozenset[str]  # these, and the names that hold any of them


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """Statement with all its effects."""

    statement: Statement
    flow: Flow
    reads_late: frozenset[str]  # names that its functions and objects read when called
    touches: tuple[Touch, ...]  # objects that are different afterwards
    globals_bound: frozenset[str]  # globals bound by functions that it calls
    uses: frozenset[str]  # the notebook's own functions that it may call
    loads: frozenset[str]  # "package.module" that an import loads in addition to its bindings
    dotted: frozenset[str]  # "package.module" that the statement may need loaded
    is_definition: bool  # import, function, class or plain constant: independent of its position
    is_setup: bool
    saves: bool  # writes a file
    may_register: bool  # an import that may matter for its side effects
    is_star: bool  # binds names that its text does not contain
    is_future: bool
    trains: bool  # a gradient step: certainly a training
    trained: frozenset[str]  # objects passed to its optimisers and training functions
    passive: frozenset[str]  # subset of `changes`: modules and data, which may change but are not trained
    altered: frozenset[str]  # subset of `changes` that is certain: `losses.append(loss)`
    fits: frozenset[str]  # `x.fit(...)`: a training only if the training cell trains the same object
    gradients: Gradients
    foreign: str  # reason why it cannot run again, or ""
    calls: tuple[Call, ...]  # calls that run immediately
    changes: frozenset[str]  # all names whose objects are different afterwards
    is_plain: bool  # only the names that it provides decide whether it is kept
    provides: frozenset[str]  # names that it binds, changes or deletes
    may_draw: bool = False  # it runs properties or special methods of the notebook that call functions
    runs_text: bool = False  # by exec(), with a text that is not known

    @property
    def is_block(self) -> bool:
        """Return whether the statement is a loop, with, if, try or match."""
        return isinstance(self.statement.node, BLOCKS)


@dataclass(frozen=True, slots=True)
class Trace:
    """All steps, and the state after the last one."""

    steps: tuple[Step, ...]
    holds: dict[str, frozenset[str]]  # name -> names whose objects it holds, or that created it
    definitions: frozenset[str]  # the notebook's own functions and classes
    late: dict[str, frozenset[str]]
    behaviours: dict[str, Behaviour]


def nothing(statement: Statement) -> Step:
    """Return the step of a statement without code, such as a magic."""
    none: frozenset[str] = frozenset()
    return Step(
        statement=statement,
        flow=Flow(),
        reads_late=none,
        touches=(),
        globals_bound=none,
        uses=none,
        loads=none,
        dotted=none,
        is_definition=False,
        is_setup=False,
        saves=False,
        may_register=False,
        is_star=False,
        is_future=False,
        trains=False,
        trained=none,
        passive=none,
        altered=none,
        fits=none,
        gradients=Gradients(),
        foreign="",
        calls=(),
        changes=none,
        is_plain=False,
        provides=none,
    )


def altered_names(steps: Sequence[Step], facts: KernelFacts | None) -> frozenset[str]:
    """Return the names whose objects from earlier cells the steps train or change in place."""
    found: set[str] = set()
    bound: frozenset[str] = frozenset()
    known = facts.names if facts is not None else {}
    advanced = frozenset(name for name, fact in known.items() if _ADVANCED.search(fact.type_name))
    for step in steps:
        if not step.is_definition:
            names = _altered_by(step, advanced) - bound - (_loop_variables(step) - step.flow.reads)
            found |= {name for name in names if facts is None or may_alter(step, name, facts)}
        bound |= step.flow.kills
    return frozenset(found)


def may_alter(step: Step, name: str, facts: KernelFacts) -> bool:
    """Return whether a variable's value can change in a step that alters it by the analysis.

    Numbers, functions of libraries, and what only shows something cannot. Data, configurations and classes change only
    where the text assigns to them, and data that a trained object holds returns with that object.
    """
    fact = facts.names.get(name)
    if fact is None:
        return True
    if fact.is_callable:
        own = {None, "__main__", *(one.name for one in (*facts.own_modules, *facts.edited_elsewhere))}
        touch = next((touch for touch in step.touches if touch.name == name), None)
        is_own = fact.module in own or (touch is not None and touch.below != {name})
        return is_own and (fact.type_name in _FUNCTIONS or name in step.altered)
    if fact.is_immutable or only_shows(name, facts):
        return False
    return fact.requires_grad or name in step.altered or not _DATA.search(fact.type_name)


def only_shows(name: str, facts: KernelFacts) -> bool:
    """Return whether a variable is a progress bar, a figure or a display. It may refer to what is trained."""
    return name in facts.names and _SHOWN.search(facts.names[name].type_name) is not None


def bound_names(steps: Sequence[Step]) -> frozenset[str]:
    """Return the names that the steps bind, also in functions that they call."""
    return frozenset[str]().union(*(step.flow.binds | step.globals_bound for step in steps))


def names_needed(trace: Trace, goal: int) -> tuple[frozenset[str], frozenset[str]]:
    """Return the names that the steps from `goal` on read before binding them, and all whose objects these reach."""
    read: frozenset[str] = frozenset()
    for step in reversed(trace.steps[goal:]):
        own = step.flow.binds | step.flow.soft
        read = (read - step.flow.kills) | step.flow.reads | (step.reads_late - own)
    named = reach(read, trace.late)
    return named, reach(named, trace.holds)


def computes_gradients(steps: Sequence[Step]) -> bool:
    """Return whether gradients may be left after the steps."""
    return any(step.gradients.makes or step.trains for step in steps)


def clears_gradients_first(steps: Sequence[Step]) -> bool:
    """Return whether the steps clear all earlier gradients before they use or add to them."""
    for step in steps:
        if step.gradients.uses or step.gradients.adds:
            return False
        if step.gradients.clears:
            return True
    return False


def uses_earlier_gradients(steps: Sequence[Step]) -> bool:
    """Return whether the steps use gradients before they compute or clear any."""
    for step in steps:
        if step.gradients.uses or step.gradients.makes or step.gradients.clears:
            return step.gradients.uses
    return False


def changed_surely(step: Step) -> frozenset[str]:
    """Return the names whose objects a step certainly changes or trains, also through variables of its own loops."""
    surely = _altered_by(step)
    parts = _loop_variables(step) & surely
    return surely.union(*(touch.below for touch in step.touches if touch.name in parts))


def _loop_variables(step: Step) -> frozenset[str]:
    nodes = [step.statement.node] if step.statement.node is not None and step.is_block else []
    loops = [part for part in walk_now(nodes) if isinstance(part, ast.For)]
    return frozenset[str]().union(*(names_in_target(part.target) for part in loops))


def changed_in_turn(step: Step) -> frozenset[str]:
    """Return the names of earlier steps that a step changes or replaces by a value that depends on theirs: `w -= d`."""
    return step.altered - (step.flow.binds - step.flow.reads) | (step.flow.binds & step.flow.reads)


def _altered_by(step: Step, advanced: frozenset[str] = frozenset()) -> frozenset[str]:
    """Return the names whose objects a step changes.

    `advanced`: of these also those that it does not train, or that an object holds which it changes.
    """
    touched = frozenset(touch.name for touch in step.touches)
    certain = step.altered & (touched | step.changes)
    quiet = _quiet(step)
    held = frozenset[str]().union(*(one.below for one in step.touches if one.name not in step.passive | quiet))
    return (touched - ((step.passive - advanced) | quiet)) | (held & advanced) | certain | step.trained | step.fits


def _quiet(step: Step) -> frozenset[str]:
    """Return the objects of which a step only calls methods that set a mode, show something or return a new state."""
    loud = frozenset[str]().union(
        *(
            call.args | {name for name in (call.receiver, call.function) if name is not None}
            for call in step.calls
            if call.verb not in _MODES and not call.only_shows and (call.verb != "update" or call.is_dropped)
        )
    )
    return frozenset(call.receiver for call in step.calls if call.receiver is not None) - loud
