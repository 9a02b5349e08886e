"""Transport with scripted answers in place of an API server."""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from dlaas_server.pools.kubernetes.api import Answer


@dataclass
class FakeAnswer:
    """Answer with a body, or (as a watch) with events."""

    status: int = 200
    body: Any = None
    headers: Mapping[str, str] = field(default_factory=dict)
    pieces: list[bytes | Exception] = field(default_factory=list)

    def read(self, amt: int | None = None) -> bytes:
        return self.body if isinstance(self.body, bytes) else json.dumps(self.body).encode()

    def stream(self, amt: int) -> Iterator[bytes]:
        for piece in self.pieces:
            if isinstance(piece, Exception):
                raise piece
            yield piece

    def release_conn(self) -> None:
        pass

    def close(self) -> None:
        pass


class FakeServer:
    """Server that gives its answers in order; each call of the connection loads new credentials."""

    server = "https://cluster.example.com"

    def __init__(self, *answers: FakeAnswer | Exception) -> None:
        self.answers = deque(answers)
        self.sent: list[tuple[str, str, Any]] = []
        self.logins = 0
        self.paused: list[float] = []

    def connect(self) -> FakeServer:
        self.logins += 1
        return self

    def send(self, method: str, target: str, body: bytes | None, content_type: str, timeout: Any) -> Answer:
        self.sent.append((method, target, json.loads(body) if body else None))
        answer = self.answers.popleft()
        if isinstance(answer, Exception):
            raise answer
        return answer

    def close(self) -> None:
        pass


def item(name: str, version: int, *, uid: str = "1", **fields: Any) -> dict[str, Any]:
    return {"metadata": {"namespace": "ml", "name": name, "uid": uid, "resourceVersion": str(version)}, **fields}


def listed(version: int, *items: Any) -> FakeAnswer:
    return FakeAnswer(body={"kind": "PodList", "metadata": {"resourceVersion": str(version)}, "items": list(items)})


def events(*pairs: tuple[str, Any], end: Exception | None = None) -> FakeAnswer:
    text = b"".join(json.dumps({"type": kind, "object": found}).encode() + b"\n" for kind, found in pairs)
    half = len(text) // 2  # pieces do not end where lines do
    return FakeAnswer(pieces=[text[:half], text[half:], *([end] if end else [])])


def refusal(status: int, reason: str = "", message: str = "", **headers: str) -> FakeAnswer:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return FakeAnswer(status=status, body={"kind": "Status", "reason": reason, "message": message}, headers=named)
