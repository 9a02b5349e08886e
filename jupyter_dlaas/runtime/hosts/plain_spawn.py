"""Start of a learner with the environment of the machine that it runs on."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

from jupyter_dlaas.jobdir.layout import learner_folder
from jupyter_dlaas.jobdir.log_index import LOG
from jupyter_dlaas.runtime.hosts.learner_host import LearnerOrder
from jupyter_dlaas.runtime.spawn import launch
from jupyter_dlaas.runtime.spawn.launch import Order

__all__ = ["environment_here", "plain_spawn"]

_OF_THE_AGENT: Final = re.compile(r"DLAAS_AGENT_.*|PYTHON(?!HOME$).*")


def plain_spawn(job_dir: Path, base: Mapping[str, str], executable: str | None = None) -> Callable[[LearnerOrder], int]:
    """Return a function that starts learners in a directory, with `base` below the order's own environment."""

    def spawn(order: LearnerOrder) -> int:
        folder = learner_folder(job_dir, order.member)
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        (folder / "result.json").unlink(missing_ok=True)
        environment = launch.host_environment({**base, **order.environment}, job_dir=str(job_dir), member=order.member)
        arguments = (str(job_dir), str(order.member), *order.arguments)
        return launch.spawn(
            Order(module=order.module, arguments=arguments, environment=environment, log=str(folder / LOG)),
            executable=executable,
        )

    return spawn


def environment_here(environment: Mapping[str, str], home: Path) -> dict[str, str]:
    """Return an agent's environment for its learner: without its own settings, with a user's name and a home.

    A container may run as a user without a name, for whom `getpass.getuser()` fails, and whose home is `/`.
    """
    found = {name: value for name, value in environment.items() if not _OF_THE_AGENT.fullmatch(name)}
    for name in ("USER", "LOGNAME"):
        found.setdefault(name, "dlaas")
    if not os.access(found.get("HOME") or "/", os.W_OK):
        home.mkdir(mode=0o700, exist_ok=True)
        found["HOME"] = str(home)
    return found
