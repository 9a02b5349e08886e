"""Start of a job's processes, each in the fastest way available. All ways have the same effect."""

from __future__ import annotations

import socket
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from jupyter_dlaas.jobdir import layout
from jupyter_dlaas.jobdir.log_index import LOG
from jupyter_dlaas.runtime.spawn import job_zygote, launch
from jupyter_dlaas.runtime.spawn.forked_ahead import Parked, fork_ahead, give, wait_as_learner
from jupyter_dlaas.runtime.spawn.job_zygote import JobZygote
from jupyter_dlaas.runtime.spawn.launch import Order
from jupyter_dlaas.runtime.spawn.preload import PADDING
from jupyter_dlaas.runtime.system.process import JOB_MARK, thread_count
from jupyter_dlaas.wire.secret_masking import without_secrets

__all__ = ["LEARNER", "Origin", "Spawner"]

LEARNER: Final = "jupyter_dlaas.learner.process.main"
"""Module of a learner's process."""
STORE: Final = "jupyter_dlaas.runtime.guardian.rendezvous_store"
PARK_DELAY_S: Final = 0.25
"""Seconds after the start of a learner in which no other is forked ahead: it starts first."""
_PADDING_BYTES: Final = 1024
"""Reserved bytes: environments of one job's learners differ in a few digits."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """Way in which a guardian was started, and the processes it can fork from."""

    is_warm: bool = False
    """True if it was forked from a zygote, so that its own forks need no imports."""
    learner: Parked | None = None
    """Learner that was forked ahead."""
    start_watchdog: Callable[[Path], int] | None = None
    """Function that starts the job's watchdog and returns its pidfd; None if the guardian must fork one."""
    interpreter: str | None = None
    """Interpreter of the job, if it is not the guardian's own."""


class Spawner:
    """Starter of a job's learners and rendezvous store, used by its guardian."""

    def __init__(
        self,
        job_dir: Path,
        environment: Mapping[str, str],
        origin: Origin,
        *,
        may_change: bool,
        is_torch: bool,
    ) -> None:
        self._job_dir, self._environment = job_dir, environment
        self._origin, self._may_change, self._is_torch = origin, may_change, is_torch
        self._job_zygote: JobZygote | None = None
        self._parked = origin.learner
        self._park_s: float | None = None

    def learner(self, member: int, module: str, arguments: Sequence[str], environment: Mapping[str, str]) -> int:
        """Start a learner and return its pid. Raise OSError if the system refuses."""
        folder = layout.learner_folder(self._job_dir, member)
        folder.mkdir(mode=0o700, exist_ok=True)
        (folder / "result.json").unlink(missing_ok=True)
        order = Order(
            module=module,
            arguments=(str(self._job_dir), str(member), *arguments),
            environment=launch.host_environment(environment, job_dir=str(self._job_dir), member=member),
            log=str(folder / LOG),
        )
        pid = self._from_nursery(order)
        # Joining learners start from it. If the start fails, the next start after a loss tries again.
        leaves_nursery = self._may_change or (self._is_torch and environment.get("RANK") == "0")
        if pid is None and leaves_nursery and "torch" not in sys.modules:
            order = replace(
                order,
                arguments=(*order.arguments, job_zygote.FLAG),
                environment={**order.environment, PADDING: " " * _PADDING_BYTES},
            )
        if pid is None and self._parked is not None:
            pid = give(self._parked, order)
            self._parked = None
        if self._may_change and self._origin.is_warm and "torch" in sys.modules:
            self._park_s = time.monotonic() + PARK_DELAY_S
        return self._start(order) if pid is None else pid

    def store(self, listening: socket.socket) -> int:
        """Start the rendezvous store on a socket that already listens, and return its pid."""
        environment = {**without_secrets(self._environment), "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
        environment |= {"PYTHONPATH": launch.package_folder(), JOB_MARK: str(self._job_dir)}
        order = Order(
            module=STORE,
            arguments=("3", str(self._job_dir)),
            environment=environment,
            log=str(self._job_dir / "guardian.log"),
        )
        pid = self._from_nursery(order, listening.fileno())
        return self._start(order, listening.fileno()) if pid is None else pid

    def due(self) -> float | None:
        """Return when `park` has something to do; None if it has not."""
        return self._park_s

    def park(self, now: float) -> None:
        """Fork a learner ahead once the last one has started, so that one that joins does so at once.

        Only where PyTorch is loaded: otherwise joining learners start from the job's zygote.
        """
        if self._park_s is None or now < self._park_s:
            return
        self._park_s = None
        if self._parked is None and thread_count() == 1:
            with suppress(OSError):  # too many processes: the next learner is forked when it is needed
                self._parked = fork_ahead(wait_as_learner)

    def adopt_zygote(self, sock: socket.socket) -> None:
        """Use the connection of a job zygote in place of any other one."""
        if self._job_zygote is not None:
            self._job_zygote.close()
        self._job_zygote = JobZygote(sock)

    def _from_nursery(self, order: Order, passed: int | None = None) -> int | None:
        if self._job_zygote is None:
            return None
        pid = self._job_zygote.start(order, passed)
        if pid is None:
            self._job_zygote.close()
            self._job_zygote = None
        return pid

    def _start(self, order: Order, passed: int | None = None) -> int:
        """Start a process by fork, or directly.

        A process with a second thread is not forked: a lock held by that thread would stay locked for good.
        """
        if self._origin.is_warm and thread_count() == 1:
            return launch.fork(lambda: launch.become(order, passed))
        return launch.spawn(order, passed=passed, executable=self._origin.interpreter)
