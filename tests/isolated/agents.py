"""Agents as processes of this machine, each with a private directory and a loopback address of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import jupyter_dlaas
from jupyter_dlaas.runtime.hosts import agent as agent_module

__all__ = ["start_agent"]


def start_agent(
    folder: Path,
    *,
    job: str,
    member: int,
    guardian: str,
    token: Path,
    address: str,
    prefix: Sequence[str] = (),
    user: int | None = None,
) -> subprocess.Popen[bytes]:
    """Start the agent of a member in a folder of its own, as the first process of its pod would be started.

    `prefix`: command that runs the agent in other surroundings. `user`: the uid that it runs with there.
    """
    (folder / "job/output").mkdir(mode=0o700, parents=True, exist_ok=True)
    if user is not None:
        for path in (folder, folder / "job", folder / "job/output"):
            os.chown(path, user, user)
    environment = {
        "PATH": os.environ["PATH"],
        "PYTHONPATH": str(Path(jupyter_dlaas.__file__).parents[1]),
        "HOME": str(folder),
        "DLAAS_AGENT_DIR": str(folder / "job"),
        "DLAAS_AGENT_MEMBER": str(member),
        "DLAAS_AGENT_JOB": job,
        "DLAAS_AGENT_GUARDIAN": guardian,
        "DLAAS_AGENT_TOKEN_FILE": str(token),
        "DLAAS_AGENT_ADDRESS": address,
    }
    command = [*prefix, sys.executable, "-P", "-m", agent_module.__name__]
    with (folder / "agent.log").open("ab") as log:
        return subprocess.Popen(command, env=environment, cwd="/", stdout=log, stderr=log)
