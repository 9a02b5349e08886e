"""Write a pool directory with this code and keep it for later releases: `python -m tests.compatibility.make 0.1.0`.

Run it once for each release, from the release's commit, and commit the archive that it writes to `pools/`.
"""

from __future__ import annotations

import getpass
import hashlib
import importlib
import io
import json
import os
import shutil
import sqlite3
import sys
import tarfile
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import jupyter_dlaas
from jupyter_dlaas.api.jobs import Job
from jupyter_dlaas.learner.checkpoint import checkpoint_files
from jupyter_dlaas.transfer import results
from jupyter_dlaas.transfer.pushed_objects import write_pushed
from jupyter_dlaas.wire.protocol import File
from tests.compatibility import programs
from tests.whole.site import Site, until

__all__ = ["KEPT", "NODE", "OWNER", "PYTHON", "ROOT", "keep", "make", "text_columns"]

KEPT: Final = Path(__file__).parent / "pools"
ROOT: Final = "@ROOT@"
"""Stands for the folder that holds `pool/` and `work/` in each text of an archive."""
PYTHON: Final = "@PYTHON@"
DEADLINE_S: Final = 300.0
NODE: Final = "n1"
OWNER: Final = "@OWNER@"
_LEFT_OUT: Final = (
    *("zygotes", "runtime", "package", "engine", "engine.json", "lock", ".boot", "clock.json"),
    *("*.sock", "*.lock", "*.reserve", "*.wake", "*.log", "*.idx"),
)
"""What belongs to processes and to this machine, and logs."""


def make(folder: Path) -> dict[str, Any]:
    """Fill a pool with jobs in all states; returns what their programs' results are."""
    site = Site(folder / "site")
    config = site.pool / "config.toml"
    config.write_text(config.read_text() + f'[[nodes]]\nname = "{NODE}"\ncpus = 4\nmemory_gib = 16\nslots = 2\n')
    expected: dict[str, Any] = {}
    try:
        for name, source, outputs in _programs():
            (site.work / "go").touch()
            done = _submit(site, source, name, outputs).wait(DEADLINE_S)
            data = (site.pool / "jobs" / done.id / "results" / "result.bin").read_bytes()
            expected[name] = results.load(data)
            (site.work / "go").unlink()
            _halt(_submit(site, source, name, outputs))
        failed = _submit(site, programs.FAILING, "failing", "").wait(DEADLINE_S, raise_on_failure=False)
        assert failed.status == "FAILED", failed.last_view
        cancelled = _submit(site, programs.PLAIN, "cancelled", "result")
        until(lambda: _step(cancelled) >= 5, "it trains", DEADLINE_S)
        cancelled.cancel().wait(DEADLINE_S, raise_on_failure=False)
        assert cancelled.status == "CANCELLED", cancelled.last_view
        site.client.cordon(NODE)
        sent = _send(site)
        assert sent.status == "QUEUED", sent.last_view
        expected["sent"] = [2, 4, 6]
    finally:
        site.close()
    _write_files(folder / "files")
    return expected


def _programs() -> Iterator[tuple[str, str, str]]:
    yield "plain", programs.PLAIN, "result,scaled"
    yield "torch", programs.TORCH, "result,model,optimizer,by"
    yield "exact", programs.EXACT, "result,model,optimizer"
    yield "lightning", programs.LIGHTNING, "result"
    yield "keras", programs.KERAS, "result,optimizer"


def _submit(site: Site, source: str, name: str, outputs: str, **options: Any) -> Job:
    environment = {
        "PATH": "/usr/bin:/bin",
        "LANG": "C.UTF-8",
        "HOME": str(site.work),
        "OMP_NUM_THREADS": "1",
        "KERAS_BACKEND": "torch",
        "CUDA_VISIBLE_DEVICES": "",
    }
    return site.submit(source, name=name, outputs=outputs, environment=environment, **options)


def _step(job: Job) -> int:
    progress = job.view.progress
    assert not job.last_view.state.is_final, job.last_view
    return progress.step or 0 if progress else 0


def _halt(job: Job) -> None:
    until(lambda: _step(job) >= 8, f"{job.id} trains", DEADLINE_S)
    job.halt()
    until(lambda: job.status == "HALTED", f"{job.id} halts", DEADLINE_S)


def _send(site: Site) -> Job:
    """Submit a job that brings objects by value, as a notebook does."""
    space: dict[str, Any] = {"__name__": "__main__"}
    exec("double = lambda number: 2 * number", space)
    path = site.work / "pushed.bin"
    write_pushed(path, {"numbers": [1, 2, 3], "double": space["double"]})
    sha256 = hashlib.sha256(path.read_bytes()).hexdigest()
    files = (File(path="inputs/pushed.bin", sha256=sha256),)
    return _submit(site, programs.SENT, "sent", "result", files=files, uploads={sha256: path})


def _write_files(folder: Path) -> None:
    """Write further kinds of stored files, as a process that has loaded torch does."""
    torch = importlib.import_module("torch")
    folder.mkdir()
    space: dict[str, Any] = {"__name__": "__main__"}
    exec("double = lambda number: 2 * number", space)
    model = torch.nn.Linear(2, 1)
    with torch.no_grad():
        model.weight.fill_(3.0)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.25)
    write_pushed(folder / "pushed.bin", {"model": model, "optimizer": optimizer, "double": space["double"]})
    checkpoint_files.take_end(folder, 0, {"end": {"epochs": 2}, "streams": {}})()


# -- keeping


def keep(folder: Path, expected: dict[str, Any], path: Path) -> None:
    """Pack the pool of `make`, without what belongs to processes or to this machine."""
    pool = folder / "site" / "data" / "dlaas" / "local"
    bare = folder / "bare" / "pool"
    shutil.copytree(pool, bare, symlinks=True, ignore=shutil.ignore_patterns(*_LEFT_OUT))
    _rewrite_store(bare / "store.sqlite3", pool)
    for file in sorted(bare.rglob("*")):
        if file.is_file() and file.suffix != ".sqlite3" and (data := _generic(file.read_bytes(), pool)) is not None:
            file.write_bytes(data)
    with tarfile.open(path, "w:xz", preset=9) as archive:
        about = {"version": jupyter_dlaas.__version__, "python": sys.implementation.cache_tag, "results": expected}
        _add(archive, "expected.json", json.dumps(about).encode())
        for top in (bare.parent, folder / "files"):
            for file in sorted(path for path in top.rglob("*") if path.is_file()):
                name = file.relative_to(bare.parent if top == bare.parent else folder)
                _add(archive, str(name), file.read_bytes())


def _add(archive: tarfile.TarFile, name: str, data: bytes) -> None:
    entry = tarfile.TarInfo(name)
    entry.size, entry.mode = len(data), 0o600
    archive.addfile(entry, io.BytesIO(data))


def _pairs(pool: Path) -> list[tuple[str, str]]:
    work = pool.parents[2] / "work"
    return [
        *((str(pool), f"{ROOT}/pool"), (str(work), f"{ROOT}/work"), (sys.executable, PYTHON)),
        *((f'"{getpass.getuser()}"', f'"{OWNER}"'), (f'"{os.uname().nodename}"', '"host"')),
    ]


def _generic(data: bytes, pool: Path) -> bytes | None:
    """Return the text of a file with names in place of paths; None for other files."""
    try:
        text = data.decode()
    except UnicodeDecodeError:
        return None
    for found, name in _pairs(pool):
        text = text.replace(found, name)
    return text.encode()


def _rewrite_store(path: Path, pool: Path) -> None:
    db = sqlite3.connect(path, isolation_level=None)
    db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
    for table, column in text_columns(db):
        for found, name in _pairs(pool):
            db.execute(f'UPDATE "{table}" SET "{column}" = replace("{column}", ?, ?)', (found, name))
        if column == "owner":
            db.execute(f'UPDATE "{table}" SET owner = ?', (OWNER,))
    db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
    db.execute("VACUUM")
    db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
    db.close()
    for part in ("-wal", "-shm"):
        path.with_name(path.name + part).unlink(missing_ok=True)


def text_columns(db: sqlite3.Connection) -> list[tuple[str, str]]:
    """Return all columns of text, each with its table."""
    tables = [name for (name,) in db.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
    return [
        (table, column)
        for table in tables
        for _, column, kind, *_ in db.execute(f'PRAGMA table_info("{table}")')
        if kind == "TEXT"
    ]


def main(name: str) -> None:
    """Make a pool and keep it under a name that is not taken yet."""
    path = KEPT / f"{name}.tar.xz"
    if path.exists():
        raise SystemExit(f"{path} exists: it is what {name} wrote. Give another name.")
    with tempfile.TemporaryDirectory(prefix="dlaas-make-") as made:
        keep(Path(made), make(Path(made)), path)
    print(f"{path}: {path.stat().st_size:,} bytes")


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else jupyter_dlaas.__version__)
