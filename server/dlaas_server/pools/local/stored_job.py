"""Reconstruction of a job from its directory if the engine's store is lost."""

from __future__ import annotations

import hashlib
import re
import shutil
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Final

from dlaas_server.core.lifecycle.recovery import StoredJob
from dlaas_server.pools.base import PoolError
from dlaas_server.pools.local.job_folder import FormatUnknown, JobFolder, in_words
from jupyter_dlaas.jobdir.atomic_files import read_json
from jupyter_dlaas.wire.codec import Json
from jupyter_dlaas.wire.protocol import JobSpec

__all__ = ["payload_of", "stored_job"]

_TEXT_MAX: Final = 1 << 20
_FOLDERS: Final = ("files", "inputs")
_MADE_BY_PYTHON: Final = re.compile(r"(^|/)__pycache__/")


def stored_job(folder: JobFolder) -> StoredJob:
    """Read the job from its directory; only the necessary minimum if its spec is damaged."""
    wanted = folder.wanted()
    learners = max(len(wanted.members) if wanted is not None else 0, 1)
    try:
        spec = folder.spec()
    except FormatUnknown:
        raise
    except PoolError:
        spec = JobSpec(name=folder.job.rpartition("-")[0], learners_min=learners, learners_max=learners)
    about = read_json(folder.root / "spec.json") or {}
    facts, end = folder.facts(0)
    with in_words(f"the directory of job {folder.job} cannot be read"):
        submitted_s = min([folder.root.stat().st_mtime, *(fact.at_s for fact in facts[:1])])
    return StoredJob(
        id=folder.job,
        owner=str(about.get("owner", "")),
        spec=spec,
        submitted_s=submitted_s,
        wanted=wanted,
        facts=facts,
        journal_bytes=end,
        next_member=1 + max((member for member, _ in folder.learners()), default=-1),
    )


def payload_of(folder: JobFolder, blobs: Path) -> Mapping[str, Json]:
    """Return source, files and environment of the job, as far as they exist; binary files go to `blobs`."""
    files: list[Json] = []
    environment: dict[str, Json] = {}
    with suppress(PoolError):
        environment = {name: value for name, value in folder.environment().items() if name != "JUPYTER_DLAAS_POOL_DIR"}
    with in_words(f"the files of job {folder.job} cannot be read"):
        program = folder.root / "train.py"
        source = program.read_text(encoding="utf-8", errors="replace") if program.is_file() else ""
        for top in _FOLDERS:
            for name in folder.files(top):
                if not _MADE_BY_PYTHON.search(name):
                    files.append(_file(folder.root / top / name, f"{top}/{name}", blobs))
    return {"source": source, "files": files, "environment": environment}


def _file(path: Path, name: str, blobs: Path) -> dict[str, Json]:
    if path.stat().st_size <= _TEXT_MAX:
        try:
            return {"path": name, "text": path.read_bytes().decode()}
        except UnicodeDecodeError:
            pass  # not text: kept as bytes
    with path.open("rb") as file:
        sha256 = hashlib.file_digest(file, "sha256").hexdigest()
    kept = blobs / sha256
    if not kept.is_file():
        blobs.mkdir(mode=0o700, exist_ok=True)
        partial = blobs / f".partial-{sha256}"
        try:
            shutil.copyfile(path, partial)
            partial.chmod(0o600)
            partial.replace(kept)
        finally:
            partial.unlink(missing_ok=True)
    return {"path": name, "sha256": sha256}
