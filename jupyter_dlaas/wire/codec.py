"""Records to JSON and back, with errors that name the field. Standard library only.

A record is a frozen dataclass. Its annotations are the rules: `int`, `float`, `str`, `bool`, a `StrEnum`, another
record, `X | None`, `tuple[X, ...]`, `Mapping[str, X]` and `Json`. Bounds stand in `field(metadata=rule(...))`. The same
annotations give the JSON schema of the REST description, so that the two cannot differ.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import re
import types
import typing
from collections.abc import Mapping
from enum import Enum, StrEnum, auto
from typing import Any, Final, TypeVar

__all__ = [
    "DlaasError",
    "Invalid",
    "Json",
    "clean",
    "decode",
    "decode_float",
    "encode",
    "encode_float",
    "rule",
    "schema",
]

Json = dict[str, Any] | list[Any] | str | int | float | bool | None
"""Any JSON value: for what only passes through."""

T = TypeVar("T")
_MISSING: Final = dataclasses.MISSING
_BIG: Final = 2**53  # beyond this a JSON number is not the same number everywhere
_NAMES: Final[dict[object, str]] = {
    str: "text",
    int: "a whole number",
    float: "a number",
    bool: "true or false",
}


def encode_float(value: float) -> float | str:
    """Write NaN and the infinities, which JSON lacks, by the names that protobuf's JSON gives them."""
    if math.isfinite(value):
        return value
    return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"


def decode_float(value: object) -> float:
    """Read what `encode_float` wrote; anything else that is not a number is NaN."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        return float(value)
    return {"Infinity": math.inf, "-Infinity": -math.inf}.get(str(value), math.nan)


class DlaasError(Exception):
    """Base of all our errors. `code` is stable and goes on the wire; the message is for people."""

    code = "internal"
    http_status = 500

    def as_json(self) -> dict[str, Json]:
        """The form in which the error travels."""
        return {"error": {"code": self.code, "message": str(self)}}


class Invalid(DlaasError):
    """A request or a record that breaks its rules. The message starts with the field's name."""

    code = "invalid"
    http_status = 400


def rule(
    *,
    least: float | None = None,
    most: float | None = None,
    pattern: str | None = None,
    longest: int | None = None,
    says: str | None = None,
) -> dict[str, object]:
    """Bounds of one field, for `field(metadata=...)`. `says` is what the error tells when they are broken."""
    return {"rule": {"least": least, "most": most, "pattern": pattern, "longest": longest, "says": says}}


def encode(value: object) -> Any:
    """A record (or a tuple, mapping or enum of them) as plain JSON values. Fields that are None are kept."""
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
    """Return JSON values with zero bytes and lone surrogates of all texts written as escapes.

    For texts of user programs: `decode` refuses both, and with them the whole record.
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
    """Build a record from JSON values, checking every field.

    `unknown="ignore"` passes over fields that this version does not know (for messages of a newer peer);
    `"refuse"` names them. Raises Invalid with the path of the field.
    """
    return typing.cast(T, _decode(kind, value, where, {}, unknown))


@functools.cache
def _hints(kind: type) -> dict[str, Any]:
    return typing.get_type_hints(kind)


class _Form(Enum):
    """What an annotation asks for. Worked out once per annotation: records come by the thousand."""

    JSON = auto()
    OPTIONAL = auto()
    LIST = auto()
    MAPPING = auto()
    RECORD = auto()
    PLAIN = auto()


@functools.cache
def _form(kind: Any) -> tuple[_Form, Any]:
    """The form of an annotation, and the annotation of what is inside it."""
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
    """Name -> annotation, bounds, and whether it must be given."""
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
            raise Invalid(f"{_path(where, strange[0])}: no such field; there are {', '.join(fields)}")
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
            raise Invalid(f"{where}: {_said(value)} is none of {', '.join(kind)}")
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
            raise Invalid(f"{where}: holds a zero byte")
        if not value.isascii() and any(0xD800 <= ord(c) < 0xE000 for c in value):
            raise Invalid(f"{where}: holds half a character (a lone surrogate)")
        pattern = bounds.get("pattern")
        if pattern and not re.fullmatch(pattern, value):
            raise Invalid(f"{where}: {_said(value)} {bounds.get('says') or f'does not match {pattern}'}")
    elif isinstance(value, int | float) and not isinstance(value, bool):
        if not abs(value) <= _BIG:  # nan too; a whole number may be too long for a float
            raise Invalid(f"{where}: {_said(value)} is out of range")
        least, most = bounds.get("least"), bounds.get("most")
        if (least is not None and value < least) or (most is not None and value > most):
            upto = f"from {least:g} to {most:g}" if most is not None else f"at least {least:g}"
            raise Invalid(f"{where}: {value:g} must be {upto}")


def _check_length(value: typing.Sized, where: str, bounds: Mapping[str, Any]) -> None:
    longest = bounds.get("longest")
    if longest is not None and len(value) > longest:
        raise Invalid(f"{where}: {len(value):,} long; {longest:,} is the most")


def _path(where: str, name: str) -> str:
    return f"{where}.{name}" if where else name


def _said(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


def schema(kind: Any, found: dict[str, Json] | None = None) -> dict[str, Json]:
    """The JSON schema of a type; records go into `found` and are referred to by name."""
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
        found[kind.__name__] = {}  # a record that holds itself ends here
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
    if isinstance(choices, list):  # a value or null: the bounds are the value's
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
