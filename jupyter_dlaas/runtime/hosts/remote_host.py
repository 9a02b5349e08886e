"""Learners in pods or private directories, each handled by an agent that has dialled this process."""

from __future__ import annotations

import re
import signal
import socket
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

from jupyter_dlaas.jobdir.atomic_files import read_json
from jupyter_dlaas.jobdir.layout import learner_folder
from jupyter_dlaas.runtime.hosts.agent import agent_name
from jupyter_dlaas.runtime.hosts.agent_messages import (
    ActivityReport,
    AgentLine,
    ControlChannel,
    Dismissal,
    GuardianLine,
    LearnerLine,
    LearnerState,
    SignalOrder,
    StartOrder,
    SweepOrder,
    agent_line,
    guardian_line,
    pack_line,
)
from jupyter_dlaas.runtime.hosts.agent_settings import read_ending
from jupyter_dlaas.runtime.hosts.file_sender import FileSender
from jupyter_dlaas.runtime.hosts.job_files import MetricsMerger
from jupyter_dlaas.runtime.hosts.learner_files import belongs_to_learner
from jupyter_dlaas.runtime.hosts.learner_host import (
    Connected,
    Disconnected,
    Ended,
    FileAppeared,
    HostEvent,
    LearnerOrder,
    LearnerProcess,
    MessageReceived,
    NotStarted,
    Reachable,
    Started,
    Unreachable,
)
from jupyter_dlaas.runtime.link.connection import Endpoint
from jupyter_dlaas.runtime.link.session import (
    ContentRefused,
    Event,
    FileArrived,
    LineReceived,
    OfferRefused,
    PeerRestarted,
    Session,
)
from jupyter_dlaas.runtime.link.storage import DirectoryStorage
from jupyter_dlaas.runtime.link.transport import Acceptor, LinkDown, LinkUp, wait
from jupyter_dlaas.runtime.system.process import Activity, Identity
from jupyter_dlaas.wire.codec import Invalid
from jupyter_dlaas.wire.protocol import Cause, Failure

__all__ = ["RemoteHost"]

FINISH_S: Final = 5.0
"""Seconds within which agents that can be reached receive their dismissal."""
REFUSALS_LOGGED: Final = 100
"""Number of rejected files for each agent that are logged: a faulty one may offer any number."""
REASON_S: Final = 5.0
"""Seconds for which the end of a learner whose pod is being ended waits for the reason, which the pool knows."""
_NAME: Final = re.compile(r"m(0|[1-9][0-9]{0,8})")


@dataclass(slots=True)
class _Agent:
    """One agent, connected or expected, and what is known about its learner."""

    session: Session
    files: FileSender
    storage: DirectoryStorage
    state: LearnerState | None = None
    """State as the agent has reported it; None before its first report."""
    process: LearnerProcess | None = None
    """Learner that runs."""
    order: LearnerOrder | None = None
    """Order to start whose outcome the agent has not reported."""
    ordered: int = 0
    """Number of this order, or of the last one."""
    is_order_sent: bool = False
    is_linked: bool = False
    activity: Activity | None = None
    ended: Ended | None = None
    """End that waits for its reason."""
    reason_due_s: float = 0.0
    needed: set[str] = field(default_factory=set)
    """Files that must be stored before the start."""
    refusals: int = 0
    """Number of its files and streams that were rejected."""


class RemoteHost:
    """Host of learners that share nothing with this process but links.

    Learners of agents that were not expected are adopted: an earlier guardian has started them.
    """

    is_shared = False

    def __init__(
        self, job_dir: Path, me: Endpoint, listeners: Iterable[socket.socket], log: Callable[[str], None]
    ) -> None:
        self._job_dir, self._log = job_dir, log
        self._agents: dict[int, _Agent] = {}
        self._events: list[HostEvent] = []
        self._merger = MetricsMerger(job_dir)
        self._acceptor = Acceptor(me, listeners, self._session_of, log)

    def _session_of(self, name: str) -> Session | None:
        match = _NAME.fullmatch(name)
        return None if match is None else self._agent(int(match[1])).session

    def _agent(self, member: int) -> _Agent:
        if member not in self._agents:
            storage = DirectoryStorage(self._job_dir, lambda path: belongs_to_learner(path, member))
            session = Session(storage)
            self._agents[member] = _Agent(session, FileSender(self._job_dir, session), storage)
        return self._agents[member]

    # -- orders --------------------------------------------------------------------------------------------------------

    def start(self, order: LearnerOrder) -> None:
        agent = self._agent(order.member)
        if agent.process is not None:
            self._events.append(NotStarted(order.member, "the former learner has not ended", is_permanent=False))
            return
        try:
            guardian_line(pack_line(_start_order(order, 1)))
        except Invalid as error:
            self._events.append(NotStarted(order.member, str(error), is_permanent=True))
            return
        agent.order, agent.is_order_sent, agent.needed = order, False, set(order.files)
        for path in order.files:
            agent.files.send(path)
        self._start_when_ready(order.member)

    def _start_when_ready(self, member: int) -> None:
        agent = self._agents[member]
        if agent.order is None or agent.is_order_sent:
            return
        failed = [reason for path, reason in agent.files.failed.items() if path in agent.needed]
        if failed:
            agent.files.failed.clear()
            self._cancel(member, agent, failed[0], is_permanent=True)
        elif agent.state is not None and (wrong := _wrong_python(agent.order, agent.state)) is not None:
            agent.order = None
            self._events.append(NotStarted(member, wrong.what, is_permanent=True, failure=wrong))
        elif agent.state is None or not all(map(self._has_reported, agent.order.gang)):
            return  # a gang whose seats are not all provided starts no process
        elif not _runs(agent.state) and not agent.needed & agent.files.pending:
            agent.ordered = max(agent.ordered, agent.state.started) + 1
            agent.is_order_sent = True
            self._send(agent, _start_order(agent.order, agent.ordered))

    def _has_reported(self, member: int) -> bool:
        return member in self._agents and self._agents[member].state is not None

    def _cancel(self, member: int, agent: _Agent, reason: str, *, is_permanent: bool = False) -> None:
        """Withdraw an order that was not carried out."""
        agent.order = None
        self._events.append(NotStarted(member, reason, is_permanent))

    def signal(self, member: int, number: int) -> None:
        agent = self._agents.get(member)
        if agent is None:
            return
        if agent.process is not None or (agent.order is not None and agent.is_order_sent):
            self._send(agent, SignalOrder(number=number))
        elif agent.order is not None and number in (signal.SIGTERM, signal.SIGKILL):
            self._cancel(member, agent, "it is no longer needed")

    def sweep(self, member: int) -> None:
        if member in self._agents:
            self._send(self._agents[member], SweepOrder())

    def send(self, member: int, line: bytes) -> None:
        if member in self._agents:
            self._send(self._agents[member], LearnerLine(text=line.decode().rstrip("\n")))

    def deliver(self, member: int, path: str) -> None:
        self._agent(member).files.send(path)

    def adopt(self, known: Mapping[int, Identity], ever: Collection[int], expected: Collection[int]) -> None:
        """Count the known learners as running until their agents report; others are adopted when theirs do."""
        for member, who in sorted(known.items()):
            agent = self._agent(member)
            agent.process = LearnerProcess(member, "", who)
            self._events.append(Started(agent.process, is_adopted=True))

    def dismiss(self, member: int) -> None:
        """Let an agent end, and its learner with it."""
        if member in self._agents:
            self._send(self._agents[member], Dismissal())

    def give_up(self, member: int, reason: str) -> None:
        agent = self._agents.get(member)
        if agent is None:
            return
        if agent.order is not None:
            self._cancel(member, agent, reason)
        self._lose(member, agent)
        self._acceptor.forget(agent_name(member))
        agent.files.close()
        agent.storage.close()
        del self._agents[member]

    def finish(self, within_s: float) -> bool:
        """Dismiss all agents, and wait a moment until they have received it."""
        for member in self._agents:
            self.dismiss(member)
        deadline = time.monotonic() + min(within_s, FINISH_S)
        while (now := time.monotonic()) < deadline and any(
            agent.is_linked and agent.session.unacknowledged_lines for agent in self._agents.values()
        ):
            due_s = self.due(now)
            self.turn(wait(self.interests(), min(deadline, deadline if due_s is None else due_s) - now), now)
        return not any(agent.process is not None for agent in self._agents.values())

    def _send(self, agent: _Agent, record: GuardianLine) -> None:
        agent.session.send_line(pack_line(record))

    # -- observations --------------------------------------------------------------------------------------------------

    def activity(self, member: int) -> Activity | None:
        agent = self._agents.get(member)
        is_visible = agent is not None and agent.is_linked and agent.process is not None
        return agent.activity if agent is not None and is_visible else None

    def processes(self) -> dict[int, LearnerProcess]:
        return {member: agent.process for member, agent in self._agents.items() if agent.process is not None}

    def interests(self) -> dict[int, int]:
        return {**self._acceptor.interests(), **{agent.files.fd: 1 for agent in self._agents.values()}}

    def due(self, now: float) -> float | None:
        if self._events:
            return now
        waits = [agent.reason_due_s for agent in self._agents.values() if agent.ended is not None]
        return min([at for at in (self._acceptor.due(), *waits) if at is not None], default=None)

    def turn(self, ready: Collection[int], now: float) -> list[HostEvent]:
        for name, event in self._acceptor.turn(ready, now):
            self._take(int(name[1:]), event)
        for member, agent in self._agents.items():
            agent.files.turn()
            self._give_reason(agent, now)
            self._start_when_ready(member)
        self._merge_metrics()
        for name, event in self._acceptor.turn((), now):  # send what these events have caused
            self._take(int(name[1:]), event)
        events, self._events = self._events, []
        return events

    def _merge_metrics(self) -> None:
        writer = self._merger.writer
        if writer is not None:
            self._merger.merge(writer, may_follow=True)
        is_over = writer is None or writer not in self._agents or self._agents[writer].process is None
        for member in sorted(self._agents):
            if member != writer:
                self._merger.merge(member, may_follow=is_over)

    def close(self) -> None:
        self._acceptor.close()
        for agent in self._agents.values():
            agent.files.close()
            agent.storage.close()

    # -- from the agents -----------------------------------------------------------------------------------------------

    def _take(self, member: int, event: Event | LinkUp | LinkDown) -> None:
        agent = self._agents[member]
        match event:
            case LinkUp():
                agent.is_linked, agent.activity = True, None
                self._events.append(Reachable(member))
            case LinkDown(reason):
                agent.is_linked = False
                self._events.append(Unreachable(member, reason))
            case PeerRestarted():
                # The agent is the first process of its pod, or ends what a former one has left behind.
                self._lose(member, agent)
            case FileArrived(path):
                self._events.append(FileAppeared(member, path))
            case ContentRefused(path, _, reason):
                self._log(f"the agent of learner {member} rejects {path}: {reason}")
                if path in agent.needed and agent.order is not None and not agent.is_order_sent:
                    self._cancel(member, agent, f"{path}: {reason}")
            case OfferRefused(path, reason):
                agent.refusals += 1
                if agent.refusals <= REFUSALS_LOGGED:
                    self._log(f"{path!r:.200} of learner {member}'s agent is rejected: {reason}")
            case LineReceived(text):
                try:
                    self._hear(member, agent, agent_line(text))
                except Invalid as error:
                    self._log(f"a line of learner {member}'s agent is skipped: {error}")
            case _:
                return

    def _hear(self, member: int, agent: _Agent, line: AgentLine) -> None:
        match line:
            case LearnerState():
                self._see_state(member, agent, line)
            case ActivityReport():
                agent.activity = Activity(ticks=line.ticks, state=line.state)
            case ControlChannel():
                self._events.append(Connected(member) if line.is_open else Disconnected(member))
            case LearnerLine():
                self._events.append(MessageReceived(member, line.text.encode()))

    def _see_state(self, member: int, agent: _Agent, state: LearnerState) -> None:
        former, agent.state = agent.state, state
        if former is None and agent.process is not None and not state.started:
            self._lose(member, agent)  # known from the journal, but its agent is another one
            agent.state = state
        if state == former or not state.started:
            return
        is_ordered = state.started == agent.ordered
        if agent.order is not None and (is_ordered or _is_due_to(state, agent.order)):
            agent.order = None  # carried out, perhaps when an earlier guardian gave it
        elif agent.order is not None:
            if former is None and _runs(state):
                self._send(agent, SweepOrder())  # of an order that no longer counts
            return
        if state.not_started is not None:
            self._events.append(NotStarted(member, state.not_started, state.is_permanent, state.program))
            return
        if state.pid is None or state.start is None or state.boot is None:
            return
        identity = Identity(state.pid, state.start, state.boot)
        process = LearnerProcess(member, state.host, identity, node=state.node, pod=state.pod)
        learner_folder(self._job_dir, member).mkdir(mode=0o700, exist_ok=True)  # its log is followed there
        agent.activity = None
        is_known = former is not None and former.started == state.started and former.pid == state.pid
        if not is_known and (agent.process is None or agent.process.identity != process.identity):
            self._events.append(Started(process, is_adopted=not is_ordered, environment=state.environment))
        agent.process = process
        if state.has_ended:
            self._merge_metrics()
            agent.ended = Ended(process, state.code, state.signal, state.is_out_of_memory, state.is_clean)
            is_explained = not state.is_stopped or not self._was_terminated(agent.ended)
            agent.reason_due_s = time.monotonic() + (0.0 if is_explained else REASON_S)
            self._give_reason(agent, time.monotonic())

    def _was_terminated(self, ended: Ended) -> bool:
        """Return whether a learner ended because of SIGTERM."""
        result = read_json(learner_folder(self._job_dir, ended.member) / "result.json") or {}
        return result.get("outcome") == "left" or (ended.signal == signal.SIGTERM and not result)

    def _give_reason(self, agent: _Agent, now: float) -> None:
        """Report an end that waits for its reason, if this is known or does not come."""
        if agent.ended is None:
            return
        failure = None if now >= agent.reason_due_s else read_ending(self._job_dir).get(agent.ended.member)
        if failure is not None or now >= agent.reason_due_s:
            self._events.append(replace(agent.ended, failure=failure))
            agent.ended = agent.process = None

    def _lose(self, member: int, agent: _Agent) -> None:
        """Record the end of a learner whose agent is gone. Its exit status is unknown unless it was reported."""
        if agent.ended is not None:
            agent.reason_due_s = 0.0
            self._give_reason(agent, time.monotonic())
        process, agent.process, agent.state = agent.process, None, None
        agent.ordered, agent.is_order_sent, agent.activity = 0, False, None
        if process is not None:
            agent.order = None
            self._events.append(Ended(process))


def _runs(state: LearnerState) -> bool:
    return state.started > 0 and state.not_started is None and not state.has_ended


def _wrong_python(order: LearnerOrder, state: LearnerState) -> Failure | None:
    """Return the failure of an order whose functions the agent's Python cannot run; None if it can, or is unknown."""
    if order.python is None or state.python in (None, order.python):
        return None
    image = f"the image {state.image}" if state.image is not None else "the learner's image"
    return Failure(
        cause=Cause.PLATFORM,
        code="wrong_python",
        what=f"the job's functions were made by Python {order.python}, but {image} has Python {state.python}",
        advice=f"Use an image with Python {order.python}: `jupyter dlaas pool use kubernetes --image IMAGE`. Or submit "
        f"the job from a kernel with Python {state.python}. A script that is submitted by its file runs with both.",
    )


def _is_due_to(state: LearnerState, order: LearnerOrder) -> bool:
    """Return whether a running learner was started by the same order: in this gang, with the same rendezvous store."""
    return _runs(state) and all(order.environment.get(name) == value for name, value in state.environment.items())


def _start_order(order: LearnerOrder, number: int) -> StartOrder:
    return StartOrder(number=number, module=order.module, arguments=order.arguments, environment=order.environment)
