"""Demo that runs the quickstart notebook cell by cell in a kernel of a real Jupyter server.

`make demo` runs it. The server loads the real extension, keeps its state in one directory (`--home`), and uses its own
port and token. While the job trains, the demo prints status, metrics and log lines as they arrive.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import secrets
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import nbformat
from jupyter_client.blocking.client import BlockingKernelClient

from jupyter_dlaas.client.follow import Follower
from jupyter_dlaas.client.http import Client
from jupyter_dlaas.wire.codec import DlaasError
from jupyter_dlaas.wire.protocol import JobView, State

EXAMPLES = Path(__file__).resolve().parent
BUNDLE = "application/vnd.jupyter-dlaas.job+json"
START_TIMEOUT_S = 60.0
CELL_TIMEOUT_S = 300.0
ACCURACY_MIN = 0.97


class Failed(Exception):
    """Failure of the demo; the message names what is missing."""


def say(who: str, text: str) -> None:
    for line in text.rstrip().splitlines():
        print(f"{who:>9} | {line}", flush=True)


def places(home: Path) -> dict[str, str]:
    """Return variables that place Jupyter's directories below `home` and leave the user's own untouched."""
    return {
        "IPYTHONDIR": str(home / "ipython"),
        "JUPYTER_CONFIG_DIR": str(home / "config"),
        "JUPYTER_DATA_DIR": str(home / "data"),
        "JUPYTER_RUNTIME_DIR": str(home / "runtime"),
        "PYDEVD_DISABLE_FILE_VALIDATION": "1",
    }


# --------------------------------------------------------------------------------------------------------- the server


@dataclass(frozen=True, slots=True)
class Server:
    url: str
    token: str
    log: Path

    def ask(self, method: str, path: str, body: object = None) -> Any:
        data = None if body is None else json.dumps(body).encode()
        headers = {"Authorization": f"token {self.token}", "Content-Type": "application/json"}
        request = urllib.request.Request(self.url + path, data=data, headers=headers, method=method)
        with urllib.request.urlopen(request, timeout=30) as answer:
            raw = answer.read()
        return json.loads(raw) if raw else None


@contextlib.contextmanager
def jupyter_server(home: Path) -> Iterator[Server]:
    """Start a Jupyter server on a free port and stop it when the `with` block ends."""
    token, log = secrets.token_hex(16), home / "server.log"
    command = [sys.executable, "-m", "jupyter_server", "--no-browser", "--allow-root", "--port=0"]
    with log.open("w") as file:
        process = subprocess.Popen(
            [*command, f"--ServerApp.root_dir={EXAMPLES}"],
            env=os.environ | {"JUPYTER_TOKEN": token},
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=subprocess.STDOUT,
        )
    try:
        server = wait_for_server(process, home, token, log)
        yield server
    finally:
        process.terminate()
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def wait_for_server(process: subprocess.Popen[bytes], home: Path, token: str, log: Path) -> Server:
    record = home / "runtime" / f"jpserver-{process.pid}.json"
    deadline = time.monotonic() + START_TIMEOUT_S
    while time.monotonic() < deadline and process.poll() is None:
        with contextlib.suppress(OSError, ValueError, urllib.error.URLError):
            server = Server(json.loads(record.read_text())["url"], token, log)
            server.ask("GET", "api/status")
            return server
        time.sleep(0.1)
    raise Failed(f"the Jupyter server did not start; {log} ends with:\n{tail(log)}")


def tail(path: Path, lines: int = 20) -> str:
    return "\n".join(path.read_text(errors="replace").splitlines()[-lines:])


# --------------------------------------------------------------------------------------------------------- the kernel


@contextlib.contextmanager
def kernel(server: Server, home: Path, notebook: Path) -> Iterator[BlockingKernelClient]:
    """Yield a client of a kernel that the server starts for the notebook."""
    session = server.ask(
        "POST",
        "api/sessions",
        {"path": notebook.name, "name": notebook.name, "type": "notebook", "kernel": {"name": "python3"}},
    )
    client = BlockingKernelClient(connection_file=str(home / "runtime" / f"kernel-{session['kernel']['id']}.json"))
    client.load_connection_file()
    client.start_channels()
    try:
        client.wait_for_ready(timeout=START_TIMEOUT_S)
        yield client
    finally:
        client.stop_channels()
        server.ask("DELETE", f"api/sessions/{session['id']}")


def run_cell(client: BlockingKernelClient, cell: Any) -> list[Any]:
    """Execute a cell with its id, as JupyterLab does; print its text, return its outputs. Raise Failed on an error."""
    content = {"code": cell.source, "silent": False, "store_history": True, "allow_stdin": False, "stop_on_error": True}
    message = client.session.msg("execute_request", content, metadata={"cellId": cell.id})
    client.shell_channel.send(message)
    outputs: list[Any] = []
    while True:
        reply = client.get_iopub_msg(timeout=CELL_TIMEOUT_S)
        if reply["parent_header"].get("msg_id") != message["header"]["msg_id"]:
            continue
        kind, told = reply["msg_type"], reply["content"]
        if kind == "status" and told["execution_state"] == "idle":
            return outputs
        if kind == "execute_input":
            cell.execution_count = told["execution_count"]
        elif kind in ("stream", "display_data", "execute_result"):
            outputs.append(nbformat.v4.output_from_msg(reply))
            say("notebook", told["text"] if kind == "stream" else told["data"].get("text/plain", ""))
        elif kind == "error":
            raise Failed(f"cell {cell.id}: " + "\n".join(told["traceback"]))


# ------------------------------------------------------------------------------------------------------------ the job


def watch(job: str) -> tuple[JobView, int]:
    """Print a job's events until it ends. Return its last view and the largest number of learners it trained on."""
    follower, learners, status = Follower(Client(), job), 0, ""
    for message in follower.messages():
        match message["type"]:
            case "job" if follower.view is not None:
                view = follower.view
                learners = max(learners, view.size.held)
                if (line := ": ".join(filter(None, (view.state_label, view.status_line)))) != status:
                    status = line
                    say("status", line)
            case "metrics":
                for record in message["records"]:
                    if "values" in record:
                        values = "  ".join(f"{name} {value:.4g}" for name, value in record["values"].items())
                        say("metrics", f"step {record['step']}  {values}")
            case "log":
                say(f"log {message['member']}", message["text"])
    if follower.view is None:
        raise Failed(f"{job} was never seen")
    return follower.view, learners


def job_of(outputs: list[Any]) -> str | None:
    """Return the handle of the job whose card is among the outputs."""
    for output in outputs:
        bundle = output.get("data", {}).get(BUNDLE)
        if bundle:
            return str(bundle.get("id") or bundle["job"]["id"])
    return None


def accuracy_in(outputs: list[Any]) -> float | None:
    found = re.search(r"accuracy on the test set: ([0-9.]+)\s*%", "".join(o.get("text", "") for o in outputs))
    return float(found[1]) / 100 if found else None


def demo(home: Path) -> None:
    path = EXAMPLES / "quickstart.ipynb"
    notebook = nbformat.read(path, as_version=4)
    job: JobView | None = None
    learners, accuracy, began = 0, None, time.monotonic()
    with jupyter_server(home) as server:
        say("demo", f"a Jupyter server runs at {server.url}")
        with kernel(server, home, path) as client:
            for cell in notebook.cells:
                if cell.cell_type != "code":
                    continue
                say("cell", cell.source)
                cell.outputs = run_cell(client, cell)
                if handle := job_of(cell.outputs) if cell.source.startswith("%%train") else None:
                    job, learners = watch(handle)
                accuracy = accuracy_in(cell.outputs) or accuracy
        devices = sum(len(node.devices) for node in Client().pool().nodes)
    nbformat.write(notebook, home / path.name)
    if job is None or job.state is not State.COMPLETED:
        raise Failed(f"the job did not complete: {job.status_line if job else 'there was none'}")
    if accuracy is None or accuracy < ACCURACY_MIN:
        raise Failed(f"accuracy {accuracy}; {ACCURACY_MIN:.0%} was promised")
    if learners < min(2, devices):
        raise Failed(f"trained on {learners} learner of {devices} devices")
    noun = "learner" if learners == 1 else "learners"
    print(f"\nTrained {job.id} on {learners} {noun} in {time.monotonic() - began:.0f} s, with all the starting.")
    print(f"Accuracy on the test set: {accuracy:.1%}")
    print(f"Job directory: {job.directory}")
    print(f"The notebook as it ran: {home / path.name}")
    print("The same in JupyterLab, at http://localhost:8888/lab/tree/quickstart.ipynb: make lab")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--home", type=Path, default=EXAMPLES.parent / ".make" / "jupyter", help="where its state lies")
    home = parser.parse_args().home.absolute()
    home.mkdir(parents=True, exist_ok=True)
    os.environ.update(places(home))
    try:
        demo(home)
    except (Failed, DlaasError) as error:
        print(f"\nThe demo failed: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
