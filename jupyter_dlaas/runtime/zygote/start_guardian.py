"""Start of a guardian for a job's directory, as fast as the machine allows.

Plain functions without threads or an event loop. A call returns as soon as the process exists.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import re
import signal
import socket
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from jupyter_dlaas.jobdir.atomic_files import connect, read_json
from jupyter_dlaas.runtime.spawn.launch import Order, ProgramUnusable, guardian_environment, spawn, torch_is_used
from jupyter_dlaas.runtime.spawn.preload import LEAN, PADDING, QUIET, TORCH
from jupyter_dlaas.runtime.system.hash_seed import VARIABLE as HASH_SEED
from jupyter_dlaas.runtime.system.hash_seed import hash_seed_of
from jupyter_dlaas.runtime.system.process import activity_of, boot_id, marked, recorded, send, stat_of
from jupyter_dlaas.wire.codec import DlaasError
from jupyter_dlaas.wire.secret_masking import without_secrets

__all__ = [
    "InterpreterUnusable",
    "StartError",
    "Started",
    "exit_code_of",
    "reap",
    "start_caretaker",
    "start_guardian",
    "stop_zygotes",
    "warm",
    "zygote_path",
]

GUARDIAN: Final = "jupyter_dlaas.runtime.guardian.entrypoint"
ZYGOTE: Final = "jupyter_dlaas.runtime.zygote.zygote"
_READ_AT_START: Final = re.compile(r"PYTHON.*|LD_.*|CUDA_(HOME|PATH)|LANG|LC_.*|TZ|VIRTUAL_ENV|CONDA_PREFIX")
"""Variables that decide how Python starts and which libraries it loads: each set of values has its own zygote."""
_GONE_S: Final = 0.5
_children: Final[set[int]] = set()
_statuses: Final[dict[int, int]] = {}
"""Statuses of children that were reaped."""
_loading: Final[dict[Path, int]] = {}
"""Socket of a zygote -> pid of the process that was last started for it."""


class StartError(DlaasError):
    """Failure to start a guardian: the interpreter is missing, or the system refuses a process."""

    code = "start"


class InterpreterUnusable(StartError):
    """The interpreter is missing or cannot be executed: another try would fail in the same way."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Started:
    """Guardian process that was started; `how`: zygote or plain."""

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
    """Start a guardian for a job. Repeating the call is safe: the second guardian of a job ends at once.

    `environment` is the job's whole environment, `package_dir` a directory that contains only `jupyter_dlaas`. With
    `zygote_dir`, a warm zygote is asked first; if there is none, or it does not answer, a direct start does the same.
    Raise StartError.
    """
    reap()
    if zygote_dir is not None:
        kinds = (TORCH, LEAN) if framework is not None and torch_is_used(framework, "") else (LEAN,)
        for kind in kinds:
            path = zygote_path(zygote_dir, interpreter, package_dir, environment, kind)
            _end_stopped(path)
            started = _ask(path, job_dir)
            if started is not None:
                return started
    return _plain(job_dir, interpreter, package_dir, environment)


def start_caretaker(
    job_dir: Path,
    *,
    interpreter: str,
    package_dir: Path,
    environment: Mapping[str, str],
    is_unusable: bool = False,
) -> Started | None:
    """Start a guardian in this process's Python for learners whose interpreter was removed, or is known to be unusable.

    It guards the living learners. It would start new ones with `interpreter` and report that this fails. Return None if
    the interpreter can be used or no learner lives. Raise StartError.
    """
    if not is_unusable and os.access(interpreter, os.X_OK):
        return None
    if not any(member is not None for _, member in marked(str(job_dir))):
        return None
    return _plain(job_dir, sys.executable, package_dir, environment, interpreter)


def _plain(job_dir: Path, interpreter: str, package_dir: Path, environment: Mapping[str, str], *more: str) -> Started:
    whole = guardian_environment(environment, str(job_dir), str(package_dir))
    try:
        log = str(job_dir / "guardian.log")
        order = Order(module=GUARDIAN, arguments=(str(job_dir), *more), environment=whole, log=log)
        pid = spawn(order, executable=interpreter)
    except OSError as error:
        raise _start_error(interpreter, error) from error
    _children.add(pid)
    stat = stat_of(pid)
    return Started(pid=pid, start=stat.start if stat else 0, boot=boot_id(), how="plain")


def _start_error(interpreter: str, error: OSError) -> StartError:
    kind = InterpreterUnusable if isinstance(error, ProgramUnusable) else StartError
    return kind(f"{interpreter} could not be started: {error.strerror or error}")


def reap() -> list[int]:
    """Reap ended guardians that this process started directly, and return their pids.

    Call it when a guardian ends, so that no zombie is left. (Guardians from a zygote are the zygote's children.)
    """
    gone = []
    for pid in sorted(_children):
        try:
            ended = (found := os.waitpid(pid, os.WNOHANG))[0] == pid
            if ended:
                _statuses[pid] = found[1]
        except ChildProcessError:  # already reaped elsewhere
            ended = True
        if ended:
            gone.append(pid)
            _children.discard(pid)
    return gone


def exit_code_of(pid: int) -> int | None:
    """Return the exit code of a guardian that this process started directly and that ended by itself, once."""
    reap()
    code = os.waitstatus_to_exitcode(_statuses.pop(pid, signal.SIGKILL))
    return code if code >= 0 else None


# -- zygotes -----------------------------------------------------------------------------------------------------------


def zygote_path(
    zygote_dir: Path, interpreter: str, package_dir: Path, environment: Mapping[str, str], kind: str
) -> Path:
    """Return the socket of the zygote for an interpreter and the variables that Python reads at its start."""
    whole = {**environment, HASH_SEED: hash_seed_of(environment)}
    read = sorted((k, v) for k, v in whole.items() if _READ_AT_START.fullmatch(k))
    key = json.dumps([interpreter, str(package_dir), read])
    return zygote_dir / f"{hashlib.sha256(key.encode()).hexdigest()[:16]}-{kind}.sock"


def warm(
    *,
    interpreter: str,
    package_dir: Path,
    environment: Mapping[str, str],
    zygote_dir: Path,
    framework: str | None = None,
) -> bool:
    """Ensure that a zygote exists for jobs of this interpreter and environment. Return whether it is already running.

    The call does not wait: a zygote takes seconds to become ready, and jobs start directly or from a leaner one
    meanwhile.
    """
    reap()
    kind = TORCH if framework is not None and torch_is_used(framework, "") else LEAN
    zygote_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
    path = zygote_path(zygote_dir, interpreter, package_dir, environment, kind)
    _end_stopped(path)
    if path.exists() and _is_locked(path.with_suffix(".lock")):
        return True
    if _loading.get(path) in _children:
        return False  # it is starting and will take its lock shortly
    if not _is_locked(path.with_suffix(".lock")):
        path.unlink(missing_ok=True)  # left by a zygote that was killed
        # Without secrets: it outlives the job, and other viewers of this user's processes could read them.
        whole = {k: v for k, v in without_secrets(environment).items() if not k.startswith("DLAAS_")}
        extra = whole.get("PYTHONPATH")
        whole["PYTHONPATH"] = f"{package_dir}{os.pathsep}{extra}" if extra else str(package_dir)
        whole |= {**QUIET, "PYTHONUNBUFFERED": "1", "MPLBACKEND": "Agg", HASH_SEED: hash_seed_of(whole)}
        whole[PADDING] = " " * 16_384
        try:
            log = str(path.with_suffix(".log"))
            order = Order(module=ZYGOTE, arguments=(str(path), kind), environment=whole, log=log)
            pid = spawn(order, executable=interpreter)
        except OSError as error:
            raise _start_error(interpreter, error) from error
        _children.add(pid)
        _loading[path] = pid
    return False


def stop_zygotes(zygote_dir: Path) -> int:
    """End all zygotes of a directory, including those still loading. Jobs continue. Return their number."""
    count = 0
    for lock in sorted(zygote_dir.glob("*.lock")):
        who = recorded(read_json(lock))
        if who is None or not _is_locked(lock):
            continue
        count += send(who, signal.SIGTERM)
        lock.with_suffix(".sock").unlink(missing_ok=True)
    return count


def _end_stopped(path: Path) -> None:
    """End a zygote that is stopped (SIGSTOP): it answers no request, and blocks the place of another one."""
    lock = path.with_suffix(".lock")
    who = recorded(read_json(lock))
    activity = None if who is None else activity_of(who)
    if who is None or activity is None or not activity.is_stopped or not send(who, signal.SIGKILL):
        return
    path.unlink(missing_ok=True)
    end_s = time.monotonic() + _GONE_S
    while _is_locked(lock) and time.monotonic() < end_s:
        time.sleep(0.005)


def _ask(path: Path, job_dir: Path) -> Started | None:
    """Ask a zygote to start the guardian. Return None if there is none or it cannot."""
    try:
        with connect(socket.SOCK_SEQPACKET, path, timeout_s=2.0) as sock:
            sock.send(json.dumps({"op": "start", "job_dir": str(job_dir)}).encode())
            answer = json.loads(sock.recv(4096) or b"{}")
    except (OSError, ValueError):
        return None
    if "pid" not in answer:
        return None
    return Started(pid=answer["pid"], start=answer["start"], boot=answer["boot"], how="zygote")


def _is_locked(path: Path) -> bool:
    try:
        fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(fd)
    return False
