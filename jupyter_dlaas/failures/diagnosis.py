"""Diagnosis of a learner's end by the table of known failures."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Final

from jupyter_dlaas.failures.failure_row import Row
from jupyter_dlaas.failures.failure_table import ROWS
from jupyter_dlaas.wire.protocol import Cause, Failure, Where

__all__ = [
    "choose",
    "exited",
    "from_exception",
    "from_exit",
    "is_collateral",
    "not_started",
    "oom_kills",
]


_ANSI: Final = re.compile(r"\x1b\[[0-9;]*m")
_NODE: Final = re.compile(r"\{\{function_node \S+\}\} ?")
"""Prefix of TensorFlow messages that names a node of its graph."""
_COMPILED: Final = re.compile(r"Dynamo failed to run FX node .*: got (\w+\(.+\))\.?$", re.MULTILINE)
"""Line of torch.compile's messages that holds the error of the compiled code."""
_CALLING: Final = "Exception encountered when calling"
"""First line of Keras messages; the next line describes the error."""
_EXIT: Final = Row(
    code="exit_code",
    cause=Cause.YOUR_CODE,
    advice="The program ended itself, for example through os._exit: look at what it printed last, at the end of the "
    "log.",
)
_UNEQUAL: Final = (
    "All learners must make the same number of steps: look for a loop that ends earlier in one learner, such as a "
    "`break` below `if rank == …` or an unevenly divided data set. DistributedSampler gives each the same number."
)
_SIGNAL: Final = "Find out which program or which line sends this signal. The job restarts from the last checkpoint."
_UNSEEN: Final = Row(
    code="killed",
    cause=Cause.UNKNOWN,
    advice="The process disappeared without an exit status. The job restarts from the last checkpoint.",
    what="the process disappeared",
)


def from_exception(
    names: Sequence[str],
    message: str,
    *,
    where: Where | None,
    traceback: str,
    is_alone: bool = False,
    has_gpus: bool = True,
) -> Failure:
    """Return the failure of an exception. `names` are its class and base classes, the nearest first.

    `is_alone` says that no other learner of the job can have failed first, `has_gpus` that the learner holds GPUs.
    """
    rows = (row for row in ROWS if not (is_alone and row.is_collateral) and row.has_gpus in (None, has_gpus))
    row = next((row for row in rows if _fits_exception(row, names, message, traceback)), None)
    first = _headline(message)
    text = f"{names[0]}: {first}" if first else names[0]
    if row is None:  # neither an Exception nor known: for example pytest.Exit or a user's own BaseException
        row = replace(_EXIT, code="your_code", advice="See the line and the log.")
    return Failure(
        cause=row.cause, code=row.code, what=row.what or text, advice=row.advice, where=where, traceback=traceback
    )


def _headline(message: str) -> str:
    """Return the most informative line: the first one, with the next one appended if the first only announces it."""
    lines = [line for text in message.split("\n") if (line := _NODE.sub("", _ANSI.sub("", text)).strip())]
    if not lines:
        return ""
    if compiled := _COMPILED.search(message):
        return compiled[1][:500]
    is_announced = len(lines) > 1 and (lines[0].endswith(":") or lines[0].startswith(_CALLING))
    return " ".join(lines[: 1 + is_announced])[:500]


def exited(code: int) -> Failure:
    """Return the failure of a program that ended itself by sys.exit."""
    return Failure(cause=_EXIT.cause, code=_EXIT.code, what=f"ended with exit code {code}", advice=_EXIT.advice)


def from_exit(code: int | None, signal: int | None, *, out_of_memory: bool = False) -> Failure:
    """Return the failure of a process that left no result, by its exit code or the signal that ended it."""
    for row in ROWS:
        if row.raised or row.message or (row.signal is None and row.exit_code is None):
            continue
        if row.signal == signal and row.exit_code == code and row.out_of_memory in (None, out_of_memory):
            return Failure(cause=row.cause, code=row.code, what=row.what or "", advice=row.advice)
    if signal is not None:
        return Failure(cause=_UNSEEN.cause, code="signal", what=f"ended by signal {signal}", advice=_SIGNAL)
    if code is not None:
        return exited(code)
    return Failure(cause=_UNSEEN.cause, code=_UNSEEN.code, what=_UNSEEN.what or "", advice=_UNSEEN.advice)


def not_started(why: str, program: str | None = None) -> Failure:
    """Return the failure of a learner that the system did not start. `program`: interpreter that is the cause."""
    if program is not None:
        return Failure(
            cause=Cause.PLATFORM,
            code="no_program",
            what=f"the interpreter {program} could not be started: {why}",
            advice="Restore that Python environment, then retry the job: `jupyter dlaas retry JOB`. "
            "To use another one, submit the job from there.",
        )
    return Failure(
        cause=Cause.PLATFORM,
        code="no_process",
        what=f"the system did not start the learner's process: {why}",
        advice="The job is retried. If this happens again, free memory, or raise `ulimit -u` before Jupyter starts.",
    )


def _fits_exception(row: Row, names: Sequence[str], message: str, traceback: str) -> bool:
    if row.signal is not None or row.exit_code is not None:
        return False
    if row.raised and not set(row.raised).intersection(names):
        return False
    if row.traced is not None and re.search(row.traced, traceback) is None:
        return False
    return row.message is None or re.search(row.message, message) is not None


def is_collateral(failure: Failure) -> bool:
    """Return whether a failure only follows from another learner's failure."""
    return any(row.is_collateral and row.code == failure.code for row in ROWS)


def choose(failures: Sequence[tuple[int, Failure]], finished: Collection[int] = ()) -> Failure | None:
    """Return one failure of a gang for the job's owner: the first cause, with the members that raised the same.

    `failures` are in the order in which they were recorded. Failures that only follow from another one come last.
    `finished`: members that ran the program to its end.
    """
    if not failures:
        return None
    member, first = min(failures, key=lambda pair: is_collateral(pair[1]))
    same = {m for m, f in failures if (f.code, f.what) == (first.code, first.what)} | {member}
    if finished and is_collateral(first):
        what = f"learner {min(finished)} finished while learner {member} still trained ({first.what})"
        first = replace(first, what=what, advice=_UNEQUAL)
    return replace(first, raised_by=tuple(sorted(same)))


def oom_kills() -> int:
    """Return how often this machine's kernel has killed a process for lack of memory; 0 if it does not report it."""
    with suppress(OSError):
        for line in Path("/proc/vmstat").read_text(encoding="ascii").splitlines():
            if line.startswith("oom_kill "):
                return int(line.split()[1])
    return 0
