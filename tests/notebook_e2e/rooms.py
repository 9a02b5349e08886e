"""Real parts for these tests: a pool's directory with its engine, kernels of this and other environments."""

from __future__ import annotations

import os
import signal
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from queue import Empty
from typing import Any

from jupyter_client.manager import KernelManager

from jupyter_dlaas.client.discovery import SocketEndpoint, engine_record
from jupyter_dlaas.client.http import Client
from jupyter_dlaas.runtime.zygote.start_guardian import stop_zygotes
from jupyter_dlaas.wire.protocol import MIME, JobView

PATIENCE_S = 90.0


def until(is_so: Callable[[], object], patience_s: float = PATIENCE_S) -> Any:
    """Wait until something is so; what it gave."""
    give_up_s = time.monotonic() + patience_s
    while not (found := is_so()):
        assert time.monotonic() < give_up_s, f"not so after {patience_s:g} s"
        time.sleep(0.02)
    return found


def environment(folder: Path) -> dict[str, str]:
    """Return the environment of a kernel or script that has its own pool and its own Jupyter folders."""
    left_out = ("JUPYTER", "JPY_", "DLAAS_", "COLAB_", "VSCODE_", "PYTEST_")
    kept = {  # one by one: pytest changes its own at any time, and this may run in a thread
        name: value
        for name in os.environ
        if not name.startswith(left_out) and (value := os.environ.get(name)) is not None
    }
    return {
        **kept,
        "JUPYTER_DLAAS_POOL_DIR": str(folder / "local"),
        "JUPYTER_DATA_DIR": str(folder / "data"),
        "JUPYTER_CONFIG_DIR": str(folder / "config"),
        "JUPYTER_RUNTIME_DIR": str(folder / "runtime"),
        "IPYTHONDIR": str(folder / "ipython"),
        "JUPYTER_DLAAS_WARM": "0",
        "PYDEVD_DISABLE_FILE_VALIDATION": "1",
    }


def processes_of(folder: Path) -> dict[int, str]:
    """Living processes of the jobs and the engine of a pool: its directory stands in their environment or command."""
    found = {}
    mark = str(folder / "local").encode()
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        with suppress(OSError):
            said = (entry / "environ").read_bytes().split(b"\0")
            command = (entry / "cmdline").read_bytes()
            if any(one.startswith(b"DLAAS_JOB_DIR=" + mark) for one in said) or mark in command:
                found[int(entry.name)] = command.replace(b"\0", b" ").decode(errors="replace").strip()
    return found


@dataclass
class Pool:
    """A pool of its own in a temporary folder; its engine starts with the first request."""

    folder: Path

    @property
    def directory(self) -> Path:
        return self.folder / "local"

    @property
    def client(self) -> Client:
        return Client(at=[SocketEndpoint(self.directory)])

    def job(self, name: str) -> JobView:
        return self.client.job(name)

    def until(self, name: str, *states: str) -> JobView:
        """Wait until a job is in one of these states."""
        view: JobView = until(lambda: v if (v := self.job(name)).state in states or v.state.is_final else None)
        assert view.state in states, f"{view.id} is {view.state}: {view.failure}"
        return view

    def close(self) -> None:
        """End all jobs and the engine; nothing of them is left."""
        client = self.client.without_start()
        if self.directory.exists() and "pid" in engine_record(self.directory):
            with suppress(Exception):
                for view in client.jobs():
                    if not view.state.is_final:
                        client.act(view.id, "cancel")
                until(lambda: all(view.state.is_final for view in client.jobs()), 30)
            engine = [pid for pid, said in processes_of(self.folder).items() if "dlaas_server.engine" in said]
            for pid in engine:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGTERM)
        stop_zygotes(self.directory / "zygotes")
        with suppress(AssertionError):
            until(lambda: not processes_of(self.folder), 20)
        left = processes_of(self.folder)
        for pid in left:  # so that a broken test leaves nothing behind either
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        assert not left, f"orphans: {left}"


@dataclass
class Outcome:
    """Outcome of one cell: its reply and its messages."""

    status: str = ""
    stdout: str = ""
    stderr: str = ""
    ename: str = ""
    evalue: str = ""
    traceback: list[str] = field(default_factory=list)
    displays: list[dict[str, Any]] = field(default_factory=list)
    result: dict[str, Any] | None = None
    messages: list[dict[str, Any]] = field(default_factory=list)

    @property
    def job(self) -> dict[str, Any]:
        """The job of the card that it showed."""
        found: dict[str, Any] = next(one["data"][MIME]["job"] for one in self.displays if MIME in one["data"])
        return found


class Kernel:
    """A real kernel, and what came from it."""

    def __init__(self, manager: KernelManager) -> None:
        self.manager = manager
        self.client = manager.blocking_client()
        self.updates: dict[str, dict[str, Any]] = {}
        self.client.start_channels()
        try:
            self.client.wait_for_ready(timeout=60)
        except RuntimeError:
            self.close()
            raise

    def run(
        self, code: str, *, timeout_s: float = PATIENCE_S, cell_id: str | None = None, fails: bool = False
    ) -> Outcome:
        """Run a cell and take all that it sends. `fails`: an error is what the test waits for."""
        outcome = self.wait_for(self.start(code, cell_id=cell_id), timeout_s)
        assert fails or outcome.status == "ok", "\n".join(outcome.traceback) + outcome.stderr
        return outcome

    def start(self, code: str, *, cell_id: str | None = None) -> str:
        """Send a cell without waiting for its reply."""
        content = {
            "code": code,
            "silent": False,
            "store_history": True,
            "user_expressions": {},
            "allow_stdin": False,
            "stop_on_error": False,
        }
        message = self.client.session.msg("execute_request", content, metadata={"cellId": cell_id} if cell_id else {})
        self.client.shell_channel.send(message)
        asked: str = message["header"]["msg_id"]
        return asked

    def wait_for(self, asked: str, timeout_s: float = PATIENCE_S, until_said: str | None = None) -> Outcome:
        """All that a cell sends until it is done, or until its output holds a text."""
        outcome = Outcome()
        give_up_s = time.monotonic() + timeout_s
        is_idle = False
        while not is_idle:
            message = self._next(give_up_s)
            kind, content = message["msg_type"], message["content"]
            if kind == "update_display_data":
                self.updates[content["transient"]["display_id"]] = content["data"]
            if message["parent_header"].get("msg_id") != asked:
                continue
            outcome.messages.append(message)
            if kind == "stream":
                setattr(outcome, content["name"], getattr(outcome, content["name"]) + content["text"])
                if until_said is not None and until_said in outcome.stdout:
                    return outcome
            elif kind == "display_data":
                outcome.displays.append(content)
            elif kind == "execute_result":
                outcome.result = content
            elif kind == "error":
                outcome.ename, outcome.evalue, outcome.traceback = (
                    content["ename"],
                    content["evalue"],
                    content["traceback"],
                )
            elif kind == "status":
                is_idle = content["execution_state"] == "idle"
        while outcome.status == "":
            reply = self.client.get_shell_msg(timeout=max(0.1, give_up_s - time.monotonic()))
            if reply["parent_header"].get("msg_id") == asked:
                outcome.status = reply["content"]["status"]
        return outcome

    def _next(self, give_up_s: float) -> dict[str, Any]:
        try:
            message: dict[str, Any] = self.client.get_iopub_msg(timeout=max(0.1, give_up_s - time.monotonic()))
        except Empty:
            raise AssertionError("the kernel said nothing more") from None
        return message

    def listen(self, is_so: Callable[[], object], patience_s: float = PATIENCE_S) -> None:
        """Take what comes by itself (updates of outputs) until something is so."""
        give_up_s = time.monotonic() + patience_s
        while not is_so():
            assert time.monotonic() < give_up_s, f"not so after {patience_s:g} s: {self.updates}"
            with suppress(Empty):
                message = self.client.get_iopub_msg(timeout=0.2)
                if message["msg_type"] == "update_display_data":
                    content = message["content"]
                    self.updates[content["transient"]["display_id"]] = content["data"]

    def value(self, expression: str) -> Any:
        """Return the value of an expression, by its text."""
        outcome = self.run(f"print(repr({expression}))")
        return eval(outcome.stdout)

    def interrupt(self) -> None:
        self.manager.interrupt_kernel()

    def close(self) -> None:
        self.client.stop_channels()
        self.manager.shutdown_kernel(now=True)


@contextmanager
def kernel_in(folder: Path, *, python: str = sys.executable, **more: str) -> Iterator[Kernel]:
    """Start a kernel of some Python, in its own working directory, with its own pool."""
    work = folder / "work"
    work.mkdir(exist_ok=True)
    # Over TCP, another process may take a port between its choice and its use.
    manager = KernelManager(transport="ipc", ip=str(folder / f"kernel-{uuid.uuid4().hex[:8]}"))
    assert manager.kernel_spec is not None
    manager.kernel_spec.argv = [python, "-m", "ipykernel_launcher", "-f", "{connection_file}"]
    manager.start_kernel(cwd=str(work), env={**environment(folder), **more})
    kernel = Kernel(manager)
    try:
        yield kernel
    finally:
        kernel.close()


DIRT = (
    "import json\njson.loads('{bad')",
    "import numpy\nnumpy.zeros((2, 3)) @ numpy.zeros((2, 3))",
    "%load_ext autoreload\n%autoreload 2",
    "%pdb on\n{}['no such key']",
    "{}['no such key']\n",
    "%pdb off\n%xmode Verbose",
    "def _deep(n):\n    return _deep(n - 1) if n else 1 < 'a'\n_deep(3)",
    (
        "%xmode Context\n"
        "import rich.traceback as _rich\n"
        "_shell = get_ipython(), get_ipython()._showtraceback, get_ipython().showtraceback\n"
        "_rich.install(show_locals=True)"
    ),
    "json.loads('[1, 2')",
    "_shell[0]._showtraceback, _shell[0].showtraceback = _shell[1:]",
    (
        "import io, pdb\n"
        "asked = io.StringIO('n\\np 1 < 2\\nc\\n')\n"
        "pdb.Pdb(stdin=asked, stdout=io.StringIO(), nosigint=True).runcall(json.loads, '[1]')"
    ),
    "%debug",
    "del _deep, _rich, _shell, asked, io, pdb, numpy, json",
)
"""Cells after which a kernel is as an hour of work leaves it: errors with frames of libraries, switches, debuggers."""


def make_dirty(kernel: Kernel) -> None:
    """Run what most sessions have behind them: failed and interrupted cells, %autoreload, %pdb, rich, a debugger."""
    for cell in DIRT:
        kernel.run(cell, fails=True)
    asked = kernel.start("print('busy', flush=True)\nwhile 1 < 2:\n    pass")
    kernel.wait_for(asked, until_said="busy")
    kernel.interrupt()
    assert kernel.wait_for(asked).ename == "KeyboardInterrupt"


def displays_of(kernel: Kernel, text: str) -> list[str]:
    """Return the last updates of outputs that contain a text."""
    return [data["text/plain"] for data in kernel.updates.values() if text in data["text/plain"]]
