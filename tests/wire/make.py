"""Writes the golden wire messages beside this file: `python tests/wire/make.py`. Changing one is a decision."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Final

from jupyter_dlaas.wire.codec import Json, encode
from jupyter_dlaas.wire.protocol import (
    PROTOCOL,
    Action,
    ActionId,
    Bundle,
    Cause,
    DeviceView,
    DrainView,
    Elastic,
    Failure,
    Interruption,
    JobView,
    LearnerView,
    LeaveView,
    NodeView,
    Note,
    Origin,
    PoolView,
    Progress,
    QueueView,
    Resize,
    Size,
    Speed,
    State,
    WaitingReason,
    Where,
)

T0: Final = 1_773_496_800.0
"""14 March 2026, 14:00 UTC: when the example job was submitted."""

SCALE = Action(id=ActionId.SCALE, label="Scale")
HALT = Action(id=ActionId.HALT, label="Halt")
RESUME = Action(id=ActionId.RESUME, label="Resume")
CANCEL = Action(id=ActionId.CANCEL, label="Cancel")
RETRY = Action(id=ActionId.RETRY, label="Retry")

QUEUED: Final = JobView(
    row=3,
    id="resnet-48",
    name="resnet",
    number=48,
    owner="ana",
    state=State.QUEUED,
    state_label="Queued",
    tone="idle",
    status_line="2nd of 5",
    reason="4 GPUs at once; 2 are free. bert-47 holds 2.",
    transition=None,
    place=2,
    waiting=5,
    submitted_s=T0,
    started_s=None,
    ended_s=None,
    unit="GPU",
    gpus_per_learner=1,
    size=Size(min=1, max=8, wish=4, held=0),
    elastic=Elastic.MANUAL,
    priority=0,
    queue="default",
    actions=(SCALE, HALT, CANCEL),
    learners=(),
    progress=None,
    failure=None,
    resizes=(),
    outputs=("model", "history"),
    results=(),
    origin=Origin(notebook="cifar10.ipynb", cell_id="5b1c0a8e", execution_count=4, host="lab"),
    notes=(
        Note(
            code="left_out_training",
            text="Cell [9] trained `model` here for 2 epochs; the job starts from fresh weights.",
        ),
    ),
    directory="/data/ana/cifar",
    generation=0,
    restarts=0,
)


def learners(count: int, generation: int, state: str = "Training") -> tuple[LearnerView, ...]:
    return tuple(
        LearnerView(member=n, generation=generation, rank=n, node="gpu-a", devices=(f"gpu-a/{n}",), state=state)
        for n in range(count)
    )


def progress(step: int, at_s: float, low_s: float | None, high_s: float | None) -> Progress:
    return Progress(
        epoch=step // 391 + 1,
        epochs=30,
        step=step,
        steps=11_730,
        fraction=round(step / 11_730, 4),
        steps_per_s=5.3,
        samples_per_s=680.0,
        left_s_low=low_s,
        left_s_high=high_s,
        at_s=at_s,
    )


DEPLOYING: Final = replace(
    QUEUED,
    row=7,
    state=State.DEPLOYING,
    state_label="Deploying",
    tone="active",
    status_line="3 of 4 learners ready",
    reason="",
    place=None,
    waiting=None,
    started_s=T0 + 408,
    size=Size(min=1, max=8, wish=4, held=4),
    learners=(*learners(3, 1), *learners(4, 1, "Starting")[3:]),
    generation=1,
)

WAITING: Final = replace(
    DEPLOYING,
    row=6,
    status_line="0 of 2 learners ready",
    reason="Learner 0: The image ml/train:7 is being pulled. Learner 1: No node fits pod ml/resnet-48-m1: "
    "Insufficient nvidia.com/gpu. Wait for other pods to end, or request fewer GPUs.",
    learners=tuple(replace(one, pod=f"resnet-48-m{one.member}") for one in learners(2, 1, "Starting")),
    size=Size(min=1, max=8, wish=2, held=2),
    waiting_for=(
        WaitingReason(
            member=0,
            code="image_pull",
            object="pod ml/resnet-48-m0",
            what="The image ml/train:7 is being pulled.",
            since_s=T0 + 400,
        ),
        WaitingReason(
            member=1,
            code="unschedulable",
            object="pod ml/resnet-48-m1",
            what="No node fits pod ml/resnet-48-m1: Insufficient nvidia.com/gpu.",
            advice="Wait for other pods to end, or request fewer GPUs.",
            since_s=T0 + 402,
        ),
    ),
)

PROCESSING: Final = replace(
    DEPLOYING,
    row=31,
    state=State.PROCESSING,
    state_label="Processing",
    status_line="",
    learners=learners(4, 4),
    progress=progress(2840, T0 + 1000, 1620.0, 1800.0),
    resizes=(
        Resize(at_s=T0 + 564, step=511, before=2, after=4, by="you", idle_s=0.038),
        Resize(at_s=T0 + 768, step=1620, before=4, after=3, by="lost", idle_s=2.1),
        Resize(at_s=T0 + 822, step=1850, before=3, after=4, by="pool", idle_s=0.045),
    ),
    interruptions=(
        Interruption(
            at_s=T0 + 765.9,
            step=1620,
            before=4,
            by="lost",
            text="Learner 2 was killed from outside (SIGKILL). "
            "3 learners continue from step 1,620 after a pause of 2.1 s.",
            held_s=T0 + 765.9,
            to_s=T0 + 768,
            after=3,
        ),
    ),
    queued_s=12.0,
    speeds=(
        Speed(learners=2, samples_per_s=523.0, times=1.0),
        Speed(learners=4, samples_per_s=680.0, times=1.3),
    ),
    speedup="2 → 4: 1.3× faster",
    generation=4,
)

SCALING: Final = replace(
    PROCESSING,
    row=12,
    state_label="Processing · scaling 2 → 4",
    reason="2 learners are joining; training continues on 2.",
    transition="scaling",
    size=Size(min=1, max=8, wish=4, held=2),
    learners=(*learners(2, 1), *learners(4, 2, "Joining")[2:]),
    progress=progress(511, T0 + 560, 2100.0, 2340.0),
    resizes=(),
    interruptions=(),
    generation=1,
)

HALTING: Final = replace(
    PROCESSING,
    row=40,
    state_label="Processing · halting",
    status_line="writes a checkpoint",
    transition="halting",
    actions=(replace(SCALE, enabled=False, why_not="the job is halting"), CANCEL),
    learners=learners(4, 4, "Stopping"),
    progress=progress(3652, T0 + 1700, 1450.0, 1600.0),
)

HALTED: Final = replace(
    HALTING,
    row=43,
    state=State.HALTED,
    state_label="Halted",
    tone="idle",
    status_line="by you at step 3,652",
    checkpoint_step=3652,
    transition=None,
    size=Size(min=1, max=8, wish=4, held=0),
    actions=(SCALE, RESUME, CANCEL),
    learners=(),
    progress=progress(3652, T0 + 1700, None, None),
)

FAILED: Final = replace(
    QUEUED,
    row=19,
    id="unet-37",
    name="unet",
    number=37,
    state=State.FAILED,
    state_label="Failed · your code",
    tone="bad",
    status_line="after 3 min 20 s",
    reason="",
    place=None,
    waiting=None,
    started_s=T0 + 12,
    ended_s=T0 + 212,
    size=Size(min=4, max=4, wish=4, held=0),
    elastic=Elastic.OFF,
    actions=(RETRY,),
    progress=progress(1203, T0 + 210, None, None),
    failure=Failure(
        cause=Cause.YOUR_CODE,
        code="RuntimeError",
        what="RuntimeError: mat1 and mat2 shapes cannot be multiplied (64x512 and 256x10)",
        advice="Change cell [5], then run it again.",
        where=Where(
            label="cell [5]",
            line=14,
            function="Net.forward",
            first_line=12,
            source=(
                "    def forward(self, x):",
                "        x = self.pool(self.body(x)).flatten(1)",
                "        return self.head(x)",
            ),
        ),
        raised_by=(0, 1, 2, 3),
        step=1203,
        traceback=(
            "Traceback (most recent call last):\n"
            '  File "cell [7]", line 5, in <module>\n'
            "    loss = step(model, x, y)\n"
            '  File "cell [5]", line 14, in forward\n'
            "    return self.head(x)\n"
            "RuntimeError: mat1 and mat2 shapes cannot be multiplied (64x512 and 256x10)\n"
        ),
    ),
    outputs=(),
    notes=(),
    generation=1,
)

COMPLETED: Final = replace(
    PROCESSING,
    row=77,
    state=State.COMPLETED,
    state_label="Completed",
    tone="good",
    status_line="accuracy 94.1% at epoch 30",
    ended_s=T0 + 2692,
    size=Size(min=1, max=8, wish=4, held=0),
    actions=(RETRY,),
    learners=(),
    progress=progress(11_730, T0 + 2690, None, None),
    results=("model", "history"),
    notes=(),
)

CANCELLED: Final = replace(
    QUEUED,
    row=5,
    state=State.CANCELLED,
    state_label="Cancelled",
    status_line="by you after 2 min 10 s",
    reason="",
    place=None,
    waiting=None,
    ended_s=T0 + 130,
    actions=(RETRY,),
    notes=(),
)

JOBS: Final[Mapping[str, JobView]] = {
    "queued": QUEUED,
    "deploying": DEPLOYING,
    "waiting": WAITING,
    "processing": PROCESSING,
    "scaling": SCALING,
    "halting": HALTING,
    "halted": HALTED,
    "failed": FAILED,
    "completed": COMPLETED,
    "cancelled": CANCELLED,
}


def device(node: str, index: int, job: str | None, broken: str | None = None) -> DeviceView:
    used = job is not None
    return DeviceView(
        id=f"{node}/{index}",
        index=index,
        kind="A100 40 GB",
        memory_bytes=40 * 2**30,
        job=job,
        out_of_service=broken,
        busy_fraction=0.93 if used else None,
        memory_used_bytes=21 * 2**30 if used else None,
    )


def node(name: str, jobs: tuple[str | None, ...], broken: str | None = None, cordoned: str | None = None) -> NodeView:
    devices = [device(name, i, job) for i, job in enumerate(jobs)]
    if broken:
        devices[-1] = device(name, len(jobs) - 1, None, broken)
    return NodeView(name=name, devices=tuple(devices), cpus=32.0, memory_bytes=256 * 2**30, cordoned=cordoned)


POOL: Final = PoolView(
    row=31,
    name="lab",
    unit="GPU",
    user="ana",
    nodes=(
        node("gpu-a", ("resnet-48",) * 4, cordoned="being drained by ana"),
        node("gpu-b", ("bert-47", "bert-47", None, None)),
        node("gpu-c", ("vae-43", "nano-46", None, None), "Xid 79 since 13:52"),
    ),
    devices_total=12,
    devices_free=3,
    queue=("eval-50", "vit-49"),
    order="fair",
    placement="topology",
    queues=(
        QueueView(name="default", weight=1.0, guaranteed=0, held=2, waiting=1),
        QueueView(name="research", weight=2.0, guaranteed=6, held=6, waiting=1),
    ),
    track_record="Of the last 50 start estimates, 41 were correct, 3 more within a minute or a quarter of the wait.",
    notices=("The pool's store was missing or empty. 2 jobs were recovered from disk: vit-49, eval-50.",),
    gist="8 of 12 GPUs in use",
    isolation="processes",
    runs_on="Kubernetes: namespace ml, context lab, image registry.example.com/torch:2",
)

DRAIN: Final = DrainView(
    node="gpu-c",
    is_asked=False,
    plan="3f1c9a7be2d40586",
    gist="gpu-c: 1 job shrinks, 1 job stays until it has a checkpoint or ends.",
    jobs=(
        LeaveView(
            job="vae-43",
            way="shrink",
            before=2,
            after=1,
            text="vae-43 shrinks from 2 to 1 learner and continues",
        ),
        LeaveView(
            job="nano-46",
            way="stay",
            before=1,
            after=0,
            text="nano-46 has no checkpoint yet; it stays until it has one, or ends",
        ),
    ),
)

CURVES: Final[Mapping[str, Json]] = {
    "loss": [[391, T0 + 500, 1.31], [782, T0 + 620, 0.92], [2737, T0 + 990, 0.437]],
    "accuracy": [[391, T0 + 500, 0.558], [782, T0 + 620, 0.701], [2737, T0 + 990, 0.861]],
}

BUNDLE: Final = Bundle(
    schema=1,
    pool="lab",
    job=PROCESSING,
    curves=CURVES,
    log=("epoch 7 done: loss 0.437, accuracy 0.861", "checkpoint written at step 2,737"),
)

_LOG: Final = "epoch 7 done: loss 0.437, accuracy 0.861 ✓\n"
_METRICS: Final = (
    {
        "t": T0 + 990,
        "step": 2737,
        "epoch": 7,
        "values": {"loss": 0.437, "accuracy": 0.861},
        "source": "run",
    },
    {"t": T0 + 995, "rewind": 2600},
)

MESSAGES: Final[Mapping[str, Mapping[str, object]]] = {
    "hello": {
        "type": "hello",
        "protocol": PROTOCOL,
        "pool": "lab",
        "engine": "0b8f4a62",
        "user": "ana",
        "is_admin": True,
        "now_s": T0 + 1000,
    },
    "job": {"type": "job", "job": PROCESSING},
    "progress": {
        "type": "progress",
        "job": "resnet-48",
        "progress": progress(2850, T0 + 1002, 1610.0, 1790.0),
    },
    "log": {
        "type": "log",
        "job": "resnet-48",
        "member": 0,
        "from": 1200,
        "to": 1200 + len(_LOG.encode()),
        "text": _LOG,
        "at_s": T0 + 990,
    },
    "log_skipped": {"type": "log_skipped", "job": "resnet-48", "member": 1, "from": 0, "to": 1_048_576},
    "metrics": {"type": "metrics", "job": "resnet-48", "from": 0, "to": 166, "records": list(_METRICS)},
    "pool": {"type": "pool", "pool": POOL},
    "jobs": {"type": "jobs", "jobs": [PROCESSING, FAILED]},
    "gone": {"type": "gone", "job": "unet-37"},
    "error": {"type": "error", "job": "nope-1", "code": "not_found", "message": "there is no job nope-1"},
    "heartbeat": {"type": "heartbeat", "now_s": T0 + 1002},
    "subscribe": {
        "type": "subscribe",
        "job": "resnet-48",
        "cursor": {"row": 31, "metrics": 166, "logs": {"0": 1246, "1": 0}},
        "want": ["view", "log", "metrics"],
    },
    "unsubscribe": {"type": "unsubscribe", "job": "resnet-48"},
    "subscribe_pool": {"type": "subscribe_pool"},
    "unsubscribe_pool": {"type": "unsubscribe_pool"},
    "ack": {"type": "ack", "bytes": 46},
    "ping": {"type": "ping"},
}


def files() -> dict[str, object]:
    """Name of each golden file, and what it holds."""
    found: dict[str, object] = {f"job_{name}.json": encode(view) for name, view in JOBS.items()}
    found["pool.json"] = encode(POOL)
    found["drain.json"] = encode(DRAIN)
    found["bundle.json"] = encode(BUNDLE)
    found |= {f"message_{name}.json": encode(message) for name, message in MESSAGES.items()}
    return found


def text(value: object) -> str:
    """Return a golden file's text."""
    return json.dumps(value, indent=2, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    for name, value in files().items():
        (Path(__file__).parent / name).write_text(text(value), encoding="utf-8")
