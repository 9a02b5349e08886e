"""Files that a learner writes and its guardian needs, as an agent forwards them."""

from __future__ import annotations

import select
from collections.abc import Callable
from pathlib import Path
from typing import Final

from jupyter_dlaas.jobdir.atomic_files import write_whole
from jupyter_dlaas.jobdir.checkpoint_manifest import FOLDER, MANIFEST
from jupyter_dlaas.jobdir.log_index import LOG
from jupyter_dlaas.runtime.hosts.file_sender import FileSender
from jupyter_dlaas.runtime.hosts.job_files import METRICS, files_below
from jupyter_dlaas.runtime.link.session import Session
from jupyter_dlaas.runtime.link.storage import FileSource
from jupyter_dlaas.runtime.system.inotify import Watch

__all__ = ["LearnerFiles", "belongs_to_learner"]

GATHER_S: Final = 0.02
"""Seconds between looks at files that keep changing."""
POLL_S: Final = 0.1
REFUSALS_MAX: Final = 5
_BASE: Final = "metrics.base"
"""File with the number of bytes of the metrics that the guardian has sent before the learner's start."""
_SINGLE: Final = ("progress.json",)
_TREES: Final = ("output", "results")
Signature = tuple[int, int, int]


def belongs_to_learner(path: str, member: int) -> bool:
    """Return whether a learner may write to a path of its job's directory."""
    return path.split("/")[0] in (f"learner-{member}", *_SINGLE, *_TREES, FOLDER)


class LearnerFiles:
    """Watcher of one learner's files: the log and the metrics as streams, all others whole.

    Files in directories that appear by rename (checkpoints) are complete. Those in `output` and `results` are sent when
    two looks find them unchanged, or when the learner has ended.
    """

    def __init__(self, root: Path, member: int, session: Session, log: Callable[[str], None]) -> None:
        self._root, self._session, self._log = root, session, log
        self._folder = f"learner-{member}"
        self._sender = FileSender(root, session)
        self._watch = Watch()
        self._gather_at = 0.0
        (root / self._folder).mkdir(mode=0o700, exist_ok=True)
        for folder in (root, root / self._folder):
            self._watch.add(folder)
        self._streams: dict[str, int] = {}
        """Streams, with the inodes of their files."""
        self._sent: dict[str, Signature] = {}
        self._seen: dict[str, Signature] = {}
        self._refusals: dict[str, int] = {}
        self._manifests: dict[str, set[str]] = {}
        """Manifests of checkpoints -> files that must be stored before."""

    def interests(self, now: float) -> dict[int, int]:
        """Return the descriptors to poll, with their events."""
        found = {self._sender.fd: select.POLLIN}
        if self._watch.fd is not None and now >= self._gather_at:
            found[self._watch.fd] = select.POLLIN
        return found

    def due(self, now: float) -> float | None:
        """Return the time of the next `turn` without a ready descriptor; None if there is none."""
        if self._watch.must_poll:
            return now + POLL_S
        return self._gather_at if now < self._gather_at else None

    def look(self, *, is_final: bool = False) -> None:
        """Send what has changed. `is_final` says that the learner has ended."""
        self._look_at_watched()
        for tree in _TREES:
            for path in files_below(self._root, tree):
                self._send_if_changed(path, is_complete=is_final)
        for end in sorted(self._root.glob(f"{FOLDER}/end-*.bin")):  # how a training of a framework ended
            self._send_if_changed(end.relative_to(self._root).as_posix(), is_complete=True)
        for folder in sorted(self._root.glob(f"{FOLDER}/step-*")):
            self._send_checkpoint(folder)

    def _look_at_watched(self) -> None:
        self._open_streams()
        for path in (f"{self._folder}/result.json", *_SINGLE):
            self._send_if_changed(path, is_complete=True)

    def turn(self, now: float) -> None:
        """Continue sending."""
        if now >= self._gather_at and self._watch.read():
            self._gather_at = now + GATHER_S
            self._look_at_watched()
        self._sender.turn()
        for path, needed in list(self._manifests.items()):
            if not needed & self._sender.pending:
                del self._manifests[path]
                self._sender.send(path)
        for path, reason in self._sender.failed.items():  # sent again when it changes
            self._log(f"a file is not forwarded: {reason}")
            self._manifests.pop(path, None)
        self._sender.failed.clear()

    def received(self, path: str) -> None:
        """Count a file of the guardian as sent, so that it does not go back."""
        status = (self._root / path).lstat()
        self._sent[path] = (status.st_ino, status.st_size, status.st_mtime_ns)
        if path == METRICS:
            write_whole(self._root / _BASE, str(status.st_size).encode())
        elif path.startswith(f"{FOLDER}/") and path.endswith(f"/{MANIFEST}"):
            self._sent[path] = (0, 0, 0)

    def refused(self, path: str) -> None:
        """Send a file again at the next look, because it changed while it was sent; not for ever."""
        self._refusals[path] = self._refusals.get(path, 0) + 1
        if self._refusals[path] <= REFUSALS_MAX:
            self._sent.pop(path, None)

    @property
    def is_settled(self) -> bool:
        """True if the peer has stored all that was found."""
        streams = all(self._session.has_stored(path) for path in self._streams)
        return streams and not self._manifests and not self._sender.pending

    def close(self) -> None:
        """Release the descriptors."""
        self._sender.close()
        self._watch.close()

    def _open_streams(self) -> None:
        for local, path in ((f"{self._folder}/{LOG}",) * 2, (METRICS, f"{self._folder}/{METRICS}")):
            try:
                inode = (self._root / local).lstat().st_ino
                if self._streams.get(path) == inode:
                    continue
                source = FileSource(self._root / local, self._base() if local == METRICS else 0)
            except OSError:
                continue
            self._session.end_stream(path)  # the guardian has replaced the file
            self._streams[path] = inode
            self._session.send_stream(path, source)

    def _base(self) -> int:
        try:
            return int((self._root / _BASE).read_text(encoding="ascii"))
        except FileNotFoundError:
            return 0

    def end_streams(self) -> None:
        """Stop sending the streams of a learner that has ended."""
        for path in self._streams:
            self._session.end_stream(path)
        self._streams.clear()

    def _send_checkpoint(self, folder: Path) -> None:
        """Send a checkpoint's files, and its manifest once they are stored: it says that the checkpoint is complete."""
        name = folder.relative_to(self._root).as_posix()
        manifest = f"{name}/{MANIFEST}"
        if manifest in self._sent or not (folder / MANIFEST).exists():
            return
        files = [path for path in files_below(self._root, name) if path != manifest]
        for path in files:
            self._send_if_changed(path, is_complete=True)
        self._sent[manifest] = (0, 0, 0)
        self._manifests[manifest] = set(files)

    def _send_if_changed(self, path: str, *, is_complete: bool) -> None:
        try:
            status = (self._root / path).lstat()
        except OSError:
            return
        signature = (status.st_ino, status.st_size, status.st_mtime_ns)
        if self._sent.get(path) == signature:
            return
        if is_complete or self._seen.get(path) == signature:
            self._sent[path] = signature
            self._sender.send(path)
        self._seen[path] = signature
