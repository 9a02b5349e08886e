"""Client of the engine's API: blocking calls that survive restarts. Standard library only.

Each request may be repeated: changes are absolute, and submissions and actions carry a key. A request that met a dying
engine or server is therefore sent again, with a growing delay and within a time limit; the engine is started on demand.
A request that the Jupyter server cannot serve goes to the engine's socket, since both endpoints offer the same API.
"""

from __future__ import annotations

import contextlib
import hashlib
import http.client
import json
import secrets
import socket
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, TypeVar
from urllib.parse import quote, urlencode

from jupyter_dlaas.client import discovery as endpoints
from jupyter_dlaas.client.discovery import Endpoint, ServerEndpoint, SocketEndpoint
from jupyter_dlaas.wire.codec import DlaasError, Json, decode, encode
from jupyter_dlaas.wire.protocol import (
    ERRORS,
    PROTOCOL,
    Cursor,
    DrainView,
    Elastic,
    JobView,
    NotAllowed,
    PoolView,
    Submit,
    Unavailable,
)

__all__ = ["Client", "new_key"]

PAUSES_S: Final = (0.02, 0.05, 0.1, 0.2, 0.4, 0.8, 1.5)
"""Seconds between the attempts of one request: 3 s in all, longer than a restart of engine and server takes."""
REPLY_BYTES_MAX: Final = 256 * 2**20
_TRY_AGAIN: Final = (502, 503, 504)
_BROKEN: Final = (OSError, http.client.HTTPException)
T = TypeVar("T")


def new_key() -> str:
    """Return a new idempotency key."""
    return secrets.token_hex(16)


class _Wrong(Exception):
    """Failure of an endpoint (no extension there, or token refused): the client uses the next one."""


class _Connection(http.client.HTTPConnection):
    """HTTP connection to an endpoint: Unix socket, TCP or TLS."""

    def __init__(self, endpoint: Endpoint, timeout_s: float) -> None:
        super().__init__(endpoint.host if isinstance(endpoint, ServerEndpoint) else "localhost", timeout=timeout_s)
        self._endpoint = endpoint
        self._timeout_s = timeout_s

    def connect(self) -> None:
        endpoint = self._endpoint
        if isinstance(endpoint, SocketEndpoint):
            self.sock = endpoints.connect(endpoint, self._timeout_s)
        elif endpoint.unix_path is not None:
            self.sock = endpoints.connect_unix(Path(endpoint.unix_path), self._timeout_s)
        else:
            self.sock = socket.create_connection((endpoint.host, endpoint.port), self._timeout_s)
            self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if endpoint.is_tls:
                import ssl

                self.sock = ssl.create_default_context().wrap_socket(self.sock, server_hostname=endpoint.host)


class Client:
    """Client of one pool. It is cheap to create and safe to share between threads (one connection per request)."""

    def __init__(self, pool: str | None = None, *, at: Sequence[Endpoint] | None = None) -> None:
        """Choose the pool by name or directory (None: that of this kernel or user), or the endpoints `at` in order."""
        self._endpoints = tuple(endpoints.find_endpoints(pool) if at is None else at)
        if not self._endpoints:
            raise ValueError("at: at least one endpoint is required")

    @property
    def endpoints(self) -> tuple[Endpoint, ...]:
        """Endpoints that are still considered usable, in the order in which they are tried."""
        return self._endpoints

    # -- requests ------------------------------------------------------------------------------------------------------

    def request(
        self,
        method: str,
        path: str,
        body: object = None,
        *,
        query: Mapping[str, object] | None = None,
        timeout_s: float = 30.0,
        pauses_s: Sequence[float] = PAUSES_S,
    ) -> Any:
        """Send one JSON request and return its answer. Repeat it after a broken connection or "unavailable".

        The pauses between the attempts are `pauses_s`. `path` is below `dlaas/`; `body` is a record or JSON value.
        Raise the error class that the answer names (`protocol.ERRORS`), or Unavailable.
        """
        data = None if body is None else json.dumps(encode(body), separators=(",", ":")).encode()
        raw = self._attempts(method, path, data, "application/json", query, timeout_s, pauses_s)
        try:
            return json.loads(raw) if raw else None
        except ValueError:
            raise DlaasError(f"{method} {path}: the response is not valid JSON: {raw[:60]!r}") from None

    def fetch(self, path: str, *, timeout_s: float = 600.0) -> bytes:
        """Return the raw bytes of a result or an artifact."""
        return self._attempts("GET", path, None, None, None, timeout_s, PAUSES_S)

    def put_blob(self, source: Path | bytes) -> str:
        """Upload bytes, or stream a file, for a submission that names them. Return their SHA-256."""
        if isinstance(source, bytes):
            sha256 = hashlib.sha256(source).hexdigest()
        else:
            with source.open("rb") as file:
                sha256 = hashlib.file_digest(file, "sha256").hexdigest()
        self._attempts("PUT", f"blobs/{sha256}", source, "application/octet-stream", None, 600.0, PAUSES_S)
        return sha256

    def _attempts(
        self,
        method: str,
        path: str,
        data: bytes | Path | None,
        media: str | None,
        query: Mapping[str, object] | None,
        timeout_s: float,
        pauses_s: Sequence[float],
    ) -> bytes:
        target = _target(path, query)
        attempt = 0
        while True:
            endpoint = self._endpoints[
                min(attempt % 2, len(self._endpoints) - 1)
            ]  # after a failed server endpoint, try the socket
            try:
                return self._once(endpoint, method, target, data, media, timeout_s)
            except _Wrong as error:
                if len(self._endpoints) == 1:
                    raise Unavailable(str(error)) from None
                self._endpoints = tuple(one for one in self._endpoints if one is not endpoint)
                continue
            except Unavailable as error:
                failure: DlaasError = error
            except TimeoutError:
                failure = Unavailable(f"no answer within {timeout_s:g} s; the engine may be overloaded or stopped")
                attempt += len(pauses_s) // 2  # a timeout is costly: fewer further attempts
            except _BROKEN as error:
                failure = Unavailable(f"the connection to the engine was lost: {str(error) or type(error).__name__}")
            if attempt >= len(pauses_s):
                raise failure
            time.sleep(pauses_s[attempt])
            attempt += 1

    def _once(
        self,
        endpoint: Endpoint,
        method: str,
        target: str,
        data: bytes | Path | None,
        media: str | None,
        timeout_s: float,
    ) -> bytes:
        connection = _Connection(endpoint, timeout_s)
        try:
            headers = {"Accept": "*/*", "Connection": "close", "X-Dlaas-Protocol": str(PROTOCOL)}
            base = "/"
            if isinstance(endpoint, ServerEndpoint):
                base = endpoint.base
                headers["Authorization"] = f"token {endpoint.token}"
            if data is not None and media is not None:
                headers["Content-Type"] = media
            if isinstance(data, Path):
                headers["Content-Length"] = str(data.stat().st_size)
                with data.open("rb") as file:
                    _send(connection, method, base + target, file, headers)
            else:
                _send(connection, method, base + target, data, headers)
            with contextlib.closing(connection.getresponse()) as response:  # it has the socket now
                is_bounded = media is not None or response.status >= 400
                raw = response.read(REPLY_BYTES_MAX + 1) if is_bounded else response.read()
            if media is not None and len(raw) > REPLY_BYTES_MAX:
                raise DlaasError(f"the response exceeds {REPLY_BYTES_MAX >> 20} MiB")
            if response.status >= 300:
                raise _error(endpoint, response.status, raw)
            return raw
        finally:
            connection.close()

    # -- operations ----------------------------------------------------------------------------------------------------

    def pool(self) -> PoolView:
        """Return the pool: nodes, devices and queue."""
        return _read(PoolView, self.request("GET", "pool"))

    def pool_events(self) -> list[dict[str, Any]]:
        """Return what administrators requested and which devices failed: `row`, `at_s`, `kind`, `text`."""
        found: list[dict[str, Any]] = self.request("GET", "pool/events")["events"]
        return found

    def change_pool(
        self,
        *,
        order: str | None = None,
        preemption: bool | None = None,
        placement: str | None = None,
        spot_price: float | None = None,
        spot_notice_s: float | None = None,
    ) -> PoolView:
        """Change order, placement, preemption, or the price and notice period of spot jobs, from now on.

        Options that are None stay unchanged. Raise Forbidden or Invalid.
        """
        parameters = {
            "order": order,
            "preemption": preemption,
            "placement": placement,
            "spot_price": spot_price,
            "spot_notice_s": spot_notice_s,
        }
        return _read(PoolView, self.request("PATCH", "pool", {k: v for k, v in parameters.items() if v is not None}))

    def set_queue(self, name: str, *, weight: float | None = None, guaranteed: int | None = None) -> PoolView:
        """Create or change a queue. Options that are None stay unchanged. Raise Forbidden, Invalid or NotAllowed."""
        parameters = {"weight": weight, "guaranteed": guaranteed}
        body = {k: v for k, v in parameters.items() if v is not None}
        return _read(PoolView, self.request("PUT", f"queues/{quote(name, safe='')}", body))

    def remove_queue(self, name: str) -> PoolView:
        """Remove a queue that `set_queue` created and that is not in use. Raise Forbidden, NotAllowed or NotFound."""
        return _read(PoolView, self.request("DELETE", f"queues/{quote(name, safe='')}"))

    def cordon(self, node: str) -> PoolView:
        """Cordon the node: no new learners are placed there, and running ones stay."""
        return _read(PoolView, self.request("POST", f"{_node(node)}/cordon", {}))

    def uncordon(self, node: str) -> PoolView:
        """Uncordon the node, so that it takes learners again. This also ends a drain."""
        return _read(PoolView, self.request("POST", f"{_node(node)}/uncordon", {}))

    def drain(self, node: str, *, is_dry_run: bool = False, plan: str | None = None) -> DrainView:
        """Drain the node, or preview that with `is_dry_run`. A preview's `plan` drains only if it is still valid."""
        if is_dry_run:
            return _read(DrainView, self.request("GET", f"{_node(node)}/drain"))
        return _read(DrainView, self.request("POST", f"{_node(node)}/drain", {} if plan is None else {"plan": plan}))

    def jobs(self, *, state: str | None = None, owner: str | None = None, limit: int | None = None) -> list[JobView]:
        """Return jobs, newest first. `state`: states, separated by commas.

        If there are more than `limit` (200), return running jobs first, then the first of the queue, then the newest.
        """
        found = self.request("GET", "jobs", query={"state": state, "owner": owner, "limit": limit})
        return [_read(JobView, one) for one in found["jobs"]]

    def submit(self, submit: Submit) -> JobView:
        """Submit a job, which is durable once this returns. Repeating is safe: `submit` holds the idempotency key."""
        return _read(JobView, self.request("POST", "jobs", submit, timeout_s=60.0))

    def preflight(self, submit: Submit) -> dict[str, Json]:
        """Return `{"problems": [{"code", "text"}], "estimate": text}` for a job without submitting it."""
        answer: dict[str, Json] = self.request("POST", "preflight", submit)
        return answer

    def warm(self, interpreter: str, environment: Mapping[str, str], framework: str | None = None) -> bool:
        """Prepare the pool for jobs of this Python without waiting. Return whether they already start fast."""
        body = {"interpreter": interpreter, "environment": dict(environment), "framework": framework}
        return bool(self.request("POST", "warm", body)["is_warm"])

    def job(self, job: str) -> JobView:
        """Return a job by its handle, or the user's newest job of that name."""
        return _read(JobView, self.request("GET", _job(job)))

    def change(
        self, job: str, *, learners: int | None = None, priority: int | None = None, elastic: Elastic | None = None
    ) -> JobView:
        """Change the requested size (in learners), the priority, or the control over the job's size."""
        parameters = {"learners": learners, "priority": priority, "elastic": elastic}
        return _read(JobView, self.request("PATCH", _job(job), {k: v for k, v in parameters.items() if v is not None}))

    def act(self, job: str, verb: str, key: str | None = None) -> JobView:
        """Request halt, resume, cancel, checkpoint or retry. A retry returns the new job."""
        return _read(JobView, self.request("POST", f"{_job(job)}/{verb}", {"key": key or new_key()}))

    def delete(self, job: str) -> None:
        """Delete an ended job's record and directory."""
        self.request("DELETE", _job(job))

    def why(self, job: str) -> list[str]:
        """Return sentences that explain the job's state."""
        return [str(one) for one in self.request("GET", f"{_job(job)}/why")["sentences"]]

    def events(self, job: str) -> list[dict[str, Any]]:
        """Return all events of the job: `row`, `at_s`, `kind`, `text`."""
        found: list[dict[str, Any]] = self.request("GET", f"{_job(job)}/events")["events"]
        return found

    def source(self, job: str) -> tuple[str, list[str]]:
        """Return the job's train.py and the names of the files submitted with it."""
        found = self.request("GET", f"{_job(job)}/source")
        return str(found["source"]), [str(one) for one in found["files"]]

    def log(self, job: str, *, member: int | None = None, offset: int = 0, limit: int | None = None) -> dict[str, Any]:
        """Return part of one learner's log: `member`, `from`, `to`, `size`, `text`.

        A negative offset counts from the end.
        """
        found: dict[str, Any] = self.request(
            "GET", f"{_job(job)}/log", query={"member": member, "offset": offset, "limit": limit}
        )
        return found

    def metrics(self, job: str, offset: int = 0) -> dict[str, Any]:
        """Return metric records from a byte offset on: `from`, `to`, `size`, `records`."""
        found: dict[str, Any] = self.request("GET", f"{_job(job)}/metrics", query={"offset": offset})
        return found

    def curves(self, job: str, points: int = 200) -> dict[str, Json]:
        """Return metrics thinned for drawing: name -> [[step, time, value], ...]."""
        found: dict[str, Json] = self.request("GET", f"{_job(job)}/curves", query={"points": points})["curves"]
        return found

    def result(self, job: str, name: str) -> bytes:
        """Return the bytes of one result. They are only ever unpickled in the user's own process."""
        return self.fetch(f"{_job(job)}/results/{quote(name, safe='')}")

    def artifacts(self, job: str) -> list[dict[str, Any]]:
        """Return the files that the job wrote: `path`, `bytes`."""
        found: list[dict[str, Any]] = self.request("GET", f"{_job(job)}/artifacts")["artifacts"]
        return found

    def artifact(self, job: str, path: str) -> bytes:
        """Return the bytes of one artifact."""
        return self.fetch(f"{_job(job)}/artifacts/{quote(path)}")

    def report(self, job: str) -> str:
        """Return spec, versions, failure and last log lines as text with secrets masked."""
        return self.fetch(f"{_job(job)}/report").decode(errors="replace")

    def stream(
        self, job: str, cursor: Cursor, *, want: Sequence[str] = ("view", "log", "metrics"), wait_s: float = 20.0
    ) -> tuple[list[dict[str, Any]], Cursor]:
        """Return the messages newer than `cursor`, waiting up to `wait_s` for one, and the cursor after them.

        See `follow` for a stream without gaps.
        """
        query = {
            "row": cursor.row,
            "metrics": cursor.metrics,
            "logs": ",".join(f"{member}:{offset}" for member, offset in sorted(cursor.logs.items())),
            "want": ",".join(want),
            "wait_s": wait_s,
        }
        found = self.request("GET", f"{_job(job)}/stream", query=query, timeout_s=wait_s + 15.0)
        return list(found["messages"]), decode(Cursor, found["cursor"], unknown="ignore")

    def without_start(self) -> Client:
        """Return a client of the same endpoints that starts no engine, for callers that can do without one."""
        kept = [
            replace(endpoint, may_start=False) if isinstance(endpoint, SocketEndpoint) else endpoint
            for endpoint in self._endpoints
        ]
        return Client(at=kept)


def _send(connection: _Connection, method: str, target: str, body: Any, headers: Mapping[str, str]) -> None:
    """Send a request. A peer that closes during the body has already answered, so the error is ignored."""
    try:
        connection.request(method, target, body=body, headers=dict(headers))
    except (BrokenPipeError, ConnectionResetError):
        if connection.sock is None:
            raise


def _target(path: str, query: Mapping[str, object] | None) -> str:
    parameters = {key: value for key, value in (query or {}).items() if value is not None and value != ""}
    return f"dlaas/{path}" + (f"?{urlencode(parameters)}" if parameters else "")


def _node(node: str) -> str:
    return f"nodes/{quote(node, safe='')}"


def _job(job: str) -> str:
    return f"jobs/{quote(job, safe='')}"


def _read(kind: type[T], value: object) -> T:
    return decode(kind, value, unknown="ignore")


def _error(endpoint: Endpoint, status: int, raw: bytes) -> Exception:
    """Return the exception for an error answer.

    An answer in another form shows that the endpoint does not lead to an engine.
    """
    try:
        found = json.loads(raw)["error"]
        code, message = str(found["code"]), str(found["message"])
    except (ValueError, KeyError, TypeError):
        if status in _TRY_AGAIN:
            return Unavailable(f"the server responded with status {status}")
        if isinstance(endpoint, ServerEndpoint) and status in (301, 302, 401, 403, 404):
            return _Wrong(f"the Jupyter server has no dlaas extension, or rejects its own token ({status})")
        if status == 403:
            return NotAllowed("access denied: the engine belongs to another user")
        return DlaasError(f"the engine responded with status {status}: {raw[:200].decode(errors='replace')}")
    kind = ERRORS.get(code, DlaasError)
    return kind(message)
