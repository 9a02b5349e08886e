"""WebSocket of a page, shared by all its cards and the side panel."""

from __future__ import annotations

import asyncio
import json
import logging
from typing import Any, Final

import tornado.web
import tornado.websocket
from tornado.http1connection import HTTP1Connection

from dlaas_server.core.model.job import Job
from dlaas_server.engine.http import peer_user, refusal
from dlaas_server.engine.job_stream import WANTS, Message, Reader
from dlaas_server.engine.operations import Requests
from jupyter_dlaas.wire.codec import DlaasError, Invalid, decode, encode
from jupyter_dlaas.wire.protocol import PROTOCOL, Cursor, State

__all__ = ["StreamHandler"]

log = logging.getLogger("dlaas.engine")
BATCH_S: Final = 0.02
POOL_BATCH_S: Final = 0.1
HEARTBEAT_S: Final = 2.0
UNACKNOWLEDGED_BYTES_MAX: Final = 256 * 1024
ENDED_SHOWN: Final = 50
UNFINISHED_SHOWN: Final = 300
"""Number of jobs sent to a page: running jobs and the first of the queue; of the others only the names."""
_ENDED: Final = ",".join(state for state in State if state.is_final)
_UNFINISHED: Final = ",".join(state for state in State if not state.is_final)
READERS_MAX: Final = 500


class StreamHandler(tornado.websocket.WebSocketHandler):
    """Handler of the stream in WIRE.md. The first byte is sent at once; then data is collected for 20 ms."""

    def initialize(self, requests: Requests) -> None:
        """Set the connection's services; tornado calls this for each connection."""
        self.requests = requests
        self.user = ""
        self.readers: dict[str, Reader] = {}
        self.tasks: dict[str, asyncio.Task[None]] = {}
        self.unacknowledged_bytes = 0
        self.is_writable = asyncio.Event()
        self.is_writable.set()
        self.pool_news = asyncio.Event()
        self.pool_jobs: set[str] = set()

    def prepare(self) -> None:
        """Check the caller before the upgrade."""
        connection = self.request.connection
        assert isinstance(connection, HTTP1Connection), "only HTTP/1 is supported"
        try:
            self.user = peer_user(connection.stream.socket, self.request.headers.get("X-Dlaas-User"))
        except DlaasError as error:
            raise tornado.web.HTTPError(error.http_status, reason=str(error)) from None
        if self.request.method == "GET" and self.request.headers.get("Upgrade", "").lower() != "websocket":
            raise tornado.web.HTTPError(400, reason="this endpoint is a WebSocket: send an upgrade request")

    def write_error(self, status_code: int, **kwargs: Any) -> None:
        """Send a refusal before the upgrade as JSON."""
        self.set_status(status_code)
        self.set_header("Content-Type", "application/json")
        self.finish(json.dumps(refusal(self, status_code)))

    def check_origin(self, origin: str) -> bool:
        """Accept the connection: a Unix socket has no origin, and the Jupyter server checks the page's."""
        return True

    def open(self, *args: str, **kwargs: str) -> None:
        """Register the new connection."""
        lifecycle = self.requests.lifecycle
        self.set_nodelay(True)
        self._send(
            {
                "type": "hello",
                "protocol": PROTOCOL,
                "pool": lifecycle.pool.name,
                "engine": str(lifecycle.engine_id),
                "user": self.user,
                "is_admin": lifecycle.is_admin(self.user),
                "now_s": lifecycle.clock(),
            }
        )
        self._spawn("heartbeat", self._heartbeat())

    def on_message(self, message: str | bytes) -> None:
        """Handle one frame of the page. An invalid one is answered with an error and changes nothing."""
        try:
            frame = json.loads(message)
            if not isinstance(frame, dict):
                raise Invalid("a frame must be an object")
            self._take(frame)
        except DlaasError as error:
            self._send({"type": "error", "job": None, "code": error.code, "message": str(error)})
        except (ValueError, RecursionError) as error:
            self._send(
                {"type": "error", "job": None, "code": "invalid", "message": f"a frame is not valid JSON: {error}"}
            )

    def _take(self, frame: dict[str, Any]) -> None:
        match frame.get("type"):
            case "subscribe":
                self._subscribe(frame)
            case "unsubscribe":
                self._drop(str(frame.get("job")))
            case "subscribe_pool":
                if "pool" not in self.tasks:
                    self.requests.lifecycle.listeners.append(self)
                    self._spawn("pool", self._pump_pool())
            case "unsubscribe_pool":
                self._unsubscribe_pool()
            case "ack":
                taken = frame.get("bytes")
                if isinstance(taken, int) and taken > 0:
                    self.unacknowledged_bytes = max(self.unacknowledged_bytes - taken, 0)
                    self.is_writable.set()
            case "ping":
                self._send({"type": "heartbeat", "now_s": self.requests.lifecycle.clock()})
            case other:
                raise Invalid(f"type: unknown frame type {str(other)[:40]!r}")

    def _subscribe(self, frame: dict[str, Any]) -> None:
        handle = frame.get("job")
        if not isinstance(handle, str):
            raise Invalid("job: is missing")
        want = frame.get("want", list(WANTS))
        if not isinstance(want, list) or any(w not in WANTS for w in want):
            raise Invalid(f"want: use a list with one or more of {', '.join(WANTS)}")
        cursor = decode(Cursor, frame.get("cursor") or {}, where="cursor")
        try:
            job = self.requests.find(self.user, handle).id
        except DlaasError as error:
            self._send({"type": "error", "job": handle[:200], "code": error.code, "message": str(error)})
            return
        self._drop(job)
        if len(self.readers) >= READERS_MAX:
            raise Invalid(f"at most {READERS_MAX} jobs on one connection")
        reader = Reader(self.requests.lifecycle, job, cursor.row, cursor.metrics, dict(cursor.logs), want)
        self.readers[job] = reader
        self.requests.watchers.add(reader)
        self._spawn(f"job {job}", self._pump(reader))

    def _drop(self, job: str) -> None:
        reader = self.readers.pop(job, None)
        if reader is not None:
            self.requests.watchers.remove(reader)
            self.tasks.pop(f"job {job}").cancel()

    async def _pump(self, reader: Reader) -> None:
        while True:
            messages = await reader.messages()
            if messages:
                # Counted before they are written: an acknowledgement may arrive while they are written.
                self.unacknowledged_bytes += reader.bytes_sent
                reader.bytes_sent = 0
                for message in messages:
                    await self._write(message)
                if self.unacknowledged_bytes >= UNACKNOWLEDGED_BYTES_MAX:
                    self.is_writable.clear()
                    await self.is_writable.wait()
                await asyncio.sleep(BATCH_S)
            else:
                await reader.news.wait()

    async def _pump_pool(self) -> None:
        lifecycle = self.requests.lifecycle
        shown = self.requests.jobs(self.user, state=_UNFINISHED, owner=None, limit=UNFINISHED_SHOWN)
        shown += self.requests.jobs(self.user, state=_ENDED, owner=None, limit=ENDED_SHOWN)
        sent = {view.id for view in shown}
        await self._write({"type": "jobs", "jobs": encode(sorted(shown, key=lambda v: -v.number))})
        await self._write({"type": "pool", "pool": encode(lifecycle.pool_view())})
        while True:
            await self.pool_news.wait()
            self.pool_news.clear()
            changed, self.pool_jobs = self.pool_jobs, set()
            for job_id in sorted(changed - self.readers.keys()):
                job = lifecycle.jobs.get(job_id)
                if job is None:
                    await self._write({"type": "gone", "job": job_id})
                elif job.owner == self.user and (job_id in sent or self._is_near(job)):
                    sent.add(job_id)
                    await self._write({"type": "job", "job": encode(lifecycle.view(job))})
            await self._write({"type": "pool", "pool": encode(lifecycle.pool_view())})
            await asyncio.sleep(POOL_BATCH_S)

    def _is_near(self, job: Job) -> bool:
        """Return whether the job is not far back in a long queue, where places change all the time."""
        waits = self.requests.lifecycle.waits
        wait = waits.get(job.id)
        return (
            job.state is not State.QUEUED
            or len(waits) < UNFINISHED_SHOWN
            or (wait is not None and wait.place < UNFINISHED_SHOWN)
        )

    def job_changed(self, job: str) -> None:
        """Implement `Listener`."""
        self.pool_jobs.add(job)

    def stream_changed(self, job: str, stream: str) -> None:
        """Implement `Listener`: logs and metrics go to the readers."""

    def pool_changed(self) -> None:
        """Implement `Listener`."""
        self.pool_news.set()

    async def _heartbeat(self) -> None:
        while True:
            self.requests.lifecycle.touch()  # an engine with an open page is not idle: the page would start it again
            await asyncio.sleep(HEARTBEAT_S)
            await self._write({"type": "heartbeat", "now_s": self.requests.lifecycle.clock()})

    def _send(self, message: Message) -> None:
        self._spawn(f"send {id(message)}", self._write(message))

    async def _write(self, message: Message) -> None:
        try:
            await self.write_message(json.dumps(message, separators=(",", ":")))
        except tornado.websocket.WebSocketClosedError:
            self._end()

    def _spawn(self, name: str, work: Any) -> None:
        task: asyncio.Task[None] = asyncio.create_task(work, name=name)
        self.tasks[name] = task
        task.add_done_callback(lambda done: self._ended(name, done))

    def _ended(self, name: str, task: asyncio.Task[None]) -> None:
        if self.tasks.get(name) is task:
            del self.tasks[name]
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("task %s of a stream failed", name, exc_info=error)
            self.close(1011, "internal error in the engine; reconnect")

    def _unsubscribe_pool(self) -> None:
        if self in self.requests.lifecycle.listeners:
            self.requests.lifecycle.listeners.remove(self)
        task = self.tasks.pop("pool", None)
        if task is not None:
            task.cancel()

    def on_close(self) -> None:
        """Remove the readers of the closed connection."""
        self._end()

    def _end(self) -> None:
        self._unsubscribe_pool()
        for reader in self.readers.values():
            self.requests.watchers.remove(reader)
        self.readers.clear()
        current = asyncio.current_task()
        for task in list(self.tasks.values()):
            if task is not current:
                task.cancel()
        self.tasks.clear()

    def get_compression_options(self) -> dict[str, Any] | None:
        """Return None, for no compression: frames are small and stay on the machine."""
        return None
