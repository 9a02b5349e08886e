"""Files of a directory that a link sends whole: hashed beside the event loop, sent again when they change."""

from __future__ import annotations

import queue
import socket
import threading
from contextlib import suppress
from pathlib import Path
from typing import Final

from jupyter_dlaas.runtime.link.session import Session
from jupyter_dlaas.runtime.link.storage import FileSource, PathRefused, sha256_of

__all__ = ["FileSender"]

INLINE_BYTES: Final = 1 << 20
"""Size up to which a file is hashed at once instead of in a thread."""


class FileSender:
    """Sender of files below one root. The path of a file is the same on both sides."""

    def __init__(self, root: Path, session: Session) -> None:
        self._root, self._session = root, session
        self._hashed: queue.SimpleQueue[tuple[str, int, FileSource, str | OSError]] = queue.SimpleQueue()
        self._hashing: dict[str, int] = {}
        """Path -> number of the newest version that is being hashed."""
        self._number = 0
        self._wake_r, self._wake_w = socket.socketpair()
        self._wake_r.setblocking(False)
        self.failed: dict[str, str] = {}
        """Files that could not be read, with the reasons."""

    @property
    def fd(self) -> int:
        """Descriptor that becomes readable when a hash is ready."""
        return self._wake_r.fileno()

    def is_pending(self, path: str) -> bool:
        """Return whether the peer has not stored a file that was sent."""
        return path in self._hashing or path in self._session.pending_files

    @property
    def pending(self) -> set[str]:
        """Paths of the files that the peer has not stored."""
        return {*self._hashing, *self._session.pending_files}

    def send(self, path: str) -> None:
        """Send the present content of a file."""
        self.failed.pop(path, None)
        try:
            source = FileSource(self._root / path)
        except OSError as error:
            self.failed[path] = f"{path}: {error.strerror or error}"
            return
        self._number += 1
        self._hashing[path] = self._number
        work = (path, self._number, source)
        if source.size() <= INLINE_BYTES:
            self._hash(*work)
            self.turn()
        else:
            threading.Thread(target=self._hash, args=work, name="file-hash", daemon=True).start()

    def _hash(self, path: str, number: int, source: FileSource) -> None:
        try:
            result: str | OSError = sha256_of(source)
        except OSError as error:
            result = error
        self._hashed.put((path, number, source, result))
        with suppress(OSError):  # closed meanwhile
            self._wake_w.send(b"\0")

    def turn(self) -> None:
        """Give hashed files to the link."""
        with suppress(BlockingIOError):
            self._wake_r.recv(4096)
        while not self._hashed.empty():
            path, number, source, result = self._hashed.get()
            if self._hashing.get(path) != number:  # a newer version is on its way
                source.close()
                continue
            del self._hashing[path]
            if isinstance(result, OSError):
                source.close()
                self.failed[path] = f"{path}: {result.strerror or result}"
                continue
            try:
                self._session.send_file(path, source, result, is_executable=source.is_executable())
            except PathRefused as refused:  # a name that is not valid Unicode, or a long path
                source.close()
                self.failed[path] = str(refused)

    def close(self) -> None:
        """Release the descriptors."""
        self._wake_r.close()
        self._wake_w.close()
