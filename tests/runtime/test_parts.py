"""The parts of the runtime by themselves: what decides, what is written, what is known of processes."""

from __future__ import annotations

import errno
import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jupyter_dlaas.failures import diagnosis
from jupyter_dlaas.jobdir.atomic_files import bind, connect, send_datagram
from jupyter_dlaas.jobdir.checkpoint_manifest import Manifest
from jupyter_dlaas.jobdir.journal_file import Journal, is_closed, read_facts
from jupyter_dlaas.jobdir.layout import learner_folder
from jupyter_dlaas.jobdir.log_index import LogIndex, read_index, time_of
from jupyter_dlaas.runtime.guardian.decide import Act, Seen, agree, decide
from jupyter_dlaas.runtime.guardian.journal_writer import JournalWriter
from jupyter_dlaas.runtime.guardian.learner_process import Learner
from jupyter_dlaas.runtime.spawn import launch
from jupyter_dlaas.runtime.spawn.program_analysis import expects_run, uses_torch_distributed
from jupyter_dlaas.runtime.system.inotify import Watch
from jupyter_dlaas.runtime.system.process import (
    Identity,
    boot_id,
    identity,
    is_alive,
    open_process,
    parse_environment,
    uptime_s,
)
from jupyter_dlaas.wire.codec import encode
from jupyter_dlaas.wire.journal import (
    FactKind,
    GenerationStarted,
    Goal,
    JobClosed,
    LearnerDown,
    MemberWanted,
    Wanted,
    WantedSeen,
    is_retried,
)
from jupyter_dlaas.wire.learner_messages import LearnerState
from jupyter_dlaas.wire.step_range import Range


def wanted(goal: Goal, generation: int = 1) -> Wanted:
    return Wanted(revision=1, goal=goal, generation=generation, members=(MemberWanted(member=0, node="n"),))


# -- the coordinator


def test_generation_starts_only_after_the_last_one_ended() -> None:
    assert decide(wanted(Goal.RUN), Seen(generation=-1, alive=0)) is Act.START
    assert decide(wanted(Goal.RUN, 2), Seen(generation=1, alive=1)) is Act.LEAVE
    assert decide(wanted(Goal.RUN, 2), Seen(generation=1, alive=0)) is Act.START


def test_a_lost_generation_is_not_started_again_by_itself() -> None:
    assert decide(wanted(Goal.RUN), Seen(generation=1, alive=2, is_broken=True)) is Act.END
    assert decide(wanted(Goal.RUN), Seen(generation=1, alive=0)) is Act.WAIT


def test_finished_learners_complete_despite_a_late_halt() -> None:
    assert decide(wanted(Goal.HALT), Seen(generation=1, alive=0, is_complete=True)) is Act.COMPLETE
    assert decide(wanted(Goal.HALT), Seen(generation=1, alive=0)) is Act.HALTED


def test_withdrawn_halt_still_ends_in_a_halt() -> None:
    assert decide(wanted(Goal.RUN), Seen(generation=1, alive=1, is_leaving=True)) is Act.LEAVE
    assert decide(wanted(Goal.RUN, 2), Seen(generation=1, alive=1, is_changing=True, is_leaving=True)) is Act.LEAVE
    assert decide(wanted(Goal.RUN), Seen(generation=1, alive=0, is_leaving=True)) is Act.HALTED


seen = st.builds(
    Seen,
    generation=st.integers(-1, 3),
    alive=st.integers(0, 3),
    is_broken=st.booleans(),
    is_complete=st.booleans(),
    is_leaving=st.booleans(),
)


@given(st.sampled_from(Goal), st.integers(1, 3), seen)
def test_nothing_is_closed_or_started_while_a_learner_lives(goal: Goal, generation: int, picture: Seen) -> None:
    act = decide(wanted(goal, generation), picture)

    if picture.alive:
        assert act in (Act.WAIT, Act.LEAVE, Act.END)
    if goal is Goal.STOP:
        assert act in (Act.END, Act.STOPPED)


@given(st.lists(st.none() | st.integers(0, 100), min_size=1))
def test_all_stop_at_a_boundary_that_none_has_passed(passed: list[int | None]) -> None:
    at = agree(passed)

    assert all(count is None or count <= at for count in passed)
    assert at == 0 or at in passed


# -- programs


RUNS = {
    "import jupyter_dlaas as dlaas\nrun = dlaas.run()": True,
    "import jupyter_dlaas\njupyter_dlaas.run ()": True,
    "from jupyter_dlaas import run as start\nwith start() as one: pass\nsubprocess.run(1)": True,
    "# made by jupyter_dlaas\nimport subprocess\nsubprocess.run(['true'])": False,
    "# made by jupyter_dlaas\nasyncio.run(main())": False,
    "import jupyter_dlaas as dlaas\n# dlaas.run()\ndlaas.shell('run()')": False,
    "import jupyter_dlaas as dlaas\ndlaas.run(": False,
}
DISTRIBUTED = {
    "import torch.distributed as dist": True,
    "import torch\ntorch.distributed.barrier()": True,
    "from torch import distributed as dist": True,
    "from torch.nn.parallel import DistributedDataParallel as DDP": True,
    "net = nn.SyncBatchNorm(3)": True,
    "# no torch.distributed here\nimport torch": False,
    "text = 'DistributedDataParallel'": False,
}


@pytest.mark.parametrize("source", RUNS)
def test_a_program_that_calls_run_is_known_by_its_tree(source: str) -> None:
    assert expects_run(source) is RUNS[source]


@pytest.mark.parametrize("source", DISTRIBUTED)
def test_distributed_program_is_recognised_by_its_syntax_tree(source: str) -> None:
    assert uses_torch_distributed(source) is DISTRIBUTED[source]


# -- pauses


@pytest.mark.parametrize("was_killed", [False, True])
def test_the_pause_of_a_restart_ignores_the_time_of_day(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, was_killed: bool
) -> None:
    writer, left_s = JournalWriter(tmp_path), uptime_s() - 3.0
    if was_killed:
        (tmp_path / "progress.json").write_text(json.dumps({"at_s": time.time() - 3.0}))
    else:
        folder = learner_folder(tmp_path, 0)
        folder.mkdir()
        (folder / "result.json").write_text(json.dumps({"outcome": "left", "code": 0, "up_s": left_s}))
    writer.down(Learner(0, 1, 0, Identity(1, 1, boot_id())))
    monkeypatch.setattr(time, "time", lambda: 0.0)  # the clock is set back
    again = Learner(1, 2, 0, Identity(2, 2, boot_id()))
    again.listen(LearnerState(member=1, step=8, up_s=left_s + 5.0))
    writer.together(2, again.trains_from, again.began_s)

    facts, _ = read_facts(tmp_path / "journal.jsonl")
    (fact,) = (fact for fact in facts if isinstance(fact, GenerationStarted))
    assert fact.step == 8
    assert fact.idle_s == pytest.approx(5.0, abs=1.0)


# -- checkpoints


def store_checkpoint(job_dir: Path, *, generation: int, step: int) -> None:
    """Store the manifest of a checkpoint of a generation that began at step 0."""
    manifest = Manifest(
        step=step, epoch=0, generation=generation, at_s=1.0, seconds=0.1, bytes=1, sha256="", learners=2,
        trained=(Range(epoch=0, first=0, end=step),),
    )  # fmt: skip
    folder = job_dir / "checkpoints" / f"step-{step:010}"
    folder.mkdir(parents=True)
    (folder / "manifest.json").write_text(json.dumps(encode(manifest)))


def kinds_after(job_dir: Path, *calls: Callable[[JournalWriter], object]) -> list[FactKind]:
    """Return the kinds of the facts that a journal holds after these calls."""
    writer = JournalWriter(job_dir)
    for call in calls:
        call(writer)
    return [fact.kind for fact in read_facts(job_dir / "journal.jsonl")[0]]


def test_checkpoint_is_recorded_after_its_generations_begin(tmp_path: Path) -> None:
    store_checkpoint(tmp_path, generation=2, step=95)

    kinds = kinds_after(tmp_path, lambda writer: writer.checkpoints(), lambda writer: writer.together(2, 0))

    assert kinds == [FactKind.GENERATION, FactKind.COMMITTED, FactKind.CHECKPOINT]


@pytest.mark.parametrize("end", [FactKind.LOST, FactKind.HALTED])
def test_checkpoint_of_an_unrecorded_begin_precedes_the_end(tmp_path: Path, end: FactKind) -> None:
    store_checkpoint(tmp_path, generation=2, step=95)

    kinds = kinds_after(tmp_path, lambda w: w.lost(2, None) if end is FactKind.LOST else w.halted(2))

    assert kinds == [FactKind.COMMITTED, FactKind.CHECKPOINT, end]


# -- files


def test_journal_lines_are_numbered_and_readable_from_any_line(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "journal.jsonl", now=lambda: 1.0)
    journal.append(WantedSeen(revision=1))
    _, offset = read_facts(tmp_path / "journal.jsonl")
    journal.append(WantedSeen(revision=2))
    journal.close()
    with (tmp_path / "journal.jsonl").open("ab") as file:
        file.write(b'{"n":2,')

    facts, end = read_facts(tmp_path / "journal.jsonl", offset)
    again = Journal(tmp_path / "journal.jsonl", now=lambda: 1.0)

    assert [fact.revision for fact in facts if isinstance(fact, WantedSeen)] == [2]
    assert again.append(JobClosed(why="stopped")).n == 2
    assert [fact.n for fact in read_facts(tmp_path / "journal.jsonl")[0]] == [0, 1, 2]
    assert read_facts(tmp_path / "journal.jsonl", end)[0][0].kind is FactKind.CLOSED
    again.close()


def test_journal_is_closed_by_its_last_fact_only(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    assert not is_closed(path)
    journal = Journal(path, now=lambda: 1.0)
    for number in range(40):
        journal.append(WantedSeen(revision=number))
        assert not is_closed(path)
    journal.append(JobClosed(why="halted"))
    assert is_closed(path)
    with path.open("ab") as file:
        file.write(b'{"n":41,"at_s":1.0,"ki')
    assert is_closed(path), "a fact that is being written is none yet"
    journal.append(WantedSeen(revision=41))
    assert not is_closed(path), "the next guardian has begun"


def test_environment_is_read_without_its_padding() -> None:
    assert parse_environment(b"A=1\0B\0C=x=y\0" + bytes(10)) == {"A": "1", "C": "x=y"}
    assert parse_environment(b"") == {}


def test_a_full_disk_delays_facts_and_loses_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    journal = Journal(tmp_path / "journal.jsonl", now=lambda: 1.0)
    write = os.write
    with monkeypatch.context() as full:
        full.setattr(os, "write", lambda fd, data: write(fd, data[:5]))
        journal.append(WantedSeen(revision=1))
        journal.append(WantedSeen(revision=2))
        assert not journal.flush()
        assert (tmp_path / "journal.jsonl").read_bytes() == b""

    assert journal.flush()
    assert [getattr(fact, "revision", None) for fact in read_facts(tmp_path / "journal.jsonl")[0]] == [1, 2]
    journal.close()


def test_log_index_has_the_time_of_each_byte(tmp_path: Path) -> None:
    log = tmp_path / "stdout.log"
    first = LogIndex(tmp_path)
    log.write_bytes(b"one\n")
    assert first.look(10.0)
    assert not first.look(11.0)
    first.close()
    again = LogIndex(tmp_path)
    with log.open("ab") as file:
        file.write(b"two\n")
    assert again.look(20.0)
    again.close()

    entries = read_index(tmp_path / "stdout.idx")
    assert [time_of(entries, offset) for offset in (0, 3, 4, 100)] == [10.0, 10.0, 20.0, 20.0]


@pytest.mark.parametrize("is_polled", [False, True])
def test_watch_reports_written_files(tmp_path: Path, is_polled: bool) -> None:
    watch = Watch()
    if is_polled:
        watch.close()
    watch.add(tmp_path)
    watch.read()
    (tmp_path / "a").write_text("x")
    (tmp_path / "b").touch()

    assert watch.read() == {tmp_path / "a", tmp_path / "b"}
    assert watch.read() == set()
    assert watch.must_poll is is_polled
    with pytest.raises(FileNotFoundError):
        watch.add(tmp_path / "none")
    watch.close()


def test_sockets_work_below_paths_of_any_length(tmp_path: Path) -> None:
    folder = tmp_path / ("x" * 100) / ("y" * 100)
    folder.mkdir(parents=True)
    with bind(socket.SOCK_DGRAM, folder / "wake") as receiver:
        assert send_datagram(folder / "wake", b"!")
        assert receiver.recv(10) == b"!"
    assert not send_datagram(folder / "wake", b"!")
    with (
        bind(socket.SOCK_STREAM, folder / "endpoint", listen=1),
        connect(socket.SOCK_STREAM, folder / "endpoint", timeout_s=1),
    ):
        pass


# -- processes


def test_process_identity_holds_until_its_end() -> None:
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    who = identity(child.pid)
    assert who is not None
    assert is_alive(who)
    fd = open_process(who)
    assert fd is not None
    os.close(fd)
    assert open_process(Identity(who.pid, who.start + 1, who.boot)) is None
    assert open_process(who, job_dir="/of/another/job") is None
    child.communicate(b"\n")

    assert not is_alive(who)
    assert open_process(who) is None
    assert who.boot == boot_id()


def test_learner_environment_has_its_rank_and_no_outer_job() -> None:
    members = tuple(MemberWanted(member=m, node="ab"[m // 6], environment={"OMP_NUM_THREADS": "2"}) for m in (4, 5, 6))
    base = {"RANK": "9", "DLAAS_MEMBER": "9", "MASTER_ADDR": "x", "MINE": "1", "PYTHONPATH": "/mine"}

    found = launch.learner_environment(
        base,
        job="a-1",
        generation=3,
        members=members,
        rank=1,
        store=("127.0.0.1", 99),
    )
    found = launch.host_environment(found, job_dir="/j", member=5)

    expected = {"RANK": "1", "LOCAL_RANK": "1", "WORLD_SIZE": "3", "LOCAL_WORLD_SIZE": "2", "MASTER_PORT": "99"}
    assert {key: found[key] for key in expected} == expected
    assert (found["DLAAS_MEMBER"], found["DLAAS_GENERATION"], found["MINE"]) == ("5", "3", "1")
    assert (found["PYTHONPATH"], found["OMP_NUM_THREADS"]) == (f"{launch.package_folder()}:/mine", "2")
    assert found["DLAAS_JOB_DIR"] == "/j"
    assert found["TORCHELASTIC_USE_AGENT_STORE"] == "True"


def test_local_rank_is_a_visible_device() -> None:
    members = tuple(MemberWanted(member=m, node="a", environment={"CUDA_VISIBLE_DEVICES": f"GPU-{m}"}) for m in (0, 1))
    found = launch.learner_environment({}, job="", generation=0, members=members, rank=1, store=None)

    assert (found["CUDA_VISIBLE_DEVICES"], found["LOCAL_RANK"], found["RANK"]) == ("GPU-1", "0", "1")


def _missing(folder: Path) -> Path:
    return folder / "missing"


def _not_executable(folder: Path) -> Path:
    (folder / "text").write_text("hello")
    return folder / "text"


def _not_a_program(folder: Path) -> Path:
    (folder / "garbage").write_bytes(b"\x00garbage")
    (folder / "garbage").chmod(0o755)
    return folder / "garbage"


def _without_its_folder(folder: Path) -> Path:
    return _not_executable(folder) / "python"


def _script_of_a_missing_program(folder: Path) -> Path:
    (folder / "script").write_text(f"#!{folder}/missing\n")
    (folder / "script").chmod(0o755)
    return folder / "script"


@pytest.mark.parametrize(
    "make", [_missing, _not_executable, _not_a_program, _without_its_folder, _script_of_a_missing_program]
)
def test_a_program_that_cannot_be_executed_is_not_retried(tmp_path: Path, make: Callable[[Path], Path]) -> None:
    program = str(make(tmp_path))
    order = launch.Order(module="m", arguments=(), environment={}, log=str(tmp_path / "log"))
    with pytest.raises(launch.ProgramUnusable) as caught:
        launch.spawn(order, executable=program)

    failure = diagnosis.not_started(caught.value.strerror or "", caught.value.filename)
    assert program in failure.what
    assert "jupyter dlaas retry" in failure.advice
    assert not is_retried(failure)


@pytest.mark.parametrize("number", [errno.EAGAIN, errno.ENOMEM])
def test_a_process_that_the_system_refuses_is_retried(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    def refuse(*args: object, **more: object) -> int:
        raise OSError(number, os.strerror(number), sys.executable)

    monkeypatch.setattr(os, "posix_spawn", refuse)
    order = launch.Order(module="m", arguments=(), environment={}, log=str(tmp_path / "log"))
    with pytest.raises(OSError, match=os.strerror(number)) as caught:
        launch.spawn(order)

    assert not isinstance(caught.value, launch.ProgramUnusable)
    assert is_retried(diagnosis.not_started(caught.value.strerror or ""))


def test_unopenable_log_is_not_a_user_error(tmp_path: Path) -> None:
    order = launch.Order(module="m", arguments=(), environment={}, log=str(tmp_path / "missing" / "log"))
    with pytest.raises(OSError, match="No such file") as caught:
        launch.spawn(order)

    assert not isinstance(caught.value, launch.ProgramUnusable)


def test_memory_in_huge_pages_keeps_its_content() -> None:
    program = """
from jupyter_dlaas.runtime.spawn.huge_pages import collapse

held = [bytearray(b"%04d" % n) * 4096 for n in range(1024)]  # 16 MB in many pieces
moved = collapse()  # 0 without huge pages, or without free memory for them
assert moved % (2 << 20) == 0, moved
assert all(one == b"%04d" % n * 4096 for n, one in enumerate(held))
"""
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)


def test_runtime_and_learner_import_only_the_standard_library() -> None:
    program = (
        "import sys; before = set(sys.modules);"
        "import jupyter_dlaas.runtime.guardian.guardian, jupyter_dlaas.runtime.zygote.zygote, "
        "jupyter_dlaas.runtime.zygote.start_guardian,"
        "jupyter_dlaas.learner.process.main, jupyter_dlaas.learner.training_run.run, jupyter_dlaas.transfer.results;"
        "print(*sorted({name.split('.')[0] for name in set(sys.modules) - before}))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)

    strange = set(done.stdout.split()) - set(sys.stdlib_module_names) - {"jupyter_dlaas"}
    assert not {name for name in strange if not name.startswith("_")}


def test_guardian_writes_the_documented_facts(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "journal.jsonl", now=lambda: 2.5)
    journal.append(LearnerDown(member=1, generation=2, code=0))
    journal.close()

    written = json.loads((tmp_path / "journal.jsonl").read_text())
    assert written == {
        "n": 0,
        "at_s": 2.5,
        "up_s": written["up_s"],
        "kind": "learner_down",
        "generation": 2,
        "member": 1,
        "code": 0,
    }
