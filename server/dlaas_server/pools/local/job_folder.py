"""Job directory: reads and writes of the adapter. Blocking and stateless; paths cannot leave the directory."""

from __future__ import annotations

import errno
import json
import os
import re
import shutil
import stat
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from dlaas_server.pools.base import JOURNAL, METRICS, PROGRESS, Chunk, PoolError, PoolUnavailable, log_of
from dlaas_server.pools.journal_lines import damage, facts_in
from dlaas_server.pools.local.logs import read_log
from dlaas_server.pools.paths import readable, writable
from jupyter_dlaas.jobdir.atomic_files import FULL, read_json, write_whole
from jupyter_dlaas.jobdir.log_cap import log_size, read_cut
from jupyter_dlaas.jobdir.log_index import INDEX, LOG
from jupyter_dlaas.runtime.system.process import Identity, boot_id, recorded
from jupyter_dlaas.stored import too_new
from jupyter_dlaas.wire.codec import Invalid, decode, encode
from jupyter_dlaas.wire.journal import JOURNAL_FORMAT, SPEC_FORMAT, Fact, FactKind, GuardianUp, Wanted
from jupyter_dlaas.wire.protocol import JobSpec, NotFound, Refused
from jupyter_dlaas.wire.secret_masking import NO_MASK, Mask

__all__ = ["STREAM_FILES", "FormatUnknown", "JobFolder", "in_words", "stream_of"]

STREAM_FILES: Final = {JOURNAL: "journal.jsonl", METRICS: "metrics.jsonl", PROGRESS: "progress.json"}
BOOT: Final = ".boot"
"""File in a job's directory that names the boot of the machine in which its files were written."""
_NAMES: Final = {file: stream for stream, file in STREAM_FILES.items()}
_LEARNER: Final = re.compile(r"learner-(0|[1-9][0-9]{0,8})")
_LOG_STREAM: Final = re.compile(r"log:(0|[1-9][0-9]{0,8})")
_ADVICE: Final = {
    errno.ENOSPC: "the disk is full; free some space to continue",
    errno.EDQUOT: "your disk quota is exceeded; free some space to continue",
    errno.EROFS: "the disk is read-only",
    errno.EMFILE: "this process has too many open files",
    errno.ENFILE: "this machine has too many open files",
    errno.EACCES: "permission denied",
    errno.EIO: "input/output error of the disk",
}


class FormatUnknown(PoolError):
    """A file of the job was written by a newer release."""


@contextmanager
def in_words(what: str) -> Iterator[None]:
    """Turn a disk error into a PoolError that says what failed and why."""
    try:
        yield
    except OSError as error:
        why = _ADVICE.get(error.errno or 0, error.strerror or str(error))
        raise PoolError(f"{what}: {why} ({error.filename or 'no file named'})") from error


def stream_of(path: Path, root: Path) -> str | None:
    """Return the stream of a file in the job's directory `root`; None if it belongs to none."""
    if path.parent == root:
        return _NAMES.get(path.name)
    found = _LEARNER.fullmatch(path.parent.name)
    return log_of(int(found[1])) if found and path.parent.parent == root and path.name == LOG else None


_CLOSED: Final = f'"kind":"{FactKind.CLOSED}"'.encode()


@dataclass(frozen=True, slots=True)
class JobFolder:
    """Directory of a job."""

    job: str
    root: Path

    # ---- creation and removal --------------------------------------------------------------------------------

    def create(self, owner: str, spec: JobSpec, environment: Mapping[str, str]) -> None:
        """Create the directory atomically; an existing one is unchanged.

        Nothing is synced to the disk: the engine's store is authoritative and can provide everything again. A power
        cut can leave empty files, so files of an earlier boot and damaged files are written again.
        """
        if self.root.is_dir() and self.is_of_this_boot() and self._is_readable():
            return
        about = {"format": SPEC_FORMAT, "id": self.job, "spec": encode(spec), "owner": owner}
        making = self.root.with_name(f".making-{self.job}-{os.getpid()}")
        with in_words(f"the directory of job {self.job} cannot be created"):
            shutil.rmtree(making, ignore_errors=True)
            making.mkdir(mode=0o700)
            try:
                folder = self.root if self.root.is_dir() else making
                write_whole(folder / "spec.json", _json(about))
                write_whole(folder / "environment.json", _json(dict(environment)))
                for name in ("files", "inputs"):
                    (folder / name).mkdir(mode=0o700, exist_ok=True)
                write_whole(folder / BOOT, boot_id().encode())
                if folder is making:
                    with suppress(FileExistsError):
                        making.rename(self.root)
            finally:
                shutil.rmtree(making, ignore_errors=True)

    def _is_readable(self) -> bool:
        return all(read_json(self.root / name) is not None for name in ("spec.json", "environment.json"))

    def is_of_this_boot(self) -> bool:
        """Return whether the machine has run ever since the files of the job were written."""
        try:
            return (self.root / BOOT).read_bytes() == boot_id().encode()
        except OSError:
            return False

    def put(self, path: str, data: bytes) -> None:
        """Store one file atomically."""
        parts = writable(path)
        with in_words(f"{path} of job {self.job} cannot be stored"):
            write_whole(self._path_for(parts), data)

    def put_file(self, path: str, source: str) -> None:
        """Store a copy of a file (never a link: the job may write to its own)."""
        parts = writable(path)
        with in_words(f"{path} of job {self.job} cannot be stored"):
            target = self._path_for(parts)
            part = target.with_name(f".{target.name}.{os.getpid()}.part")
            try:
                shutil.copyfile(source, part)
                part.chmod(0o600)
                part.replace(target)
            finally:
                part.unlink(missing_ok=True)

    def _path_for(self, parts: tuple[str, ...]) -> Path:
        self.must_exist()
        folder = self.root
        for name in parts[:-1]:
            folder = folder / name
            folder.mkdir(mode=0o700, exist_ok=True)
            if folder.is_symlink():
                raise Refused(f"{'/'.join(parts)!r} of job {self.job} would pass through the symbolic link {name!r}")
        return folder / parts[-1]

    def remove(self) -> None:
        """Remove the directory: rename it first, then delete it."""
        gone = self.root.with_name(f".removed-{self.job}-{os.getpid()}")
        with in_words(f"the directory of job {self.job} cannot be removed"):
            with suppress(FileNotFoundError):
                self.root.rename(gone)
            if gone.exists():
                shutil.rmtree(gone)

    def must_exist(self) -> None:
        """Raise NotFound if the pool has no such job, PoolUnavailable if the pool's directory is unreachable."""
        if not self.root.is_dir():
            if not self.root.parent.is_dir():
                raise PoolUnavailable(f"{self.root.parent} does not exist; is its disk mounted?")
            raise NotFound(f"the pool has no job {self.job!r}")

    # ---- submitted and wanted --------------------------------------------------------------------------------

    def spec(self) -> JobSpec:
        """Return the job's spec."""
        about = self._object("spec.json")
        _check_format(self.root / "spec.json", about.get("format", 1), SPEC_FORMAT)
        try:
            return decode(JobSpec, about.get("spec"), unknown="ignore")
        except Invalid as error:
            raise PoolError(f"spec.json of job {self.job} is damaged: {error}") from error

    def environment(self) -> Mapping[str, str]:
        """Return the job's environment."""
        return {name: str(value) for name, value in self._object("environment.json").items()}

    def _object(self, name: str) -> Mapping[str, Any]:
        self.must_exist()
        with in_words(f"{name} of job {self.job} cannot be read"):
            found = read_json(self.root / name)
        if found is None:
            raise PoolError(f"{name} of job {self.job} is missing or damaged")
        return found

    def wanted(self) -> Wanted | None:
        """Return the stored document; None if it is missing or unreadable."""
        found = read_json(self.root / "wanted.json")
        try:
            return None if found is None else decode(Wanted, found, unknown="ignore")
        except Invalid:
            return None

    def write_wanted(self, wanted: Wanted) -> None:
        """Replace the document, without syncing: after a power cut the engine sends it again."""
        self.must_exist()
        with in_words(f"wanted.json of job {self.job} cannot be written"):
            path, data = self.root / "wanted.json", _json(encode(wanted))
            try:
                write_whole(path, data)
            except OSError as error:
                if error.errno not in FULL or not path.exists():
                    raise
                _write_over(path, data)  # a job must be able to leave

    def forget_wanted(self) -> None:
        """Remove the document of a job that is over."""
        with suppress(OSError):
            (self.root / "wanted.json").unlink()

    def guardian(self) -> Identity | None:
        """Return the guardian named by `status.json`, alive or not."""
        return recorded(read_json(self.root / "status.json"))

    def is_closed(self) -> bool:
        """Return whether a guardian closed the journal, or none ever wrote to it: no process of the job is left."""
        last, _ = self._end()
        return last is None or _CLOSED in last

    def closed_bytes(self) -> int:
        """Return the size of a journal whose newest line closes the job; -1 of any other.

        Size and line are read at once: the next guardian may add lines at any moment.
        """
        last, size = self._end()
        return size if _CLOSED in (last or b"") else -1

    def last_log_line(self) -> str:
        """Return the last line of the guardian's log; "" if there is none."""
        try:
            tail = (self.root / "guardian.log").read_bytes()[-4096:]
        except OSError:
            return ""
        return next((line[:300] for line in reversed(tail.decode(errors="replace").splitlines()) if line.strip()), "")

    def journal_size(self) -> int:
        """Return the size of the journal in bytes; 0 if there is none."""
        try:
            return (self.root / STREAM_FILES[JOURNAL]).stat().st_size
        except OSError:
            return 0

    def _end(self) -> tuple[bytes | None, int]:
        """Return the last whole line of the journal, if there is one, and the size of the journal up to its end."""
        try:
            with (self.root / STREAM_FILES[JOURNAL]).open("rb") as file:
                begin = file.seek(max(0, file.seek(0, os.SEEK_END) - 4096))  # a closing line is short
                tail = file.read()
        except OSError:
            return None, 0
        whole = tail[: tail.rfind(b"\n") + 1]
        return (whole.splitlines()[-1] if whole else None), begin + len(whole)

    # ---- output ----------------------------------------------------------------------------------------------

    def facts(self, offset: int) -> tuple[list[Fact], int]:
        """Return the facts after byte `offset`, synced to disk before anything relies on them.

        Of a truncated or rewritten journal, return all facts, after one of the kind `damaged`.
        """
        self.must_exist()
        path = self.root / STREAM_FILES[JOURNAL]
        with in_words(f"the journal of job {self.job} cannot be read"):
            try:
                fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            except FileNotFoundError:
                return [], offset
            try:
                size = os.fstat(fd).st_size
                is_cut = size < offset
                lost = [damage(f"it ends at byte {size}, but was read up to byte {offset} before")] if is_cut else []
                offset = 0 if is_cut else offset
                data = _pread(fd, offset, size - offset)
                if data:
                    os.fsync(fd)  # else a power cut could take back what the engine has written into its own store
            finally:
                os.close(fd)
        found, end = facts_in(data, offset)
        _check_format(
            path, max((fact.format or 1 for fact in found if isinstance(fact, GuardianUp)), default=1), JOURNAL_FORMAT
        )
        return lost + found, end

    def learners(self) -> list[tuple[int, Path]]:
        """Return the members that have a directory, with its path."""
        with in_words(f"the directory of job {self.job} cannot be read"):
            try:
                found = [(m, entry) for entry in os.scandir(self.root) if (m := _LEARNER.fullmatch(entry.name))]
            except FileNotFoundError:
                return []
        return sorted((int(m[1]), Path(entry.path)) for m, entry in found if entry.is_dir(follow_symlinks=False))

    def stream_files(self) -> dict[str, Path]:
        """Return every possible stream with its file."""
        found = {stream: self.root / file for stream, file in STREAM_FILES.items()}
        return found | {log_of(member): folder / LOG for member, folder in self.learners()}

    def streams(self) -> dict[str, int]:
        """Return the existing streams with their sizes."""
        self.must_exist()
        sizes: dict[str, int] = {}
        for stream, path in self.stream_files().items():
            with suppress(FileNotFoundError):
                size = path.stat().st_size
                sizes[stream] = size if stream in STREAM_FILES else log_size(size, read_cut(path.parent))
        return sizes

    def read(self, stream: str, offset: int, limit: int, *, mask: Mask = NO_MASK, is_live: bool = False) -> Chunk:
        """Return bytes of a stream, empty before its start. Raises NotFound for a log of no learner. See `read_log`."""
        self.must_exist()
        try:
            fd = self._open(self._stream_parts(stream))
        except NotFound:
            if stream in STREAM_FILES:
                return Chunk(0, 0, 0, b"")
            raise NotFound(f"job {self.job} has no stream {stream!r}") from None
        try:
            if stream not in STREAM_FILES:
                folder = self.root.joinpath(*self._stream_parts(stream)).parent
                return read_log(fd, folder, offset, limit, mask, is_live=is_live)
            size = os.fstat(fd).st_size
            start = max(0, size + offset) if offset < 0 else min(offset, size)
            data = _pread(fd, start, min(max(0, limit), size - start))
        finally:
            os.close(fd)
        return Chunk(start, start + len(data), size, data)

    def _stream_parts(self, stream: str) -> tuple[str, ...]:
        if stream in STREAM_FILES:
            return (STREAM_FILES[stream],)
        found = _LOG_STREAM.fullmatch(stream)
        if not found:
            raise NotFound(f"job {self.job} has no stream {stream!r}")
        return (f"learner-{found[1]}", LOG)

    def time_of(self, member: int, offset: int) -> float | None:
        """Return the time at which the byte at `offset` of a learner's log was written. Searches from the end."""
        self.must_exist()
        try:
            fd = self._open((f"learner-{member}", INDEX))
        except NotFound:
            return None
        try:
            size, block = os.fstat(fd).st_size, 4096
            while True:
                start = max(0, size - block)
                entries = _index_entries(_pread(fd, start, size - start), is_whole=start == 0)
                if start == 0 or (entries and entries[0][0] <= offset):
                    earlier = [at_s for first, at_s in entries if first <= offset]
                    return earlier[-1] if earlier else None
                block *= 4
        finally:
            os.close(fd)

    # ---- files -----------------------------------------------------------------------------------------------

    def files(self, folder: str) -> dict[str, int]:
        """Return the regular files below a folder, relative to it. Links are neither followed nor listed."""
        self.must_exist()
        top = self.root.joinpath(*readable(self.job, folder))
        found: dict[str, int] = {}
        if top.is_symlink():
            return found
        for here, folders, names in os.walk(top):
            folders.sort()
            for name in sorted(names):
                path = Path(here, name)
                with suppress(FileNotFoundError):
                    info = path.lstat()
                    if stat.S_ISREG(info.st_mode):
                        found[path.relative_to(top).as_posix()] = info.st_size
        return found

    def get(self, path: str, offset: int, limit: int) -> bytes:
        """Return bytes of one file."""
        self.must_exist()
        fd = self._open(readable(self.job, path))
        try:
            return _pread(fd, max(0, offset), max(0, limit))
        finally:
            os.close(fd)

    def _open(self, parts: tuple[str, ...]) -> int:
        """Open a regular file of the job for reading. The opened file is checked, so no link can be swapped in."""
        path = self.root.joinpath(*parts)
        name = "/".join(parts)
        with in_words(f"{name} of job {self.job} cannot be read"):
            try:
                # Without O_NONBLOCK, opening a pipe that user code left there would wait for ever.
                fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
            except (FileNotFoundError, NotADirectoryError) as error:
                raise NotFound(f"job {self.job} has no file {name!r}") from error
            except OSError as error:
                if error.errno in (errno.ENXIO, errno.ELOOP):  # a socket, or links in a circle
                    raise NotFound(f"job {self.job} has no file {name!r}") from error
                raise
            try:
                if not stat.S_ISREG(os.fstat(fd).st_mode):
                    raise NotFound(f"job {self.job} has no file {name!r}")
                if not _real_path(fd, path).is_relative_to(self.root.resolve()):
                    raise Refused(f"{name!r} of job {self.job} is a symbolic link that leaves the job's directory")
            except BaseException:
                os.close(fd)
                raise
        return fd


def _check_format(path: Path, found: object, known: int) -> None:
    if isinstance(found, int) and found > known:
        raise FormatUnknown(too_new(str(path), found, known))


def _real_path(fd: int, path: Path) -> Path:
    try:
        return Path(f"/proc/self/fd/{fd}").readlink()
    except OSError:
        return path.resolve()  # no /proc


def _pread(fd: int, offset: int, count: int) -> bytes:
    """Read up to `count` bytes; fewer only at the end of the file."""
    parts: list[bytes] = []
    while count > 0:
        part = os.pread(fd, min(count, 1 << 24), offset)
        if not part:
            break
        parts.append(part)
        offset += len(part)
        count -= len(part)
    return b"".join(parts)


def _index_entries(data: bytes, *, is_whole: bool) -> list[tuple[int, float]]:
    lines = data[: data.rfind(b"\n") + 1].splitlines()
    entries: list[tuple[int, float]] = []
    for line in lines if is_whole else lines[1:]:
        offset, _, at_s = line.partition(b" ")
        with suppress(ValueError):
            entries.append((int(offset), float(at_s)))
    return entries


def _write_over(path: Path, data: bytes) -> None:
    """Replace a file's content in its own space. A reader may see a mixture, which is not valid JSON."""
    fd = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        data = data.ljust(os.fstat(fd).st_size)  # JSON may end in blanks; freed space could be lost to others
        while data:
            data = data[os.write(fd, data) :]
    finally:
        os.close(fd)


def _json(value: object) -> bytes:
    return json.dumps(value, indent=1).encode() + b"\n"
