"""Rules for paths inside a job that may be written and read from outside, the same for every adapter."""

from __future__ import annotations

from typing import Final

from jupyter_dlaas.wire.protocol import NotFound, Refused

__all__ = ["readable", "safe_parts", "writable"]

_PUT_FILES: Final = ("train.py",)
_PUT_FOLDERS: Final = ("files", "inputs")
_SECRET: Final = ("environment.json", "wanted.json", "token", "guardian.lock", "guardian.sock", "guardian.wake")
"""Files that cannot be fetched: they contain the job's environment or its token, or no content at all."""


def safe_parts(path: str) -> tuple[str, ...]:
    """Return the parts of a relative path inside a job. Raises Refused for a path that could leave it."""
    parts = path.split("/")
    if not path or path.startswith("/") or "\0" in path or any(p in ("", ".", "..") for p in parts):
        raise Refused(f"{path!r} is not a valid path in a job: use a relative path with single slashes and no '..'")
    if len(path) > 4096 or any(len(p.encode(errors="surrogatepass")) > 255 for p in parts):
        raise Refused(f"{path[:60]!r}… is too long for a file name")
    return tuple(parts)


def writable(path: str) -> tuple[str, ...]:
    """Return the parts of a path for `put`: only the program and its inputs. Raises Refused."""
    parts = safe_parts(path)
    if path in _PUT_FILES or (len(parts) > 1 and parts[0] in _PUT_FOLDERS):
        return parts
    raise Refused(f"{path!r} cannot be stored in a job: only train.py, files/… and inputs/… are allowed")


def readable(job: str, path: str) -> tuple[str, ...]:
    """Return the parts of a path for `get`. Raises NotFound for files that cannot be fetched."""
    parts = safe_parts(path)
    if parts[0] in _SECRET:
        raise NotFound(f"job {job} has no file {path!r}")
    return parts
