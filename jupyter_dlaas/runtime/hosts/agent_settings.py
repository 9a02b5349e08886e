"""Settings of a guardian whose learners run beside agents (`agents.json`), and members whose hosts are gone."""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from jupyter_dlaas.jobdir.atomic_files import read_json
from jupyter_dlaas.runtime.link.transport import Address, listen, listen_on_all_families
from jupyter_dlaas.wire.codec import Invalid, decode
from jupyter_dlaas.wire.protocol import Cause, Failure

__all__ = ["AGENTS", "LOST", "NOT_COLLECTED", "AgentSettings", "read_ending", "read_lost", "read_settings"]

AGENTS: Final = "agents.json"
LOST: Final = "lost.json"
NOT_COLLECTED: Final = 42
"""Exit code of an agent that ends because no guardian answered."""
ANY_HOST: Final = "*"
"""Host in `listen` that stands for all addresses of all families."""
_ADDRESS: Final = "DLAAS_GUARDIAN_ADDRESS"


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentSettings:
    """Content of `agents.json` (see server/LINK.md)."""

    listen: str
    token_file: str
    address: str = ""
    epoch: int = 0

    @property
    def listen_address(self) -> Address:
        """Address at which agents are expected. Raise ValueError."""
        return Address.parse(self.listen)

    def listeners(self) -> list[socket.socket]:
        """Return sockets on which agents are expected. Raise OSError."""
        address = self.listen_address
        return listen_on_all_families(address.port) if address.host == ANY_HOST else listen(address)

    @property
    def own_address(self) -> str:
        """Address at which learners reach the rendezvous store. Raise ValueError if it is not stated anywhere."""
        address = self.listen_address
        found = os.environ.get(_ADDRESS) or self.address or ("" if address.host == ANY_HOST else address.host)
        if not found:
            raise ValueError(
                f"{AGENTS}: `address` is missing; state the address at which learners reach the guardian, "
                f"or set {_ADDRESS}"
            )
        return found


def read_settings(job_dir: Path) -> AgentSettings | None:
    """Return the settings of a job whose learners run beside agents; None if it has none. Raise ValueError."""
    if not (job_dir / AGENTS).exists():
        return None
    try:
        settings = decode(AgentSettings, read_json(job_dir / AGENTS), unknown="ignore")
    except Invalid as error:
        raise ValueError(f"{AGENTS} is damaged: {error}") from error
    if not settings.own_address or not Path(settings.token_file).is_file():
        raise ValueError(f"{AGENTS}: the token file {settings.token_file} does not exist")
    return settings


def read_lost(job_dir: Path) -> Mapping[int, Failure]:
    """Return the members whose hosts are gone for good, each with the failure that this is for its learner."""
    return _failures(job_dir, "members")


def read_ending(job_dir: Path) -> Mapping[int, Failure]:
    """Return the members whose hosts are being ended by others, each with the reason for its learner's end."""
    return _failures(job_dir, "ending")


def _failures(job_dir: Path, key: str) -> dict[int, Failure]:
    members = (read_json(job_dir / LOST) or {}).get(key)
    if not isinstance(members, dict):
        return {}
    return {int(member): _lost(about) for member, about in members.items() if str(member).isdigit()}


def _lost(about: object) -> Failure:
    try:
        return decode(Failure, about, unknown="ignore")
    except Invalid:  # only a reason in words
        advice = "The job continues on another machine."
        return Failure(cause=Cause.HARDWARE, code="host_lost", what=str(about), advice=advice)
