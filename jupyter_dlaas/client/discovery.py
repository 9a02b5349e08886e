"""Discovery of the engine: through the Jupyter server that started this kernel, or on the pool's own socket.

Both endpoints offer the same API. A kernel of a Jupyter server with a token uses the server's endpoint (with the same
authorisation as the page). Everywhere else, and if the server cannot be used, the client connects to the engine's Unix
socket and starts the engine if none runs. Two clients may start it at the same time: the engine's lock decides, and the
other engine exits.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import re
import socket
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import unquote, urlsplit

from jupyter_dlaas.client.known_pools import DEFAULT_POOL, is_for_pool, missing_pool_text
from jupyter_dlaas.wire.codec import Invalid
from jupyter_dlaas.wire.protocol import Unavailable
from jupyter_dlaas.wire.secret_masking import without_secrets

if TYPE_CHECKING:
    import subprocess

__all__ = [
    "Endpoint",
    "ServerEndpoint",
    "SocketEndpoint",
    "connect",
    "connect_unix",
    "engine_interpreter",
    "engine_record",
    "existing_pool",
    "find_endpoints",
    "jupyter_endpoint",
    "notebook_path",
    "pool_directory",
    "pool_endpoint",
    "short_path",
]

SOCKET: Final = "engine.sock"
START_TIMEOUT_S: Final = 10.0
_SOCKET_PATH_MAX: Final = 107  # sun_path of Linux, without its closing zero byte
_LOG_BYTES_MAX: Final = 5_000_000
_VISIBLE: Final = "CUDA_VISIBLE_DEVICES"
_ELSEWHERE: Final = "set JUPYTER_DATA_DIR to a directory that you can write to"
_EVERYWHERE: Final = ("", "0.0.0.0", "::", "*")  # noqa: S104  # compared with, not bound to


@dataclass(frozen=True, slots=True)
class SocketEndpoint:
    """Endpoint at the engine's own socket in the pool's directory. The socket's peer credentials identify the user."""

    directory: Path
    engine_idle_s: float | None = None
    """Idle seconds after which an engine that this endpoint starts ends. None: the engine's default."""
    may_start: bool = True
    named_by: str | None = None
    """Option or variable that names the pool, which then has to exist. None: the pool is created on first use."""


@dataclass(frozen=True, slots=True)
class ServerEndpoint:
    """Endpoint at a Jupyter server that has the extension: address, path of its pages, and token."""

    host: str
    port: int
    base: str
    token: str
    is_tls: bool = False
    unix_path: str | None = None

    def __repr__(self) -> str:  # keeps the token out of logs and tracebacks
        return f"ServerEndpoint({self.unix_path or self.host + ':' + str(self.port)}{self.base})"


Endpoint = SocketEndpoint | ServerEndpoint


def pool_directory(pool: str | None = None) -> Path:
    """Return the directory of a pool's socket, store and jobs: `<jupyter data dir>/dlaas/<pool>`.

    `pool` is a name or a path (with a slash). None means JUPYTER_DLAAS_POOL_DIR, inside a job the pool that runs it,
    JUPYTER_DLAAS_POOL, or the pool "local", in this order. Nothing is created or opened. Raise Invalid for an invalid
    name.
    """
    if pool is None:
        chosen = os.environ.get("JUPYTER_DLAAS_POOL_DIR")
        if chosen:
            return _absolute(chosen)
        job = Path(os.environ.get("DLAAS_JOB_DIR", "/"))
        if job.parent.name == "jobs":
            return job.parent.parent
        pool = os.environ.get("JUPYTER_DLAAS_POOL") or DEFAULT_POOL
    if "/" in pool:
        return _absolute(pool)
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,79}", pool):
        raise Invalid(
            f"pool: {pool!r} is not a valid pool name: use letters, digits, _ . - (or a directory, with a slash)"
        )
    return _pools_folder() / pool


def _pools_folder() -> Path:
    """Return the directory of all pools that have names. Raise Invalid if this user has none."""
    from jupyter_core.paths import jupyter_data_dir

    try:
        return Path(jupyter_data_dir()).absolute() / "dlaas"
    except RuntimeError:  # a container's user without a name and HOME
        raise Invalid(f"this user has no home directory: {_ELSEWHERE}") from None


def pool_endpoint(pool: str | None = None) -> SocketEndpoint:
    """Return the endpoint of a pool, chosen as by `pool_directory`.

    The default pool and the directory JUPYTER_DLAAS_POOL_DIR are created on first use. A pool that is named in another
    way has to exist, so that a mistyped name creates none. Raise Invalid for an invalid name.
    """
    directory, named_by = pool_directory(pool), "pool"
    if pool is None:
        is_named = os.environ.get("JUPYTER_DLAAS_POOL") and not os.environ.get("JUPYTER_DLAAS_POOL_DIR")
        named_by = "JUPYTER_DLAAS_POOL" if is_named else ""
    is_created = not named_by or directory == _pools_folder() / DEFAULT_POOL
    return SocketEndpoint(directory, named_by=None if is_created else named_by)


def existing_pool(pool: str | None = None) -> Path:
    """Return the directory of a pool, chosen as by `pool_directory`. Raise Invalid if a named pool does not exist."""
    endpoint = pool_endpoint(pool)
    _check_exists(endpoint)
    return endpoint.directory


def _check_exists(endpoint: SocketEndpoint) -> None:
    """Raise Invalid if the endpoint names a pool that does not exist."""
    if endpoint.named_by is not None and not is_for_pool(endpoint.directory):
        raise Invalid(missing_pool_text(endpoint.directory, _pools_folder(), endpoint.named_by))


def _absolute(text: str) -> Path:
    try:
        return Path(text).expanduser().absolute()
    except (RuntimeError, OSError) as error:  # no such user, or the current directory was deleted
        raise Invalid(f"pool: the directory {text!r} cannot be used: {error}") from None


def find_endpoints(pool: str | None = None) -> tuple[Endpoint, ...]:
    """Return the endpoints to try: the Jupyter server of this kernel (for the pool it serves), then the socket."""
    at_server = jupyter_endpoint() if pool is None and not os.environ.get("JUPYTER_DLAAS_POOL_DIR") else None
    own = pool_endpoint(pool)
    return (own,) if at_server is None else (at_server, own)


def jupyter_endpoint(parent: str | None = None, runtime_dir: Path | None = None) -> ServerEndpoint | None:
    """Return the endpoint of the Jupyter server that started this kernel (JPY_PARENT_PID), from its runtime record.

    Return None if there is no server, if it has ended, or if its record has no token (as under JupyterHub).
    """
    parent = os.environ.get("JPY_PARENT_PID", "") if parent is None else parent
    if not parent.isdecimal() or not _is_alive(int(parent)):
        return None
    record = _server_record(parent, runtime_dir)
    token, url = record.get("token"), record.get("url")
    if not isinstance(token, str) or not token or not isinstance(url, str):
        return None
    return _server_endpoint(url, token, record)


def _server_record(pid: str, runtime_dir: Path | None = None) -> dict[str, Any]:
    """Return the runtime record of the Jupyter server with this pid; empty if there is none."""
    if runtime_dir is None:
        from jupyter_core.paths import jupyter_runtime_dir

        runtime_dir = Path(jupyter_runtime_dir())
    return _read_json(runtime_dir / f"jpserver-{pid}.json")


def notebook_path() -> str | None:
    """Return the path of this kernel's notebook as the page names it: relative to the server's root, if known."""
    name, parent = os.environ.get("JPY_SESSION_NAME", ""), os.environ.get("JPY_PARENT_PID", "")
    root = _server_record(parent).get("root_dir") if parent.isdecimal() and name else None
    if isinstance(root, str) and root and Path(name).is_relative_to(root):
        return Path(name).relative_to(root).as_posix()
    return name or None


def _server_endpoint(url: str, token: str, record: Mapping[str, Any]) -> ServerEndpoint | None:
    parts = urlsplit(url)
    base = str(record.get("base_url") or parts.path or "/")
    base = "/" + base.strip("/") + "/" if base.strip("/") else "/"
    if parts.scheme == "http+unix":
        return ServerEndpoint("localhost", 0, base, token, unix_path=str(record.get("sock") or unquote(parts.netloc)))
    try:
        host, port = parts.hostname or "", parts.port
    except ValueError:  # the port is not a number
        return None
    if parts.scheme not in ("http", "https"):
        return None
    is_tls = parts.scheme == "https"
    return ServerEndpoint(
        "127.0.0.1" if host in _EVERYWHERE else host, port or (443 if is_tls else 80), base, token, is_tls
    )


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except (PermissionError, OverflowError):
        return False
    return True


def _read_json(path: Path) -> dict[str, Any]:
    try:
        value = json.loads(path.read_bytes())
    except (OSError, ValueError):  # missing or only partly written: treat it as empty
        return {}
    return value if isinstance(value, dict) else {}


def engine_record(directory: Path) -> dict[str, Any]:
    """Return the engine's own record (engine.json): pid, start, host and version; empty if there is none."""
    return _read_json(directory / "engine.json")


@contextlib.contextmanager
def short_path(path: Path) -> Iterator[str]:
    """Yield a name for a socket that fits into 107 bytes, through /proc/self/fd if needed. Valid inside the `with`."""
    if len(os.fsencode(path)) <= _SOCKET_PATH_MAX:
        yield str(path)
        return
    if not Path("/proc/self/fd").is_dir():
        raise Unavailable(f"{path} is too long for a socket path; choose a shorter pool directory (JUPYTER_DLAAS_POOL)")
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        yield f"/proc/self/fd/{folder}/{path.name}"
    finally:
        os.close(folder)


def connect_unix(path: Path, timeout_s: float | None) -> socket.socket:
    """Return a connected Unix stream socket; the path may have any length. Raise OSError if no process listens."""
    one = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        one.settimeout(timeout_s)
        with short_path(path) as name:
            one.connect(name)
    except BaseException:
        one.close()
        raise
    return one


_ABSENT: Final = (FileNotFoundError, ConnectionRefusedError, ConnectionResetError, NotADirectoryError)


def connect(endpoint: SocketEndpoint, timeout_s: float | None = None) -> socket.socket:
    """Return a socket connected to the pool's engine, and start the engine if none runs.

    Raise Unavailable, and Invalid if a named pool does not exist.
    """
    path = endpoint.directory / SOCKET
    try:
        return connect_unix(path, timeout_s)
    except _ABSENT:
        if not endpoint.may_start:
            raise Unavailable(f"no engine is running for the pool in {endpoint.directory}") from None
    except PermissionError:
        raise Unavailable(f"{path} belongs to another user; use your own pool (JUPYTER_DLAAS_POOL)") from None
    _check_exists(endpoint)
    return _start_and_connect(endpoint, timeout_s)


def _start_and_connect(endpoint: SocketEndpoint, timeout_s: float | None) -> socket.socket:
    """Start the engine and wait until one listens: this one, or another that was started faster.

    An engine that finds the lock taken ends with code 0 at once. If the lock's holder is just ending, no engine serves;
    therefore the engine is started again, with a growing delay, until one listens.
    """
    process, again_s = _start(endpoint), 0.05
    deadline_s = time.monotonic() + START_TIMEOUT_S
    path = endpoint.directory / SOCKET
    while True:
        try:
            return connect_unix(path, timeout_s)
        except _ABSENT:
            if process.returncode not in (None, 0):
                raise Unavailable(_why_not(endpoint.directory, f"exited with code {process.returncode}")) from None
            if time.monotonic() > deadline_s:
                raise Unavailable(
                    _why_not(endpoint.directory, f"did not answer within {START_TIMEOUT_S:.0f} s")
                ) from None
        if process.returncode == 0:
            time.sleep(again_s)
            process, again_s = _start(endpoint), min(1.0, again_s * 2)
        time.sleep(0.005)


def _why_not(directory: Path, what: str) -> str:
    host = engine_record(directory).get("host")
    other = ""
    if isinstance(host, str) and host and host != socket.gethostname():
        other = f" Another engine of this pool runs (or ran) on {host}; use another pool here (JUPYTER_DLAAS_POOL)."
    last = [line for line in _log_tail(directory / "engine.log").splitlines() if line.strip()][-1:]
    said = last[0].strip() if last else ""
    said = said if not said or said.endswith((".", "?")) else f"{said}."
    _, cannot, reason = said.partition("cannot start: ")
    if cannot:
        return f"the engine cannot start: {reason}{other} Full log: {directory / 'engine.log'}"
    last_line = f" Last line of its log: {said}" if said else ""
    return f"the engine {what}.{last_line}{other} Full log: {directory / 'engine.log'}"


def _log_tail(path: Path) -> str:
    try:
        with path.open("rb") as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - 4096))
            return file.read().decode(errors="replace")
    except OSError:
        return ""


def engine_interpreter(directory: Path) -> str:
    """Return a Python that has the server side: this one, or the one that ran this pool's engine before."""
    if importlib.util.find_spec("dlaas_server") is not None:
        return sys.executable
    named = engine_record(directory).get("python")
    if isinstance(named, str) and os.access(named, os.X_OK):
        return named
    raise Unavailable(
        "no engine is running, and this Python cannot start one: its server side (dlaas_server) is not installed. "
        f"Start it from an environment that has it (jupyter dlaas pool), or: {sys.executable} -m pip install "
        "jupyter_dlaas"
    )


def engine_command(endpoint: SocketEndpoint) -> list[str]:
    """Return the command line that runs the engine of this pool."""
    command = [
        engine_interpreter(endpoint.directory),
        "-m",
        "dlaas_server.engine",
        "--pool-dir",
        str(endpoint.directory),
    ]
    if endpoint.engine_idle_s is not None:
        command += ["--idle-s", f"{endpoint.engine_idle_s:g}"]
    return command


def _start(endpoint: SocketEndpoint) -> subprocess.Popen[bytes]:
    """Start the engine as an independent process: own session, no terminal, and output to engine.log."""
    import subprocess
    import threading

    command = engine_command(endpoint)
    try:
        endpoint.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        log = endpoint.directory / "engine.log"
        if log.exists() and log.stat().st_size > _LOG_BYTES_MAX:
            log.replace(log.with_suffix(".log.old"))
        out = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    except OSError as error:
        where = f"the pool's directory {endpoint.directory} cannot be used: {error.strerror}"
        raise Unavailable(f"{where}; {_ELSEWHERE}") from None
    try:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=out,
            start_new_session=True,
            env=_engine_environment(),
            cwd=endpoint.directory,
        )
    finally:
        os.close(out)
    # The process must be reaped. Otherwise it stays a zombie, and looks alive to programs that check its pid.
    threading.Thread(target=process.wait, name="dlaas-engine-reaper", daemon=True).start()
    return process


def _engine_environment() -> dict[str, str]:
    """Return this process's environment without Jupyter's and the user's secrets, which the engine would outlive."""
    secret = re.compile(r"JPY_.*|JUPYTERHUB_.*|JUPYTER_TOKEN|CONFIGPROXY_AUTH_TOKEN")
    kept = {key: value for key, value in without_secrets(os.environ).items() if not secret.fullmatch(key)}
    if "PYTHONPATH" in kept:  # relative entries would name other directories
        kept["PYTHONPATH"] = os.pathsep.join(str(Path(one).absolute()) for one in kept["PYTHONPATH"].split(os.pathsep))
    kept.pop(_VISIBLE, None)
    return kept | _visible_devices()


def _visible_devices() -> dict[str, str]:
    """Return CUDA_VISIBLE_DEVICES as this process was started with it.

    A notebook's cell that sets it limits the notebook to a GPU, not the pool, which all notebooks share.
    """
    try:
        started_with = Path("/proc/self/environ").read_bytes().split(b"\0")
    except OSError:
        return {name: value for name, value in os.environ.items() if name == _VISIBLE}
    found = (one.decode(errors="surrogateescape").partition("=") for one in started_with)
    return {name: value for name, _, value in found if name == _VISIBLE}
