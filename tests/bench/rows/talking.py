"""From `print()` in a learner to a page's WebSocket, and from a change of state to it."""

from __future__ import annotations

import contextlib
import json
import re
import time
from collections.abc import Iterator
from typing import Any

import websocket

from jupyter_dlaas.api.jobs import Job
from jupyter_dlaas.client import discovery
from tests.bench.measuring import Bench, Unmeasurable, cpu_s, milliseconds
from tests.bench.table import Figure, Line, figure
from tests.whole.site import Site

IDLE = """import time
for i in range(40):
    print("AT", time.monotonic_ns(), flush=True)
    time.sleep(0.05)
"""
RATE = 10_000
SECONDS = 4
# As a training loop with a chatty library would: a few lines every 2 ms, each with its own time.
FLOOD = f"""import os, time
begin, written = time.monotonic(), 0
while (passed := time.monotonic() - begin) < {SECONDS}:
    due = int(passed * {RATE}) - written
    line = b"AT %d epoch 3 step %d loss 0.12345 lr 1e-3\\n"
    os.write(1, b"".join(line % (time.monotonic_ns(), written + i) for i in range(due)))
    written += due
    time.sleep(0.002)
print("WROTE", written, flush=True)
"""
PATIENCE_S = 30.0


def measure(bench: Bench) -> list[Line]:
    """Follow a job as a page does: one WebSocket on the pool's socket that acknowledges what it receives."""
    bench.site.client.pool()
    idle, _, _ = _follow(bench, IDLE)
    flood, engine, guardian = _follow(bench, FLOOD)
    changes = state_changes(bench, max(5, bench.runs))
    return [
        Line(
            what="print() → WebSocket client, idle",
            bar="≤ 30 ms",
            measured=_spread(idle),
            beside="(jupyter-scheduler: at the end)",
        ),
        Line(
            what=f"print() → WebSocket client, {RATE:,} lines/s",
            bar="≤ 100 ms",
            measured=_spread(flood),
            beside=f"p99 {percentile(flood, 0.99):.0f} ms",
        ),
        Line(
            what="… of a core, the engine",
            bar="≤ 5 %",
            measured=figure([engine * 100], "%"),
            beside=f"the job's guardian {guardian * 100:.1f} %",
        ),
        Line(
            what="state change → WebSocket client, p95",
            bar="≤ 0.2 s",
            measured=figure([percentile(changes, 0.95)], "ms"),
            beside=f"median {_spread(changes)}",
        ),
    ]


@contextlib.contextmanager
def page(site: Site) -> Iterator[websocket.WebSocket]:
    """Open a WebSocket like a page's."""
    one = discovery.connect_unix(site.pool / discovery.SOCKET, PATIENCE_S)
    stream = websocket.create_connection("ws://localhost/dlaas/stream", socket=one, timeout=PATIENCE_S)
    with contextlib.closing(stream):
        yield stream


def messages(stream: websocket.WebSocket, job: Job) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield the messages about a job with their arrival times, until the job has ended and its log was read."""
    stream.send(json.dumps({"type": "subscribe", "job": job.id, "cursor": {}}))
    give_up = time.monotonic() + PATIENCE_S
    while time.monotonic() < give_up:
        raw = stream.recv()
        at = time.monotonic_ns()
        message = json.loads(raw)
        if message["type"] in ("log", "metrics"):
            stream.send(json.dumps({"type": "ack", "bytes": message["to"] - message["from"]}))
        yield at, message
    raise Unmeasurable(f"{job.id} did not end in {PATIENCE_S:.0f} s")


def _follow(bench: Bench, source: str) -> tuple[list[float], float, float]:
    """Measure the delay of each line, and the shares of a core that engine and guardian used meanwhile."""
    late: list[float] = []
    engine = bench.site.engine_pid()
    with page(bench.site) as stream:
        job = bench.site.submit(source)
        before, guardian_s, has_ended, size, rest = cpu_s(engine), 0.0, False, 0, ""
        begin = time.monotonic()
        for at, message in messages(stream, job):
            if message["type"] == "log":
                *whole, rest = (rest + message["text"]).split("\n")  # a frame may end within a line
                late += [milliseconds(int(line.split()[1]), at) for line in whole if line.startswith("AT ")]
                size = message["to"]
                with contextlib.suppress(OSError, KeyError):
                    guardian_s = cpu_s(bench.site.guardian_pid(job))
            elif message["type"] == "job":
                has_ended = message["job"]["state"] in ("COMPLETED", "FAILED")
            if has_ended and size >= int(bench.site.client.log(job.id)["size"]):
                break
        took_s = time.monotonic() - begin
        used_s = cpu_s(engine) - before
    wrote = re.search(r"^WROTE (\d+)", rest_of(bench, job), re.MULTILINE)
    if wrote is not None and int(wrote[1]) != len(late):
        raise Unmeasurable(f"{wrote[1]} lines were written, {len(late)} came")
    if not late:
        raise Unmeasurable("no line came")
    return late, used_s / took_s, guardian_s / took_s


def rest_of(bench: Bench, job: Job) -> str:
    """Return the end of a job's log."""
    return str(bench.site.client.log(job.id, offset=-200)["text"])


def state_changes(bench: Bench, jobs: int) -> list[float]:
    """Measure the delay from the guardian's record that a job runs or has ended to the page's message."""
    late: list[float] = []
    with page(bench.site) as stream:
        for _ in range(jobs):
            # The offset between the two clocks: facts carry the time of day.
            offset = time.time_ns() - time.monotonic_ns()
            job = bench.site.submit("import time\ntime.sleep(0.2)\n")
            seen: dict[str, int] = {}
            for at, message in messages(stream, job):
                if message["type"] == "job":
                    seen.setdefault(message["job"]["state"], at + offset)
                    if message["job"]["state"] in ("COMPLETED", "FAILED"):
                        break
            stream.send(json.dumps({"type": "unsubscribe", "job": job.id}))
            journal = (bench.site.pool / "jobs" / job.id / "journal.jsonl").read_text().splitlines()
            facts = {fact["kind"]: fact["at_s"] for fact in map(json.loads, journal)}
            for kind, state in (("generation", "PROCESSING"), ("completed", "COMPLETED")):
                if kind in facts and state in seen:
                    late.append(seen[state] / 1e6 - facts[kind] * 1e3)
    if not late:
        raise Unmeasurable("no change of state was seen")
    return late


def _spread(values: list[float]) -> Figure:
    return figure(values, "ms")


def percentile(values: list[float], share: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * share))]
