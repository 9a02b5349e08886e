"""The REST API, from the OpenAPI description that the engine serves."""

from __future__ import annotations

from typing import Any

from dlaas_server.rest.routes import Endpoint, describe
from docs.generate.markdown import code, sentence, table

__all__ = ["operations", "records", "routes"]


def operations() -> list[tuple[str, str, dict[str, Any]]]:
    """Return (method, path, operation) of every route."""
    paths: Any = describe(endpoint=Endpoint.JUPYTER)["paths"]
    return [(method.upper(), path, one) for path, methods in paths.items() for method, one in methods.items()]


def routes() -> str:
    """Render every operation with its parameters, body and responses."""
    engine: Any = describe(endpoint=Endpoint.BOTH)["paths"]
    parts = []
    for method, path, one in operations():
        lines = [f"## {code(f'{method} {path}')}", sentence(one["summary"])]
        if path not in engine or method.lower() not in engine[path]:
            lines.append("Only the Jupyter server has this route.")
        asked = [parameter for parameter in one["parameters"] if parameter["in"] == "query"]
        if asked:
            rows = [(code(q["name"]), bounded(q["schema"]), sentence(q["description"])) for q in asked]
            lines.append(table(("query", "value", "meaning"), rows))
        body = one.get("requestBody")
        if body:
            lines.append(f"Body: {content(body['content'])}{'' if body['required'] else ', optional'}.")
        for status, answer in one["responses"].items():
            if int(status) < 400 and "content" in answer:
                lines.append(f"Response {status}: {content(answer['content'])}.")
        errors = ", ".join(code(status) for status in one["responses"] if int(status) >= 400)
        lines.append(f"Errors: {errors}.")
        parts.append("\n\n".join(lines))
    return "\n\n".join(parts) + "\n"


def records() -> str:
    """Render the fields of every record."""
    schemas: Any = describe(endpoint=Endpoint.JUPYTER)["components"]
    parts = []
    for name, record in sorted(schemas["schemas"].items()):
        needed = record.get("required", [])
        rows = [
            (code(field), kind(one), "required" if field in needed else "")
            for field, one in record["properties"].items()
        ]
        about = sentence(record.get("description", "Body of every error."))
        parts.append(f"({anchor(name)})=\n\n### {name}\n\n{about}\n\n" + table(("field", "value", ""), rows))
    return "\n".join(parts)


def anchor(record: str) -> str:
    """Return the label of a record's section."""
    return f"record-{record.lower()}"


def content(of: dict[str, Any]) -> str:
    """Return what a body consists of."""
    media, one = next(iter(of.items()))
    said = kind(one["schema"])
    return said if media == "application/json" else f"{said} ({code(media)})"


def bounded(schema: dict[str, Any]) -> str:
    """Return the type of a parameter with its bounds."""
    least, most = schema.get("minimum"), schema.get("maximum")
    return str(schema["type"]) + (f" from {least:,.0f} to {most:,.0f}" if least is not None else "")


def kind(schema: dict[str, Any]) -> str:
    """Return a schema in a few words, with links to records."""
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        return f"[{name}](#{anchor(name)})"
    if "anyOf" in schema:
        return " or ".join(kind(one) for one in schema["anyOf"])
    if "enum" in schema:
        return "one of " + ", ".join(code(one) for one in schema["enum"])
    if schema.get("type") == "array":
        return f"list of {kind(schema['items'])}"
    if schema.get("properties"):
        return "object with " + ", ".join(f"{code(name)}: {kind(one)}" for name, one in schema["properties"].items())
    if isinstance(schema.get("additionalProperties"), dict) and schema["additionalProperties"]:
        return f"object of {kind(schema['additionalProperties'])}"
    if schema.get("contentMediaType"):
        return "bytes"
    return str(schema.get("type", "any JSON value"))
