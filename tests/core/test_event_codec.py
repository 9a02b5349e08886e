"""Stored events: each kind as JSON. Changing a golden line is a decision: stores of earlier releases hold it."""

from __future__ import annotations

import json
import typing
from pathlib import Path
from typing import Final

import pytest

from dlaas_server.core.lifecycle import job_events, requests
from dlaas_server.core.lifecycle.event_codec import EVENT_FORMAT, StoredEvent, event_from_fields, event_to_fields
from dlaas_server.core.lifecycle.job_events import JobSubmitted, apply_event, original, replay, snapshot
from dlaas_server.core.model.cluster import Seat
from dlaas_server.core.model.job import Job
from jupyter_dlaas.wire.codec import Invalid, UnknownKind
from jupyter_dlaas.wire.journal import LearnerUp, SeatRefused
from jupyter_dlaas.wire.protocol import Elastic, JobSpec, PoolOrder, PoolPlacement
from tests.core.builders import job, seats, training

GOLDEN: Final = Path(__file__).parents[1] / "golden" / "stored_events.jsonl"
SEATS: Final = (Seat("n1", ("n1/0",)), Seat("n2"))
EXAMPLES: Final[tuple[StoredEvent, ...]] = (
    JobSubmitted(by="ana", key="key-00001", number=7, wish=2, unit="GPU"),
    requests.ChangeJob(by="ana", job="digits-7", learners=4, priority=1, elastic=Elastic.MANUAL),
    requests.HaltJob(by="its time limit of 2 h", job="digits-7"),
    requests.ResumeJob(by="ana", job="digits-7"),
    requests.CancelJob(by="ana", job="digits-7"),
    requests.RequestCheckpoint(by="ana", job="digits-7"),
    requests.CordonNode(by="ana", node="n1"),
    requests.UncordonNode(by="ana", node="n1"),
    requests.DrainNode(by="ana", node="n1", plan="0123456789abcdef"),
    requests.SetQueue(by="ana", queue="vision", weight=2.0, guaranteed=4),
    requests.RemoveQueue(by="ana", queue="vision"),
    requests.ChangePool(
        by="ana",
        order=next(iter(PoolOrder)),
        preemption=True,
        placement=next(iter(PoolPlacement)),
        spot_price=0.3,
        spot_notice_s=30.0,
    ),
    job_events.Started(seats=SEATS),
    job_events.Resized(seats=SEATS, by="drain", why="n1 is being drained by ana.", notice_s=30.0),
    job_events.Preempted(reason="for digits-8", notice_s=30.0),
    job_events.WaitRecorded(reason="Needs 4 GPUs.", low_s=100.5, high_s=200.0),
    job_events.ScheduleApplied(epoch=3),
    job_events.MovedFromSuspect(why="node n1 is gone"),
    job_events.TimeLimitAdopted(),
    job_events.FactRead(fact=LearnerUp(n=3, at_s=101.5, member=1, rank=0, generation=2, node="n1")),
    job_events.JournalRead(offset=4096),
    job_events.LinesLost(lines=2, where="line 7"),
    job_events.DirectoryLost(directory="/pool/jobs/digits-7"),
    job_events.GuardianLost(text="It was killed", has_exited=True),
    job_events.StartFailed(text="No such interpreter", is_permanent=True),
    job_events.DeliveryPostponed(text="The pool cannot be reached."),
    job_events.Abandoned(),
    job_events.SeatsRefused(refused=(SeatRefused(generation=2, member=1, code="quota", what="No.", advice="Wait."),)),
    job_events.MachineSlept(seconds=12.5),
)
"""One event of each kind except the snapshot, with all fields."""


def test_golden_lines_are_the_stored_events() -> None:
    lines = [json.loads(line) for line in GOLDEN.read_text(encoding="utf-8").splitlines()]

    assert lines == [event_to_fields(event) for event in EXAMPLES]
    assert tuple(event_from_fields(line) for line in lines) == EXAMPLES
    assert {type(event) for event in EXAMPLES} == {*typing.get_args(StoredEvent)} - {job_events.Snapshot}


@pytest.mark.parametrize("one", [job(3, (1, 4)), training(job(3, (1, 4)), *seats("n1", 4))], ids=["queued", "running"])
def test_snapshot_in_json_gives_the_same_job(one: Job) -> None:
    stored = json.loads(json.dumps(event_to_fields(snapshot(one))))

    assert "spec" not in stored["job"]
    assert replay(one.spec, [(0.0, event_from_fields(stored))]) == one  # type: ignore[list-item]


def test_newer_formats_and_unknown_kinds_are_refused() -> None:
    stored = event_to_fields(job_events.Abandoned())

    with pytest.raises(Invalid, match="format 2 is not supported; this release reads up to 1"):
        event_from_fields(stored | {"format": EVENT_FORMAT + 1})
    with pytest.raises(UnknownKind, match="unknown kind 'strange'"):
        event_from_fields(stored | {"kind": "strange"})
    assert event_from_fields(stored | {"later": 1}) == job_events.Abandoned(), "an unknown field is ignored"
    earlier = {"kind": "moved_from_suspect", "format": 1}
    assert event_from_fields(earlier) == job_events.MovedFromSuspect(), "an earlier release stored no reason"


def test_replay_begins_with_the_last_origin() -> None:
    spec = JobSpec(name="digits")
    submitted = JobSubmitted(by="ana", key="key-00001", number=7, wish=1, unit="GPU")
    halt = requests.HaltJob(by="ana", job="digits-7")
    first = original(spec, submitted, 5.0)
    halted = apply_event(first, halt, 6.0)[0]

    assert (first.id, first.owner, first.submitted_s) == ("digits-7", "ana", 5.0)
    assert replay(spec, [(5.0, submitted), (6.0, halt)]) == halted
    assert replay(spec, [(5.0, submitted), (6.0, halt), (7.0, snapshot(first))]) == first
    assert replay(spec, [(6.0, halt)]) is None
