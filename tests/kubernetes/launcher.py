"""Process that starts the programs of a test cluster and ends them, even if the test process is killed.

Used as `python -I -S launcher.py FOLDER`. A line of JSON on standard input starts a program:
{"name": ..., "argv": [...], "log": path}. Lines of JSON on standard output report {"name", "event"}, where the event is
"ready" (the program said so by systemd's notification protocol) or "ended". At the end of standard input, that is, when
the test process closes it or dies, all programs are killed and FOLDER is deleted. If the launcher itself is killed, the
programs are killed by the kernel.
"""

from __future__ import annotations

import ctypes
import json
import os
import selectors
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

PR_SET_PDEATHSIG: Final = 1
LIBC: Final = ctypes.CDLL(None)


class Launcher:
    """Programs started by this process, and the events that it waits for."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._selector = selectors.DefaultSelector()
        self._programs: dict[str, subprocess.Popen[bytes]] = {}
        self._input = b""

    def serve(self) -> None:
        """Handle requests until the end of standard input, then kill all programs and delete the folder."""
        self._on_readable(sys.stdin.fileno(), self._read_requests)
        try:
            while True:
                for key, _ in self._selector.select():
                    key.data()
        except EOFError:
            for program in self._programs.values():
                program.kill()
            for program in self._programs.values():
                program.wait()
            shutil.rmtree(self._folder, ignore_errors=True)

    def _on_readable(self, source: Any, handle: Callable[[], None]) -> None:
        self._selector.register(source, selectors.EVENT_READ, handle)

    def _read_requests(self) -> None:
        data = os.read(sys.stdin.fileno(), 65536)
        if not data:
            raise EOFError
        *lines, self._input = (self._input + data).split(b"\n")
        for line in lines:
            self._start(**json.loads(line))

    def _start(self, name: str, argv: list[str], log: str) -> None:
        address = str(self._folder / f"{name}.notify")
        notifications = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        notifications.bind(address)
        with Path(log).open("ab") as output:
            program = self._programs[name] = subprocess.Popen(
                argv,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                cwd=self._folder,
                env=os.environ | {"NOTIFY_SOCKET": address},
                preexec_fn=lambda: LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGKILL),  # this process has one thread
            )
        descriptor = os.pidfd_open(program.pid)

        def read_notification() -> None:
            if b"READY=1" in notifications.recv(4096).split():
                self._report(name, "ready")

        def end() -> None:
            self._selector.unregister(descriptor)
            os.close(descriptor)
            program.wait()
            self._report(name, "ended")

        self._on_readable(notifications, read_notification)
        self._on_readable(descriptor, end)

    def _report(self, name: str, event: str) -> None:
        try:
            print(json.dumps({"name": name, "event": event}), flush=True)
        except BrokenPipeError as error:
            raise EOFError from error


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole foreground; the test process decides
    Launcher(Path(sys.argv[1])).serve()
