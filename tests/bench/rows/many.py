"""Many trivial jobs: how many a second are taken in, and how many go through."""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Callable

from jupyter_dlaas.api import option_parsing
from jupyter_dlaas.client import discovery
from jupyter_dlaas.client.http import new_key
from jupyter_dlaas.wire.codec import encode
from jupyter_dlaas.wire.protocol import JobSpec, Submit
from tests.bench.measuring import Bench, Unmeasurable
from tests.bench.table import Line, figure
from tests.whole.site import until

CLIENTS = 16
JOBS = 80
ACCEPT_S = 2.0
UNFINISHED = "QUEUED,DEPLOYING,DOWNLOADING,PROCESSING,STORING"


def measure(bench: Bench) -> list[Line]:
    """End to end first: what is accepted for the second line only waits, and is cancelled."""
    rates = [_end_to_end(bench) for _ in range(max(1, min(3, bench.runs // 3)))]
    lines = [
        Line(
            what="trivial isolated jobs, durable, end to end",
            bar="≥ 40/s on 2 cores",
            measured=figure(rates, "/s"),
            beside="(Slurm 0.8–3.7/s)",
        )
    ]
    accepted = _accepts(bench)
    lines.append(
        Line(
            what=f"accepts, {CLIENTS} waiting clients",
            bar="≥ 1,000/s",
            measured=figure([accepted], "/s"),
            beside="(Slurm 126/s)",
        )
    )
    return lines


def _request() -> bytes:
    """Encode a submit with a placeholder for its key."""
    spec = JobSpec(name="trivial", directory="/")
    body = Submit(key="K" * 32, spec=spec, source="pass\n", environment=option_parsing.without_jupyter(os.environ))
    raw = json.dumps(encode(body)).encode()
    head = (
        f"POST /dlaas/jobs HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: {len(raw)}\r\n\r\n"
    )
    return head.encode() + raw


def _submit(bench: Bench, goes_on: Callable[[int], bool]) -> int:
    """CLIENTS connections that submit, wait for the answer and submit again; how many were accepted."""
    request, lock = _request(), threading.Lock()
    asked, accepted, refused = 0, 0, b""

    def client() -> None:
        nonlocal asked, accepted, refused
        with discovery.connect_unix(bench.site.pool / discovery.SOCKET, 60.0) as one:
            while True:
                with lock:
                    if not goes_on(asked) or refused:
                        return
                    asked += 1
                one.sendall(request.replace(b"K" * 32, new_key().encode()))
                answer = one.recv(65_536)
                with lock:
                    if answer.startswith(b"HTTP/1.1 201"):
                        accepted += 1
                    else:
                        refused = answer[:200]

    threads = [threading.Thread(target=client) for _ in range(CLIENTS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if refused:
        raise Unmeasurable(f"a submit was refused: {refused!r}")
    return accepted


def _end_to_end(bench: Bench) -> float:
    client = bench.site.client
    client.pool()
    begin = time.monotonic()
    _submit(bench, lambda asked: asked < JOBS)
    until(lambda: not client.jobs(state=UNFINISHED, limit=1), f"{JOBS} jobs are through", 120.0)
    took_s = time.monotonic() - begin
    if len(client.jobs(state="COMPLETED", limit=JOBS)) < JOBS:
        raise Unmeasurable("some of the jobs did not complete")
    return JOBS / took_s


def _accepts(bench: Bench) -> float:
    """While one job holds the whole pool, so that accepting is all there is to do."""
    client = bench.site.client
    holder = bench.site.submit("import signal\nsignal.pause()\n", learners=bench.site.slots)
    until(lambda: client.job(holder.id).state == "PROCESSING", "the job that holds the pool runs")
    begin = time.monotonic()
    count = _submit(bench, lambda _: time.monotonic() - begin < ACCEPT_S)
    took_s = time.monotonic() - begin
    for view in client.jobs(state=UNFINISHED, limit=10_000):
        client.act(view.id, "cancel")
    until(lambda: not client.jobs(state=UNFINISHED, limit=1), "all are cancelled", 60.0)
    return count / took_s
