"""Files of a job whose learners have private directories: what a learner needs, and what is made of what it sends."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any, Final

from jupyter_dlaas.jobdir.atomic_files import read_json, write_whole
from jupyter_dlaas.jobdir.checkpoint_manifest import FOLDER, manifests

__all__ = ["METRICS", "MetricsMerger", "files_below", "prune_checkpoints", "start_files"]

METRICS: Final = "metrics.jsonl"
_PARTS: Final = "metrics.parts.json"
_SINGLE: Final = ("spec.json", "train.py", "progress.json")
_TREES: Final = ("files", "inputs")
_COPY_BYTES: Final = 1 << 20


def files_below(root: Path, folder: str) -> list[str]:
    """Return the paths of the regular files below a directory, without following symbolic links."""
    found = []
    for place, folders, names in os.walk(root / folder):
        folders.sort()
        for name in sorted(names):
            path = Path(place) / name
            if path.is_file() and not path.is_symlink():
                found.append(path.relative_to(root).as_posix())
    return found


def start_files(job_dir: Path, *, joins: bool) -> tuple[str, ...]:
    """Return the files that a learner needs before it starts. One that joins receives the state from its gang."""
    found = [name for name in _SINGLE if (job_dir / name).exists()]
    for tree in _TREES:
        found += files_below(job_dir, tree)
    if not joins:
        found += [METRICS] if (job_dir / METRICS).exists() else []
        found += [path for path in files_below(job_dir, FOLDER) if "/." not in path]  # complete ones
    return tuple(found)


def prune_checkpoints(job_dir: Path, kept: int) -> None:
    """Remove all but the last checkpoints, as the learner that wrote them has done in its own directory."""
    for folder, _ in manifests(job_dir)[:-kept]:
        shutil.rmtree(folder, ignore_errors=True)


class MetricsMerger:
    """Writer of a job's metrics from those of its learners: the part of each rank 0 follows the part before.

    `metrics.parts.json` says at which byte each part begins, so that a new guardian continues at the right place.
    """

    def __init__(self, job_dir: Path) -> None:
        self._job_dir = job_dir
        body = read_json(job_dir / _PARTS) or {}
        parts = body.get("parts")
        self._parts: list[dict[str, Any]] = parts if isinstance(parts, list) else []

    def merge(self, member: int, *, may_follow: bool) -> None:
        """Append the whole lines that a learner has sent.

        `may_follow` says that the learner before it has ended, and that all its lines have arrived.
        """
        try:
            with (self._job_dir / f"learner-{member}" / METRICS).open("rb") as file:
                self._merge(member, file.fileno(), may_follow=may_follow)
        except OSError:  # it is not rank 0, or the disk is full: tried again
            return

    @property
    def writer(self) -> int | None:
        """Member whose part is the last one."""
        return self._parts[-1]["member"] if self._parts else None

    def _merge(self, member: int, source: int, *, may_follow: bool) -> None:
        size = os.fstat(source).st_size
        if not size or (member != self.writer and (not may_follow or any(p["member"] == member for p in self._parts))):
            return
        target = os.open(self._job_dir / METRICS, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        try:
            merged = os.fstat(target).st_size
            if member != self.writer:
                self._parts.append({"member": member, "begin": merged})
                write_whole(self._job_dir / _PARTS, json.dumps({"parts": self._parts}).encode())
            offset = merged - self._parts[-1]["begin"]
            while data := os.pread(source, _COPY_BYTES, offset):
                whole = data[: data.rfind(b"\n") + 1]
                if not whole:
                    return
                written = os.write(target, whole)
                offset += written
                if written < len(whole):
                    return
        finally:
            os.close(target)
