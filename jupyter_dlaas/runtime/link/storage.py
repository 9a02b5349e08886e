"""Contents that a link transfers: sources on the sender's side, and storage below one directory on the receiver's."""

from __future__ import annotations

import errno
import hashlib
import os
import stat
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Final, Protocol

from jupyter_dlaas.runtime.link.frames import PATH_MAX, Refusal

__all__ = [
    "BytesSource",
    "DirectoryStorage",
    "FileSource",
    "PathRefused",
    "Source",
    "Storage",
    "check_encodable",
    "sha256_of",
    "split_path",
]

PARTS: Final = ".link"
"""Directory of incomplete files, below the storage's root."""
_NAME_MAX: Final = 255
_READ_BYTES: Final = 1 << 20
_NOT_A_FILE: Final = (errno.ELOOP, errno.ENXIO)
"""Errors of opening a symbolic link, or a socket or a pipe without a reader."""


class PathRefused(Exception):
    """Path that is not accepted. The message says why."""


class Source(Protocol):
    """Content that can be read again from any offset until the receiver has acknowledged it."""

    def size(self) -> int:
        """Return the number of bytes there are now. A stream's number never decreases."""

    def read(self, offset: int, limit: int) -> bytes:
        """Return at most `limit` bytes from an offset on. Raise OSError."""

    def close(self) -> None:
        """Release the content."""


class Storage(Protocol):
    """Receiver's place for streams and whole files. Raises PathRefused for a path that is not accepted."""

    def stream_size(self, path: str) -> int:
        """Return the number of a stream's bytes that are stored."""

    def append(self, path: str, data: bytes) -> None:
        """Store the next bytes of a stream. Raise OSError."""

    def begin(self, path: str, size: int, sha256: str, *, is_executable: bool) -> int | None:
        """Return the offset from which a file's bytes are needed; None if the file is complete in its place."""

    def write(self, path: str, sha256: str, data: bytes) -> None:
        """Store the next bytes of a file. Raise OSError."""

    def finish(self, path: str, sha256: str) -> bool:
        """Verify a file and place it atomically. Return False, and drop its bytes, if its hash differs."""


class BytesSource:
    """Content in memory."""

    def __init__(self, data: bytes = b"") -> None:
        self.data = bytearray(data)

    def size(self) -> int:
        return len(self.data)

    def read(self, offset: int, limit: int) -> bytes:
        return bytes(self.data[offset : offset + limit])

    def close(self) -> None:
        """Keep the content."""


class FileSource:
    """Content of a file from a byte on, which stays readable when the file is removed or replaced."""

    def __init__(self, path: Path, first: int = 0) -> None:
        """Open the file. Raise OSError."""
        self._fd, self._first = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW), first

    def size(self) -> int:
        return max(0, os.fstat(self._fd).st_size - self._first)

    def is_executable(self) -> bool:
        """Return whether the file's owner may execute it."""
        return bool(os.fstat(self._fd).st_mode & stat.S_IXUSR)

    def read(self, offset: int, limit: int) -> bytes:
        return os.pread(self._fd, limit, self._first + offset)

    def close(self) -> None:
        os.close(self._fd)


def sha256_of(source: Source) -> str:
    """Return the SHA-256 of a whole content."""
    found, offset = hashlib.sha256(), 0
    while data := source.read(offset, _READ_BYTES):
        found.update(data)
        offset += len(data)
    return found.hexdigest()


def check_encodable(path: str) -> None:
    """Refuse a path that a frame cannot hold. Raise PathRefused."""
    try:
        is_long = len(path.encode()) > PATH_MAX
    except UnicodeEncodeError:
        raise PathRefused(f"the path {path!r} is not valid Unicode text") from None
    if is_long or "\0" in path:
        raise PathRefused(f"the path {path[:100]!r} is too long or contains a zero byte")


def split_path(path: str) -> list[str]:
    """Return the parts of a relative path that stays below its root. Raise PathRefused."""
    parts = path.split("/")
    check_encodable(path)
    if any(part in ("", ".", "..") for part in parts):
        raise PathRefused(f"the path {path!r} is not a plain relative path")
    if any(len(os.fsencode(part)) > _NAME_MAX for part in parts):
        raise PathRefused(f"a name in the path {path[:100]!r} is too long")
    if parts[0] == PARTS:
        raise PathRefused(f"the path {path!r} is reserved")
    return parts


class _Part:
    """File under way: the descriptor of its incomplete copy, and the hash of the bytes so far."""

    def __init__(self, fd: int, size: int, *, is_executable: bool) -> None:
        self.fd, self.size, self.is_executable = fd, size, is_executable
        self.stored, self.hash = 0, hashlib.sha256()
        while data := os.pread(fd, _READ_BYTES, self.stored):
            self.hash.update(data)
            self.stored += len(data)


class DirectoryStorage:
    """Storage below one directory. Symbolic links are not followed, so nothing is written outside of it."""

    def __init__(self, root: Path, accepts: Callable[[str], bool] = lambda path: True) -> None:
        """Store below `root`. `accepts` returns whether the peer may write to a plain path."""
        self._root, self._accepts = root, accepts
        self._parts: dict[tuple[str, str], _Part] = {}
        self._hashes: dict[tuple[int, int, int, int], str] = {}
        """Hashes of complete files by device, inode, size and time of change."""

    # -- streams -------------------------------------------------------------------------------------------------------

    def stream_size(self, path: str) -> int:
        fd = self._open(path, os.O_RDONLY)
        if fd is None:
            return 0
        try:
            return os.fstat(fd).st_size
        finally:
            os.close(fd)

    def append(self, path: str, data: bytes) -> None:
        fd = self._open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        assert fd is not None
        try:
            _write_all(fd, data)
        finally:
            os.close(fd)

    # -- whole files ---------------------------------------------------------------------------------------------------

    def begin(self, path: str, size: int, sha256: str, *, is_executable: bool) -> int | None:
        self._split(path)
        if self._is_present(path, size, sha256):
            return None
        key = (path, sha256)
        for other in [other for other in self._parts if other[0] == path and other != key]:
            self._drop(other)  # the sender's file has changed meanwhile
        if key not in self._parts:
            fd = self._open_part(key, os.O_RDWR | os.O_CREAT)
            self._parts[key] = _Part(fd, size, is_executable=is_executable)
        part = self._parts[key]
        part.is_executable = is_executable
        if part.stored > size:  # left over by a peer that named another size
            self._restart(part)
        part.size = size
        return part.stored

    def write(self, path: str, sha256: str, data: bytes) -> None:
        part = self._parts[path, sha256]
        if part.stored + len(data) > part.size:
            raise Refusal(f"the file {path!r} is longer than its announced {part.size:,} bytes")
        try:
            _write_all(part.fd, data, part.stored)
        except OSError:
            os.ftruncate(part.fd, part.stored)  # the bytes so far match their hash
            raise
        part.stored += len(data)
        part.hash.update(data)

    def finish(self, path: str, sha256: str) -> bool:
        key = (path, sha256)
        part = self._parts[key]
        if part.hash.hexdigest() != sha256:
            self._restart(part)
            return False
        os.fchmod(part.fd, 0o700 if part.is_executable else 0o600)
        os.fsync(part.fd)
        folder, name = self._open_parent(path, create=True)
        parts = self._open_folder(PARTS)
        try:
            os.replace(_part_name(key), name, src_dir_fd=parts, dst_dir_fd=folder)
            os.fsync(folder)
        finally:
            os.close(folder)
            os.close(parts)
        self._hashes[_stamp(os.fstat(part.fd))] = sha256
        os.close(self._parts.pop(key).fd)
        return True

    def _drop(self, key: tuple[str, str]) -> None:
        os.close(self._parts.pop(key).fd)
        folder = self._open_folder(PARTS)
        try:
            os.unlink(_part_name(key), dir_fd=folder)
        finally:
            os.close(folder)

    def _restart(self, part: _Part) -> None:
        os.ftruncate(part.fd, 0)
        part.stored, part.hash = 0, hashlib.sha256()

    def _is_present(self, path: str, size: int, sha256: str) -> bool:
        fd = self._open(path, os.O_RDONLY)
        if fd is None:
            return False
        try:
            status = os.fstat(fd)
            if status.st_size != size:
                return False
            stamp = _stamp(status)
            if stamp not in self._hashes:
                self._hashes[stamp] = _Part(fd, size, is_executable=False).hash.hexdigest()
            return self._hashes[stamp] == sha256
        finally:
            os.close(fd)

    def _split(self, path: str) -> list[str]:
        parts = split_path(path)
        if not self._accepts(path):
            raise PathRefused(f"the path {path!r} is not the peer's to write")
        return parts

    # -- directories ---------------------------------------------------------------------------------------------------

    def _open_folder(self, *parts: str, create: bool = True) -> int:
        """Return a descriptor of a directory below the root. Raise FileNotFoundError if it is not to be created."""
        fd = os.open(self._root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            for part in parts:
                below = _open_child(fd, part, create=create)
                os.close(fd)
                fd = below
        except BaseException:
            os.close(fd)
            raise
        return fd

    def _open_parent(self, path: str, *, create: bool) -> tuple[int, str]:
        *folders, name = self._split(path)
        try:
            return self._open_folder(*folders, create=create), name
        except (NotADirectoryError, FileExistsError):
            raise PathRefused(f"a directory in the path {path!r} is a file or a symbolic link") from None

    def _open(self, path: str, flags: int) -> int | None:
        """Return a descriptor of a regular file; None if there is none and the flags do not create it."""
        try:
            folder, name = self._open_parent(path, create=bool(flags & os.O_CREAT))
        except FileNotFoundError:
            return None
        try:
            fd = os.open(name, flags | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK, 0o600, dir_fd=folder)
        except FileNotFoundError:
            return None
        except OSError as error:
            if isinstance(error, IsADirectoryError) or error.errno in _NOT_A_FILE:
                raise PathRefused(f"the path {path!r} is not a regular file") from None
            raise
        finally:
            os.close(folder)
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            os.close(fd)
            raise PathRefused(f"the path {path!r} is not a regular file")
        return fd

    def _open_part(self, key: tuple[str, str], flags: int) -> int:
        folder = self._open_folder(PARTS)
        try:
            return os.open(_part_name(key), flags | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600, dir_fd=folder)
        finally:
            os.close(folder)

    def close(self) -> None:
        """Close the incomplete files. They stay on the disk for a later start."""
        for part in self._parts.values():
            os.close(part.fd)
        self._parts.clear()


def _open_child(folder: int, name: str, *, create: bool) -> int:
    flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        return os.open(name, flags, dir_fd=folder)
    except FileNotFoundError:
        if not create:
            raise
        with suppress(FileExistsError):
            os.mkdir(name, 0o700, dir_fd=folder)
        return os.open(name, flags, dir_fd=folder)
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise NotADirectoryError(name) from None
        raise


def _write_all(fd: int, data: bytes, offset: int | None = None) -> None:
    """Write all bytes, at an offset or at the end."""
    rest = memoryview(data)
    while rest:
        count = os.write(fd, rest) if offset is None else os.pwrite(fd, rest, offset)
        rest = rest[count:]
        offset = None if offset is None else offset + count


def _part_name(key: tuple[str, str]) -> str:
    return hashlib.sha256("\0".join(key).encode()).hexdigest()


def _stamp(status: os.stat_result) -> tuple[int, int, int, int]:
    return status.st_dev, status.st_ino, status.st_size, status.st_ctime_ns
