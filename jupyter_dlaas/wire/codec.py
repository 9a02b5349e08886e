"""Encoding of records as JSON and decoding with errors that name the field. Standard library only.

A record is a frozen dataclass. Its annotations are the rules: `int`, `float`, `str`, `bool`, a `StrEnum`, another
record, `X | None`, `tuple[X, ...]`, `Mapping[str, X]` and `Json`. Bounds are given in `field(metadata=rule(...))`. The
JSON schema of the REST API is derived from the same annotations, so the two cannot differ.
"""

from __future__ import annotations

import dataclasses
import difflib
import functools
import json
import math
import os
import re
import sys
import traceback
import types
import typing
from collections.abc import Mapping
from enum import Enum, StrEnum, auto
from pathlib import Path
from typing import Any, Final, TypeVar

__all__ = [
    "DlaasError",
    "Invalid",
    "Json",
    "UnknownKind",
    "clean",
    "decode",
    "decode_by_kind",
    "decode_float",
    "encode",
    "encode_float",
    "kind_and_fields",
    "prepare",
    "rule",
    "schema",
]

Json = dict[str, Any] | list[Any] | str | int | float | bool | None
"""Any JSON value, for values that are passed through unchecked."""

T = TypeVar("T")
K = TypeVar("K")
_MISSING: Final = dataclasses.MISSING
_BIG: Final = 2**53  # beyond this, JSON numbers lose precision in some readers
_NAMES: Final[dict[object, str]] = {
    str: "text",
    int: "a whole number",
    float: "a number",
    bool: "true or false",
}


def encode_float(value: float) -> float | str:
    """Return a float as JSON; NaN and the infinities, which JSON lacks, get the names that protobuf's JSON uses."""
    if math.isfinite(value):
        return value
    return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"


def decode_float(value: object) -> float:
    """Return the float that `encode_float` encoded; any other value that is not a number becomes NaN."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        return float(value)
    return {"Infinity": math.inf, "-Infinity": -math.inf}.get(str(value), math.nan)


_PACKAGE: Final = f"{Path(__file__).parents[1]}{os.sep}"


class DlaasError(Exception):
    """Base class of all errors of this package. `code` is stable and part of the protocol; the message is for users."""

    code = "internal"
    http_status = 500

    def as_json(self) -> dict[str, Json]:
        """Return the error as a JSON body."""
        return {"error": {"code": self.code, "message": str(self)}}

    def _render_traceback_(self) -> list[str]:
        """Return the traceback that IPython shows: the user's frames and the message, without this package's frames."""
        shell = sys.modules["IPython"].get_ipython()
        frames = self.__traceback__
        while frames is not None and frames.tb_next is not None:
            if frames.tb_next.tb_frame.f_code.co_filename.startswith(_PACKAGE):
                frames.tb_next = None
            else:
                frames = frames.tb_next
        if shell is None:
            return traceback.format_exception(self)
        formatter = shell.InteractiveTB
        offset = formatter.tb_offset
        lines: list[str] = formatter.structured_traceback(type(self), self, self.__traceback__, tb_offset=offset)
        return lines


class Invalid(DlaasError):
    """Violation of a request's or record's rules. The message starts with the field's name."""

    code = "invalid"
    http_status = 400


class UnknownKind(Invalid):
    """Record of a kind that this version does not know. A newer peer may have sent it."""


def rule(
    *,
    least: float | None = None,
    most: float | None = None,
    pattern: str | None = None,
    longest: int | None = None,
    says: str | None = None,
) -> dict[str, object]:
    """Return the bounds of one field for `field(metadata=...)`. `says` is the error text for a mismatched pattern."""
    return {"rule": {"least": least, "most": most, "pattern": pattern, "longest": longest, "says": says}}


def encode(value: object) -> Any:
    """Return a record (or a tuple, mapping or enum of records) as plain JSON values. Fields that are None are kept."""
    kind: Any = type(value)
    if kind in _ATOMS:
        return value
    names = _field_names(kind)
    if names is not None:
        return {name: encode(getattr(value, name)) for name in names}
    if isinstance(value, StrEnum):
        return str(value)
    if isinstance(value, Mapping):
        return {str(k): encode(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [encode(v) for v in value]
    return value


def clean(value: Any) -> Any:
    """Return JSON values in which zero bytes and lone surrogates in strings are replaced by escapes.

    User programs can produce such strings; `decode` refuses them, and the whole record with them.
    """
    if isinstance(value, str):
        if "\0" in value:
            value = value.replace("\0", "\\x00")
        return value if value.isascii() else value.encode("utf-8", "backslashreplace").decode("utf-8")
    if isinstance(value, Mapping):
        return {clean(k): clean(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [clean(v) for v in value]
    return value


_ATOMS: Final = frozenset({str, int, float, bool, type(None)})


@functools.cache
def _field_names(kind: Any) -> tuple[str, ...] | None:
    return tuple(f.name for f in dataclasses.fields(kind)) if dataclasses.is_dataclass(kind) else None


def decode(kind: type[T], value: object, *, where: str = "", unknown: str = "refuse") -> T:
    """Return a record built from JSON values. Check every field.

    `unknown="ignore"` skips fields that this version does not know (messages of a newer peer). `"refuse"` rejects them
    by name. Raise Invalid with the path of the field.
    """
    return typing.cast(T, _decode(kind, value, where, {}, unknown))


_from_json: Final = json.JSONDecoder().decode


def kind_and_fields(text: bytes, kinds: Mapping[str, K], *, tag: str, where: str) -> tuple[K, dict[str, Any]]:
    """Return the entry of `kinds` that the field `tag` of a JSON object names, and all fields of the object.

    `where` begins the message of an error. Raise UnknownKind or Invalid.
    """
    try:
        fields = _from_json(text.decode())
    except (ValueError, RecursionError) as error:
        raise Invalid(f"{where}: is not valid JSON ({error})") from None
    if not isinstance(fields, dict):
        raise Invalid(f"{where}: must be an object, not {type(fields).__name__}")
    name = fields.get(tag)
    if not isinstance(name, str) or name not in kinds:
        raise UnknownKind(f"{where}: unknown kind {_said(name) if isinstance(name, str) else type(name).__name__}")
    return kinds[name], fields


def decode_by_kind(text: bytes, kinds: Mapping[str, type[T]], *, tag: str, where: str) -> T:
    """Return the record of one line of JSON, whose field `tag` names the kind. Ignore fields that are not known here.

    Raise UnknownKind or Invalid.
    """
    kind, fields = kind_and_fields(text, kinds, tag=tag, where=where)
    return decode(kind, fields, where=str(fields[tag]), unknown="ignore")


@functools.cache
def _hints(kind: type) -> dict[str, Any]:
    return typing.get_type_hints(kind)


def prepare(*kinds: type) -> None:
    """Read the annotations of records now instead of when the first of them is decoded."""
    for kind in kinds:
        for annotation, _, _ in _fields(kind).values():
            _form(annotation)


class _Form(Enum):
    """Form of an annotation. Computed once per annotation, because records are decoded by the thousand."""

    JSON = auto()
    OPTIONAL = auto()
    LIST = auto()
    MAPPING = auto()
    RECORD = auto()
    PLAIN = auto()


@functools.cache
def _form(kind: Any) -> tuple[_Form, Any]:
    """Return the form of an annotation, and the annotation of its content."""
    origin, args = typing.get_origin(kind), typing.get_args(kind)
    if kind is Any or kind == Json:
        return _Form.JSON, None
    if origin in (types.UnionType, typing.Union):
        return _Form.OPTIONAL, next(a for a in args if a is not type(None))
    if origin is tuple:
        return _Form.LIST, args[0]
    if origin in (Mapping, dict) or origin is typing.get_origin(Mapping[str, str]):
        return _Form.MAPPING, args[1]
    return (_Form.RECORD if dataclasses.is_dataclass(kind) else _Form.PLAIN), None


def _decode(kind: Any, value: object, where: str, bounds: Mapping[str, Any], unknown: str) -> object:
    form, inner = _form(kind)
    if form is _Form.PLAIN:
        return _plain(kind, value, where, bounds)
    if form is _Form.OPTIONAL:
        return None if value is None else _decode(inner, value, where, bounds, unknown)
    if form is _Form.LIST:
        if not isinstance(value, list | tuple):
            raise Invalid(f"{where or 'value'}: must be a list, not {_said(value)}")
        _check_length(value, where, bounds)
        return tuple(_decode(inner, v, f"{where}[{i}]", {}, unknown) for i, v in enumerate(value))
    if form is _Form.MAPPING:
        if not isinstance(value, Mapping):
            raise Invalid(f"{where or 'value'}: must be an object, not {_said(value)}")
        _check_length(value, where, bounds)
        return {_key(k, where): _decode(inner, v, f"{where}.{k}", {}, unknown) for k, v in value.items()}
    if form is _Form.RECORD:
        return _record(typing.cast(type, kind), value, where, unknown)
    return value


def _key(key: object, where: str) -> str:
    if not isinstance(key, str):
        raise Invalid(f"{where}: names must be text, not {_said(key)}")
    _check_bounds(key, f"{where or 'value'}: a name", {})
    return key


@functools.cache
def _fields(kind: type) -> dict[str, tuple[Any, Mapping[str, Any], bool]]:
    """Return name -> (annotation, bounds, whether the field is required)."""
    return {
        f.name: (
            _hints(kind)[f.name],
            f.metadata.get("rule", {}),
            f.default is _MISSING and f.default_factory is _MISSING,
        )
        for f in dataclasses.fields(kind)
    }


def _record(kind: type, value: object, where: str, unknown: str) -> object:
    if not isinstance(value, Mapping):
        raise Invalid(f"{where or 'body'}: must be an object, not {_said(value)}")
    fields = _fields(kind)
    if unknown == "refuse":
        strange = sorted(str(k) for k in value if k not in fields)
        if strange:
            close = difflib.get_close_matches(strange[0], fields, n=1)
            hint = f"Did you mean {close[0]}?" if close else f"The fields are {', '.join(fields)}"
            raise Invalid(f"{_path(where, strange[0])}: unknown field. {hint}")
    known: dict[str, object] = {}
    for name, (hint, bounds, is_needed) in fields.items():
        if name in value:
            known[name] = _decode(hint, value[name], _path(where, name), bounds, unknown)
        elif is_needed:
            raise Invalid(f"{_path(where, name)}: is missing")
    return kind(**known)


def _plain(kind: Any, value: object, where: str, bounds: Mapping[str, Any]) -> object:
    if isinstance(kind, type) and issubclass(kind, StrEnum):
        if not isinstance(value, str) or value not in set(kind):
            raise Invalid(f"{where}: {_said(value)} is not valid; use one of {', '.join(kind)}")
        return kind(value)
    if kind is float and isinstance(value, int) and not isinstance(value, bool):
        value = float(value) if abs(value) <= _BIG else math.inf
    if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
        raise Invalid(f"{where or 'value'}: must be {_NAMES[kind]}, not {_said(value)}")
    _check_bounds(value, where, bounds)
    return value


def _check_bounds(value: object, where: str, bounds: Mapping[str, Any]) -> None:
    if isinstance(value, str):
        _check_length(value, where, bounds)
        if "\0" in value:
            raise Invalid(f"{where}: contains a zero byte")
        if not value.isascii() and any(0xD800 <= ord(c) < 0xE000 for c in value):
            raise Invalid(f"{where}: contains a lone surrogate, which is not valid Unicode text")
        pattern = bounds.get("pattern")
        if pattern and not re.fullmatch(pattern, value):
            raise Invalid(f"{where}: {_said(value)} {bounds.get('says') or f'does not match {pattern}'}")
    elif isinstance(value, int | float) and not isinstance(value, bool):
        if not abs(value) <= _BIG:  # NaN too; a long integer does not fit into a float
            raise Invalid(f"{where}: {_said(value)} is out of range")
        least, most = bounds.get("least"), bounds.get("most")
        if (least is not None and value < least) or (most is not None and value > most):
            upto = f"from {least:.15g} to {most:.15g}" if most is not None else f"at least {least:.15g}"
            raise Invalid(f"{where}: {value:.15g} must be {upto}")


def _check_length(value: typing.Sized, where: str, bounds: Mapping[str, Any]) -> None:
    longest = bounds.get("longest")
    if longest is not None and len(value) > longest:
        raise Invalid(f"{where}: length {len(value):,} exceeds the maximum of {longest:,}")


def _path(where: str, name: str) -> str:
    return f"{where}.{name}" if where else name


def _said(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


def schema(kind: Any, found: dict[str, Json] | None = None) -> dict[str, Json]:
    """Return the JSON schema of a type. Records are added to `found` and referenced by name."""
    found = {} if found is None else found
    origin, args = typing.get_origin(kind), typing.get_args(kind)
    if kind is Any or kind == Json:
        return {}
    if origin in (types.UnionType, typing.Union):
        inner = [a for a in args if a is not type(None)]
        return {"anyOf": [schema(inner[0], found), {"type": "null"}]}
    if origin is tuple:
        return {"type": "array", "items": schema(args[0], found)}
    if origin in (Mapping, dict) or origin is typing.get_origin(Mapping[str, str]):
        return {"type": "object", "additionalProperties": schema(args[1], found)}
    if dataclasses.is_dataclass(kind):
        return _record_schema(typing.cast(type, kind), found)
    if isinstance(kind, type) and issubclass(kind, StrEnum):
        return {"type": "string", "enum": list(kind)}
    return {"type": {str: "string", int: "integer", float: "number", bool: "boolean"}[kind]}


def _record_schema(kind: type, found: dict[str, Json]) -> dict[str, Json]:
    if kind.__name__ not in found:
        found[kind.__name__] = {}  # stop the recursion of a record that contains itself
        properties: dict[str, Json] = {}
        required: list[Json] = []
        for field in dataclasses.fields(kind):
            one = schema(_hints(kind)[field.name], found)
            properties[field.name] = one | _bounds_schema(one, field.metadata.get("rule", {}))
            if field.default is _MISSING and field.default_factory is _MISSING:
                required.append(field.name)
        found[kind.__name__] = {
            "type": "object",
            "description": (kind.__doc__ or "").strip().split("\n")[0],
            "properties": properties,
            "required": required,
            "additionalProperties": False,
        }
    return {"$ref": f"#/components/schemas/{kind.__name__}"}


def _bounds_schema(one: Mapping[str, Json], bounds: Mapping[str, Any]) -> dict[str, Json]:
    choices = one.get("anyOf")
    if isinstance(choices, list):  # a nullable value: the bounds apply to the value
        return {"anyOf": [choice | _bounds_schema(choice, bounds) for choice in choices]}
    out: dict[str, Json] = {}
    longest = {"array": "maxItems", "object": "maxProperties"}.get(str(one.get("type")))
    if longest is not None and bounds.get("longest") is not None:
        out[longest] = bounds["longest"]
    numeric = one.get("type") in ("integer", "number")
    if numeric and bounds.get("least") is not None:
        out["minimum"] = bounds["least"]
    if numeric and bounds.get("most") is not None:
        out["maximum"] = bounds["most"]
    if one.get("type") == "string":
        if bounds.get("pattern"):
            out["pattern"] = f"^(?:{bounds['pattern']})$"
        if bounds.get("longest") is not None:
            out["maxLength"] = bounds["longest"]
    return out
