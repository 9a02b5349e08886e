"""Kernels in milliseconds: forks of a process that has imported a framework, and run nothing.

`python -m tests.corpus.forking SOCKET MODULE…` listens on a Unix socket. A request is a line of JSON (directory,
environment, connection file, log); the answer is the pid of a real IPython kernel in a process of its own, with an
empty namespace and random numbers of its own. It ends with the connection that asked for it.
"""

from __future__ import annotations

import importlib
import json
import os
import random
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any, Final, NoReturn

from jupyter_client.blocking.client import BlockingKernelClient
from jupyter_client.connect import write_connection_file

__all__ = ["ForkedKernel", "Nursery"]

# No framework computes when it is imported, so none has threads yet. `keras` is left to the notebooks: its backend is
# chosen by a variable that it reads at its import.
ALWAYS: Final = ("ipykernel.ipkernel", "ipykernel.kernelapp", "matplotlib", "numpy", "pandas", "sklearn.datasets")
KINDS: Final = {
    "tensorflow": ("tensorflow",),
    "jax": ("jax", "optax"),
    "torch": ("torch", "torch._dynamo", "torch.utils.data", "sklearn.model_selection", "tqdm.auto"),
}


class ForkedKernel:
    """Kernel manager as `rooms.Kernel` needs it."""

    def __init__(self, nursery: Path, directory: Path, environment: dict[str, str], log: Path) -> None:
        file, endpoint = str(log.with_suffix(".json")), str(log.with_suffix(""))
        # Not TCP: between the choice of a free port and its use, another process may take it.
        self.file, _ = write_connection_file(file, transport="ipc", ip=endpoint)
        self._line = socket.socket(socket.AF_UNIX)
        self._line.connect(str(nursery))
        asked = {"directory": str(directory), "environment": environment, "file": self.file, "log": str(log)}
        self._line.sendall(json.dumps(asked).encode() + b"\n")
        self.pid = int(self._line.makefile().readline())

    def blocking_client(self) -> BlockingKernelClient:
        client = BlockingKernelClient(connection_file=self.file)
        client.load_connection_file()
        return client

    def interrupt_kernel(self) -> None:
        os.kill(self.pid, signal.SIGINT)

    def shutdown_kernel(self, now: bool = True) -> None:
        self._line.close()


class Nursery:
    """The processes to fork from, one per framework and hash seed, started when they are first needed.

    A fork has the hash seed of its parent.
    """

    def __init__(self, folder: Path, environment: dict[str, str]) -> None:
        self._folder = folder
        self._environment = environment
        self._lock = threading.Lock()
        self._processes: dict[str, subprocess.Popen[bytes]] = {}

    def kernel(
        self, text: str, directory: Path, environment: dict[str, str], log: Path, hash_seed: str
    ) -> ForkedKernel:
        """Fork a kernel for a notebook with this text: it has what that imports."""
        kind = "jax" if "jax" in text else "tensorflow" if "tensorflow" in text else "torch"
        return ForkedKernel(self._socket(kind, hash_seed), directory, environment, log)

    def _socket(self, kind: str, hash_seed: str) -> Path:
        name = f"{kind}-{hash_seed}"
        path = self._folder / f"{name}.sock"
        with self._lock:
            if name not in self._processes:
                command = [sys.executable, "-m", "tests.corpus.forking", str(path), *ALWAYS, *KINDS[kind]]
                environment = {**self._environment, "PYTHONHASHSEED": hash_seed}
                self._processes[name] = subprocess.Popen(command, env=environment)
            process = self._processes[name]
        give_up_s = time.monotonic() + 120
        while not path.exists():
            assert process.poll() is None, f"the kernels' process ended with {process.returncode}"
            assert time.monotonic() < give_up_s, "the kernels' process does not come up"
            time.sleep(0.05)
        return path

    def close(self) -> None:
        for process in self._processes.values():
            process.kill()
            process.wait()


def serve(path: Path, modules: list[str]) -> NoReturn:
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # no process waits for kernels
    for name in modules:
        importlib.import_module(name)
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(path.with_suffix(".new")))
    listener.listen()
    path.with_suffix(".new").rename(path)
    while True:
        line, _ = listener.accept()
        asked = json.loads(line.makefile().readline())
        pid = os.fork()
        if pid == 0:
            listener.close()
            become_kernel(line, asked)
        line.close()


def become_kernel(line: socket.socket, asked: dict[str, Any]) -> NoReturn:
    os.setsid()
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    os.chdir(asked["directory"])
    os.environ.clear()
    os.environ.update(asked["environment"])
    log = os.open(asked["log"], os.O_CREAT | os.O_WRONLY | os.O_APPEND, 0o600)
    os.dup2(log, 1)
    os.dup2(log, 2)
    sys.path[0] = ""
    reseed()
    line.sendall(f"{os.getpid()}\n".encode())
    threading.Thread(target=end_with, args=(line,), daemon=True).start()
    from ipykernel.kernelapp import IPKernelApp

    app: Any = IPKernelApp.instance()
    app.initialize(["-f", asked["file"]])
    app.start()
    os._exit(0)


def reseed() -> None:
    """Seed again: what was seeded at an import would be the same in every fork."""
    random.seed()
    sys.modules["numpy"].random.seed()
    if torch := sys.modules.get("torch"):
        torch.seed()


def end_with(line: socket.socket) -> NoReturn:
    line.recv(1)
    os._exit(0)


if __name__ == "__main__":
    serve(Path(sys.argv[1]), sys.argv[2:])
