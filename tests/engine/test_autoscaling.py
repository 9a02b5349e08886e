"""Autoscaling switched on and off for an existing job: only if its size can follow its throughput."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest

from dlaas_server.core.model.cluster import Device, Node
from dlaas_server.rest.routes import Change
from jupyter_dlaas.wire.protocol import Elastic, JobView, NotAllowed, Scheduled
from tests.engine.driving import engine_on, submit
from tests.pools.simulated.simulated_pool import SimulatedPool
from tests.pools.simulated.virtual_clock import VirtualClock

LOOP = "for batch in run.batches(data, 16):\n    pass\n"
TRANSFORMERS = "from transformers import Trainer\nTrainer(model, args, train_dataset=rows).train()\n"
LIGHTNING = "import lightning as L\nL.Trainer(strategy=STRATEGY, devices=2).fit(model, loader)\n"
KERAS = "import keras\nmodel.fit(x, y, epochs=3)\n"


def asked(
    folder: Path, change: Change, *, learners: tuple[int, int] = (1, 2), source: str = LOOP, is_scheduled: bool = False
) -> JobView:
    """Return the job after the change."""

    async def whole() -> JobView:
        clock = VirtualClock(1000.0)
        nodes = [Node(name="n1", devices=tuple(Device(id=f"n1/{i}", index=i, kind="GPU") for i in range(2)))]
        engine = await engine_on(folder, SimulatedPool(nodes, clock), clock)
        try:
            request = replace(submit(learners), source=source)
            if is_scheduled:
                schedule = (Scheduled(epoch=3, learners=1),)
                request = replace(request, spec=replace(request.spec, schedule=schedule))
            job = await engine.submit(request)
            return await engine.ask(engine.requests.change("ana", job, change))
        finally:
            await engine.close()

    return asyncio.run(whole())


def test_auto_is_switched_on_while_the_job_is_there(tmp_path: Path) -> None:
    view = asked(tmp_path, Change(elastic=Elastic.AUTO))

    assert (view.elastic, view.size.wish) == (Elastic.AUTO, 2)


@pytest.mark.parametrize("source", [TRANSFORMERS, LIGHTNING.replace("STRATEGY", "'ddp'")], ids=["transformers", "ddp"])
def test_auto_is_allowed_for_frameworks_that_train_on_all_learners(tmp_path: Path, source: str) -> None:
    assert asked(tmp_path, Change(elastic=Elastic.AUTO), source=source).elastic is Elastic.AUTO


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"learners": (2, 2)}, "job-1 stays manual: auto needs a range of sizes"),
        ({"source": "print('hi')\n"}, "job-1 stays manual: auto measures the steps of run.batches"),
        ({"source": KERAS}, "only the Trainer of transformers and Lightning's with ddp use several learners"),
        ({"source": LIGHTNING.replace("STRATEGY", "'auto'")}, "choose the size yourself"),
        ({"is_scheduled": True}, "job-1 stays manual: auto cannot follow a schedule, and this job has one"),
    ],
)
def test_auto_is_refused_where_the_size_cannot_follow_the_speed(
    tmp_path: Path, options: dict[str, object], says: str
) -> None:
    with pytest.raises(NotAllowed, match=says):
        asked(tmp_path, Change(elastic=Elastic.AUTO), **options)  # type: ignore[arg-type]
