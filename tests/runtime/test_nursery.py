"""A job that was started plainly grows as one that was started warm: by copies of its first learner, else plainly."""

from __future__ import annotations

import json
import os
import signal
import socket
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from jupyter_dlaas.runtime.spawn.job_zygote import MARK, READY
from jupyter_dlaas.runtime.system.process import Identity, environment_of, is_alive, send, stat_of
from jupyter_dlaas.wire.journal import FactKind
from jupyter_dlaas.wire.protocol import Cause
from tests.learner.live_programs import FAULTY, LIVE, assert_each_sample_once, trains
from tests.learner.test_live import EPOCHS, OPTIONS
from tests.runtime.jobs import Job, make_package_dir, process_of, until
from tests.runtime.test_zygote import torch_zygote, warm_up, zygotes
from tests.selection import each_nth, exhaustive

__all__ = ["torch_zygote", "zygotes"]
Build = Callable[..., Job]
SEEN = """
import gc, json, os, random, signal, stat, sys, threading
import __main__, numpy, torch
json.dump({
    "main": (__main__.__file__.rpartition("/")[2], __name__, "__spec__" in vars(__main__)),
    "argv": sys.argv[1:], "path": [p.rpartition("/")[2] for p in sys.path[:2]],
    "signals": [str(signal.getsignal(n)) for n in (signal.SIGINT, signal.SIGCHLD, signal.SIGPIPE, signal.SIGHUP)],
    "gc": gc.isenabled(), "session": os.getsid(0) == os.getpid(), "cwd": os.getcwd(),
    "environment": {k: v for k, v in os.environ.items() if k not in ("DLAAS_MEMBER", "RANK", "LOCAL_RANK")},
    "marks": [f"{k}={os.environ[k]}" in open("/proc/self/environ").read() for k in ("DLAAS_JOB_DIR", "DLAAS_MEMBER")],
    "fds": sorted(os.readlink(f"/proc/self/fd/{n}") for n in range(3)),
    "sockets": sum(os.path.exists(e) and stat.S_ISSOCK(e.stat().st_mode) for e in os.scandir("/proc/self/fd")),
    "random": (torch.rand(1).item(), numpy.random.rand(), random.random()), "threads": torch.get_num_threads(),
    "running": threading.active_count(), "children": open(f"/proc/self/task/{os.getpid()}/children").read(),
    "stdout": (sys.stdout.encoding, sys.stdout.fileno()), "umask": os.umask(0o77),
    "blocked": sorted(signal.pthread_sigmask(signal.SIG_BLOCK, [])),
    "sum": float(torch.ones(300, 300).mm(torch.ones(300, 300)).sum()),
}, open(os.environ["DLAAS_JOB_DIR"] + "/output/seen-" + os.environ["DLAAS_MEMBER"], "w"))
"""


@pytest.fixture
def inheritable() -> Iterator[socket.socket]:
    """Open a socket that children inherit, as C libraries do."""
    with socket.socket() as one:
        one.set_inheritable(True)
        yield one


def guardian(job: Job) -> Identity:
    return process_of(job.facts(FactKind.GUARDIAN_UP)[-1])


def nurseries(job: Job) -> list[Identity]:
    return [who for who in job.processes() if MARK in environment_of(who.pid)]


def nursery(job: Job, *, after: Identity | None = None) -> Identity:
    """One that has introduced itself to the guardian, so that learners start from it."""
    log = job.dir / "guardian.log"

    def ready() -> list[Identity]:
        there = [who for who in nurseries(job) if who != after]
        return [who for who in there if f"job zygote {who.pid}: {READY}" in log.read_text().splitlines()]

    found: Identity = until(ready, "a nursery is there")[0]
    return found


def killed(one: Identity) -> None:
    """Kill a process and wait until its last thread has closed its files, which takes a while on a busy machine."""
    send(one, signal.SIGKILL)
    until(lambda: not is_alive(one) and len([*Path("/proc").glob(f"{one.pid}/task/*")]) <= 1, "it has ended")


def is_fork(job: Job, member: int, of: int = 0) -> bool:
    """Return whether a learner was forked, not started by a command of its own."""
    command = Path(f"/proc/{job.learner(member).pid}/cmdline").read_bytes().split(b"\0")
    return command[command.index(os.fsencode(job.dir)) + 1] == str(of).encode()


def started(job: Job) -> Job:
    """Start the job and wait until it trains and its job zygote is ready."""
    job.run(1)
    trains(job, 0)
    nursery(job)
    return job


def ended(job: Job) -> None:
    """All was trained once, every learner left by itself, and nothing is left of the job."""
    job.output("hurry").touch()
    assert job.closed() == "completed", job.report()
    assert_each_sample_once(job, samples=101, epochs=EPOCHS)
    until(lambda: not job.processes(), "nothing is left of the job")


def test_joiners_fork_from_the_job_zygote(job: Build) -> None:
    one = started(job(LIVE, **OPTIONS))
    one.resize(0, fresh=2)
    trains(one, 2, size=3)

    assert is_fork(one, 1)
    assert is_fork(one, 2)
    parents = {who.pid: stat.parent for who in one.processes() if (stat := stat_of(who.pid))}
    assert {parent for pid, parent in parents.items() if pid != guardian(one).pid} == {guardian(one).pid}
    assert not [pid for pid in parents if b"rendezvous_store" in Path(f"/proc/{pid}/cmdline").read_bytes()]
    ended(one)
    assert {fact.code for fact in one.facts(FactKind.LEARNER_DOWN)} == {0}


@exhaustive
def test_forked_joiner_looks_like_a_started_learner_to_users(job: Build, inheritable: socket.socket) -> None:
    one = started(job(SEEN + LIVE, environment={"MINE": "1", "OMP_NUM_THREADS": "2"}, command=("a",), **OPTIONS))
    one.resize(0, fresh=1)
    trains(one, 1, size=2)
    assert is_fork(one, 1)
    killed(nursery(one))
    one.resize(0, 1, fresh=1)
    trains(one, 2, size=3)
    assert not is_fork(one, 2)
    ended(one)

    first, forked, plain = ({**json.loads(one.output(f"seen-{n}").read_text())} for n in (0, 1, 2))
    where = [str(one.dir / f"learner-{n}" / "stdout.log") for n in (0, 1, 2)]
    assert [found.pop("fds") for found in (first, forked, plain)] == [["/dev/null", log, log] for log in where]
    for found in (first, forked, plain):  # what differs because it joins, later and among others
        for name in ("DLAAS_GENERATION", "DLAAS_JOINS", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "TORCHELASTIC_RUN_ID"):
            found["environment"].pop(name)
    assert first == forked == plain
    assert plain["sockets"] == 1, "its line to the guardian; none that whoever submitted it left open"
    assert plain["marks"] == [True, True]
    assert plain["children"] == ""
    assert plain["random"]


@pytest.mark.parametrize("end", each_nth(["kill", "exit"], 2))
def test_guardian_knows_the_exit_of_a_forked_learner(job: Build, end: str) -> None:
    source = FAULTY.replace(
        'elif what == "sleep"', 'elif what == "code":\n        os._exit(7)\n    elif what == "sleep"'
    )
    one = started(job(source, **OPTIONS))
    one.resize(0, fresh=1)
    trains(one, 1, size=2)
    if end == "kill":
        one.kill_learner(1)
    else:
        one.output("do-1").write_text("code")
    down = one.wait(FactKind.LEARNER_DOWN)

    assert (down.member, down.code, down.signal) == ((1, None, 9) if end == "kill" else (1, 7, None))
    if end == "kill":
        trains(one, 0, size=1)
        ended(one)


def test_killed_job_zygote_costs_only_time_and_is_replaced(job: Build) -> None:
    one = started(job(LIVE, **OPTIONS))
    old = nursery(one)
    killed(old)
    one.resize(0, fresh=1)
    trains(one, 1, size=2)
    assert not is_fork(one, 1)
    nursery(one, after=old)
    one.resize(0, 1, fresh=1)
    trains(one, 2, size=3)

    assert is_fork(one, 2, of=1)
    ended(one)
    assert not [fact for fact in one.facts(FactKind.LEARNER_DOWN) if fact.failure]


@exhaustive
def test_job_zygote_killed_during_a_join_costs_only_time(job: Build) -> None:
    one = started(job(LIVE, **OPTIONS))
    old = nursery(one)
    one.resize(0, fresh=1)
    send(old, signal.SIGKILL)
    trains(one, 1, size=2)

    ended(one)
    assert not [fact for fact in one.facts(FactKind.LEARNER_DOWN) if fact.failure]


@exhaustive
def test_unresponsive_job_zygote_is_abandoned(job: Build) -> None:
    one = started(job(LIVE, **OPTIONS))
    old = nursery(one)
    send(old, signal.SIGSTOP)
    one.resize(0, fresh=1)
    trains(one, 1, size=2)
    send(old, signal.SIGCONT)
    until(lambda: not is_alive(old), "it ends")

    assert len([pid for pid in one.processes() if environment_of(pid.pid).get("DLAAS_MEMBER") == "1"]) == 1
    ended(one)


@exhaustive
@pytest.mark.parametrize("when", ["calm", "growing"])
def test_job_zygote_ends_with_its_guardian_and_growth_continues(job: Build, when: str) -> None:
    one = started(job(LIVE, **OPTIONS))
    old = nursery(one)
    if when == "growing":
        one.resize(0, fresh=1)
    one.kill_guardian()
    one.wake()
    until(lambda: not is_alive(old), "the nursery is gone")
    if when == "calm":
        one.resize(0, fresh=1)
    trains(one, 1, size=2)

    ended(one)


@exhaustive
def test_the_first_learner_may_die_and_its_nursery_stays(job: Build) -> None:
    one = started(job(LIVE, **OPTIONS))
    one.resize(0, fresh=1)
    trains(one, 1, size=2)
    kept = nursery(one)
    one.kill_learner(0)
    trains(one, 1, size=1)
    one.resize(1, fresh=1)
    trains(one, 2, size=2)

    assert is_fork(one, 2)
    assert nurseries(one) == [kept]
    ended(one)


@exhaustive
def test_a_stopped_nursery_does_not_outlive_its_job(job: Build) -> None:
    one = started(job(LIVE, **OPTIONS))
    send(nursery(one), signal.SIGSTOP)

    ended(one)


def test_a_job_that_was_started_cold_restarts_warm(job: Build) -> None:
    fixed = job("import torch, time\nprint('imported')\ntime.sleep(1000)", framework="torch")
    fixed.run(1)
    until(lambda: "imported" in (fixed.log() if fixed.facts(FactKind.LEARNER_READY) else ""), "it has imported torch")
    nursery(fixed)

    fixed.kill_learner(0)
    fixed.wait(FactKind.LOST)
    fixed.run(1)

    until(lambda: len(fixed.facts(FactKind.LEARNER_READY)) > 1, "its next learner is ready")
    assert is_fork(fixed, 1)
    fixed.stop(grace_s=0.0)


@exhaustive
def test_a_job_has_a_nursery_only_without_a_torch_zygote(job: Build, torch_zygote: Path, zygotes: Path) -> None:
    warm = job(LIVE, **OPTIONS)
    warm_up(warm, torch_zygote, "torch")
    warm.zygote_dir = torch_zygote
    warm.run(1)
    trains(warm, 0, steps=5)
    assert not nurseries(warm)
    warm.stop(grace_s=0.0)

    lean = job(LIVE, **OPTIONS)
    warm_up(lean, zygotes)
    lean.zygote_dir = zygotes
    started(lean)
    assert lean.guardian is not None
    assert lean.guardian.how == "zygote"
    lean.resize(0, fresh=1)
    trains(lean, 1, size=2)
    ended(lean)


@exhaustive
def test_joiners_see_packages_changed_meanwhile(job: Build, tmp_path: Path) -> None:
    one = job(LIVE, **OPTIONS)
    one.package_dir = make_package_dir(tmp_path / "package")
    started(one)
    (one.package_dir / "installed-meanwhile").touch()
    one.resize(0, fresh=1)
    trains(one, 1, size=2)

    assert not is_fork(one, 1)
    assert "job zygote: the environment's packages changed" in (one.dir / "guardian.log").read_text()
    ended(one)


@pytest.fixture
def importing(job: Build, tmp_path: Path) -> Callable[[str], Job]:
    """Start a job that imports a numpy with this source, which torch imports, too."""

    def start(numpy: str) -> Job:
        (tmp_path / "own").mkdir()
        (tmp_path / "own" / "numpy.py").write_text(numpy)
        source = "import numpy\nprint('imported')\n"
        one = job(source, environment={"PYTHONPATH": str(tmp_path / "own")}, **OPTIONS | {"outputs": ()})
        one.run(1)
        return one

    return start


def test_failing_preload_fails_in_user_code(importing: Callable[[str], Job]) -> None:
    lost = importing("raise RuntimeError('a broken numpy')").wait(FactKind.LOST).failure

    assert lost is not None
    assert (lost.cause, lost.what) == (Cause.YOUR_CODE, "RuntimeError: a broken numpy")


def test_threaded_torch_leaves_no_job_zygote_and_trains(importing: Callable[[str], Job]) -> None:
    thread = "import threading; threading.Thread(target=threading.Event().wait, daemon=True).start()"
    one = importing(thread)

    assert one.closed() == "completed"
    assert one.log() == "imported\n"


@exhaustive
def test_a_gang_that_broke_starts_again_from_its_nursery(job: Build) -> None:
    one = started(job(LIVE, **OPTIONS))
    kept = nursery(one)
    one.kill_learner(0)
    one.wait(FactKind.LOST)
    one.run(2)
    trains(one, 2, size=2)

    assert is_fork(one, 1)
    assert is_fork(one, 2)
    assert nurseries(one) == [kept]
    one.output("hurry").touch()
    assert one.closed() == "completed"
