"""Guardians that live and answer nothing are found and ended; those that answer, or cannot yet, are not."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from dlaas_server.pools.base import Loss
from dlaas_server.pools.local import liveness
from dlaas_server.pools.local.job_folder import JobFolder
from dlaas_server.pools.local.job_watch import JobWatch
from dlaas_server.pools.local.liveness import HUNG_CHECKS, PERIOD_CHECKS, LivenessProbe
from jupyter_dlaas.jobdir.atomic_files import bind
from jupyter_dlaas.runtime.fencing.discovery_files import Presence
from jupyter_dlaas.runtime.fencing.lock import LOCK, SOCKET, Lock
from jupyter_dlaas.runtime.system.process import Activity, Identity, identity, is_alive

CHECKS = 3 * (PERIOD_CHECKS + HUNG_CHECKS)
SILENT = f"""
import socket, sys, time
sock = socket.socket(socket.AF_UNIX)
sock.bind({SOCKET!r})
sock.listen(1)
print("listens", flush=True)
time.sleep(600)
"""


@pytest.fixture
def me() -> Identity:
    found = identity(os.getpid())
    assert found is not None
    return found


@pytest.fixture
def listener(tmp_path: Path) -> Iterator[socket.socket]:
    with bind(socket.SOCK_STREAM, tmp_path / SOCKET, listen=128) as sock:
        sock.setblocking(False)
        yield sock


def checks_until_hung(who: Identity, root: Path, probe: LivenessProbe | None = None) -> int | None:
    probe = probe or LivenessProbe()
    for number in range(CHECKS):
        if probe.check({"a-1": (who, root)}):
            probe.close()
            return number
    probe.close()
    return None


@pytest.mark.parametrize("waiting", [0, 3])
def test_a_guardian_that_answers_nothing_is_hung(
    me: Identity, listener: socket.socket, tmp_path: Path, waiting: int
) -> None:
    if waiting:
        listener.listen(1)
    others = [socket.socket(socket.AF_UNIX) for _ in range(waiting)]  # they fill the queue of its socket
    for other in others:
        other.setblocking(False)
        other.connect_ex(str(tmp_path / SOCKET))
    found = checks_until_hung(me, tmp_path)
    for other in others:
        other.close()

    assert found is not None
    assert found >= PERIOD_CHECKS + HUNG_CHECKS


def test_a_guardian_that_answers_is_never_hung(me: Identity, listener: socket.socket, tmp_path: Path) -> None:
    probe, heard = LivenessProbe(), 0
    for _ in range(CHECKS):
        assert probe.check({"a-1": (me, tmp_path)}) == []
        try:
            caller, _ = listener.accept()
        except BlockingIOError:
            continue
        heard += bool(caller.recv(4096))
        caller.close()
    probe.close()

    assert heard == CHECKS // (PERIOD_CHECKS + 1)


def test_a_guardian_without_a_socket_is_not_hung(me: Identity, tmp_path: Path) -> None:
    assert checks_until_hung(me, tmp_path) is None


def test_socket_of_another_process_proves_nothing(me: Identity, listener: socket.socket, tmp_path: Path) -> None:
    assert checks_until_hung(Identity(1, 1, me.boot), tmp_path) is None


def test_a_guardian_that_waits_for_a_disk_is_not_ended(
    me: Identity, listener: socket.socket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(liveness, "activity_of", lambda who: Activity(ticks=0, state="D"))

    assert checks_until_hung(me, tmp_path) is None


def test_a_new_guardian_starts_with_a_clean_record(me: Identity, listener: socket.socket, tmp_path: Path) -> None:
    probe = LivenessProbe()
    for _ in range(PERIOD_CHECKS + HUNG_CHECKS):
        assert probe.check({"a-1": (me, tmp_path)}) == []
    other = Identity(me.pid, me.start + 1, me.boot)

    assert probe.check({"a-1": (other, tmp_path)}) == []
    probe.close()


@pytest.mark.anyio
async def test_a_hung_guardian_is_killed_and_the_loss_explained(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, anyio_backend: str
) -> None:
    monkeypatch.setattr(liveness, "PERIOD_CHECKS", 0)
    monkeypatch.setattr(liveness, "HUNG_CHECKS", 2)
    root = tmp_path / "a-1"
    root.mkdir()
    command = [sys.executable, "-ISc", SILENT]
    with subprocess.Popen(command, cwd=root, stdout=subprocess.PIPE, text=True) as silent:  # noqa: ASYNC220
        assert silent.stdout is not None
        assert silent.stdout.readline() == "listens\n"
        who = identity(silent.pid)
        assert who is not None
        watch = JobWatch(lambda job, stream: None, lambda job: None)
        watch.follow(JobFolder("a-1", root))
        assert watch.hold("a-1", who)
        for _ in range(5):
            watch._check_guardians()
        silent.wait()
        watch.close()

    assert not is_alive(who)
    assert watch.loss_of("a-1") == Loss(text="It did not answer for 60 s and was ended")
    assert watch.loss_of("a-1") == Loss(), "reported once"


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


def test_probe_is_no_message_of_a_learner(me: Identity, tmp_path: Path) -> None:
    with (tmp_path / LOCK).open("w") as lock:
        presence, probe = Presence(tmp_path, Lock(tmp_path / LOCK, lock.fileno()), 0.0), LivenessProbe()
        with presence.wake, presence.callers.listener:
            for _ in range(PERIOD_CHECKS + 2):
                assert probe.check({"a-1": (me, tmp_path)}) == []
                presence.callers.accept()
                assert presence.callers.introductions() == []
            assert len(presence.callers.interests()) == 1, "the connection of the probe was closed"
        probe.close()
