"""A secret of a job reaches its program, and nothing else: no log, no view, no file once the job is deleted."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from jupyter_dlaas.wire.codec import encode
from tests.whole.site import Site, until

CANARY = "canary-0123456789"
PROGRAM = """
import os, subprocess, sys
token = os.environ["MY_CODE"]
print("has", len(token), token, flush=True)
subprocess.run(["sh", "-c", "echo child $MY_CODE; env | grep MY_CODE >&2"])
open("mine.txt", "w").write(token)
raise ValueError(f"bad token {token}")
"""


def holders(pool: Path) -> Iterator[str]:
    """Files of a pool, and environments of its processes, in which the secret stands."""
    for path in sorted(pool.rglob("*")):
        if path.is_file() and CANARY.encode() in path.read_bytes():
            yield str(path.relative_to(pool))
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            try:
                command, environment = (entry / "cmdline").read_bytes(), (entry / "environ").read_bytes()
            except OSError:
                continue
            if str(pool).encode() in command and CANARY.encode() in environment:
                yield command.replace(b"\0", b" ").decode()


def test_secret_is_masked_everywhere_and_gone_with_its_job(
    site: Callable[..., Site], monkeypatch: pytest.MonkeyPatch
) -> None:
    here = site()
    here.client.pool()  # starts the engine
    monkeypatch.setenv("MY_CODE", CANARY)
    job = here.submit(PROGRAM, name="hides", secret="MY_CODE", retries=0, args=[CANARY])
    until(lambda: job.view.state.is_final, "it failed")
    until(lambda: not here.orphans(), "its processes ended")

    client, log = here.client, job.logs()
    assert f"has {len(CANARY)} {'*' * len(CANARY)}" in log
    assert f"child {'*' * len(CANARY)}" in log
    shown = [log, str(encode(job.view)), client.report(job.id), *client.why(job.id)]
    shown += [str(client.request("GET", f"jobs/{job.id}/{path}")) for path in ("events", "stream?wait_s=0")]
    for text in shown:
        assert CANARY not in text
    assert job.view.failure is not None
    assert job.view.failure.what == f"ValueError: bad token {'*' * len(CANARY)}"
    kept = {path for path in holders(here.pool) if not path.startswith("store.")}
    assert kept == {f"jobs/{job.id}/environment.json", f"jobs/{job.id}/spec.json"}, "what a retry needs"

    client.delete(job.id)

    assert list(holders(here.pool)) == []
