"""A pool seen from outside: raw HTTP on its socket, the files of its jobs, and /proc.

Nothing here uses the product's client or its readers of files, so that a fault of theirs cannot hide one of the engine.
"""

from __future__ import annotations

import http.client
import json
import os
import secrets
import signal
import socket
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from tests.whole.site import Site, is_gone, until

__all__ = ["API_ERRORS", "FINAL", "ChaosPool"]

API_ERRORS: Final = (OSError, http.client.HTTPException)
FINAL: Final = ("COMPLETED", "FAILED", "CANCELLED")
_OVERLOADED: Final = (502, 503, 504)


class _UnixConnection(http.client.HTTPConnection):
    def __init__(self, path: Path, timeout_s: float) -> None:
        super().__init__("localhost", timeout=timeout_s)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(self.timeout)
        self.sock.connect(str(self._path))


@dataclass
class ChaosPool:
    """One pool with its engine, started again as a patient client would, and what can be read of it."""

    site: Site
    retries: int = 1000
    _started: subprocess.Popen[bytes] | None = None

    # -- API -----------------------------------------------------------------------------------------------------------

    def request(self, method: str, path: str, body: Any = None, timeout_s: float = 15.0) -> tuple[int, Any]:
        """Return status and decoded body of one request. Raises OSError or HTTPException without an answer."""
        connection = _UnixConnection(self.site.pool / "engine.sock", timeout_s)
        try:
            raw = None if body is None else json.dumps(body).encode()
            connection.request(method, path, raw, {"Content-Type": "application/json"})
            answer = connection.getresponse()
            data = answer.read()
        finally:
            connection.close()
        return answer.status, json.loads(data)

    def patient(self, method: str, path: str, body: Any = None, deadline_s: float = 60.0) -> Any:
        """Repeat a request until an engine answers it, and start an engine when there is none."""
        end = time.monotonic() + deadline_s
        while True:
            try:
                status, answer = self.request(method, path, body)
            except API_ERRORS:
                status, answer = 503, None
            if status not in _OVERLOADED:
                assert status < 400, f"{method} {path}: {status} {answer}"
                return answer
            assert time.monotonic() < end, f"no engine answered {method} {path} for {deadline_s:g} s"
            if self.engine_pid() is None and (self._started is None or self._started.poll() is not None):
                self.start_engine()
            time.sleep(0.1)

    def start_engine(self) -> None:
        """Start one more engine; it ends by itself where one holds the pool."""
        with (self.site.pool / "engine.log").open("ab") as log:
            self._started = subprocess.Popen(
                [sys.executable, "-m", "dlaas_server.engine", "--pool-dir", str(self.site.pool)],
                env=self.site.environment(), cwd=self.site.pool, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                start_new_session=True,
            )  # fmt: skip

    def submit(self, source: str, name: str, learners: tuple[int, int], **spec: Any) -> str:
        body = {
            "key": secrets.token_hex(8),
            "source": source,
            "environment": {k: v for k, v in self.site.environment().items() if k in ("PATH", "HOME", "LANG")},
            "spec": {
                "name": name, "interpreter": sys.executable, "directory": str(self.site.work), "retries": self.retries,
                "learners_min": learners[0], "learners_max": learners[1], **spec,
            },
        }  # fmt: skip
        return str(self.patient("POST", "/dlaas/jobs", body)["id"])

    def view(self, job: str) -> dict[str, Any]:
        found: dict[str, Any] = self.patient("GET", f"/dlaas/jobs/{job}")
        return found

    def holders(self) -> dict[str, str]:
        """Device -> the job that holds it, by the API."""
        nodes = self.patient("GET", "/dlaas/pool")["nodes"]
        return {f"{node['name']}/{one['id']}": one["job"] for node in nodes for one in node["devices"] if one["job"]}

    # -- files ---------------------------------------------------------------------------------------------------------

    def folder(self, job: str) -> Path:
        return self.site.pool / "jobs" / job

    def status(self, job: str) -> dict[str, Any]:
        with suppress(OSError, ValueError):
            found: dict[str, Any] = json.loads((self.folder(job) / "status.json").read_text())
            return found
        return {}

    def journal(self, job: str) -> list[dict[str, Any]]:
        """Return the facts of a job; a line that is cut off at the end is not one yet."""
        lines = (self.folder(job) / "journal.jsonl").read_bytes().split(b"\n")[:-1]
        return [json.loads(line) for line in lines if line.strip()]

    def log(self, job: str, member: int) -> list[str]:
        with suppress(OSError):
            return (self.folder(job) / f"learner-{member}" / "stdout.log").read_text(errors="replace").splitlines()
        return []

    def members(self, job: str) -> list[int]:
        """Members that ever existed, oldest first."""
        return sorted(int(one.name.partition("-")[2]) for one in self.folder(job).glob("learner-*"))

    # -- processes -----------------------------------------------------------------------------------------------------

    def engine_pid(self) -> int | None:
        with suppress(OSError, ValueError, KeyError):
            pid = int(json.loads((self.site.pool / "engine.json").read_text())["pid"])
            return None if is_gone(pid) else pid
        return None

    def guardian_pid(self, job: str) -> int | None:
        pid = self.status(job).get("pid")
        return None if pid is None or is_gone(pid) else int(pid)

    def learner_pids(self, job: str) -> list[int]:
        pids = [int(one["pid"]) for one in self.status(job).get("learners", {}).values()]
        return [pid for pid in pids if not is_gone(pid)]

    def zygote_pids(self) -> list[int]:
        """Zygotes of this pool, by their command lines."""
        found = []
        for process in Path("/proc").iterdir():
            if process.name.isdigit():
                with suppress(OSError):
                    command = (process / "cmdline").read_bytes()
                    if b"runtime.zygote" in command and str(self.site.pool).encode() in command:
                        found.append(int(process.name))
        return [pid for pid in found if not is_gone(pid)]

    def close(self) -> None:
        self.site.close()


def stop(pid: int, seconds: float) -> None:
    """SIGSTOP, and SIGCONT some time later."""
    os.kill(pid, signal.SIGSTOP)
    time.sleep(seconds)
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGCONT)


def wait_for_state(pool: ChaosPool, job: str, states: tuple[str, ...], deadline_s: float) -> dict[str, Any]:
    """Wait until a job is in one of the states; its view."""

    def found() -> dict[str, Any] | None:
        view = pool.view(job)
        return view if view["state"] in states else None

    view: dict[str, Any] = until(found, f"{job} is in one of {states}", deadline_s)
    return view
