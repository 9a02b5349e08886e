"""Two engines on one namespace: one of them leads, and the other one waits, takes over, or is fenced."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from dlaas_server.pools.kubernetes.manifests.names import LEASE
from jupyter_dlaas.client import engine_control
from jupyter_dlaas.client.discovery import engine_record
from jupyter_dlaas.runtime.system.process import is_alive, recorded, stat_of
from jupyter_dlaas.wire.protocol import JobSpec, JobView, Submit
from tests.kubernetes.clusters import OwnCluster
from tests.kubernetes.conftest import Namespace
from tests.kubernetes.pool import section_of, service_account
from tests.notebook_e2e.rooms import Pool, until

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(300)]

LEASE_S = 5
ENDLESS = """
import time
for step in range(100_000):
    print("step", step, flush=True)
    time.sleep(0.05)
"""
PAUSED_ENGINE = """
import os, signal, sys, threading
from dlaas_server.engine.service import main
from dlaas_server.pools.kubernetes import gang

create_job, paused_jobs = gang.create_job, set()

def paused(api, job, **options):
    if job.pods.job.startswith("late") and job.pods.job not in paused_jobs:
        paused_jobs.add(job.pods.job)
        signal.pthread_kill(threading.get_ident(), signal.SIGSTOP)  # this thread runs no further, like the others
    return create_job(api, job, **options)

gang.create_job = paused
sys.exit(main(["--pool-dir", sys.argv[1]]))
"""
Open = Callable[..., Pool]


@pytest.fixture
def open_pool(tmp_path: Path, namespace: Namespace, monkeypatch: pytest.MonkeyPatch) -> Iterator[Open]:
    """Return a function that prepares a pool of this namespace."""
    monkeypatch.setenv("JUPYTER_DLAAS_WATCHDOG", "0")  # a killed engine stays dead
    pools: list[Pool] = []

    def prepared(name: str, kubeconfig: str = "") -> Pool:
        pool = Pool(tmp_path / name)
        pool.directory.mkdir(parents=True)
        section = section_of(namespace)
        (pool.directory / "config.toml").write_text(
            f'[kubernetes]\nnamespace = "{namespace.name}"\nview = "namespace"\n'
            f'kubeconfig = "{kubeconfig or section.kubeconfig}"\nimage = "{section.image}"\nlearners = 4\n'
            f'cpus = 0.1\nmemory = "256Mi"\nephemeral_storage = "1Gi"\nlease_s = {LEASE_S}\n'
        )
        pools.append(pool)
        return pool

    yield prepared
    for pool in pools:
        engine_control.stop(pool.directory)
    for pool in pools:
        pool.client.pool()  # its engine is the only one now, and can end its jobs
        pool.close()


def submit(pool: Pool, name: str) -> JobView:
    return pool.client.submit(Submit(key=f"key-{uuid.uuid4()}", spec=JobSpec(name=name), source=ENDLESS))


def notices(pool: Pool) -> str:
    return " ".join(pool.client.pool().notices)


def pid_of(pool: Pool) -> int:
    return int(engine_record(pool.directory)["pid"])


def kill(pool: Pool) -> None:
    """Kill the pool's engine, and wait until it is gone."""
    engine = recorded(engine_record(pool.directory))
    assert engine is not None
    os.kill(engine.pid, signal.SIGKILL)
    until(lambda: not is_alive(engine))


def test_another_engine_takes_over_from_a_killed_one(open_pool: Open, namespace: Namespace) -> None:
    first, second = open_pool("first"), open_pool("second")
    job = submit(first, "one").id
    first.until(job, "PROCESSING")
    pod = namespace.get("pods", f"{job}-m0")

    waiting = submit(second, "two").id
    until(lambda: "Another engine serves namespace" in notices(second))
    for words in (
        f"process {pid_of(first)} on host",
        f"(pool {first.directory} of",
        f"engine stop --pool {first.directory}",
    ):
        assert words in notices(second)
    until(lambda: "Another engine serves namespace" in second.job(waiting).reason)
    kill(first)
    second.until(waiting, "PROCESSING")
    assert namespace.get("leases", LEASE)["spec"]["leaseTransitions"] == 1

    assert f"(pool {second.directory} of" in notices(first), "an engine that was started again waits"
    assert engine_control.stop(second.directory) is not None
    until(lambda: notices(first) == "")
    assert (first.until(job, "PROCESSING").restarts, first.job(job).learners[0].member) == (0, 0)
    assert namespace.get("pods", f"{job}-m0")["metadata"]["uid"] == pod["metadata"]["uid"]


@pytest.fixture
def start_engine() -> Iterator[Callable[[Pool], int]]:
    """Return a function that starts an engine which stops itself (SIGSTOP) between commit and pods of a job "late"."""
    started: list[subprocess.Popen[bytes]] = []

    def start(pool: Pool) -> int:
        engine = subprocess.Popen([sys.executable, "-c", PAUSED_ENGINE, str(pool.directory)], stderr=subprocess.DEVNULL)
        started.append(engine)
        until(lambda: engine_control.state(pool.directory))
        return engine.pid

    yield start
    for engine in started:
        engine.send_signal(signal.SIGCONT)
        engine.terminate()
        engine.wait(60)


def is_paused(pid: int) -> bool:
    stat = stat_of(pid)
    return stat is not None and stat.state == "T"


def test_a_paused_engine_writes_nothing_after_another_took_over(
    open_pool: Open,
    start_engine: Callable[[Pool], int],
    own_cluster: OwnCluster,
    namespace: Namespace,
    tmp_path: Path,
) -> None:
    """The first engine has a service account, whose writes the API server audits."""
    section = service_account(namespace, section_of(namespace), tmp_path)
    first, second = open_pool("first", str(section.kubeconfig)), open_pool("second")
    plane, engine = own_cluster.control_plane, start_engine(first)
    job = submit(first, "one").id
    first.until(job, "PROCESSING")
    views: list[JobView] = []
    request = threading.Thread(target=lambda: views.append(submit(first, "late")))
    request.start()  # its answer may come after the pause
    until(lambda: is_paused(engine))
    second.until(submit(second, "two").id, "PROCESSING")
    before = len(plane.audited(namespace.name))
    os.kill(engine, signal.SIGCONT)
    request.join(60)
    late = views[0].id
    until(lambda: f"(pool {second.directory} of" in first.job(late).reason)

    written = plane.audited(namespace.name)[before:]
    assert {entry for entry in written if entry[2] < 400} == set()
    assert {name for _, name, _ in written} <= {f"leases/{LEASE}"}
    assert engine_control.stop(second.directory) is not None
    for name in (job, late):
        first.until(name, "PROCESSING")
    assert (first.job(job).restarts, first.job(late).restarts) == (0, 0)
    pods = [verb for verb, name, _ in plane.audited(namespace.name) if name == f"pods/{late}-m0"]
    assert pods == ["create", "patch"], "it starts once"
