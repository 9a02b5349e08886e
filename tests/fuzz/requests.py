"""Requests made from the OpenAPI description: what it allows, and the same with something broken."""

from __future__ import annotations

import copy
import hashlib
import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final
from urllib.parse import quote

from hypothesis import strategies as st

from jupyter_dlaas.wire.codec import Json

__all__ = ["Operation", "Request", "operations", "requests", "wrong_methods"]

Description = Mapping[str, Any]
JUNK: Final[tuple[Any, ...]] = (
    *(None, True, False, 0, -1, 2**31, 2**53 + 1, 10**400, -(10**400), 1.5, 1e308, -0.0, float("nan"), float("inf")),
    *("", " ", "\0", "\ud800", "é\u202e\n", "x" * 100_000, "../../etc/passwd", "null", "1e999", "'; --"),
    *([], {}, [[]], [None], {"": None}, {"a": {"b": [1]}}, ["x"] * 2000),
)
"""Values that a client may send instead of anything else."""
BODIES: Final = (
    *(b"", b"{", b"[" * 100_000, b"null", b"[]", b'"text"', b"12", b"\xff\xfe{}", b"\xef\xbb\xbf{}", b"{} {}", b"NaN"),
    *(b'{"a": 1, "a": 2}', b'{"spec": ' + b'{"spec": ' * 5000, b'{"key": "\\ud800"}', bytes(range(256))),
)
"""Bodies that are no records at all."""
NAME_CHARACTERS: Final = st.characters(codec="utf-8", min_codepoint=1)
NAMES: Final = st.text(NAME_CHARACTERS, max_size=8)
TAME: Final[dict[str, st.SearchStrategy[Any]]] = {
    # What would run wild, take long or start anything but this Python is held within bounds.
    "source": st.sampled_from(["", "pass\n", "print('hello')\n", "1/0\n", "raise SystemExit(3)\n", "not Python"]),
    "interpreter": st.sampled_from([None, sys.executable, "no/such/python", "/dev/null"]),
    "directory": st.sampled_from([None, "/", "no/such/folder"]),
    "learners": st.sampled_from([None, 1, 1, 2, 7, 9, 100_000]),
    "learners_min": st.sampled_from([1, 1, 1, 2, 9]),
    "learners_max": st.sampled_from([1, 1, 2, 3, 9]),
    "gpus_per_learner": st.sampled_from([0, 1, 1, 1, 2, 1024]),
    "cpus_per_learner": st.sampled_from([0.0, 0.5, 10_000.0]),
    "memory_bytes_per_learner": st.sampled_from([0, 0, 2**20, 2**50]),
    "retries": st.sampled_from([0, 1]),
    "queue": st.sampled_from(["default", "default", "default", "other"]),
    "key": st.uuids().map(str),
    "environment": st.dictionaries(NAMES, NAMES, max_size=2),
    "path": st.sampled_from(
        ["files/a.py", "inputs/b.bin", "train.py", "files/../x", "/etc/passwd", "files/" + "d/" * 60]
    ),
    "outputs": st.lists(st.sampled_from(["model", "history", "no name", "é"]), max_size=2),
    "command": st.lists(NAMES, max_size=2),
    "metric_patterns": st.lists(st.sampled_from(["loss=(.*)", "((((", ""]), max_size=1),
    "wait_s": st.sampled_from([0, 0.01]),
    "framework": st.sampled_from([None, "torch", "plain"]),
    "epochs": st.sampled_from([None, 1, 10**9]),
    "schedule": st.lists(
        st.fixed_dictionaries({"epoch": st.integers(0, 9), "learners": st.sampled_from([1, 2, 9])}), max_size=2
    ),
}


@dataclass(frozen=True, slots=True)
class Operation:
    """One operation of the description."""

    method: str
    path: str
    body: Mapping[str, Any] = field(repr=False)

    @property
    def id(self) -> str:
        name = self.body["operationId"]
        assert isinstance(name, str)
        return name

    @property
    def media(self) -> str | None:
        """The media type of its body; None where it has none."""
        asked = self.body.get("requestBody")
        return None if asked is None else str(next(iter(asked["content"])))


@dataclass(frozen=True, slots=True)
class Request:
    """Request to send. `is_valid` if the description allows all of it."""

    method: str
    target: str
    body: bytes | None
    headers: Mapping[str, str]
    is_valid: bool


def operations(description: Description) -> list[Operation]:
    """Every operation, the WebSocket apart."""
    found = [
        Operation(method.upper(), path, body)
        for path, methods in description["paths"].items()
        for method, body in methods.items()
    ]
    return [one for one in found if "101" not in one.body["responses"]]


def wrong_methods(description: Description) -> list[tuple[str, str]]:
    """List the (method, path) pairs that no operation takes."""
    every = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "BREW")
    return [(m, path) for path, known in description["paths"].items() for m in every if m.lower() not in known]


def values(schema: Mapping[str, Any], records: Mapping[str, Any], name: str = "") -> st.SearchStrategy[Any]:
    """Values that the schema allows; those named in TAME from its choice."""
    if name in TAME and schema.get("type") != "null":
        return TAME[name]
    if "$ref" in schema:
        return values(records[str(schema["$ref"]).rpartition("/")[2]], records)
    if "anyOf" in schema:
        return st.one_of([values(one | _rest(schema), records, name) for one in schema["anyOf"]])
    if "enum" in schema:
        return st.sampled_from(schema["enum"])
    match schema.get("type"):
        case "null":
            return st.none()
        case "boolean":
            return st.booleans()
        case "integer":
            return st.integers(int(schema.get("minimum", -(2**53))), int(schema.get("maximum", 2**53)))
        case "number":
            least, most = schema.get("minimum", -1e9), schema.get("maximum", 1e9)
            return st.floats(least, most, allow_nan=False)
        case "string" if "pattern" in schema:
            most = int(schema.get("maxLength", 2**20))
            return st.from_regex(schema["pattern"], fullmatch=True).filter(lambda text: len(text) <= most)
        case "string":
            longest = min(int(schema.get("maxLength", 30)), 30)
            return st.text(
                st.characters(codec="utf-8", min_codepoint=1),
                min_size=int(schema.get("minLength", 0)),
                max_size=longest,
            )
        case "array":
            return st.lists(values(schema["items"], records), max_size=3)
        case "object":
            return _objects(schema, records)
    return st.sampled_from(JUNK[:12])


def _rest(schema: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in schema.items() if key != "anyOf"}


def _objects(schema: Mapping[str, Any], records: Mapping[str, Any]) -> st.SearchStrategy[dict[str, Any]]:
    properties: Mapping[str, Any] = schema.get("properties", {})
    if not properties:
        of = schema.get("additionalProperties")
        inner = values(of, records) if isinstance(of, Mapping) else st.none()
        return st.dictionaries(NAMES, inner, max_size=3)
    needed = set(schema.get("required", ()))
    return st.fixed_dictionaries(
        {name: values(one, records, name) for name, one in properties.items() if name in needed},
        optional={name: values(one, records, name) for name, one in properties.items() if name not in needed},
    )


# -- breaking ----------------------------------------------------------------------------------------------------------


def _places(value: Json, here: tuple[str | int, ...] = ()) -> list[tuple[str | int, ...]]:
    """List the paths of all values inside `value`."""
    found: list[tuple[str | int, ...]] = [here]
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for name, one in inner:
        found += _places(one, (*here, name))
    return found


def _junk(draw: st.DrawFn) -> Any:
    """Draw a copy: what one example spoils must not spoil the next, nor come to hold itself."""
    return copy.deepcopy(draw(st.sampled_from(JUNK)))


@st.composite
def broken(draw: st.DrawFn, whole: st.SearchStrategy[Any]) -> Any:
    """Spoil one to three places of a valid value: other types, huge numbers, unknown fields, fields left out."""
    value = copy.deepcopy(draw(whole))
    for _ in range(draw(st.integers(1, 3))):
        *way, last = draw(st.sampled_from(_places(value))) or ("",)
        if last == "":
            return _junk(draw)
        inside = value
        for step in way:
            inside = inside[step]
        act = draw(st.sampled_from(["junk", "junk", "drop", "add", "wrap"]))
        if act == "drop":
            del inside[last]
        elif act == "add" and isinstance(inside, dict):
            inside[draw(st.sampled_from(["extra", "", "__class__", "\ud800"]))] = _junk(draw)
        elif act == "wrap":
            inside[last] = [inside[last]]
        else:
            inside[last] = _junk(draw)
    return value


def _text(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value)


@st.composite
def _path(draw: st.DrawFn, operation: Operation, known: Mapping[str, Sequence[str]], is_broken: bool) -> str:
    path = operation.path
    bad = ["..", ".", "%", "%00", "%ff", "%2e%2e", "a" * 5000, "no-such-7", "train-999999999999", "-", "%F0%9F%92%A9"]
    for name in ("id", "name", "path", "sha256", "node", "queue"):
        if f"{{{name}}}" in path:
            good = known.get(name, ()) or ["x"]
            safe = "/" if name == "path" else ""  # only this one may hold slashes
            wild = st.sampled_from(bad) | st.text(NAME_CHARACTERS, min_size=1, max_size=20).map(
                partial(quote, safe=safe)
            )
            chosen = draw(
                wild if is_broken and draw(st.booleans()) else st.sampled_from(good).map(partial(quote, safe=safe))
            )
            path = path.replace(f"{{{name}}}", chosen)
    return path


@st.composite
def _query(draw: st.DrawFn, operation: Operation, is_broken: bool) -> str:
    asked: list[str] = []
    for one in operation.body["parameters"]:
        if one["in"] != "query" or draw(st.booleans()):
            continue
        known = {"state": ["QUEUED", "queued,FAILED"], "logs": ["0:0", "0:3,1:0"], "want": ["view", "log,metrics"]}
        if one["name"] in known:
            value = draw(st.sampled_from(known[one["name"]]))
        else:
            value = _text(draw(values(one["schema"], {}, one["name"])))
        if is_broken and draw(st.booleans()):
            value = draw(
                st.sampled_from(["", "x", "1e999", "nan", "-1", "9" * 400, "٣", "1,2", "0:", ":", "\0", "1.5"])
            )
            value = "0.01" if one["name"] == "wait_s" and value in ("1.5", "٣") else value
        asked.append(f"{one['name']}={quote(value)}")
    if is_broken and draw(st.booleans()):
        asked.append(
            draw(st.sampled_from(["%ff=%ff", "offset=%ff", "state=%ff", "=", "&&", "extra=1", "limit=1&limit=x"]))
        )
    return "?" + "&".join(asked) if asked else ""


@st.composite
def requests(
    draw: st.DrawFn, operation: Operation, description: Description, known: Mapping[str, Sequence[str]]
) -> Request:
    """One request of this operation, in two of three cases with something broken."""
    is_broken = draw(st.sampled_from([False, True, True]))
    target = draw(_path(operation, known, is_broken)) + draw(_query(operation, is_broken))
    headers: dict[str, str] = {}
    if is_broken and draw(st.integers(0, 9)) == 0:
        headers = draw(st.sampled_from([{"X-Dlaas-Protocol": "0"}, {"X-Dlaas-Protocol": "é"}, {"Accept": "image/png"}]))
    body: bytes | None = None
    if operation.media is not None:
        headers |= {"Content-Type": operation.media}
        schema = operation.body["requestBody"]["content"][operation.media]["schema"]
        if operation.media != "application/json":
            body = draw(st.binary(max_size=100))
            if not is_broken:
                target = target.rpartition("/")[0] + "/" + hashlib.sha256(body).hexdigest()
        else:
            whole = values(schema, description["components"]["schemas"])
            if is_broken:
                raw = st.sampled_from(BODIES)
                spoilt = broken(whole).map(lambda value: json.dumps(value).encode())
                body = draw(st.one_of(spoilt, spoilt, spoilt, raw))
            else:
                body = json.dumps(draw(whole)).encode()
    return Request(operation.method, target, body, headers, not is_broken)
