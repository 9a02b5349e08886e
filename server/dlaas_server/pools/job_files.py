"""Files of a job in its pool, from the submitted payload."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from dlaas_server.core.model.job import Job
from dlaas_server.pools.base import Pool
from jupyter_dlaas.wire.codec import Json, decode
from jupyter_dlaas.wire.protocol import File

__all__ = ["lay_out"]


async def lay_out(pool: Pool, job: Job, payload: Mapping[str, Json], blobs: Callable[[str], str]) -> None:
    """Store the program, its environment and its files; `blobs` returns the path of uploaded bytes. Safe to repeat."""
    environment = decode(dict[str, str], payload["environment"])
    await pool.create(job.id, job.owner, job.spec, environment)
    await pool.put(job.id, "train.py", str(payload["source"]).encode())
    for file in decode(tuple[File, ...], payload["files"]):
        if file.sha256 is not None:
            await pool.put_file(job.id, file.path, blobs(file.sha256))
        else:
            await pool.put(job.id, file.path, (file.text or "").encode())
