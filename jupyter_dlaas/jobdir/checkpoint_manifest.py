"""The checkpoints of a job as their manifests tell them. Written by the learner, read by learner and guardian."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from jupyter_dlaas.jobdir.atomic_files import read_json
from jupyter_dlaas.wire.codec import Invalid, decode, encode

__all__ = ["FOLDER", "FORMAT", "MANIFEST", "STATE", "Manifest", "Range", "Stored", "manifests", "stored", "to_bytes"]

FORMAT: Final = 2
"""Format of the checkpoints that this release writes; it reads this one and all before."""
FOLDER: Final = "checkpoints"
MANIFEST: Final = "manifest.json"
STATE: Final = "state.bin"
_NAME: Final = re.compile(r"step-([0-9]{1,18})(?:\.([0-9]{1,9}))?")


@dataclass(frozen=True, slots=True, kw_only=True)
class Range:
    """Steps [first, end) of the job, all in one epoch."""

    epoch: int
    first: int
    end: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """What a checkpoint holds. A folder without a whole manifest is no checkpoint."""

    step: int
    epoch: int
    generation: int
    at_s: float
    seconds: float
    bytes: int
    sha256: str
    """Of state.bin."""
    learners: int
    trained: tuple[Range, ...] = ()
    """All that `generation` trained since its start: it counts because this checkpoint exists.

    All, not what is new: a guardian that was away may never see the checkpoints between."""
    asked: int = 0
    """The last request for a checkpoint that this one answers; 0: none."""
    left_out: tuple[str, ...] = field(default=())
    """Names of the script that changed but cannot go into a checkpoint."""
    files: Mapping[str, str] = field(default_factory=dict)
    """What a framework's own loop put there beside state.bin: SHA-256 by path within the folder."""
    format: int = 1
    """Checkpoints without the field have format 1."""


@dataclass(frozen=True, slots=True)
class Stored:
    """A checkpoint's folder, whole or damaged."""

    folder: Path
    step: int
    format: int
    """0 where the manifest cannot be read."""
    manifest: Manifest | None
    """None where it is missing, damaged or of a newer format."""


def to_bytes(manifest: Manifest) -> bytes:
    return json.dumps(encode(manifest), indent=1).encode()


def manifests(job_dir: Path) -> list[tuple[Path, Manifest]]:
    """The job's checkpoints, oldest first, by their manifests alone (the state's checksum is looked at on loading)."""
    found = [(one.folder, one.manifest) for one in stored(job_dir) if one.manifest is not None]
    return sorted(found, key=lambda pair: (pair[1].step, pair[1].at_s, pair[0].name))


def stored(job_dir: Path) -> list[Stored]:
    """All folders of checkpoints, also damaged ones, oldest first."""
    try:
        folders = list((job_dir / FOLDER).iterdir())
    except (FileNotFoundError, NotADirectoryError):
        return []
    named = ((_NAME.fullmatch(folder.name), folder) for folder in folders)
    numbered = sorted((int(name[1]), int(name[2] or 0), folder) for name, folder in named if name is not None)
    return [_stored(folder, step) for step, _, folder in numbered]


def _stored(folder: Path, step: int) -> Stored:
    try:
        body: Any = read_json(folder / MANIFEST)
    except OSError:
        body = None
    kind = body.get("format", 1) if body is not None else 0
    if not isinstance(kind, int) or kind > FORMAT:
        return Stored(folder, step, kind if isinstance(kind, int) else 0, None)
    try:
        return Stored(folder, step, kind, decode(Manifest, body, unknown="ignore"))
    except Invalid:
        return Stored(folder, step, 0, None)
