"""Where the learners of a job meet: the store's process, and what of it must be known."""

from __future__ import annotations

import signal

from jupyter_dlaas.runtime.guardian import rendezvous_store
from jupyter_dlaas.runtime.spawn.spawner import Spawner
from jupyter_dlaas.runtime.system.process import Identity, identity, is_alive, send

__all__ = ["Meeting"]


class Meeting:
    """The store of a job. One that is gone is replaced: a new group needs nothing of an old one."""

    def __init__(self, spawner: Spawner) -> None:
        self._spawner = spawner
        self.who: Identity | None = None
        self._port: int | None = None

    def where(self) -> tuple[str, int]:
        """Host and port; started if there is none."""
        if self.who is None or self._port is None or not is_alive(self.who):
            self.start()
        assert self._port is not None
        return "127.0.0.1", self._port

    def start(self) -> tuple[str, int]:
        """A fresh one, in the place of any other."""
        self.end()
        with rendezvous_store.listen() as listening:
            self._port = listening.getsockname()[1]
            pid = self._spawner.store(listening)
        self.who = identity(pid)
        return self.where()

    def end(self) -> None:
        if self.who is not None:
            send(self.who, signal.SIGKILL)
            self.who = None
