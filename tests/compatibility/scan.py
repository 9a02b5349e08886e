"""The names of our own code that stored files hold: read from the opcodes of their pickles, nothing is loaded."""

from __future__ import annotations

import io
import pickletools
import re
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import cast

__all__ = ["PUBLIC", "names_in", "private_names"]

PUBLIC = "jupyter_dlaas.stored"
"""The one module that stored files may name."""
_OURS = re.compile(r"(?:jupyter_dlaas|dlaas_server)(?:\.|$)")
_TEXT = re.compile(rb"\b(?:jupyter_dlaas\.(?:learner|notebook|runtime)|dlaas_server)\.[\w.]+")
_MODULE = re.compile(r"(?:jupyter_dlaas\.(?:learner|notebook|runtime)|dlaas_server)(?:\.\w+)*")
_STRINGS = frozenset({"UNICODE", "BINUNICODE", "SHORT_BINUNICODE", "BINUNICODE8"})
_BYTES = frozenset({"BINBYTES", "SHORT_BINBYTES", "BINBYTES8", "BYTEARRAY8"})
_PICKLED = (".bin", ".ckpt", ".pt")


def private_names(folder: Path) -> dict[str, list[str]]:
    """Return names of ours that are not public, with the files below a folder that hold them."""
    found: dict[str, list[str]] = {}
    for path in sorted(one for one in folder.rglob("*") if one.is_file()):
        data = path.read_bytes()
        is_pickled = path.suffix in _PICKLED or path.parent.name == "blobs"
        names = names_in(data) if is_pickled else {text.decode() for text in _TEXT.findall(data)}
        for name in names:
            if not name.startswith(f"{PUBLIC}."):
                found.setdefault(name, []).append(str(path.relative_to(folder)))
    return found


def names_in(data: bytes) -> set[str]:
    """Return what pickles of a file name of ours, also those that are bytes within another: globals, and modules."""
    return {f"{module}.{name}" for part in _pickles(data) for module, name in _globals(part) if _OURS.match(module)}


def _pickles(data: bytes) -> Iterator[bytes]:
    """Yield the pickles of a stored file: behind its header, if it has one, and within torch's archives."""
    if data.startswith(b"{"):
        data = data[data.index(b"\n") + 1 :]
    for former in (rb"[PT](?=PK|\x80)", rb"G.{4}\{[^}]*\}[PT]", rb".{32}(?=PK\x03\x04|\x80[\x02-\x05])"):
        if not data.startswith((b"PK", b"\x80")) and (match := re.match(former, data, re.S)):
            data = data[match.end() :]
    if data.startswith(b"\x80"):
        yield data
    elif data.startswith(b"PK"):
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            for name in archive.namelist():
                if name.endswith(".pkl"):
                    with archive.open(name) as file:
                        vars(file)["_expected_crc"] = None  # checkpoints have none
                        yield file.read()
    else:
        raise AssertionError(f"neither a pickle nor an archive: {data[:40]!r}")


def _globals(data: bytes) -> Iterator[tuple[str, str]]:
    strings: list[str] = []
    modules: set[str] = set()
    memo: dict[int, str] = {}
    for opcode, argument, _ in pickletools.genops(data):
        name = opcode.name
        if name in _STRINGS:
            strings.append(str(argument))
        elif name in ("MEMOIZE", "BINPUT", "LONG_BINPUT") and strings:
            memo[len(memo) if argument is None else cast("int", argument)] = strings[-1]
        elif name == "MEMOIZE":
            memo[len(memo)] = ""
        elif name in ("BINGET", "LONG_BINGET"):
            strings.append(memo.get(cast("int", argument), ""))
        elif name == "GLOBAL":
            module, _, attribute = str(argument).partition(" ")
            yield module, attribute
        elif name == "STACK_GLOBAL":  # the two strings come last, or were fetched last
            modules.add(strings[-2])
            yield strings[-2], strings[-1]
        elif name in _BYTES and cast("bytes", argument).startswith((b"PK\x03\x04", b"\x80")):
            for part in _pickles(cast("bytes", argument)):
                yield from _globals(part)
    for text in {one for one in strings if _MODULE.fullmatch(one)} - modules:
        yield text, "*"  # a function by value, say, whose module is imported when it is loaded
