"""The pool of a former release opens: ended jobs are shown, queued ones start, halted ones continue at their step."""

from __future__ import annotations

import asyncio
import json
import os
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dlaas_server.core.lifecycle.job_events import replay
from dlaas_server.core.model.job import Job
from dlaas_server.engine.service import main
from dlaas_server.store import Store, StoreTooNew, schema
from jupyter_dlaas.jobdir.journal_file import read_facts
from jupyter_dlaas.transfer.results import load, load_graph
from jupyter_dlaas.wire.journal import GenerationStarted
from jupyter_dlaas.wire.protocol import State
from tests.compatibility.kept import ARCHIVES, Kept, unpack
from tests.compatibility.make import NODE
from tests.compatibility.scan import private_names
from tests.engine.test_recovery import load as load_pool
from tests.selection import exhaustive
from tests.whole.site import Site

Build = Callable[..., Site]
ROOT = Path(__file__).parents[2]
DEADLINE_S = 240.0
# The same program, from its first step to its last in one process, with the random streams of that job.
_UNINTERRUPTED = """
import json, pathlib, sys
from tests.learner.in_process import start
script = start(pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2]).read_text(), job=sys.argv[3])
print("result", json.dumps(script["result"]))
"""

pytestmark = [
    pytest.mark.timeout(600),
    pytest.mark.parametrize("archive", ARCHIVES, ids=lambda path: path.name.removesuffix(".tar.xz")),
]


def taken_up(archive: Path, here: Site) -> Kept:
    """Put the pool of a former release in the place of the site's."""
    (here.work / "go").touch()
    return unpack(archive, here.folder / "kept", pool=here.pool, work=here.work)


def uninterrupted(here: Site, kept: Kept, job: str) -> Any:
    path = os.pathsep.join([str(ROOT), str(ROOT / "server"), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        [sys.executable, "-c", _UNINTERRUPTED, str(here.folder / "plain"), str(kept.job_dir(job) / "train.py"), job],
        cwd=here.work,
        env={**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.rpartition("result ")[2])


def numbers_in(value: Any) -> list[float]:
    """All numbers of a result, in order."""
    if isinstance(value, dict):
        return numbers_in([*value.keys(), *value.values()])
    if isinstance(value, list):
        return [number for one in value for number in numbers_in(one)]
    return [float(value)] if not isinstance(value, str) or value.isdigit() else []


async def replayed_jobs(path: Path) -> dict[str, Job | None]:
    """Return all jobs of a store as their events give them."""
    store = await Store.open(path)
    jobs = {job: replay(*await store.events(job)) for job in (await store.load()).jobs}
    await store.close()
    return jobs


def goes_on(here: Site, kept: Kept, job: str) -> Any:
    """Resume a halted job; returns its result. It trains from its checkpoint, not from the beginning."""
    step = here.client.job(job).checkpoint_step
    assert step is not None
    assert step > 6
    here.job(job).resume().wait(DEADLINE_S)
    facts, _ = read_facts(kept.job_dir(job) / "journal.jsonl")
    generations = [fact.step for fact in facts if isinstance(fact, GenerationStarted)]
    assert generations == [0, step]
    return load(here.client.result(job, "result"))


def test_a_former_pool_opens_and_its_jobs_go_on(archive: Path, site: Build) -> None:
    here = site()
    kept = taken_up(archive, here)
    views = {view.name: view for view in here.client.jobs() if view.state != "HALTED" and view.state != "COMPLETED"}
    completed = {view.name: view for view in here.client.jobs(state="COMPLETED")}

    # Ended jobs show their card.
    assert {name: str(view.state) for name, view in views.items()} == {
        "failing": "FAILED", "cancelled": "CANCELLED", "sent": "QUEUED"
    }  # fmt: skip
    assert views["failing"].failure is not None
    assert views["failing"].failure.what == "ValueError: the third step has bad luck"
    for view in (*completed.values(), views["failing"], views["cancelled"]):
        assert here.client.events(view.id)
        assert here.client.why(view.id)
        assert here.client.source(view.id)[0] == (kept.job_dir(view.id) / "train.py").read_text()
        assert "retry" in {action.id for action in view.actions}
    values = load_graph("result", here.client.result(completed["plain"].id, "result"))
    assert json.loads(json.dumps(values["result"])) == kept.results["plain"]
    assert [*here.client.curves(completed["plain"].id)] == ["value"]

    # What was set is still so, and the queued job starts.
    assert [node.name for node in here.client.pool().nodes if node.cordoned is not None] == [NODE]
    here.client.uncordon(NODE)
    sent = here.job(views["sent"].id).wait(DEADLINE_S, raise_on_failure=False).last_view
    if kept.is_of_this_python:
        assert load(here.client.result(sent.id, "result")) == kept.results["sent"]
    else:
        assert sent.failure is not None
        assert f"was pickled by {kept.python}" in sent.failure.what

    # The halted job continues.
    job = kept.halted("plain")
    # Another Python cannot load the function that the loop has made, and repeats the steps since the one before.
    result = goes_on(here, kept, job)
    assert json.loads(json.dumps(result)) == uninterrupted(here, kept, job)
    assert {*result["seen"].values()} == {1}
    assert private_names(kept.job_dir(job) / "results") == {}


@exhaustive
@pytest.mark.parametrize("name", ["torch", "exact", "lightning", "keras"])
def test_halted_training_of_a_former_release_continues(archive: Path, name: str, site: Build) -> None:
    here = site()
    kept = taken_up(archive, here)
    here.client.uncordon(NODE)
    job = kept.halted(name)
    result = goes_on(here, kept, job)
    # Frameworks seed their own streams; those of `run` depend on the job.
    expected = kept.results[name] if name in ("lightning", "keras") else uninterrupted(here, kept, job)

    assert numbers_in(result) == pytest.approx(numbers_in(expected), rel=1e-3, abs=1e-3)
    assert private_names(kept.job_dir(job) / "results") == {}


@exhaustive
def test_results_of_keras_of_a_former_release_load(archive: Path, tmp_path: Path) -> None:
    kept = unpack(archive, tmp_path)
    [path] = (kept.pool / "jobs").glob("keras-*/results/optimizer.bin")
    code = (
        "import sys; from jupyter_dlaas.transfer.results import load;"
        "print('rate', float(load(open(sys.argv[1], 'rb').read()).learning_rate))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(path)],
        env={**os.environ, "KERAS_BACKEND": "torch", "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
    )

    assert done.returncode == 0, done.stderr
    assert float(done.stdout.rpartition("rate ")[2]) == pytest.approx(0.01)


def test_jobs_of_a_former_pool_are_known_without_its_store(archive: Path, tmp_path: Path) -> None:
    kept = unpack(archive, tmp_path)
    store, _ = load_pool(kept.pool)
    replayed = asyncio.run(replayed_jobs(kept.pool / "store.sqlite3"))
    (kept.pool / "store.sqlite3").unlink()
    found, _ = load_pool(kept.pool)

    assert replayed == store.jobs, "their events begin with a snapshot of the former record"
    # A queued job whose directory is not made yet is only in the store, and so are the user and the reason of an end.
    assert found.jobs.keys() == {job for job in store.jobs if not job.startswith("sent-")}
    for job in found.jobs.values():
        before = store.jobs[job.id]
        assert (job.spec, job.owner, job.checkpoint_step) == (before.spec, before.owner, before.checkpoint_step)
        if before.state is not State.CANCELLED:
            assert job.state is before.state


def test_a_store_of_a_newer_release_is_refused_and_kept(
    archive: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    kept = unpack(archive, tmp_path)
    path = kept.pool / "store.sqlite3"
    newer = len(schema.MIGRATIONS) + 1
    db = sqlite3.connect(path)
    db.execute(f"PRAGMA user_version = {newer}")
    db.close()
    before = path.read_bytes()

    with pytest.raises(
        StoreTooNew, match=rf"{path} .* version {newer}, .* supports {newer - 1}\): update jupyter_dlaas"
    ):
        asyncio.run(Store.open(path))
    assert main(["--pool-dir", str(kept.pool)]) != 0
    assert f"store version {newer}" in capsys.readouterr().err
    assert path.read_bytes() == before
    assert not [*kept.pool.glob("*damaged*")]
