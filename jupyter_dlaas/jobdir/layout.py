"""Names in a job's directory."""

from __future__ import annotations

from pathlib import Path

__all__ = ["learner_folder"]


def learner_folder(job_dir: Path, member: int) -> Path:
    return job_dir / f"learner-{member}"
