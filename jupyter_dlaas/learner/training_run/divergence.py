"""Detection of learners that reach different points of their program, because each decides on its own data.

If one learner skips a batch, leaves a loop or stops early, its gradients would be averaged with those of another step.
Where gradients are summed in shared memory, each all-reduce begins with a tag of step and kind, and the learners
compare their tags.
"""

from __future__ import annotations

import dis
import inspect
import sys
from collections.abc import Sequence
from types import FrameType
from typing import TYPE_CHECKING, Any, Final

from jupyter_dlaas.learner.elastic.collective_tag import TAG_STEPS, Kind, kind_of
from jupyter_dlaas.learner.reporting.notes import LEFT, report
from jupyter_dlaas.wire.codec import DlaasError, encode
from jupyter_dlaas.wire.protocol import Cause, Failure

if TYPE_CHECKING:
    from jupyter_dlaas.learner.training_run.state import RunState

__all__ = ["LearnersDiverged", "at_end", "check", "goes_on", "left_at", "report_of_epochs", "what_diverged"]

_LEAVES: Final = frozenset({"POP_TOP", "POP_ITER", "END_FOR"})
"""The instructions by which a frame discards a loop's iterator when no exception is raised."""
_INSTEAD: Final = (
    "Base the decision on a number that is equal in all learners, such as the mean that run.log returns: "
    'run.log(reduce="mean", loss=loss)["loss"]. Or use one learner: --gpus 1.'
)


class LearnersDiverged(DlaasError):
    """The error for learners of a gang that reached different points of their program."""

    code = "learners_diverged"


def what_diverged(tags: Sequence[int], *, step: int, epoch: int, at: Sequence[str]) -> str:
    """Describe how the learners diverged, from the tags of all learners. `at`: where each left a loop, if known."""
    kinds = [kind_of(tag) for tag in tags]
    half = TAG_STEPS // 2
    steps = [step + ((tag - 1) // len(Kind) - step + half) % TAG_STEPS - half for tag in tags]
    last = max(steps)
    left = [number for number, kind in enumerate(kinds) if kind is Kind.LEFT]
    ended = [number for number, kind in enumerate(kinds) if kind is Kind.EPOCH]
    ahead = [number for number, at in enumerate(steps) if at == last]
    if left:
        where, when = at[left[0]], f"in epoch {epoch}, step {steps[left[0]]} of the job"
        return f"{_who(left)} left the loop over run.batches{where} {when}; the others continued."
    if ended:
        return f"{_who(ended)} ended epoch {epoch} before the others, which are at step {step} of the job."
    if min(steps) != last:
        return (
            f"{_who(ahead)} continued to step {last} of the job without a backward pass in step {min(steps)} "
            f"(epoch {epoch}): only some learners take a `continue` or an `if`."
        )
    return (
        f"In step {step} (epoch {epoch}), the backward pass of some learners covered a whole model, that of others a "
        'part. Use run.prepare(…, ddp={"find_unused_parameters": True}).'
    )


def check(run: RunState) -> None:
    """Raise LearnersDiverged if the learners reached different points of their program."""
    if run.gang is not None:
        run.gang.compare_tags()
        if what := _what(run):
            raise LearnersDiverged(what)


def at_end(run: RunState) -> dict[str, object]:
    """Return the failure for this learner's result if it ended the program and the others did not; otherwise {}."""
    what = _what(run)
    if not what:
        return {}
    failure = Failure(cause=Cause.YOUR_CODE, code=LearnersDiverged.code, what=what, advice="See the log.")
    body: Any = encode(failure)
    return {
        "outcome": "error",
        "code": 1,
        "failure": body | {"raised_by": [run.context.member if run.context else 0]},
    }


def _what(run: RunState) -> str:
    gang = run.gang
    if gang is None or gang.diverged is None:
        return ""
    at = [_at(run, line) for line in gang.lines()]
    what = what_diverged(gang.diverged.tags, step=gang.step, epoch=run.epoch, at=at)
    return what if what.endswith("}).") else f"{what} {_INSTEAD}"


def goes_on(run: RunState, line: int = 0) -> bool:
    """Return whether all learners continue training after this epoch. `line`: where this learner leaves the loop.

    A collective call. If one learner leaves the loop, the others leave it too, and this is reported. Raises
    LearnersDiverged.
    """
    gang = run.gang
    if gang is None or gang.is_alone or run.is_joining or run.resume is not None:
        return not line
    gang.step = run.step
    lines = gang.agree(line)
    if not line:
        check(run)
    if any(lines) and not all(lines) and not run.rank:
        report(LEFT, report_of_epochs([_at(run, line) for line in lines], run.epoch))
    return not any(lines)


def report_of_epochs(at: Sequence[str], epoch: int) -> str:
    """Describe which learners left the loop over epochs. `at`: the place by rank, or "" if it did not leave."""
    who = [number for number, where in enumerate(at) if where]
    with_whom = "it" if len(who) == 1 else "them"
    return (
        f"{_who(who)} left the loop over run.epochs{at[who[0]]} in epoch {epoch}, and the others with "
        f"{with_whom}. {_INSTEAD}"
    )


def left_at() -> int:
    """Return the line of train.py at which a loop over the closing generator is left by `break` or `return`.

    The number is negative if the line is in a module. Returns 0 if the generator is closed for another reason: an
    exception, or the end of the program.
    """
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_code.co_flags & inspect.CO_GENERATOR:
        frame = frame.f_back
    if frame is None or dis.opname[frame.f_code.co_code[frame.f_lasti]] not in _LEAVES:
        return 0
    main = sys.modules.get("__main__")
    return frame.f_lineno if frame.f_code.co_filename == getattr(main, "__file__", None) else -frame.f_lineno


def _at(run: RunState, line: int) -> str:
    """Describe a line number from `left_at` for the user."""
    context = run.context
    if line <= 0 or context is None:
        return f" at line {-line} of a module" if line else ""
    beats = context.control.beats
    return f" at {beats.where(beats.script, line, '<module>')}"


def _who(ranks: Sequence[int]) -> str:
    said = ", ".join(map(str, ranks))
    return f"Learner {said}" if len(ranks) == 1 else f"Learners {said}"
