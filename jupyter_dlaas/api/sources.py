"""Scripts and the files that are sent with them. Standard library only; executes nothing.

The user's modules are copied with the job, so that an edit during training cannot give learner 5 a different program
than learner 4.
"""

from __future__ import annotations

import ast
import hashlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from jupyter_dlaas.api import option_parsing
from jupyter_dlaas.wire.codec import Invalid
from jupyter_dlaas.wire.protocol import File

__all__ = ["PackedFiles", "Script", "own_modules", "pack", "read_script"]

FILES: Final = "files"
"""Folder of a job's directory that comes first on its `sys.path`."""
_INLINE_BYTES_MAX: Final = 262_144
_FILES_MAX: Final = 5000
_PASSED_OVER: Final = frozenset({"__pycache__", "node_modules"})


@dataclass(frozen=True, slots=True)
class Script:
    """A training program: its text and its path (None if it was given as text)."""

    text: str
    path: Path | None


@dataclass(frozen=True, slots=True)
class PackedFiles:
    """Files of a job: `files` for the submission, `uploads` (SHA-256 to file) to send before it."""

    files: tuple[File, ...] = ()
    uploads: Mapping[str, Path] | None = None


def read_script(source: str | Path) -> Script:
    """Read a script by its path, or accept source text (which contains a line break). Raises Invalid."""
    if isinstance(source, str) and "\n" in source:
        return Script(source, None)
    path = option_parsing.path(source, option="source")
    try:
        raw = path.read_bytes()
    except FileNotFoundError:
        raise Invalid(f"source: no such file: {path} (source text must contain a line break)") from None
    except OSError as error:
        raise Invalid(f"source: {path} cannot be read: {error.strerror}") from None
    try:
        text = raw.decode("utf-8-sig")
        ast.parse(text, str(path))
    except UnicodeDecodeError:
        raise Invalid(f"source: {path} is not UTF-8 text") from None
    except SyntaxError as error:
        raise Invalid(f"source: {path}, line {error.lineno}: {error.msg}") from None
    except ValueError as error:
        raise Invalid(f"source: {path}: {error}") from None
    return Script(text, path.absolute())


def own_modules(text: str, folder: Path, path: Path | None = None) -> dict[str, Path]:
    """Find the modules below `folder` that a program imports, directly or indirectly: name in the job to file.

    Of an imported package, all `.py` files are included, even without an `__init__.py`. `path` is the program itself,
    which is left out.
    """
    found: dict[str, Path] = {}
    texts = [text]
    while texts:
        for module in sorted(_imported(texts.pop())):
            for file in _files_of(folder, module):
                name = file.relative_to(folder).as_posix()
                if name not in found and file != path:
                    found[name] = file
                    texts.append(_text(file))
    return dict(sorted(found.items()))


def _imported(text: str) -> set[str]:
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError):
        return set()  # importing it in the job raises the error, with its traceback
    modules: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            modules |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            modules |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    return modules


def _files_of(folder: Path, module: str) -> list[Path]:
    root = module.partition(".")[0]
    is_package = (folder / root / "__init__.py").is_file()
    if not is_package and (file := folder / f"{root}.py").is_file():
        return [file]
    path = folder.joinpath(*module.split("."))
    if is_package or (
        path != folder / root and (path.with_suffix(".py").is_file() or (path / "__init__.py").is_file())
    ):
        return [file for file in _walk(folder / root) if file.suffix == ".py"]
    return []


def _text(path: Path) -> str:
    try:
        return path.read_text("utf-8")
    except (OSError, UnicodeDecodeError):
        return ""


def _walk(folder: Path) -> Iterator[Path]:
    """Yield the files below a folder, sorted, without hidden files and caches; links are not followed."""
    try:
        entries = sorted(folder.iterdir())
    except OSError as error:
        raise Invalid(f"include: {folder} cannot be read: {error.strerror}") from None
    for entry in entries:
        if entry.name.startswith(".") or entry.name in _PASSED_OVER:
            continue
        if entry.is_dir() and not entry.is_symlink():
            yield from _walk(entry)
        elif entry.is_file():
            yield entry


def included(paths: Iterable[str | Path], directory: Path) -> dict[str, Path]:
    """Return the files named by `--include`: by relative path if below `directory`, others by their own name."""
    found: dict[str, Path] = {}
    for given in paths:
        path = option_parsing.path(given, option="include", base=directory.absolute())
        if not path.exists():
            raise Invalid(f"include: no such file or folder: {path}")
        if not path.is_dir() and not path.is_file():
            raise Invalid(f"include: {path} is neither a file nor a folder")
        base = directory if path.is_relative_to(directory) else path.parent
        for file in _walk(path) if path.is_dir() else [path]:
            found[file.relative_to(base).as_posix()] = file
    return found


def pack(named: Mapping[str, Path]) -> PackedFiles:
    """Create the job's files (name in the job to file): small text inline, everything else by SHA-256."""
    if len(named) > _FILES_MAX:
        raise Invalid(
            f"include: {len(named):,} files exceed the maximum of {_FILES_MAX:,}. Include fewer, or name a data folder"
        )
    files: list[File] = []
    uploads: dict[str, Path] = {}
    for name, path in sorted(named.items()):
        try:
            text = _inline(path)
            if text is None:
                with path.open("rb") as file:
                    sha256 = hashlib.file_digest(file, "sha256").hexdigest()
                uploads[sha256] = path
                files.append(File(path=f"{FILES}/{name}", sha256=sha256))
            else:
                files.append(File(path=f"{FILES}/{name}", text=text))
        except OSError as error:
            raise Invalid(f"include: {path} cannot be read: {error.strerror}") from None
    return PackedFiles(tuple(files), uploads)


def _inline(path: Path) -> str | None:
    if path.stat().st_size > _INLINE_BYTES_MAX:
        return None
    try:
        text = path.read_bytes().decode("utf-8")
    except UnicodeDecodeError:
        return None
    return None if "\0" in text else text
