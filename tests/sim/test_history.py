"""The pool's own past is read from its store and replayed."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest

from dlaas_server.core.model.job import Job
from dlaas_server.core.scheduling.scheduler import Policy
from dlaas_server.sim.replay.event_loop import replay
from dlaas_server.sim.replay.history import NoHistory, past_of, read_past
from dlaas_server.sim.replay.production import ByCore
from dlaas_server.sim.replay.report import figures
from dlaas_server.store import Store
from dlaas_server.store.sqlite import Batch, Inserted
from jupyter_dlaas.wire.protocol import State
from tests.core.builders import job


def ended(number: int, submitted_s: float, started_s: float, ended_s: float, gpus: int = 1) -> Job:
    """Return a job of one learner that completed."""
    one = job(number)
    spec = replace(one.spec, gpus_per_learner=gpus)
    done = replace(one, spec=spec, wish=1, state=State.COMPLETED)
    return replace(done, submitted_s=submitted_s, started_s=started_s, ended_s=ended_s)


PAST = [ended(1, 1000.0, 1000.0, 1100.0, gpus=2), ended(2, 1010.0, 1100.0, 1110.0), ended(3, 1020.0, 1110.0, 1120.0)]


def test_history_has_the_figures_of_a_replay() -> None:
    found = figures(past_of(PAST, "mine").as_it_was)

    assert (found.jobs, found.makespan_s, found.queued_max) == (3, 120.0, 2)
    assert found.jct_avg_s == pytest.approx(100.0)


def test_the_same_past_may_be_replayed_with_more_devices() -> None:
    past = past_of(PAST, "mine")
    larger = (replace(past.nodes[0], gpus=4),)

    assert past.nodes[0].gpus == 2
    assert figures(replay(past.trace, 4, ByCore(larger, Policy(order="fifo")))).queue_avg_s == 0


def test_jobs_that_never_ran_are_left_out_and_counted() -> None:
    past = past_of([*PAST, job(4)], "mine")

    assert ([one.id for one in past.trace.jobs], past.left_out) == (["job-1", "job-2", "job-3"], 1)


def test_a_pool_without_a_past_is_refused(tmp_path: Path) -> None:
    with pytest.raises(NoHistory, match="no job that started"):
        past_of([job(1)], "mine")
    with pytest.raises(NoHistory, match="no pool in"):
        read_past(tmp_path)


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_store_is_read_while_the_engine_uses_it(tmp_path: Path) -> None:
    async def kept() -> None:
        store = await Store.open(tmp_path / "store.sqlite3")
        inserted = [Inserted(one, n, {}, f"key{n}", "digest") for n, one in enumerate(PAST, start=1)]
        await store.commit(Batch(inserted=inserted))
        before = names(tmp_path)
        past = await asyncio.to_thread(read_past, tmp_path)
        assert [one.id for one in past.trace.jobs] == ["job-1", "job-2", "job-3"]
        assert names(tmp_path) == before
        await store.close()

    asyncio.run(kept())
