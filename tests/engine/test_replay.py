"""Replay: the stored events of a job lead to its stored record, in random lives of an engine too."""

from __future__ import annotations

import asyncio
import json
import sqlite3
import tempfile
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Final

import pytest

from dlaas_server.core.lifecycle.job_events import FactRead
from dlaas_server.core.lifecycle.requests import ChangeJob
from dlaas_server.core.model.cluster import Device, Node
from dlaas_server.core.model.states import Event
from dlaas_server.engine.pool_admin import Administration
from dlaas_server.rest.routes import Change, DrainAsked
from dlaas_server.store import schema
from jupyter_dlaas.wire.codec import DlaasError
from jupyter_dlaas.wire.protocol import Cause, Elastic, Failure, Scheduled
from tests.engine.driving import Engine, engine_on, submit
from tests.pools.simulated.simulated_pool import Fault, Script, SimulatedPool, Trouble
from tests.pools.simulated.virtual_clock import VirtualClock

LOST_GPU: Final = Failure(cause=Cause.HARDWARE, code="gpu_lost", what="GPU is lost", advice="The GPU failed.")
KILLED: Final = Failure(cause=Cause.UNKNOWN, code="killed", what="the learner was killed", advice="")
ACTS: Final = (Event.HALT, Event.RESUME, Event.RESUME, Event.CANCEL, Event.CHECKPOINT, Event.CHECKPOINT)
JOBS: Final = 7
MOVES: Final = 40


def nodes() -> list[Node]:
    return [
        Node(name=name, devices=tuple(Device(id=f"{name}/{i}", index=i, kind="GPU") for i in range(3)))
        for name in ("n1", "n2")
    ]


def played(folder: Path, scene: Callable[[Engine, SimulatedPool], Awaitable[None]]) -> None:
    """Play a scene on a new engine. Its end checks the replay of each job."""

    async def whole() -> None:
        clock = VirtualClock(1000.0)
        pool = SimulatedPool(nodes(), clock, script=Script(steps=30))
        engine = await engine_on(folder, pool, clock)
        await scene(engine, pool)
        await engine.close()

    asyncio.run(whole())


# -- random lives -----------------------------------------------------------------------------------------------------


class Life:
    """Engines one after the other on one pool, with random requests, faults, and crashes."""

    def __init__(self, folder: Path, chance: Random) -> None:
        self.folder, self.chance = folder, chance
        self.clock = VirtualClock(1000.0)
        trouble = Trouble(
            late_s=chance.choice([0.0, 0.05]),
            is_repeated=chance.random() < 0.3,
            is_reordered=chance.random() < 0.3,
            seed=chance.randrange(1000),
        )
        self.pool = SimulatedPool(nodes(), self.clock, trouble=trouble)
        self.slept_s = 0.0

    async def run(self) -> Counter[str]:
        """Play the life to its end. Return the number of events of each kind."""
        await self._open()
        moves = [self._submit] * JOBS + self.chance.choices(
            [self._change, self._act, self._break, self._pause, self._administer, self._crash, self._sleep],
            weights=[6, 8, 8, 16, 3, 2, 1],
            k=MOVES,
        )
        self.chance.shuffle(moves)
        for move in (self._submit, *moves):
            with suppress(DlaasError):
                await move()
        kinds = Counter[str]()
        for job in self.engine.lifecycle.jobs:
            _, events = await self.engine.store.events(job)
            kinds.update(event.fact.kind if isinstance(event, FactRead) else event.kind for _, event in events)
        await self.engine.close()
        return kinds

    async def _open(self) -> None:
        self.engine = await engine_on(self.folder, self.pool, self.clock)
        await self.engine.store._do(lambda db: db.execute("PRAGMA synchronous = OFF").close())  # no power is lost here
        self.engine.lifecycle.slept = lambda: self.slept_s
        self.administration = Administration(self.engine.lifecycle)

    async def _submit(self) -> None:
        chance = self.chance
        most = chance.randint(1, 4)
        request = submit((chance.randint(1, most), most), priority=chance.choice([0, 0, 5]))
        steps = chance.choice([30, 200])
        faults = chance.choice([(), (Fault(step=12, signal=9, failure=chance.choice([KILLED, LOST_GPU])),)])
        job = f"job-{self.engine.lifecycle.next_number}"
        self.pool.scripts[job] = Script(
            steps=steps, is_live=chance.random() < 0.5, joins_lost=chance.randrange(2), faults=faults
        )
        spec = replace(request.spec, max_time_s=chance.choice([None, None, 5.0]), spot=chance.random() < 0.2)
        if chance.random() < 0.3:
            spec = replace(spec, schedule=(Scheduled(epoch=1, learners=most),))
        await self.engine.submit(replace(request, spec=spec))

    def _any(self) -> str:
        return self.chance.choice([*self.engine.lifecycle.jobs])

    async def _change(self) -> None:
        chance = self.chance
        change = Change(
            learners=chance.choice([None, 1, 2, 3]),
            priority=chance.choice([None, 1, 7]),
            elastic=chance.choice([None, None, Elastic.OFF, Elastic.MANUAL]),
        )
        await self.engine.ask(self.engine.requests.change("ana", self._any(), change))

    async def _act(self) -> None:
        await self.engine.act(self._any(), self.chance.choice(ACTS))

    async def _break(self) -> None:
        chance, pool, job = self.chance, self.pool, self._any()
        breaks: list[Callable[[], object]] = [
            lambda: pool.kill_guardian(job),
            lambda: pool.kill_all(job),
            lambda: pool.kill_learner(job, chance.choice(pool.learners(job) or (0,))),
            lambda: pool.tear_journal(job, b'{"n":oops\n'),
            lambda: pool.starts_refused.update({job: 2}),
            lambda: pool.seats_refused.update({("n1", "n1/0"): 1}),
            pool.cut,
        ]
        chance.choice(breaks)()
        await self._pause()
        pool.restore()

    async def _pause(self) -> None:
        """Let some time pass."""
        for _ in range(self.chance.randint(1, 12)):
            due = [at_s for at_s in (self.clock.next_s, self.engine.lifecycle.wake_s) if at_s is not None]
            if due:
                self.clock.advance(max(min(due), self.clock.now_s()))
            await self.engine.settle()

    async def _administer(self) -> None:
        name = self.chance.choice(["n1", "n2"])
        if self.chance.random() < 0.5:
            await self.engine.ask(self.administration.drain("ana", name, DrainAsked()))
        else:
            await self.engine.ask(self.administration.uncordon("ana", name))

    async def _crash(self) -> None:
        """End the engine; the next one continues, after a check of all replays."""
        await self.engine.close()
        await self._open()
        await self.engine.settle()

    async def _sleep(self) -> None:
        self.slept_s += 3.0
        await self.engine.settle()


SEEN: Final = {
    *("submitted", "change_job", "halt_job", "started", "waits", "journal_read", "generation"),
    *("guardian_lost", "lost", "checkpoint", "completed", "closed"),
}
"""Events without which the random lives would test little."""


def test_events_of_random_lives_lead_to_the_stored_jobs() -> None:
    kinds = Counter[str]()
    for seed in (*range(3), Random().randrange(3, 1_000_000_000)):
        with tempfile.TemporaryDirectory() as folder:
            try:
                kinds.update(asyncio.run(Life(Path(folder), Random(seed)).run()))
            except Exception as error:
                error.add_note(f"the life of seed {seed}")
                raise
    assert not SEEN - kinds.keys()


# -- single lives -----------------------------------------------------------------------------------------------------


def test_refused_requests_and_those_without_effect_leave_no_event(tmp_path: Path) -> None:
    async def scene(engine: Engine, pool: SimulatedPool) -> None:
        job = await engine.submit()
        await engine.act(job, Event.HALT)
        before = await engine.store.events(job)

        await engine.act(job, Event.HALT)
        with pytest.raises(DlaasError, match="accepts exactly 1 learner"):
            await engine.scale(job, 3)
        assert await engine.store.events(job) == before

    played(tmp_path, scene)


def test_events_of_a_job_have_the_user_and_the_time(tmp_path: Path) -> None:
    async def scene(engine: Engine, pool: SimulatedPool) -> None:
        job = await engine.submit()
        engine.clock.advance(1007.0)
        await engine.ask(engine.requests.change("ana", job, Change(priority=3)))

        _, events = await engine.store.events(job)
        changes = [(at_s, event) for at_s, event in events if isinstance(event, ChangeJob)]
        assert changes == [(1007.0, ChangeJob(by="ana", job=job, priority=3))]

    played(tmp_path, scene)


def test_requests_of_administrators_are_kept_with_the_pool(tmp_path: Path) -> None:
    async def scene(engine: Engine, pool: SimulatedPool) -> None:
        administration = Administration(engine.lifecycle)
        await engine.ask(administration.drain("ana", "n1", DrainAsked()))
        await engine.ask(administration.uncordon("ana", "n1"))

    played(tmp_path, scene)
    with sqlite3.connect(tmp_path / "store.sqlite3") as db:
        rows = db.execute("SELECT event FROM events WHERE job = '' ORDER BY row").fetchall()
    db.close()

    assert [json.loads(event) for (event,) in rows] == [
        {"kind": "drain_node", "format": 1, "by": "ana", "node": "n1"},
        {"kind": "uncordon_node", "format": 1, "by": "ana", "node": "n1"},
    ]


def test_secrets_are_in_no_event_and_leave_with_the_job(tmp_path: Path) -> None:
    secret = "canary-0123456789"

    def in_events() -> bool:
        with sqlite3.connect(tmp_path / "store.sqlite3") as db:
            found = any(secret in str(row) for row in db.execute("SELECT * FROM events"))
        db.close()
        return found

    def in_files() -> bool:
        return any(secret.encode() in path.read_bytes() for path in tmp_path.iterdir() if path.is_file())

    async def scene(engine: Engine, pool: SimulatedPool) -> None:
        job = await engine.submit(replace(submit(), environment={"API_TOKEN": secret}, source=f"key = '{secret}'\n"))
        await engine.until(engine.all_ended)
        assert in_files()
        assert not in_events()

        await engine.ask(engine.requests.delete("ana", job))
        with pytest.raises(DlaasError, match="no events"):
            await engine.store.events(job)
        assert not in_files()

    played(tmp_path, scene)


def test_many_events_become_a_snapshot_and_the_story_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(schema, "EVENTS_KEPT", 20)

    async def scene(engine: Engine, pool: SimulatedPool) -> None:
        pool.script = Script(steps=120, checkpoint_every_steps=2)
        job = await engine.submit()
        await engine.until(lambda: pool.step(job) >= 60)
        texts = [event["text"] for event in await engine.requests.events("ana", job)]
        await engine.check_replay()
        await engine.until(engine.all_ended)

        _, events = await engine.store.events(job)
        kinds = [event.kind for _, event in events]
        assert kinds[0] == "submitted", "events with a text stay"
        assert "snapshot" in kinds
        assert len(events) < 60
        assert [event["text"] for event in await engine.requests.events("ana", job)][: len(texts)] == texts

    played(tmp_path, scene)
