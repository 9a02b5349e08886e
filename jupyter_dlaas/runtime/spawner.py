"""Starts the processes of one job, each in the fastest way that there is now; all ways keep the same contract."""

from __future__ import annotations

import socket
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final

from jupyter_dlaas.facts import MemberWanted
from jupyter_dlaas.runtime import launch
from jupyter_dlaas.runtime.launch import Order
from jupyter_dlaas.runtime.logs import LOG
from jupyter_dlaas.runtime.process import JOB_MARK, thread_count

__all__ = ["Spawner", "TakeParked"]

LEARNER: Final = "jupyter_dlaas.learner.runner"
STORE: Final = "jupyter_dlaas.runtime.store"
TakeParked = Callable[[Order], int | None]
"""Gives a learner that was forked ahead its order; None when there is none left."""


class Spawner:
    """For a guardian. `is_warm`: it was forked from a zygote, so that its own forks need not import anything again."""

    def __init__(
        self,
        job: str,
        job_dir: Path,
        environment: Mapping[str, str],
        *,
        may_change: bool,
        is_warm: bool,
        take_parked: TakeParked | None,
    ) -> None:
        self._job, self._job_dir, self._environment = job, job_dir, environment
        self._may_change, self._is_warm, self._take_parked = may_change, is_warm, take_parked

    def learner(
        self,
        members: Sequence[MemberWanted],
        rank: int,
        *,
        generation: int,
        store: tuple[str, int] | None,
        joins: bool,
    ) -> int:
        """Start one of the members and return its pid. Raises OSError where the system refuses."""
        member = members[rank].member
        folder = launch.learner_folder(self._job_dir, member)
        folder.mkdir(mode=0o700, exist_ok=True)
        (folder / "result.json").unlink(missing_ok=True)
        environment = launch.learner_environment(
            self._environment,
            job=self._job,
            job_dir=str(self._job_dir),
            generation=generation,
            members=members,
            rank=rank,
            store=store,
            package_dir=launch.package_folder(),
            may_change=self._may_change,
            joins=joins,
        )
        order = Order(
            module=LEARNER,
            arguments=(str(self._job_dir), str(member)),
            environment=environment,
            log=str(folder / LOG),
        )
        pid = self._take_parked(order) if self._take_parked is not None else None
        if pid is not None:
            return pid
        if self._can_fork():
            return launch.fork(lambda: launch.become(order))
        return launch.spawn(order)

    def store(self, listening: socket.socket) -> int:
        """Start the small process that hosts the gang's store on a socket that listens already; returns its pid."""
        environment = {**self._environment, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
        environment |= {"PYTHONPATH": launch.package_folder(), JOB_MARK: str(self._job_dir)}
        log, fd = str(self._job_dir / "guardian.log"), listening.fileno()

        def order(number: int) -> Order:
            arguments = (str(number), str(self._job_dir))
            return Order(module=STORE, arguments=arguments, environment=environment, log=log)

        if self._can_fork():
            return launch.fork(lambda: launch.become(order(fd), keep=(fd,)))
        return launch.spawn(order(3), passed=fd)

    def _can_fork(self) -> bool:
        """A process with a second thread must not fork: a lock held there would stay locked for ever."""
        return self._is_warm and thread_count() == 1
