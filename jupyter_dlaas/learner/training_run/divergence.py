"""Learners of a gang that come to different places of their program, by what each decides on its own data.

One skips a batch, leaves a loop, or stops early: its gradients would be averaged with those of another step. Where
gradients go through shared memory, each sum begins with a word that holds step and kind, and words are compared.
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
    from jupyter_dlaas.learner.training_run.run import Run

__all__ = ["LearnersDiverged", "at_end", "check", "goes_on", "left_at", "report_of_epochs", "what_diverged"]

_LEAVES: Final = frozenset({"POP_TOP", "POP_ITER", "END_FOR"})
"""Instructions by which a frame lets go of a loop's iterator, when nothing is raised."""
_INSTEAD: Final = (
    'Let all learners decide on one number, the mean that run.log returns: run.log(reduce="mean", loss=loss)["loss"]; '
    "or take one learner: --gpus 1."
)


class LearnersDiverged(DlaasError):
    """Learners of a gang came to different places of their program."""

    code = "learners_diverged"


def what_diverged(words: Sequence[int], *, step: int, epoch: int, at: Sequence[str]) -> str:
    """Describe who did what, by the words of all learners. `at`: where they left a loop, as far as they told."""
    kinds = [kind_of(word) for word in words]
    half = TAG_STEPS // 2
    steps = [step + ((word - 1) // len(Kind) - step + half) % TAG_STEPS - half for word in words]
    last = max(steps)
    left = [number for number, kind in enumerate(kinds) if kind is Kind.LEFT]
    ended = [number for number, kind in enumerate(kinds) if kind is Kind.EPOCH]
    ahead = [number for number, at in enumerate(steps) if at == last]
    if left:
        where, when = at[left[0]], f"in epoch {epoch}, step {steps[left[0]]} of the job"
        return f"{_who(left)} left the loop over run.batches{where} {when}; the others went on."
    if ended:
        return f"{_who(ended)} ended epoch {epoch} before the others, who are at step {step} of the job."
    if min(steps) != last:
        return (
            f"{_who(ahead)} went on to step {last} of the job without a backward pass in step {min(steps)} "
            f"(epoch {epoch}): a `continue` or an `if` that not all learners take."
        )
    return (
        f"In step {step} (epoch {epoch}) some learners went backward through all of a model, others through a part. "
        'Type run.prepare(…, ddp={"find_unused_parameters": True}).'
    )


def check(run: Run) -> None:
    """Raise LearnersDiverged where learners came to different places of their program."""
    if run._gang is not None:
        run._gang.hear()
        if what := _what(run):
            raise LearnersDiverged(what)


def at_end(run: Run) -> dict[str, object]:
    """For the result of this learner: it came to the end of the program, and the others did not."""
    what = _what(run)
    if not what:
        return {}
    failure = Failure(cause=Cause.YOUR_CODE, code=LearnersDiverged.code, what=what, advice="See the log.")
    body: Any = encode(failure)
    return {
        "outcome": "error",
        "code": 1,
        "failure": body | {"raised_by": [run._context.member if run._context else 0]},
    }


def _what(run: Run) -> str:
    gang = run._gang
    if gang is None or gang.diverged is None:
        return ""
    at = [_at(run, line) for line in gang.lines()]
    what = what_diverged(gang.diverged.words, step=gang.step, epoch=run._epoch, at=at)
    return what if what.endswith("}).") else f"{what} {_INSTEAD}"


def goes_on(run: Run, line: int = 0) -> bool:
    """At the end of an epoch, in all learners: does training go on? `line`: where this learner leaves the loop.

    Learners end together: where one leaves, the others do, and it is reported. Raises LearnersDiverged.
    """
    gang = run._gang
    if gang is None or gang.is_alone or run._is_joining or run._resume is not None:
        return not line
    gang.step = run._step
    lines = gang.agree(line)
    if not line:
        check(run)
    if any(lines) and not all(lines) and not run.rank:
        report(LEFT, report_of_epochs([_at(run, line) for line in lines], run._epoch))
    return not any(lines)


def report_of_epochs(at: Sequence[str], epoch: int) -> str:
    """Some learners left the loop over epochs, and the others with them. `at`: where, by rank; "" for the others."""
    who = [number for number, where in enumerate(at) if where]
    with_whom = "it" if len(who) == 1 else "them"
    return (
        f"{_who(who)} left the loop over run.epochs{at[who[0]]} in epoch {epoch}, and the others with "
        f"{with_whom}. {_INSTEAD}"
    )


def left_at() -> int:
    """In a generator that is being closed: the line of train.py at which a loop over it is left.

    By `break` or `return`; negative where that stands in a module. 0 where it is closed for another reason: an error,
    or the end of the program.
    """
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_code.co_flags & inspect.CO_GENERATOR:
        frame = frame.f_back
    if frame is None or dis.opname[frame.f_code.co_code[frame.f_lasti]] not in _LEAVES:
        return 0
    main = sys.modules.get("__main__")
    return frame.f_lineno if frame.f_code.co_filename == getattr(main, "__file__", None) else -frame.f_lineno


def _at(run: Run, line: int) -> str:
    """A line as `left_at` tells it, in the user's words."""
    context = run._context
    if line <= 0 or context is None:
        return f" at line {-line} of a module" if line else ""
    beats = context.control.beats
    return f" at {beats.where(beats.script, line, '<module>')}"


def _who(ranks: Sequence[int]) -> str:
    said = ", ".join(map(str, ranks))
    return f"Learner {said}" if len(ranks) == 1 else f"Learners {said}"
