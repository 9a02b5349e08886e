"""A learner's connection to its guardian: one line per message, one daemon thread, automatic reconnection.

The guardian may die and be replaced at any time. So everything it must know is state, not events. Each hello repeats
the state, so nothing is lost and nothing needs to be queued.
"""

from __future__ import annotations

import errno
import os
import select
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from jupyter_dlaas.jobdir.atomic_files import connect
from jupyter_dlaas.learner.control.heartbeat import BEAT_S, Beats
from jupyter_dlaas.runtime.system.orphan_ttl import last_s, ttl_s
from jupyter_dlaas.wire.codec import UnknownKind
from jupyter_dlaas.wire.learner_messages import (
    GuardianMessage,
    LearnerMessage,
    LearnerState,
    ReportedNote,
    guardian_message,
    to_line,
)
from jupyter_dlaas.wire.protocol import Note

__all__ = ["Control"]

_REPORTS_MAX: Final = 20
_TAKE_S: Final = 5.0
"""The limit in seconds for sending to a guardian that reads nothing (it may be stopped), so that nothing blocks on
it.
"""


class Control:
    """The control channel: delivers the guardian's requests, and reports the learner's state."""

    def __init__(self, job_dir: Path, member: int) -> None:
        self.pid = os.getpid()
        self._path = job_dir / "guardian.sock"
        self._lock = threading.Lock()
        self._socket: socket.socket | None = None
        self._state = LearnerState(member=member)
        self.beats = Beats()
        self._ttl_s, self._last_s = ttl_s(), last_s()
        self.on_message: Callable[[GuardianMessage], None] | None = None
        self.on_orphaned: Callable[[], None] | None = None
        self.on_idle: Callable[[], None] = lambda: None
        """Called by this channel's thread in each half second without a message from the guardian."""

    def start(self) -> None:
        """Connect, send hello, and start to listen."""
        self._connect()
        threading.Thread(target=self._listen, name="dlaas-control", daemon=True).start()

    def update_state(self, **changes: Any) -> None:
        """Change fields of the state that is reported to the guardian; a new guardian receives it, too."""
        with self._lock:
            for name, value in changes.items():
                setattr(self._state, name, value)
            self._send(self._state)

    def report(self, note: Note) -> None:
        """Report a note for the job's card. Each process reports at most 20."""
        notes = self._state.notes
        if len(notes) < _REPORTS_MAX:
            self.update_state(notes=(*notes, ReportedNote(note.code, note.text)))

    def send(self, message: LearnerMessage) -> None:
        """Send a message to the current guardian; it is lost if there is none."""
        with self._lock:
            self._send(message)

    def _beat(self) -> None:
        message = self.beats.beat()
        if message is not None:
            self.send(message)

    def _send(self, message: LearnerMessage) -> None:
        if self._socket is None:
            return
        try:
            self._socket.sendall(to_line(message))
        except OSError:
            with suppress(OSError):
                self._socket.shutdown(socket.SHUT_RDWR)
            self._socket = None  # the listening thread also sees the end, closes and reconnects

    def _connect(self) -> socket.socket | None:
        try:
            sock = connect(socket.SOCK_STREAM, self._path, timeout_s=5.0)
        except OSError:
            return None
        sock.settimeout(_TAKE_S)
        with self._lock:
            self._socket = sock
            self._send(self._state)
        return sock

    def _listen(self) -> None:
        try:
            self._follow()
        except BaseException:  # noqa: BLE001 - logged; a learner that does not listen would block all others
            sys.excepthook(*sys.exc_info())
            sys.stderr.flush()
            os.kill(self.pid, signal.SIGKILL)

    def _follow(self) -> None:
        sock = self._socket
        received_s = time.monotonic()
        is_orphan = False
        while True:
            if sock is not None:
                self._read(sock)
                with self._lock:
                    self._socket = None
                _close(sock)
                received_s, is_orphan = time.monotonic(), False
            away_s = time.monotonic() - received_s
            if away_s >= self._ttl_s and not is_orphan:
                is_orphan = True
                if self.on_orphaned is not None:
                    self.on_orphaned()
            if away_s >= self._last_s:
                os.kill(self.pid, signal.SIGKILL)  # it was asked to leave, and could not
            time.sleep(0.02 if away_s < 5.0 else 0.25)
            sock = self._connect()

    def _read(self, sock: socket.socket) -> None:
        rest = b""
        poll = select.poll()
        poll.register(sock, select.POLLIN)
        while True:
            if not poll.poll(BEAT_S * 1000):
                self._beat()
                self.on_idle()
                continue
            try:
                data = sock.recv(1 << 16)
            except OSError:
                return
            if not data:
                return
            *lines, rest = (rest + data).split(b"\n")
            for line in lines:
                self._take(line)

    def _take(self, line: bytes) -> None:
        try:
            message = guardian_message(line)
        except UnknownKind as error:
            print(f"[{error}: sent by a guardian of a newer version]", file=sys.stderr, flush=True)
            return
        if self.on_message is not None:
            self.on_message(message)


def _close(sock: socket.socket) -> None:
    """Close a connection, unless the program has closed its descriptor, whose number another file may use by now."""
    try:
        sock.getpeername()
    except OSError as error:
        if error.errno in (errno.EBADF, errno.ENOTSOCK):
            sock.detach()
    with suppress(OSError):
        sock.close()
