"""Uploaded bytes, kept by their SHA-256 until no job needs them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Collection
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from dlaas_server.store import Store

__all__ = ["PARTIAL", "Blobs"]

UPLOAD_TTL_S: Final = 86_400.0
"""Time that uploaded bytes are kept for the submit that refers to them."""
ORPHAN_TTL_S: Final = 3600.0
"""Time that unused bytes of an earlier engine are kept: their submit may be on its way."""
PARTIAL: Final = ".partial-"
_GONE: Final = ".gone-"


@dataclass(slots=True)
class Blobs:
    """Folder of uploaded bytes. Called in the event loop's thread."""

    folder: Path
    clock: Callable[[], float] = time.monotonic
    _held_s: dict[str, float] = field(default_factory=dict)
    """SHA-256 -> time of the last upload or reference in a submit."""
    _awaited: set[str] = field(default_factory=set)
    """Blobs to which no job stored since has referred."""
    _needed: frozenset[str] = frozenset()
    """Blobs that a job needed at the last collection."""

    def path(self, sha256: str) -> Path:
        """Return the path of the bytes, whether they exist or not."""
        return self.folder / sha256

    def hold(self, sha256: str) -> None:
        """Keep these bytes for a submit that is about to be stored."""
        self._held_s[sha256] = self.clock()
        self._awaited.add(sha256)

    def stored(self, sha256s: Collection[str]) -> None:
        """Record that a stored job refers to these bytes: they are kept as long as the job."""
        self._awaited -= set(sha256s)

    async def collect(self, store: Store) -> int:
        """Remove the bytes that no job needs. Return the number of removed files. Raises StoreError."""
        if not self.folder.is_dir():
            return 0
        began_s = self.clock()
        needed = await store.blobs()
        gone: list[Path] = []
        for path in sorted(self.folder.iterdir()):
            if path.name not in needed and self._is_unused(path, began_s):
                aside = path.with_name(f"{_GONE}{path.name.removeprefix(_GONE)}")
                with suppress(OSError):
                    path.rename(aside)  # immediately, so that no submit finds it meanwhile
                    gone.append(aside)
                    self._held_s.pop(path.name, None)
                    self._awaited.discard(path.name)
        self._needed = needed
        await asyncio.to_thread(_remove, gone)  # removing large files takes time
        return len(gone)

    def _is_unused(self, path: Path, began_s: float) -> bool:
        held_s = self._held_s.get(path.name)
        if path.name.startswith(_GONE):
            return True
        if held_s is None and path.name in self._needed:
            return True
        if held_s is None:  # from an earlier engine, or still being uploaded
            with suppress(OSError):
                return time.time() - path.stat().st_mtime > ORPHAN_TTL_S
            return False
        if held_s >= began_s:  # a job may have been stored since the store was read
            return False
        return path.name not in self._awaited or began_s - held_s > UPLOAD_TTL_S


def _remove(paths: Collection[Path]) -> None:
    for path in paths:
        with suppress(OSError):
            path.unlink()
