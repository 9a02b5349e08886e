"""The guardian, driven by its files only: real processes, real kills."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from jupyter_dlaas.runtime.guardian.exit_status import read_result
from jupyter_dlaas.runtime.system.process import Identity, boot_id, identity, is_alive, kill_round, send
from jupyter_dlaas.wire.journal import FactKind
from jupyter_dlaas.wire.protocol import Cause
from tests.runtime.jobs import Job, until

Build = Callable[..., Job]

WAITS = """
import time, pathlib
out = pathlib.Path(__import__("os").environ["DLAAS_JOB_DIR"]) / "output"
(out / f"up-{__import__('os').environ['DLAAS_MEMBER']}").touch()
while not (out / "go").exists():
    time.sleep(0.01)
print("done", flush=True)
"""


def started(job: Job, member: int = 0) -> None:
    until(job.output(f"up-{member}").exists, f"user code of member {member} runs")


def ends_unguarded(job: Job) -> None:
    """Its only learner trains to its end after the guardian was killed."""
    job.run()
    started(job)
    learner = job.learner(0)
    job.kill_guardian()
    job.output("go").touch()
    until(lambda: not is_alive(learner), "the learner ended")


def kinds(job: Job) -> list[FactKind]:
    return [fact.kind for fact in job.facts()]


def test_job_runs_from_start_to_its_closing_fact(job: Build) -> None:
    one = job("print('hello')")
    one.run()

    assert one.closed() == "completed"
    assert kinds(one) == [
        FactKind.GUARDIAN_UP,
        FactKind.SEEN,
        FactKind.LEARNER_UP,
        FactKind.LEARNER_READY,
        FactKind.GENERATION,
        FactKind.LEARNER_DOWN,
        FactKind.COMPLETED,
        FactKind.CLOSED,
    ]
    assert [fact.n for fact in one.facts()] == list(range(8))
    assert one.log() == "hello\n"
    until(lambda: not one.processes(), "nothing is left")


def test_train_py_is_main_in_the_users_directory(job: Build) -> None:
    one = job(
        """
        import json, os, sys, helper
        import __main__
        json.dump({
            "name": __name__, "file": __file__, "main": __main__.__file__, "argv": sys.argv, "path": sys.path[:2],
            "cwd": os.getcwd(),
            "environment": {k: os.environ.get(k) for k in ("MINE", "DLAAS_JOB", "RANK", "WORLD_SIZE")},
        }, open(os.environ["DLAAS_JOB_DIR"] + "/output/seen", "w"))
        """,
        files={"helper.py": "here = True"},
        environment={"MINE": "yes", "RANK": "7", "DLAAS_MEMBER": "9"},
        command=("--fast", "1"),
    )
    one.run()

    assert one.closed() == "completed"
    seen = json.loads(one.output("seen").read_text())
    train = str(one.dir / "train.py")
    assert (seen["name"], seen["file"], seen["main"]) == ("__main__", train, train)
    assert seen["argv"] == [train, "--fast", "1"]
    assert seen["path"] == [str(one.dir / "files"), str(one.dir.parent)]
    assert seen["cwd"] == str(one.dir.parent)
    assert seen["environment"] == {"MINE": "yes", "DLAAS_JOB": "test-1", "RANK": "0", "WORLD_SIZE": "1"}


def test_a_failure_names_the_users_cell_and_line(job: Build) -> None:
    one = job(
        "# cell [3]\nscale = 0\ndef f(x):\n    return x / scale\n"
        "# cell [7]\nif __name__ == '__main__':\n    a = 1\n    f(a)\n",
        cells={"2-4": "cell [3]:1", "7-8": "cell [7]:2"},
    )
    one.run()

    lost = one.wait(FactKind.LOST)
    assert lost.failure is not None
    assert (lost.failure.cause, lost.failure.what) == (Cause.YOUR_CODE, "ZeroDivisionError: division by zero")
    where = lost.failure.where
    assert where is not None
    assert (where.label, where.line, where.function) == ("cell [3]", 3, "f")
    assert where.source[where.line - where.first_line] == "    return x / scale"
    assert lost.failure.traceback is not None
    assert "cell [7], line 3, in <module>" in lost.failure.traceback
    assert "jupyter_dlaas" not in lost.failure.traceback
    assert "cell [3], line 3, in f" in one.log()
    assert lost.failure.raised_by == (0,)


def test_a_syntax_error_names_the_line_too(job: Build) -> None:
    one = job("x = 1\ny = = 2\n", cells={"1-2": "cell [1]:1"})
    one.run()

    failure = one.wait(FactKind.LOST).failure
    assert failure is not None
    assert failure.where is not None
    assert (failure.where.label, failure.where.line) == ("cell [1]", 2)


@pytest.mark.parametrize(
    ("source", "cause", "code"),
    [
        ("import os, signal; os.kill(os.getpid(), signal.SIGSEGV)", Cause.YOUR_CODE, "segfault"),
        ("import os, signal; os.kill(os.getpid(), signal.SIGKILL)", Cause.EVICTED, "killed"),
        ("import os; os.abort()", Cause.YOUR_CODE, "aborted"),
        ("import os; os._exit(3)", Cause.YOUR_CODE, "exit_code"),
        ("import sys; sys.exit('no data today')", Cause.YOUR_CODE, "exit_code"),
        ("import sys; sys.exit(127)", Cause.YOUR_CODE, "exit_code"),
        ("import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))", Cause.RESOURCES, "disk_full"),
        ("import nowhere", Cause.YOUR_CODE, "module_missing"),
        ("open('nowhere.csv')", Cause.YOUR_DATA, "file_missing"),
        ("raise MemoryError", Cause.RESOURCES, "host_memory"),
        ("raise RuntimeError('CUDA out of memory. Tried to allocate 2 GiB')", Cause.RESOURCES, "gpu_memory"),
    ],
)
def test_exit_of_a_learner_decides_the_cause(job: Build, source: str, cause: Cause, code: str) -> None:
    one = job(source)
    one.run()

    failure = one.wait(FactKind.LOST).failure
    assert failure is not None
    assert (failure.cause, failure.code) == (cause, code)
    assert failure.what
    assert failure.advice


def test_guardian_starts_a_new_generation_after_a_loss(job: Build) -> None:
    one = job(
        """
        import os, sys
        if os.environ["DLAAS_GENERATION"] == "1":
            sys.exit(4)
        print("second try")
        """
    )
    one.run()
    lost = one.wait(FactKind.LOST)
    one.run()

    assert one.closed() == "completed"
    assert lost.generation == 1
    assert one.log(1) == "second try\n"
    ups = one.facts(FactKind.LEARNER_UP)
    assert [(f.member, f.generation) for f in ups] == [(0, 1), (1, 2)]
    assert len(one.facts(FactKind.GUARDIAN_UP)) == 1


def test_death_of_one_learner_ends_the_gang(job: Build) -> None:
    one = job(WAITS)
    one.run(3)
    for member in range(3):
        started(one, member)
    one.kill_learner(1)

    lost = one.wait(FactKind.LOST)
    assert lost.failure is not None
    assert (lost.failure.code, lost.failure.raised_by) == ("killed", (1,))
    downs = {fact.member: fact for fact in one.facts(FactKind.LEARNER_DOWN)}
    assert sorted(m for m in downs if m is not None) == [0, 1, 2]
    assert downs[1].signal == signal.SIGKILL
    assert [m for m, fact in downs.items() if fact.failure is not None] == [1]
    assert kinds(one)[-1] is FactKind.LOST


def test_plain_code_is_halted_by_a_signal_and_restarts(job: Build) -> None:
    one = job(
        """
        import atexit, os, pathlib, time
        out = pathlib.Path(os.environ["DLAAS_JOB_DIR"]) / "output"
        atexit.register(lambda: (out / "exit").touch())
        try:
            (out / "up-0").touch()
            while True:
                time.sleep(0.01)
        finally:
            (out / "cleaned").touch()
        """
    )
    one.run()
    started(one)
    one.halt()

    assert one.closed() == "halted"
    assert one.wait(FactKind.HALTED).has_checkpoint is False
    assert one.output("cleaned").exists()
    assert one.output("exit").exists()
    result = read_result(one.dir, 0)
    assert result is not None
    assert result.outcome == "left"
    assert one.facts(FactKind.LEARNER_DOWN)[0].failure is None
    assert not one.facts(FactKind.LOST)


def test_learner_that_does_not_leave_is_killed_after_its_grace(job: Build) -> None:
    one = job(WAITS.replace("import time", "import signal; signal.signal(15, signal.SIG_IGN)\nimport time"))
    one.run()
    started(one)
    one.halt(grace_s=0.2)

    assert one.closed() == "halted"
    assert one.wait(FactKind.LEARNER_DOWN).signal == signal.SIGKILL


def test_halted_job_resumes_with_a_new_guardian_and_its_journal(job: Build) -> None:
    one = job(WAITS)
    one.run()
    started(one)
    one.halt()
    one.closed()
    until(lambda: not one.processes(), "the first guardian is gone")
    one.output("go").touch()
    one.run()

    assert one.closed(2) == "completed"
    assert [fact.n for fact in one.facts()] == list(range(len(one.facts())))
    assert not one.facts(FactKind.GUARDIAN_UP)[1].took_over


@pytest.mark.parametrize("is_heir", [False, True])
def test_stop_leaves_no_process_behind_not_even_those_that_hide(job: Build, is_heir: bool) -> None:
    one = job(
        """
        import os, pathlib, signal, subprocess, sys, time
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        out = os.environ["DLAAS_JOB_DIR"] + "/output/"
        sleeper = (
            "import signal, time, sys, os; signal.signal(15, signal.SIG_IGN); "
            "open(sys.argv[1], 'w').write(str(os.getpid())); time.sleep(1000)"
        )
        subprocess.Popen([sys.executable, "-c", sleeper, out + "child"])
        subprocess.Popen([sys.executable, "-c", sleeper, out + "session"], start_new_session=True)
        # a daemon by the book: its parent ends, it has a session of its own and no mark in its environment
        forker = (
            "import os, sys; os.fork() and os._exit(0); os.setsid(); os.fork() and os._exit(0); "
            "os.execve(sys.executable, [sys.executable, '-c', sys.argv[1], sys.argv[2]], {})"
        )
        subprocess.run([sys.executable, "-c", forker, sleeper, out + "daemon"], check=True)
        while not all(os.path.exists(out + n) and open(out + n).read() for n in ("child", "session", "daemon")):
            time.sleep(0.01)
        open(out + "up-0", "w").close()
        time.sleep(1000)
        """
    )
    one.run()
    started(one)
    pids = [int(one.output(name).read_text()) for name in ("child", "session", "daemon")]
    everybody = [who for pid in pids if (who := identity(pid))] + [one.learner(0)]
    assert len(everybody) == 4
    if is_heir:
        one.kill_guardian()
        one.kill_learner(0)
    one.stop(grace_s=0.1)

    assert one.closed() == "stopped"
    assert not [who for who in everybody if is_alive(who)]
    until(lambda: not one.processes(), "the guardian itself is gone")


def test_children_of_a_learner_end_before_its_devices_are_free(job: Build) -> None:
    one = job(
        """
        import os, subprocess, sys
        child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(1000)"], start_new_session=True)
        open(os.environ["DLAAS_JOB_DIR"] + "/output/child", "w").write(str(child.pid))
        os._exit(1)
        """
    )
    one.run()
    one.wait(FactKind.LEARNER_DOWN)

    pid = int(one.output("child").read_text())
    who = identity(pid)
    assert who is None or not is_alive(who)


def test_a_killed_guardian_is_replaced_and_the_learners_train_on(job: Build) -> None:
    one = job(WAITS)
    one.run(2)
    for member in range(2):
        started(one, member)
    before = [one.learner(member) for member in range(2)]
    one.kill_guardian()
    assert all(map(is_alive, before))
    one.start_guardian()
    up = one.wait(FactKind.GUARDIAN_UP, 2)
    one.output("go").touch()

    assert one.closed() == "completed"
    assert up.took_over
    assert len(one.facts(FactKind.LEARNER_UP)) == 2
    assert [fact.code for fact in one.facts(FactKind.LEARNER_DOWN)] == [0, 0]
    assert [fact.n for fact in one.facts()] == list(range(len(one.facts())))


def test_next_guardian_reports_a_learner_that_ended_meanwhile(job: Build) -> None:
    one = job(WAITS)
    ends_unguarded(one)
    one.start_guardian()

    assert one.closed() == "completed"


def test_next_guardian_reports_a_learner_that_was_killed_meanwhile(job: Build) -> None:
    one = job(WAITS)
    one.run()
    started(one)
    learner = one.learner(0)
    one.kill_guardian()
    send(learner, signal.SIGKILL)
    until(lambda: not is_alive(learner), "the learner is gone")
    one.start_guardian()

    failure = one.wait(FactKind.LOST).failure
    assert failure is not None
    assert failure.cause is Cause.UNKNOWN


@pytest.mark.parametrize("after", [FactKind.GUARDIAN_UP, FactKind.SEEN, FactKind.LEARNER_UP, FactKind.LEARNER_READY])
def test_a_guardian_killed_while_it_starts_learners_starts_none_twice(job: Build, after: FactKind) -> None:
    one = job(WAITS)
    one.run(2)
    one.wait(after)
    one.kill_guardian()
    one.start_guardian()
    for member in range(2):
        started(one, member)
    one.output("go").touch()

    assert one.closed() == "completed"
    assert sorted(fact.member or 0 for fact in one.facts(FactKind.LEARNER_UP)) == [0, 1]
    assert one.log(0) == one.log(1) == "done\n"


def test_learners_still_leave_after_their_guardian_is_killed(job: Build) -> None:
    one = job(WAITS.replace("import time", "import signal; signal.signal(15, signal.SIG_IGN)\nimport time"))
    one.run()
    started(one)
    one.halt(grace_s=0.5)
    one.wait(FactKind.SEEN, 2)
    one.kill_guardian()
    one.start_guardian()

    assert one.closed() == "halted"
    until(lambda: not one.processes(), "nothing is left")


def test_a_second_guardian_of_one_job_ends_at_once(job: Build) -> None:
    one = job(WAITS)
    one.run()
    started(one)
    first = one.guardian
    second = one.start_guardian()
    assert first is not None
    until(lambda: not is_alive(Identity(second.pid, second.start, second.boot)), "the second is gone")

    assert is_alive(Identity(first.pid, first.start, first.boot))
    assert len(one.facts(FactKind.GUARDIAN_UP)) == 1


def test_superfluous_guardian_does_not_reopen_a_closed_job(job: Build) -> None:
    one = job("pass")
    one.run()
    one.closed()
    until(lambda: not one.processes(), "the guardian is gone")
    before = one.facts()
    late = one.start_guardian()
    until(lambda: not is_alive(Identity(late.pid, late.start, late.boot)), "the late one is gone")

    assert one.facts() == before


def test_torn_line_is_cut_off_and_numbering_continues(job: Build) -> None:
    one = job(WAITS)
    one.run()
    started(one)
    one.kill_guardian()
    whole = len(one.facts())
    with (one.dir / "journal.jsonl").open("ab") as file:
        file.write(b'{"n":99,"at_s":1.0,"kind":"learner_do')
    one.start_guardian()
    one.wait(FactKind.GUARDIAN_UP, 2)
    one.output("go").touch()

    assert one.closed() == "completed"
    assert one.facts()[whole].kind is FactKind.GUARDIAN_UP
    lines = (one.dir / "journal.jsonl").read_text().splitlines()
    assert [json.loads(line)["n"] for line in lines] == list(range(len(lines)))


def test_resize_by_restart_ends_old_learners_first(job: Build) -> None:
    one = job(WAITS)
    one.run(1)
    started(one)
    one.run(2)
    for member in (1, 2):
        started(one, member)
    one.output("go").touch()

    assert one.closed() == "completed"
    story = [(fact.kind, fact.member) for fact in one.facts(FactKind.LEARNER_UP, FactKind.LEARNER_DOWN)]
    assert story[:4] == [
        (FactKind.LEARNER_UP, 0),
        (FactKind.LEARNER_DOWN, 0),
        (FactKind.LEARNER_UP, 1),
        (FactKind.LEARNER_UP, 2),
    ]


def test_log_lines_keep_their_own_time(job: Build) -> None:
    from jupyter_dlaas.jobdir.log_index import read_index, time_of

    one = job("import time\nprint('a', flush=True)\ntime.sleep(0.5)\nprint('b', flush=True)\ntime.sleep(0.1)")
    one.run()

    assert one.closed() == "completed"
    entries = read_index(one.dir / "learner-0" / "stdout.idx")
    first, second = time_of(entries, 0), time_of(entries, 2)
    assert first is not None
    assert second is not None
    assert 0.3 < second - first < 5.0


def test_missing_interpreter_is_a_platform_failure(tmp_path: Path, job: Build) -> None:
    from jupyter_dlaas.runtime.zygote.start_guardian import StartError

    one = job("pass", interpreter=str(tmp_path / "no-python"))
    with pytest.raises(StartError, match="no-python"):
        one.run()


def test_an_idle_guardian_uses_no_processor_time(job: Build) -> None:
    one = job(WAITS)
    one.run()
    started(one)
    one.wait(FactKind.LEARNER_READY)
    assert one.guardian is not None
    ticks = Path(f"/proc/{one.guardian.pid}/stat").read_text().rpartition(")")[2].split()[11:13]
    time.sleep(1.0)  # what is measured is that nothing happens meanwhile
    later = Path(f"/proc/{one.guardian.pid}/stat").read_text().rpartition(")")[2].split()[11:13]

    assert ticks == later


def test_a_second_interpreter_without_the_package_runs_the_job(tmp_path: Path, job: Build) -> None:
    venv = tmp_path / "other"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(venv)], check=True)
    python = venv / "bin" / "python"
    gone = subprocess.run([python, "-P", "-c", "import jupyter_dlaas"], cwd="/", capture_output=True, check=False)
    assert gone.returncode != 0
    one = job(
        """
        import os, sys
        from jupyter_dlaas import run
        open(os.environ["DLAAS_JOB_DIR"] + "/output/seen", "w").write(sys.prefix + " " + str(run().world_size))
        """,
        interpreter=str(python),
    )
    one.run()

    assert one.closed() == "completed"
    assert one.output("seen").read_text() == f"{venv} 1"


def test_process_with_a_reused_pid_is_not_signalled() -> None:
    me = identity(os.getpid())
    assert me is not None
    assert not send(Identity(me.pid, me.start - 1, boot_id()), signal.SIGTERM)
    assert not send(Identity(me.pid, me.start, "another boot"), signal.SIGTERM)


@pytest.fixture
def stranger() -> Iterator[subprocess.Popen[bytes]]:
    """Start a process in a session of its own that belongs to no job."""
    one = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(1000)"], env={}, start_new_session=True)
    yield one
    one.kill()
    one.wait()


def test_foreign_session_with_a_reused_id_is_left_alone(tmp_path: Path, stranger: subprocess.Popen[bytes]) -> None:
    who = identity(stranger.pid)
    assert who is not None
    earlier = [replace(who, start=who.start - 1), replace(who, boot="another boot")]

    assert kill_round(str(tmp_path), sessions=earlier) == 0
    assert stranger.poll() is None
    assert kill_round(str(tmp_path), sessions=[who]) == 1
    assert stranger.wait(10) == -signal.SIGKILL


@pytest.mark.parametrize("other", [{"boot": "another boot"}, {"start": 1}], ids=["since a reboot", "of a reused pid"])
def test_late_guardian_kills_no_process_with_a_reused_pid(
    job: Build, stranger: subprocess.Popen[bytes], other: dict[str, object]
) -> None:
    one = job(WAITS)
    ends_unguarded(one)
    who = identity(stranger.pid)
    assert who is not None
    facts = [json.loads(line) for line in (one.dir / "journal.jsonl").read_text().splitlines()]
    for fact in facts:
        if fact["kind"] == FactKind.LEARNER_UP:
            fact |= {"pid": who.pid, "start": who.start, "boot": who.boot} | other
    (one.dir / "journal.jsonl").write_text("".join(json.dumps(fact) + "\n" for fact in facts))
    one.start_guardian()

    assert one.closed() == "completed"
    assert stranger.poll() is None


LATE_LOOP = (
    WAITS
    + """
import own
own.train()
"""
)
OWN = """
import jupyter_dlaas as dlaas
def train():
    for epoch in dlaas.run().epochs(2):
        print("epoch", epoch, flush=True)
"""


def test_late_loop_is_reported_once_across_guardians(job: Build) -> None:
    one = job(LATE_LOOP, files={"own.py": OWN})
    one.run()
    assert one.wait(FactKind.GENERATION).plain
    one.kill_guardian()
    one.start_guardian()
    one.wait(FactKind.GUARDIAN_UP, 2)
    assert one.facts(FactKind.BEGUN) == [], "it has no loop yet"
    one.output("go").touch()

    assert one.closed() == "completed"
    assert [fact.generation for fact in one.facts(FactKind.BEGUN)] == [1]


def test_loop_known_from_the_start_is_not_reported_again(job: Build) -> None:
    one = job(
        "import own\nimport jupyter_dlaas as dlaas\nfor epoch in dlaas.run().epochs(2):\n    pass\n",
        files={"own.py": ""},
    )
    one.run()

    assert one.closed() == "completed"
    assert one.wait(FactKind.GENERATION).plain is None
    assert one.facts(FactKind.BEGUN) == []


def test_single_learner_hang_ends_at_the_limit_with_its_line(job: Callable[..., Job]) -> None:
    source = "import threading\n\ndef wait():\n    threading.Event().wait()\n\nwait()\n"
    one = job(source, hang_after_s=1.0, cells={"1-6": "cell [3]:1"})
    one.run(1)

    failure = one.wait(FactKind.LEARNER_DOWN).failure

    assert failure is not None
    assert (failure.code, failure.cause) == ("hang", Cause.HANG)
    assert failure.where is not None
    assert (failure.where.label, failure.where.line, failure.where.function) == ("cell [3]", 4, "wait")
    assert "--hang-after" in failure.advice
