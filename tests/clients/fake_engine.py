"""A FAKE of the engine: takes the lock, serves a few routes on the socket, can be killed. It trains nothing.

Its answers are files of the pool's directory, so that a killed one and the next one answer alike:
`fake/view.json` (the job), `fake/log-N` (learner N's log). Requests are logged in `fake/asked.jsonl`.
"""

from __future__ import annotations

import argparse
import asyncio
import fcntl
import hashlib
import json
import os
import socket
import sys
import time
from pathlib import Path
from typing import Any

import tornado.httpserver
import tornado.web
import tornado.websocket

from dlaas_server.rest.routes import ROUTES, describe

LOG_PIECE = 1000


class Base(tornado.web.RequestHandler):
    def initialize(self, folder: Path) -> None:
        self.fake = folder / "fake"

    def prepare(self) -> None:
        asked = {"method": self.request.method, "uri": self.request.uri, "headers": dict(self.request.headers)}
        if self.request.headers.get("Content-Type") == "application/json":
            asked["body"] = self.request.body.decode(errors="replace")
        with (self.fake / "asked.jsonl").open("a") as file:
            file.write(json.dumps(asked) + "\n")

    def view(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads((self.fake / "view.json").read_text())
        found["owner"] = self.request.headers.get("X-Dlaas-User", "not vouched for")
        return found

    def fail(self, status: int, code: str, message: str) -> None:
        self.set_status(status)
        self.finish({"error": {"code": code, "message": message}})


class Anything(Base):
    async def _any(self, *places: str) -> None:
        path = self.request.path
        if (self.fake / "die").exists():  # in the middle of a request, once
            (self.fake / "die").unlink()
            os._exit(1)
        if path == "/dlaas/openapi.json":
            return await self.finish(describe())
        if path.endswith("/drain"):
            leaves = {"job": "fake-1", "way": "shrink", "before": 4, "after": 2, "text": "fake-1 shrinks from 4 to 2"}
            gist = {"gist": "gpu-a: 1 job shrinks.", "plan": "0" * 16}
            done = {"node": places[0], "is_asked": self.request.method == "POST", "jobs": [leaves], **gist}
            return await self.finish(done)
        if path == "/dlaas/pool" or path.startswith(("/dlaas/nodes/", "/dlaas/queues/")):
            return await self.finish((self.fake / "pool.json").read_bytes())
        if path == "/dlaas/jobs" and self.request.method == "GET":
            return await self.finish({"jobs": [self.view()]})
        if path == "/dlaas/jobs":
            (self.fake / "submit.json").write_bytes(self.request.body)
            self.set_status(201)
            return await self.finish(self.view())
        if places and places[0] == "absent-1":
            return self.fail(404, "not_found", "there is no job absent-1")
        if places and places[0] in ("fake-2", "fake-3") and self.request.method == "GET" and path.count("/") == 3:
            return await self.finish(self.view() | {"id": places[0]})
        if places and places[0] == "fake-3":
            return self.fail(409, "not_allowed", "fake-3 is FAILED and does not accept this: it has ended")
        if path.endswith("/stream"):
            return await self.stream()
        if path.endswith("/log"):
            return await self.log()
        if "/results/" in path:
            return await self.result(int(places[1]))
        answers: dict[str, Any] = {
            "why": {"sentences": ["fake-1 is 2nd of 5.", "needs 4 GPUs at once; 2 are free."]},
            "events": {"events": [{"row": 1, "at_s": 0.0, "kind": "submitted", "text": "You submitted it."}]},
            "source": {"source": "print('hello')\n", "files": ["files/own.py"]},
            "metrics": {"from": 0, "to": 0, "size": 0, "records": []},
            "report": {},
            "artifacts": {"artifacts": [{"path": "output/curve.png", "bytes": 1234}]},
            "preflight": {"problems": [], "estimate": "would start now"},
            "warm": {"is_warm": True},
        }
        found = answers.get(path.rpartition("/")[2])
        return await self.finish(self.view() if found is None else found)

    get = post = put = patch = delete = _any

    async def stream(self) -> None:
        row = int(self.get_query_argument("row", "0"))
        logs = dict(part.split(":") for part in self.get_query_argument("logs", "").split(",") if part)
        deadline = time.monotonic() + float(self.get_query_argument("wait_s", "0"))
        while True:
            messages: list[dict[str, Any]] = []
            view = self.view()
            if view["row"] > row:
                messages.append({"type": "job", "job": view})
            cursor = {"row": view["row"], "metrics": 0, "logs": {k: int(v) for k, v in logs.items()}}
            for path in sorted(self.fake.glob("log-*")):
                member = path.name.removeprefix("log-")
                start = int(logs.get(member, 0))
                data = path.read_bytes()[start : start + LOG_PIECE]
                if data:
                    frame = {"type": "log", "job": view["id"], "member": int(member), "at_s": 0.0}
                    messages.append({**frame, "from": start, "to": start + len(data), "text": data.decode()})
                    cursor["logs"][member] = start + len(data)
            if messages or time.monotonic() > deadline:
                return await self.finish({"messages": messages, "cursor": cursor})
            await asyncio.sleep(0.01)

    async def log(self) -> None:
        path = self.fake / "log-0"
        data = path.read_bytes() if path.exists() else b""
        start = int(self.get_query_argument("offset", "0"))
        part = data[start : start + int(self.get_query_argument("limit", "1000000"))]
        end = start + len(part)
        await self.finish({"member": 0, "from": start, "to": end, "size": len(data), "text": part.decode()})

    async def result(self, megabytes: int) -> None:
        self.set_header("Content-Type", "text/html")  # the relay must not believe it
        self.set_header("Content-Length", str(megabytes * 2**20))
        for n in range(megabytes):
            if (self.fake / f"die-at-{n}").exists():
                os._exit(1)
            self.write(bytes([n % 256]) * 2**20)
            await self.flush()
        await self.finish()


@tornado.web.stream_request_body
class Blob(Base):
    def prepare(self) -> None:
        super().prepare()
        self.request.connection.set_max_body_size(2**31)  # type: ignore[union-attr]
        self.digest, self.size = hashlib.sha256(), 0

    def data_received(self, chunk: bytes) -> None:
        self.digest.update(chunk)
        self.size += len(chunk)

    async def put(self, sha256: str) -> None:
        if self.digest.hexdigest() != sha256:
            self.fail(400, "invalid", "the bytes have another SHA-256")
        else:
            self.finish({"sha256": sha256, "bytes": self.size})


class Stream(Base, tornado.websocket.WebSocketHandler):
    def open(self) -> None:
        self.write_message({"type": "hello", "user": self.request.headers.get("X-Dlaas-User"), "engine": os.getpid()})

    def on_message(self, message: str | bytes) -> None:
        self.write_message(message)


async def serve(folder: Path) -> None:
    handlers: list[Any] = []
    for path in dict.fromkeys(route.regex for route in ROUTES if route.endpoint == "both"):
        kind = Stream if path == "/dlaas/stream" else Blob if "/blobs/" in path else Anything
        handlers.append((path, kind, {"folder": folder}))
    server = tornado.httpserver.HTTPServer(tornado.web.Application(handlers))
    listening = socket.socket(socket.AF_UNIX)
    here = os.open(folder, os.O_RDONLY)
    (folder / "engine.sock").unlink(missing_ok=True)
    listening.bind(f"/proc/self/fd/{here}/engine.sock")
    listening.listen(128)
    listening.setblocking(False)
    server.add_socket(listening)
    record = {"pid": os.getpid(), "python": sys.executable, "host": socket.gethostname()}
    (folder / "engine.json").write_text(json.dumps(record))
    await asyncio.Event().wait()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--pool-dir", type=Path, required=True)
    parser.add_argument("--idle-s")
    given = parser.parse_args()
    if (given.pool_dir / "fake" / "refuse").exists():
        sys.exit("the store was made by a newer version")
    lock = (given.pool_dir / "lock").open("a")
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        sys.exit(0)
    asyncio.run(serve(given.pool_dir))
