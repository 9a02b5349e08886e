"""The HTTPS server of a process node: what the API server asks a kubelet for.

Logs of containers, and port-forward by WebSocket (protocol v4.channel.k8s.io, which the Python client speaks).
"""

from __future__ import annotations

import asyncio
import contextlib
import datetime as dt
import ssl
import struct
from collections import deque
from collections.abc import AsyncIterator, Callable, Mapping
from pathlib import Path
from typing import Final

from aiohttp import WSMsgType, web

from tests.kubernetes.certificates import Credentials
from tests.kubernetes.nodes.containers import Log, LogLine
from tests.kubernetes.nodes.pods import PodWorker

__all__ = ["KUBELET_PORT", "KubeletServer"]

KUBELET_PORT: Final = 10250
PROTOCOLS: Final = ("v4.channel.k8s.io", "portforward.k8s.io")
CHUNK: Final = 65536

FindPod = Callable[[str, str], PodWorker | None]


class KubeletServer:
    """Serves one node's endpoints to clients with a certificate of the cluster's authority."""

    def __init__(self, find_pod: FindPod) -> None:
        self._find_pod = find_pod
        application = web.Application()
        application.router.add_get("/containerLogs/{namespace}/{pod}/{container}", self._logs)
        application.router.add_get("/portForward/{namespace}/{pod}", self._port_forward)
        application.router.add_get("/healthz", self._health)
        self._runner = web.AppRunner(application, shutdown_timeout=0.1)

    async def start(self, address: str, authority: Path, credentials: Credentials) -> None:
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=str(authority))
        context.verify_mode = ssl.CERT_REQUIRED
        context.load_cert_chain(str(credentials.certificate), str(credentials.key))
        await self._runner.setup()
        await web.TCPSite(self._runner, address, KUBELET_PORT, ssl_context=context).start()

    async def stop(self) -> None:
        await self._runner.cleanup()

    async def _health(self, request: web.Request) -> web.Response:
        return web.Response(text="ok")

    # ---- logs ------------------------------------------------------------------------------------------------------

    async def _logs(self, request: web.Request) -> web.StreamResponse:
        worker = self._find_pod(request.match_info["namespace"], request.match_info["pod"])
        container = request.match_info["container"]
        if worker is None:
            return web.Response(status=404, text=f'pod "{request.match_info["pod"]}" does not exist')
        runs = worker.logs.get(container, [])
        query = request.query
        if query.get("previous") == "true":
            if len(runs) < 2:
                text = f'previous terminated container "{container}" in pod "{worker.name}" not found'
                return web.Response(status=400, text=text)
            runs = runs[:-1]
        if not runs:
            text = f'container "{container}" in pod "{worker.name}" is waiting to start'
            return web.Response(status=400, text=text)
        response = web.StreamResponse(headers={"Content-Type": "text/plain"})
        await response.prepare(request)
        budget = int(query["limitBytes"]) if "limitBytes" in query else None
        async for line in _selected(runs[-1], query):
            data = line.rendered(with_time=query.get("timestamps") == "true")
            if budget is not None:
                data, budget = data[:budget], budget - len(data[:budget])
            await response.write(data)
            if budget == 0:
                break
        return response

    # ---- port-forward ----------------------------------------------------------------------------------------------

    async def _port_forward(self, request: web.Request) -> web.StreamResponse:
        worker = self._find_pod(request.match_info["namespace"], request.match_info["pod"])
        if worker is None or worker.address is None:
            return web.Response(status=404, text=f'pod "{request.match_info["pod"]}" does not exist')
        ports = [int(port) for value in request.query.getall("port", []) for port in value.split(",")]
        websocket = web.WebSocketResponse(protocols=PROTOCOLS, max_msg_size=0)
        await websocket.prepare(request)
        tunnels = [Tunnel(websocket, number, port) for number, port in enumerate(ports)]
        try:
            for tunnel in tunnels:
                await tunnel.open(worker.address)
            async for message in websocket:
                if message.type == WSMsgType.BINARY and message.data:
                    channel = message.data[0]
                    if channel // 2 < len(tunnels) and channel % 2 == 0:
                        await tunnels[channel // 2].send(message.data[1:])
        finally:
            for tunnel in tunnels:
                await tunnel.close()
        return websocket


class Tunnel:
    """One forwarded port: channel 2n carries its data, channel 2n + 1 an error; both first carry the port's number."""

    def __init__(self, websocket: web.WebSocketResponse, number: int, port: int) -> None:
        self._websocket = websocket
        self._data, self._error = bytes([2 * number]), bytes([2 * number + 1])
        self._port = port
        self._writer: asyncio.StreamWriter | None = None
        self._copy: asyncio.Task[None] | None = None

    async def open(self, address: str) -> None:
        for channel in (self._data, self._error):
            await self._websocket.send_bytes(channel + struct.pack("<H", self._port))
        try:
            reader, self._writer = await asyncio.open_connection(address, self._port)
        except OSError as error:
            await self._websocket.send_bytes(self._error + f"port {self._port}: {error}".encode())
            return
        self._copy = asyncio.create_task(self._receive(reader))

    async def send(self, data: bytes) -> None:
        if self._writer is not None:
            self._writer.write(data)
            with contextlib.suppress(ConnectionError):
                await self._writer.drain()

    async def close(self) -> None:
        if self._copy is not None:
            self._copy.cancel()
            await asyncio.gather(self._copy, return_exceptions=True)
        if self._writer is not None:
            self._writer.close()

    async def _receive(self, reader: asyncio.StreamReader) -> None:
        with contextlib.suppress(ConnectionError):
            while data := await reader.read(CHUNK):
                await self._websocket.send_bytes(self._data + data)
        await self._websocket.close()


async def _selected(log: Log, query: Mapping[str, str]) -> AsyncIterator[LogLine]:
    """Yield the lines that a request for logs asks for."""
    since = _since(query)
    tail = int(query["tailLines"]) if "tailLines" in query else None
    follow = query.get("follow") == "true"
    if tail is None:
        async for line in log.lines(follow=follow):
            if line.time >= since:
                yield line
        return
    count = 0
    last: deque[LogLine] = deque(maxlen=tail)
    async for line in log.lines():
        count += 1
        if line.time >= since:
            last.append(line)
    for line in last:
        yield line
    if follow:
        async for line in log.lines(follow=True):
            count -= 1
            if count < 0:
                yield line


def _since(query: Mapping[str, str]) -> str:
    if "sinceTime" in query:
        return query["sinceTime"].removesuffix("Z")
    if "sinceSeconds" in query:
        moment = dt.datetime.now(dt.UTC) - dt.timedelta(seconds=int(query["sinceSeconds"]))
        return moment.strftime("%Y-%m-%dT%H:%M:%S.%fZ")
    return ""
