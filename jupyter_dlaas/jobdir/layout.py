"""Names in a job's directory."""

from __future__ import annotations

from pathlib import Path
from typing import Final

__all__ = ["has_learners", "learner_folder"]

_LEARNER: Final = "learner-"


def learner_folder(job_dir: Path, member: int) -> Path:
    return job_dir / f"{_LEARNER}{member}"


def has_learners(job_dir: Path) -> bool:
    """Return whether a learner of this job was ever started."""
    return any(entry.name.startswith(_LEARNER) for entry in job_dir.iterdir())
