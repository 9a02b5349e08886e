"""The control plane starts quickly and leaves nothing behind, even if the test process is killed."""

from __future__ import annotations

import os
import select
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.kubernetes.clusters import OwnCluster
from tests.kubernetes.conftest import Namespace

pytestmark = pytest.mark.cluster
PROGRAM = """
import sys
from tests.kubernetes.binaries import built_binaries
from tests.kubernetes.clusters import OwnCluster
cluster = OwnCluster(built_binaries())
print(cluster.control_plane.folder, flush=True)
sys.stdin.read()
"""


def test_the_start_is_measured(own_cluster: OwnCluster, record_property: Callable[[str, object], None]) -> None:
    taken_s = own_cluster.control_plane.started_in_s
    assert taken_s is not None
    record_property("report", f"test cluster: control plane ready after {taken_s:.1f} s")


def test_kubectl_has_the_version_of_the_cluster(namespace: Namespace) -> None:
    assert namespace.kubectl("get", "--raw", "/readyz") == "ok"


def test_a_killed_test_process_leaves_no_cluster(own_cluster: OwnCluster) -> None:
    root = Path(__file__).parents[2]
    command, pipe = [sys.executable, "-c", PROGRAM], subprocess.PIPE
    with subprocess.Popen(command, cwd=root, stdin=pipe, stdout=pipe, text=True) as process:
        assert process.stdout is not None
        folder = process.stdout.readline().strip()
        assert folder
        descriptors = [os.pidfd_open(pid) for pid in processes_of(folder)]
        process.kill()

    assert len(descriptors) == 5  # the launcher and four programs
    for descriptor in descriptors:
        wait_until_ended(descriptor)
    assert not Path(folder).exists()


def processes_of(folder: str) -> list[int]:
    """Return the processes whose command line names the folder."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            command = path.read_bytes()
        except OSError:
            continue  # it has ended
        if folder.encode() in command:
            found.append(int(path.parent.name))
    return found


def wait_until_ended(descriptor: int) -> None:
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    assert poll.poll(30_000), "a program of the cluster still runs"
    os.close(descriptor)
