"""Rendezvous of a job's learners: the store process, its identity and its port."""

from __future__ import annotations

import signal

from jupyter_dlaas.runtime.guardian import rendezvous_store
from jupyter_dlaas.runtime.spawn.spawner import Spawner
from jupyter_dlaas.runtime.system.process import Identity, identity, is_alive, send

__all__ = ["Rendezvous"]


class Rendezvous:
    """Rendezvous store of a job. A dead store is replaced: a new process group needs nothing of the old one."""

    def __init__(self, spawner: Spawner) -> None:
        self._spawner = spawner
        self.process: Identity | None = None
        self._port: int | None = None

    def where(self) -> tuple[str, int]:
        """Return host and port of the store. Start it if none is alive."""
        if self.process is None or self._port is None or not is_alive(self.process):
            self.start()
        assert self._port is not None
        return "127.0.0.1", self._port

    def start(self) -> tuple[str, int]:
        """Start a new store in place of any other and return its host and port."""
        self.end()
        with rendezvous_store.listen() as listening:
            self._port = listening.getsockname()[1]
            pid = self._spawner.store(listening)
        self.process = identity(pid)
        return self.where()

    def end(self) -> None:
        if self.process is not None:
            send(self.process, signal.SIGKILL)
            self.process = None
