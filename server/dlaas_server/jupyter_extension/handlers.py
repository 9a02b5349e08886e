"""Request handlers of the extension: check, then relay. See `extension.py`."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import sys
from collections.abc import AsyncIterator, Awaitable, Mapping
from typing import Any, Final

from jupyter_server.auth.decorator import authorized, ws_authenticated
from jupyter_server.base.handlers import APIHandler, JupyterHandler
from jupyter_server.base.websocket import WebSocketMixin
from jupyter_server.utils import ensure_async
from tornado import web
from tornado.iostream import IOStream, StreamClosedError
from tornado.websocket import WebSocketClientConnection, WebSocketClosedError, WebSocketHandler

from dlaas_server.jupyter_extension.relay import PAUSES_S, Answer, Broken, Link
from dlaas_server.rest.routes import Endpoint, NotebookCheck, NotebookSubmit, Route, describe
from jupyter_dlaas.wire.codec import DlaasError, Invalid, decode, encode
from jupyter_dlaas.wire.protocol import Refused, Unavailable

__all__ = ["NotebookHandler", "OpenApiHandler", "RelayHandler", "StreamHandler", "UploadHandler"]

BODY_BYTES_MAX: Final = 64 * 2**20
"""Maximum size of a JSON body; larger data is sent as blobs."""
BLOB_BYTES_MAX: Final = 4 * 2**30
_PASSED: Final = ("Accept", "Content-Type", "X-Dlaas-Protocol")
_JUPYTERS_OWN: Final = ("token", "_xsrf", "no_track_activity")
_JSON: Final = "application/json"


class TooLarge(Invalid):
    """The body exceeds the maximum size."""

    http_status = 413


class DlaasHandler(APIHandler):
    """Base of the handlers: resource for the authorizer, errors as JSON, no caching."""

    auth_resource = "dlaas"

    def initialize(self, link: Link, routes: Mapping[str, Route]) -> None:
        self.link = link
        self.routes = routes
        self.call_stream: IOStream | None = None

    async def prepare(self) -> None:  # type: ignore[override]
        # An open tab that polls is no activity, else it would keep the server from being culled for ever.
        self._track_activity = self.request.method != "GET"
        await super().prepare()

    def set_default_headers(self) -> None:
        super().set_default_headers()
        self.set_header("X-Content-Type-Options", "nosniff")
        self.set_header("Cache-Control", "no-store")

    def on_connection_close(self) -> None:
        """Cancel the engine's request (a long poll, a large result) of a browser that disconnected."""
        if self.call_stream is not None:
            self.call_stream.close()

    async def finish_error(self, error: DlaasError) -> None:
        """Answer with an error in the engine's form."""
        self.set_status(error.http_status)
        await self.finish(error.as_json())

    def asked(self) -> Any:
        """Return the request's body as JSON. Raises TooLarge or Invalid."""
        if len(self.request.body) > BODY_BYTES_MAX:
            raise TooLarge(f"body: larger than {BODY_BYTES_MAX >> 20} MiB")
        try:
            return json.loads(self.request.body)
        except (ValueError, RecursionError) as error:
            raise Invalid(f"body: not valid JSON ({error})") from None

    def target(self) -> str:
        """Return path and query of the request for the engine, without this server's base URL and token."""
        base = self.base_url.rstrip("/")
        uri = self.request.uri or "/"
        path, mark, query = (uri.removeprefix(base) if base else uri).partition("?")
        kept = [one for one in query.split("&") if one.partition("=")[0] not in _JUPYTERS_OWN]
        return path + mark + "&".join(kept)

    def passed_headers(self) -> dict[str, str]:
        """Return the headers for the engine; never a cookie, a token, or a user's name."""
        return {name: self.request.headers[name] for name in _PASSED if name in self.request.headers}


class RelayHandler(DlaasHandler):
    """Handler of all routes whose body fits into memory; raw answers are relayed piece by piece."""

    @web.authenticated
    @authorized
    async def get(self, *_places: str) -> None:
        await self.relay()

    @web.authenticated
    @authorized
    async def post(self, *_places: str) -> None:
        await self.relay()

    @web.authenticated
    @authorized
    async def put(self, *_places: str) -> None:
        await self.relay()

    @web.authenticated
    @authorized
    async def patch(self, *_places: str) -> None:
        await self.relay()

    @web.authenticated
    @authorized
    async def delete(self, *_places: str) -> None:
        await self.relay()

    async def relay(self) -> None:
        """Relay the request; repeat it if the engine dies meanwhile (every request may be repeated)."""
        route = self.routes.get(self.request.method or "")
        if route is None:
            raise web.HTTPError(405)
        if len(self.request.body) > BODY_BYTES_MAX:
            await self.finish_error(TooLarge(f"body: larger than {BODY_BYTES_MAX >> 20} MiB; send files as blobs"))
            return
        try:
            answer = await self._call_again(route)
        except DlaasError as error:
            await self.finish_error(error)
            return
        except Broken as broken:
            if self._headers_written:  # half of a result has gone out: the reader must see that it is not whole
                self._cut_off()
            else:
                await self.finish_error(Unavailable(f"{broken}; try again"))
            return
        if not self._headers_written:
            self.set_status(answer.status)
        if answer.status >= 400 or route.response_media == _JSON:
            await self.finish(bytes(answer.body))
        else:
            self._set_raw_headers(route, answer)
            await self.finish(set_content_type=route.response_media)

    async def _call_again(self, route: Route) -> Answer:
        """Call the engine, and repeat later if it dies meanwhile; a dying one may still accept connections."""
        for pause_s in PAUSES_S:
            try:
                return await self._call(route)
            except Broken:
                if self._headers_written:
                    raise
            await asyncio.sleep(pause_s)
        return await self._call(route)

    async def _call(self, route: Route) -> Answer:
        is_raw = route.response_media != _JSON
        has_body = self.request.method not in ("GET", "HEAD")
        self.call_stream = await self.link.connect()
        try:
            return await self.link.call(
                route.method,
                self.target(),
                self.passed_headers(),
                self.request.body if has_body else None,
                timeout_s=3600.0 if is_raw else 90.0,
                on_piece=self._on_raw if is_raw else None,
                stream=self.call_stream,
            )
        finally:
            self.call_stream = None

    async def _on_raw(self, answer: Answer, piece: bytes) -> None:
        """Send one piece of raw bytes to the browser, at its pace."""
        if answer.status >= 400:
            answer.body += piece
            return
        if not self._headers_written:
            self.set_status(answer.status)
            self._set_raw_headers(self.routes[self.request.method or "GET"], answer)
        self.write(piece)
        try:
            await self.flush()
        except StreamClosedError:
            self.on_connection_close()

    def _set_raw_headers(self, route: Route, answer: Answer) -> None:
        """Set headers so that a job's file is downloaded, never shown as a page of this origin."""
        if self._headers_written:
            return
        self.set_header("Content-Type", route.response_media)
        self.set_header("Content-Disposition", "inline" if route.response_media == "text/plain" else "attachment")
        if "Content-Length" in answer.headers:
            self.set_header("Content-Length", answer.headers["Content-Length"])

    def _cut_off(self) -> None:
        if self.request.connection is not None:
            stream = getattr(self.request.connection, "stream", None)
            if stream is not None:
                stream.close()


@web.stream_request_body
class UploadHandler(DlaasHandler):
    """Upload of a blob, relayed piece by piece. All checks precede the first byte."""

    async def prepare(self) -> None:  # type: ignore[override]
        self._pieces: asyncio.Queue[bytes | None] = asyncio.Queue(4)
        self._sending: asyncio.Task[Answer] | None = None
        await super().prepare()
        if self._finished or self.request.method != "PUT":
            return
        beginning = self.begin()
        if beginning is not None:
            await beginning

    @web.authenticated
    @authorized
    async def begin(self) -> None:
        """Connect to the engine, after authentication and authorisation."""
        length = self.request.headers.get("Content-Length", "")
        self.request.connection.set_max_body_size(BLOB_BYTES_MAX)  # type: ignore[union-attr]
        if length.isdecimal() and int(length) > BLOB_BYTES_MAX:
            await self.finish_error(TooLarge(f"body: larger than {BLOB_BYTES_MAX >> 30} GiB"))
            return
        try:
            self.call_stream = await self.link.connect()
        except DlaasError as error:
            await self.finish_error(error)
            return
        headers = self.passed_headers()
        if length.isdecimal():
            headers["Content-Length"] = length
        call = self.link.call("PUT", self.target(), headers, self._body(), timeout_s=3600.0, stream=self.call_stream)
        self._sending = asyncio.ensure_future(call)

    async def _body(self) -> AsyncIterator[bytes]:
        while (piece := await self._pieces.get()) is not None:
            yield piece

    async def _put(self, piece: bytes | None) -> None:
        """Relay a piece at the engine's pace; drop it if the engine has answered already."""
        if self._sending is None:
            return
        putting = asyncio.ensure_future(self._pieces.put(piece))
        await asyncio.wait({putting, self._sending}, return_when=asyncio.FIRST_COMPLETED)
        if not putting.done():
            putting.cancel()

    def data_received(self, chunk: bytes) -> Awaitable[None]:
        return self._put(chunk)

    @web.authenticated
    @authorized
    async def put(self, *_places: str) -> None:
        if self._sending is None:
            return
        await self._put(None)
        try:
            answer = await self._sending
        except Broken as broken:
            await self.finish_error(Unavailable(f"{broken}; send it again"))
            return
        except Unavailable as error:
            await self.finish_error(error)
            return
        self.set_status(answer.status)
        await self.finish(bytes(answer.body))

    def on_connection_close(self) -> None:
        super().on_connection_close()
        if self._sending is not None:
            self._sending.cancel()


class OpenApiHandler(DlaasHandler):
    """OpenAPI document of this server's routes."""

    @web.authenticated
    @authorized
    async def get(self) -> None:
        await self.finish(describe(endpoint=Endpoint.JUPYTER, base=self.base_url))


class CheckHandler(DlaasHandler):
    """Check of posted cells, as by `jupyter dlaas check`. Reads text only, without running it or calling an engine."""

    @web.authenticated
    @authorized
    async def post(self) -> None:
        from dlaas_server.jupyter_extension import (
            notebook_check,  # loads the notebook side, which only this request needs
        )

        try:
            asked = decode(NotebookCheck, self.asked())
        except DlaasError as error:
            await self.finish_error(error)
            return
        found = await asyncio.to_thread(notebook_check.check_cells, asked)
        await self.finish(json.dumps(encode(found)))


class NotebookHandler(DlaasHandler):
    """*Train this notebook*: builds train.py from the posted cells, then submits it like any other job."""

    @web.authenticated
    @authorized
    async def post(self) -> None:
        try:
            answer = await self._submit()
        except DlaasError as error:
            await self.finish_error(error)
        except Broken as broken:
            await self.finish_error(Unavailable(f"{broken}; try again"))
        else:
            self.set_status(answer.status)
            await self.finish(bytes(answer.body))

    async def _submit(self) -> Answer:
        from dlaas_server.jupyter_extension import notebook_submit  # loads IPython, which only this request needs

        asked = decode(NotebookSubmit, self.asked())
        spec = await self._kernel(asked.kernel_name)
        notebook = notebook_submit.Notebook(
            folder=notebook_submit.folder_of(getattr(self.contents_manager, "root_dir", None), asked.path),
            interpreter=await notebook_submit.interpreter_of(asked.kernel_name, spec, sys.executable),
            environment={**os.environ, **dict(getattr(spec, "env", None) or {})},
        )
        submit, packed = await asyncio.to_thread(notebook_submit.make, asked, notebook)
        for sha256, path in (packed.uploads or {}).items():
            await self._engine("PUT", f"/dlaas/blobs/{sha256}", await asyncio.to_thread(path.read_bytes))
        return await self._engine("POST", "/dlaas/jobs", json.dumps(encode(submit)).encode())

    async def _kernel(self, name: str) -> Any:
        try:
            return await ensure_async(self.kernel_spec_manager.get_kernel_spec(name))
        except (KeyError, ValueError):  # jupyter_client's NoSuchKernel is a KeyError
            raise Refused(f"there is no kernel {name!r} here; choose another for this notebook") from None

    async def _engine(self, method: str, target: str, body: bytes) -> Answer:
        headers = {**self.passed_headers(), "Content-Type": _JSON}
        for pause_s in PAUSES_S:
            with contextlib.suppress(Broken):
                return await self.link.call(method, target, headers, body, timeout_s=90.0)
            await asyncio.sleep(pause_s)
        return await self.link.call(method, target, headers, body, timeout_s=90.0)


class StreamHandler(WebSocketMixin, WebSocketHandler, JupyterHandler):
    """WebSocket relay: all checks precede the upgrade; then frames pass unchanged in both directions."""

    auth_resource = "dlaas"

    def initialize(self, link: Link) -> None:
        self.link = link
        self._engine: WebSocketClientConnection | None = None
        self._pump: asyncio.Task[None] | None = None

    @ws_authenticated
    @authorized
    async def get(self, *args: Any, **kwargs: Any) -> None:
        if not self.check_origin():
            raise web.HTTPError(403, "cross origin")
        if self.request.headers.get("Upgrade", "").lower() == "websocket":
            try:
                self._engine = await self.link.websocket()
            except DlaasError as error:
                raise web.HTTPError(error.http_status, str(error)) from None
        try:
            await super().get(*args, **kwargs)
        finally:
            self._close_engine()

    def open(self, *args: Any, **kwargs: Any) -> None:
        super().open(*args, **kwargs)
        self._pump = asyncio.ensure_future(self._down())

    async def _down(self) -> None:
        """Relay frames from the engine to the browser, at the browser's pace."""
        assert self._engine is not None
        while True:
            message = await self._engine.read_message()
            if message is None:
                self.close(1012, "the engine has ended; connect again")
                return
            try:
                await self.write_message(message, binary=isinstance(message, bytes))
            except (WebSocketClosedError, StreamClosedError):
                return

    async def on_message(self, message: str | bytes) -> None:
        """Relay a frame from the browser to the engine."""
        if self._engine is None:
            return
        try:
            await self._engine.write_message(message, binary=isinstance(message, bytes))
        except (WebSocketClosedError, StreamClosedError):
            self.close(1012, "the engine has ended; connect again")

    def on_close(self) -> None:
        super().on_close()
        if self._pump is not None:
            self._pump.cancel()
        self._close_engine()

    def _close_engine(self) -> None:
        if self._engine is not None:
            with contextlib.suppress(WebSocketClosedError):
                self._engine.close()
