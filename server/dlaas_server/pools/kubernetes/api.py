"""Connection to an API server: raw JSON over the `kubernetes` package, which knows kubeconfigs and credentials.

Requests never wait in silence: a refusal is an ApiError with the server's words, and everything else that says nothing
about the cluster's state (no connection, an overloaded server, expired credentials) is ApiUnreachable.
"""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, Protocol
from urllib.parse import urlencode

from dlaas_server.pools.kubernetes.manifests.names import Json
from dlaas_server.pools.kubernetes.manifests.settings import KubernetesSection
from jupyter_dlaas.wire.codec import DlaasError

__all__ = [
    "Answer",
    "Api",
    "ApiError",
    "ApiUnreachable",
    "Connection",
    "KubernetesMissing",
    "LineStream",
    "Transport",
    "connect",
    "own_address",
    "path_of",
]

CONNECT_S: Final = 5.0
READ_S: Final = 20.0
RETRIES: Final = 3
"""Number of times a request is repeated that the server was too busy for."""
RETRY_S_MAX: Final = 10.0
SERVICE_ACCOUNT: Final = Path("/var/run/secrets/kubernetes.io/serviceaccount/token")
_ROOTS: Final = {
    "networkpolicies": "/apis/networking.k8s.io/v1",
    "leases": "/apis/coordination.k8s.io/v1",
    "selfsubjectaccessreviews": "/apis/authorization.k8s.io/v1",
}
_PATCH: Final = "application/strategic-merge-patch+json"


class KubernetesMissing(DlaasError):
    """The packages of the extra `kubernetes` are not installed."""

    code = "config"

    def __init__(self) -> None:
        super().__init__("a Kubernetes pool needs the package kubernetes: pip install 'jupyter_dlaas[kubernetes]'")


class ApiError(DlaasError):
    """Refusal of the API server. `reason` is its word for the cause, such as "Forbidden" or "AlreadyExists"."""

    code = "cluster_refused"

    def __init__(self, status: int, reason: str, message: str) -> None:
        super().__init__(message or reason or f"status {status}")
        self.status = status
        self.reason = reason


class ApiUnreachable(DlaasError):
    """The API server gave no answer that counts. The request may have taken effect or not."""

    code = "unavailable"
    http_status = 503


class Answer(Protocol):
    """HTTP answer, as urllib3 has it."""

    status: int
    headers: Mapping[str, str]

    def read(self, amt: int | None = None) -> bytes:
        """Return the body, or its next bytes."""

    def stream(self, amt: int) -> Iterator[bytes]:
        """Yield the body in pieces as they arrive."""

    def release_conn(self) -> None:
        """Return the connection to its pool."""

    def close(self) -> None:
        """Close the connection."""


class Transport(Protocol):
    """Transport of requests with one set of credentials."""

    server: str

    def send(
        self, method: str, target: str, body: bytes | None, content_type: str, timeout: tuple[float, float]
    ) -> Answer:
        """Send a request and return its answer, whose body is not read yet. Raises OSError without an answer."""

    def close(self) -> None:
        """Close all connections."""


Connection = Callable[[], Transport]
"""Function that loads credentials and returns a transport with them."""


def path_of(resource: str, namespace: str | None = None, name: str = "", subresource: str = "") -> str:
    """Return the path of a resource, such as /api/v1/namespaces/ml/pods/a."""
    parts = [_ROOTS.get(resource, "/api/v1")]
    if namespace is not None:
        parts += ["namespaces", namespace]
    return "/".join([*parts, resource, *([name] if name else []), *([subresource] if subresource else [])])


class LineStream:
    """Lines of an answer that may never end."""

    def __init__(self, answer: Answer, server: str) -> None:
        self._answer, self._server = answer, server

    def __iter__(self) -> Iterator[bytes]:
        """Yield lines until the server ends the answer. Raises ApiUnreachable if the connection breaks."""
        rest = b""
        try:
            for piece in self._answer.stream(1 << 16):
                *whole, rest = (rest + piece).split(b"\n")
                yield from whole
        except Exception as error:
            if not _is_of_network(error):
                raise
            raise ApiUnreachable(f"the connection to {self._server} broke: {error}") from error
        finally:
            self._answer.close()

    def stop(self) -> None:
        """End the answer from another thread."""
        shutdown = getattr(self._answer, "shutdown", None)  # urllib3 2.3 and newer
        if shutdown is not None:
            with suppress(ValueError, OSError):
                shutdown()


class Api:
    """Requests to one API server. Safe for use by several threads."""

    def __init__(
        self,
        connection: Connection,
        *,
        sleep: Callable[[float], None] = time.sleep,
        fence: Callable[[], None] = lambda: None,
        read_s: float = READ_S,
    ) -> None:
        """Open a connection. `fence` is called right before each request that changes something, and may refuse it."""
        self._connection, self._sleep, self._fence, self._read_s = connection, sleep, fence, read_s
        self._lock = threading.Lock()
        self._transport = connection()
        self.requests = 0
        """Number of requests so far, watches included."""
        self.recorder: Callable[[str, str], None] | None = None
        """Called with method and target of each request; tests compare them with the Role."""

    @property
    def server(self) -> str:
        """Address of the API server."""
        return self._transport.server

    def close(self) -> None:
        """Close all connections."""
        self._transport.close()

    # ---- requests --------------------------------------------------------------------------------------------------

    def request(
        self,
        method: str,
        path: str,
        body: Json | None = None,
        *,
        query: Mapping[str, str] | None = None,
        content_type: str = "application/json",
    ) -> Json:
        """Send a request and return the JSON of its answer. Raises ApiError and ApiUnreachable."""
        answer = self._send(method, _target(path, query), body, content_type, (CONNECT_S, self._read_s))
        try:
            return dict(json.loads(_read(answer) or b"{}"))
        except (ValueError, OSError) as error:
            raise ApiUnreachable(f"{self.server} sent no valid JSON: {error}") from error

    def get(self, resource: str, namespace: str | None, name: str) -> Json:
        """Return one object."""
        return self.request("GET", path_of(resource, namespace, name))

    def list(self, resource: str, namespace: str | None, *, labels: str = "") -> Json:
        """Return a list with its resource version, from the API server's memory."""
        query = {"labelSelector": labels} if labels else {}
        return self.request("GET", path_of(resource, namespace), query=query)

    def create(self, resource: str, namespace: str | None, body: Json) -> Json:
        """Create an object and return it as stored."""
        return self.request("POST", path_of(resource, namespace), body)

    def replace(self, resource: str, namespace: str, body: Json) -> Json:
        """Replace an object, whose resource version must be the stored one; otherwise ApiError with status 409."""
        return self.request("PUT", path_of(resource, namespace, body["metadata"]["name"]), body)

    def patch(self, resource: str, namespace: str, name: str, body: Json) -> Json:
        """Change some fields of an object by a strategic merge patch."""
        return self.request("PATCH", path_of(resource, namespace, name), body, content_type=_PATCH)

    def delete(self, resource: str, namespace: str, name: str, *, uid: str | None = None) -> None:
        """Delete an object, if it still is the one with this uid. A missing one counts as deleted."""
        options: Json = {"apiVersion": "v1", "kind": "DeleteOptions", "propagationPolicy": "Background"}
        if uid is not None:
            options["preconditions"] = {"uid": uid}
        try:
            self.request("DELETE", path_of(resource, namespace, name), options)
        except ApiError as error:
            if error.status != 404 and not (error.status == 409 and uid is not None):
                raise

    def lines(self, path: str, query: Mapping[str, str], silence_s: float) -> LineStream:
        """Return the lines of an answer as they arrive. `silence_s`: longest time between two. Raises as `request`."""
        answer = self._send("GET", _target(path, query), None, "application/json", (CONNECT_S, silence_s))
        return LineStream(answer, self.server)

    # ---- credentials, overload -------------------------------------------------------------------------------------

    def _send(
        self, method: str, target: str, body: Json | None, content_type: str, timeout: tuple[float, float]
    ) -> Answer:
        data = None if body is None else json.dumps(body).encode()
        has_new_credentials = False
        for attempt in range(RETRIES + 1):
            transport = self._transport
            if method != "GET":
                self._fence()
            self.requests += 1
            if self.recorder is not None:
                self.recorder(method, target)
            try:
                answer = transport.send(method, target, data, content_type, timeout)
            except OSError as error:
                raise ApiUnreachable(f"the API server {transport.server} does not answer: {error}") from error
            if answer.status < 400:
                return answer
            refusal = _error_of(answer)
            if answer.status == 401 and not has_new_credentials:
                has_new_credentials = True
                self._load_credentials(transport)
            elif answer.status in (429, 503) and attempt < RETRIES:
                self._sleep(min(_retry_after(answer) or 2.0**attempt, RETRY_S_MAX))
            elif answer.status in (401, 429) or answer.status >= 500:
                raise ApiUnreachable(
                    f"the API server {transport.server} answers {answer.status}: {refusal}"
                ) from refusal
            else:
                raise refusal
        raise ApiUnreachable(f"the API server {self.server} is too busy")

    def _load_credentials(self, expired: Transport) -> None:
        """Load credentials once for all threads that found the same ones expired."""
        with self._lock:
            if self._transport is expired:
                self._transport = self._connection()


def connect(settings: KubernetesSection, *, fence: Callable[[], None] = lambda: None, read_s: float = READ_S) -> Api:
    """Return a connection as the settings describe it. `fence` and `read_s`: see `Api`.

    Raises KubernetesMissing without the package, ApiUnreachable if there are no usable credentials.
    """
    from dlaas_server.pools.kubernetes.transport import open_transport

    return Api(lambda: open_transport(settings.kubeconfig, settings.context), fence=fence, read_s=read_s)


def _target(path: str, query: Mapping[str, str] | None) -> str:
    return f"{path}?{urlencode(query)}" if query else path


def _error_of(answer: Answer) -> ApiError:
    """Return the refusal in an answer, whose body is a Status object, or a text of a proxy on the way."""
    try:
        text = _read(answer).decode("utf-8", "replace")
    except OSError as error:
        text = str(error)
    try:
        status: Any = json.loads(text)
    except ValueError:
        status = None
    if not isinstance(status, dict):
        status = {"message": " ".join(text.split())[:400]}
    return ApiError(answer.status, str(status.get("reason") or ""), str(status.get("message") or ""))


def _read(answer: Answer) -> bytes:
    """Return the whole body. Raises OSError if the connection breaks."""
    try:
        return answer.read()
    except Exception as error:
        if not _is_of_network(error):
            raise
        raise OSError(str(error)) from error
    finally:
        answer.release_conn()


def _retry_after(answer: Answer) -> float | None:
    try:
        return max(0.0, float(answer.headers.get("Retry-After", "")))
    except ValueError:
        return None


def _is_of_network(error: BaseException) -> bool:
    """Return whether an exception is one of the network, and not a fault of ours."""
    return isinstance(error, OSError) or type(error).__module__.startswith("urllib3.")


def own_address(server: str) -> str:
    """Return the address from which this machine reaches a server. Nothing is sent. Raises ApiUnreachable."""
    try:
        family, kind, protocol, _, target = socket.getaddrinfo(server, 443, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, kind, protocol) as probe:
            probe.connect(target)
            return str(probe.getsockname()[0])
    except OSError as error:
        raise ApiUnreachable(f"there is no route from this machine to {server}: {error}") from error
