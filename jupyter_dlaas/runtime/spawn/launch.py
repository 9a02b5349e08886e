"""Start of a process, forked or direct: the same code runs with the same environment."""

from __future__ import annotations

import errno
import importlib
import json
import os
import re
import signal
import socket
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NoReturn

from jupyter_dlaas.runtime.spawn.program_analysis import uses_torch_distributed
from jupyter_dlaas.runtime.system.hash_seed import VARIABLE as HASH_SEED
from jupyter_dlaas.runtime.system.hash_seed import hash_seed_of
from jupyter_dlaas.runtime.system.process import JOB_MARK, MEMBER_MARK
from jupyter_dlaas.wire.codec import decode, encode
from jupyter_dlaas.wire.journal import MemberWanted
from jupyter_dlaas.wire.protocol import Elastic, JobSpec
from jupyter_dlaas.wire.secret_masking import SECRETS, without_secrets

__all__ = [
    "Order",
    "ProgramUnusable",
    "await_order",
    "become",
    "close_all_but",
    "fork",
    "give",
    "guardian_environment",
    "host_environment",
    "learner_environment",
    "may_change",
    "package_folder",
    "put_on",
    "redirect",
    "spawn",
    "torch_is_used",
]

_OWN: Final = re.compile(
    r"DLAAS_(?!TTL_S$).*|RANK|LOCAL_RANK|WORLD_SIZE|LOCAL_WORLD_SIZE|GROUP_RANK|MASTER_(ADDR|PORT)|TORCHELASTIC_.*"
)
"""Variables that belong to one learner. A job that is submitted from within another one must not inherit them."""

_NOT_FOR_GUARDIANS: Final = re.compile(rf"PYTHON(?!HOME$).*|{_OWN.pattern}")
_TORCH_IMPORT: Final = re.compile(
    r"^\s*(import|from)\s+(torch\w*|lightning|pytorch_lightning|transformers|accelerate)\b", re.MULTILINE
)


_UNUSABLE: Final = frozenset({errno.ENOENT, errno.EACCES, errno.ENOEXEC, errno.ENOTDIR, errno.ELOOP})
"""Errors of a program that is missing or cannot be executed. Others, such as too many processes, may pass."""


class ProgramUnusable(OSError):
    """The program to start is missing or cannot be executed. Another try would fail in the same way."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """Order to a new process: the module to run, its arguments, its whole environment, and its log."""

    module: str
    arguments: tuple[str, ...]
    environment: Mapping[str, str]
    log: str


def package_folder() -> str:
    """Return the directory from which this `jupyter_dlaas` was imported; it comes first on a learner's path."""
    return str(Path(__file__).parents[3])


def torch_is_used(framework: str | None, source: str) -> bool:
    """Return whether a job trains with PyTorch, by its spec or else by its imports."""
    if framework is not None:
        return framework.lower() in ("torch", "pytorch", "lightning", "transformers", "accelerate")
    return _TORCH_IMPORT.search(source) is not None


def may_change(spec: JobSpec, source: str) -> bool:
    """Return whether learners may join and leave while others train. Programs that use torch.distributed may not."""
    is_elastic = spec.elastic is not Elastic.OFF and spec.learners_max > 1
    return is_elastic and torch_is_used(spec.framework, source) and not uses_torch_distributed(source)


def guardian_environment(environment: Mapping[str, str], job_dir: str, package_dir: str) -> dict[str, str]:
    """Return the guardian's environment: the job's, without the variables that affect this package's own code.

    The user's PYTHONPATH, PYTHONWARNINGS, PYTHONINSPECT … and secrets are for the learners only.
    """
    kept = {k: v for k, v in without_secrets(environment).items() if not _NOT_FOR_GUARDIANS.fullmatch(k)}
    return kept | {"PYTHONPATH": package_dir, JOB_MARK: job_dir}


def learner_environment(
    base: Mapping[str, str],
    *,
    job: str,
    generation: int,
    members: Sequence[MemberWanted],
    rank: int,
    store: tuple[str, int] | None,
    may_change: bool = False,
    joins: bool = False,
) -> dict[str, str]:
    """Return a learner's environment, as server/WIRE.md lists it, without what only its host can say.

    If each learner sees only its own GPUs, it is the only learner of its "node" for torchrun's scripts: their
    `set_device(LOCAL_RANK)` must name a visible device.
    """
    me = members[rank]
    here = [m.member for m in members if m.node == me.node]
    sees_own_gpus = bool(me.environment.get("CUDA_VISIBLE_DEVICES"))
    local = (0, 1) if sees_own_gpus else (here.index(me.member), len(here))
    found = {k: v for k, v in base.items() if not _OWN.fullmatch(k)}
    found |= {"PYTHONUNBUFFERED": "1", "MPLBACKEND": "Agg"}
    found |= me.environment
    if SECRETS in base:
        found[SECRETS] = base[SECRETS]
    found[HASH_SEED] = hash_seed_of(found)
    return found | {
        "DLAAS_JOB": job,
        "DLAAS_GENERATION": str(generation),
        "RANK": str(rank),
        "LOCAL_RANK": str(local[0]),
        "WORLD_SIZE": str(len(members)),
        "LOCAL_WORLD_SIZE": str(local[1]),
        "GROUP_RANK": "0",
        "MASTER_ADDR": store[0] if store else "127.0.0.1",
        "MASTER_PORT": str(store[1] if store else 0),
        "TORCHELASTIC_USE_AGENT_STORE": str(store is not None),
        "TORCHELASTIC_RESTART_COUNT": "0",
        "TORCHELASTIC_RUN_ID": f"{job}.{generation}",
        "DLAAS_MAY_CHANGE": str(int(may_change)),
        "DLAAS_JOINS": str(int(joins)),
    }


def host_environment(environment: Mapping[str, str], *, job_dir: str, member: int) -> dict[str, str]:
    """Return a learner's environment with the paths of its host: the package and the job's directory."""
    path, package = environment.get("PYTHONPATH"), package_folder()
    return {
        **environment,
        "PYTHONPATH": f"{package}{os.pathsep}{path}" if path else package,
        JOB_MARK: job_dir,
        MEMBER_MARK: str(member),
    }


# -- start of processes ------------------------------------------------------------------------------------------------


def spawn(order: Order, *, passed: int | None = None, executable: str | None = None) -> int:
    """Start a process directly, in its own session, and return its pid. Raise OSError or ProgramUnusable.

    `passed` becomes descriptor 3. The process inherits no other descriptor: C libraries such as torch open sockets that
    children would keep open.
    """
    executable = executable or sys.executable
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
    actions: list[tuple[int, ...] | tuple[int, int, str, int, int]] = [
        *((os.POSIX_SPAWN_CLOSE, fd) for fd in _inheritable() if fd != passed),
        (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
        (os.POSIX_SPAWN_OPEN, 1, order.log, flags, 0o600),
        (os.POSIX_SPAWN_DUP2, 1, 2),
    ]
    if passed is not None:
        actions.append((os.POSIX_SPAWN_DUP2, passed, 3))
    try:
        # -P: modules in the current directory must not shadow those of this package.
        return os.posix_spawn(
            executable,
            [executable, "-P", "-m", order.module, *order.arguments],
            dict(order.environment),
            file_actions=actions,
            setsid=True,
            setsigmask=(),
            setsigdef=(signal.SIGCHLD, signal.SIGTERM, signal.SIGINT, signal.SIGPIPE),
        )
    except OSError as error:
        if error.errno in _UNUSABLE and _can_open(order.log, flags):
            raise ProgramUnusable(error.errno, error.strerror, executable) from error
        raise


def _can_open(path: str, flags: int) -> bool:
    """Return whether a log can be opened: `posix_spawn` does not say which file an error is about."""
    try:
        os.close(os.open(path, flags | os.O_CLOEXEC, 0o600))
    except OSError:
        return False
    return True


def _inheritable() -> list[int]:
    """Return the descriptors above 2 that a process started here would inherit."""
    found = []
    for entry in Path("/proc/self/fd").iterdir():
        with suppress(OSError):  # the descriptor of this listing, and those that another thread closes meanwhile
            if (fd := int(entry.name)) > 2 and os.get_inheritable(fd):
                found.append(fd)
    return found


def fork(child: Callable[[], None]) -> int:
    """Run `child` in a fork of this process, which ends afterwards. Return the fork's pid to the parent."""
    pid = os.fork()
    if pid:
        return pid
    try:
        child()
    except SystemExit as end:
        os._exit(end.code if isinstance(end.code, int) else int(end.code is not None))
    except BaseException:  # noqa: BLE001 - the frames below belong to the parent and must not be unwound
        sys.excepthook(*sys.exc_info())
        os._exit(70)
    os._exit(0)


def close_all_but(kept: Sequence[int]) -> None:
    """Close all descriptors above 2 but `kept`: a lock or socket of the parent must end with the parent."""
    low = 3
    for fd in sorted(set(kept)):
        if fd >= 3:
            os.closerange(low, fd)
            low = fd + 1
    limit = max((int(entry.name) for entry in Path("/proc/self/fd").iterdir()), default=low)
    os.closerange(low, limit + 1)


def become(order: Order, passed: int | None = None) -> NoReturn:
    """Replace the parent's state in a fork by that of a direct start, and run the module's `main`.

    `passed` becomes descriptor 3.
    """
    os.setsid()
    signal.set_wakeup_fd(-1)
    for number in (signal.SIGCHLD, signal.SIGTERM):
        signal.signal(number, signal.SIG_DFL)
    # As in any Python: writing to a process that was just killed must raise an error, not kill the writer as well.
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    close_all_but(() if passed is None else (passed,))
    if passed is not None and passed != 3:
        os.dup2(passed, 3)
        os.close(passed)
    redirect(order.log)
    put_on(order.environment)
    runtime = importlib.import_module("jupyter_dlaas.runtime.spawn.after_fork")
    runtime.wake(order.environment)
    main = importlib.import_module(order.module).main
    sys.argv = [order.module, *order.arguments]
    main(list(order.arguments))
    os._exit(0)


def give(line: socket.socket, order: Order) -> bool:
    """Send an order to a process that was forked ahead, and close the connection. Return False if it is gone."""
    with line:
        try:
            line.sendall(json.dumps(encode(order)).encode())
        except OSError:
            return False
    return True


def await_order(line: socket.socket, passed: int | None = None) -> None:
    """Wait for an order in a process that was forked ahead, and carry it out. Return if none arrives."""
    data = b""
    while chunk := line.recv(1 << 16):
        data += chunk
    line.close()
    if data:
        become(decode(Order, json.loads(data)), passed)


def redirect(log: str) -> None:
    """Redirect standard input to /dev/null, and output and errors to the end of a log file."""
    for stream in (sys.stdout, sys.stderr):
        with suppress(AttributeError, ValueError, OSError):
            stream.flush()
    nothing = os.open(os.devnull, os.O_RDONLY)
    out = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.dup2(nothing, 0)
    os.dup2(out, 1)
    os.dup2(out, 2)
    for fd in {nothing, out}:
        if fd > 2:
            os.close(fd)


def put_on(environment: Mapping[str, str]) -> None:
    """Replace this process's environment.

    All variables are set again, also unchanged ones: `after_fork.show_environment` overwrites the memory in which they
    lay when the process was started.
    """
    os.environ.clear()
    os.environ.update(environment)
