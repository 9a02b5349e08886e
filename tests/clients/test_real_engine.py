"""Clients of a real engine: real jobs, and each process killed in the middle."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dlaas_server.rest.routes import ROUTES, Endpoint
from jupyter_dlaas.api import jobs, submission
from jupyter_dlaas.cli import main
from jupyter_dlaas.client import discovery, engine_control
from jupyter_dlaas.client.discovery import SocketEndpoint
from jupyter_dlaas.client.follow import LogLines
from jupyter_dlaas.client.http import Client, _Connection
from jupyter_dlaas.wire.protocol import JobSpec
from tests.clients.conftest import FakePool, Server, is_gone, start_server, stop_server, until
from tests.clients.test_server import PLAIN, ask, example

LINES = 150
SLOW = f"""
import time
print("begin", flush=True)
for n in range({LINES}):
    print("line", n, flush=True)
    time.sleep(0.02)
history = list(range(3))
"""

BLOCK = (
    "signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals()); signal.signal(signal.SIGCHLD, signal.SIG_IGN)"
)


@pytest.fixture
def real(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Return the directory of a pool without an engine yet."""
    for name in ("JPY_PARENT_PID", "JUPYTER_DLAAS_POOL", "JUPYTER_DLAAS_POOL_DIR"):
        monkeypatch.delenv(name, raising=False)
    folder = tmp_path / "pool"
    folder.mkdir()
    monkeypatch.setenv("JUPYTER_DLAAS_POOL", str(folder))
    monkeypatch.chdir(tmp_path)
    yield folder
    client = Client(at=[SocketEndpoint(folder)])
    if not (folder / "store.sqlite3").exists():
        return
    for view in client.jobs():
        if not view.state.is_final:
            client.act(view.id, "cancel")
            jobs.Job(view, client).wait(60, raise_on_failure=False)
    engine_control.stop(folder)


def kill_engine(folder: Path) -> None:
    pid = int(discovery.engine_record(folder)["pid"])
    os.kill(pid, signal.SIGKILL)
    until(lambda: is_gone(pid))


def test_an_engine_is_there_when_the_first_command_ends(real: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main.main(["pool"]) == 0
    assert "in use" in capsys.readouterr().out
    state = engine_control.state(real)
    assert state is not None
    assert state["python"] == sys.executable


def test_engine_of_a_caller_with_blocked_signals_can_be_stopped(real: Path) -> None:
    command = [sys.executable, "-m", "jupyter_dlaas.cli", "pool"]
    started = subprocess.run(
        [sys.executable, "-c", f"import os, signal; {BLOCK}; os.execv({sys.executable!r}, {command})"],
        capture_output=True,
        timeout=60,
    )
    assert started.returncode == 0, started.stderr

    assert engine_control.stop(real)


def test_submit_shows_each_line_once_despite_engine_kills(real: Path, tmp_path: Path) -> None:
    (tmp_path / "slow.py").write_text(SLOW)
    Client().pool()
    command = [
        sys.executable,
        "-m",
        "jupyter_dlaas.cli.main",
        "submit",
        "slow.py",
        "--gpus",
        "1",
        "-o",
        "history",
        "--wait",
    ]
    with (
        (tmp_path / "errors").open("w") as errors,
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, text=True) as process,
    ):
        assert process.stdout is not None
        got = [process.stdout.readline()]
        for kills_at in (20, 80):
            while len(got) < kills_at:
                got.append(process.stdout.readline())
            kill_engine(real)
        out = process.stdout.read()  # `communicate` would lose what lies in its buffer

    assert process.returncode == 0, (tmp_path / "errors").read_text()
    assert "".join(got) + out == "begin\n" + "".join(f"line {n}\n" for n in range(LINES))
    assert jobs.job("slow").result() == {"history": [0, 1, 2]}


def test_job_outlives_server_and_engine_on_both_endpoints(real: Path, tmp_path: Path) -> None:
    server = real_server(tmp_path, real)
    client = Client(at=[server.endpoint, SocketEndpoint(real)])
    try:
        job = jobs.submit(SLOW, name="both", gpus=1, client=client)
        reader, lines = job.follow(), LogLines()
        got: list[str] = []
        for message in reader.messages():
            got += lines.feed(message)
            if len(got) >= 30 and server.process.poll() is None:
                server.process.kill()
                server.process.wait()
                kill_engine(real)
    finally:
        stop_server(server)

    assert got == ["begin", *(f"line {n}" for n in range(LINES))]
    assert reader.view is not None
    assert reader.view.state == "COMPLETED"


def real_server(where: Path, folder: Path) -> Server:
    """Start a Jupyter server in front of the real engine."""
    return start_server(where / "server", FakePool(folder), has_fake=False)


def test_job_is_controlled_from_jupyter_command_line_and_python(
    real: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    server = real_server(tmp_path, real)
    try:
        prepared = submission.prepare(SLOW, name="mixed", gpus="1:2", start_with=1)
        job = jobs.send(prepared, Client(at=[server.endpoint]))
        until(lambda: "line 3" in str(job.logs()), 60)
        assert main.main(["scale", "mixed", "2"]) == 0
        assert main.main(["halt", "mixed", "--yes"]) == 0  # it is a plain loop
        until(lambda: job.status == "HALTED", 60)
        capsys.readouterr()
        assert main.main(["jobs"]) == 0
        assert re.search(r"mixed-\d+ +HALTED .* resume: jupyter dlaas resume mixed-\d+", capsys.readouterr().out)
        assert jobs.job("mixed").resume().wait(90).status == "COMPLETED"
        assert main.main(["jobs", "--json"]) == 0
        assert [one["state"] for one in json.loads(capsys.readouterr().out)["jobs"]] == ["COMPLETED"]
    finally:
        stop_server(server)


def test_failing_script_prints_cause_place_and_advice(
    real: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "bad.py").write_text("def f():\n    return {}['x']\n\nf()\n")

    assert main.main(["submit", "bad.py", "--wait"]) == 1
    err = capsys.readouterr().err
    assert "KeyError" in err
    assert "What to do: " in err
    assert "Where: bad.py, line 2, in f" in err
    assert f'File "{tmp_path}/bad.py", line 4, in <module>' in jobs.job("bad").logs()


def test_a_package_beside_the_script_trains_with_it(real: Path, tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "__init__.py").write_text("")
    (tmp_path / "mine" / "deep.py").write_text("X = 5\n")
    (tmp_path / "script.py").write_text("from mine.deep import X\nimport sys\nx = (X, sys.argv[1:])\n")

    job = jobs.submit("script.py", outputs="x", args=["--lr", "1"], wait=True)

    assert job.result("x") == (5, ["--lr", "1"])


def test_a_decorated_function_trains_in_a_job(real: Path, tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(
        "import jupyter_dlaas as dlaas\n\n"
        "@dlaas.train(outputs='returned')\n"
        "def fit(n):\n    return [n] * 2\n\n"
        "if __name__ == '__main__':\n    print(fit(4).wait(60).result('returned'))\n"
    )
    done = subprocess.run([sys.executable, "script.py"], capture_output=True, text=True, timeout=120)

    assert (done.stdout, done.stderr) == ("[4, 4]\n", "")


STATUSES = {401, 403, 405, 426, 503}


def statuses(operation: str) -> set[int]:
    return STATUSES | next(set(route.statuses) for route in ROUTES if route.operation == operation)


@pytest.mark.parametrize("route", [r for r in PLAIN if r.endpoint is Endpoint.BOTH], ids=lambda route: route.operation)
def test_the_engine_answers_as_described(route: Any, described: Path) -> None:
    """Good and bad requests: each answer has a status of the table, and an error has a code."""
    paths = [example(route), example(route).replace("fake-1", "absent-7"), example(route).replace("fake-1", "%00..%2F")]
    queries = ["", "?limit=-1&offset=x&points=9e99&wait_s=nan&row=-1&metrics=a&logs=:&state=%F0&want=x&member=-9"]
    bodies: list[bytes | None] = [None]
    if route.method not in ("GET", "DELETE"):
        bodies = [
            b"{}",
            b"[]",
            b"{",
            b"\xff",
            b"null",
            b'{"learners": 1e999, "x": 1}',
            b'{"key": "' + b"a" * 200 + b'"}',
        ]
    for path in paths:
        for query in queries:
            for body in bodies:
                status, said = direct(described, route.method, f"/{path}{query}", body)
                assert status in statuses(route.operation), (path, query, body, status, said)
                if status >= 400:
                    assert isinstance(json.loads(said)["error"]["code"], str)


OF_THE_POOL = (
    *("change_pool", "set_queue", "remove_queue", "cordon_node", "uncordon_node", "preview_drain", "drain_node"),
)


@pytest.mark.parametrize("operation", OF_THE_POOL)
def test_only_administrators_change_the_pool(operation: str, described: Path) -> None:
    route = next(route for route in ROUTES if route.operation == operation)
    node = Client(at=[SocketEndpoint(described)]).pool().nodes[0].name
    target = "/" + route.path.lstrip("/").replace("{node}", node).replace("{queue}", "theirs")
    status, said = direct(described, route.method, target, None if route.method == "GET" else b"{}", user="ben")

    assert (status, json.loads(said)["error"]["code"]) == (403, "forbidden")
    assert [queue.name for queue in Client(at=[SocketEndpoint(described)]).pool().queues] == ["default"]


@pytest.fixture(scope="module")
def described(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Create a pool with one completed job, fake-1."""
    folder = tmp_path_factory.mktemp("described") / "pool"
    client = Client(at=[SocketEndpoint(folder)])
    prepared = submission.prepare("x = 1\n", name="fake", outputs="x", directory=str(folder.parent))
    jobs.send(prepared, client).wait(60)
    yield folder
    engine_control.stop(folder)


def direct(folder: Path, method: str, target: str, body: bytes | None, user: str | None = None) -> tuple[int, bytes]:
    """Send a request as it is, without retries and error classes. `user`: the user that a relay would vouch for."""
    connection = _Connection(SocketEndpoint(folder), 30)
    headers = {"Content-Type": "application/json"} | ({"X-Dlaas-User": user} if user is not None else {})
    try:
        connection.request(method, target, body=body, headers=headers)
        answer = connection.getresponse()
        return answer.status, answer.read()
    finally:
        connection.close()


def test_the_dry_run_of_the_command_sends_nothing(
    real: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "good.py").write_text("x = 1\n")

    assert main.main(["submit", "good.py", "--dry-run"]) == 0
    assert "would start now" in capsys.readouterr().out
    assert main.main(["submit", "good.py", "--gpus", "4000", "--dry-run"]) == 4
    assert "problem: " in capsys.readouterr().out
    assert main.main(["submit", "good.py", "--gpus", "4000"]) == 4
    assert jobs.jobs() == []
    assert JobSpec().name == "train"


def test_a_notebook_is_trained_through_the_server(real: Path, tmp_path: Path) -> None:
    server = real_server(tmp_path, real)
    try:
        cells = [{"source": "%matplotlib inline\nx = 2"}, {"source": "y = x * 2\nprint('y is', y)"}]
        body = {
            "key": "12345678",
            "path": "a.ipynb",
            "cells": cells,
            "kernel_name": "python3",
            "spec": {"outputs": ["y"]},
        }
        status, _, said = ask(server, "dlaas/notebook", "POST", body=json.dumps(body).encode())
        assert status == 201, said
        job = jobs.Job(json.loads(said)["id"], Client(at=[server.endpoint]))
        assert job.wait(60).result("y") == 4
        assert job.logs() == "y is 4\n"
        again = ask(server, "dlaas/notebook", "POST", body=json.dumps(body).encode())
        assert (again[0], json.loads(again[2])["id"]) == (200, job.id)
    finally:
        stop_server(server)


def test_serve_runs_the_engine_in_the_foreground(real: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-m", "jupyter_dlaas.cli.main", "serve"], stderr=subprocess.PIPE, text=True
    ) as process:
        until(lambda: engine_control.state(real) is not None)
        assert engine_control.state(real) == discovery.engine_record(real) | {"pid": process.pid}
        assert main.main(["engine", "stop"]) == 0
        _out, err = process.communicate(timeout=30)

    assert process.returncode == 0
    assert err.startswith(f"Serving the pool in {real}. Ctrl-C stops the engine; jobs keep running.")
    assert engine_control.state(real) is None
