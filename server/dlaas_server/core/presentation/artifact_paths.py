"""Paths of a job's artifacts, as people write them."""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

__all__ = ["FOLDERS", "full_path", "missing_text"]

FOLDERS: Final = ("output", "checkpoints")
"""Folders of a job whose files are artifacts; the first one is `run.output_dir`."""
LISTED_MAX: Final = 10


def full_path(path: str, artifacts: Collection[str]) -> str | None:
    """Return the path of an artifact as listed; None if there is none.

    The folder may be omitted: `notes.txt` is `output/notes.txt` if no artifact has the shorter path.
    """
    path = path.removeprefix("./")
    candidates = (path, *(f"{folder}/{path}" for folder in FOLDERS))
    return next((one for one in candidates if one in artifacts), None)


def missing_text(job: str, path: str, artifacts: Collection[str]) -> str:
    """Return the error for a path that no artifact has, with the artifacts that exist, the most similar ones first."""
    if not artifacts:
        return f"{job} has no file {path[:200]}: it has written no files to run.output_dir yet"
    from difflib import get_close_matches  # for this error only

    name = path.rpartition("/")[2]
    same_name = [one for one in artifacts if one.rpartition("/")[2] == name]
    close = get_close_matches(path, artifacts, LISTED_MAX, 0.5)
    listed = [*dict.fromkeys((*same_name, *close, *sorted(artifacts)))][:LISTED_MAX]
    more = len(artifacts) - len(listed)
    return f"{job} has no file {path[:200]}; it has {', '.join(listed)}{f' and {more} more' if more else ''}"
