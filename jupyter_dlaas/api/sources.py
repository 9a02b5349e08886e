"""Scripts and the files that are sent with them. Standard library only; executes nothing of theirs.

The user's modules are copied with the job, so that an edit during training cannot give learner 5 a different program
than learner 4.
"""

from __future__ import annotations

import ast
import difflib
import hashlib
import re
import shlex
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
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
_USUAL_SCRIPTS: Final = ("train.py", "main.py", "__main__.py")
_PARSE: Final = """
import ast, sys
try:
    ast.parse(sys.stdin.buffer.read())
except SyntaxError as error:
    sys.stdout.buffer.write(f"line {error.lineno}: {error.msg}".encode())
"""
_PARSE_S: Final = 20.0
_IMPORT: Final = re.compile(r"^[ \t]*(?:import|from)[ \t]+([A-Za-z_]\w*(?:\.\w+)*)", re.MULTILINE)
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


def read_script(source: str | Path, interpreter: str | None = None) -> Script:
    """Read a script by its path, or accept source text: a `str` with a line break.

    `interpreter` runs the job, and decides about syntax that this Python does not know; None: this Python. Raises
    Invalid, which names the path and what to do.
    """
    if isinstance(source, str) and "\n" in source:
        return Script(source, None)
    if callable(source):
        raise Invalid(_called(source))
    path = option_parsing.path(source, option="script")
    try:
        raw = path.read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        is_text = isinstance(source, str) and path.suffix != ".py"
        raise Invalid(_missing_script(path) + (" End source text with a line break." if is_text else "")) from None
    except IsADirectoryError:
        raise Invalid(_script_in(path)) from None
    except PermissionError as error:
        raise Invalid(
            f"{path} cannot be read: {error.strerror}. To allow it: chmod u+r {shlex.quote(str(path))}"
        ) from None
    except OSError as error:
        raise Invalid(f"{path} cannot be read: {error.strerror}. Name another file") from None
    return Script(_program(path, raw, interpreter), path.absolute())


def _called(function: object) -> str:
    """Return the error for a function in place of a script."""
    name = getattr(function, "__name__", type(function).__name__)
    return (
        f"{name} is a function; submit runs scripts: give the path of one, or its text. To run {name} as a job: in a "
        "notebook, call it in a cell with %%train; in a module, decorate it with @dlaas.train"
    )


def _missing_script(path: Path) -> str:
    """Return the error for a script that does not exist, with the script of the closest name beside it."""
    folder, close = path.parent, _close_name(path)
    if folder.is_dir():
        where = "the current directory" if folder == Path() else str(folder)
        hint = (
            f"Did you mean {folder / close}?" if close else f"Check the name, and that {where} is the right directory."
        )
    else:
        hint = f"The directory {folder} does not exist."
    return f"there is no file {_absolute(path)}. {hint}"


def _script_in(folder: Path) -> str:
    """Return the error for a directory given as a script, with a script that it contains."""
    with suppress(OSError):
        scripts = sorted(file.name for file in folder.glob("*.py"))
        usual = next((name for name in _USUAL_SCRIPTS if name in scripts), next(iter(scripts), None))
        if usual is not None:
            return f"{folder} is a directory. Name a script in it, such as {folder / usual}"
    return f"{folder} is a directory without Python scripts. Name the script to run"


def _program(path: Path, raw: bytes, interpreter: str | None) -> str:
    """Return the text of a script. Raises Invalid if it is not a Python program."""
    if path.suffix == ".ipynb":
        name = shlex.quote(str(path))
        raise Invalid(
            f"{path} is a notebook. Train its cells with %%train, or convert it: jupyter nbconvert --to script {name}"
        )
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        if b"\0" not in raw:
            line = raw.count(b"\n", 0, error.start) + 1
            raise Invalid(f"{path}, line {line}: not UTF-8 text. Save the script as UTF-8") from None
        text = "\0"
    if "\0" in text:
        raise Invalid(f"{path} is a binary file, not a Python script. Name the script to run")
    try:
        tree = ast.parse(text, str(path))
    except SyntaxError as error:
        wrong = f"line {error.lineno}: {error.msg}"
        if interpreter is not None and interpreter != sys.executable:
            wrong = _syntax_error(interpreter, text, otherwise=wrong)
        if wrong:
            raise Invalid(f"{path}, {wrong}") from None
        return text
    if not tree.body:
        what = "contains only comments" if text.strip() else "is empty"
        raise Invalid(f"{path} {what}, so there is nothing to run. Save the program there, or name another file")
    return text


def _syntax_error(interpreter: str, text: str, *, otherwise: str) -> str:
    """Return the syntax error that another Python finds in a program, or "" for none; `otherwise` if it cannot tell."""
    command = [interpreter, "-I", "-S", "-c", _PARSE]
    try:
        found = subprocess.run(
            command, input=text.encode(), capture_output=True, timeout=_PARSE_S, check=True, cwd="/"
        ).stdout
    except (OSError, subprocess.SubprocessError):
        return otherwise
    return found.decode(errors="replace").strip()


def _close_name(path: Path) -> str | None:
    """Return the name in the folder of a missing file that is most like its own."""
    try:
        names = sorted(file.name for file in path.parent.iterdir())
    except OSError:
        return None
    return next(iter(difflib.get_close_matches(path.name, names, n=1, cutoff=0.7)), None)


def _absolute(path: Path) -> Path:
    try:
        return path.absolute()
    except FileNotFoundError:  # the current directory was deleted
        return path


def own_modules(text: str, folder: Path, path: Path | None = None, *, bytes_max: int | None = None) -> dict[str, Path]:
    """Find the modules below `folder` that a program imports, directly or indirectly: name in the job to file.

    Of an imported package, all `.py` files are included, even without an `__init__.py`. `path` is the program itself,
    which is left out. `bytes_max`: only the first modules, up to this total size.
    """
    found: dict[str, Path] = {}
    size = 0
    texts = [text]
    while texts:
        for module in sorted(_imported(texts.pop())):
            for file in _files_of(folder, module):
                name = file.relative_to(folder).as_posix()
                if name not in found and file != path:
                    size += 0 if bytes_max is None else file.stat().st_size
                    if bytes_max is not None and size > bytes_max:
                        return dict(sorted(found.items()))
                    found[name] = file
                    texts.append(_text(file))
    return dict(sorted(found.items()))


def _imported(text: str) -> set[str]:
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError):  # another Python may know its syntax; else the job raises the error
        return set(_IMPORT.findall(text))
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


def included(paths: str | Path | Iterable[str | Path], directory: Path) -> dict[str, Path]:
    """Return the files named by `--include`: by relative path if below `directory`, others by their own name."""
    found: dict[str, Path] = {}
    for given in paths if isinstance(paths, Iterable) and not isinstance(paths, str) else (paths,):
        path = option_parsing.path(given, option="include", base=directory.absolute())
        if not path.exists():
            raise Invalid(_missing_include(Path(given), path, directory))
        if not path.is_dir() and not path.is_file():
            raise Invalid(f"include: {path} is neither a file nor a folder")
        base = directory if path.is_relative_to(directory) else path.parent
        for file in _walk(path) if path.is_dir() else [path]:
            found[file.relative_to(base).as_posix()] = file
    return found


def _missing_include(given: Path, path: Path, directory: Path) -> str:
    """Return the error for a file to include that does not exist: where it was looked for, and where there is one."""
    if path == given.expanduser():
        close = _close_name(path)
        return f"include: there is no file or folder {path}." + (
            f" Did you mean {path.parent / close}?" if close else ""
        )
    said, here, close = f"include: there is no {given} in {directory}", _absolute(given), _close_name(path)
    said += "." if here == path else ", the job's working directory (--directory)."
    if here.exists():
        return f"{said} For the one in the current directory: --include {shlex.quote(str(here))}"
    return f"{said} Did you mean {given.parent / close}?" if close else said


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
