"""Nothing piles up: descriptors, threads, processes; and an idle engine ends."""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from jupyter_dlaas.client.discovery import SocketEndpoint
from jupyter_dlaas.client.http import Client
from tests.selection import each_nth
from tests.whole.site import Site, is_gone, until

Build = Callable[..., Site]
THREADS_MOST = 3 + min(32, (os.cpu_count() or 1) + 4)
"""The loop, the store, who starts guardians, and asyncio's own pool at its bound."""


def descriptors(pid: int) -> list[str]:
    """Return the open files, without the numbers that make each unique."""
    found = []
    for one in Path(f"/proc/{pid}/fd").iterdir():
        try:
            found.append(re.sub(r":\[\d+\]$", "", one.readlink().name))
        except FileNotFoundError:
            continue  # closed since the listing
    return sorted(found)


def holds_guardians(pid: int) -> bool:
    return "anon_inode:[pidfd]" in descriptors(pid)


def threads(pid: int) -> int:
    return len(list(Path(f"/proc/{pid}/task").iterdir()))


def run_jobs(here: Site, count: int) -> None:
    jobs = [here.submit("print('hello')\n", name="small") for _ in range(count)]
    for job in jobs:
        job.wait(120)


@pytest.mark.parametrize(
    ("count", "warm"), each_nth([(60, "1"), (200, "1"), (30, "0")], 3), ids=["from a zygote", "many", "started plainly"]
)
def test_after_many_jobs_the_engine_holds_no_more_than_before(
    site: Build, monkeypatch: pytest.MonkeyPatch, count: int, warm: str
) -> None:
    here = site(slots=4)
    monkeypatch.setenv("JUPYTER_DLAAS_WARM", warm)
    run_jobs(here, 20)  # pools of threads, caches and the zygote are there from now on
    engine = here.engine_pid()
    until(lambda: not here.orphans(), "no process of a job is left", 20)
    until(lambda: not holds_guardians(engine), "no guardian is watched any more", 20)
    before = Counter(descriptors(engine))

    run_jobs(here, count)

    until(lambda: not here.orphans(), "no process of a job is left", 20)
    until(lambda: not holds_guardians(engine), "no guardian is watched any more", 20)
    until(lambda: not Counter(descriptors(engine)) - before, "no more is open than before", 20)
    assert threads(engine) <= THREADS_MOST
    assert here.client.pool().devices_free == 4


def test_idle_engine_exits_and_is_restarted_on_demand(site: Build) -> None:
    here = site()
    client = Client(at=[SocketEndpoint(here.pool, engine_idle_s=1.0)])
    job = here.submit("print('hello')\n", name="small", client=client)
    job.wait(30)
    engine = here.engine_pid()

    until(lambda: is_gone(engine), "the idle engine ended", 20)

    assert here.job(job.id).status == "COMPLETED"
    assert here.engine_pid() != engine


def test_an_engine_with_an_unfinished_job_does_not_end(site: Build) -> None:
    here = site()
    client = Client(at=[SocketEndpoint(here.pool, engine_idle_s=0.5)])
    job = here.submit("import time\ntime.sleep(3)\n", name="slow", client=client)
    engine = here.engine_pid()
    job.wait(30)

    assert not is_gone(engine)
    until(lambda: is_gone(engine), "then it ended", 20)
