"""Images of the process nodes: every image is this machine's files, with the Python of the tests first on the PATH."""

from __future__ import annotations

import asyncio
import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

__all__ = ["IMAGE_USER", "Images", "InvalidName", "PullFailed", "base_mounts", "check_name", "image_environment"]

IMAGE_USER: Final = 1000
"""User and group of a container whose pod names none."""
OLD_PYTHON: Final = "/srv/old-python"
_OLD: Final = (
    'import runpy, sys; sys.version_info = (3, 9, 2); sys.argv.pop(0); runpy.run_path(sys.argv[0], {}, "__main__")'
)
REPOSITORY: Final = Path(__file__).parents[3]


class PullFailed(Exception):
    """An image cannot be pulled."""


class InvalidName(Exception):
    """The name of an image is not valid."""


def check_name(image: str) -> None:
    """Raise InvalidName, with the words of a kubelet, for a name with capital letters."""
    first, slash, rest = image.partition("/")
    has_registry = slash and (re.search(r"[.:]", first) or first == "localhost")
    repository = (rest if has_registry else image).partition(":")[0]
    if repository != repository.lower():
        why = f"invalid reference format: repository name ({repository}) must be lowercase"
        raise InvalidName(f'Failed to apply default image tag "{image}": couldn\'t parse image name "{image}": {why}')


@dataclass(slots=True)
class Images:
    """The image store of one node."""

    pull_s: float = 0.0
    """Time that the first pull of an image takes."""
    unpullable: set[str] = field(default_factory=set)
    """Images that the registry refuses. Those of a registry under the domain `invalid` never exist."""
    private: set[str] = field(default_factory=set)
    """Images for which the registry demands credentials."""
    endless: set[str] = field(default_factory=set)
    """Images whose pull does not end."""
    without_python: set[str] = field(default_factory=set)
    """Images that have no program at all."""
    old_python: set[str] = field(default_factory=set)
    """Images whose `python3` says that it is Python 3.9."""
    with_product: set[str] = field(default_factory=set)
    """Images in which jupyter_dlaas is installed: they show this repository."""
    _present: set[str] = field(default_factory=set)

    def is_present(self, image: str) -> bool:
        return image in self._present

    async def pull(self, image: str) -> None:
        """Pull an image. Raises PullFailed with the words of containerd."""
        registry = image.split("/")[0] if "/" in image else "docker.io"
        failed = f'failed to pull and unpack image "{image}": failed to resolve reference "{image}": '
        if re.search(r"\.invalid(:\d+)?$", registry):
            host = registry.split(":")[0]
            raise PullFailed(
                f'{failed}failed to do request: Head "https://{registry}/v2/": dial tcp: lookup {host}: no such host'
            )
        if image in self.unpullable:
            raise PullFailed(f"{failed}{image}: not found")
        if image in self.private:
            raise PullFailed(f"{failed}failed to authorize: unexpected status: 401 Unauthorized")
        if image in self.endless:
            await asyncio.Event().wait()
        await asyncio.sleep(self.pull_s)
        self._present.add(image)

    def path(self, image: str) -> str:
        """Return the PATH of an image."""
        if image in self.without_python:
            return "/srv"
        own = f"{OLD_PYTHON}:" if image in self.old_python else ""
        return f"{own}{sys.prefix}/bin:/usr/local/bin:/usr/bin:/bin"

    def mounts(self, image: str, folder: Path) -> list[dict[str, Any]]:
        """Return what an image has and this machine has not. `folder` takes its files."""
        if image in self.with_product:
            return [{"kind": "bind", "source": str(REPOSITORY), "target": str(REPOSITORY), "read_only": True}]
        if image not in self.old_python:
            return []
        program = folder / "python3"
        program.write_text(f"#!/bin/sh\nexec {sys.executable} -c '{_OLD}' \"$@\"\n", encoding="utf-8")
        program.chmod(0o755)
        return [{"kind": "bind", "source": str(program), "target": f"{OLD_PYTHON}/python3", "folder": False}]


def image_environment(hostname: str, path: str) -> dict[str, str]:
    return {"PATH": path, "HOSTNAME": hostname, "HOME": "/"}


def base_mounts() -> Sequence[dict[str, Any]]:
    """Return what every container mounts: kernel file systems, scratch folders, and Python without this repository.

    The folders of Python are mounted on themselves so that any user may pass through the folders above them.
    """
    mounts: list[dict[str, Any]] = [
        {"kind": "proc", "target": "/proc"},
        {"kind": "tmpfs", "target": "/tmp", "options": "mode=1777"},
        {"kind": "tmpfs", "target": "/dev/shm", "options": "mode=1777,size=64m"},
        {"kind": "tmpfs", "target": str(REPOSITORY), "options": "mode=755"},
    ]
    for prefix in sorted({sys.prefix, sys.base_prefix} - {"/", "/usr", "/usr/local"}):
        mounts.append({"kind": "bind", "source": prefix, "target": prefix})
    return mounts
