"""Number of requests that a job costs the API server, from its submission until its pods are gone: exact counts.

Renewals of the engine's Lease are not counted: their number depends on time, not on jobs.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from dlaas_server.core.model.states import Event
from dlaas_server.pools.kubernetes.transport import ClientTransport
from jupyter_dlaas.wire.protocol import State
from tests.kubernetes.conftest import Namespace
from tests.kubernetes.test_jobs import ENDLESS, SHORT, Engine, Jobs
from tests.selection import exhaustive

pytestmark = [pytest.mark.cluster, pytest.mark.anyio]


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Count the pool's requests by verb and resource."""
    counts: Counter[str] = Counter()
    send = ClientTransport.send

    def counted(self: ClientTransport, method: str, target: str, *rest: object) -> object:
        path, _, query = target.partition("?")
        parts = path.split("/")
        resource = parts[parts.index("namespaces") + 2] if "namespaces" in parts[:-1] else parts[-1]
        is_renewal = method == "PUT" and resource == "leases"
        if (
            "watch=" not in query and not is_renewal
        ):  # one watch per resource and pool; cut and begun again whatever jobs do
            counts[f"{method} {resource}"] += 1
        return send(self, method, target, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(ClientTransport, "send", counted)
    return counts


@pytest.mark.parametrize("learners", [1, pytest.param(2, marks=exhaustive), pytest.param(4, marks=exhaustive), 8])
@pytest.mark.parametrize("is_cancelled", [False, True], ids=["completed", "cancelled"])
async def test_requests_of_a_job_stay_within_the_bound(
    tmp_path: Path, namespace: Namespace, sent: Counter[str], learners: int, is_cancelled: bool
) -> None:
    jobs = Jobs(tmp_path / "pool", namespace)
    try:
        async with Engine(jobs) as engine:
            await engine.pool_reached()
            sent.clear()  # what the pool asks once, whatever the number of jobs
            job = await engine.submit(ENDLESS if is_cancelled else SHORT, learners, gpus=0)
            if is_cancelled:
                await engine.reached(job, State.PROCESSING)
                await engine.requests.act("me", job, Event.CANCEL)
            await engine.reached(job, State.CANCELLED if is_cancelled else State.COMPLETED)
            await jobs.gone(*range(learners))
            print(f"{learners} pods: {sum(sent.values())} requests: {dict(sorted(sent.items()))}")
            assert sum(sent.values()) <= 3 * learners + 10, sent
    finally:
        jobs.sweep()
