"""Agent of one learner: the first process of its pod, or of its private directory.

The agent dials the job's guardian and carries out its orders: it starts the learner, and forwards its messages, log,
files and end. It is a `LocalHost` at the far end of a link, so a learner finds the same directory and the same control
channel as beside its guardian. While the link is cut the learner trains on and all output stays on the agent's disk.
"""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import sys
import time
from collections import deque
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from jupyter_dlaas.jobdir.layout import learner_folder
from jupyter_dlaas.jobdir.log_index import LOG
from jupyter_dlaas.runtime.hosts import learner_host as host
from jupyter_dlaas.runtime.hosts.agent_messages import (
    ActivityReport,
    ControlChannel,
    Dismissal,
    LearnerLine,
    LearnerState,
    SignalOrder,
    StartOrder,
    SweepOrder,
    guardian_line,
    pack_line,
)
from jupyter_dlaas.runtime.hosts.agent_settings import NOT_COLLECTED
from jupyter_dlaas.runtime.hosts.job_processes import reap_orphans
from jupyter_dlaas.runtime.hosts.learner_files import LearnerFiles
from jupyter_dlaas.runtime.hosts.local_host import LocalHost
from jupyter_dlaas.runtime.hosts.plain_spawn import environment_here, plain_spawn
from jupyter_dlaas.runtime.link.connection import Endpoint
from jupyter_dlaas.runtime.link.session import (
    ContentRefused,
    Event,
    FileArrived,
    LineReceived,
    PeerRestarted,
    Session,
)
from jupyter_dlaas.runtime.link.storage import DirectoryStorage
from jupyter_dlaas.runtime.link.transport import Address, Dialer, LinkDown, LinkUp, new_session_id, wait
from jupyter_dlaas.runtime.system.process import PRIVATE, Activity, become_subreaper, kill_round
from jupyter_dlaas.wire.codec import Invalid
from jupyter_dlaas.wire.learner_messages import CheckpointWritten

__all__ = ["Agent", "AgentPlace", "agent_name", "main"]

LOOK_S: Final = 1.0
"""Seconds between looks at the learner's checkpoints, results and other files."""
IDLE_S: Final = 5.0
LEFTOVERS_S: Final = 10.0
"""Seconds within which processes that a former agent left behind must end."""
LEFTOVERS_ROUND_S: Final = 0.01
QUIET_S: Final = 1.0
"""Seconds without a message after which the activity of the learner's process is reported."""
ACTIVITY_S: Final = 0.5
ORPHAN_S: Final = 15 * 60.0
"""Seconds without a link after which the learner loses its control channel, and therefore saves and exits."""
KEEP_S: Final = 6 * 3600.0
"""Seconds for which the result of an ended learner is kept while there is no link."""
_REPORTED: Final = ("DLAAS_GENERATION", "DLAAS_JOINS", "RANK", "MASTER_ADDR", "MASTER_PORT")
"""Variables of a learner that a new guardian must know."""
_RELIES_ON_FILES: Final = frozenset({CheckpointWritten.KIND})
"""Kinds of messages that are forwarded after the files that were written before them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentPlace:
    """Container image, node and pod of an agent, as the environment of its pod names them."""

    image: str | None = None
    node: str | None = None
    pod: str | None = None


NO_PLACE: Final = AgentPlace()


def agent_name(member: int) -> str:
    """Return the name with which the agent of a member introduces itself."""
    return f"m{member}"


class Agent:
    """Agent of one learner, driven by a loop that polls `interests()` and calls `turn()`."""

    def __init__(
        self,
        root: Path,
        member: int,
        me: Endpoint,
        address: Callable[[], Address],
        log: Callable[[str], None],
        *,
        base: Mapping[str, str],
        orphan_s: float = ORPHAN_S,
        keep_s: float = KEEP_S,
        own_address: str | None = None,
        place: AgentPlace = NO_PLACE,
    ) -> None:
        self._address = own_address
        self._root, self._member, self._log = root, member, log
        self._orphan_s, self._keep_s = orphan_s, keep_s
        kill_round(str(root), member=member)  # what a killed agent left behind must not connect to this one
        self._host = LocalHost(root, plain_spawn(root, base), name=me.session, oom_kills=cgroup_oom_kills)
        self._storage = DirectoryStorage(root)
        self._session = Session(self._storage)
        self._link = Dialer(me, address, self._session, log)
        self._files = LearnerFiles(root, member, self._session, log)
        python = f"{sys.version_info[0]}.{sys.version_info[1]}"
        self._about = LearnerState(host=me.session, python=python, image=place.image, node=place.node, pod=place.pod)
        self._state = self._about
        self._held: deque[bytes] = deque()
        """Messages that wait until the files before them are stored."""
        self._ended: LearnerState | None = None
        """State of the ended learner, reported once its files are stored."""
        self._activity: Activity | None = None
        self._activity_at = self._look_at = self._received_s = 0.0
        self._linked_s: float | None = None
        """Time at which the link was cut; None while it is up."""
        self._ended_s = 0.0
        self._is_orphan = self._is_dismissed = self._is_stopped = self._is_expired = False
        self._give_up_at: float | None = time.monotonic() + LEFTOVERS_S
        """Time at which processes that a killed agent left behind are given up; None once there are none."""
        self._end_leftovers(time.monotonic())

    # -- event loop ----------------------------------------------------------------------------------------------------

    @property
    def is_over(self) -> bool:
        """True if the agent may end: it was dismissed, or its learner ended and the guardian wants no other."""
        if self._host.processes():
            return False
        if self._is_dismissed and not self._session.is_linked:
            return True  # the guardian has recorded the end, or closed the job: it collects nothing more
        may_end = self._is_dismissed or self._is_stopped or self._is_orphan
        return self._is_expired or (may_end and self._is_reported)

    @property
    def _is_reported(self) -> bool:
        """True if the guardian has all that this agent knows."""
        return self._ended is None and self._session.unacknowledged_lines == 0 and self._files.is_settled

    @property
    def exit_code(self) -> int:
        """Exit code of the agent's process."""
        is_idle = self._is_orphan and not self._state.started
        return NOT_COLLECTED if self._is_expired or is_idle else 0

    def interests(self, now: float) -> dict[int, int]:
        """Return the descriptors to poll, with their events."""
        return {**self._link.interests(), **self._host.interests(), **self._files.interests(now)}

    def due(self, now: float) -> float:
        """Return the time of the next turn without a ready descriptor."""
        times = [now + IDLE_S, self._link.due(), self._host.due(now), self._files.due(now)]
        if self._give_up_at is not None:
            times.append(now + LEFTOVERS_ROUND_S)
        if self._host.processes() or self._held or self._ended is not None:
            times.append(self._look_at)
        if self._host.processes():
            times.append(self._activity_at)
        return min(at for at in times if at is not None)

    def turn(self, ready: Collection[int], now: float) -> None:
        """Continue."""
        self._end_leftovers(now)
        for event in self._link.turn(ready, now):
            self._take(event, now)
        for happened in self._host.turn(ready, now):
            self._forward(happened, now)
        if now >= self._look_at and (self._host.processes() or self._held or self._ended is not None):
            self._look_at = now + LOOK_S
            self._files.look()
        self._files.turn(now)
        self._release()
        self._report_activity(now)
        self._end_as_orphan(now)
        for event in self._link.turn((), now):
            self._take(event, now)

    def processes(self) -> Mapping[int, host.LearnerProcess]:
        """Return the learner's process, if it runs."""
        return self._host.processes()

    def stop(self) -> None:
        """Ask the learner to end, because this agent's pod is being ended."""
        self._is_stopped = True
        self._host.signal(self._member, signal.SIGTERM)

    def close(self) -> None:
        """Release sockets and descriptors."""
        self._link.close()
        self._host.close()
        self._files.close()
        self._storage.close()

    def _end_leftovers(self, now: float) -> None:
        """Kill what a killed agent left behind, then report: now the guardian releases devices and sends orders."""
        if self._give_up_at is None:
            return
        if kill_round(str(self._root), member=self._member):
            if now < self._give_up_at:
                return
            self._log("a process of a former learner does not end; giving up on it")
        self._give_up_at = None
        if (learner_folder(self._root, self._member) / LOG).exists():
            self._files.look(is_final=True)  # what the learner of the former agent has left
        self._report(self._state)

    # -- from the guardian ---------------------------------------------------------------------------------------------

    def _take(self, event: Event | LinkUp | LinkDown, now: float) -> None:
        match event:
            case LinkUp():
                self._linked_s, self._activity, self._is_orphan = None, None, False
            case LinkDown():
                self._linked_s = now
            case PeerRestarted():
                # The new guardian knows nothing. The learner repeats its state when it connects again.
                if self._give_up_at is None:
                    self._report(self._state)
                self._held.clear()
                self._host.hang_up(self._member)
            case LineReceived(text):
                self._obey(text, now)
            case FileArrived(path):
                self._files.received(path)
            case ContentRefused(path, sha256, reason):
                self._log(f"the guardian rejects {path}: {reason}")
                if sha256 is not None:
                    self._files.refused(path)
            case _:
                return

    def _obey(self, text: bytes, now: float) -> None:
        try:
            order = guardian_line(text)
        except Invalid as error:
            self._log(f"a command from the guardian was skipped: {error}")
            return
        match order:
            case StartOrder():
                self._start(order, now)
            case SignalOrder():
                self._host.signal(self._member, order.number)
            case SweepOrder():
                self._host.sweep(self._member)
            case LearnerLine():
                self._host.send(self._member, order.text.encode() + b"\n")
            case Dismissal():
                self._is_dismissed = True
                self._host.sweep(self._member)

    def _start(self, order: StartOrder, now: float) -> None:
        if order.number <= self._state.started or self._host.processes():
            return  # repeated
        reported = {name: order.environment[name] for name in _REPORTED if name in order.environment}
        self._state = replace(self._about, started=order.number, environment=reported)
        self._received_s, self._activity_at = now, now + QUIET_S
        # Peers reach this machine where the guardian does; its host name may not resolve.
        address = self._address or self._link.own_address
        own = {PRIVATE: "1"} if address is None else {PRIVATE: "1", "DLAAS_ADDRESS": address}
        environment = {**own, **order.environment}
        self._host.start(
            host.LearnerOrder(
                member=self._member, module=order.module, arguments=order.arguments, environment=environment
            )
        )

    # -- from the learner ----------------------------------------------------------------------------------------------

    def _forward(self, event: host.HostEvent, now: float) -> None:
        match event:
            case host.Started(process):
                who = process.identity
                self._report(replace(self._state, pid=who.pid, start=who.start, boot=who.boot))
            case host.NotStarted(_, reason, is_permanent, program):
                self._report(replace(self._state, not_started=reason, is_permanent=is_permanent, program=program))
            case host.Connected() | host.Disconnected():
                self._session.send_line(pack_line(ControlChannel(is_open=isinstance(event, host.Connected))))
            case host.MessageReceived(_, line):
                self._received_s = now
                self._forward_line(line)
            case host.Ended():
                self._ended_s = now
                self._files.look(is_final=True)
                self._ended = replace(
                    self._state,
                    has_ended=True,
                    code=event.code,
                    signal=event.signal,
                    is_out_of_memory=event.is_out_of_memory,
                    is_stopped=self._is_stopped,
                    is_clean=event.is_clean,
                )
            case _:
                return

    def _forward_line(self, line: bytes) -> None:
        packed = pack_line(LearnerLine(text=line.decode("utf-8", "replace")))
        if _kind_of(line) in _RELIES_ON_FILES:
            self._files.look()
            self._held.append(packed)
        else:
            self._session.send_line(packed)

    def _release(self) -> None:
        """Send what relied on files, once they are stored."""
        if not (self._held or self._ended is not None) or not self._files.is_settled:
            return
        while self._held:
            self._session.send_line(self._held.popleft())
        if self._ended is not None:
            self._files.end_streams()
            self._report(self._ended)
            self._ended = None

    def _report(self, state: LearnerState) -> None:
        self._state = state
        self._session.send_line(pack_line(state))

    def _report_activity(self, now: float) -> None:
        if now < self._activity_at or not self._host.processes():
            return
        self._activity_at = max(now + ACTIVITY_S, self._received_s + QUIET_S)
        activity = self._host.activity(self._member)
        is_quiet = now >= self._received_s + QUIET_S
        if is_quiet and self._session.is_linked and activity is not None and activity != self._activity:
            self._activity = activity
            self._session.send_line(pack_line(ActivityReport(ticks=activity.ticks, state=activity.state)))

    def _end_as_orphan(self, now: float) -> None:
        if self._session.is_linked:
            return
        self._linked_s = now if self._linked_s is None else self._linked_s
        if now - self._linked_s >= self._orphan_s and not self._is_orphan:
            self._log(f"no guardian for {self._orphan_s:g} s: the learner is left to save and exit")
            self._is_orphan = True
            self._host.close_channel()
        if self._host.processes() or self._is_reported or self._is_expired:
            return
        has_result = self._state.started > 0
        kept_s = self._keep_s if has_result else self._orphan_s
        if now - max(self._linked_s, self._ended_s) >= kept_s:
            what = "collected the learner's result" if has_result else "ordered a learner to start"
            self._log(f"no guardian has {what} for {kept_s:g} s: this agent ends")
            self._is_expired = True


def cgroup_oom_kills(path: Path = Path("/sys/fs/cgroup/memory.events")) -> int:
    """Return how often the kernel has killed a process of this container for lack of memory; 0 if unknown."""
    with suppress(OSError):
        found = re.search(r"^oom_kill (\d+)", path.read_text(encoding="ascii"), re.MULTILINE)
        return int(found[1]) if found is not None else 0
    return 0


def _kind_of(line: bytes) -> object:
    try:
        body = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return body.get("t") if isinstance(body, dict) else None


def main(environment: Mapping[str, str] = os.environ) -> int:
    """Run an agent as its environment describes it, until it may end."""
    root = Path(environment["DLAAS_AGENT_DIR"])
    member = int(environment["DLAAS_AGENT_MEMBER"])
    address = Address.parse(environment["DLAAS_AGENT_GUARDIAN"])
    token = Path(environment["DLAAS_AGENT_TOKEN_FILE"]).read_bytes()
    root.mkdir(mode=0o700, parents=True, exist_ok=True)
    me = Endpoint(job=environment["DLAAS_AGENT_JOB"], name=agent_name(member), token=token, session=new_session_id())
    with suppress(OSError):  # as process 1 it is the parent of all orphans anyway
        become_subreaper()
    base = environment_here(environment, root / "home")
    ttl_s = float(environment.get("DLAAS_AGENT_TTL_S", ORPHAN_S))
    keep_s = float(environment.get("DLAAS_AGENT_KEEP_S", KEEP_S))
    own_address = environment.get("DLAAS_AGENT_ADDRESS")
    place = AgentPlace(
        image=environment.get("DLAAS_AGENT_IMAGE"),
        node=environment.get("DLAAS_AGENT_NODE"),
        pod=environment.get("DLAAS_AGENT_POD"),
    )
    agent = Agent(
        root,
        member,
        me,
        lambda: address,
        _log,
        base=base,
        orphan_s=ttl_s,
        keep_s=keep_s,
        own_address=own_address,
        place=place,
    )
    wake_r, wake_w = socket.socketpair()
    for end in (wake_r, wake_w):
        end.setblocking(False)
    signal.set_wakeup_fd(wake_w.fileno(), warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.signal(signal.SIGTERM, lambda *_: agent.stop())
    while not agent.is_over:
        now = time.monotonic()
        ready = wait({**agent.interests(now), wake_r.fileno(): 1}, agent.due(now) - now)
        with suppress(BlockingIOError):
            wake_r.recv(4096)
        agent.turn(ready, time.monotonic())
        reap_orphans({process.identity.pid for process in agent.processes().values()})
    agent.close()
    return agent.exit_code


def _log(text: str) -> None:
    print(f"agent: {text}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
