"""Checkpoint files: written atomically, verified when read, the last two kept.

A checkpoint is written into a temporary directory, synced to disk and renamed in one operation. Its manifest holds the
SHA-256 of the state. A checkpoint that fails verification is moved aside, and the one before it is used. If none can be
verified, loading fails.
"""

from __future__ import annotations

import hashlib
import io
import itertools
import os
import pickle
import shutil
import sys
import threading
import time
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

from jupyter_dlaas import stored as stored_files
from jupyter_dlaas.jobdir.atomic_files import sync_folder, write_whole
from jupyter_dlaas.jobdir.checkpoint_manifest import (
    FOLDER,
    FORMAT,
    KEPT,
    MANIFEST,
    STATE,
    Manifest,
    Stored,
    manifests,
    stored,
)
from jupyter_dlaas.jobdir.checkpoint_manifest import to_bytes as manifest_bytes
from jupyter_dlaas.jobdir.journal_file import read_facts
from jupyter_dlaas.learner.data.position import Position
from jupyter_dlaas.transfer.tensor_devices import resizable
from jupyter_dlaas.wire.journal import CheckpointSaved
from jupyter_dlaas.wire.learner_messages import CheckpointWritten
from jupyter_dlaas.wire.step_range import Range

__all__ = [
    "KEPT",
    "CheckpointError",
    "CheckpointTooNew",
    "CheckpointsDamaged",
    "from_bytes",
    "is_busy",
    "load",
    "load_end",
    "save_by_torch",
    "settle",
    "take",
    "take_end",
    "to_bytes",
    "write_later",
]

_acts: Final[list[threading.Thread]] = []
"""The last background write; each waits for the one before it."""
_numbers: Final = itertools.count()
"""Numbers for temporary names: one write may be in progress when the next snapshot of the same step is taken."""
_SUM: Final = hashlib.sha256().digest_size
_END_FORMAT: Final = 2
"""The format of `take_end`'s files. Files of format 1 have no header, only their SHA-256."""


def take(
    job_dir: Path,
    position: Position,
    content: dict[str, Any],
    *,
    generation: int,
    learners: int,
    trained: Iterable[Range],
    asked: int = 0,
    left_out: Sequence[str] = (),
    add: Callable[[Path], dict[str, Any]] | None = None,
) -> Callable[[], Manifest]:
    """Take a snapshot of the state before `position`; return a function that writes it, in any thread.

    Both raise OSError if the disk cannot store it. `add` returns the state of a framework's own loop, and may put files
    into the given folder, which are synced to disk with the rest.
    """
    began_s, trained = time.monotonic(), tuple(trained)
    folder = job_dir / FOLDER
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    part = folder / f".part-{os.getpid()}.{next(_numbers)}-{position.step}"
    part.mkdir(mode=0o700)
    try:
        if add is not None:
            content = content | {"call": add(part)}
        data = to_bytes(content | {"position": asdict(position)})
    except BaseException:
        shutil.rmtree(part, ignore_errors=True)
        raise

    def write() -> Manifest:
        try:
            files, size = _seal(part)
            write_whole(part / STATE, data, sync=True)
            manifest = Manifest(
                step=position.step,
                epoch=position.epoch,
                generation=generation,
                at_s=time.time(),
                seconds=round(time.monotonic() - began_s, 6),
                bytes=len(data) + size,
                sha256=hashlib.sha256(data).hexdigest(),
                learners=learners,
                trained=trained,
                asked=asked,
                left_out=tuple(left_out),
                files=files,
                format=FORMAT,
            )
            write_whole(part / MANIFEST, manifest_bytes(manifest), sync=True)
            part.rename(_free(folder, position.step))
        except BaseException:
            shutil.rmtree(part, ignore_errors=True)
            raise
        sync_folder(folder)
        for old, _ in manifests(job_dir)[:-KEPT]:
            shutil.rmtree(old, ignore_errors=True)
        return manifest

    return write


def write_later(
    write: Callable[[], Manifest],
    step: int,
    send: Callable[[CheckpointWritten], None],
    first: Callable[[], object] | None = None,
) -> None:
    """Write a snapshot in the background. An OSError is printed, and training continues without the checkpoint.

    `first`: writes what the checkpoint depends on, before it. If that raises OSError, the snapshot is not written
    either.
    """

    def act() -> None:
        try:
            if first is not None:
                first()
            write()
        except OSError as error:
            print(f"[cannot write the checkpoint at step {step}: {error}]", file=sys.stderr, flush=True)
        else:
            send(CheckpointWritten(step=step))

    _later(act)


def _later(act: Callable[[], object]) -> None:
    """Run in a background thread after everything submitted before."""
    before = _acts[-1] if _acts else None

    def run() -> None:
        if before is not None:
            before.join()
        act()

    # A daemon thread: a process that ends without `settle` does not wait for it, and a restart uses the checkpoint
    # before.
    _acts[:] = [threading.Thread(target=run, name="dlaas-checkpoint", daemon=True)]
    _acts[0].start()


def is_busy() -> bool:
    """Return whether a background write is in progress."""
    return bool(_acts) and _acts[0].is_alive()


def settle() -> None:
    """Wait until all background writes are complete."""
    if _acts:
        _acts[0].join()


def _free(folder: Path, step: int) -> Path:
    """Return an unused name; a second checkpoint of a step needs one, as directories cannot be replaced atomically."""
    path, number = folder / f"step-{step:010}", 1
    while path.exists():
        path, number = folder / f"step-{step:010}.{number}", number + 1
    return path


class CheckpointError(Exception):
    """The error for existing checkpoints that cannot be loaded, so that training does not restart at step 0."""


class CheckpointsDamaged(CheckpointError):
    """The error for a job that has written checkpoints, none of which can be read."""


class CheckpointTooNew(CheckpointError):
    """The error for a last checkpoint that a newer version of this package wrote."""


def load(job_dir: Path, *, may_tidy: bool, without: Collection[Path] = ()) -> tuple[Manifest, dict[str, Any]] | None:
    """Return the last intact checkpoint and its content; None if none was written.

    `may_tidy`: move damaged checkpoints aside, so that they no longer count as the last one. `without`: folders of
    checkpoints to skip. Raises CheckpointsDamaged, unless some are skipped, and CheckpointTooNew.
    """
    damaged: list[Stored] = []
    for one in reversed(stored(job_dir)):
        if one.folder in without:
            continue
        if one.format > FORMAT:
            raise CheckpointTooNew(stored_files.too_new(f"the checkpoint {one.folder}", one.format, FORMAT))
        content = None if one.manifest is None else _content(one.folder, one.manifest)
        if one.manifest is None or content is None:
            damaged.append(one)
            continue
        for other in damaged:
            print(f"[the checkpoint of step {other.step} is damaged; using the previous one]", flush=True)
            if may_tidy:
                other.folder.rename(other.folder.with_name(f"damaged-{other.folder.name}-{time.time_ns()}"))
        return one.manifest, content | {"folder": one.folder}
    if without:
        return None
    if damaged:
        steps = ", ".join(str(one.step) for one in reversed(damaged))
        raise CheckpointsDamaged(f"all checkpoints of this job are damaged (step {steps})")
    facts, _ = read_facts(job_dir / "journal.jsonl")
    last = max((fact.step or 0 for fact in facts if isinstance(fact, CheckpointSaved)), default=None)
    if last is not None:
        raise CheckpointsDamaged(f"the checkpoints of this job are missing (the last one was of step {last})")
    return None


def _content(folder: Path, manifest: Manifest) -> dict[str, Any] | None:
    """Return the content of a checkpoint; None if it is damaged."""
    try:
        data = (folder / STATE).read_bytes()
    except OSError:
        return None
    if hashlib.sha256(data).hexdigest() != manifest.sha256:
        return None
    content: dict[str, Any] = from_bytes(data)
    if isinstance(content["position"], dict):  # format 1 holds the object
        content["position"] = Position(**content["position"])
    return content if all(_sum_of(folder / name) == known for name, known in manifest.files.items()) else None


def _seal(folder: Path) -> tuple[dict[str, str], int]:
    """Sync all files below a folder to disk; return their SHA-256 checksums by name, and their total size in bytes."""
    sums, size = {}, 0
    for path in sorted(folder.rglob("*")):
        if path.is_dir():
            sync_folder(path)
            continue
        with path.open("rb") as file:
            os.fsync(file.fileno())
            sums[str(path.relative_to(folder))] = hashlib.file_digest(file, "sha256").hexdigest()
            size += file.tell()
    return sums, size


def _sum_of(path: Path) -> str | None:
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError:
        return None


def take_end(job_dir: Path, call: int, content: dict[str, Any]) -> Callable[[], None]:
    """Take a snapshot of how the `call`-th training of a framework ended; return a function that stores it.

    The file is kept as long as the job. The returned function raises OSError.
    """
    data = to_bytes(content)

    def write() -> None:
        (job_dir / FOLDER).mkdir(mode=0o700, parents=True, exist_ok=True)
        header = stored_files.to_header("end of a training", _END_FORMAT, sha256=hashlib.sha256(data).hexdigest())
        write_whole(_end_path(job_dir, call), header + data, sync=True)

    return write


def load_end(job_dir: Path, call: int) -> dict[str, Any] | None:
    """Return what `take_end` stored; None if it is missing or damaged, so that this training has to run again.

    Raises CheckpointTooNew.
    """
    path = _end_path(job_dir, call)
    try:
        data = path.read_bytes()
        header = stored_files.read_header(data, _END_FORMAT, what=str(path))
    except OSError:
        return None
    except stored_files.FormatTooNew as error:
        raise CheckpointTooNew(str(error)) from error
    except ValueError:
        body, is_whole = b"", False
    else:
        body = data[header.content_at :] if header else data[_SUM:]
        known = bytes.fromhex(header.fields["sha256"]) if header else data[:_SUM]
        is_whole = hashlib.sha256(body).digest() == known
    if not is_whole:
        print(
            f"[the stored result of training {call + 1} of this program is damaged; the training is repeated]",
            flush=True,
        )
        return None
    content: dict[str, Any] = from_bytes(body)
    return content


def _end_path(job_dir: Path, call: int) -> Path:
    return job_dir / FOLDER / f"end-{call:06}.bin"


def to_bytes(content: dict[str, Any]) -> bytes:
    if "torch" not in sys.modules:
        return pickle.dumps(content, protocol=5)
    file = io.BytesIO()
    save_by_torch(content, file)
    return file.getvalue()


def save_by_torch(content: dict[str, Any], file: io.BytesIO | Path) -> None:
    """Call `torch.save` with pickle protocol 5 and without CRC, in less than half the time.

    The CRC is redundant, since checkpoints have a SHA-256. With torch's default protocol 2, NumPy arrays would be
    written as text.
    """
    torch: Any = sys.modules["torch"]
    options = torch.serialization
    had_crc = options.get_crc32_options() if hasattr(options, "get_crc32_options") else None
    try:
        if had_crc:
            options.set_crc32_options(False)
        torch.save(content, file, pickle_protocol=5)
    finally:
        if had_crc:
            options.set_crc32_options(True)


def from_bytes(data: bytes) -> Any:
    if data.startswith(b"PK"):
        import torch

        pickling = stored_files.like_pickle()
        file = io.BytesIO(data)
        return torch.load(file, map_location=lambda one, _: resizable(one), weights_only=False, pickle_module=pickling)
    return stored_files.Unpickler(io.BytesIO(data)).load()
