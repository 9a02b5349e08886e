"""Pools with a fake engine (fake_engine.py), and real Jupyter servers before them."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from jupyter_dlaas.client import discovery
from jupyter_dlaas.client.discovery import ServerEndpoint, SocketEndpoint
from jupyter_dlaas.client.http import Client

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
WIRE = HERE.parent / "wire"
TOKEN = "a-token-of-the-tests"
BASE = "/user/mia/"


@dataclass
class FakePool:
    """A pool's directory whose engine is the fake."""

    folder: Path

    @property
    def fake(self) -> Path:
        return self.folder / "fake"

    @property
    def endpoint(self) -> SocketEndpoint:
        return SocketEndpoint(self.folder)

    @property
    def client(self) -> Client:
        return Client(at=[self.endpoint])

    def pid(self) -> int:
        return int(discovery.engine_record(self.folder)["pid"])

    def kill(self) -> int:
        """kill -9 of the engine; returns when it is gone."""
        pid = self.pid()
        os.kill(pid, signal.SIGKILL)
        until(lambda: is_gone(pid))
        return pid

    def set_view(self, **changes: Any) -> None:
        path = self.fake / "view.json"
        found = json.loads(path.read_text()) | changes
        found["row"] += 1
        partial = self.fake / "view.partial"
        partial.write_text(json.dumps(found))
        partial.replace(path)

    def write_log(self, text: str, member: int = 0) -> None:
        with (self.fake / f"log-{member}").open("a") as file:
            file.write(text)

    def asked(self) -> list[dict[str, Any]]:
        path = self.fake / "asked.jsonl"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def is_gone(pid: int) -> bool:
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return True
    return stat.rpartition(")")[2].split()[0] == "Z"


def until(holds: Callable[[], bool], seconds: float = 20.0) -> None:
    """Wait for something of another process, with a deadline."""
    deadline = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < deadline, "it did not come to hold"
        time.sleep(0.01)


def fake_command(endpoint: SocketEndpoint) -> list[str]:
    return [sys.executable, str(HERE / "fake_engine.py"), "--pool-dir", str(endpoint.directory)]


def make_pool(folder: Path) -> FakePool:
    made = FakePool(folder)
    made.fake.mkdir(parents=True)
    view = json.loads((WIRE / "job_processing.json").read_text())
    (made.folder / "config.toml").touch()
    (made.fake / "view.json").write_text(json.dumps(view | {"id": "fake-1", "name": "fake", "number": 1, "row": 5}))
    (made.fake / "pool.json").write_bytes((WIRE / "pool.json").read_bytes())
    return made


def end(made: FakePool) -> None:
    record = discovery.engine_record(made.folder)
    if record and not is_gone(int(record["pid"])):
        made.kill()


@pytest.fixture
def pool(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakePool]:
    """Create a pool without an engine. The next request starts the fake one."""
    monkeypatch.setattr(discovery, "engine_command", fake_command)
    for name in ("JPY_PARENT_PID", "JUPYTER_DLAAS_POOL", "JUPYTER_DLAAS_POOL_DIR"):
        monkeypatch.delenv(name, raising=False)
    made = make_pool(tmp_path / "pool")
    monkeypatch.setenv("JUPYTER_DLAAS_POOL", str(made.folder))
    yield made
    end(made)


@dataclass
class Server:
    """A real Jupyter server with the extension, before a pool with the fake engine."""

    process: subprocess.Popen[bytes]
    url: str
    endpoint: ServerEndpoint
    runtime: Path
    pool: FakePool

    @property
    def client(self) -> Client:
        return Client(at=[self.endpoint])


def start_server(
    where: Path, made: FakePool, *options: str, has_fake: bool = True, config_lines: str = "", **variables: str
) -> Server:
    """Start a real Jupyter server with the extension. It starts the fake engine, or the real one."""
    config, runtime = where / "config", where / "runtime"
    config.mkdir(parents=True)
    fake = f"[sys.executable, {str(HERE / 'fake_engine.py')!r}, '--pool-dir', str(endpoint.directory)]"
    (config / "jupyter_server_config.py").write_text(
        "import sys\n"
        "from jupyter_dlaas.client import discovery\n"
        + (f"discovery.engine_command = lambda endpoint: {fake}\n" if has_fake else "")
        + "c.ServerApp.jpserver_extensions = {'dlaas_server': True}\n"
        + config_lines
    )
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("JPY_", "JUPYTER"))}
    (where / "work").mkdir()
    log = (where / "server.log").open("wb")
    process = subprocess.Popen(
        [
            *(sys.executable, "-m", "jupyter_server", "--no-browser", "--allow-root", "--port=0", "--ip=127.0.0.1"),
            *(f"--ServerApp.base_url={BASE}", f"--ServerApp.root_dir={where / 'work'}", *options),
        ],
        env={
            **kept,
            "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "server")]),
            "JUPYTER_CONFIG_DIR": str(config),
            "JUPYTER_CONFIG_PATH": str(config),
            "JUPYTER_DATA_DIR": str(where / "data"),
            "JUPYTER_RUNTIME_DIR": str(runtime),
            "JUPYTER_DLAAS_POOL": str(made.folder),
            "JUPYTER_TOKEN": TOKEN,
            "HOME": str(where),
            **variables,
        },
        stdout=log,
        stderr=subprocess.STDOUT,
        cwd=where,
    )
    log.close()
    record = runtime / f"jpserver-{process.pid}.json"
    try:
        # the server makes the file first and writes it then, in one piece
        until(lambda: (record.exists() and record.stat().st_size > 0) or process.poll() is not None, 90)
        assert process.poll() is None, (where / "server.log").read_text()
        said = json.loads(record.read_text())
        until(lambda: is_listening(said["port"]), 60)
    except BaseException:
        process.kill()
        process.wait()
        raise
    endpoint = ServerEndpoint("127.0.0.1", said["port"], BASE, variables.get("JUPYTER_TOKEN", TOKEN))
    return Server(process, f"http://127.0.0.1:{said['port']}{BASE}", endpoint, runtime, made)


def is_listening(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), 1).close()
    except OSError:
        return False
    return True


def stop_server(server: Server) -> None:
    server.process.terminate()
    try:
        server.process.wait(20)
    except subprocess.TimeoutExpired:
        server.process.kill()
        server.process.wait(20)


@pytest.fixture(scope="session")
def shared_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """One server for all tests that leave it as it is."""
    where = tmp_path_factory.mktemp("server")
    made = make_pool(where / "pool")
    server = start_server(where, made)
    yield server
    stop_server(server)
    end(made)


@pytest.fixture
def server(shared_server: Server) -> Server:
    """Return the shared server, with its fake job in its first state."""
    view = json.loads((WIRE / "job_processing.json").read_text())
    path = shared_server.pool.fake / "view.json"
    path.write_text(json.dumps(view | {"id": "fake-1", "name": "fake", "number": 1, "row": 5}))
    (shared_server.pool.fake / "log-0").write_text("")
    (shared_server.pool.fake / "asked.jsonl").unlink(missing_ok=True)
    return shared_server
