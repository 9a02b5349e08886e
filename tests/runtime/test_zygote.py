"""Zygotes: the same contract as a plain start, only sooner; and never a job less when there is none."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from jupyter_dlaas.runtime.fencing.discovery_files import STATUS
from jupyter_dlaas.runtime.system.process import Identity, activity_of, environment_of, is_alive, send, stat_of
from jupyter_dlaas.runtime.zygote.start_guardian import reap, start_guardian, stop_zygotes, warm, zygote_path
from jupyter_dlaas.transfer.results import load
from jupyter_dlaas.wire.journal import FactKind
from tests.learner.programs import PLAIN, assert_each_sample_once
from tests.runtime.jobs import Job, make_job, make_package_dir, until

Build = Callable[..., Job]


def warm_up(job: Job, zygotes: Path, framework: str | None = None) -> Identity:
    """Wait until a zygote for this job is ready; returns its process."""

    def is_warm() -> bool:
        return warm(
            interpreter=job.interpreter,
            package_dir=job.package_dir,
            environment=job.environment,
            zygote_dir=zygotes,
            framework=framework,
        )

    until(is_warm, "the zygote is ready")
    kind = "torch" if framework else "lean"
    path = zygote_path(zygotes, job.interpreter, job.package_dir, job.environment, kind)
    body = json.loads(path.with_suffix(".lock").read_text())
    return Identity(body["pid"], body["start"], body["boot"])


@pytest.fixture
def zygotes(tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "zygotes"
    folder.mkdir()
    yield folder
    stop_zygotes(folder)
    until(lambda: reap() is not None and not any(map(is_running, folder.glob("*.lock"))), "the zygotes are gone")


def is_running(lock: Path) -> bool:
    reap()
    body = json.loads(lock.read_text() or "{}")
    return bool(body) and is_alive(Identity(body["pid"], body["start"], body["boot"]))


@pytest.fixture(scope="module")
def torch_zygote(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """One torch zygote for all tests of this file: it takes seconds to load."""
    folder = tmp_path_factory.mktemp("torch")
    yield folder
    stop_zygotes(folder)
    until(lambda: not any(map(is_running, folder.glob("*.lock"))), "the zygote is gone")


def test_zygote_start_keeps_the_contract_of_a_plain_start(job: Build, zygotes: Path) -> None:
    one = job(PLAIN, outputs=("result",))
    one.zygote_dir = zygotes
    warm_up(one, zygotes)
    one.run()

    assert one.closed() == "completed"
    assert one.guardian is not None
    assert one.guardian.how == "zygote"
    assert_each_sample_once(one, samples=23, epochs=3)
    until(lambda: not one.processes(), "nothing is left of the job")


def test_fork_looks_like_a_plain_start_to_user_code(job: Build, zygotes: Path) -> None:
    source = """
    import gc, os, random, signal, sys, threading
    import __main__
    seen = {
        "main": (__main__.__file__.rpartition("/")[2], __name__, "__spec__" in vars(__main__)),
        "argv": sys.argv[1:], "path": [p.rpartition("/")[2] for p in sys.path[:2]],
        "signals": [str(signal.getsignal(n)) for n in (signal.SIGINT, signal.SIGCHLD, signal.SIGPIPE)],
        "gc": gc.isenabled(), "session": os.getsid(0) == os.getpid(), "cwd": os.getcwd() == os.environ["HERE"],
        "environment": sorted(k for k in os.environ if k != "LC_CTYPE"),
        "mark": os.environ["DLAAS_JOB_DIR"] in open("/proc/self/environ").read(),
        "fds": sorted(int(n) for n in os.listdir("/proc/self/fd") if int(n) < 3),
        "random": random.random(), "stdout": (sys.stdout.encoding, sys.stdout.fileno()),
        "blocked": sorted(signal.pthread_sigmask(signal.SIG_BLOCK, [])),
    }
    print("to the log")
    """
    found = []
    for is_forked in (True, False):
        one = job(source, outputs=("seen",), environment={"MINE": "1"}, command=("a",))
        one.environment["HERE"] = str(one.dir.parent)
        (one.dir / "environment.json").write_text(json.dumps(one.environment))
        if is_forked:
            one.zygote_dir = zygotes
            warm_up(one, zygotes)
        one.run()
        assert one.closed() == "completed"
        assert one.guardian is not None
        assert one.guardian.how == ("zygote" if is_forked else "plain")
        assert one.log() == "to the log\n"
        found.append(load((one.dir / "results" / "seen.bin").read_bytes()))

    assert found[0] == found[1]
    assert found[0]["mark"]
    assert found[0]["gc"]


def test_forked_learner_has_the_mark_of_its_job(job: Build, zygotes: Path) -> None:
    one = job("import time; time.sleep(1000)")
    one.zygote_dir = zygotes
    warm_up(one, zygotes)
    one.run(2)
    one.wait(FactKind.LEARNER_READY, 2)
    marks = [environment_of(one.learner(member).pid).get("DLAAS_MEMBER") for member in (0, 1)]
    one.stop(grace_s=0.1)

    assert marks == ["0", "1"]
    assert one.closed() == "stopped"


def test_learners_of_a_killed_forked_guardian_are_adopted(job: Build, zygotes: Path) -> None:
    one = job("import os, time\nwhile not os.path.exists(os.environ['DLAAS_JOB_DIR'] + '/output/go'): time.sleep(0.01)")
    one.zygote_dir = zygotes
    warm_up(one, zygotes)
    one.run(2)
    one.wait(FactKind.LEARNER_READY, 2)
    one.kill_guardian()
    one.start_guardian()
    up = one.wait(FactKind.GUARDIAN_UP, 2)
    one.output("go").touch()

    assert one.closed() == "completed"
    assert up.took_over
    assert len(one.facts(FactKind.LEARNER_UP)) == 2


def test_jobs_outlive_their_zygote(job: Build, zygotes: Path) -> None:
    one = job("import os, time\nwhile not os.path.exists(os.environ['DLAAS_JOB_DIR'] + '/output/go'): time.sleep(0.01)")
    one.zygote_dir = zygotes
    zygote = warm_up(one, zygotes)
    one.run()
    one.wait(FactKind.LEARNER_READY)
    send(zygote, signal.SIGKILL)
    until(lambda: not is_alive(zygote), "the zygote is gone")
    one.output("go").touch()

    assert one.closed() == "completed"


def test_plain_start_replaces_an_unresponsive_zygote(job: Build, zygotes: Path) -> None:
    one = job("print('plain')")
    zygote = warm_up(one, zygotes)
    one.zygote_dir = zygotes
    send(zygote, signal.SIGKILL)
    until(lambda: not is_alive(zygote), "the zygote is gone")
    one.run()

    assert one.closed() == "completed"
    assert one.guardian is not None
    assert one.guardian.how == "plain"


def test_a_stopped_zygote_is_replaced(job: Build, zygotes: Path) -> None:
    one = job("print('plain')")
    zygote = warm_up(one, zygotes)
    send(zygote, signal.SIGSTOP)
    until(lambda: (activity := activity_of(zygote)) is not None and activity.is_stopped, "it is stopped")

    assert warm_up(one, zygotes) != zygote
    assert not is_alive(zygote)


def test_a_zygote_ends_when_the_packages_of_its_environment_change(job: Build, zygotes: Path) -> None:
    one = job("pass")
    one.zygote_dir = zygotes
    one.package_dir = make_package_dir(one.dir.parent / "package")
    zygote = warm_up(one, zygotes)
    (one.package_dir / "installed-meanwhile").touch()
    one.run()

    assert one.closed() == "completed"
    assert one.guardian is not None
    assert one.guardian.how == "plain"
    until(lambda: reap() is not None and not is_alive(zygote), "the stale zygote ended")


def test_another_interpreter_or_start_variable_means_another_zygote(tmp_path: Path) -> None:
    paths = {
        zygote_path(tmp_path, interpreter, tmp_path, environment, "lean")
        for interpreter in ("/a/python", "/b/python")
        for environment in ({"A": "1"}, {"A": "2"}, {"PYTHONPATH": "x"}, {"LD_LIBRARY_PATH": "y"})
    }

    assert len(paths) == 6  # A decides nothing


def test_parked_processes_end_with_their_zygote(job: Build, zygotes: Path) -> None:
    one = job("pass")
    zygote = warm_up(one, zygotes)
    [parked] = children(zygote.pid)
    grandchildren = children(parked)
    send(zygote, signal.SIGKILL)

    until(lambda: not any(stat_of(pid) for pid in (parked, *grandchildren)), "the parked processes are gone")


SLOW_TO_PARK = """
import sys
from jupyter_dlaas.runtime.zygote import zygote
zygote.PARK_DELAY_S = 600.0
sys.exit(zygote.main(sys.argv[1:]))
"""


def test_guardian_is_forked_ahead_when_all_jobs_have_ended(job: Build, zygotes: Path) -> None:
    one = job("print('forked')")
    one.zygote_dir = zygotes
    path = zygote_path(zygotes, one.interpreter, one.package_dir, one.environment, "lean")
    with subprocess.Popen([sys.executable, "-c", SLOW_TO_PARK, str(path), "lean"]) as zygote:
        try:
            until(path.exists, "the zygote is ready")
            [first] = children(zygote.pid)
            one.run()

            assert one.closed() == "completed"
            assert one.guardian is not None
            assert one.guardian.how == "zygote"
            until(lambda: bool(children(zygote.pid)) and first not in children(zygote.pid), "another guardian waits")
        finally:
            stop_zygotes(zygotes)


def children(parent: int) -> list[int]:
    pids = [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()]
    return [pid for pid in pids if is_child(pid, parent)]


def is_child(pid: int, *parents: int) -> bool:
    stat = stat_of(pid)
    return stat is not None and stat.parent in parents


def test_gang_trains_from_a_torch_zygote(job: Build, torch_zygote: Path) -> None:
    from tests.learner.programs import TORCH

    one = job(TORCH, outputs=("weights",), framework="torch")
    warm_up(one, torch_zygote, "torch")
    one.zygote_dir = torch_zygote
    one.run(2)

    assert one.closed() == "completed"
    assert one.guardian is not None
    assert one.guardian.how == "zygote"
    assert_each_sample_once(one, samples=53, epochs=3)


def test_gang_forms_after_guardian_and_store_were_killed(job: Build, torch_zygote: Path) -> None:
    from tests.learner.programs import TORCH

    waits = "import os, time\nwhile not os.path.exists(os.environ['DLAAS_JOB_DIR'] + '/output/go'): time.sleep(0.01)\n"
    one = job(waits + TORCH, outputs=("weights",), framework="torch")
    warm_up(one, torch_zygote, "torch")
    one.zygote_dir = torch_zygote
    one.run(2)
    one.wait(FactKind.LEARNER_UP, 2)
    until(
        lambda: "store" in (status := json.loads((one.dir / STATUS).read_text())) and status["learners"], "all started"
    )
    status = json.loads((one.dir / STATUS).read_text())
    one.kill_guardian()
    store = Identity(status["store"]["pid"], status["store"]["start"], status["boot"])
    assert send(store, signal.SIGKILL)
    until(lambda: not is_alive(store), "the store is gone")
    one.start_guardian()
    one.output("go").touch()

    assert one.closed() == "completed"
    assert_each_sample_once(one, samples=53, epochs=3)
    assert len(one.facts(FactKind.LEARNER_UP)) == 2, "the learners of the first guardian trained"


def test_watchdog_of_a_forked_guardian_ends_a_blocked_learner(job: Build, zygotes: Path) -> None:
    blocked = "import ctypes\nprint('blocked')\nctypes.PyDLL(None).sleep(600)"  # holds the interpreter's lock
    one = job(blocked, environment={"DLAAS_TTL_S": "0.3"})
    one.zygote_dir = zygotes
    warm_up(one, zygotes)
    one.run()
    one.wait(FactKind.LEARNER_UP)
    until(lambda: "blocked" in one.log(), "the learner is blocked")
    learner = one.learner(0)
    one.kill_guardian()

    until(lambda: not is_alive(learner), "the watchdog ends the learner")
    until(lambda: not one.processes(), "nothing is left of the job")


def test_fork_has_its_own_threads_and_random_numbers(job: Build, torch_zygote: Path) -> None:
    source = """
    import torch, numpy, random
    seen = (torch.rand(1).item(), numpy.random.rand(), random.random(), torch.get_num_threads())
    big = float((torch.ones(3000, 300) @ torch.ones(300, 300)).sum())  # hangs in a fork of a parent that used threads
    """
    found = []
    for is_forked in (True, False):
        one = job(source, outputs=("seen",), framework="torch")
        if is_forked:
            warm_up(one, torch_zygote, "torch")
            one.zygote_dir = torch_zygote
        one.run(1, OMP_NUM_THREADS="2")
        assert one.closed() == "completed"
        found.append(load((one.dir / "results" / "seen.bin").read_bytes()))

    assert found[0] == found[1]
    assert found[0][3] == 2


def test_data_workers_run_in_a_fork_of_a_zygote(job: Build, torch_zygote: Path) -> None:
    source = """
    import torch, jupyter_dlaas
    from torch.utils.data import DataLoader, TensorDataset
    run = jupyter_dlaas.run()
    seen = []
    if __name__ == "__main__":
        for kind in ("fork", "spawn"):
            points = TensorDataset(torch.arange(10))
            loader = DataLoader(points, 4, shuffle=True, num_workers=1, multiprocessing_context=kind)
            for (x,) in run.batches(loader):
                seen += x.tolist()
    """
    one = job(source, outputs=("seen",), framework="torch")
    warm_up(one, torch_zygote, "torch")
    one.zygote_dir = torch_zygote
    one.run()

    assert one.closed() == "completed"
    assert sorted(load((one.dir / "results" / "seen.bin").read_bytes())) == sorted([*range(10), *range(10)])
    until(lambda: not one.processes(), "no data worker is left")


def test_starting_a_guardian_twice_gives_one(tmp_path: Path, zygotes: Path) -> None:
    one = make_job(tmp_path / "twice", "import time; time.sleep(1000)")
    one.zygote_dir = zygotes
    warm_up(one, zygotes)
    one.run()
    one.wait(FactKind.LEARNER_READY)
    second = start_guardian(
        one.dir,
        interpreter=sys.executable,
        package_dir=one.package_dir,
        environment=one.environment,
        zygote_dir=zygotes,
    )
    until(lambda: not is_alive(Identity(second.pid, second.start, second.boot)), "the second is gone")
    one.stop(grace_s=0.1)

    assert one.closed() == "stopped"
    assert len(one.facts(FactKind.GUARDIAN_UP)) == 1
