"""API server in memory: objects by path, with resource versions and their conflicts."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from dlaas_server.pools.kubernetes.api import Answer, Api
from tests.pools.kubernetes.fake_server import FakeAnswer, refusal

__all__ = ["FakeObjects"]


class FakeObjects:
    """Transport whose server stores objects. `before` and `after` are called around each request that is sent."""

    server = "https://cluster.example.com"

    def __init__(self) -> None:
        self.objects: dict[str, Any] = {}
        self.sent: list[tuple[str, str]] = []
        self.before: Callable[[str, str], Answer | None] = lambda method, path: None
        self.after: Callable[[str, str], None] = lambda method, path: None
        self._version = 0

    def api(self, **options: Any) -> Api:
        return Api(lambda: self, **options)

    def writes(self) -> list[tuple[str, str]]:
        """Return method and last part of the path of all requests that change something."""
        return [(method, path.rpartition("/")[2]) for method, path in self.sent if method != "GET"]

    def send(self, method: str, target: str, body: bytes | None, content_type: str, timeout: Any) -> Answer:
        path = target.partition("?")[0]
        self.sent.append((method, path))
        answer = self.before(method, path) or self._answer(method, path, json.loads(body) if body else None)
        self.after(method, path)
        return answer

    def close(self) -> None:
        pass

    def _answer(self, method: str, path: str, body: Any) -> Answer:
        if method == "POST":
            path = f"{path}/{body['metadata']['name']}"
            return refusal(409, "AlreadyExists") if path in self.objects else self._store(path, body)
        if path not in self.objects:
            return refusal(404, "NotFound")
        if method == "PUT":
            if body["metadata"]["resourceVersion"] != self.objects[path]["metadata"]["resourceVersion"]:
                return refusal(409, "Conflict")
            return self._store(path, body)
        if method == "DELETE":
            del self.objects[path]
            return FakeAnswer(body={})
        return FakeAnswer(body=self.objects[path])

    def _store(self, path: str, body: Any) -> Answer:
        self._version += 1
        metadata = {**body["metadata"], "resourceVersion": str(self._version), "uid": str(self._version)}
        self.objects[path] = {**body, "metadata": metadata}
        return FakeAnswer(body=self.objects[path])
