"""Picture of one kind of objects, kept by list and watch.

The picture is *unknown* before the first list and after any failure, until a list, an event, or a watch that the server
has ended in order proves it again. Its objects stay: missing knowledge is never taken for missing objects.
"""

from __future__ import annotations

import json
import logging
import random
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from dlaas_server.pools.kubernetes.api import Api, ApiError, ApiUnreachable, LineStream, path_of
from dlaas_server.pools.kubernetes.manifests.names import Json
from jupyter_dlaas.wire.codec import DlaasError

__all__ = ["Change", "Knowledge", "Watch"]

log = logging.getLogger(__name__)

RELIST_S: Final = 300.0
"""Time after which the objects are listed again, with up to a fifth more at random: a lost event lasts no longer."""
SILENCE_S: Final = 90.0
"""Longest silence of a watch. The API server sends a bookmark every minute."""
BACKOFF_S: Final = 0.2
BACKOFF_S_MAX: Final = 4.0
PROOF_S: Final = 1
"""Duration of the first watch after a failure: its end proves the picture, also where no object changes."""
GONE: Final = 410


@dataclass(frozen=True, slots=True)
class Change:
    """Change of one object. `before` None: it is new; `after` None: it was deleted."""

    before: Json | None
    after: Json | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Knowledge:
    """State of a picture: the reason why it is unknown, or None, and the seconds since it was last proven."""

    unknown: str | None
    age_s: float


class Watch:
    """Objects of one kind, in one namespace or (None) in the whole cluster. A thread of its own follows them."""

    def __init__(
        self,
        api: Api,
        resource: str,
        namespace: str | None,
        changed: Callable[[Change], None],
        *,
        labels: str = "",
        fields: str = "",
        knows: Callable[[], None] = lambda: None,
        now: Callable[[], float] = time.monotonic,
        jitter: Callable[[], float] = random.random,
    ) -> None:
        """Call `changed` for each change, `knows` when the picture became known or unknown, in the watch's thread."""
        self._api, self._changed, self._knows, self._now, self._jitter = api, changed, knows, now, jitter
        self.resource = resource
        self._path = path_of(resource, namespace)
        self._query = {key: value for key, value in (("labelSelector", labels), ("fieldSelector", fields)) if value}
        self._lock = threading.Lock()
        self._objects: dict[tuple[str, str], Json] = {}
        self._version: str | None = None
        self._unknown: str | None = "it was not read yet"
        self._proven_s = now()
        self._listed_s = 0.0
        self._failures = 0
        self._stream: LineStream | None = None
        self._is_closed = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Start the thread."""
        self._thread = threading.Thread(target=self._run, name=f"watch {self.resource}", daemon=True)
        self._thread.start()

    def close(self, timeout_s: float = 5.0) -> None:
        """End the watch."""
        self._is_closed.set()
        with self._lock:
            stream = self._stream
        if stream is not None:
            stream.stop()
        if self._thread is not None:
            self._thread.join(timeout_s)

    def objects(self) -> Mapping[tuple[str, str], Json]:
        """Return the objects by namespace and name, as last seen."""
        with self._lock:
            return dict(self._objects)

    def knowledge(self) -> Knowledge:
        """Return whether the picture is known, and its age."""
        with self._lock:
            return Knowledge(unknown=self._unknown, age_s=self._now() - self._proven_s)

    # ---- list and watch --------------------------------------------------------------------------------------------

    def _run(self) -> None:
        while not self._is_closed.is_set():
            pause_s = self.follow()
            self._is_closed.wait(pause_s)

    def follow(self) -> float:
        """List if needed, then watch until the server ends the watch. Return the seconds to pause before the next."""
        try:
            if self._version is None or self._now() - self._listed_s >= RELIST_S * (1 + 0.2 * self._jitter()):
                self._list()
            self._watch()
        except (ApiUnreachable, ApiError) as error:
            if self._is_closed.is_set():
                return 0.0
            if isinstance(error, ApiError) and error.status == GONE:
                self._version = None  # events were missed: the picture is as old as the last one that arrived
                return 0.0
            return self._fail(error)
        self._failures = 0
        return 0.0

    def _fail(self, error: DlaasError) -> float:
        """Make the picture unknown. Return a pause that grows and never ends the attempts."""
        self._failures += 1
        with self._lock:
            was_known, self._unknown = self._unknown is None, str(error)
        if was_known:
            log.warning("%s: no current picture: %s", self._path, error)
            self._knows()
        bound = min(BACKOFF_S * 2.0 ** min(self._failures - 1, 10), BACKOFF_S_MAX)
        return bound * (0.5 + 0.5 * self._jitter())

    def _list(self) -> None:
        listed = self._api.request("GET", self._path, query=self._query)
        kind = str(listed.get("kind", "")).removesuffix("List")
        found = {_key(item): {"kind": kind, **item} for item in listed.get("items") or []}
        with self._lock:
            before, self._objects = self._objects, found
            self._version = str(listed["metadata"]["resourceVersion"])
            self._listed_s = self._now()
        self._prove()
        for key in sorted(before.keys() | found.keys()):
            old, new = before.get(key), found.get(key)
            if old is not None and new is not None and old["metadata"].get("uid") != new["metadata"].get("uid"):
                self._changed(Change(old, None))  # deleted and created again while nothing was seen
                old = None
            if old is None or new is None or _version(old) != _version(new):
                self._changed(Change(old, new))

    def _watch(self) -> None:
        assert self._version is not None
        seconds = PROOF_S if self.knowledge().unknown is not None else int(RELIST_S * (1 + 0.2 * self._jitter()))
        query = {
            **self._query,
            "watch": "true",
            "resourceVersion": self._version,
            "allowWatchBookmarks": "true",
            "timeoutSeconds": str(seconds),
        }
        stream = self._api.lines(self._path, query, SILENCE_S)
        with self._lock:
            self._stream = stream
        if self._is_closed.is_set():
            stream.stop()  # `close` may not have seen it
        try:
            for kind, item in _events(stream):
                if self._is_closed.is_set():
                    return
                self._take(kind, item)
        finally:
            with self._lock:
                self._stream = None
        if not self._is_closed.is_set():
            self._prove()  # the server sends all events before it ends a watch in order

    def _take(self, kind: str, item: Json) -> None:
        if kind == "ERROR":  # inside of an answer whose status was 200
            code = int(item.get("code") or 500)
            words = str(item.get("message") or item.get("reason") or "the watch failed")
            if code == 429 or code >= 500:
                raise ApiUnreachable(f"the API server {self._api.server} ended a watch: {words}")
            raise ApiError(code, str(item.get("reason") or ""), words)
        self._failures = 0
        with self._lock:
            self._version = _version(item)
            key = _key(item) if kind != "BOOKMARK" else ("", "")
            before = self._objects.get(key)
            if kind == "DELETED":
                self._objects.pop(key, None)
            elif kind != "BOOKMARK":
                self._objects[key] = item
        self._prove()
        if kind != "BOOKMARK":
            self._changed(Change(before or (item if kind == "DELETED" else None), None if kind == "DELETED" else item))

    def _prove(self) -> None:
        with self._lock:
            was_unknown, self._unknown = self._unknown is not None, None
            self._proven_s = self._now()
        if was_unknown:
            self._knows()


def _events(stream: LineStream) -> Iterator[tuple[str, Json]]:
    for line in stream:
        if not line.strip():
            continue
        try:
            event = json.loads(line)
            yield str(event["type"]), event["object"]
        except (ValueError, KeyError, TypeError) as error:
            raise ApiUnreachable(f"a watch sent no valid event: {error}") from error


def _key(item: Json) -> tuple[str, str]:
    metadata = item["metadata"]
    return str(metadata.get("namespace", "")), str(metadata["name"])


def _version(item: Json) -> str:
    return str(item["metadata"].get("resourceVersion", ""))
