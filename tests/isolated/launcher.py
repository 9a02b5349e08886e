"""Isolated jobs: a guardian and agents that share no file and no address, as on several machines or in pods.

Each process has a private directory and a loopback address of its own. Agents reach the guardian through a relay, which
can be cut. The launcher does what a pool does: it writes the wanted document, and starts an agent for each member.
"""

from __future__ import annotations

import json
import secrets
import selectors
import shutil
import socket
import subprocess
import threading
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from jupyter_dlaas.runtime.link.transport import Address
from jupyter_dlaas.runtime.system.process import kill_round
from jupyter_dlaas.runtime.zygote.start_guardian import reap
from tests.isolated.agents import start_agent
from tests.runtime.jobs import Job, make_job, until

__all__ = ["IsolatedJob", "Relay", "isolated_job"]

BYTES = 1 << 16


class Relay:
    """Network between agents and guardian. While it is cut, connections break and new ones are refused."""

    def __init__(self, where: tuple[str, int], target: tuple[str, int]) -> None:
        self._where, self._target = where, target
        self._lock = threading.Lock()
        self._pairs: list[tuple[socket.socket, socket.socket]] = []
        self._listener: socket.socket | None = None
        self.mend()

    def mend(self) -> None:
        """Accept connections again."""
        family = socket.AF_INET6 if ":" in self._where[0] else socket.AF_INET
        self._listener = socket.create_server(self._where, family=family)
        threading.Thread(target=self._accept, args=(self._listener,), daemon=True).start()

    def cut(self) -> None:
        """Break all connections."""
        with self._lock:
            if self._listener is not None:
                with suppress(OSError):
                    self._listener.shutdown(socket.SHUT_RDWR)
                self._listener.close()
                self._listener = None
            for pair in self._pairs:
                for end in pair:
                    with suppress(OSError):
                        end.shutdown(socket.SHUT_RDWR)
            self._pairs.clear()

    def _accept(self, listener: socket.socket) -> None:
        while True:
            try:
                near, _ = listener.accept()
            except OSError:  # cut
                return
            try:
                far = socket.create_connection(self._target)
            except OSError:
                near.close()
                continue
            with self._lock:
                if self._listener is not listener:
                    near.close()
                    far.close()
                    return
                self._pairs.append((near, far))
            threading.Thread(target=self._forward, args=(near, far), daemon=True).start()

    def _forward(self, near: socket.socket, far: socket.socket) -> None:
        with near, far, selectors.DefaultSelector() as ready, suppress(OSError):
            ready.register(near, selectors.EVENT_READ, far)
            ready.register(far, selectors.EVENT_READ, near)
            while True:
                for key, _ in ready.select():
                    data = key.fileobj.recv(BYTES)  # type: ignore[union-attr]
                    if not data:
                        return
                    key.data.sendall(data)


@dataclass
class IsolatedJob(Job):
    """Job whose learners run beside agents. Its directory is the guardian's only."""

    agents: dict[int, subprocess.Popen[bytes]] = field(default_factory=dict)
    relay: Relay = field(init=False)
    prefix: Sequence[str] = ()
    """Command that runs an agent in other surroundings."""
    user: int | None = None
    """Uid of the agents there."""
    network: str = ""
    """Prefix of all addresses; unset: a loopback network of this job."""

    def __post_init__(self) -> None:
        self.root = self.dir.parent
        self.network = self.network or f"127.{secrets.randbelow(250) + 2}.{secrets.randbelow(254) + 1}."
        family = socket.AF_INET6 if ":" in self.network else socket.AF_INET
        with socket.create_server((self.address(1), 0), family=family) as free:
            port = free.getsockname()[1]
        self._entrance = str(Address(host=self.address(2), port=port))
        self._token = self.root / "token"
        self._token.write_bytes(secrets.token_bytes(32))
        settings = {"listen": str(Address(host=self.address(1), port=port)), "token_file": str(self._token)}
        (self.dir / "agents.json").write_text(json.dumps(settings))
        self.relay = Relay((self.address(2), port), (self.address(1), port))

    def address(self, number: int) -> str:
        """Return an address of the job: 1 is the guardian's, 2 the relay's, 10 that of learner 0."""
        return f"{self.network}{number:x}" if ":" in self.network else f"{self.network}{number}"

    # -- what a pool does

    def wake(self) -> None:
        super().wake()
        for one in json.loads((self.dir / "wanted.json").read_text())["members"]:
            if one["member"] not in self.agents:
                self.start_agent(one["member"])

    def agent_dir(self, member: int) -> Path:
        return self.root / f"agent-{member}"

    def start_agent(self, member: int) -> None:
        self.agents[member] = start_agent(
            self.agent_dir(member),
            job="test-1",
            member=member,
            guardian=self._entrance,
            token=self._token,
            address=self.address(10 + member),
            prefix=self.prefix,
            user=self.user,
        )

    def kill_agent(self, member: int) -> None:
        """Kill an agent only: its learner trains on until another agent replaces it."""
        self.agents[member].kill()
        self.agents[member].wait()

    def lose_machine(self, member: int) -> None:
        """Let a machine disappear with all on it, and report it as a pool does."""
        self.kill_agent(member)
        _sweep(self.agent_dir(member) / "job")
        shutil.rmtree(self.agent_dir(member))
        (self.dir / "lost.json").write_text(json.dumps({"members": {str(member): "its machine is gone"}}))
        self.wake()

    # -- what is seen

    def hurry(self) -> None:
        """Let all learners come to the end of their program."""
        for member in self.agents:
            if self.agent_dir(member).exists():
                (self.agent_dir(member) / "job/output/hurry").touch()

    def lines(self, name: str) -> list[str]:
        """Lines of a file of a learner's output, from its machine or as the guardian has them."""
        for folder in (*self.root.glob("agent-*/job"), self.dir):
            path = folder / "output" / name
            if path.exists():
                return path.read_text().splitlines()
        return []

    def metrics(self) -> list[int]:
        """Return the steps of the job's metrics, without those that a change has rewound."""
        path, steps = self.dir / "metrics.jsonl", list[int]()
        for line in path.read_text().splitlines() if path.exists() else ():
            record = json.loads(line)
            if "rewind" in record:
                steps = [step for step in steps if step <= record["rewind"]]
            else:
                steps.append(record["step"])
        return steps

    def report(self) -> str:
        logs = [path.read_text(errors="replace")[-3000:] for path in sorted(self.root.glob("agent-*/agent.log"))]
        logs += [
            path.read_text(errors="replace")[-3000:] for path in sorted(self.root.glob("agent-*/job/*/stdout.log"))
        ]
        return "\n".join([super().report(), *logs])

    def close(self) -> None:
        """End all processes."""
        for process in self.agents.values():
            process.kill()
            process.wait()
        self.relay.cut()
        for folder in (self.dir, *(self.agent_dir(member) / "job" for member in self.agents)):
            _sweep(folder)
        reap()


def isolated_job(
    root: Path, source: str, *, prefix: Sequence[str] = (), user: int | None = None, network: str = "", **more: Any
) -> IsolatedJob:
    """Make an isolated job."""
    more.setdefault("directory", None)
    made = make_job(root / "guardian", source, **more)
    known = {one.name: getattr(made, one.name) for one in fields(made)}
    return IsolatedJob(**known, prefix=prefix, user=user, network=network)


def _sweep(folder: Path) -> None:
    until(lambda: not kill_round(str(folder)), f"the end of all processes of {folder}")
