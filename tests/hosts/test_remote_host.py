"""The contract of a host of learners, for agents with private directories, and what only agents promise."""

from __future__ import annotations

import json
import os
import secrets
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

import pytest

import jupyter_dlaas
from jupyter_dlaas.runtime.hosts import agent as agent_module
from jupyter_dlaas.runtime.hosts.agent import KEEP_S, ORPHAN_S, Agent, agent_name, cgroup_oom_kills
from jupyter_dlaas.runtime.hosts.agent_settings import NOT_COLLECTED
from jupyter_dlaas.runtime.hosts.learner_host import Ended, HostEvent, NotStarted, Reachable, Started, Unreachable
from jupyter_dlaas.runtime.hosts.plain_spawn import environment_here
from jupyter_dlaas.runtime.hosts.remote_host import REASON_S, RemoteHost
from jupyter_dlaas.runtime.link.connection import Endpoint
from jupyter_dlaas.runtime.link.session import Session
from jupyter_dlaas.runtime.link.storage import BytesSource, DirectoryStorage, sha256_of
from jupyter_dlaas.runtime.link.transport import Address, Dialer, listen, new_session_id, wait
from jupyter_dlaas.runtime.system.process import is_alive
from jupyter_dlaas.wire.codec import encode
from jupyter_dlaas.wire.protocol import Cause, Failure
from tests.hosts.contract import (
    DEADLINE_S,
    LearnerHostContract,
    ended,
    heard,
    is_running,
    kill_members,
    of,
    order,
    started,
    tell,
    turn,
    until,
)

TOKEN = secrets.token_bytes(32)


class RemoteRig:
    """A host and agents in this process; each agent has a directory of its own. Learners are real processes."""

    def __init__(self, root: Path) -> None:
        self.root, self.job_dir = root, root / "guardian"
        self.job_dir.mkdir()
        self.events: list[HostEvent] = []
        self.log: list[str] = []
        self.agents: dict[int, Agent] = {}
        self.address = Address(host="127.0.0.1")
        self.epoch = 0
        self.ahead_s = 0.0
        self.host = self._host()
        for member in (0, 1, 7):
            self.add_agent(member)

    def _host(self) -> RemoteHost:
        self.epoch += 1
        listeners = listen(self.address)
        self.address = Address(host="127.0.0.1", port=listeners[0].getsockname()[1])
        me = Endpoint(job="a-1", name="guardian", token=TOKEN, session=new_session_id(), epoch=self.epoch)
        return RemoteHost(self.job_dir, me, listeners, self.log.append)

    def add_agent(self, member: int) -> Agent:
        root = self.root / f"agent-{member}"
        root.mkdir(exist_ok=True)
        me = Endpoint(job="a-1", name=agent_name(member), token=TOKEN, session=new_session_id())
        self.agents[member] = Agent(
            root, member, me, lambda: self.address, self.log.append, base=environment_here(os.environ, root)
        )
        return self.agents[member]

    def others(self, now: float) -> tuple[dict[int, int], list[float]]:
        interests: dict[int, int] = {}
        for agent in self.agents.values():
            interests |= agent.interests(now)
        return interests, [agent.due(now) for agent in self.agents.values()]

    def turn_others(self, ready: set[int], now: float) -> None:
        for agent in self.agents.values():
            agent.turn(ready, now)

    def restart_guardian(self) -> None:
        self.host.close()
        self.host = self._host()

    def close(self) -> None:
        for agent in self.agents.values():
            agent.close()
        kill_members([self.root / f"agent-{member}" for member in (0, 1, 7)])
        for agent in self.agents.values():
            for process in agent.processes().values():
                os.waitpid(process.identity.pid, 0)
        self.host.close()


class FaultyAgent(Agent):
    """Peer with an agent's name and the job's token that offers the files of others."""

    def __init__(self, root: Path, rig: RemoteRig, member: int, *paths: str) -> None:
        self._session = Session(DirectoryStorage(root))
        me = Endpoint(job="a-1", name=agent_name(member), token=TOKEN, session=new_session_id())
        self._dialer = Dialer(me, lambda: rig.address, self._session, rig.log.append)
        for path in paths:
            self._session.send_file(path, source := BytesSource(b"x"), sha256_of(source))

    def interests(self, now: float) -> dict[int, int]:
        return self._dialer.interests()

    def due(self, now: float) -> float:
        return min(now + 1.0, self._dialer.due() or now + 1.0)

    def turn(self, ready: Collection[int], now: float) -> None:
        self._dialer.turn(ready, now)

    def processes(self) -> dict[int, Any]:
        return {}

    def close(self) -> None:
        self._dialer.close()


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[RemoteRig]:
    made = RemoteRig(tmp_path)
    yield made
    made.close()


class TestRemoteHost(LearnerHostContract):
    """All promises, over links."""


def disconnect(rig: RemoteRig) -> None:
    """Break all connections, as a network that fails does."""
    for link in rig.host._acceptor._links.values():
        if link.channel is not None:
            link.channel.sock.shutdown(socket.SHUT_RDWR)


def test_a_cut_loses_nothing_and_ends_nothing(rig: RemoteRig) -> None:
    started(rig)
    process = rig.host.processes()[0]
    disconnect(rig)
    former, rig.address = rig.address, Address(host="127.0.0.1", port=1)
    until(rig, lambda: of(rig, Unreachable), "the cut")
    assert rig.host.activity(0) is None
    tell(rig, do="print", text="ordered during the cut")
    tell(rig, do="write", path="output/table.csv", text="1,2")
    for _ in range(5):
        turn(rig)
    assert rig.host.processes() == {0: process}
    assert is_alive(process.identity)
    rig.address = former
    until(rig, lambda: len(of(rig, Reachable)) == 2, "the link")
    tell(rig, do="exit", code=0)

    assert ended(rig).code == 0
    assert (rig.job_dir / "learner-0/stdout.log").read_text() == "learner 0 begins\nordered during the cut\n"
    assert (rig.job_dir / "output/table.csv").read_text() == "1,2"
    assert len(heard(rig, "hello")) == 1
    assert len(of(rig, Started)) == 1
    assert len(of(rig, Ended)) == 1


def test_a_cut_of_ten_minutes_ends_nothing(rig: RemoteRig) -> None:
    started(rig)
    process = rig.host.processes()[0]
    disconnect(rig)
    former, rig.address = rig.address, Address(host="127.0.0.1", port=1)
    until(rig, lambda: of(rig, Unreachable), "the cut")
    for _ in range(30):  # the clock of guardian and agents is put forward; the learner's is not
        rig.ahead_s += 20.0
        turn(rig)
    assert rig.host.processes() == {0: process}
    assert is_alive(process.identity)
    rig.address = former
    until(rig, lambda: len(of(rig, Reachable)) == 2, "the link")
    tell(rig, do="echo", text="as before")
    until(rig, lambda: heard(rig, "echo"), "the answer")
    assert of(rig, Ended) == []


def test_end_during_a_cut_is_reported_after_it(rig: RemoteRig) -> None:
    started(rig)
    process = rig.host.processes()[0]
    disconnect(rig)
    former, rig.address = rig.address, Address(host="127.0.0.1", port=1)
    until(rig, lambda: of(rig, Unreachable), "the cut")
    with (rig.root / "agent-0/learner-0/stdout.log").open("a") as log:
        log.write("not stored yet\n")
    os.kill(process.identity.pid, signal.SIGKILL)
    until(rig, lambda: not rig.agents[0].processes(), "its end beside the agent")
    assert of(rig, Ended) == []
    later = time.monotonic() + 5
    rig.agents[0].turn((), later)
    assert rig.agents[0].due(later) > later, "it waits for the guardian without using the processor"
    rig.address = former
    assert ended(rig).signal == signal.SIGKILL


def test_unseen_end_is_reported_to_the_next_guardian(rig: RemoteRig) -> None:
    started(rig)
    process = rig.host.processes()[0]
    rig.host.close()
    os.kill(process.identity.pid, signal.SIGKILL)
    rig.events.clear()
    rig.host = rig._host()
    end = ended(rig)

    assert end.signal == signal.SIGKILL
    assert end.process == process
    assert (rig.job_dir / "learner-0/stdout.log").read_text() == "learner 0 begins\n"


def test_a_former_guardian_is_refused_by_the_agents(rig: RemoteRig) -> None:
    started(rig)
    rig.restart_guardian()
    until(rig, lambda: len(of(rig, Started)) == 2, "the adoption")
    rig.epoch = 0
    rig.restart_guardian()
    until(rig, lambda: any("epoch 1; epoch 2 was seen" in text for text in rig.log), "the refusal")
    assert rig.host.processes() == {}


def test_an_agent_without_a_guardian_lets_its_learner_go(rig: RemoteRig) -> None:
    started(rig)
    rig.agents[0]._orphan_s = 0.2
    disconnect(rig)
    rig.address = Address(host="127.0.0.1", port=1)
    until(rig, lambda: any("no guardian for" in text for text in rig.log), "the orphan's time")
    assert not (rig.root / "agent-0/guardian.sock").exists()
    process = rig.agents[0].processes()[0]
    assert is_alive(process.identity)  # a real learner saves now, and exits
    os.kill(process.identity.pid, signal.SIGKILL)
    until(rig, lambda: not rig.agents[0].processes(), "its end")


def test_an_uncollected_result_is_kept_for_a_limited_time(rig: RemoteRig) -> None:
    started(rig)
    disconnect(rig)
    former, rig.address = rig.address, Address(host="127.0.0.1", port=1)
    agent = rig.agents[0]
    until(rig, lambda: not any(one._session.is_linked for one in rig.agents.values()), "the cut")
    turn(rig)
    os.kill(agent.processes()[0].identity.pid, signal.SIGKILL)
    until(rig, lambda: not agent.processes(), "its end")
    rig.ahead_s += KEEP_S - 60.0  # also the time without a guardian is over
    turn(rig)
    assert not agent.is_over
    rig.ahead_s += 120.0
    until(rig, lambda: agent.is_over, "the end of the agent")
    assert agent.exit_code == NOT_COLLECTED
    assert any("no guardian has collected" in text for text in rig.log)
    assert [rig.agents[member].exit_code for member in (1, 7)] == [NOT_COLLECTED] * 2, "agents without a learner end"
    rig.address = former


def test_a_kept_result_is_collected_by_the_next_guardian(rig: RemoteRig) -> None:
    started(rig)
    disconnect(rig)
    former, rig.address = rig.address, Address(host="127.0.0.1", port=1)
    agent, process = rig.agents[0], rig.agents[0].processes()[0]
    until(rig, lambda: not agent._session.is_linked, "the cut")
    rig.ahead_s += ORPHAN_S
    until(rig, lambda: any("no guardian for" in text for text in rig.log), "the orphan's time")
    os.kill(process.identity.pid, signal.SIGKILL)
    until(rig, lambda: not agent.processes(), "its end")
    assert not agent.is_over
    rig.address = former
    rig.restart_guardian()
    assert ended(rig).signal == signal.SIGKILL
    rig.host.dismiss(0)
    until(rig, lambda: agent.is_over, "the end of the agent")
    assert agent.exit_code == 0


def test_lost_agent_is_given_up_only_with_its_host(rig: RemoteRig) -> None:
    started(rig)
    rig.agents.pop(0).close()
    until(rig, lambda: of(rig, Unreachable), "the cut")
    assert sorted(rig.host.processes()) == [0]
    rig.host.give_up(0, "its pod was evicted")
    end = ended(rig)
    assert (end.code, end.signal) == (None, None)


@pytest.mark.parametrize("is_known", [True, False])
def test_an_end_with_its_pod_waits_for_the_reason(rig: RemoteRig, is_known: bool) -> None:
    started(rig)
    rig.agents[0].stop()  # as its pod's SIGTERM does; the toy learner has no handler
    until(rig, lambda: rig.host._agents[0].ended is not None, "the end beside the agent")
    assert of(rig, Ended) == []
    assert sorted(rig.host.processes()) == [0]
    why = Failure(cause=Cause.EVICTED, code="drained", what="pod ml/a-1-m0 was evicted.", advice="Wait.")
    if is_known:
        (rig.job_dir / "lost.json").write_text(json.dumps({"ending": {"0": encode(why)}}))
    else:
        rig.ahead_s += REASON_S
    end = ended(rig)

    assert (end.signal, end.failure) == (signal.SIGTERM, why if is_known else None)
    assert rig.host.processes() == {}


def test_an_agent_ends_what_a_killed_one_left_behind(rig: RemoteRig) -> None:
    started(rig)
    process = rig.host.processes()[0]
    rig.agents.pop(0).close()
    output = rig.root / "agent-0/output"
    output.mkdir(exist_ok=True)
    (output / "table.csv").write_text("1,2")  # its agent was killed before it could send this
    rig.add_agent(0)
    end = ended(rig)

    assert end.process == process
    assert not is_running(process.identity.pid)
    until(rig, lambda: (rig.job_dir / "output/table.csv").exists(), "its last file")
    assert (rig.job_dir / "learner-0/stdout.log").read_text() == "learner 0 begins\n"
    os.waitpid(process.identity.pid, 0)
    rig.host.start(order())
    until(rig, lambda: len(heard(rig, "hello")) == 2, "the next learner")


def test_agent_links_before_remains_have_ended(rig: RemoteRig, monkeypatch: pytest.MonkeyPatch) -> None:
    left_behind = ["a process that the kernel does not end yet"]
    monkeypatch.setattr("jupyter_dlaas.runtime.hosts.agent.kill_round", lambda *_, **__: len(left_behind))
    rig.agents.pop(0).close()
    rig.add_agent(0)
    rig.host.start(order())
    until(rig, lambda: Reachable(0) in rig.events, "the agent is linked")
    assert not of(rig, Started)

    left_behind.clear()

    until(rig, lambda: heard(rig, "hello"), "the learner starts")


def test_a_learner_knows_the_address_at_which_others_reach_it(rig: RemoteRig) -> None:
    started(rig)
    tell(rig, do="environment", names=["DLAAS_ADDRESS"])
    until(rig, lambda: heard(rig, "environment"), "the environment")
    assert heard(rig, "environment")[0]["values"] == {"DLAAS_ADDRESS": "127.0.0.1"}


def test_names_that_no_link_can_carry_are_logged_once(rig: RemoteRig) -> None:
    started(rig)
    output = rig.root / "agent-0/output"
    output.mkdir()
    (output / os.fsdecode(b"not-utf8-\xff")).write_text("x")
    (output / "plain").write_text("x")
    tell(rig, do="exit", code=0)
    ended(rig)

    assert (rig.job_dir / "output/plain").read_text() == "x"
    assert len([text for text in rig.log if "not valid Unicode" in text]) == 1


def test_a_gang_starts_when_all_of_its_agents_have_reported(rig: RemoteRig) -> None:
    rig.host.start(order(0, gang=(0, 9)))
    until(rig, lambda: of(rig, Reachable), "the link of the first agent")
    started(rig, 1)  # meanwhile another learner starts, which belongs to no gang
    assert not of(rig, Started)

    rig.add_agent(9)
    until(rig, lambda: of(rig, Started), "the start of the gang")


def test_an_order_is_withdrawn_while_its_gang_waits(rig: RemoteRig) -> None:
    rig.host.start(order(0, gang=(0, 9)))
    until(rig, lambda: of(rig, Reachable), "the link of the first agent")
    rig.host.signal(0, signal.SIGTERM)
    until(rig, lambda: of(rig, NotStarted), "the withdrawal")
    assert not of(rig, NotStarted)[0].is_permanent


def test_a_refused_order_is_reported(rig: RemoteRig) -> None:
    rig.host.start(order(environment={"BROKEN": "a\0b"}))
    until(rig, lambda: of(rig, NotStarted), "the refusal")
    assert "zero byte" in of(rig, NotStarted)[0].reason


def test_out_of_memory_is_counted_by_the_containers_cgroup(tmp_path: Path) -> None:
    events = tmp_path / "memory.events"
    events.write_text("low 0\nhigh 0\nmax 12\noom 3\noom_kill 2\noom_group_kill 0\n")
    assert cgroup_oom_kills(events) == 2
    assert cgroup_oom_kills(tmp_path / "none") == 0


def test_a_user_without_name_and_home_gets_both(tmp_path: Path) -> None:
    environment = environment_here({"HOME": "/", "PATH": "/bin", "DLAAS_AGENT_TOKEN_FILE": "x"}, tmp_path / "home")
    if os.access("/", os.W_OK):
        assert environment["HOME"] == "/"
    else:
        assert environment["HOME"] == str(tmp_path / "home")
    assert environment["USER"] == environment["LOGNAME"] == "dlaas"
    assert "DLAAS_AGENT_TOKEN_FILE" not in environment


def test_a_dismissed_agent_ends_without_its_guardian(rig: RemoteRig) -> None:
    """The guardian of a closed job exits at once, and does not acknowledge what its agents still report."""
    started(rig)
    agent = rig.agents[0]
    rig.host.dismiss(0)
    rig.host.turn((), time.monotonic())
    rig.host.close()
    give_up_s = time.monotonic() + DEADLINE_S
    while not agent.is_over:
        assert time.monotonic() < give_up_s, "it waits for a guardian"
        wait(agent.interests(time.monotonic()), 0.05)
        agent.turn(agent.interests(time.monotonic()), time.monotonic())
    assert agent.exit_code == 0
    assert not agent.processes()


def test_a_real_agent_serves_until_it_is_dismissed(tmp_path: Path) -> None:
    rig = RemoteRig(tmp_path)
    for member in (0, 1, 7):
        rig.agents.pop(member).close()
    token = tmp_path / "token"
    token.write_bytes(TOKEN)
    environment = {
        "PATH": os.environ["PATH"],
        "PYTHONPATH": str(Path(jupyter_dlaas.__file__).parents[1]),
        "DLAAS_AGENT_DIR": str(tmp_path / "pod"),
        "DLAAS_AGENT_MEMBER": "0",
        "DLAAS_AGENT_JOB": "a-1",
        "DLAAS_AGENT_GUARDIAN": str(rig.address),
        "DLAAS_AGENT_TOKEN_FILE": str(token),
    }
    process = subprocess.Popen([sys.executable, "-m", agent_module.__name__], env=environment, cwd="/")
    try:
        started(rig)
        tell(rig, do="child", is_daemon=True)
        until(rig, lambda: heard(rig, "child"), "the child")
        rig.host.dismiss(0)
        end = ended(rig)
        assert end.signal == signal.SIGKILL
        until(rig, lambda: process.poll() is not None, "the agent's end")
        assert process.returncode == 0
        assert not is_running(heard(rig, "child")[0]["pid"])
    finally:
        process.kill()
        process.wait()
        kill_members([tmp_path / "pod"])
        rig.close()


def test_files_of_others_are_refused_and_logged(rig: RemoteRig, tmp_path: Path) -> None:
    paths = ("../outside", "wanted.json", "learner-0/stdout.log", "token", "learner-1/stdout.log")
    (tmp_path / "faulty").mkdir()
    rig.agents.pop(1).close()
    rig.agents[1] = FaultyAgent(tmp_path / "faulty", rig, 1, *paths)
    until(rig, lambda: (rig.job_dir / paths[-1]).exists(), "its own file")

    for path in paths[:-1]:
        assert any(f"'{path}' of learner 1's agent is rejected" in line for line in rig.log), rig.log
        assert not (rig.job_dir / path).exists()
