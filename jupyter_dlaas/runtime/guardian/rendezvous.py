"""Rendezvous of a job's learners: the store process, its identity and its port."""

from __future__ import annotations

import signal
from collections.abc import Mapping

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

    def adopt(self, status: Mapping[str, object]) -> None:
        """Take over the store that the status file of an earlier guardian names."""
        found = status.get("store")
        if isinstance(found, dict) and isinstance(found.get("pid"), int) and isinstance(found.get("start"), int):
            self.process = Identity(found["pid"], found["start"], str(status.get("boot")))
            self.port = found["port"] if isinstance(found.get("port"), int) else None

    def announced(self, environment: Mapping[str, str]) -> tuple[str, int] | None:
        """Return the store that an adopted learner was started with, so that others of its gang get the same one."""
        if self.process is None:
            return None
        port = environment.get("MASTER_PORT")
        return environment.get("MASTER_ADDR", self.address), int(port) if port else self.port or 0

    def where(self) -> tuple[str, int]:
        """Return host and port of the store. Start it if none is alive."""
        if self.process is None or self.port is None or not is_alive(self.process):
            self.start()
        assert self.port is not None
        return self.address, self.port

    def start(self) -> tuple[str, int]:
        """Start a new store in place of any other and return its host and port."""
        self.end()
        with rendezvous_store.listen(is_public=self._is_public) as listening:
            self.port = listening.getsockname()[1]
            pid = self._spawner.store(listening)
        self.process = identity(pid)
        return self.where()

    def end(self) -> None:
        if self.process is not None:
            send(self.process, signal.SIGKILL)
            self.process = None
