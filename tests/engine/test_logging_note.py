"""Note on logging: the first metric removes it, in views that pages have and in later ones."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

from dlaas_server.core.model.cluster import Device, Node
from dlaas_server.core.presentation.job_view import HOW_TO_LOG
from jupyter_dlaas.wire.protocol import Note
from tests.engine.driving import Engine, engine_on, submit
from tests.pools.simulated.simulated_pool import SimulatedPool
from tests.pools.simulated.virtual_clock import VirtualClock


class Heard:
    """Listener of an engine that records what it receives."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.codes: list[list[str]] = []

    def job_changed(self, job: str) -> None:
        view = self.engine.lifecycle.view(self.engine.lifecycle.jobs[job])
        if view.state == "PROCESSING":
            self.codes.append([note.code for note in view.notes])

    def stream_changed(self, job: str, stream: str) -> None: ...

    def pool_changed(self) -> None: ...


def test_logging_note_disappears_with_the_first_metric_and_stays_away(tmp_path: Path) -> None:
    async def whole() -> None:
        clock = VirtualClock(1000.0)
        pool = SimulatedPool([Node(name="n1", devices=(Device(id="d", index=0, kind="GPU"),))], clock)
        engine = await engine_on(tmp_path, pool, clock)
        heard = Heard(engine)
        engine.lifecycle.listeners.append(heard)
        request = submit()
        job = await engine.submit(
            replace(request, spec=replace(request.spec, notes=(Note(code=HOW_TO_LOG, text="so"),)))
        )
        await engine.until(lambda: pool.step(job) >= 20)
        assert heard.codes[0] == [HOW_TO_LOG]
        assert heard.codes[-1] == []
        await engine.close()

        again = await engine_on(tmp_path, pool, clock)
        await again.settle()
        assert again.lifecycle.view(again.lifecycle.jobs[job]).notes == ()
        await again.close()

    asyncio.run(whole())
