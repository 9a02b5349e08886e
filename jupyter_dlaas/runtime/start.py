"""For whoever starts jobs: a guardian for a job's directory, as fast as this machine can.

Plain functions without threads or an event loop; a call returns as soon as the process exists.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from jupyter_dlaas.runtime.launch import guardian_environment
from jupyter_dlaas.runtime.process import boot_id, stat_of
from jupyter_dlaas.wire import DlaasError

__all__ = ["StartError", "Started", "reap", "start_guardian"]

_children: Final[dict[int, subprocess.Popen[bytes]]] = {}


class StartError(DlaasError):
    """No guardian could be started: the interpreter is missing, or the system refuses processes."""

    code = "start"


@dataclass(frozen=True, slots=True, kw_only=True)
class Started:
    """A guardian process; `how`: zygote or plain."""

    pid: int
    start: int
    boot: str
    how: str


def start_guardian(
    job_dir: Path,
    *,
    interpreter: str,
    package_dir: Path,
    environment: Mapping[str, str],
    zygote_dir: Path | None = None,
    framework: str | None = None,
) -> Started:
    """Start a guardian for a job. Safe to repeat: of two guardians of one job the second ends at once.

    `environment` is the job's whole environment, `package_dir` a folder that holds nothing but `jupyter_dlaas`.
    With `zygote_dir` a warm zygote is asked first; where there is none, or it does not answer, a plain start does the
    same. Raises StartError.
    """
    reap()
    return _plain(job_dir, interpreter, package_dir, environment)


def _plain(job_dir: Path, interpreter: str, package_dir: Path, environment: Mapping[str, str]) -> Started:
    log = os.open(job_dir / "guardian.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    try:
        child = subprocess.Popen(
            [interpreter, "-P", "-m", "jupyter_dlaas.runtime.guardian", str(job_dir)],
            cwd=job_dir,
            env=guardian_environment(environment, str(job_dir), str(package_dir)),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    except OSError as error:
        raise StartError(f"{interpreter} could not be started: {error.strerror or error}") from error
    finally:
        os.close(log)
    _children[child.pid] = child
    stat = stat_of(child.pid)
    return Started(pid=child.pid, start=stat.start if stat else 0, boot=boot_id(), how="plain")


def reap() -> list[int]:
    """Wait for the guardians that this process started plainly and that ended; returns their pids.

    Call it when a guardian is seen to end, so that no zombie is left. (Those of a zygote are the zygote's children.)
    """
    # A copy, and no error where it is gone: another thread may start or reap at the same time.
    gone = [pid for pid, child in list(_children.items()) if child.poll() is not None]
    return [pid for pid in gone if _children.pop(pid, None) is not None]
