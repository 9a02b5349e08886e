"""Connections to a job's control socket whose processes have not introduced themselves yet."""

from __future__ import annotations

import select
import socket
from contextlib import suppress

from jupyter_dlaas.runtime.fencing.lock import PROBE
from jupyter_dlaas.runtime.system.json_lines import Lines

__all__ = ["Callers"]


class Callers:
    """Callers of a listening socket, until their first message."""

    def __init__(self, listener: socket.socket) -> None:
        self.listener = listener
        """Socket that the owner may replace when its file was lost."""
        self._callers: list[Lines] = []

    def interests(self) -> dict[int, int]:
        """Return the descriptors to poll, with their events."""
        found = dict.fromkeys((line.fd for line in self._callers), select.POLLIN)
        return found | ({self.listener.fileno(): select.POLLIN} if self.listener.fileno() >= 0 else {})

    def accept(self) -> None:
        """Accept pending connections."""
        with suppress(BlockingIOError):
            while self.listener.fileno() >= 0:
                sock, _ = self.listener.accept()
                self._callers.append(Lines(sock))

    def introductions(self) -> list[tuple[Lines, list[bytes]]]:
        """Return connections that have sent lines, with these lines. Close liveness probes and those without any."""
        found = []
        for line in list(self._callers):
            received = line.read()
            if received or not line.is_open:
                self._callers.remove(line)
            if received and received[0].strip() != PROBE:
                found.append((line, received))
            elif received or not line.is_open:
                line.close()
        return found

    def refuse(self) -> None:
        """Close the connections of all that have sent a message: no learner uses this socket."""
        self.accept()
        for line, _ in self.introductions():
            line.close()

    def close(self) -> None:
        """Close the socket and the connections."""
        self.listener.close()
        for line in self._callers:
            line.close()
        self._callers.clear()
