"""The contract of a host of learners, for the guardian's own machine."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from jupyter_dlaas.jobdir.atomic_files import connect
from jupyter_dlaas.runtime.hosts.learner_host import HostEvent, Started
from jupyter_dlaas.runtime.hosts.local_host import LocalHost
from jupyter_dlaas.runtime.hosts.plain_spawn import plain_spawn
from tests.hosts.contract import LearnerHostContract, ended, heard, kill_members, of, started, turn, until


class LocalRig:
    """A host that shares the job's directory with its learners."""

    def __init__(self, job_dir: Path) -> None:
        self.job_dir = job_dir
        job_dir.mkdir()
        self.events: list[HostEvent] = []
        self.ahead_s = 0.0
        self.host = self._host()

    def _host(self) -> LocalHost:
        return LocalHost(self.job_dir, plain_spawn(self.job_dir, os.environ))

    def others(self, now: float) -> tuple[dict[int, int], list[float]]:
        return {}, []

    def turn_others(self, ready: set[int], now: float) -> None:
        """There are none."""

    def restart_guardian(self) -> None:
        known = {member: process.identity for member, process in self.host.processes().items()}
        self.host.close()
        self.host = self._host()
        self.host.adopt(known, set(known), ())


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[LocalRig]:
    made = LocalRig(tmp_path / "job")
    yield made
    kill_members([made.job_dir])
    made.host.close()


class TestLocalHost(LearnerHostContract):
    """All promises, on this machine."""


def test_a_process_that_is_no_learner_is_dismissed(rig: LocalRig) -> None:
    started(rig)
    stranger = connect(socket.SOCK_STREAM, rig.job_dir / "guardian.sock", timeout_s=10.0)
    stranger.sendall(b'{"t":"state"}\n')
    turn(rig)
    assert stranger.recv(100) == b'{"t":"leave"}\n'
    assert stranger.recv(100) == b""
    stranger.close()
    assert len(heard(rig, "hello")) == 1


def test_a_learner_that_ended_meanwhile_is_not_adopted(rig: LocalRig) -> None:
    started(rig)
    known = {0: rig.host.processes()[0].identity}
    rig.host.sweep(0)
    until(rig, lambda: not rig.host.processes(), "its end")
    rig.host.close()
    rig.events.clear()
    rig.host = rig._host()
    rig.host.adopt(known, {0}, ())
    turn(rig)
    assert of(rig, Started) == []
    assert ended(rig).code is None
