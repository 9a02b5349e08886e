"""Watchdog of the engine: the watchdogs of running jobs restart an engine that was killed while no client runs.

An engine that exits by itself removes its socket first and is not restarted. A lock ensures that only one watchdog
starts an engine.
"""

from __future__ import annotations

import fcntl
import os
import select
import signal
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from jupyter_dlaas.jobdir.atomic_files import read_json
from jupyter_dlaas.runtime.system.process import Identity, environment_of, open_process, recorded

__all__ = ["ENGINE", "OFF", "EngineWatchdog"]

ENGINE: Final = "dlaas_server.engine"
OFF: Final = "JUPYTER_DLAAS_WATCHDOG"
"""Variable of the engine's environment: with the value 0, the engine is not restarted."""
DELAY_S: Final = 1.0
"""Minimum delay in seconds: a running client restarts the engine at once and goes first."""
LOOK_S: Final = 5.0
"""Seconds between checks for an engine that another process may have started."""
START_S: Final = 15.0
"""Seconds that an engine may take to serve before another one is tried."""
SETTLED_S: Final = 60.0
DELAY_MAX_S: Final = 60.0
_RETRY_S: Final = 0.5
_NOT_OURS: Final = ("DLAAS_", "PYTHON", "MASTER_", "RANK", "WORLD_SIZE", "LOCAL_", "TORCHELASTIC_")
"""Prefixes of variables that belong to a job and must not reach an engine."""


@dataclass(frozen=True, slots=True)
class _Engine:
    """Running engine, with all that is needed to restart it identically."""

    fd: int
    who: Identity
    command: tuple[str, ...]
    environment: Mapping[str, str]
    folder: str
    seen_s: float


class EngineWatchdog:
    """Watchdog of the engine of a pool's directory. Call `look` when one of `fds` is readable, and at `due`."""

    def __init__(self, pool_dir: Path, now: float) -> None:
        self._pool_dir = pool_dir
        self._engine: _Engine | None = None
        self._last: _Engine | None = None
        self._due_s = now
        self._is_missed = False
        self._tries = 0
        self.look(now)

    def fds(self) -> list[int]:
        """Return the descriptor of the engine's process, if one is watched."""
        return [] if self._engine is None else [self._engine.fd]

    def due(self) -> float | None:
        """Return the time of the next `look`, by the monotonic clock; None while an engine is watched."""
        return None if self._engine is not None else self._due_s

    @property
    def is_known(self) -> bool:
        """True if an engine serves, or has served."""
        return self._engine is not None or self._last is not None

    @property
    def is_needed(self) -> bool:
        """True if the engine was killed and none serves yet."""
        return self._engine is None and self._is_missed

    def look(self, now: float) -> None:
        """Check whether the engine lives, and restart it if it was killed."""
        engine = self._engine
        if engine is not None:
            if not select.select([engine.fd], [], [], 0)[0]:
                return
            os.close(engine.fd)
            self._tries = 0 if now - engine.seen_s >= SETTLED_S else self._tries
            self._engine, self._last, self._is_missed = None, engine, True
            self._due_s = now + max(DELAY_S, min(2.0**self._tries, DELAY_MAX_S) if self._tries else 0.0)
        self._engine = self._find(now)
        if self._engine is not None:
            self._is_missed = False
        elif now >= self._due_s:
            self._start_where_killed(now)

    def _find(self, now: float) -> _Engine | None:
        who = recorded(read_json(self._pool_dir / "engine.json"))
        fd = None if who is None else open_process(who)
        if who is None or fd is None:
            return None
        command, folder = _command_of(who.pid), str(self._pool_dir)
        with suppress(OSError):
            folder = str(Path(f"/proc/{who.pid}/cwd").readlink())
        return _Engine(fd, who, command, environment_of(who.pid), folder, now)

    def _start_where_killed(self, now: float) -> None:
        is_killed = (self._pool_dir / "engine.sock").exists()
        if not is_killed or not self._command():
            self._is_missed, self._due_s = False, now + LOOK_S
            return
        self._is_missed, self._due_s = True, now + _RETRY_S
        lock = os.open(self._pool_dir / "watchdog.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self._engine = self._find(now)  # another watchdog was faster
            if self._engine is None:
                self._tries += 1
                self._start()
                self._engine = self._await_engine(now)
            self._due_s = time.monotonic() + min(2.0**self._tries, DELAY_MAX_S)
            self._is_missed = self._engine is None
        except BlockingIOError:
            return  # another watchdog is restarting the engine
        finally:
            os.close(lock)

    def _await_engine(self, now: float) -> _Engine | None:
        """Wait for the new engine. The caller holds the lock meanwhile, so that no other watchdog starts one too."""
        before = None if self._last is None else self._last.who
        end_s = time.monotonic() + START_S
        while time.monotonic() < end_s:
            found = self._find(now)
            if found is not None and found.who != before:
                return found
            if found is not None:
                os.close(found.fd)
            time.sleep(0.05)
        return None

    def _command(self) -> tuple[str, ...]:
        """Return the command line of the killed engine; empty if it must not be restarted."""
        last = self._last
        if last is None:
            python = (read_json(self._pool_dir / "engine.json") or {}).get("python")
            is_there = isinstance(python, str) and os.access(python, os.X_OK) and os.environ.get(OFF) != "0"
            return (str(python), "-m", ENGINE, "--pool-dir", str(self._pool_dir)) if is_there else ()
        return last.command if ENGINE in last.command and last.environment.get(OFF) != "0" else ()

    def _start(self) -> None:
        command, last = self._command(), self._last
        environment = dict(last.environment) if last is not None else _own_environment()
        program = command[0] if "/" in command[0] else _in_path(command[0], environment.get("PATH", ""))
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
        log = str(self._pool_dir / "engine.log")
        here = Path.cwd()
        with suppress(OSError):
            os.chdir(last.folder if last is not None else self._pool_dir)
        try:
            os.posix_spawn(
                program,
                list(command),
                environment,
                file_actions=[
                    (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
                    (os.POSIX_SPAWN_OPEN, 1, log, flags, 0o600),
                    (os.POSIX_SPAWN_DUP2, 1, 2),
                ],
                setsid=True,
                setsigmask=(),
                setsigdef=(signal.SIGCHLD, signal.SIGTERM, signal.SIGINT, signal.SIGPIPE, signal.SIGHUP),
            )
            print("engine watchdog: the engine was killed; restarting it", file=sys.stderr, flush=True)
        except OSError as error:
            print(f"engine watchdog: the engine could not be restarted: {error}", file=sys.stderr, flush=True)
        finally:
            os.chdir(here)


def _command_of(pid: int) -> tuple[str, ...]:
    try:
        raw = Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return ()
    return tuple(os.fsdecode(part) for part in raw.rstrip(b"\0").split(b"\0"))


def _own_environment() -> dict[str, str]:
    return {k: v for k, v in os.environ.items() if not k.startswith(_NOT_OURS)}


def _in_path(name: str, path: str) -> str:
    places = (os.path.join(folder, name) for folder in path.split(os.pathsep) if folder)  # noqa: PTH118 - as a shell
    return next((place for place in places if os.access(place, os.X_OK)), name)
