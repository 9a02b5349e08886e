"""Exit status of learners, from the result file they write and from the operating system."""

from __future__ import annotations

import os
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jupyter_dlaas.failures import diagnosis
from jupyter_dlaas.jobdir.atomic_files import read_json
from jupyter_dlaas.jobdir.layout import learner_folder
from jupyter_dlaas.runtime.guardian.learner_process import Learner
from jupyter_dlaas.wire.codec import Invalid, decode
from jupyter_dlaas.wire.journal import Wanted
from jupyter_dlaas.wire.protocol import Cause, Failure

__all__ = ["Result", "has_completed", "how_it_ended", "read_result", "reap", "was_let_go"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """Result that a learner writes as it ends."""

    outcome: str
    code: int
    failure: Failure | None = None
    step: int | None = None
    up_s: float | None = None
    """Uptime of the machine at its last step."""
    is_stopped: bool = False
    """True if it received SIGTERM before its program ended normally."""
    trained: tuple[Any, ...] = ()
    results: tuple[str, ...] = ()


def read_result(job_dir: Path, member: int) -> Result | None:
    """Return the content of `learner-N/result.json`, or None if the learner was killed before it wrote a valid file."""
    body = read_json(learner_folder(job_dir, member) / "result.json")
    try:
        return None if body is None else decode(Result, body, unknown="ignore")
    except Invalid:
        return None


def was_let_go(result: Result | None, member: int, wanted: Wanted | None) -> bool:
    """Return whether a learner that ended while no guardian watched left because it was no longer wanted."""
    is_wanted = wanted is not None and member in {one.member for one in wanted.members}
    return not is_wanted and result is not None and (result.outcome == "left" or result.is_stopped)


def has_completed(learner: Learner, result: Result | None) -> bool:
    """Return whether a learner ran its program to the end, and did not end it because it was asked to stop."""
    return result is not None and result.outcome == "ok" and not (learner.is_asked and result.is_stopped)


def how_it_ended(learner: Learner, result: Result | None) -> tuple[int | None, int | None, Failure | None]:
    """Return exit code, signal, and the failure unless the learner was asked to end."""
    code, signal = learner.code, learner.signal
    if code is None and signal is None and result is not None:
        code = result.code
    if learner.is_asked:
        return code, signal, None
    if learner.failure is not None:
        return code, signal, learner.failure
    if result is None:
        return code, signal, diagnosis.from_exit(code, signal, out_of_memory=learner.is_out_of_memory)
    if result.outcome == "left":
        return code, signal, result.failure or _UNGUARDED
    if result.outcome == "ok":
        return code, signal, None
    return code, signal, result.failure or diagnosis.exited(result.code)


_UNGUARDED = Failure(
    cause=Cause.PLATFORM,
    code="unguarded",
    what="exited because no guardian had answered for a while",
    advice="No action is needed: the job continues from its checkpoint.",
)


def reap() -> dict[int, int]:
    """Reap every child that ended, including orphans that this process inherited, and return pid -> status."""
    ended: dict[int, int] = {}
    with suppress(ChildProcessError):
        while True:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid == 0:
                break
            ended[pid] = status
    return ended
