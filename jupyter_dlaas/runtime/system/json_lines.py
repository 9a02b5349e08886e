"""Lines over a socket, for an event loop that must never block on the peer."""

from __future__ import annotations

import socket
import sys
from typing import Final

__all__ = ["Lines"]

_LONGEST: Final = 1 << 20


class Lines:
    """Non-blocking connection: reads available messages, and buffers output until it can be written."""

    def __init__(self, sock: socket.socket) -> None:
        sock.setblocking(False)
        self._sock = sock
        self._in = b""
        self._out = b""
        self.is_open = True

    @property
    def fd(self) -> int:
        return self._sock.fileno()

    @property
    def has_more(self) -> bool:
        """True if buffered output waits to be written."""
        return bool(self._out)

    def peer_pid(self) -> int:
        """Return the pid of the peer as the kernel reports it, so that the peer need not be trusted."""
        raw = self._sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
        return int.from_bytes(raw[:4], sys.byteorder)

    def read(self) -> list[bytes]:
        """Return the complete lines received. Close the connection after its end or an overlong line."""
        while self.is_open:
            try:
                data = self._sock.recv(1 << 16)
            except BlockingIOError:
                break
            except OSError:
                data = b""
            self._in += data
            if not data or len(self._in) > _LONGEST:
                self.is_open = False
        *lines, self._in = self._in.split(b"\n")
        return lines

    def send(self, line: bytes) -> None:
        """Send a line now, or as soon as the socket accepts it."""
        self._out += line
        self.write()

    def write(self) -> None:
        """Write as much buffered output as the socket accepts."""
        try:
            while self._out and self.is_open:
                self._out = self._out[self._sock.send(self._out) :]
        except BlockingIOError:
            return
        except OSError:
            self.is_open = False

    def detach(self) -> socket.socket:
        """Return the socket for use with another protocol; this object is closed afterwards."""
        self.is_open = False
        return self._sock

    def close(self) -> None:
        self.is_open = False
        self._sock.close()
