"""Choice of the place where the learners of a job run."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from jupyter_dlaas.runtime.fencing.callers import Callers
from jupyter_dlaas.runtime.hosts.agent_settings import AgentSettings
from jupyter_dlaas.runtime.hosts.learner_host import LearnerHost, LearnerOrder
from jupyter_dlaas.runtime.hosts.local_host import LocalHost
from jupyter_dlaas.runtime.hosts.remote_host import RemoteHost
from jupyter_dlaas.runtime.hosts.resource_limits import Limits
from jupyter_dlaas.runtime.link.connection import Endpoint
from jupyter_dlaas.runtime.link.transport import new_session_id
from jupyter_dlaas.runtime.spawn.spawner import Spawner
from jupyter_dlaas.wire.protocol import JobSpec

__all__ = ["agent_host", "own_host"]


def own_host(
    job: str, job_dir: Path, spec: JobSpec, spawner: Spawner, callers: Callers, oom_kills: Callable[[], int]
) -> LearnerHost:
    """Return the host of learners on this machine."""

    def spawn(order: LearnerOrder) -> int:
        return spawner.learner(order.member, order.module, order.arguments, order.environment)

    return LocalHost(
        job_dir,
        spawn,
        callers=callers,
        limits=Limits(job, spec),
        oom_kills=oom_kills,
        on_zygote=spawner.adopt_zygote,
    )


def agent_host(job: str, job_dir: Path, settings: AgentSettings, epoch: int, log: Callable[[str], None]) -> LearnerHost:
    """Return the host of learners beside agents. Raise OSError if its address cannot be used."""
    token = Path(settings.token_file).read_bytes()
    me = Endpoint(job=job, name="guardian", token=token, session=new_session_id(), epoch=settings.epoch or epoch)
    return RemoteHost(job_dir, me, settings.listeners(), log)
