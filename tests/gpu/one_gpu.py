"""One GPU as several devices of a pool, so that jobs and learners can share it."""

from __future__ import annotations

import subprocess

from tests.notebook_e2e.rooms import Pool


def divide_gpu(pool: Pool, parts: int) -> None:
    """Configure the pool with several devices that are all the first GPU: CUDA takes the beginning of a UUID."""
    command = ["nvidia-smi", "--query-gpu=uuid", "--format=csv,noheader"]
    uuid = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()[0]
    pool.directory.mkdir()
    devices = "".join(
        f'[[nodes.devices]]\nid = "{uuid[: len(uuid) - i]}"\nkind = "a part of a GPU"\n' for i in range(parts)
    )
    (pool.directory / "config.toml").write_text(f'[[nodes]]\nname = "one"\n{devices}')
