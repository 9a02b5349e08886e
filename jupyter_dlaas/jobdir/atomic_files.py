"""Files that are whole or not there at all, and sockets below long paths."""

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
"""What a disk says that takes no more: of anybody, of this user, of this process."""


def write_whole(path: Path, data: bytes, *, sync: bool = False, mode: int = 0o600) -> None:
    """Replace a file in one act: a reader sees the old content or the new one. `sync`: also after a power cut."""
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
    """Make the names in a folder last through a power cut."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def read_json(path: Path) -> Mapping[str, Json] | None:
    """The object in a JSON file; None when there is no file, or none that can be read as an object."""
    try:
        value = json.loads(path.read_bytes())
    except (FileNotFoundError, ValueError):
        return None
    return value if isinstance(value, dict) else None


def bind(kind: socket.SocketKind, path: Path, *, listen: int | None = None) -> socket.socket:
    """A Unix socket at a path of any length, in place of one that a dead process left there."""
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    sock = socket.socket(socket.AF_UNIX, kind)
    try:
        with suppress(FileNotFoundError):
            os.unlink(path.name, dir_fd=folder)
        # An address holds 107 bytes, a job's directory may be longer: the way through /proc is short.
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
    """A connection to the Unix socket at a path of any length. Raises OSError."""
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
    """Wake whoever reads datagrams at a path; False when nobody does."""
    try:
        with connect(socket.SOCK_DGRAM, path, timeout_s=1.0) as sock:
            sock.send(data)
    except OSError:
        return False
    return True
