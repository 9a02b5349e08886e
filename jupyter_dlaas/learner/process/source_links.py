"""Links to files beside the user's modules that were not sent with the job."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

__all__ = ["link_originals"]

_INPUT: Final = "inputs/originals.json"
_LINKS_MAX: Final = 5000
"""The maximum number of links per directory."""


def link_originals(job_dir: Path) -> None:
    """Link the original files into the directories of the job's modules, if the originals are accessible."""
    try:
        originals: Mapping[str, Sequence[str]] = json.loads((job_dir / _INPUT).read_bytes())
    except FileNotFoundError:
        return
    for package, folders in originals.items():
        for folder in folders:
            _link(job_dir / "files" / package, folder)


def _link(folder: Path, original: str) -> None:
    try:
        names = os.listdir(original)  # noqa: PTH208 - names are what is needed
    except OSError:
        return  # another machine, or deleted: the files sent with the job remain
    for name in sorted(names)[:_LINKS_MAX]:
        here, there = folder / name, f"{original}{os.sep}{name}"
        if name == "__pycache__":
            continue
        if here.is_dir() and not here.is_symlink():
            _link(here, there)
        else:
            with suppress(OSError):  # already sent, or linked by another learner
                here.symlink_to(there)
