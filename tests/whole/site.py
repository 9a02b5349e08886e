"""The whole product in a folder of its own: pool, engine, Jupyter server, kernels. Real processes, real `kill -9`."""

from __future__ import annotations

import http.client
import json
import os
import shutil
import signal
import subprocess
import sys
import time
import urllib.parse
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from jupyter_dlaas.api.jobs import Job, submit
from jupyter_dlaas.client import discovery
from jupyter_dlaas.client.discovery import ServerEndpoint, SocketEndpoint
from jupyter_dlaas.client.http import Client
from jupyter_dlaas.runtime.system.process import identity, stat_of
from jupyter_dlaas.runtime.zygote.start_guardian import stop_zygotes

TOKEN = "the-token-of-this-test"
DEADLINE_S = 60.0


def until(holds: Callable[[], Any], what: str, deadline_s: float = DEADLINE_S) -> Any:
    """Wait for what other processes do; the first true answer."""
    end = time.monotonic() + deadline_s
    while not (answer := holds()):
        assert time.monotonic() < end, f"not within {deadline_s:g} s: {what}"
        time.sleep(0.05)
    return answer


def is_gone(pid: int) -> bool:
    stat = stat_of(pid)
    return stat is None or stat.is_dead


def kill(pid: int) -> None:
    """`kill -9`, and wait until it is gone."""
    os.kill(pid, signal.SIGKILL)
    until(lambda: is_gone(pid), f"process {pid} is gone")


@dataclass
class Site:
    """One user's Jupyter folders, one pool. Everything it started is ended by `close`."""

    folder: Path
    slots: int = 2
    nodes: int = 1
    """With more than one, each has so many slots, and the pool says that they are nodes n1, n2 …"""
    zygotes_stay: bool = False
    """For the next site in this folder, which finds them by its path; whoever made the folder ends them."""
    servers: list[subprocess.Popen[bytes]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.pool.mkdir(parents=True, exist_ok=True)
        self.work.mkdir()
        config = f'[pool]\ndevices = "cpus"\ncpu_slots = {self.slots}\n'
        for number in range(1, self.nodes + 1) if self.nodes > 1 else ():
            config += f'[[nodes]]\nname = "n{number}"\ncpus = 4\nmemory_gib = 16\nslots = {self.slots}\n'
        (self.pool / "config.toml").write_text(config)
        page = self.folder / "config" / "labconfig"
        page.mkdir(parents=True)
        (page / "page_config.json").write_text(
            json.dumps({"disabledExtensions": {"@jupyterlab/apputils-extension:announcements": True}})
        )

    @property
    def pool(self) -> Path:
        return self.folder / "data" / "dlaas" / "local"

    @property
    def work(self) -> Path:
        return self.folder / "work"

    @property
    def runtime(self) -> Path:
        return self.folder / "runtime"

    def environment(self, **more: str) -> dict[str, str]:
        kept = {k: v for k, v in os.environ.items() if not k.startswith(("JPY_", "JUPYTER"))}
        return kept | {
            "JUPYTER_CONFIG_DIR": str(self.folder / "config"),
            "JUPYTER_DATA_DIR": str(self.folder / "data"),
            "JUPYTER_RUNTIME_DIR": str(self.runtime),
            "IPYTHONDIR": str(self.folder / "ipython"),
            "JUPYTER_DLAAS_WARM": "1",
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
            **more,
        }

    def terminal(self, *command: str) -> str:
        """Return the output of a command in a terminal of this user. It must succeed."""
        variables = self.environment()
        program = shutil.which(command[0], path=variables["PATH"]) or command[0]
        done = subprocess.run(
            [program, *command[1:]],
            env=variables,
            cwd=self.work,
            capture_output=True,
            text=True,
            timeout=DEADLINE_S,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    # -- the engine's socket ------------------------------------------------------------------------------------------

    @property
    def client(self) -> Client:
        return Client(at=[SocketEndpoint(self.pool)])

    def submit(self, source: str, **options: Any) -> Job:
        client = options.pop("client", None) or self.client
        return submit(source, client=client, directory=str(self.work), **options)

    def job(self, name: str) -> Job:
        return Job(name, self.client)

    def engine_pid(self) -> int:
        pid = int(discovery.engine_record(self.pool)["pid"])
        assert not is_gone(pid), "the engine lives"
        return pid

    def learners(self, job: Job | str) -> dict[int, int]:
        """Member -> pid of the learners that live."""
        status = self.pool / "jobs" / (job if isinstance(job, str) else job.id) / "status.json"
        if not status.exists():
            return {}
        found = json.loads(status.read_text())["learners"]
        return {int(m): p["pid"] for m, p in found.items() if not is_gone(p["pid"])}

    def guardian_pid(self, job: Job | str) -> int:
        status = self.pool / "jobs" / (job if isinstance(job, str) else job.id) / "status.json"
        return int(json.loads(status.read_text())["pid"])

    def engines(self) -> list[int]:
        """Living engines of this pool."""
        found, command = [], f"dlaas_server.engine\0--pool-dir\0{self.pool}\0".encode()
        for process in Path("/proc").iterdir():
            with suppress(OSError):
                if process.name.isdigit() and command in (process / "cmdline").read_bytes():
                    found.append(int(process.name))
        return found

    def orphans(self) -> list[str]:
        """Command lines of living processes of this pool's jobs."""
        mark = f"DLAAS_JOB_DIR={self.pool}".encode()
        found = []
        for process in Path("/proc").iterdir():
            if not process.name.isdigit():
                continue
            try:
                is_ours = mark in (process / "environ").read_bytes()
                command = (process / "cmdline").read_bytes().replace(b"\0", b" ").decode()
            except OSError:
                continue
            if is_ours and not is_gone(int(process.name)):
                found.append(f"{process.name}: {command}")
        return found

    # -- Jupyter server -- ---------------------------------------------------------------------------------------------

    def serve(
        self,
        *options: str,
        program: str = "jupyterlab",
        token: str = TOKEN,
        port: int = 0,
        deadline_s: float = DEADLINE_S,
    ) -> Server:
        """Start a real Jupyter server with the extension, and wait until it answers."""
        known = {p.name for p in self.runtime.glob("jpserver-*.json")} if self.runtime.exists() else set()
        with (self.folder / "server.log").open("ab") as log:
            process = subprocess.Popen(
                [
                    sys.executable, "-m", program, "--no-browser", "--allow-root", f"--ServerApp.port={port}",
                    "--ServerApp.ip=127.0.0.1", f"--IdentityProvider.token={token}",
                    f"--ServerApp.root_dir={self.work}", "--ServerApp.open_browser=False", *options,
                ],
                env=self.environment(),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )  # fmt: skip
        self.servers.append(process)

        def record() -> dict[str, Any] | None:
            assert process.poll() is None, (self.folder / "server.log").read_text()[-3000:]
            for path in self.runtime.glob(f"jpserver-{process.pid}.json"):
                text = path.read_text()
                if path.name not in known and text.endswith("}"):  # else it is being written
                    return dict(json.loads(text))
            return None

        found = until(record, f"the Jupyter server is up ({self.folder}/server.log)", deadline_s)
        server = Server(self, process, found["url"], token)
        until(server.answers, "the Jupyter server answers")
        return server

    def close(self) -> None:
        """End whatever is left, hard."""
        for server in self.servers:
            if server.poll() is None:
                os.killpg(server.pid, signal.SIGKILL)
            server.wait()
        (self.pool / discovery.SOCKET).unlink(
            missing_ok=True
        )  # as an engine that ends: the watchdog starts no other one
        record = discovery.engine_record(self.pool)
        if record and not is_gone(int(record["pid"])):
            kill(int(record["pid"]))
        if not self.zygotes_stay:
            stop_zygotes(self.pool / "zygotes")
        until(self._kill_orphans, "nothing of the pool lives")
        for pid in self.engines():  # one that the watchdog had just started
            with suppress(ProcessLookupError):
                kill(pid)

    def _kill_orphans(self) -> bool:
        """Kill all processes of the pool's jobs; return whether there were none. A zygote may still start one."""
        orphans = self.orphans()
        for line in orphans:
            process = identity(int(line.split(":")[0]))
            if process is not None:
                with suppress(ProcessLookupError):
                    os.kill(process.pid, signal.SIGKILL)
        return not orphans

    def move_to(self, folder: Path) -> None:
        """Make room for the next site: all but the zygotes, and the package that they have loaded, goes elsewhere."""
        aside = folder / "data" / "dlaas" / "local"
        aside.mkdir(parents=True)
        for path in [*self.folder.iterdir(), *(self.folder / "data").iterdir(), *self.pool.iterdir()]:
            if path not in (self.folder / "data", self.pool.parent, self.pool / "zygotes", self.pool / "runtime"):
                path.rename(folder / path.relative_to(self.folder))


@contextmanager
def standing(ground: Path, name: str, aside: Path, slots: int = 2, nodes: int = 1) -> Iterator[Site]:
    """Yield a site that finds the zygotes of an earlier one of its name. Its remains are moved `aside`."""
    made = Site(ground / name, slots, nodes, zygotes_stay=True)
    try:
        with pytest.MonkeyPatch.context() as environment:
            environment.setenv("JUPYTER_DLAAS_WARM", "1")  # for an engine that the test process starts
            yield made
    finally:
        made.close()
        made.move_to(aside / name)


@dataclass
class Server:
    """A running Jupyter server."""

    site: Site
    process: subprocess.Popen[bytes]
    url: str
    token: str

    @property
    def client(self) -> Client:
        where = urllib.parse.urlsplit(self.url)
        return Client(at=[ServerEndpoint("127.0.0.1", where.port or 80, where.path, self.token)])

    @property
    def port(self) -> int:
        return urllib.parse.urlsplit(self.url).port or 80

    def forget_token(self) -> None:
        """Take the token out of the server's runtime record, as under JupyterHub."""
        path = self.site.runtime / f"jpserver-{self.process.pid}.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | {"token": ""}))

    def answers(self) -> bool:
        where = urllib.parse.urlsplit(self.url)
        connection = http.client.HTTPConnection(where.hostname or "", where.port or 80, timeout=5)
        try:
            connection.request("GET", f"{where.path}api/status?token={self.token}")
            return connection.getresponse().status == 200
        except OSError:
            return False
        finally:
            connection.close()

    def kill(self) -> None:
        """`kill -9` of the server alone; its kernels continue for a while."""
        self.process.kill()
        self.process.wait()
