"""Isolated learners in surroundings as pods have them: no IPv4, no host name, no user, and a cgroup of their own."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from jupyter_dlaas.wire.journal import FactKind
from jupyter_dlaas.wire.protocol import Cause
from tests.isolated.launcher import IsolatedJob, isolated_job
from tests.isolated.networks import in_ipv6_network, needs_namespaces
from tests.isolated.test_isolated import IMPORT_S, ON_CPU, OPTIONS, PLAIN, finish, trains
from tests.learner.live_programs import LIVE

pytestmark = [pytest.mark.timeout(900), needs_namespaces]

USER = 54321
_NAMELESS = f"setpriv --reuid {USER} --regid {USER} --clear-groups --inh-caps=-all --bounding-set=-all --no-new-privs"
BARE = ("unshare", "--uts", "sh", "-c", f'hostname no-such-host; exec {_NAMELESS} "$@"', "sh")
ABOUT_ME = """
import os, pathlib, socket
status = pathlib.Path("/proc/self/status").read_text()
(pathlib.Path(os.environ["DLAAS_JOB_DIR"]) / "output/about").write_text(
    f"{os.getuid()} {socket.gethostname()} {status.split('CapEff:')[1].split()[0]} {os.environ['USER']}"
)
"""


@pytest.fixture
def folder() -> Iterator[Path]:
    """Return a folder that any user may enter."""
    made = Path(tempfile.mkdtemp(prefix="dlaas-isolated-"))
    made.chmod(0o755)
    yield made
    shutil.rmtree(made, ignore_errors=True)


@pytest.mark.parametrize("network", ["fd00::", ""], ids=["ipv6", "ipv4"])
def test_a_gang_trains_without_user_name_and_host_name(folder: Path, network: str) -> None:
    """gloo would take the address of the host name. Here it has none."""
    jobs: list[IsolatedJob] = []

    def body() -> None:
        source = ON_CPU + ABOUT_ME + LIVE
        job = isolated_job(folder, source, prefix=BARE, user=USER, network=network, **OPTIONS)
        jobs.append(job)
        (folder / "token").chmod(0o644)
        job.run(2)
        trains(job, 1, size=2)
        finish(job)
        assert job.lines("about") == [f"{USER} no-such-host 0000000000000000 dlaas"]

    try:
        if network:
            in_ipv6_network([f"{network}{number:x}" for number in (1, 2, 10, 11)], body)
        else:
            body()
    finally:
        for job in jobs:
            job.close()


SUBMITS = """
import jupyter_dlaas as dlaas
from jupyter_dlaas.cli.main import main
job = dlaas.submit("import os\\nprint('trained by', os.getuid())\\n")
job.wait()
print(job.view.state, job.view.owner)
main(["logs", job.id])
main(["engine", "stop"])
"""


def test_engine_serves_a_user_without_a_name(folder: Path) -> None:
    folder.chmod(0o777)
    environment = {"PATH": os.environ["PATH"], "PYTHONPATH": os.pathsep.join(sys.path), "JUPYTER_DATA_DIR": str(folder)}
    command = [*_NAMELESS.split(), sys.executable, "-c", SUBMITS]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, cwd=folder, timeout=120)

    assert f"COMPLETED uid-{USER}" in done.stdout, done.stdout + done.stderr
    assert f"trained by {USER}" in done.stdout, done.stdout + done.stderr


def test_the_kernel_of_a_pod_reports_memory_kills(tmp_path: Path) -> None:
    cgroup = tmp_path / "cgroup"
    cgroup.mkdir()
    (cgroup / "memory.events").write_text("oom 0\noom_kill 0\n")
    mount = ("unshare", "--mount", "sh", "-c", f'mount --bind {cgroup} /sys/fs/cgroup; exec "$@"', "sh")
    job = isolated_job(tmp_path, PLAIN, prefix=mount, outputs=("answer",), learners=1)
    try:
        job.run(1)
        job.wait(FactKind.CHECKPOINT, deadline_s=IMPORT_S)
        (cgroup / "memory.events").write_text("oom 1\noom_kill 1\n")
        job.kill_learner(0)
        failure = job.wait(FactKind.LEARNER_DOWN, deadline_s=IMPORT_S).failure

        assert (failure.code, failure.cause) == ("host_memory", Cause.RESOURCES)
    finally:
        job.close()
