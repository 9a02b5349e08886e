"""Atomic file writes, and sockets at paths of any length."""

from __future__ import annotations

import errno
import json
import os
import socket
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Final

from jupyter_dlaas.wire.codec import Json

__all__ = ["FULL", "bind", "connect", "read_json", "send_datagram", "sync_folder", "write_whole"]

FULL: Final = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
"""Error numbers of a disk that is full: for all users, for this user, or for this process."""


def write_whole(path: Path, data: bytes, *, sync: bool = False, mode: int = 0o600) -> None:
    """Replace a file atomically: a reader sees the old or the new content. `sync` makes it survive a power cut."""
    part = path.with_name(f".{path.name}.{os.getpid()}")
    fd = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, mode)
    try:
        try:
            rest = memoryview(data)
            while rest:
                rest = rest[os.write(fd, rest) :]
            if sync:
                os.fsync(fd)
        finally:
            os.close(fd)
        part.replace(path)
    except BaseException:
        with suppress(FileNotFoundError):
            part.unlink()
        raise
    if sync:
        sync_folder(path.parent)


def sync_folder(path: Path) -> None:
    """Make the names in a directory survive a power cut."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def read_json(path: Path) -> Mapping[str, Json] | None:
    """Return the object in a JSON file; None if there is no file or it holds no valid object."""
    try:
        value = json.loads(path.read_bytes())
    except (FileNotFoundError, ValueError):
        return None
    return value if isinstance(value, dict) else None


def bind(kind: socket.SocketKind, path: Path, *, listen: int | None = None) -> socket.socket:
    """Return a Unix socket bound at a path of any length, in place of one that a dead process left."""
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    sock = socket.socket(socket.AF_UNIX, kind)
    try:
        with suppress(FileNotFoundError):
            os.unlink(path.name, dir_fd=folder)
        # A socket address holds 107 bytes, and a job's directory may be longer. The path through /proc is short.
        sock.bind(f"/proc/self/fd/{folder}/{path.name}")
        path.chmod(0o600)
        if listen is not None:
            sock.listen(listen)
    except BaseException:
        sock.close()
        raise
    finally:
        os.close(folder)
    return sock


def connect(kind: socket.SocketKind, path: Path, *, timeout_s: float) -> socket.socket:
    """Return a connection to the Unix socket at a path of any length. Raise OSError."""
    sock = socket.socket(socket.AF_UNIX, kind)
    sock.settimeout(timeout_s)
    try:
        folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            sock.connect(f"/proc/self/fd/{folder}/{path.name}")
        finally:
            os.close(folder)
    except BaseException:
        sock.close()
        raise
    return sock


def send_datagram(path: Path, data: bytes) -> bool:
    """Send a datagram to the reader at a path. Return False if there is none."""
    try:
        with connect(socket.SOCK_DGRAM, path, timeout_s=1.0) as sock:
            sock.send(data)
    except OSError:
        return False
    return True
