"""Orders to start the learners of one job, and what its program says about them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from jupyter_dlaas.runtime.hosts.learner_host import LearnerOrder
from jupyter_dlaas.runtime.spawn import launch
from jupyter_dlaas.runtime.spawn.program_analysis import expects_run
from jupyter_dlaas.runtime.spawn.spawner import LEARNER
from jupyter_dlaas.wire.journal import MemberWanted
from jupyter_dlaas.wire.protocol import JobSpec

__all__ = ["LearnerOrders"]


class LearnerOrders:
    """Orders to start learners."""

    def __init__(self, job: str, spec: JobSpec, base: Mapping[str, str], source: str) -> None:
        self._job, self._base, self._python = job, base, spec.python
        self.is_torch = launch.torch_is_used(spec.framework, source)
        self.expects_run = expects_run(source)
        """False for code that never calls run(): it trains as soon as it is ready. Other code reports its begin."""
        self.may_change = launch.may_change(spec, source)

    def order(
        self,
        members: Sequence[MemberWanted],
        rank: int,
        *,
        generation: int,
        store: tuple[str, int] | None,
        joins: bool,
        files: tuple[str, ...] = (),
    ) -> LearnerOrder:
        """Return the order to start one of the members."""
        environment = launch.learner_environment(
            self._base,
            job=self._job,
            generation=generation,
            members=members,
            rank=rank,
            store=store,
            may_change=self.may_change,
            joins=joins,
        )
        wanted = members[rank]
        return LearnerOrder(
            member=wanted.member,
            module=LEARNER,
            environment=environment,
            files=files,
            devices=wanted.devices,
            gang=() if joins else tuple(one.member for one in members),
            python=self._python,
        )
