"""Rig of the local pool: real guardians and learners on this machine."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import time
import uuid
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

from dlaas_server.pools.base import Pool
from dlaas_server.pools.config import PoolConfig, PoolSection
from dlaas_server.pools.devices import CpuSlots
from dlaas_server.pools.local import LocalPool
from dlaas_server.pools.local.job_folder import JobFolder
from jupyter_dlaas.runtime.system.process import kill_round
from jupyter_dlaas.wire.journal import FactKind
from jupyter_dlaas.wire.protocol import JobSpec, Submit
from tests.pools.rig import ENDLESS

DEADLINE_S = 30.0
PROGRAM = """
import os, time
for step in range({steps}):
    print("step", step, flush=True)
    if step == {fails_at} and os.environ["DLAAS_MEMBER"] == "0":
        raise ValueError("bad luck at step {fails_at}")
    time.sleep(0.02)
"""


@dataclass
class LocalRig:
    folder: Path
    pool: Pool
    news: list[tuple[str, str]] = field(default_factory=list)
    ahead_s: float = 0.0
    """How far the engine's clock is ahead."""
    spec: JobSpec = field(default_factory=JobSpec)
    deadline_s: float = DEADLINE_S

    @property
    def local(self) -> LocalPool:
        assert isinstance(self.pool, LocalPool)
        return self.pool

    def root(self, job: str) -> Path:
        return self.folder / "jobs" / job

    async def job(self, name: str = "a-1", *, steps: int = ENDLESS, fails_at: int | None = None) -> str:
        program = PROGRAM.format(steps=steps, fails_at=-1 if fails_at is None else fails_at)
        return await self.program(name, program)

    async def program(self, name: str, program: str) -> str:
        environment = {"PATH": os.environ["PATH"], "SECRET": "canary"}
        await self.pool.create(name, "me", self.spec, environment)
        await self.pool.put(name, "train.py", program.encode())
        return name

    async def until(self, is_so: Callable[[], Awaitable[bool]], what: str) -> None:
        end = time.monotonic() + self.deadline_s
        while not await is_so():
            assert time.monotonic() < end, f"not within {self.deadline_s:g} s: {what}; {self.said()}"
            await asyncio.sleep(0.005)

    def said(self) -> str:
        logs = sorted((self.folder / "jobs").glob("*/guardian.log")) + sorted(
            (self.folder / "jobs").glob("*/learner-*/*.log")
        )
        return "\n".join(f"{log.parent.name}/{log.name}: {log.read_text()[-800:]}" for log in logs)

    def guardian(self, job: str) -> int:
        who = JobFolder(job, self.root(job)).guardian()
        assert who is not None
        return who.pid

    def kill_guardian(self, job: str) -> None:
        os.kill(self.guardian(job), signal.SIGKILL)

    def kill_learner(self, job: str, member: int) -> None:
        lines = (self.root(job) / "journal.jsonl").read_text().splitlines()
        ups = [fact for fact in map(json.loads, lines) if fact["kind"] == FactKind.LEARNER_UP]
        (pid,) = (fact["pid"] for fact in ups if fact["member"] == member)
        os.kill(pid, signal.SIGKILL)

    def heard(self, job: str, stream: str) -> None:
        self.news.append((job, stream))

    async def open(self) -> None:
        config = PoolConfig(pool=PoolSection(name="test"))
        self.pool = LocalPool(self.folder, config=config, probe=CpuSlots(4))
        await self.pool.open(self.heard, lambda: None)

    async def reopened(self) -> Pool:
        await self.pool.close()
        await self.open()
        return self.pool

    async def closed(self) -> Pool:
        await self.pool.close()
        self.pool = LocalPool(self.folder, config=PoolConfig(pool=PoolSection(name="test")), probe=CpuSlots(4))
        return self.pool

    async def slow_job(self, name: str = "a-1") -> str:
        python = self.folder / f"{name}-python"
        python.write_text(f'#!/bin/sh\nwhile [ ! -e {python}.go ]; do sleep 0.05; done\nexec {sys.executable} "$@"\n')
        python.chmod(0o755)
        await self.pool.create(name, "me", JobSpec(interpreter=str(python)), {"PATH": os.environ["PATH"]})
        await self.pool.put(name, "train.py", PROGRAM.format(steps=ENDLESS, fails_at=-1).encode())
        return name

    def release_start(self, job: str) -> None:
        (self.folder / f"{job}-python.go").touch()

    def cut(self) -> None:
        """As if another disk were mounted in the place of the pool's: the directory is not the one that was opened."""
        self.local._jobs_inode *= -1

    def restore(self) -> None:
        self.local._jobs_inode *= -1
        self.local._nodes_changed()

    def submit(self) -> Submit:
        return Submit(
            key=f"key-{uuid.uuid4()}",
            spec=replace(self.spec, name="job"),
            source=PROGRAM.format(steps=ENDLESS, fails_at=-1),
            environment={"PATH": os.environ["PATH"]},
        )

    def now_s(self) -> float:
        return time.time() + self.ahead_s

    def pass_time(self, seconds: float) -> None:
        self.ahead_s += seconds

    def sweep(self) -> None:
        """Whatever a failed test left running."""
        for root in (self.folder / "jobs").iterdir():
            who = JobFolder(root.name, root).guardian()
            for _ in range(100):
                if kill_round(str(root), roots=[who.pid] if who else []) == 0:
                    break
