"""`--memory` and `--cpus`: by cgroups where they can be made, else by watching and by affinity."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from jupyter_dlaas.runtime.hosts.resource_limits import (
    Limits,
    cgroup_parent,
    explained,
    limits_in_words,
    memory_used,
    size_in_words,
)
from jupyter_dlaas.runtime.system.process import family, own
from jupyter_dlaas.wire.protocol import Cause, Failure, JobSpec

MIB = 1 << 20
CHILD = """
import os, sys, time
data = bytearray(60 << 20)
data[::4096] = bytes([1]) * len(data[::4096])
for _ in range(2):
    if os.fork() == 0:
        time.sleep(600)
print("ready", flush=True)
time.sleep(600)
"""


@pytest.fixture
def program() -> Iterator[subprocess.Popen[str]]:
    """Start a process that uses 60 MiB, and two forks of it that share them."""
    one = subprocess.Popen([sys.executable, "-c", CHILD], stdout=subprocess.PIPE, text=True, start_new_session=True)
    assert one.stdout is not None
    assert one.stdout.readline() == "ready\n"
    yield one
    os.killpg(one.pid, 9)
    one.wait()
    one.stdout.close()


@pytest.fixture
def cgroups(tmp_path: Path) -> tuple[Path, Path]:
    """Create the hierarchy that systemd creates for a user: app.slice delegates, the scope of this process does not."""
    root = tmp_path / "cgroup"
    scope = root / "user.slice" / "app.slice" / "ours.scope"
    scope.mkdir(parents=True)
    for folder, controllers in ((root, "cpu memory"), (root / "user.slice", "memory"), (scope.parent, "cpu memory")):
        (folder / "cgroup.subtree_control").write_text(f"{controllers}\n")
        (folder / "cgroup.procs").touch()
    (scope / "cgroup.subtree_control").write_text("\n")
    (scope / "cgroup.procs").touch()
    own_file = tmp_path / "self"
    own_file.write_text("1:name=systemd:/x\n0::/user.slice/app.slice/ours.scope\n")
    return root, own_file


def none_there(tmp_path: Path) -> tuple[Path, Path]:
    return tmp_path / "no-cgroup", tmp_path / "no-file"


def test_nearest_delegated_cgroup_takes_the_learners(cgroups: tuple[Path, Path]) -> None:
    root, _ = cgroups
    app = root / "user.slice" / "app.slice"
    assert cgroup_parent({"memory", "cpu"}, *cgroups) == app
    (app / "cgroup.subtree_control").write_text("")

    assert cgroup_parent({"memory"}, *cgroups) == root / "user.slice"
    assert cgroup_parent({"io"}, *cgroups) is None


def test_cgroup_gets_limits_and_process_and_reports_kills(cgroups: tuple[Path, Path]) -> None:
    spec = JobSpec(memory_bytes_per_learner=100 * MIB, cpus_per_learner=1.5)
    limits = Limits("a-1", spec, cgroups=cgroups)

    limits.begin(3, own(os.getpid()), ("n/cpu-0",))

    group = cgroups[0] / "user.slice" / "app.slice" / "dlaas-a-1-3"
    assert (group / "memory.max").read_text() == str(100 * MIB)
    assert (group / "cpu.max").read_text() == "150000 100000"
    assert (group / "cgroup.procs").read_text() == str(os.getpid())
    assert limits.due() is None, "the kernel watches"

    (group / "memory.events").write_text("oom 1\noom_kill 2\n")
    failure = limits.end(3)
    for file in group.iterdir():  # the kernel's own files are no obstacle to rmdir
        file.unlink()
    limits.close()

    assert not group.exists()
    assert failure is not None
    assert (failure.code, failure.cause) == ("memory_limit", Cause.RESOURCES)
    assert failure.what == "ran out of memory; its limit is 100 MiB (--memory 100M)"
    assert "--memory 200M" in failure.advice


def test_shared_pages_of_forks_count_once(program: subprocess.Popen[str]) -> None:
    processes = family(own(program.pid))
    assert len(processes) == 3

    assert 60 * MIB < memory_used(processes, limit=0) < 120 * MIB


def test_learner_above_its_limit_fails_with_the_reason(program: subprocess.Popen[str], tmp_path: Path) -> None:
    limits = Limits("a-1", JobSpec(memory_bytes_per_learner=50 * MIB), cgroups=none_there(tmp_path))
    limits.begin(3, own(program.pid), ())

    limits.look(1.0)

    assert program.wait(30) == -9
    failure = limits.end(3)
    assert failure is not None
    assert failure.what.endswith(" of memory; its limit is 50 MiB (--memory 50M)")


def test_learner_below_its_limit_is_looked_at_seldom(program: subprocess.Popen[str], tmp_path: Path) -> None:
    limits = Limits("a-1", JobSpec(memory_bytes_per_learner=1 << 40), cgroups=none_there(tmp_path))
    limits.begin(3, own(program.pid), ())

    limits.look(1.0)

    due_s = limits.due()
    assert due_s is not None
    assert due_s >= 2.0
    assert limits.end(3) is None


def test_adopted_learners_are_watched_too(program: subprocess.Popen[str], tmp_path: Path) -> None:
    limits = Limits("a-1", JobSpec(memory_bytes_per_learner=50 * MIB), cgroups=none_there(tmp_path))

    limits.adopt(3, own(program.pid))
    limits.look(1.0)

    assert limits.end(3) is not None


def test_cpus_are_cores_where_there_are_no_cgroups(
    program: subprocess.Popen[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    allowed = sorted(os.sched_getaffinity(0))
    limits = Limits("a-1", JobSpec(cpus_per_learner=0.5), cgroups=none_there(tmp_path))

    limits.begin(3, own(program.pid), (f"n/cpu-{len(allowed) + 1}",))

    assert os.sched_getaffinity(program.pid) == {allowed[1 % len(allowed)]}
    assert limits.due() is None


def test_memory_error_names_the_limit() -> None:
    failure = Failure(
        cause=Cause.RESOURCES, code="host_memory", what="MemoryError", advice="It is full.", traceback="x"
    )
    killed = Failure(cause=Cause.RESOURCES, code="host_memory", what="killed by the system", advice="It is full.")

    limited = explained(failure, 3 << 30)
    assert limited.what == "MemoryError [limit: --memory 3G]"
    assert "--memory 6G" in limited.advice
    assert explained(killed, 3 << 30) == killed, "the memory of the machine was full"
    assert explained(failure, 0) == failure


def test_allocation_far_above_the_limit_fails_in_its_line() -> None:
    source = (
        "from jupyter_dlaas.learner.environment.malloc import limit_data\n"
        "limit_data(100 << 20)\n"
        "small = bytearray(150 << 20)\n"
        "try:\n    bytearray(600 << 20)\n"
        "except MemoryError:\n    print('failed')\n"
    )
    done = subprocess.run([sys.executable, "-c", source], capture_output=True, text=True, check=True)

    assert done.stdout == "failed\n"


def test_means_of_enforcement_are_reported() -> None:
    assert limits_in_words().startswith("--memory is ")
    assert size_in_words(812 * MIB) == "812 MiB"
    assert size_in_words(3 << 29) == "1.5 GiB"
