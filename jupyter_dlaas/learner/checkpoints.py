"""Checkpoints: whole or not there, verified when read, the last two kept.

Written next to their place, through to the disk, and renamed there in one act; the manifest holds the state's SHA-256.
A checkpoint that does not verify is put aside and the one before it is used.
"""

from __future__ import annotations

import hashlib
import io
import os
import pickle
import shutil
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from jupyter_dlaas.learner.position import Position
from jupyter_dlaas.runtime.files import sync_folder, write_whole
from jupyter_dlaas.runtime.manifests import FOLDER, MANIFEST, STATE, Manifest, Range, manifests, to_bytes

__all__ = ["KEPT", "load", "save"]

KEPT: Final = 2


def save(
    job_dir: Path,
    position: Position,
    content: dict[str, Any],
    *,
    generation: int,
    learners: int,
    trained: Sequence[Range],
    left_out: Sequence[str] = (),
) -> Manifest:
    """Write a checkpoint of the state before `position`. Raises OSError when the disk does not take it."""
    began_s = time.monotonic()
    folder = job_dir / FOLDER
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    data = _to_bytes(content | {"position": position})
    part = folder / f".part-{os.getpid()}"
    shutil.rmtree(part, ignore_errors=True)
    part.mkdir(mode=0o700)
    try:
        write_whole(part / STATE, data, sync=True)
        manifest = Manifest(
            step=position.step,
            epoch=position.epoch,
            generation=generation,
            at_s=time.time(),
            seconds=round(time.monotonic() - began_s, 6),
            bytes=len(data),
            sha256=hashlib.sha256(data).hexdigest(),
            learners=learners,
            trained=tuple(trained),
            left_out=tuple(left_out),
        )
        write_whole(part / MANIFEST, to_bytes(manifest), sync=True)
        part.rename(_free(folder, position.step))
    except BaseException:
        shutil.rmtree(part, ignore_errors=True)
        raise
    sync_folder(folder)
    for old, _ in manifests(job_dir)[:-KEPT]:
        shutil.rmtree(old, ignore_errors=True)
    return manifest


def _free(folder: Path, step: int) -> Path:
    """A second checkpoint of the same step stands beside the first: a folder cannot be replaced in one act."""
    path, number = folder / f"step-{step:010}", 1
    while path.exists():
        path, number = folder / f"step-{step:010}.{number}", number + 1
    return path


def load(job_dir: Path, *, may_tidy: bool) -> tuple[Manifest, dict[str, Any]] | None:
    """The last checkpoint that is whole, with what is in it; None when there is none.

    `may_tidy`: put damaged ones aside, so that they do not count as the last one any more.
    """
    for folder, manifest in reversed(manifests(job_dir)):
        try:
            data = (folder / STATE).read_bytes()
        except OSError:
            data = b""
        if hashlib.sha256(data).hexdigest() == manifest.sha256:
            content: dict[str, Any] = _from_bytes(data)
            return manifest, content
        print(f"[the checkpoint of step {manifest.step} is damaged; the one before it is used]", flush=True)
        if may_tidy:
            folder.rename(folder.with_name(f"damaged-{folder.name}-{time.time_ns()}"))
    return None


def _to_bytes(content: dict[str, Any]) -> bytes:
    torch = sys.modules.get("torch")
    if torch is None:
        return pickle.dumps(content, protocol=5)
    file = io.BytesIO()
    torch.save(content, file)
    return file.getvalue()


def _from_bytes(data: bytes) -> Any:
    if data.startswith(b"PK"):
        import torch

        return torch.load(io.BytesIO(data), map_location="cpu", weights_only=False)
    return pickle.loads(data)  # noqa: S301 - this job's own file, verified
