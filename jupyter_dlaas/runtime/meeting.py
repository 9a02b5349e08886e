"""Where the learners of a job meet: the store's process, and what of it must be known."""

from __future__ import annotations

import signal
from collections.abc import Mapping
from pathlib import Path

from jupyter_dlaas.runtime import launch, store
from jupyter_dlaas.runtime.process import JOB_MARK, Identity, identity, is_alive, send

__all__ = ["Meeting"]


class Meeting:
    """The store of a job. One that is gone is replaced: a new group needs nothing of an old one."""

    def __init__(self, job_dir: Path, environment: Mapping[str, str], *, is_warm: bool) -> None:
        self._job_dir, self._environment, self._is_warm = job_dir, environment, is_warm
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
        with store.listen() as listening:
            self._port = listening.getsockname()[1]
            environment = {**self._environment, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
            environment |= {"PYTHONPATH": launch.package_folder(), JOB_MARK: str(self._job_dir)}
            pid = launch.start_store(listening, self._job_dir, environment, is_warm=self._is_warm)
        self.who = identity(pid)
        return self.where()

    def end(self) -> None:
        if self.who is not None:
            send(self.who, signal.SIGKILL)
            self.who = None
