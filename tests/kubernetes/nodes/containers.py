"""Containers of a process node: local processes with logs in the format of the Container Runtime Interface."""

from __future__ import annotations

import asyncio
import contextlib
import datetime as dt
import json
import os
import signal
import sys
import uuid
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

__all__ = ["Container", "ContainerSpec", "Log", "LogLine", "StartFailed", "micro_time", "second_time"]

SANDBOX: Final = Path(__file__).with_name("sandbox.py")
CHUNK: Final = 65536
LINE_MAX: Final = 16384
"""Longer lines are stored in parts, as container runtimes do."""


def second_time(moment: dt.datetime | None = None) -> str:
    """Return a time in the form of most fields of the API."""
    return (moment or dt.datetime.now(dt.UTC)).strftime("%Y-%m-%dT%H:%M:%SZ")


def micro_time() -> str:
    return dt.datetime.now(dt.UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


class StartFailed(Exception):
    """The command could not be started."""


@dataclass(frozen=True, slots=True)
class LogLine:
    """One line, or a part of a long one."""

    time: str
    stream: str
    is_partial: bool
    text: bytes

    def rendered(self, *, with_time: bool) -> bytes:
        return (self.time.encode() + b" " if with_time else b"") + self.text + (b"" if self.is_partial else b"\n")


class Log:
    """Output of one run of a container, in a file that can be followed while it is written."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file = path.open("wb", buffering=0)
        self._rest = {"stdout": b"", "stderr": b""}
        self._changed = asyncio.Event()
        self.is_closed = False

    def append(self, stream: str, data: bytes) -> None:
        *lines, rest = (self._rest[stream] + data).split(b"\n")
        parts = [(b"F", line) for line in lines]
        while len(rest) > LINE_MAX:
            parts.append((b"P", rest[:LINE_MAX]))
            rest = rest[LINE_MAX:]
        self._rest[stream] = rest
        self._write(stream, parts)

    def close(self) -> None:
        for stream, rest in self._rest.items():
            if rest:
                self._write(stream, [(b"P", rest)])
        self._file.close()
        self.is_closed = True
        self._notify()

    def _write(self, stream: str, parts: Sequence[tuple[bytes, bytes]]) -> None:
        if parts:
            prefix = f"{micro_time()} {stream} ".encode()
            self._file.write(b"".join(prefix + tag + b" " + text + b"\n" for tag, text in parts))
            self._notify()

    def _notify(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    def tail(self, size: int) -> bytes:
        """Return the last bytes of the output."""
        lines = self._path.read_bytes().splitlines()[-80:]
        return b"\n".join(line.split(b" ", 3)[3] for line in lines)[-size:]

    async def lines(self, *, follow: bool = False) -> AsyncIterator[LogLine]:
        """Yield the lines written so far; with `follow`, also the later ones until the container ends."""
        with self._path.open("rb") as file:
            rest = b""
            while True:
                changed, is_closed = self._changed, self.is_closed
                while data := file.read(CHUNK):
                    *lines, rest = (rest + data).split(b"\n")
                    for line in lines:
                        time, stream, tag, text = line.split(b" ", 3)
                        yield LogLine(time.decode(), stream.decode(), tag == b"P", text)
                if is_closed or not follow:
                    return
                await changed.wait()


@dataclass(frozen=True, slots=True, kw_only=True)
class ContainerSpec:
    """Everything that the sandbox has to know."""

    hostname: str
    command: Sequence[str]
    environment: Mapping[str, str]
    directory: str
    uid: int
    gid: int
    groups: Sequence[int]
    mounts: Sequence[Mapping[str, Any]]


class Container:
    """One run of a container's command."""

    def __init__(self, spec: ContainerSpec, folder: Path, log: Log) -> None:
        self.container_id = f"process://{uuid.uuid4().hex}"
        self.log = log
        self.is_oom_killed = False
        self._spec = spec
        self._folder = folder
        self._process: asyncio.subprocess.Process | None = None
        self._reports: asyncio.StreamReader | None = None
        self._output: list[asyncio.Task[None]] = []
        self._pid = 0

    async def start(self) -> None:
        """Start the command. Raises StartFailed."""
        root = self._folder / "root"
        root.mkdir(exist_ok=True)
        spec_path = self._folder / "spec.json"
        spec_path.touch(mode=0o600)
        spec = {name: getattr(self._spec, name) for name in ContainerSpec.__slots__}
        spec_path.write_text(json.dumps(spec | {"root": str(root)}), encoding="utf-8")
        receive, send = os.pipe()
        try:
            command = [sys.executable, "-I", "-S", str(SANDBOX), str(spec_path), str(send), str(os.getpid())]
            self._process = await asyncio.create_subprocess_exec(
                *command,
                pass_fds=[send],
                env={},
                start_new_session=True,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
                limit=CHUNK,
            )
        finally:
            os.close(send)
        self._reports = asyncio.StreamReader()
        protocol = asyncio.StreamReaderProtocol(self._reports)
        await asyncio.get_running_loop().connect_read_pipe(lambda: protocol, os.fdopen(receive, "rb"))
        streams = {"stdout": self._process.stdout, "stderr": self._process.stderr}
        self._output = [
            asyncio.create_task(self._copy(name, stream)) for name, stream in streams.items() if stream is not None
        ]
        report = await self._report()
        spec_path.unlink()  # it may hold secrets
        if "started" not in report:
            await self._finish()
            raise StartFailed(report.get("error", "the container's runtime ended"))
        self._pid = report["started"]

    async def wait(self) -> int:
        """Wait for the end of the command and of its output; return its exit code, 128 + n for signal n."""
        report = await self._report()
        await self._finish()
        code: int = report.get("code", -signal.SIGKILL)
        return 128 - code if code < 0 else code

    def is_running(self) -> bool:
        """Return whether the command still has a process. Does not depend on the event loop."""
        return Path(f"/proc/{self._pid}").exists()

    def send_signal(self, number: signal.Signals) -> None:
        """Send a signal to the command, which is process 1 of its namespace. One that has ended ignores it."""
        if self._process is not None and self._process.returncode is None and self._pid:
            # The sandbox may have reaped the command and not ended itself.
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._pid, number)

    def kill_process(self, pid: int) -> None:
        """Kill a process of the container, known by its pid in the container's PID namespace."""
        namespace = Path(f"/proc/{self._pid}/ns/pid").readlink()
        for process in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):  # it has ended
                if (process / "ns/pid").readlink() == namespace and _own_pid(process) == pid:
                    os.kill(int(process.name), signal.SIGKILL)
                    return
        raise ProcessLookupError(f"the container has no process {pid}")

    def destroy(self) -> None:
        """Kill the container together with its runtime, as a failing machine does."""
        if self._process is not None and self._process.returncode is None:
            self._process.kill()

    async def _report(self) -> dict[str, Any]:
        assert self._reports is not None
        line = await self._reports.readline()
        report: dict[str, Any] = json.loads(line) if line else {}
        return report

    async def _copy(self, name: str, stream: asyncio.StreamReader) -> None:
        while data := await stream.read(CHUNK):
            self.log.append(name, data)

    async def _finish(self) -> None:
        assert self._process is not None
        await asyncio.gather(*self._output)
        await self._process.wait()
        self.log.close()


def _own_pid(process: Path) -> int:
    """Return the pid of a process in its own PID namespace."""
    lines = (process / "status").read_text(encoding="ascii", errors="replace").splitlines()
    (pids,) = (line for line in lines if line.startswith("NSpid:"))
    return int(pids.split()[-1])
