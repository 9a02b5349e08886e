"""Sensitivity to locality: measured while a gang trains, and used when it starts again."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from jupyter_dlaas.api.jobs import Job
from jupyter_dlaas.jobdir.journal_file import read_facts
from jupyter_dlaas.wire.journal import CommunicationProfiled
from tests.selection import exhaustive
from tests.whole.programs import training, trains
from tests.whole.site import Site, until

Build = Callable[..., Site]
SLEEPS = "import time\nwhile True:\n    time.sleep(0.1)\n"
LARGE = training()  # one tensor is four fifths of what is exchanged
EVEN = training().replace(
    "torch.nn.Linear(4, 1)", "torch.nn.Sequential(*[torch.nn.Linear(4, 4, bias=False) for _ in range(8)])"
)


def profile(job: Job) -> CommunicationProfiled | None:
    facts = read_facts(job.directory / "journal.jsonl")[0]
    return next((fact for fact in reversed(facts) if isinstance(fact, CommunicationProfiled)), None)


def nodes_of(here: Site, job: Job) -> list[str]:
    return sorted(one.node for one in here.job(job.id).view.learners)


@exhaustive
def test_only_jobs_insensitive_to_locality_restart_on_distant_seats(site: Build) -> None:
    here = site(slots=2, nodes=2)
    here.terminal("jupyter", "dlaas", "pool", "--placement", "topology")
    large, even = (here.submit(text, name=name, gpus="2") for name, text in (("large", LARGE), ("even", EVEN)))
    for job, skew in ((large, 0.8), (even, 0.125)):
        trains(job)
        assert len(set(nodes_of(here, job))) == 1, "close together"
        found = until(partial(profile, job), "what its talking costs is known", 90)
        assert found.skew == skew
        assert 0 < (found.communication or 0) < 1
        job.halt()
    until(lambda: {large.status, even.status} == {"HALTED"}, "both are halted")
    beside = [here.submit(SLEEPS, name=name, gpus="1", placement="spread") for name in ("left", "right")]
    until(lambda: [nodes_of(here, one) for one in beside] == [["n1"], ["n2"]], "there is a job on each node")

    large.resume()
    reason = until(
        lambda: "on one node" in here.job(large.id).view.reason and here.job(large.id).view.reason, "it waits"
    )
    assert "Waits for devices on one node; accepts devices further apart after 2 min." in reason
    even.resume()
    until(lambda: even.status == "PROCESSING", "it does not wait")

    assert nodes_of(here, even) == ["n1", "n2"]
    assert large.status == "QUEUED"
    for job in (large, even, *beside):
        job.cancel()
