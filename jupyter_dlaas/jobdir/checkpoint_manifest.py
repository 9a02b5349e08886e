"""Checkpoint manifests of a job. The learner writes them; learner and guardian read them."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from jupyter_dlaas.jobdir.atomic_files import read_json
from jupyter_dlaas.wire.codec import Invalid, decode, encode
from jupyter_dlaas.wire.step_range import Range

__all__ = ["FOLDER", "FORMAT", "KEPT", "MANIFEST", "STATE", "Manifest", "Stored", "manifests", "stored", "to_bytes"]

FORMAT: Final = 2
"""Format of the checkpoints that this release writes. It reads this format and all earlier ones."""
FOLDER: Final = "checkpoints"
KEPT: Final = 2
"""Number of checkpoints that a job keeps."""
MANIFEST: Final = "manifest.json"
STATE: Final = "state.bin"
_NAME: Final = re.compile(r"step-([0-9]{1,18})(?:\.([0-9]{1,9}))?")


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """Content of a checkpoint. A directory without a complete manifest is not a checkpoint."""

    step: int
    epoch: int
    generation: int
    at_s: float
    seconds: float
    bytes: int
    sha256: str
    """Checksum of state.bin."""
    learners: int
    trained: tuple[Range, ...] = ()
    """Steps that `generation` trained since its start: they are durable because this checkpoint exists.

    The field holds all of them, not only new ones: a guardian that was away may never see the checkpoints between.
    """
    asked: int = 0
    """Number of the last checkpoint request that this one answers; 0: none."""
    left_out: tuple[str, ...] = field(default=())
    """Names of the script's variables that changed but cannot be stored in a checkpoint."""
    files: Mapping[str, str] = field(default_factory=dict)
    """Files that a framework's own loop stored beside state.bin: SHA-256 by path within the directory."""
    format: int = 1
    """Format of the checkpoint. Checkpoints without the field have format 1."""


@dataclass(frozen=True, slots=True)
class Stored:
    """Directory of a checkpoint, complete or damaged."""

    folder: Path
    step: int
    format: int
    """Format of the checkpoint; 0 if the manifest cannot be read."""
    manifest: Manifest | None
    """Manifest; None if it is missing, damaged or of a newer format."""


def to_bytes(manifest: Manifest) -> bytes:
    return json.dumps(encode(manifest), indent=1).encode()


def manifests(job_dir: Path) -> list[tuple[Path, Manifest]]:
    """Return the job's checkpoints, oldest first, by their manifests only. Loading verifies the state's checksum."""
    found = [(one.folder, one.manifest) for one in stored(job_dir) if one.manifest is not None]
    return sorted(found, key=lambda pair: (pair[1].step, pair[1].at_s, pair[0].name))


def stored(job_dir: Path) -> list[Stored]:
    """Return all checkpoint directories, including damaged ones, oldest first."""
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
