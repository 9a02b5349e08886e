"""The peer jupyter-scheduler: a Jupyter server of its own, in an environment of its own, jobs posted by REST."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.bench.measuring import CACHE, Unmeasurable, milliseconds
from tests.whole.site import until

__all__ = ["Peer", "running"]

PACKAGES = ("jupyterlab>=4.4,<5", "jupyter_scheduler>=2.10", "ipykernel")
TOKEN = "bench"
KERNEL = "bench"


def python() -> Path:
    """Return the interpreter of the peer's environment, which is made on first use."""
    home = CACHE / "jupyter-scheduler"
    found = home / "bin" / "python"
    if not (home / "complete").exists():
        print(f"installing jupyter-scheduler into {home} (once) …", file=sys.stderr, flush=True)
        for command in (
            [sys.executable, "-m", "venv", str(home)],
            [str(found), "-m", "pip", "install", "-q", *PACKAGES],
        ):
            made = subprocess.run(command, capture_output=True, text=True, timeout=900)
            if made.returncode:
                raise Unmeasurable(f"jupyter-scheduler cannot be installed: {made.stderr[-200:]}")
        (home / "complete").touch()
    return found


@dataclass
class Peer:
    """A running server with the scheduler."""

    url: str
    root: Path
    count: int = 0
    environment: str = field(default="")

    def ask(self, method: str, path: str, body: object = None) -> Any:
        request = urllib.request.Request(
            self.url + path,
            method=method,
            data=None if body is None else json.dumps(body).encode(),
            headers={"Authorization": f"token {TOKEN}", "Content-Type": "application/json"},
        )
        with urllib.request.urlopen(request, timeout=30) as answer:
            return json.loads(answer.read() or b"null")

    def run(self, source: str) -> float:
        """One notebook with one cell, until the scheduler says COMPLETED; in milliseconds."""
        self.count += 1
        name = f"job-{self.count}.ipynb"
        cell: dict[str, Any] = {
            "cell_type": "code", "id": "c1", "metadata": {}, "execution_count": None, "outputs": [], "source": source,
        }  # fmt: skip
        kernel = {"name": KERNEL, "display_name": KERNEL, "language": "python"}
        notebook = {"nbformat": 4, "nbformat_minor": 5, "metadata": {"kernelspec": kernel}, "cells": [cell]}
        (self.root / name).write_text(json.dumps(notebook))
        if not self.environment:
            self.environment = str(self.ask("GET", "/scheduler/runtime_environments")[0]["name"])
        begin = time.monotonic_ns()
        job = self.ask(
            "POST",
            "/scheduler/jobs",
            {
                "input_uri": name,
                "name": name,
                "runtime_environment_name": self.environment,
                "output_formats": ["ipynb"],
                "parameters": {},
                "tags": [],
            },
        )["job_id"]

        def ended() -> str | None:
            state = str(self.ask("GET", f"/scheduler/jobs/{job}")["status"])
            return state if state in ("COMPLETED", "FAILED") else None  # it reads STOPPED until its process runs

        state = until(ended, "jupyter-scheduler ends its job", 120.0)
        if state != "COMPLETED":
            raise Unmeasurable(f"jupyter-scheduler's job is {state}")
        return milliseconds(begin, time.monotonic_ns())


@contextmanager
def running(folder: Path) -> Iterator[Peer]:
    """Run the server as long as it is needed. Its jobs run with this very Python, so that torch need not be copied."""
    interpreter = python()
    home = folder / "jupyter-scheduler"
    root, kernel = home / "work", home / "data" / "kernels" / KERNEL
    root.mkdir(parents=True)
    kernel.mkdir(parents=True)
    argv = [sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}"]
    (kernel / "kernel.json").write_text(json.dumps({"argv": argv, "display_name": KERNEL, "language": "python"}))
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("JPY_", "JUPYTER", "PYTHON", "VIRTUAL_ENV"))}
    with (home / "server.log").open("ab") as log:
        process = subprocess.Popen(
            [
                str(interpreter), "-m", "jupyterlab", "--no-browser", "--allow-root", "--ServerApp.port=0",
                "--ServerApp.ip=127.0.0.1", f"--IdentityProvider.token={TOKEN}", f"--ServerApp.root_dir={root}",
            ],
            env=kept
            | {
                "PATH": f"{interpreter.parent}{os.pathsep}{kept.get('PATH', '')}",
                "JUPYTER_CONFIG_DIR": str(home / "config"),
                "JUPYTER_DATA_DIR": str(home / "data"),
                "JUPYTER_RUNTIME_DIR": str(home / "runtime"),
                "IPYTHONDIR": str(home / "ipython"),
            },
            stdout=log,
            stderr=log,
            start_new_session=True,
        )  # fmt: skip
    try:
        record = home / "runtime" / f"jpserver-{process.pid}.json"
        until(lambda: record.exists() or process.poll() is not None, "jupyter-scheduler's server is up", 60.0)
        if process.poll() is not None:
            raise Unmeasurable(f"jupyter-scheduler's server ended: {(home / 'server.log').read_text()[-200:]}")
        peer = Peer(str(json.loads(record.read_text())["url"]).rstrip("/"), root)

        def answers() -> bool:
            try:
                peer.ask("GET", "/scheduler/runtime_environments")
            except OSError:
                return False
            return True

        until(answers, "jupyter-scheduler answers", 60.0)
        yield peer
    except (AssertionError, urllib.error.URLError) as error:
        raise Unmeasurable(f"jupyter-scheduler: {error}") from None
    finally:
        os.killpg(process.pid, signal.SIGTERM)
        process.wait(20)
