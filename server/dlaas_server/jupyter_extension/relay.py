"""Relay from the Jupyter server to the engine's socket: one call per connection, streamed in both directions.

It starts the engine on demand. It is transport only: the handlers check permissions, and the engine answers. The user's
name that the engine receives is the one with which this relay was created, never part of the request.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterable, Awaitable, Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

from tornado.http1connection import HTTP1Connection, HTTP1ConnectionParameters
from tornado.httpclient import HTTPClientError, HTTPRequest
from tornado.httputil import HTTPHeaders, HTTPInputError, HTTPMessageDelegate, RequestStartLine, ResponseStartLine
from tornado.iostream import IOStream, StreamClosedError
from tornado.netutil import Resolver
from tornado.websocket import WebSocketClientConnection, websocket_connect

from jupyter_dlaas.client import discovery
from jupyter_dlaas.client.discovery import SocketEndpoint
from jupyter_dlaas.wire.protocol import Unavailable

__all__ = ["PAUSES_S", "Answer", "Broken", "Link"]

CONNECT_S: Final = 2.0
PAUSES_S: Final = (0.01, 0.05, 0.2)
"""Delays before a request is repeated during which the engine died."""
ANSWER_BYTES_MAX: Final = 256 * 2**20
"""Maximum size of an answer in memory; raw bytes are relayed piece by piece without limit."""
_ENDLESS: Final = 2**50
USER_HEADER: Final = "X-Dlaas-User"


class Broken(Exception):
    """The connection to the engine ended before the answer was complete; `has_begun`: part of it was received."""

    def __init__(self, has_begun: bool) -> None:
        super().__init__("the engine stopped during a request")
        self.has_begun = has_begun


@dataclass(slots=True)
class Answer:
    """Answer of the engine; `body` is empty if it was relayed piece by piece."""

    status: int = 0
    headers: HTTPHeaders = field(default_factory=HTTPHeaders)
    body: bytearray = field(default_factory=bytearray)
    is_whole: bool = False


class _Reader(HTTPMessageDelegate):
    """Reader of one answer. A slow consumer slows the engine down, since each piece is awaited."""

    def __init__(self, on_piece: Callable[[Answer, bytes], Awaitable[None]] | None) -> None:
        self.answer = Answer()
        self._on_piece = on_piece

    def headers_received(
        self, start_line: RequestStartLine | ResponseStartLine, headers: HTTPHeaders
    ) -> Awaitable[None] | None:
        assert isinstance(start_line, ResponseStartLine)
        self.answer.status, self.answer.headers = start_line.code, headers
        return None

    def data_received(self, chunk: bytes) -> Awaitable[None] | None:
        if self._on_piece is not None:
            return self._on_piece(self.answer, chunk)
        self.answer.body += chunk
        return None

    def finish(self) -> None:
        self.answer.is_whole = True

    def on_connection_close(self) -> None:
        self.answer.is_whole = False


class _ToSocket(Resolver):
    """Resolver that connects a WebSocket client to a Unix socket, whatever host its URL names."""

    def initialize(self, path: str = "") -> None:
        self._path = path

    async def resolve(
        self, host: str, port: int, family: socket.AddressFamily = socket.AF_UNSPEC
    ) -> list[tuple[int, str]]:
        return [(socket.AF_UNIX, self._path)]


def _close_unused(starting: asyncio.Future[socket.socket]) -> None:
    if not starting.cancelled() and starting.exception() is None:
        starting.result().close()


class Link:
    """Connection to a pool's engine."""

    def __init__(self, endpoint: SocketEndpoint, user: str | None = None) -> None:
        """Create the link. `user`: name for which this server vouches (JupyterHub); None: peer credentials decide."""
        self.endpoint = endpoint
        self._user = user
        self._starting = asyncio.Lock()
        self._open: set[IOStream] = set()

    @property
    def path(self) -> Path:
        """Path of the engine's socket."""
        return self.endpoint.directory / discovery.SOCKET

    async def connect(self, *, may_start: bool = True) -> IOStream:
        """Return a stream to the engine, which is started if necessary.

        Raises Unavailable, and Invalid if the server is configured with a pool that does not exist.
        """
        try:
            one = discovery.connect(replace(self.endpoint, may_start=False), CONNECT_S)
        except Unavailable:
            if not (may_start and self.endpoint.may_start):
                raise
            async with self._starting:  # of ten requests at once, one starts it
                one = await self._started()
        except OSError as error:
            raise Unavailable(
                f"the engine does not accept connections ({error}); it may be stopped or overloaded"
            ) from None
        return IOStream(one, max_buffer_size=ANSWER_BYTES_MAX)

    async def _started(self) -> socket.socket:
        """Return a connection to the engine that this starts. A caller that leaves meanwhile leaves no connection."""
        starting = asyncio.ensure_future(asyncio.to_thread(discovery.connect, self.endpoint, CONNECT_S))
        try:
            return await asyncio.shield(starting)
        except asyncio.CancelledError:
            starting.add_done_callback(_close_unused)
            raise

    async def call(
        self,
        method: str,
        target: str,
        headers: Mapping[str, str],
        body: bytes | AsyncIterable[bytes] | None = None,
        *,
        timeout_s: float,
        on_piece: Callable[[Answer, bytes], Awaitable[None]] | None = None,
        may_start: bool = True,
        stream: IOStream | None = None,
    ) -> Answer:
        """Make one request. `on_piece` gets the body piece by piece (then the answer's own body stays empty).

        Raises Unavailable (no engine, timeout) or Broken (the engine died during the request).
        """
        stream = stream or await self.connect(may_start=may_start)
        reader = _Reader(on_piece)
        self._open.add(stream)
        try:
            async with asyncio.timeout(timeout_s):
                await self._exchange(stream, method, target, headers, body, reader, on_piece is not None)
        except TimeoutError:
            raise Unavailable(f"the engine did not answer within {timeout_s:g} s") from None
        finally:
            self._open.discard(stream)
            stream.close()
        if not reader.answer.is_whole:
            raise Broken(bool(reader.answer.status))
        return reader.answer

    async def _exchange(
        self,
        stream: IOStream,
        method: str,
        target: str,
        headers: Mapping[str, str],
        body: bytes | AsyncIterable[bytes] | None,
        reader: _Reader,
        is_streamed: bool,
    ) -> None:
        limit = _ENDLESS if is_streamed else ANSWER_BYTES_MAX
        connection = HTTP1Connection(
            stream, True, HTTP1ConnectionParameters(no_keep_alive=True, max_body_size=limit, decompress=False)
        )
        sent = HTTPHeaders({"Host": "localhost", "Connection": "close", **headers})
        if self._user is not None:
            sent[USER_HEADER] = self._user
        if isinstance(body, bytes):
            sent["Content-Length"] = str(len(body))
        elif body is None and method not in ("GET", "HEAD"):
            sent["Content-Length"] = "0"
        writing = asyncio.ensure_future(_write(connection, RequestStartLine(method, target, ""), sent, body))
        try:
            # Read while writing: who refuses a large body answers before it has come.
            with contextlib.suppress(StreamClosedError, HTTPInputError):  # then the answer is not whole
                await connection.read_response(reader)
        finally:
            writing.cancel()
            with contextlib.suppress(asyncio.CancelledError, StreamClosedError):
                await writing

    async def websocket(self) -> WebSocketClientConnection:
        """Open a WebSocket to the engine's stream; the engine is started if necessary."""
        for pause_s in PAUSES_S:
            try:
                return await self._websocket()
            except OSError:
                await asyncio.sleep(pause_s)
        try:
            return await self._websocket()
        except OSError as error:
            raise Unavailable(f"the connection to the engine was lost: {error}") from None

    async def _websocket(self) -> WebSocketClientConnection:
        (await self.connect()).close()
        headers = {} if self._user is None else {USER_HEADER: self._user}
        with discovery.short_path(self.path) as name:
            request = HTTPRequest("ws://localhost/dlaas/stream", headers=headers, connect_timeout=CONNECT_S)
            try:
                return await websocket_connect(request, resolver=_ToSocket(path=name))
            except HTTPClientError as error:
                raise OSError(f"cannot open the WebSocket ({error})") from None

    def close(self) -> None:
        """Close all running calls."""
        for stream in list(self._open):
            stream.close()


async def _write(
    connection: HTTP1Connection,
    start: RequestStartLine,
    headers: HTTPHeaders,
    body: bytes | AsyncIterable[bytes] | None,
) -> None:
    await connection.write_headers(start, headers, body if isinstance(body, bytes) and body else None)
    if body is not None and not isinstance(body, bytes):
        async for piece in body:
            await connection.write(piece)
    connection.finish()
