"""Time until work continues after `kill -9` of each process that takes part; beside `import tornado`."""

from __future__ import annotations

import os
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

from tests.bench.measuring import Bench
from tests.bench.table import Line, figure, not_measured, ratio
from tests.chaos.pool import API_ERRORS, ChaosPool, wait_for_state
from tests.whole.site import Server, Site, is_gone, kill, until

JOBS = 100
TRIALS_MIN = 10
"""A 95th percentile of fewer trials says nothing."""
ATTENDED_S = 30.0
WAITS = "import signal\nsignal.pause()\n"
STEPS = """
import time
import torch
import jupyter_dlaas as dlaas

model = torch.nn.Linear(8, 1)
opt = torch.optim.SGD(model.parameters(), lr=0.01)
run = dlaas.run()
model, opt = run.prepare(model, opt)
with (run.output_dir / "steps").open("a") as stamps:
    for epoch in run.epochs(1_000_000):
        for batch in run.batches(torch.ones(64, 8), 8):
            opt.zero_grad()
            model(batch).square().mean().backward()
            opt.step()
            stamps.write(f"{time.monotonic():.6f}\\n")
            stamps.flush()
            time.sleep(0.01)
"""
LOGS = "import time\nfor n in range(10**9):\n    print(n, flush=True)\n    time.sleep(0.002)\n"


def measure(bench: Bench) -> Iterator[Line]:
    """Every trial in the same pool, one after the other, with a pause in between."""
    yield from _servers(bench)
    beside = figure([_import_tornado() for _ in range(bench.runs)], "s")
    rows: list[tuple[str, str, Callable[[ChaosPool], Callable[[], float]], int]] = [
        (f"engine killed → {JOBS} jobs held again", "p95 ≤ 0.5 s (FfDL 4–6 s)", _engine, JOBS + 2),
        ("engine killed → the log continues", "p95 ≤ 1 s (FfDL 3–4 s)", _log, 2),
        ("guardian killed → learner held again", "p95 ≤ 0.2 s (FfDL 1–2 s)", _guardian, 2),
        ("last learner killed → next step", "p95 ≤ 2 s (FfDL 10–20 s)", _learner, 2),
        ("all three killed, no client → next step", "p95 ≤ 5 s", _all_unattended, 2),
    ]
    for number, (what, bar, begin, slots) in enumerate(rows):
        pool = ChaosPool(Site(bench.site.folder / f"recovery-{number}", slots=slots))
        try:
            trial = begin(pool)
            values = [trial() for _ in range(max(bench.runs, TRIALS_MIN))]
        except AssertionError as error:
            yield not_measured(what, bar, str(error))
            continue
        finally:
            pool.close()
        measured = figure(values, "s")
        yield Line(
            what=f"{what} (p95 {_p95(values):.2f} s)",
            bar=bar,
            measured=measured,
            beside="import tornado",
            beside_figure=beside,
            times=ratio(measured, beside),
        )


def _servers(bench: Bench) -> Iterator[Line]:
    """Measure the restart of a killed Jupyter server with a training job; beside one without the extension."""
    what, bar = "Jupyter server killed → its REST API answers", "≤ 1.5 s beyond Jupyter's own start (FfDL 3–5 s)"
    site = Site(bench.site.folder / "recovery-server")
    pool = ChaosPool(site)
    try:
        job = pool.submit(LOGS, "logs", (1, 1))
        wait_for_state(pool, job, ("PROCESSING",), 60)
        values, plain = [], []
        for _ in range(max(bench.runs, TRIALS_MIN)):
            values.append(_server_start(site, lambda server: server.client.job(job).state == "PROCESSING"))
            plain.append(_server_start(site, lambda _: True, "--ServerApp.jpserver_extensions={'dlaas_server': False}"))
    except AssertionError as error:
        yield not_measured(what, bar, str(error))
        return
    finally:
        pool.close()
    measured, beside = figure(values, "s"), figure(plain, "s")
    yield Line(
        what=f"{what} (p95 {_p95(values):.2f} s)",
        bar=bar,
        measured=measured,
        beside="Jupyter server without the extension",
        beside_figure=beside,
        times=ratio(measured, beside),
    )


def _server_start(site: Site, answers: Callable[[Server], bool], *options: str) -> float:
    """Return the seconds from the start of a Jupyter server until it answers. Kill it then."""
    began_s = time.monotonic()
    server = site.serve(*options, program="jupyter_server")
    until(lambda: answers(server), "the extension answers")
    seconds = time.monotonic() - began_s
    server.kill()
    return seconds


def _p95(values: list[float]) -> float:
    return values[0] if len(values) == 1 else statistics.quantiles(values, n=20, method="inclusive")[-1]


def _import_tornado() -> float:
    began_s = time.monotonic()
    subprocess.run([sys.executable, "-c", "import tornado"], check=True)
    return time.monotonic() - began_s


def _engine(pool: ChaosPool) -> Callable[[], float]:
    for number in range(JOBS):
        pool.submit(WAITS, f"held{number}", (1, 1))
    until(lambda: _processing(pool) == JOBS, f"{JOBS} jobs run", 300)

    def trial() -> float:
        time.sleep(1.0)
        began_s = _kill_engine(pool)
        pool.start_engine()
        until(lambda: _processing(pool) == JOBS, f"{JOBS} jobs are held again")
        return time.monotonic() - began_s

    return trial


def _processing(pool: ChaosPool) -> int:
    with suppress(*API_ERRORS):
        status, answer = pool.request("GET", f"/dlaas/jobs?state=PROCESSING&limit={10 * JOBS}")
        return len(answer["jobs"]) if status == 200 else 0
    if pool.engine_pid() is None:
        pool.patient("GET", "/dlaas/pool")
    return 0


def _kill_engine(pool: ChaosPool) -> float:
    pid = pool.engine_pid()
    assert pid is not None, "there is an engine"
    began_s = time.monotonic()
    kill(pid)
    return began_s


def _log(pool: ChaosPool) -> Callable[[], float]:
    job = pool.submit(LOGS, "logs", (1, 1))
    wait_for_state(pool, job, ("PROCESSING",), 60)

    def size() -> int:
        with suppress(*API_ERRORS):
            status, answer = pool.request("GET", f"/dlaas/jobs/{job}/log?offset=-1")
            return int(answer["size"]) if status == 200 else 0
        return 0

    def trial() -> float:
        time.sleep(1.0)
        before = size()
        began_s = _kill_engine(pool)
        pool.start_engine()
        until(lambda: size() > before, "later lines of the log are answered")
        return time.monotonic() - began_s

    return trial


def _guardian(pool: ChaosPool) -> Callable[[], float]:
    job = pool.submit(WAITS, "held", (1, 1))
    wait_for_state(pool, job, ("PROCESSING",), 60)

    def taken_over() -> int:
        return sum(fact["kind"] == "guardian_up" and bool(fact.get("took_over")) for fact in pool.journal(job))

    def trial() -> float:
        time.sleep(2.5)  # guardians that end sooner are replaced more slowly each time
        before, pid = taken_over(), pool.guardian_pid(job)
        assert pid is not None, "there is a guardian"
        began_s = time.monotonic()
        os.kill(pid, signal.SIGKILL)
        until(lambda: taken_over() > before, "another guardian has taken over")
        return time.monotonic() - began_s

    return trial


def _training(pool: ChaosPool) -> tuple[str, Callable[[float], bool]]:
    """Start a loop that trains and has a checkpoint; return a check whether it has made another step."""
    job = pool.submit(STEPS, "steps", (1, 1), framework="pytorch", checkpoint_every_s=0.5)
    until(lambda: pool.view(job)["checkpoint_step"], "there is a checkpoint", 120)
    path = pool.folder(job) / "output" / "steps"
    return job, lambda since_s: _last_stamp(path) > since_s


def _last_stamp(path: Path) -> float:
    lines = path.read_bytes()[-200:].split(b"\n")[:-1]
    return float(lines[-1]) if lines else 0.0


def _learner(pool: ChaosPool) -> Callable[[], float]:
    job, has_stepped = _training(pool)

    def trial() -> float:
        time.sleep(2.0)
        pids = until(lambda: pool.learner_pids(job), "there is a learner")
        began_s = time.monotonic()
        kill(pids[0])
        gone_s = time.monotonic()
        until(lambda: has_stepped(gone_s), "it makes its next step")
        return time.monotonic() - began_s

    return trial


def _all_unattended(pool: ChaosPool) -> Callable[[], float]:
    job, has_stepped = _training(pool)

    def trial() -> float:
        pool.patient("GET", "/dlaas/pool")
        time.sleep(3.0)
        pids = [pool.engine_pid(), pool.guardian_pid(job), *pool.learner_pids(job)]
        began_s = time.monotonic()
        for pid in pids:
            assert pid is not None, "engine, guardian and learner live"
            os.kill(pid, signal.SIGKILL)
        until(lambda: all(pid is None or is_gone(pid) for pid in pids), "they are gone")
        gone_s = time.monotonic()
        until(lambda: has_stepped(gone_s), "it trains again without a request of a client", ATTENDED_S)
        return time.monotonic() - began_s

    return trial
