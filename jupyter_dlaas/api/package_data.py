"""Data files of packages, which modules find through `__file__` and the like. Executes nothing.

A module that is sent with a job is copied to the job's folder. The data files beside it must be there too: small ones
are copied, the others are linked to their original folder.
"""

from __future__ import annotations

import ast
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Final

from jupyter_dlaas.wire.protocol import File, Note

__all__ = ["PackageData", "package_data"]

_BYTES_MAX: Final = 64 << 20
_FILES_MAX: Final = 2000
"""Maximum number of data files of one package that are copied."""
_INPUT: Final = "inputs/originals.json"
_CACHES: Final = frozenset({"__pycache__", "node_modules", "site-packages", "dist-packages"})
_PLACES: Final = frozenset({
    "__file__", "__path__", "get_data", "getfile", "getsourcefile", "importlib_resources", "load_dotenv",
    "pkg_resources", "resource_filename", "resources",
})  # fmt: skip
"""Identifiers by which programs locate a module's file."""


@dataclass(frozen=True, slots=True)
class PackageData:
    """Data of the user's modules: `files` to copy, by their name in the job, and `originals`, folders to link to."""

    files: Mapping[str, Path]
    originals: Mapping[str, Sequence[str]]
    notes: tuple[Note, ...] = ()

    def inputs(self) -> tuple[File, ...]:
        """Return the file that lists the modules' original folders for the learner."""
        return (File(path=_INPUT, text=json.dumps(self.originals)),) if self.originals else ()


def package_data(program: str, modules: Mapping[str, Path]) -> PackageData:
    """Find the data files of a program's modules (name in the job to file) if any code locates a module's file."""
    places = {name: _locating_identifiers(path) for name, path in modules.items() if path.suffix == ".py"}
    locates_modules = bool(_identifiers(program) & _PLACES)
    files: dict[str, Path] = {}
    originals: dict[str, list[str]] = {}
    notes = []
    for package, folder in _packages(modules).items():
        if not locates_modules and not any(found for name, found in places.items() if name.startswith(f"{package}/")):
            continue
        originals[package] = [str(folder)]
        data, size = _data_of(folder)
        if size > _BYTES_MAX or len(data) > _FILES_MAX:
            notes.append(_too_large(package, folder, size))
        else:
            files |= {f"{package}/{path.relative_to(folder).as_posix()}": path for path in data}
    for name, path in modules.items():
        depth, levels = name.count("/"), _levels_up(path) if places.get(name) else 0
        if levels > depth + 1:
            notes.append(_above(name))
        is_plain = depth == 0 and path.suffix == ".py" and (locates_modules or bool(places[name]))
        if is_plain:
            files |= _named_neighbours(path)
        if is_plain or levels > depth:
            _add(originals.setdefault("", []), str(path.parents[depth]))
    return PackageData({name: path for name, path in files.items() if name not in modules}, originals, tuple(notes))


def _add(folders: list[str], folder: str) -> None:
    if folder not in folders:
        folders.append(folder)


def _packages(modules: Mapping[str, Path]) -> dict[str, Path]:
    """Return the top-level packages among the modules, with their folders."""
    found: dict[str, Path] = {}
    for name, path in modules.items():
        parts = PurePosixPath(name).parts
        if len(parts) > 1 and path.parts[-len(parts) :] == parts:
            found.setdefault(parts[0], Path(*path.parts[: -len(parts) + 1]))
    return found


def _data_of(folder: Path) -> tuple[list[Path], int]:
    """Return the data files below a package's folder and their size; stops once the limits are exceeded."""
    found, size = [], 0
    for path in _walk(folder):
        if path.suffix in (".py", ".pyc"):
            continue
        found.append(path)
        with suppress(OSError):
            size += path.stat().st_size
        if size > _BYTES_MAX or len(found) > _FILES_MAX:
            break
    return found, size


def _walk(folder: Path) -> Iterator[Path]:
    for top, folders, names in os.walk(folder):
        folders[:] = sorted(name for name in folders if not name.startswith(".") and name not in _CACHES)
        yield from (Path(top) / name for name in sorted(names) if (Path(top) / name).is_file())


def _named_neighbours(module: Path) -> dict[str, Path]:
    """Return the existing files beside a module that it names, as in `Path(__file__).parent / "config.json"`."""
    found: dict[str, Path] = {}
    for text in _texts(module):
        path = module.parent / text
        if text.strip("./") and not text.startswith("/") and ".." not in PurePosixPath(text).parts and path.is_file():
            with suppress(OSError):
                if path.stat().st_size <= _BYTES_MAX and path.suffix != ".py":
                    found[PurePosixPath(text).as_posix()] = path
    return found


def _levels_up(module: Path) -> int:
    """Return how many levels above itself a module reads files (1: its own folder), from expressions on `__file__`."""
    names: dict[str, int] = {"__file__": 0}
    found = 0
    for node in ast.walk(_tree(_text(module))):
        levels = _level(node, names) if isinstance(node, ast.expr) else None
        found = max(found, levels or 0)
        match node:
            case ast.Assign(targets=[ast.Name(id=name)], value=value):
                levels = _level(value, names)
                if levels is not None:
                    names[name] = levels
            case _:
                continue
    return found


def _level(node: ast.expr, names: Mapping[str, int]) -> int | None:
    """Return how many levels above the module a path is, or None for expressions that are not based on the module."""
    base, up = node, 0
    match node:
        case ast.Name(id=name):
            return names.get(name)
        case ast.Attribute(value=base, attr="parent"):
            up = 1
        case ast.Subscript(value=ast.Attribute(value=base, attr="parents"), slice=ast.Constant(value=int(n))):
            up = n + 1
        case ast.BinOp(left=base, op=ast.Div(), right=right):
            up = _dots([right])
        case ast.Call(func=ast.Attribute(attr="dirname") | ast.Name(id="dirname"), args=[base, *_]):
            up = 1
        case ast.Call(args=[base, *others]) if _level(base, names) is not None:  # Path(__file__), os.path.join(…)
            up = _dots(others)
        case ast.Call(func=ast.Attribute(value=base), args=others):  # .resolve(), .joinpath("..")
            up = _dots(others)
        case _:
            return None
    levels = _level(base, names)
    return None if levels is None else levels + up


def _dots(parts: Sequence[ast.expr]) -> int:
    texts = [part.value for part in parts if isinstance(part, ast.Constant) and isinstance(part.value, str)]
    texts += ["/".join([".."] * (isinstance(one, ast.Attribute) and one.attr == "pardir")) for one in parts]
    return sum(PurePosixPath(text).parts.count("..") for text in texts)


def _locating_identifiers(module: Path) -> frozenset[str]:
    return frozenset(_identifiers(_text(module)) & _PLACES)


def _identifiers(text: str) -> set[str]:
    found: set[str] = set()
    for node in ast.walk(_tree(text)):
        match node:
            case ast.Name(id=word) | ast.Attribute(attr=word):
                found.add(word)
            case ast.Import(names=names) | ast.ImportFrom(names=names):
                found |= {part for name in names for part in name.name.split(".")}
                found |= set((getattr(node, "module", None) or "").split("."))
            case _:
                continue
    return found


def _texts(module: Path) -> set[str]:
    nodes = ast.walk(_tree(_text(module)))
    return {n.value for n in nodes if isinstance(n, ast.Constant) and isinstance(n.value, str) and len(n.value) < 200}


def _tree(text: str) -> ast.AST:
    try:
        return ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return ast.Module([], [])


def _text(path: Path) -> str:
    try:
        return path.read_text("utf-8", errors="replace")
    except OSError:
        return ""


def _too_large(package: str, folder: Path, size: int) -> Note:
    limit = f"{_BYTES_MAX >> 20} MB" if size > _BYTES_MAX else f"{_FILES_MAX:,} files"
    text = (
        f"package `{package}` has more than {limit} of data, so only its modules are sent with the job; it reads the "
        f"data from {folder} while it runs. To send everything: --include {package}."
    )
    return Note(code="package_data", text=text)


def _above(name: str) -> Note:
    text = (
        f"{name} uses `__file__` to find files above its own folder. In the job the module is a copy in the job's "
        "folder, without these files. Use paths relative to the notebook's directory, or absolute paths."
    )
    return Note(code="files_above", text=text)
