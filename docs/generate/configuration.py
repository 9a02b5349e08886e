"""Keys of a pool's config.toml, options of the Jupyter server's extension, and settings of the JupyterLab extension."""

from __future__ import annotations

import dataclasses
import json
import re
import types
import typing
from enum import StrEnum
from pathlib import Path
from typing import Any, Final

from dlaas_server.jupyter_extension.extension import DlaasExtension
from dlaas_server.pools.config import PoolConfig
from docs.generate.attributes import descriptions, first_line
from docs.generate.markdown import code, sentence, table

__all__ = ["described_keys", "lab_settings", "server_options", "tables"]

_LAB_SETTINGS: Final = Path(__file__).parents[2] / "labextension" / "schema" / "panel.json"
_KINDS: Final = {str: "string", int: "integer", float: "number", bool: "`true` or `false`"}


def sections() -> list[tuple[str, type]]:
    """Return heading and record of each table in config.toml, outer ones first."""
    found: list[tuple[str, type]] = []

    def add(prefix: str, kind: type) -> None:
        for name, hint in typing.get_type_hints(kind).items():
            of = typing.get_args(hint)
            if dataclasses.is_dataclass(hint):
                found.append((f"[{prefix}{name}]", typing.cast(type, hint)))
            elif of and of[-1] is types.NoneType and dataclasses.is_dataclass(of[0]):
                found.append((f"[{prefix}{name}]", typing.cast(type, of[0])))
                add(f"{prefix}{name}.", typing.cast(type, of[0]))
            elif of and dataclasses.is_dataclass(of[0]):
                found.append((f"[[{prefix}{name}]]", typing.cast(type, of[0])))
                add(f"{prefix}{name}.", typing.cast(type, of[0]))

    add("", PoolConfig)
    return found


def described_keys() -> list[tuple[str, str, str]]:
    """Return (section, key, description) of every key."""
    return [
        (heading, field.name, descriptions(kind).get(field.name, ""))
        for heading, kind in sections()
        for field in dataclasses.fields(kind)
        if not is_section(typing.get_type_hints(kind)[field.name])
    ]


def tables() -> str:
    """Render one table of keys for each section of config.toml."""
    said = {(heading, name): text for heading, name, text in described_keys()}
    parts = []
    for heading, kind in sections():
        hints = typing.get_type_hints(kind)
        rows = [
            (code(field.name), values(hints[field.name], field), default(field), sentence(said[heading, field.name]))
            for field in dataclasses.fields(kind)
            if (heading, field.name) in said
        ]
        about = sentence(re.sub(r"^\[.*?\]+: ", "", first_line(kind)))
        parts.append(f"## {code(heading)}\n\n{about}\n\n" + table(("key", "value", "default", "meaning"), rows))
    return "\n".join(parts)


def is_section(hint: Any) -> bool:
    """Return whether a field is a table of its own."""
    of = typing.get_args(hint)
    return dataclasses.is_dataclass(hint) or bool(of and dataclasses.is_dataclass(of[0]))


def values(hint: Any, field: dataclasses.Field[Any]) -> str:
    """Return which values a key accepts."""
    if typing.get_origin(hint) in (types.UnionType, typing.Union):
        hint = typing.get_args(hint)[0]
    if typing.get_origin(hint) is tuple:
        return "list of strings"
    if isinstance(hint, type) and issubclass(hint, StrEnum):
        return ", ".join(code(one) for one in hint)
    bounds: dict[str, Any] = field.metadata.get("rule", {})
    if re.fullmatch(r"[\w|-]+", bounds.get("pattern") or "") and "|" in bounds["pattern"]:
        return ", ".join(code(one) for one in bounds["pattern"].split("|"))
    if bounds.get("least") is not None:
        return f"{_KINDS[hint]} from {bounds['least']:,} to {bounds['most']:,}"
    return _KINDS[hint]


def default(field: dataclasses.Field[Any]) -> str:
    """Return a key's default as it would be written in the file."""
    value = field.default
    if value is dataclasses.MISSING:
        return "required"
    if value is None:
        return "unset"
    if isinstance(value, bool):
        return code(str(value).lower())
    if isinstance(value, tuple):
        return code("[]")
    return code(f'"{value}"' if isinstance(value, str) else f"{value:g}" if isinstance(value, float) else str(value))


def server_options() -> str:
    """Render the extension's traits, as they are written in jupyter_server_config.py."""
    rows = []
    for name, trait in sorted(DlaasExtension.class_own_traits(config=True).items()):
        value = trait.default_value
        rows.append((code(f"DlaasExtension.{name}"), code(repr(value)), sentence(trait.help)))
    return table(("option", "default", "meaning"), rows)


def lab_settings() -> str:
    """Render the settings of the JupyterLab extension, from their schema."""
    properties = json.loads(_LAB_SETTINGS.read_text(encoding="utf-8"))["properties"]
    rows = [
        (code(name), code(json.dumps(one["default"])), sentence(one["description"])) for name, one in properties.items()
    ]
    return table(("setting", "default", "meaning"), rows)
