"""The checkpoints of a job as their manifests tell them. Written by the learner, read by learner and guardian."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from jupyter_dlaas.runtime.files import read_json
from jupyter_dlaas.wire import Invalid, decode, encode

__all__ = ["FOLDER", "MANIFEST", "STATE", "Manifest", "Range", "manifests", "to_bytes"]

FOLDER: Final = "checkpoints"
MANIFEST: Final = "manifest.json"
STATE: Final = "state.bin"


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


def to_bytes(manifest: Manifest) -> bytes:
    return json.dumps(encode(manifest), indent=1).encode()


def manifests(job_dir: Path) -> list[tuple[Path, Manifest]]:
    """The job's checkpoints, oldest first, by their manifests alone (the state's checksum is looked at on loading)."""
    found: list[tuple[Path, Manifest]] = []
    try:
        folders = list((job_dir / FOLDER).iterdir())
    except FileNotFoundError:
        return []
    for folder in folders:
        if not folder.name.startswith("step-"):
            continue
        body: Any = read_json(folder / MANIFEST)
        try:
            found.append((folder, decode(Manifest, body, unknown="ignore")))
        except Invalid:
            continue
    return sorted(found, key=lambda pair: (pair[1].step, pair[1].at_s, pair[0].name))
