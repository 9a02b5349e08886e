"""Files beside own modules that did not travel: links to the folders that the modules came from."""

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
"""Links in one folder."""


def link_originals(job_dir: Path) -> None:
    """Link what did not travel into the folders of the job's modules, where their own folders are within reach."""
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
        return  # another machine, or it is gone: what travelled is there
    for name in sorted(names)[:_LINKS_MAX]:
        here, there = folder / name, f"{original}{os.sep}{name}"
        if name == "__pycache__":
            continue
        if here.is_dir() and not here.is_symlink():
            _link(here, there)
        else:
            with suppress(OSError):  # it travelled, or another learner was first
                here.symlink_to(there)
