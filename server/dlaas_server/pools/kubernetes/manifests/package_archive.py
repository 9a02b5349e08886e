"""Package `jupyter_dlaas` as a compressed zip in a ConfigMap: any image with Python and the frameworks can run jobs."""

from __future__ import annotations

import base64
import functools
import gzip
import hashlib
import io
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import jupyter_dlaas
from dlaas_server.pools.kubernetes.manifests.names import MANAGED_BY, Json

__all__ = ["CONFIG_MAP_BYTES", "Package", "package_archive", "package_config_map"]

CONFIG_MAP_BYTES: Final = 1 << 20
"""Largest sum of the values of a ConfigMap. Source: kubernetes, pkg/apis/core/validation, MaxSecretSize."""
_TIME: Final = (1980, 1, 1, 0, 0, 0)
"""Time of all entries: the same files give the same bytes."""
BOOTSTRAP: Final = Path(__file__).with_name("bootstrap.py")


@dataclass(frozen=True, slots=True, kw_only=True)
class Package:
    """Archive of the package, and the name that follows from its content."""

    data: bytes
    bootstrap: str
    name: str


@functools.cache
def package_archive() -> Package:
    """Return the installed package as an archive. Modules only: no front end, no caches.

    The entries are stored and the archive is compressed as a whole: this takes a fifth less than entries compressed one
    by one.
    """
    root = Path(jupyter_dlaas.__file__).resolve().parent
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_STORED) as archive:
        for path in sorted(root.rglob("*.py")):
            info = zipfile.ZipInfo(f"jupyter_dlaas/{path.relative_to(root).as_posix()}", _TIME)
            info.external_attr = 0o644 << 16
            archive.writestr(info, path.read_bytes())
    data, bootstrap = gzip.compress(buffer.getvalue(), mtime=0), BOOTSTRAP.read_text(encoding="utf-8")
    digest = hashlib.sha256(data + bootstrap.encode()).hexdigest()[:12]
    return Package(data=data, bootstrap=bootstrap, name=f"jupyter-dlaas-package-{digest}")


def package_config_map(package: Package, namespace: str) -> Json:
    """Return the immutable ConfigMap of the package. Raises ValueError if it is too large for one."""
    size = len(package.data) + len(package.bootstrap.encode())
    if size > CONFIG_MAP_BYTES:
        raise ValueError(f"the package has {size} bytes, but a ConfigMap holds at most {CONFIG_MAP_BYTES}")
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": package.name, "namespace": namespace, "labels": dict(MANAGED_BY)},
        "immutable": True,
        "data": {"bootstrap.py": package.bootstrap},
        "binaryData": {"jupyter_dlaas.zip.gz": base64.b64encode(package.data).decode()},
    }
