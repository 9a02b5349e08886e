"""A small asynchronous client of the Kubernetes API, for process nodes and tests: plain JSON over HTTPS."""

from __future__ import annotations

import asyncio
import contextlib
import json
import ssl
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

import aiohttp

__all__ = ["Api", "ApiError", "Json", "path_of"]

PATCH_TYPES: Final = {
    "merge": "application/merge-patch+json",
    "strategic": "application/strategic-merge-patch+json",
    "json": "application/json-patch+json",
}
GROUPS: Final = {
    "apps/v1": ("deployments", "replicasets"),
    "coordination.k8s.io/v1": ("leases",),
    "batch/v1": ("jobs",),
    "rbac.authorization.k8s.io/v1": ("roles", "rolebindings", "clusterroles", "clusterrolebindings"),
    "networking.k8s.io/v1": ("networkpolicies",),
    "discovery.k8s.io/v1": ("endpointslices",),
    "authorization.k8s.io/v1": ("selfsubjectaccessreviews",),
}
ROOTS: Final = {resource: f"/apis/{group}" for group, resources in GROUPS.items() for resource in resources}
RETRY_S: Final = 0.2
REQUEST_S: Final = 30.0
WATCH_S: Final = 300

Json = dict[str, Any]


class ApiError(Exception):
    """An answer of the API server that says why a request failed."""

    def __init__(self, status: int, reason: str, message: str) -> None:
        super().__init__(f"{status} {reason}: {message}")
        self.status = status
        self.reason = reason


def path_of(resource: str, namespace: str | None = None, name: str | None = None, subresource: str = "") -> str:
    """Return the path of a resource, such as /api/v1/namespaces/default/pods/a."""
    parts = [ROOTS.get(resource, "/api/v1")]
    if namespace is not None:
        parts += ["namespaces", namespace]
    return "/".join([*parts, resource, *([name] if name else []), *([subresource] if subresource else [])])


class Api:
    """A connection to one API server as one user."""

    def __init__(
        self,
        server: str,
        authority: Path | None,
        *,
        certificate: tuple[Path, Path] | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        self.server = server
        context = ssl.create_default_context(cafile=str(authority) if authority else None)
        if certificate:
            context.load_cert_chain(*map(str, certificate))
        self._session = aiohttp.ClientSession(
            server,
            connector=aiohttp.TCPConnector(ssl=context, limit=0),
            headers=headers,
            timeout=aiohttp.ClientTimeout(total=REQUEST_S),
        )

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        await self._session.close()

    async def request(
        self, method: str, path: str, body: Any = None, *, params: Mapping[str, str] | None = None, kind: str = ""
    ) -> Json:
        headers = {"Content-Type": kind or "application/json"}
        data = None if body is None else json.dumps(body)
        async with self._session.request(method, path, data=data, params=params, headers=headers) as response:
            await _raise_for(response)
            answer: Json = json.loads(await response.read())
            return answer

    async def read_text(self, path: str, params: Mapping[str, str] | None = None) -> str:
        """Read an answer that is not JSON, such as a log."""
        async with self._session.get(path, params=params) as response:
            await _raise_for(response)
            return (await response.read()).decode(errors="replace")

    async def get(self, resource: str, namespace: str | None, name: str) -> Json:
        return await self.request("GET", path_of(resource, namespace, name))

    async def create(self, resource: str, namespace: str | None, body: Json) -> Json:
        return await self.request("POST", path_of(resource, namespace), body)

    async def patch(
        self,
        resource: str,
        namespace: str | None,
        name: str,
        body: Any,
        *,
        subresource: str = "",
        kind: str = "merge",
    ) -> Json:
        return await self.request(
            "PATCH", path_of(resource, namespace, name, subresource), body, kind=PATCH_TYPES[kind]
        )

    async def delete(
        self, resource: str, namespace: str | None, name: str, *, grace_s: int | None = None, uid: str | None = None
    ) -> Json:
        options: Json = {"apiVersion": "v1", "kind": "DeleteOptions"}
        if grace_s is not None:
            options["gracePeriodSeconds"] = grace_s
        if uid is not None:
            options["preconditions"] = {"uid": uid}
        return await self.request("DELETE", path_of(resource, namespace, name), options)

    async def watch(
        self,
        resource: str,
        namespace: str | None = None,
        *,
        field_selector: str = "",
        label_selector: str = "",
        seen: Sequence[Json] = (),
    ) -> AsyncGenerator[tuple[str, Json], None]:
        """Yield ("ADDED" | "MODIFIED" | "DELETED", object) from the present state on, without end.

        A lost watch is taken up again by a new list, whose differences are yielded as changes. So are the
        differences to objects that the caller has already `seen`.
        """
        path = path_of(resource, namespace)
        params = {"fieldSelector": field_selector, "labelSelector": label_selector}
        params = {name: value for name, value in params.items() if value}
        known = {item["metadata"]["uid"]: item for item in seen}
        while True:
            try:
                listed = await self.request("GET", path, params=params)
                present = {item["metadata"]["uid"]: item for item in listed["items"]}
                for uid in [uid for uid in known if uid not in present]:
                    yield "DELETED", known.pop(uid)
                for uid, item in present.items():
                    before = known.get(uid)
                    known[uid] = item
                    if before is None or before["metadata"]["resourceVersion"] != item["metadata"]["resourceVersion"]:
                        yield "ADDED" if before is None else "MODIFIED", item
                version = listed["metadata"]["resourceVersion"]
                async with contextlib.aclosing(self._changes(path, params, version)) as changes:
                    async for kind, item in changes:
                        if kind == "DELETED":
                            known.pop(item["metadata"]["uid"], None)
                        else:
                            known[item["metadata"]["uid"]] = item
                        yield kind, item
            except (aiohttp.ClientError, TimeoutError, ConnectionError):
                await asyncio.sleep(RETRY_S)
            except ApiError as error:
                if error.status not in (410, 429) and error.status < 500:
                    raise
                await asyncio.sleep(RETRY_S)

    async def _changes(
        self, path: str, params: Mapping[str, str], version: str
    ) -> AsyncGenerator[tuple[str, Json], None]:
        """Yield the events of one watch request until it ends."""
        query = {
            **params,
            "watch": "true",
            "resourceVersion": version,
            "allowWatchBookmarks": "true",
            "timeoutSeconds": str(WATCH_S),
        }
        timeout = aiohttp.ClientTimeout(total=None, sock_read=WATCH_S + 30)
        async with self._session.get(path, params=query, timeout=timeout) as response:
            await _raise_for(response)
            rest = b""
            async for chunk in response.content.iter_any():
                *lines, rest = (rest + chunk).split(b"\n")
                for line in lines:
                    event = json.loads(line)
                    if event["type"] == "ERROR":
                        status = event["object"]
                        raise ApiError(status.get("code", 500), status.get("reason", ""), status.get("message", ""))
                    if event["type"] != "BOOKMARK":
                        yield event["type"], event["object"]

    async def wait_for(
        self,
        resource: str,
        namespace: str | None,
        name: str,
        is_met: Callable[[Json | None], bool],
        *,
        timeout_s: float = 60.0,
    ) -> Json | None:
        """Return the object once it meets a condition; it is None while it does not exist."""
        last: Json | None = None
        try:
            async with asyncio.timeout(timeout_s):
                try:
                    last = await self.get(resource, namespace, name)
                except ApiError as error:
                    if error.status != 404:
                        raise
                if is_met(last):
                    return last
                selector = f"metadata.name={name}"
                watch = self.watch(resource, namespace, field_selector=selector, seen=[last] if last else [])
                async with contextlib.aclosing(watch) as events:
                    async for kind, item in events:
                        last = None if kind == "DELETED" else item
                        if is_met(last):
                            return last
        except TimeoutError as error:
            state = json.dumps(last and last.get("status"), indent=1)
            raise TimeoutError(f"{resource} {name}: condition not met in {timeout_s} s; status is {state}") from error
        raise AssertionError("a watch has no end")


async def _raise_for(response: aiohttp.ClientResponse) -> None:
    if response.status < 400:
        return
    text = (await response.read()).decode(errors="replace")
    try:
        status = json.loads(text)
    except ValueError:
        status = {}
    if not isinstance(status, dict):
        status = {}
    raise ApiError(response.status, status.get("reason", response.reason or ""), status.get("message", text))
