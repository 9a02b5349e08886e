"""Endpoint of the engine: HTTP and a WebSocket on the pool's Unix socket. Parses, calls `Requests`, and answers."""

from __future__ import annotations

import asyncio
import functools
import hashlib
import json
import logging
import os
import pwd
import socket
import struct
import tempfile
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, BinaryIO, Final, TypeVar

import tornado.iostream
import tornado.web
from tornado.http1connection import HTTP1Connection

from dlaas_server.core.model.states import Event
from dlaas_server.engine.blobs import PARTIAL
from dlaas_server.engine.operations import Requests
from dlaas_server.engine.pool_admin import Administration
from dlaas_server.rest.routes import ROUTES, Change, DrainAsked, Keyed, PoolChange, QueueChange, Route, Warm, describe
from jupyter_dlaas.wire.codec import DlaasError, Invalid, Json, decode, encode
from jupyter_dlaas.wire.protocol import PROTOCOL, Forbidden, NotAllowed, Submit, TooOld

__all__ = ["BODY_BYTES_MAX", "application", "peer_user", "refusal", "user_name"]

log = logging.getLogger("dlaas.engine")
T = TypeVar("T")
BODY_BYTES_MAX: Final = 64 * 2**20
BLOB_BYTES_MAX: Final = 2**30 + 2**20
COPY_BYTES: Final = 2**20
_UCRED: Final = struct.Struct("3i")


def peer_user(connection: socket.socket, vouched: str | None) -> str:
    """Return the peer's user, or the user for whom a relay of the engine's own user vouches. Raises Forbidden."""
    _pid, uid, _gid = _UCRED.unpack(connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _UCRED.size))
    if uid not in (os.getuid(), 0):
        raise Forbidden("this pool belongs to another user")
    if vouched:
        return vouched
    return user_name(os.getuid())


@functools.cache
def user_name(uid: int) -> str:
    """Return the name of a user; containers often run as one that has none."""
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return f"uid-{uid}"


def application(requests: Requests, websocket: type[tornado.web.RequestHandler]) -> tornado.web.Application:
    """Return the application with all routes of `rest.routes.ROUTES` that the engine serves."""
    handlers: list[tuple[str, type[tornado.web.RequestHandler], dict[str, Any]]] = []
    by_path: dict[str, list[Route]] = {}
    for route in ROUTES:
        if route.operation in _OPERATIONS or route.operation == "put_blob" or route.is_websocket:
            by_path.setdefault(route.regex, []).append(route)
    for regex, routes in by_path.items():
        if routes[0].is_websocket:
            handlers.append((regex, websocket, {"requests": requests}))
        elif routes[0].operation == "put_blob":
            handlers.append((regex, BlobHandler, {"requests": requests}))
        else:
            operations = {route.method: _OPERATIONS[route.operation] for route in routes}
            handlers.append((regex, Handler, {"requests": requests, "operations": operations}))
    return tornado.web.Application(handlers, default_handler_class=UnknownPath, log_function=_log_request)


def _log_request(handler: tornado.web.RequestHandler) -> None:
    if handler.get_status() >= 500:
        log.error("%s %s -> %d", handler.request.method, handler.request.path, handler.get_status())


class Base(tornado.web.RequestHandler):
    """Base of all handlers: identifies the caller and sends errors as JSON."""

    def caller(self) -> str:
        """Return the calling user. Raises Forbidden, TooOld."""
        version = self.request.headers.get("X-Dlaas-Protocol")
        if version is not None and version != str(PROTOCOL):
            raise TooOld(f"the engine uses protocol {PROTOCOL}, the client {version[:20]}: update the older of the two")
        connection = self.request.connection
        assert isinstance(connection, HTTP1Connection), "only HTTP/1 is supported"
        return peer_user(connection.stream.socket, self.request.headers.get("X-Dlaas-User"))

    def answer(self, body: object, status: int = 200) -> None:
        """Send JSON."""
        self.set_status(status)
        self.set_header("Content-Type", "application/json")
        self.finish(json.dumps(body, separators=(",", ":")))

    def fail(self, error: DlaasError) -> None:
        """Send an error as JSON."""
        self.answer(error.as_json(), error.http_status)

    def write_error(self, status_code: int, **kwargs: Any) -> None:
        """Send tornado's own refusals (bad method, body too large) in the same form."""
        self.answer(refusal(self, status_code), status_code)


def refusal(handler: tornado.web.RequestHandler, status: int) -> dict[str, Json]:
    """Return the error of a request that was refused before any operation."""
    unknown = "not an operation; GET dlaas/openapi.json describes all operations"
    reason = unknown if status in (404, 405) else handler._reason
    code = {404: "not_found", 405: "invalid", 400: "invalid", 413: "invalid"}.get(status, "internal")
    return {"error": {"code": code, "message": f"{handler.request.method} {handler.request.path}: {reason}"}}


class UnknownPath(Base):
    """Handler of unknown paths."""

    def prepare(self) -> None:
        """Refuse the request before its body is read."""
        raise tornado.web.HTTPError(404)


class Handler(Base):
    """Handler with a JSON request and a JSON or binary answer."""

    def initialize(self, requests: Requests, operations: dict[str, Operation]) -> None:
        """Set the handler's route and operations; tornado calls this for each request."""
        self.requests = requests
        self.administration = Administration(requests.lifecycle)
        self.operations = operations

    async def _run(self, *path_arguments: str) -> None:
        operation = self.operations.get(self.request.method or "")
        if operation is None:
            raise tornado.web.HTTPError(405)
        try:
            await operation(self, self.caller(), *path_arguments)
        except DlaasError as error:
            self.fail(error)
        except tornado.iostream.StreamClosedError:
            return

    get = post = patch = put = delete = _run

    def body(self, kind: type[T], *, required: bool = True) -> T:
        """Return the body as a record. Raises Invalid."""
        raw = self.request.body
        if not raw and not required:
            return decode(kind, {})
        try:
            value = json.loads(raw)
        except (ValueError, RecursionError) as error:
            raise Invalid(f"body: not valid JSON ({error})") from None
        return decode(kind, value)

    def text_of(self, name: str, default: str = "") -> str:
        """Return a query parameter. Raises Invalid if it is not text."""
        try:
            return self.get_query_argument(name, default)
        except tornado.web.HTTPError:
            raise Invalid(f"{name}: not valid text") from None

    def whole(self, name: str, default: int, minimum: int, maximum: int) -> int:
        """Return an integer of the query. Raises Invalid."""
        text = self.text_of(name)
        if not text:
            return default
        digits = text.removeprefix("-")
        if not (digits.isascii() and digits.isdigit() and len(digits) < 18 and minimum <= int(text) <= maximum):
            raise Invalid(f"{name}: '{text[:40]}' must be a whole number from {minimum} to {maximum}")
        return int(text)

    def seconds(self, name: str, default: float, maximum: float) -> float:
        """Return a duration of the query in seconds. Raises Invalid."""
        text = self.text_of(name)
        try:
            value = float(text) if text else default
        except ValueError:
            value = -1.0
        if not 0 <= value <= maximum:
            raise Invalid(f"{name}: '{text[:40]}' must be a number from 0 to {maximum:g}")
        return value

    async def send_file(self, job: str, path: str, size: int) -> None:
        """Stream one file of a job."""
        self.set_header("Content-Type", "application/octet-stream")
        self.set_header("Content-Length", str(size))
        self.set_header("Content-Disposition", "attachment")
        self.set_header("X-Content-Type-Options", "nosniff")
        offset = 0
        while offset < size:
            data = await self.requests.lifecycle.pool.get(job, path, offset, min(COPY_BYTES, size - offset))
            if not data:
                break
            offset += len(data)
            self.write(data)
            await self.flush()
        await self.finish()


Operation = Callable[..., Awaitable[None]]


async def _get_pool(h: Handler, user: str) -> None:
    h.answer(encode(h.requests.lifecycle.pool_view()))


async def _pool_events(h: Handler, user: str) -> None:
    h.answer({"events": await h.administration.events(user)})


async def _change_pool(h: Handler, user: str) -> None:
    h.answer(encode(await h.administration.change_pool(user, h.body(PoolChange))))


async def _set_queue(h: Handler, user: str, queue: str) -> None:
    h.answer(encode(await h.administration.set_queue(user, queue, h.body(QueueChange))))


async def _remove_queue(h: Handler, user: str, queue: str) -> None:
    h.answer(encode(await h.administration.remove_queue(user, queue)))


async def _cordon(h: Handler, user: str, node: str) -> None:
    h.answer(encode(await h.administration.cordon(user, node)))


async def _uncordon(h: Handler, user: str, node: str) -> None:
    h.answer(encode(await h.administration.uncordon(user, node)))


async def _preview_drain(h: Handler, user: str, node: str) -> None:
    h.answer(encode(h.administration.preview(user, node)))


async def _drain(h: Handler, user: str, node: str) -> None:
    h.answer(encode(await h.administration.drain(user, node, h.body(DrainAsked, required=False))))


async def _list_jobs(h: Handler, user: str) -> None:
    state, owner = h.text_of("state") or None, h.text_of("owner") or None
    views = h.requests.jobs(user, state=state, owner=owner, limit=h.whole("limit", 200, 1, 10_000))
    h.answer({"jobs": encode(views)})


async def _submit(h: Handler, user: str) -> None:
    view, is_new = await h.requests.submit(user, h.body(Submit))
    h.answer(encode(view), 201 if is_new else 200)


async def _retry(h: Handler, user: str, job: str) -> None:
    view, is_new = await h.requests.retry(user, job, h.body(Keyed, required=False))
    h.answer(encode(view), 201 if is_new else 200)


async def _preflight(h: Handler, user: str) -> None:
    h.answer(await h.requests.preflight(user, h.body(Submit)))


async def _warm(h: Handler, user: str) -> None:
    h.answer({"is_warm": await h.requests.warm(h.body(Warm))})


async def _get_job(h: Handler, user: str, job: str) -> None:
    h.answer(encode(h.requests.lifecycle.view(h.requests.find(user, job))))


async def _change(h: Handler, user: str, job: str) -> None:
    h.answer(encode(await h.requests.change(user, job, h.body(Change))))


def _action(event: Event) -> Operation:
    async def run(h: Handler, user: str, job: str) -> None:
        h.body(Keyed, required=False)
        h.answer(encode(await h.requests.act(user, job, event)))

    return run


async def _delete(h: Handler, user: str, job: str) -> None:
    h.answer(await h.requests.delete(user, job))


async def _why(h: Handler, user: str, job: str) -> None:
    h.answer({"sentences": await h.requests.why(user, job)})


async def _events(h: Handler, user: str, job: str) -> None:
    h.answer({"events": await h.requests.events(user, job)})


async def _source(h: Handler, user: str, job: str) -> None:
    h.answer(await h.requests.source(user, job))


async def _log(h: Handler, user: str, job: str) -> None:
    member = h.whole("member", -1, 0, 2**53)
    offset, limit = h.whole("offset", 0, -(2**53), 2**53), h.whole("limit", 2**20, 1, 2**26)
    h.answer(await h.requests.log(user, job, member=None if member < 0 else member, offset=offset, limit=limit))


async def _metrics(h: Handler, user: str, job: str) -> None:
    h.answer(await h.requests.metrics(user, job, offset=h.whole("offset", 0, -(2**53), 2**53)))


async def _curves(h: Handler, user: str, job: str) -> None:
    h.answer(await h.requests.curves(user, job, points=h.whole("points", 200, 2, 10_000)))


async def _result(h: Handler, user: str, job: str, name: str) -> None:
    await h.send_file(*await h.requests.result(user, job, name))


async def _artifacts(h: Handler, user: str, job: str) -> None:
    h.answer({"artifacts": await h.requests.artifacts(user, job)})


async def _artifact(h: Handler, user: str, job: str, path: str) -> None:
    await h.send_file(*await h.requests.file_of(user, job, path))


async def _report(h: Handler, user: str, job: str) -> None:
    text = await h.requests.report(user, job)
    h.set_header("Content-Type", "text/plain; charset=utf-8")
    h.set_header("X-Content-Type-Options", "nosniff")
    await h.finish(text)


async def _stream(h: Handler, user: str, job: str) -> None:
    row, metrics = h.whole("row", 0, 0, 2**53), h.whole("metrics", 0, 0, 2**53)
    logs, want, wait_s = h.text_of("logs"), h.text_of("want"), h.seconds("wait_s", 0.0, 60.0)
    h.answer(await h.requests.stream(user, job, row=row, metrics=metrics, logs=logs, want=want, wait_s=wait_s))


async def _describe(h: Handler, user: str) -> None:
    h.answer(describe())


_OPERATIONS: Final[dict[str, Operation]] = {
    "get_pool": _get_pool,
    "events_of_pool": _pool_events,
    "change_pool": _change_pool,
    "set_queue": _set_queue,
    "remove_queue": _remove_queue,
    "cordon_node": _cordon,
    "uncordon_node": _uncordon,
    "preview_drain": _preview_drain,
    "drain_node": _drain,
    "list_jobs": _list_jobs,
    "submit_job": _submit,
    "get_job": _get_job,
    "change_job": _change,
    "halt_job": _action(Event.HALT),
    "resume_job": _action(Event.RESUME),
    "cancel_job": _action(Event.CANCEL),
    "checkpoint_job": _action(Event.CHECKPOINT),
    "retry_job": _retry,
    "delete_job": _delete,
    "why_job": _why,
    "events_of_job": _events,
    "source_of_job": _source,
    "log_of_job": _log,
    "metrics_of_job": _metrics,
    "curves_of_job": _curves,
    "result_of_job": _result,
    "list_artifacts": _artifacts,
    "get_artifact": _artifact,
    "report_of_job": _report,
    "stream_of_job": _stream,
    "preflight": _preflight,
    "warm": _warm,
    "describe": _describe,
}


@tornado.web.stream_request_body
class BlobHandler(Base):
    """Upload of bytes for a later submit: streamed to disk and kept under their SHA-256."""

    def initialize(self, requests: Requests) -> None:
        """Set the handler's route and operations; tornado calls this for each request."""
        self.requests = requests
        self.partial: BinaryIO | None = None
        self.name = ""

    def prepare(self) -> None:
        """Check the caller before a byte is read."""
        if self.request.method != "PUT":
            raise tornado.web.HTTPError(405)
        self.error: DlaasError | None = None
        try:
            self.caller()
        except DlaasError as error:
            self.error = error
            return
        connection = self.request.connection
        assert isinstance(connection, HTTP1Connection), "only HTTP/1 is supported"
        connection.set_max_body_size(BLOB_BYTES_MAX)
        folder = self.requests.blobs.folder
        folder.mkdir(mode=0o700, exist_ok=True)
        descriptor, self.name = tempfile.mkstemp(dir=folder, prefix=PARTIAL)
        self.partial = os.fdopen(descriptor, "wb")
        self.digest = hashlib.sha256()
        self.size = 0

    def data_received(self, chunk: bytes) -> None:
        """Write one piece to the file."""
        if self.error is not None:
            return
        self.size += len(chunk)
        self.digest.update(chunk)
        assert self.partial is not None, "opened in prepare"
        try:
            self.partial.write(chunk)
        except OSError as error:
            self.error = NotAllowed(f"the bytes could not be stored: {error.strerror}")

    async def put(self, sha256: str) -> None:
        """Keep the complete upload if its digest matches."""
        if self.error is not None:
            return self.fail(self.error)
        found = self.digest.hexdigest()
        if found != sha256:
            return self.fail(Invalid(f"the bytes have the SHA-256 {found}, not {sha256[:80]}"))
        self.requests.blobs.hold(sha256)
        await asyncio.to_thread(self._keep, self.requests.blobs.path(sha256))
        return self.answer({"sha256": sha256, "bytes": self.size})

    def _keep(self, to: Path) -> None:
        assert self.partial is not None, "opened in prepare"
        self.partial.flush()
        os.fsync(self.partial.fileno())
        self.partial.close()
        Path(self.name).replace(to)

    def on_finish(self) -> None:
        """Remove an incomplete upload."""
        self._drop()

    def on_connection_close(self) -> None:
        """Remove an upload whose sender disconnected."""
        self._drop()

    def _drop(self) -> None:
        if self.partial is not None:
            self.partial.close()
            Path(self.name).unlink(missing_ok=True)
            self.partial = None
