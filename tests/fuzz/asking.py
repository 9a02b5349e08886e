"""Sending requests as they are, and holding answers against the description."""

from __future__ import annotations

import http.client
import json
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jsonschema

from jupyter_dlaas.client import discovery
from jupyter_dlaas.wire.protocol import ERRORS
from tests.fuzz.requests import Operation, Request

__all__ = ["Answer", "Line", "complaint", "error_complaint"]


@dataclass(frozen=True, slots=True)
class Answer:
    """Response to a request."""

    status: int
    media: str
    body: bytes


class _Connection(http.client.HTTPConnection):
    def __init__(self, folder: Path) -> None:
        super().__init__("localhost", timeout=20)
        self.folder = folder

    def connect(self) -> None:
        self.sock: socket.socket = discovery.connect_unix(self.folder / discovery.SOCKET, 20)


class Line:
    """A connection to the engine that is kept open: thousands of requests through one."""

    def __init__(self, folder: Path) -> None:
        self._connection = _Connection(folder)

    def ask(self, request: Request) -> Answer:
        """Send it and read the answer, whatever it is."""
        try:
            return self._once(request)
        except (ConnectionError, http.client.RemoteDisconnected):  # the engine closes after some refusals
            self.close()
            return self._once(request)
        except BaseException:
            self.close()
            raise

    def _once(self, request: Request) -> Answer:
        try:
            self._connection.request(request.method, request.target, request.body, dict(request.headers))
        except BrokenPipeError:
            if self._connection.sock is None:
                raise  # it was closed before; here the engine refused without reading all of it, and has answered
        response = self._connection.getresponse()
        return Answer(response.status, response.getheader("Content-Type", "").partition(";")[0], response.read())

    def close(self) -> None:
        self._connection.close()


def complaint(operation: Operation, description: Mapping[str, Any], answer: Answer) -> str | None:
    """Return the fault of a response: an undocumented status, or a body unlike its schema. None: no fault."""
    documented = operation.body["responses"]
    if answer.status >= 500 and answer.status != 503:
        return f"a 5xx: {answer}"
    if str(answer.status) not in documented:
        return f"status {answer.status} is not documented ({', '.join(documented)}): {answer.body[:300]!r}"
    if answer.status >= 400:
        return error_complaint(answer)
    content: Mapping[str, Any] = documented[str(answer.status)].get("content", {})
    if answer.media not in content:
        return f"media type {answer.media!r} is not documented ({', '.join(content)})"
    if answer.media != "application/json":
        return None
    return _mismatch(content[answer.media]["schema"], description, answer.body)


def error_complaint(answer: Answer) -> str | None:
    """Return the fault of an error: another form than ours, or an unknown code."""
    try:
        error = json.loads(answer.body)["error"]
        code, message = error["code"], error["message"]
    except (ValueError, KeyError, TypeError):
        return f"an error ({answer.status}) that is not in our form: {answer.body[:300]!r}"
    if code not in ERRORS or not isinstance(message, str) or not message:
        return f"an error with the code {code!r} and the message {message!r}"
    if code == "internal":
        return f"an error of ours, not of the request: {message!r}"
    return None


def _mismatch(schema: Mapping[str, Any], description: Mapping[str, Any], body: bytes) -> str | None:
    def refuse(text: str) -> float:
        raise ValueError(f"{text} is no JSON")

    try:
        value = json.loads(body, parse_constant=refuse)
    except ValueError as error:
        return f"the answer is no JSON ({error}): {body[:300]!r}"
    whole = {**schema, "components": description["components"]}
    found = jsonschema.Draft202012Validator(whole).iter_errors(value)
    first = next(iter(found), None)
    return (
        None if first is None else f"the answer does not match its schema at {first.json_path}: {first.message[:300]}"
    )
