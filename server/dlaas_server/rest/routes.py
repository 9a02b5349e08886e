"""REST API in one table, for the engine's handlers, the Jupyter server's relay and the OpenAPI document.

`ROUTES` is the only list of routes. The engine registers its handlers from it, the extension its relay, and
`describe()` creates the OpenAPI document; request and answer records provide the schemas (`jupyter_dlaas.wire.codec`),
so that the description cannot differ from the checks. Standard library and `jupyter_dlaas` only.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from dlaas_server.rest.bodies import (
    Cell,
    CellFinding,
    Change,
    CheckedCell,
    DrainAsked,
    Keyed,
    NotebookCheck,
    NotebookChecked,
    NotebookSubmit,
    PoolChange,
    QueueChange,
    Warm,
)
from jupyter_dlaas._version import __version__
from jupyter_dlaas.wire import protocol
from jupyter_dlaas.wire.codec import Json, schema
from jupyter_dlaas.wire.protocol import DrainView, JobView, PoolView, Submit

__all__ = [
    "ROUTES",
    "Cell",
    "CellFinding",
    "Change",
    "CheckedCell",
    "DrainAsked",
    "Endpoint",
    "Keyed",
    "NotebookCheck",
    "NotebookChecked",
    "NotebookSubmit",
    "PoolChange",
    "Query",
    "QueueChange",
    "Route",
    "Warm",
    "describe",
]


class Endpoint(StrEnum):
    """Endpoint that answers a route: both, or only the Jupyter server."""

    BOTH = "both"
    JUPYTER = "jupyter"


@dataclass(frozen=True, slots=True)
class Query:
    """Query parameter."""

    name: str
    kind: str
    """"integer", "number" or "string"."""
    says: str
    least: float | None = None
    most: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Route:
    """Route: method and path, request and answer records, and possible statuses."""

    method: str
    path: str
    """Template under the base URL: "/dlaas/jobs/{id}"."""
    operation: str
    says: str
    statuses: tuple[int, ...] = (200,)
    """Statuses of success, then of errors, except 401, 403, 426 and 503, which any request may return."""
    request: type | None = None
    request_required: bool = True
    request_media: str = "application/json"
    """Content type if not JSON: raw bytes, streamed."""
    response: type | Mapping[str, Json] | None = None
    """Record, or a schema if field names are not valid Python names."""
    response_media: str = "application/json"
    query: tuple[Query, ...] = ()
    endpoint: Endpoint = Endpoint.BOTH
    is_websocket: bool = False

    @property
    def regex(self) -> str:
        """Return the path as a tornado pattern, relative to a base URL; `{path}` and `{name}` match anything."""
        return _PLACE.sub(lambda m: r"(.+)" if m[1] == "path" else r"([^/]+)", self.path)


_PLACE: Final = re.compile(r"\{(\w+)\}")


def _object(**properties: Json) -> dict[str, Json]:
    """Return the schema of an object that has all `properties`; a trailing underscore is dropped (`from_`)."""
    named: dict[str, Json] = {name.rstrip("_"): value for name, value in properties.items()}
    return {"type": "object", "properties": named, "required": list(named)}


def _list(of: Mapping[str, Json]) -> dict[str, Json]:
    return {"type": "array", "items": dict(of)}


def _ref(kind: type) -> dict[str, Json]:
    return {"$ref": f"#/components/schemas/{kind.__name__}"}


_WHOLE: Final[dict[str, Json]] = {"type": "integer"}
_NUMBER: Final[dict[str, Json]] = {"type": "number"}
_TEXT: Final[dict[str, Json]] = {"type": "string"}
_ANY: Final[dict[str, Json]] = {"type": "object"}
_BYTES: Final = "application/octet-stream"

_OFFSET: Final = Query("offset", "integer", "First byte; negative counts from the end.", -(2**53), 2**53)


def _act(name: str, says: str) -> Route:
    return Route(
        method="POST",
        path=f"/dlaas/jobs/{{id}}/{name}",
        operation=f"{name}_job",
        says=says,
        request=Keyed,
        request_required=False,
        response=JobView,
        statuses=(200, 400, 404, 409, 413),
    )


def _cordoning(name: str, says: str, *statuses: int) -> Route:
    return Route(
        method="POST",
        path=f"/dlaas/nodes/{{node}}/{name}",
        operation=f"{name}_node",
        says=f"{says} Pool administrators only.",
        response=PoolView,
        statuses=statuses,
    )


_EVENTS: Final = _object(events=_list(_object(row=_WHOLE, at_s=_NUMBER, kind=_TEXT, text=_TEXT)))
ROUTES: Final[tuple[Route, ...]] = (
    Route(
        method="GET",
        path="/dlaas/pool",
        operation="get_pool",
        says="The pool: nodes, devices, the jobs that hold them, and the queue.",
        response=PoolView,
    ),
    Route(
        method="PATCH",
        path="/dlaas/pool",
        operation="change_pool",
        says="Change order, placement, preemption, or price and notice of spot jobs. Pool administrators only.",
        request=PoolChange,
        response=PoolView,
        statuses=(200, 400, 413),
    ),
    Route(
        method="GET",
        path="/dlaas/pool/events",
        operation="events_of_pool",
        says="Requests of administrators and failures of devices. Pool administrators only.",
        response=_EVENTS,
    ),
    Route(
        method="PUT",
        path="/dlaas/queues/{queue}",
        operation="set_queue",
        says="Create a queue, or change its share. Pool administrators only.",
        request=QueueChange,
        response=PoolView,
        statuses=(200, 400, 409, 413, 422),
    ),
    Route(
        method="DELETE",
        path="/dlaas/queues/{queue}",
        operation="remove_queue",
        says="Remove an unused queue that was created at run time. Pool administrators only.",
        response=PoolView,
        statuses=(200, 400, 404, 409),
    ),
    _cordoning("cordon", "Place no new learners on the node; running ones stay.", 200, 400, 404),
    _cordoning("uncordon", "Allow new learners on the node again; ends a drain.", 200, 400, 404, 409),
    Route(
        method="GET",
        path="/dlaas/nodes/{node}/drain",
        operation="preview_drain",
        says="Preview which jobs a drain of the node would shrink, move or preempt. Changes nothing.",
        response=DrainView,
        statuses=(200, 400, 404),
    ),
    Route(
        method="POST",
        path="/dlaas/nodes/{node}/drain",
        operation="drain_node",
        says="Empty the node: shrink elastic jobs, move the others, preempt last. With the plan of a preview: only if "
        "that plan is still valid.",
        request=DrainAsked,
        request_required=False,
        response=DrainView,
        statuses=(200, 400, 404, 409, 413),
    ),
    Route(
        method="GET",
        path="/dlaas/jobs",
        operation="list_jobs",
        says=(
            "Jobs, newest first. If the limit cuts the list: running jobs, then the first of the queue, "
            "then the newest."
        ),
        response=_object(jobs=_list(_ref(JobView))),
        query=(
            Query("state", "string", "Only jobs in these states, separated by commas."),
            Query("owner", "string", "Only jobs of this user."),
            Query("limit", "integer", "Maximum number of jobs.", 1, 10_000),
        ),
        statuses=(200, 400),
    ),
    Route(
        method="POST",
        path="/dlaas/jobs",
        operation="submit_job",
        says="Submit a job. A repeated request with the same key returns the same job, with status 200.",
        request=Submit,
        response=JobView,
        statuses=(201, 200, 400, 404, 409, 413, 422),
    ),
    Route(
        method="PUT",
        path="/dlaas/blobs/{sha256}",
        operation="put_blob",
        says="Store bytes for a later submit that refers to their SHA-256.",
        request=bytes,
        request_media=_BYTES,
        response=_object(sha256=_TEXT, bytes=_WHOLE),
        statuses=(200, 201, 400, 413),
    ),
    Route(
        method="GET",
        path="/dlaas/jobs/{id}",
        operation="get_job",
        says="One job. {id} is a handle (resnet-48) or a name (resnet: the newest own job of that name).",
        response=JobView,
        statuses=(200, 400, 404),
    ),
    Route(
        method="PATCH",
        path="/dlaas/jobs/{id}",
        operation="change_job",
        says="Change the requested size, the priority or the elastic mode.",
        request=Change,
        response=JobView,
        statuses=(200, 400, 404, 409, 413, 422),
    ),
    _act("halt", "Write a checkpoint and release the devices."),
    _act("resume", "Return a halted job to the queue."),
    _act("cancel", "Cancel a job permanently."),
    _act("checkpoint", "Write a checkpoint at the next step; training continues."),
    Route(
        method="POST",
        path="/dlaas/jobs/{id}/retry",
        operation="retry_job",
        says="Submit the same source and spec as a new job.",
        request=Keyed,
        request_required=False,
        response=JobView,
        statuses=(201, 200, 400, 404, 409, 413, 422),
    ),
    Route(
        method="DELETE",
        path="/dlaas/jobs/{id}",
        operation="delete_job",
        says="Remove an ended job's record and directory.",
        response=_object(),
        statuses=(200, 400, 404, 409),
    ),
    Route(
        method="GET",
        path="/dlaas/jobs/{id}/why",
        operation="why_job",
        says="Explanation of the job's current state, in sentences.",
        response=_object(sentences=_list(_TEXT)),
        statuses=(200, 400, 404),
    ),
    Route(
        method="GET",
        path="/dlaas/jobs/{id}/events",
        operation="events_of_job",
        says="Events of the job.",
        response=_EVENTS,
        statuses=(200, 400, 404),
    ),
    Route(
        method="GET",
        path="/dlaas/jobs/{id}/source",
        operation="source_of_job",
        says="The job's train.py and the names of the files sent with it.",
        response=_object(source=_TEXT, files=_list(_TEXT)),
        statuses=(200, 400, 404),
    ),
    Route(
        method="GET",
        path="/dlaas/jobs/{id}/log",
        operation="log_of_job",
        says="Part of one learner's log.",
        response=_object(member=_WHOLE, from_=_WHOLE, to=_WHOLE, size=_WHOLE, text=_TEXT),
        query=(
            Query("member", "integer", "The learner's member number.", 0, 2**53),
            _OFFSET,
            Query("limit", "integer", "Maximum number of bytes.", 1, 2**26),
        ),
        statuses=(200, 400, 404),
    ),
    Route(
        method="GET",
        path="/dlaas/jobs/{id}/metrics",
        operation="metrics_of_job",
        says="Metric records from an offset on.",
        response=_object(from_=_WHOLE, to=_WHOLE, size=_WHOLE, records=_list(_ANY)),
        query=(_OFFSET,),
        statuses=(200, 400, 404),
    ),
    Route(
        method="GET",
        path="/dlaas/jobs/{id}/curves",
        operation="curves_of_job",
        says="Metrics thinned for drawing: name to [[step, time, value], ...].",
        response=_object(curves=_ANY),
        query=(Query("points", "integer", "Maximum number of points per metric.", 2, 10_000),),
        statuses=(200, 400, 404),
    ),
    Route(
        method="GET",
        path="/dlaas/jobs/{id}/results/{name}",
        operation="result_of_job",
        says="The bytes of one result, opaque to the server.",
        response=bytes,
        response_media=_BYTES,
        statuses=(200, 400, 404),
    ),
    Route(
        method="GET",
        path="/dlaas/jobs/{id}/artifacts",
        operation="list_artifacts",
        says="Files in the job's output folder, and its checkpoints.",
        response=_object(artifacts=_list(_object(path=_TEXT, bytes=_WHOLE))),
        statuses=(200, 400, 404),
    ),
    Route(
        method="GET",
        path="/dlaas/jobs/{id}/artifacts/{path}",
        operation="get_artifact",
        says="The bytes of one artifact.",
        response=bytes,
        response_media=_BYTES,
        statuses=(200, 400, 404),
    ),
    Route(
        method="GET",
        path="/dlaas/jobs/{id}/report",
        operation="report_of_job",
        says="Spec, versions, failure and the last 200 log lines as text; secrets masked.",
        response=str,
        response_media="text/plain",
        statuses=(200, 400, 404),
    ),
    Route(
        method="GET",
        path="/dlaas/jobs/{id}/stream",
        operation="stream_of_job",
        says="The WebSocket's messages by long poll: all after the cursor, at once or within wait_s.",
        response=_object(messages=_list(_ANY), cursor=_ref(protocol.Cursor)),
        query=(
            Query("row", "integer", "Event row of the last view seen.", 0, 2**53),
            Query("metrics", "integer", "Byte offset in the metrics.", 0, 2**53),
            Query("logs", "string", "Byte offset per member: 0:12,1:33. Members that are not named start at 0."),
            Query("want", "string", "Only these kinds, separated by commas: view, log, metrics. All, if not given."),
            Query("wait_s", "number", "Seconds to wait for new messages.", 0, 60),
        ),
        statuses=(200, 400, 404),
    ),
    Route(
        method="POST",
        path="/dlaas/preflight",
        operation="preflight",
        says="Check this submit: problems and start estimate. Stores nothing.",
        request=Submit,
        response=_object(problems=_list(_object(code=_TEXT, text=_TEXT)), estimate=_TEXT),
        statuses=(200, 400, 413, 422),
    ),
    Route(
        method="POST",
        path="/dlaas/warm",
        operation="warm",
        says="Prewarm this Python interpreter, so that its jobs start fast. Returns at once.",
        request=Warm,
        response=_object(is_warm={"type": "boolean"}),
        statuses=(200, 400, 413, 422),
    ),
    Route(
        method="GET",
        path="/dlaas/openapi.json",
        operation="describe",
        says="This OpenAPI description.",
        response=_ANY,
    ),
    Route(
        method="GET",
        path="/dlaas/stream",
        operation="stream",
        says="The WebSocket: subscribe to jobs and to the pool. See WIRE.md.",
        statuses=(101, 400),
        is_websocket=True,
    ),
    Route(
        method="POST",
        path="/dlaas/notebook",
        operation="train_notebook",
        says="Train a notebook from its cells, without a kernel.",
        request=NotebookSubmit,
        response=JobView,
        statuses=(201, 200, 400, 404, 409, 413, 422),
        endpoint=Endpoint.JUPYTER,
    ),
    Route(
        method="POST",
        path="/dlaas/notebook/check",
        operation="check_notebook",
        says="Analyse each training cell of a notebook: required code and missing names. Runs nothing.",
        request=NotebookCheck,
        response=NotebookChecked,
        statuses=(200, 400, 413),
        endpoint=Endpoint.JUPYTER,
    ),
)

_MEANS: Final[dict[int, str]] = {
    101: "The connection becomes a WebSocket",
    200: "Done",
    201: "Made",
    400: "The request breaks a rule; the message names the field",
    401: "Not authenticated",
    403: "Not allowed to this user",
    404: "No such job, file or result",
    409: "The job's state does not allow this",
    413: "The body is too large",
    422: "Valid request that this pool can never satisfy",
    426: "Client and engine use different protocol versions",
    503: "The engine is unavailable; nothing was accepted; try again",
}
_ALWAYS: Final = (401, 403, 426, 503)
_ID_SCHEMA: Final[dict[str, Json]] = {"type": "string", "minLength": 1, "maxLength": 200}


def describe(*, endpoint: Endpoint = Endpoint.BOTH, base: str = "/") -> dict[str, Json]:
    """Return the OpenAPI 3.1 document of the routes that `endpoint` answers, below the URL path `base`."""
    records: dict[str, Json] = {}
    for kind in (JobView, PoolView, protocol.Cursor):
        schema(kind, records)
    paths: dict[str, Json] = {}
    for route in _served(endpoint):
        operations = paths.setdefault(route.path, {})
        assert isinstance(operations, dict)
        operations[route.method.lower()] = _operation(route, records)
    records["Error"] = _object(error=_object(code={"type": "string", "enum": sorted(protocol.ERRORS)}, message=_TEXT))
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "jupyter_dlaas",
            "version": __version__,
            "description": f"Deep learning as a service, inside the notebook. Protocol {protocol.PROTOCOL}.",
        },
        "servers": [{"url": base.rstrip("/") or "/"}],
        "paths": paths,
        "components": {"schemas": records},
    }


def _served(endpoint: Endpoint) -> Iterable[Route]:
    return (route for route in ROUTES if endpoint is Endpoint.JUPYTER or route.endpoint is Endpoint.BOTH)


def _operation(route: Route, records: dict[str, Json]) -> dict[str, Json]:
    path_parameters: list[Json] = [
        {"name": name, "in": "path", "required": True, "schema": dict(_ID_SCHEMA)}
        for name in _PLACE.findall(route.path)
    ]
    query_parameters: list[Json] = [
        {"name": q.name, "in": "query", "description": q.says, "schema": _query_schema(q)} for q in route.query
    ]
    out: dict[str, Json] = {
        "operationId": route.operation,
        "summary": route.says,
        "parameters": path_parameters + query_parameters,
        "responses": _responses(route, records),
    }
    if route.request is not None:
        out["requestBody"] = {
            "required": route.request_required,
            "content": {route.request_media: {"schema": _body(route.request, records)}},
        }
    return out


def _query_schema(query: Query) -> dict[str, Json]:
    out: dict[str, Json] = {"type": query.kind}
    if query.least is not None:
        out["minimum"] = query.least
    if query.most is not None:
        out["maximum"] = query.most
    return out


def _body(kind: type | Mapping[str, Json], records: dict[str, Json]) -> dict[str, Json]:
    if isinstance(kind, Mapping):
        return dict(kind)
    if kind is bytes:
        return {"type": "string", "contentMediaType": _BYTES}
    return schema(kind, records)


def _responses(route: Route, records: dict[str, Json]) -> dict[str, Json]:
    out: dict[str, Json] = {}
    for status in sorted({*route.statuses, *_ALWAYS}):
        response: dict[str, Json] = {"description": _MEANS[status]}
        if status in (401, 403):
            response["content"] = {"application/json": {"schema": {"type": "object"}}}
        elif status >= 400:
            response["content"] = {"application/json": {"schema": {"$ref": "#/components/schemas/Error"}}}
        elif route.response is not None:
            response["content"] = {route.response_media: {"schema": _body(route.response, records)}}
        out[str(status)] = response
    return out
