"""Run of one documentation page as a reader would: cells in a kernel, commands in a terminal, on a real pool."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from jupyter_dlaas.wire.protocol import State
from tests.docs.blocks import Block, is_output, runnable
from tests.notebook_e2e.rooms import Kernel, Pool, environment, kernel_in

__all__ = ["run_page"]

CONFIG = '[pool]\ndevices = "cpus"\ncpu_slots = 2\n'
CELL_S = 240.0


def run_page(path: Path, folder: Path) -> None:
    """Run all blocks of a page in order. Raise AssertionError, which names the block, at the first that fails."""
    pool = Pool(folder)
    pool.directory.mkdir()
    (pool.directory / "config.toml").write_text(CONFIG)
    try:
        with kernel_in(folder, JUPYTER_DLAAS_WARM="1", TF_CPP_MIN_LOG_LEVEL="3") as kernel:
            for block in runnable(path):
                check(block, run(block, kernel, folder))
        failed = [view for view in pool.client.jobs(limit=100) if view.state is State.FAILED]
        expected = "failure" in path.stem or path.stem == "troubleshooting"
        assert expected or not failed, [(view.id, view.failure) for view in failed]
    finally:
        pool.close()


def run(block: Block, kernel: Kernel, folder: Path) -> str:
    """Run one block, and return what it printed."""
    work = folder / "work"
    if block.file is not None:
        (work / block.file).parent.mkdir(parents=True, exist_ok=True)
        (work / block.file).write_text(block.text, encoding="utf-8")
        return ""
    if block.language == "shell":
        return terminal(block, folder, work)
    done = kernel.run(block.text, timeout_s=CELL_S, fails=True)
    # An error that a page shows is what it is about.
    assert done.status == "ok" or block.output is not None, f"{block.place}\n{chr(10).join(done.traceback)}"
    result = "" if done.result is None else done.result["data"]["text/plain"]
    shown = "".join(one["data"].get("text/plain", "") for one in done.displays)
    return done.stdout + shown + result + re.sub(r"\x1b\[[\d;]*m", "", "\n".join(done.traceback))


def terminal(block: Block, folder: Path, work: Path) -> str:
    """Run the commands of a block in one shell."""
    variables = environment(folder) | {"JUPYTER_DLAAS_WARM": "1", "NO_COLOR": "1"}
    variables["PATH"] = f"{Path(sys.executable).parent}:{variables['PATH']}"
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", block.text],
        cwd=work,
        env=variables,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=CELL_S,
    )
    assert done.returncode == 0 or block.output is not None, f"{block.place}\n{done.stdout}{done.stderr}"
    return done.stdout + ("" if done.returncode == 0 else done.stderr)


def check(block: Block, printed: str) -> None:
    """Compare what a block printed with what its page shows."""
    assert block.output is None or is_output(block.output, printed), (
        f"{block.place} shows another output\n--- shown\n{block.output}\n--- printed\n{printed}"
    )
