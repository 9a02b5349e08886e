"""Contract of a host of learners with a guardian. Each host's test module gives a `rig` and runs all of it."""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

from jupyter_dlaas.runtime.hosts.learner_host import (
    Connected,
    Ended,
    HostEvent,
    LearnerHost,
    LearnerOrder,
    MessageReceived,
    NotStarted,
    Started,
)
from jupyter_dlaas.runtime.link.transport import wait
from jupyter_dlaas.runtime.system.process import is_alive, kill_round

HERE = Path(__file__).parent
DEADLINE_S = 60.0


class Rig(Protocol):
    """A host under test, and what its tests need beside the interface."""

    job_dir: Path
    """The job's directory as the guardian sees it."""
    events: list[HostEvent]
    ahead_s: float
    """Seconds by which the clock of guardian and agents is put forward."""

    @property
    def host(self) -> LearnerHost: ...

    def others(self, now: float) -> tuple[dict[int, int], list[float]]:
        """Descriptors and times of the other processes that this test's loop drives."""

    def turn_others(self, ready: set[int], now: float) -> None: ...

    def restart_guardian(self) -> None:
        """Replace the host by one that knows nothing but what the job's directory and the agents say."""


def turn(rig: Rig) -> None:
    """One turn of the guardian and of all that the test drives with it."""
    now = time.monotonic() + rig.ahead_s
    interests, times = rig.others(now)
    due_s = rig.host.due(now)
    times = [now + 1.0, *times, *([due_s] if due_s is not None else [])]
    ready = wait({**interests, **rig.host.interests()}, min(times) - now)
    now = time.monotonic() + rig.ahead_s
    rig.turn_others(ready, now)
    rig.events += rig.host.turn(ready, now)


def until(rig: Rig, claim: Callable[[], Any], what: str) -> Any:
    end = time.monotonic() + DEADLINE_S
    while not (answer := claim()):
        assert time.monotonic() < end, f"not within {DEADLINE_S:g} s: {what}; so far {rig.events[-10:]}"
        turn(rig)
    return answer


def of(rig: Rig, kind: type, member: int = 0) -> list[Any]:
    found = [event for event in rig.events if isinstance(event, kind)]
    return [event for event in found if getattr(event, "member", None) == member or _of_process(event, member)]


def _of_process(event: Any, member: int) -> bool:
    return hasattr(event, "process") and event.process.member == member


def heard(rig: Rig, tag: str, member: int = 0) -> list[dict[str, Any]]:
    messages = [json.loads(event.line) for event in of(rig, MessageReceived, member)]
    return [message for message in messages if message["t"] == tag]


def order(member: int = 0, **more: Any) -> LearnerOrder:
    environment = {"PYTHONPATH": str(HERE), "TOY": "yes", **more.pop("environment", {})}
    return LearnerOrder(member=member, module="toy_learner", environment=environment, **more)


def tell(rig: Rig, member: int = 0, **fields: Any) -> None:
    rig.host.send(member, json.dumps(fields).encode() + b"\n")


def started(rig: Rig, member: int = 0, **more: Any) -> None:
    """Start a learner and wait until it has introduced itself."""
    rig.host.start(order(member, **more))
    until(rig, lambda: heard(rig, "hello", member), f"the hello of learner {member}")


def ended(rig: Rig, member: int = 0) -> Ended:
    found: Ended = until(rig, lambda: of(rig, Ended, member), f"the end of learner {member}")[-1]
    return found


class LearnerHostContract:
    """The promises. `rig` comes from the module that inherits them."""

    def test_a_learner_starts_talks_and_exits(self, rig: Rig) -> None:
        started(rig, arguments=("--flag",))
        assert heard(rig, "hello")[0]["arguments"] == ["--flag"]
        assert rig.host.processes()[0] == of(rig, Started)[0].process
        assert is_alive(rig.host.processes()[0].identity)
        tell(rig, do="echo", text="ä \u2713")
        until(rig, lambda: heard(rig, "echo"), "the answer")
        tell(rig, do="print", text="its log")
        tell(rig, do="exit", code=3)
        end = ended(rig)

        assert (end.code, end.signal, end.is_clean) == (3, None, True)
        assert heard(rig, "echo") == [{"t": "echo", "text": "ä \u2713"}]
        assert [type(event) for event in rig.events if not isinstance(event, MessageReceived)][-1] is Ended
        # Whatever the learner wrote is in the job's directory before its end is reported.
        assert (rig.job_dir / "learner-0/stdout.log").read_text() == "learner 0 begins\nits log\n"
        assert json.loads((rig.job_dir / "learner-0/result.json").read_text()) == {"code": 3}
        assert rig.host.processes() == {}

    def test_signals_reach_the_learner_and_its_end_names_them(self, rig: Rig) -> None:
        started(rig)
        tell(rig, do="ignore")
        until(rig, lambda: heard(rig, "ignores"), "the handler")
        rig.host.signal(0, signal.SIGTERM)
        tell(rig, do="echo", text="alive")
        until(rig, lambda: heard(rig, "echo"), "its life after SIGTERM")
        rig.host.signal(0, signal.SIGKILL)

        end = ended(rig)
        assert (end.code, end.signal) == (None, signal.SIGKILL)
        rig.host.signal(0, signal.SIGKILL)  # an ended learner: nothing happens
        turn(rig)

    def test_processes_left_behind_end_before_the_end_is_reported(self, rig: Rig) -> None:
        started(rig)
        for is_daemon in (False, True):
            tell(rig, do="child", is_daemon=is_daemon)
        until(rig, lambda: len(heard(rig, "child")) == 2, "both children")
        pids = [message["pid"] for message in heard(rig, "child")]
        tell(rig, do="exit", code=0)

        assert ended(rig).is_clean
        assert [pid for pid in pids if is_running(pid)] == []

    def test_a_sweep_ends_learner_and_children(self, rig: Rig) -> None:
        started(rig)
        tell(rig, do="child", is_daemon=True)
        until(rig, lambda: heard(rig, "child"), "the child")
        rig.host.sweep(0)

        assert ended(rig).signal == signal.SIGKILL
        assert not is_running(heard(rig, "child")[0]["pid"])

    def test_several_learners_are_distinguished(self, rig: Rig) -> None:
        for member in (0, 1, 7):
            rig.host.start(order(member))
        until(rig, lambda: all(heard(rig, "hello", member) for member in (0, 1, 7)), "three hellos")
        assert [heard(rig, "hello", member)[0]["member"] for member in (0, 1, 7)] == ["0", "1", "7"]
        tell(rig, 1, do="exit", code=5)
        assert ended(rig, 1).code == 5
        assert sorted(rig.host.processes()) == [0, 7]

    def test_a_member_starts_again_after_its_end(self, rig: Rig) -> None:
        started(rig)
        tell(rig, do="exit", code=1)
        first = ended(rig).process
        rig.host.start(order())
        until(rig, lambda: len(heard(rig, "hello")) == 2, "the second hello")

        assert rig.host.processes()[0] != first
        tell(rig, do="exit", code=2)
        until(rig, lambda: len(of(rig, Ended)) == 2, "the second end")
        assert [event.code for event in of(rig, Ended)] == [1, 2]
        assert (rig.job_dir / "learner-0/stdout.log").read_text() == "learner 0 begins\n" * 2

    def test_a_program_that_cannot_start_is_reported(self, rig: Rig) -> None:
        rig.host.start(order(files=("missing.py",)))
        until(rig, lambda: of(rig, NotStarted), "the refusal")
        assert "missing.py" in of(rig, NotStarted)[0].reason
        assert of(rig, NotStarted)[0].is_permanent
        assert rig.host.processes() == {}

    def test_the_environment_holds_the_orders_variables(self, rig: Rig) -> None:
        started(rig, environment={"RANK": "3"})
        names = ["TOY", "RANK", "DLAAS_MEMBER", "DLAAS_JOB_DIR", "DLAAS_AGENT_DIR"]
        tell(rig, do="environment", names=names)
        until(rig, lambda: heard(rig, "environment"), "the environment")

        values = heard(rig, "environment")[0]["values"]
        assert (values["TOY"], values["RANK"], values["DLAAS_MEMBER"]) == ("yes", "3", "0")
        assert Path(values["DLAAS_JOB_DIR"]).is_dir()
        assert values["DLAAS_AGENT_DIR"] is None

    def test_files_are_present_before_the_start_and_delivered_later(self, rig: Rig) -> None:
        (rig.job_dir / "files").mkdir()
        (rig.job_dir / "files/data.txt").write_text("first")
        (rig.job_dir / "train.py").write_text("x" * 3_000_000)
        started(rig, files=("files/data.txt", "train.py"))
        tell(rig, do="read", path="files/data.txt")
        until(rig, lambda: heard(rig, "read"), "the first content")
        (rig.job_dir / "files/data.txt").write_text("second")
        rig.host.deliver(0, "files/data.txt")

        def is_second() -> bool:
            tell(rig, do="read", path="files/data.txt")
            return bool(heard(rig, "read")[-1]["text"] == "second")

        assert heard(rig, "read")[0]["text"] == "first"
        until(rig, is_second, "the second content")
        assert len(heard(rig, "read")) > 1

    def test_the_word_of_a_checkpoint_comes_after_its_files(self, rig: Rig) -> None:
        started(rig)
        tell(rig, do="write", path="checkpoints/step-0000000001/state.bin", text="s" * 2_000_000)
        tell(rig, do="write", path="checkpoints/step-0000000001/manifest.json", text="{}", then="checkpoint")
        until(rig, lambda: heard(rig, "checkpoint"), "the word of the checkpoint")

        folder = rig.job_dir / "checkpoints/step-0000000001"
        assert (folder / "state.bin").read_text() == "s" * 2_000_000
        assert (folder / "manifest.json").read_text() == "{}"

    def test_logs_metrics_and_progress_appear_while_it_runs(self, rig: Rig) -> None:
        started(rig)
        lines = [json.dumps({"step": step}) + "\n" for step in range(50)]
        for step, line in enumerate(lines):
            tell(rig, do="append", path="metrics.jsonl", text=line)
            tell(rig, do="print", text=f"step {step}")
        tell(rig, do="write", path="progress.json", text='{"step": 49}')

        def is_there() -> bool:
            log = rig.job_dir / "learner-0/stdout.log"
            return "step 49\n" in log.read_text() and (rig.job_dir / "progress.json").exists()

        until(rig, is_there, "the log and the progress")
        until(rig, lambda: (rig.job_dir / "metrics.jsonl").read_text() == "".join(lines), "the metrics")

    def test_activity_is_seen_of_a_silent_learner(self, rig: Rig) -> None:
        started(rig)
        rig.host.signal(0, signal.SIGSTOP)

        def is_stopped() -> bool:
            activity = rig.host.activity(0)
            return activity is not None and activity.is_stopped

        until(rig, is_stopped, "the stopped process")
        rig.host.signal(0, signal.SIGKILL)
        ended(rig)
        assert rig.host.activity(0) is None

    def test_a_new_guardian_finds_the_learner_and_its_state(self, rig: Rig) -> None:
        started(rig)
        tell(rig, do="set", text="step 12")
        tell(rig, do="echo", text="set")
        until(rig, lambda: heard(rig, "echo"), "the state")
        process = rig.host.processes()[0]
        rig.events.clear()
        rig.restart_guardian()
        until(rig, lambda: heard(rig, "hello"), "the repeated hello")

        assert [event.process for event in of(rig, Started)] == [process]
        assert of(rig, Started)[0].is_adopted
        assert len(of(rig, Connected)) == 1
        assert heard(rig, "hello")[-1]["set"] == "step 12"
        tell(rig, do="print", text="under the second guardian")
        tell(rig, do="exit", code=4)
        assert ended(rig).process == process
        assert (rig.job_dir / "learner-0/stdout.log").read_text() == "learner 0 begins\nunder the second guardian\n"


def is_running(pid: int) -> bool:
    """Return whether a process runs; one that has ended and was not reaped does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[0] not in (b"Z", b"X")
    except OSError:
        return False


def kill_members(job_dirs: list[Path]) -> None:
    """End what a test left behind."""
    for job_dir in job_dirs:
        while kill_round(str(job_dir)):
            time.sleep(0.01)


__all__ = [
    "LearnerHostContract",
    "Rig",
    "ended",
    "heard",
    "kill_members",
    "of",
    "order",
    "started",
    "tell",
    "turn",
    "until",
]
