"""A real learner beside an agent: what it writes is in the guardian's directory, and another agent continues it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from jupyter_dlaas.jobdir.checkpoint_manifest import manifests
from jupyter_dlaas.runtime.hosts.learner_host import LearnerOrder, MessageReceived
from jupyter_dlaas.runtime.spawn import launch
from jupyter_dlaas.runtime.spawn.spawner import LEARNER
from jupyter_dlaas.wire.journal import MemberWanted
from jupyter_dlaas.wire.learner_messages import CheckpointWritten, learner_message
from tests.hosts.contract import ended, of, until
from tests.hosts.test_remote_host import RemoteRig
from tests.runtime.jobs import make_job

PROGRAM = """
import os, time
import jupyter_dlaas as dlaas
run = dlaas.run()
for epoch in run.epochs(4):
    for batch in run.batches(list(range(8)), 4):
        run.log(batch=sum(batch))
    run.checkpoint()
    print("epoch", epoch, flush=True)
    while epoch == 1 and not os.path.exists(os.environ["DLAAS_JOB_DIR"] + "/go"):
        time.sleep(0.01)
answer = 42
print("history", len(run.history["batch"]), flush=True)
"""


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[RemoteRig]:
    made = RemoteRig(tmp_path)
    yield made
    made.close()


def order(rig: RemoteRig, member: int, generation: int, *more: str) -> LearnerOrder:
    base = json.loads((rig.job_dir / "environment.json").read_text())
    environment = launch.learner_environment(
        base,
        job="test-1",
        generation=generation,
        members=(MemberWanted(member=member, node="here"),),
        rank=0,
        store=None,
    )
    files = ("spec.json", "train.py", *more)
    return LearnerOrder(member=member, module=LEARNER, environment=environment, files=files)


def checkpoint_words(rig: RemoteRig, member: int) -> list[CheckpointWritten]:
    messages = [learner_message(event.line) for event in of(rig, MessageReceived, member)]
    return [message for message in messages if isinstance(message, CheckpointWritten)]


def log(rig: RemoteRig, member: int) -> str:
    path = rig.job_dir / f"learner-{member}/stdout.log"
    return path.read_text() if path.exists() else ""


def logged_steps(rig: RemoteRig) -> list[int]:
    """Return the steps of the metric, without those that a restart has rewound."""
    steps: list[int] = []
    for line in (rig.job_dir / "metrics.jsonl").read_text().splitlines():
        record = json.loads(line)
        if "rewind" in record:
            steps = [step for step in steps if step <= record["rewind"]]
        elif "batch" in record["values"]:
            steps.append(record["step"])
    return steps


def test_a_job_continues_on_another_host_from_the_guardians_files(rig: RemoteRig) -> None:
    rig.job_dir.rmdir()
    make_job(rig.job_dir, PROGRAM, outputs=["answer"], learners=1)
    rig.host.start(order(rig, 0, 1))
    until(rig, lambda: "epoch 1" in log(rig, 0), "the second epoch")
    until(rig, lambda: checkpoint_words(rig, 0), "the word of a checkpoint")
    # A checkpoint is announced only when the guardian has it.
    folder, manifest = manifests(rig.job_dir)[-1]
    assert manifest.step == checkpoint_words(rig, 0)[-1].step == 2
    rig.host.signal(0, 9)
    assert ended(rig, 0).signal == 9

    files = [path.relative_to(rig.job_dir).as_posix() for path in sorted(folder.iterdir())]
    (rig.job_dir / "go").touch()
    rig.host.start(order(rig, 1, 2, "go", "metrics.jsonl", *files))
    end = ended(rig, 1)

    assert end.code == 0, log(rig, 1)
    assert log(rig, 1) == "epoch 1\nepoch 2\nepoch 3\nhistory 8\n"
    assert logged_steps(rig) == list(range(1, 9))
    assert json.loads((rig.job_dir / "learner-1/result.json").read_text())["outcome"] == "ok"
    assert (rig.job_dir / "results/answer.bin").exists()
    assert json.loads((rig.job_dir / "progress.json").read_text())["step"] == 8
