"""Scripts in processes of their own that need not import torch first: forks of a server that has imported it once."""

from __future__ import annotations

import multiprocessing
import os
import runpy
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

__all__ = ["run_script"]

_SERVER: Final = multiprocessing.get_context("forkserver")
_SERVER.set_forkserver_preload(["torch", "torch.distributed"])


def run_script(script: Path, arguments: Sequence[object] = (), *, timeout_s: float = 120.0) -> tuple[int, str]:
    """Run a file as `python FILE ARGUMENTS` would. Returns its exit code and what it wrote to its standard error."""
    errors = script.with_suffix(".stderr")
    process = _SERVER.Process(target=_run, args=(str(script), [str(one) for one in arguments], str(errors)))
    process.start()
    try:
        process.join(timeout_s)
        assert process.exitcode is not None, f"{script} still runs after {timeout_s:g} s\n{errors.read_text()[-3000:]}"
        return process.exitcode, errors.read_text()
    finally:
        process.kill()
        process.join()
        process.close()


def _run(script: str, arguments: list[str], errors: str) -> None:
    file = os.open(errors, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    os.dup2(file, 2)
    sys.argv = [script, *arguments]
    runpy.run_path(script, run_name="__main__")
