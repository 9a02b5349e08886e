"""A job's directory as the engine would make it, driven by its files only."""

from __future__ import annotations

import atexit
import functools
import json
import os
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from textwrap import dedent
from typing import Any

import jupyter_dlaas
from jupyter_dlaas.jobdir.atomic_files import send_datagram, write_whole
from jupyter_dlaas.jobdir.journal_file import read_facts
from jupyter_dlaas.runtime.system.process import Identity, boot_id, is_alive, marked, send
from jupyter_dlaas.runtime.zygote.start_guardian import Started, reap, start_guardian
from jupyter_dlaas.wire.codec import encode
from jupyter_dlaas.wire.journal import FactKind, Goal, GuardianUp, LearnerUp, MemberWanted, Wanted

DEADLINE_S = 60.0


def until(claim: Callable[[], Any], what: str | Callable[[], str], deadline_s: float = DEADLINE_S) -> Any:
    """Wait for something that other processes do; returns the first true answer. `what` may tell how things stand."""
    end = time.monotonic() + deadline_s
    while not (answer := claim()):
        if time.monotonic() > end:
            raise AssertionError(f"not within {deadline_s:g} s: {what if isinstance(what, str) else what()}")
        time.sleep(0.01)
    return answer


def make_package_dir(folder: Path) -> Path:
    """Create a folder that holds nothing but the package, as the engine does."""
    folder.mkdir(parents=True)
    (folder / "jupyter_dlaas").symlink_to(Path(jupyter_dlaas.__file__).parent)
    return folder


@functools.cache
def shared_package_dir() -> Path:
    """One for all tests of a session, so that they can share zygotes."""
    folder = Path(tempfile.mkdtemp(prefix="dlaas-package-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return make_package_dir(folder / "package")


def process_of(fact: LearnerUp | GuardianUp) -> Identity:
    """Members whose start this fact reports."""
    assert fact.pid is not None
    assert fact.start is not None
    return Identity(fact.pid, fact.start, fact.boot or boot_id())


@dataclass
class Job:
    """One job directory and what the engine would do with it."""

    dir: Path
    interpreter: str = sys.executable
    zygote_dir: Path | None = None
    framework: str | None = None
    revision: int = 0
    generation: int = 0
    next_member: int = 0
    guardian: Started | None = None
    environment: dict[str, str] = field(default_factory=dict)
    package_dir: Path = field(default_factory=shared_package_dir)

    # -- what the engine does

    def want(
        self, goal: Goal, learners: int = 0, *, grace_s: float = 30.0, variables: Mapping[str, str] | None = None
    ) -> None:
        """Write the wanted document and wake the guardian, starting one where none lives."""
        self.revision += 1
        members: list[MemberWanted] = []
        if goal is Goal.RUN and learners:
            self.generation += 1
            for _ in range(learners):
                extra = {"OMP_NUM_THREADS": "1", **(variables or {})}
                members.append(MemberWanted(member=self.next_member, node="here", environment=extra))
                self.next_member += 1
        wanted = Wanted(
            revision=self.revision,
            goal=goal,
            generation=self.generation,
            members=tuple(members),
            grace_s=grace_s,
        )
        write_whole(self.dir / "wanted.json", json.dumps(encode(wanted)).encode())
        self.wake()

    def run(self, learners: int = 1, **variables: str) -> None:
        self.want(Goal.RUN, learners, variables=variables)

    def resize(self, *members: int, fresh: int = 0) -> None:
        """Want these of the members that there are, and some new ones."""
        body = json.loads((self.dir / "wanted.json").read_text())
        there = {one["member"]: one for one in body["members"]}
        wanted = [there[number] for number in members]
        for _ in range(fresh):
            wanted.append(next(iter(there.values())) | {"member": self.next_member})
            self.next_member += 1
        self.revision += 1
        self.generation += 1
        body |= {"revision": self.revision, "generation": self.generation, "members": wanted}
        write_whole(self.dir / "wanted.json", json.dumps(body).encode())
        self.wake()

    def halt(self, grace_s: float = 30.0) -> None:
        self.want(Goal.HALT, grace_s=grace_s)

    def stop(self, grace_s: float = 5.0) -> None:
        self.want(Goal.STOP, grace_s=grace_s)

    def want_nothing(self) -> None:
        """End the job whatever it does, so that the next test finds a quiet machine."""
        if self.guardian is not None and self.processes():
            self.stop(grace_s=0.0)
            until(lambda: not self.processes(), "no process of the job is left", 10.0)

    def wake(self) -> None:
        if not send_datagram(self.dir / "guardian.wake", b"!"):
            self.start_guardian()

    def start_guardian(self) -> Started:
        self.guardian = start_guardian(
            self.dir,
            interpreter=self.interpreter,
            package_dir=self.package_dir,
            environment=self.environment,
            zygote_dir=self.zygote_dir,
            framework=self.framework,
        )
        return self.guardian

    # -- what is seen

    def facts(self, *kinds: FactKind) -> list[Any]:
        """Return the facts of these kinds, or all facts."""
        found, _ = read_facts(self.dir / "journal.jsonl")
        return [fact for fact in found if not kinds or fact.kind in kinds]

    def wait(self, kind: FactKind, count: int = 1, deadline_s: float = DEADLINE_S) -> Any:
        """Wait for the `count`-th fact of a kind, and return it."""

        def there() -> list[Any] | None:
            found = self.facts(kind)
            return found if len(found) >= count else None

        try:
            found: list[Any] = until(there, f"{kind} × {count}", deadline_s)
        except AssertionError as error:
            raise AssertionError(f"{error}\n{self.report()}") from None
        return found[count - 1]

    def closed(self, count: int = 1, deadline_s: float = DEADLINE_S) -> str:
        why: str | None = self.wait(FactKind.CLOSED, count, deadline_s).why
        assert why is not None
        return why

    def report(self) -> str:
        lines = [str(fact) for fact in self.facts()]
        for path in sorted(self.dir.rglob("*.log")):
            lines += [f"--- {path.relative_to(self.dir)}", path.read_text(errors="replace")[-3000:]]
        return "\n".join(
            [
                *lines,
                "--- processes",
                *map(
                    _threads,
                    dict.fromkeys(f.pid for f in self.facts(FactKind.GUARDIAN_UP, FactKind.LEARNER_UP) if f.pid),
                ),
            ]
        )

    def log(self, member: int = 0) -> str:
        """Return a learner's log; nothing before the learner has opened it, which is after its start is recorded."""
        path = self.dir / f"learner-{member}" / "stdout.log"
        return path.read_text() if path.exists() else ""

    def learner(self, member: int) -> Identity:
        """Return the process of a running member."""
        return process_of(next(f for f in self.facts(FactKind.LEARNER_UP) if f.member == member))

    def kill_learner(self, member: int) -> None:
        assert send(self.learner(member), signal.SIGKILL)

    def kill_guardian(self) -> None:
        """kill -9, and wait until it is gone."""
        who = process_of(self.facts(FactKind.GUARDIAN_UP)[-1])
        assert send(who, signal.SIGKILL)
        until(lambda: not is_alive(who), "the guardian is gone")
        reap()

    def processes(self) -> list[Identity]:
        """Every living process with the job's mark."""
        return [who for who, _ in marked(str(self.dir))]

    def output(self, name: str) -> Path:
        return self.dir / "output" / name

    def lines(self, name: str) -> list[str]:
        """Return the lines that user code wrote into a file of its output folder."""
        path = self.output(name)
        return path.read_text().splitlines() if path.exists() else []


def make_job(
    folder: Path,
    source: str,
    *,
    files: Mapping[str, str] | None = None,
    environment: Mapping[str, str] | None = None,
    interpreter: str = sys.executable,
    **spec: Any,
) -> Job:
    """Create a job's directory with everything that the engine puts there before it starts."""
    folder.mkdir(parents=True, mode=0o700)
    spec.setdefault("directory", str(folder.parent))
    spec = {"name": "test", **spec}
    (folder / "spec.json").write_text(json.dumps({"id": "test-1", "spec": spec, "owner": "me"}))
    whole = {key: os.environ[key] for key in ("PATH", "HOME", "LANG", "TMPDIR") if key in os.environ}
    whole |= {"TORCH_NCCL_ASYNC_ERROR_HANDLING": "1", **(environment or {})}
    (folder / "environment.json").write_text(json.dumps(whole))
    (folder / "train.py").write_text(dedent(source))
    for name, text in (files or {}).items():
        path = folder / "files" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(dedent(text))
    (folder / "output").mkdir()
    return Job(folder, interpreter=interpreter, environment=whole, framework=spec.get("framework"))


def clean(jobs: Sequence[Job]) -> Iterator[Identity]:
    """End what jobs left; yields what was still there."""
    for job in jobs:
        for who in job.processes():
            with suppress(ProcessLookupError):
                if send(who, signal.SIGKILL):
                    yield who
        reap()


def _threads(pid: int) -> str:
    """Describe each thread of a process: its state and where it waits, as the kernel reports them."""
    found = []
    for task in sorted(Path(f"/proc/{pid}/task").glob("*")):
        with suppress(OSError):
            state = (task / "stat").read_text().rpartition(")")[2].split()[0]
            found.append(f"{(task / 'comm').read_text().strip()} {state} {(task / 'wchan').read_text()}")
    return f"{pid}: {'; '.join(found) or 'gone'}"
