"""Rendezvous of a job's learners: the store process, its identity and its port."""

from __future__ import annotations

import signal
import socket
from collections.abc import Mapping
from contextlib import suppress

from jupyter_dlaas.runtime.guardian import rendezvous_store
from jupyter_dlaas.runtime.spawn.spawner import Spawner
from jupyter_dlaas.runtime.system.process import Identity, identity, is_alive, send

__all__ = ["Rendezvous"]


class Rendezvous:
    """Rendezvous store of a job. A dead store is replaced: a new process group needs nothing of the old one."""

    def __init__(self, spawner: Spawner, address: str | None = None) -> None:
        """Serve learners on other machines at `address`, or those on this one."""
        self._spawner, self._is_public = spawner, address is not None
        self.address = address or rendezvous_store.LOOPBACK
        self.process: Identity | None = None
        self.port: int | None = None
        self._listening: socket.socket | None = None

    def adopt(self, status: Mapping[str, object]) -> None:
        """Take over the store that the status file of an earlier guardian names."""
        found = status.get("store")
        if isinstance(found, dict) and isinstance(found.get("pid"), int) and isinstance(found.get("start"), int):
            self.process = Identity(found["pid"], found["start"], str(status.get("boot")))
            self.port = found["port"] if isinstance(found.get("port"), int) else None

    def announced(self, environment: Mapping[str, str]) -> tuple[str, int] | None:
        """Return the store that an adopted learner was started with, so that others of its gang get the same one.

        The earlier guardian may have been killed before it started that store: start it again at the same port.
        """
        text = environment.get("MASTER_PORT", "")
        port = int(text) if text.isdecimal() else self.port or 0
        if not port:
            return None
        if self.process is None or not is_alive(self.process):
            with suppress(OSError):  # the port is taken: the learners report that they cannot connect
                self.open(port)
                self.run()
        return environment.get("MASTER_ADDR", self.address), port

    def where(self) -> tuple[str, int]:
        """Return host and port of the store. Start it if none is alive."""
        if self.process is None or self.port is None or not is_alive(self.process):
            self.start()
        assert self.port is not None
        return self.address, self.port

    def start(self) -> None:
        """Start a new store in place of any other."""
        self.open()
        self.run()

    def open(self, port: int = 0) -> tuple[str, int]:
        """Listen for a new store in place of any other, and return its host and port.

        Learners can connect at once; `run` starts the store's process, which takes longer.
        """
        self.end()
        self._listening = rendezvous_store.listen(port, is_public=self._is_public)
        self.port = self._listening.getsockname()[1]
        return self.address, self.port

    def run(self) -> None:
        """Start the store's process on the socket that `open` has made."""
        assert self._listening is not None
        with self._listening as listening:
            self._listening = None
            self.process = identity(self._spawner.store(listening))

    def end(self) -> None:
        """End the store."""
        if self._listening is not None:
            self._listening.close()
            self._listening = None
        if self.process is not None:
            send(self.process, signal.SIGKILL)
            self.process = None
