"""Golden messages between guardian and learner: one file per kind, encoded and decoded."""

from __future__ import annotations

import dataclasses
import json
import re
from pathlib import Path

import pytest

from jupyter_dlaas.wire.codec import Invalid, UnknownKind
from jupyter_dlaas.wire.learner_messages import (
    GUARDIAN_MESSAGES,
    LEARNER_MESSAGES,
    BuildGroup,
    ChangeAgreement,
    CheckpointRequest,
    CheckpointWritten,
    Dismiss,
    FailureReport,
    GenerationSteps,
    GuardianMessage,
    Heartbeat,
    Independence,
    JobZygoteReady,
    LearnerMessage,
    LearnerState,
    ProposeChange,
    ProposeStop,
    Release,
    ReportedNote,
    SizeRequest,
    StepTimes,
    StopAgreement,
    StopAt,
    SwitchGroup,
    Throughput,
    guardian_message,
    learner_message,
    learner_messages,
    to_line,
)
from jupyter_dlaas.wire.protocol import Cause, Failure, Where
from jupyter_dlaas.wire.step_range import Range

GOLDEN = Path(__file__).parent / "golden"
WHERE = Where(label="cell [3], line 2", line=2, function="train", first_line=1, source=("def train():", "    step()"))
FAILURE = Failure(
    cause=Cause.YOUR_CODE,
    code="exception",
    what="ValueError: x",
    advice="Look at the line.",
    traceback="…",
    where=WHERE,
)
MESSAGES: tuple[GuardianMessage | LearnerMessage, ...] = (
    ProposeStop(proposal=1),
    ProposeChange(membership_epoch=4),
    StopAt(proposal=1, boundary=1203),
    BuildGroup(membership_epoch=4, members=(0, 1, 3), host="127.0.0.1", port=40001),
    SwitchGroup(membership_epoch=4, members=(0, 1, 3), generation=2, boundary=1203),
    Release(membership_epoch=4),
    CheckpointRequest(number=2),
    Dismiss(),
    LearnerState(
        member=3,
        uses_run=True,
        is_storing=True,
        step=1200,
        up_s=5000.5,
        is_limited=True,
        may_change=True,
        membership_epoch=4,
        generation=2,
        built_epoch=5,
        stranded_epoch=4,
        missed_epoch=3,
        is_waiting=True,
        is_held=True,
        idle_s=0.025,
        trained=(GenerationSteps(1, (Range(epoch=0, first=0, end=600),)), GenerationSteps(2, ())),
        size_request=SizeRequest(4, 1200),
        independence=Independence("Several learners of this program train apart.", 1),
        notes=(ReportedNote("report_left", "The loop was left."),),
    ),
    Heartbeat(
        step=1200, is_moving=True, collectives_started=4801, awaits_guardian=True, place="cell [3], line 2", where=WHERE
    ),
    Throughput(learners=2, steps=40, rate=512.5, spread=0.05, left_s=60.0),
    StepTimes(compute_s=0.1, wait_s=0.02, step_s=0.13, steps=200, skew=0.25),
    ChangeAgreement(membership_epoch=4, boundaries_passed=1201),
    StopAgreement(proposal=1, boundaries_passed=1201, committed_boundary=1202),
    CheckpointWritten(step=1200),
    FailureReport(failure=FAILURE),
    JobZygoteReady(),
)
IDS = [re.sub(r"(?<=[a-z])(?=[A-Z])", "_", type(message).__name__).lower() for message in MESSAGES]


def _decoded(message: GuardianMessage | LearnerMessage, line: bytes) -> GuardianMessage | LearnerMessage:
    return guardian_message(line) if isinstance(message, GUARDIAN_MESSAGES) else learner_message(line)


def test_every_kind_has_a_golden_file_with_every_field() -> None:
    assert {type(message) for message in MESSAGES} == {*GUARDIAN_MESSAGES, *LEARNER_MESSAGES}
    assert sorted(path.stem for path in GOLDEN.glob("*.json")) == sorted(IDS)
    for message in MESSAGES:
        left_out = [f.name for f in dataclasses.fields(message) if getattr(message, f.name) == f.default]
        assert not left_out, type(message)


@pytest.mark.parametrize("message", MESSAGES, ids=IDS)
def test_a_message_is_its_golden_file_in_both_directions(
    message: GuardianMessage | LearnerMessage, request: pytest.FixtureRequest
) -> None:
    golden = json.loads((GOLDEN / f"{request.node.callspec.id}.json").read_text(encoding="utf-8"))

    assert json.loads(to_line(message)) == golden
    assert _decoded(message, json.dumps(golden).encode()) == message


@pytest.mark.parametrize("message", MESSAGES, ids=IDS)
def test_unknown_fields_are_ignored(message: GuardianMessage | LearnerMessage) -> None:
    body = json.loads(to_line(message)) | {"later": {"than": "this"}}

    assert _decoded(message, json.dumps(body).encode()) == message


@pytest.mark.parametrize("message", MESSAGES, ids=IDS)
def test_each_required_field_is_named_if_missing(message: GuardianMessage | LearnerMessage) -> None:
    body = json.loads(to_line(message))
    required = [f for f in dataclasses.fields(message) if f.default is dataclasses.MISSING]

    for name in (f.metadata.get("wire", f.name) for f in required):
        line = json.dumps({key: value for key, value in body.items() if key != name}).encode()
        with pytest.raises(Invalid, match=rf"{name}: is missing|n: is missing"):
            _decoded(message, line)


def test_defaults_are_left_out() -> None:
    assert to_line(Heartbeat(step=0)) == b'{"t":"beat","step":0}\n'
    assert to_line(LearnerState(member=3)) == b'{"t":"hello","member":3}\n'
    assert guardian_message(b'{"t":"switch","round":1,"members":[0],"generation":1,"at":null}') == SwitchGroup(
        membership_epoch=1, members=(0,), generation=1
    )


@pytest.mark.parametrize(
    ("line", "text"),
    [
        (b'{"t":"work","s":"1","wait_s":0,"step_s":0,"steps":1}', "s: must be a number, not '1'"),
        (b'{"t":"beat","step":true}', "step: must be a whole number, not True"),
        (b'{"t":"beat","moves":1}', "moves: must be true or false, not 1"),
        (b'{"t":"beat","at":1}', "at: must be text, not 1"),
        (b'{"t":"hello","member":1,"trained":3}', "trained: must be a list, not 3"),
        (b'{"t":"hello","member":1,"trained":[[1,[2]]]}', "trained: must be an object, not 2"),
        (b'{"t":"hello","member":1,"asks":[2]}', "asks: must have 2 parts, not 1"),
        (b'{"t":"failed","failure":{"cause":"none of ours"}}', "failure.cause: .* is not valid; use one of"),
        (b"[1]", "message: must be an object, not list"),
        (b'{"t":"be', "message: is not valid JSON"),
        (b"\xff", "message: is not valid JSON"),
    ],
)
def test_damaged_message_is_refused_and_skipped_by_the_guardian(line: bytes, text: str) -> None:
    log: list[str] = []

    with pytest.raises(Invalid, match=f"^{text}"):
        learner_message(line)
    assert learner_messages([line, to_line(Heartbeat(step=1))], log.append) == [Heartbeat(step=1)]
    assert len(log) == 1


@pytest.mark.parametrize("line", [b'{"t":"later","n":1}', b'{"n":1}', b'{"t":["beat"]}'])
def test_an_unknown_kind_is_skipped_with_a_log_line(line: bytes) -> None:
    log: list[str] = []

    for decode in (guardian_message, learner_message):
        with pytest.raises(UnknownKind, match="unknown kind"):
            decode(line)
    assert learner_messages([line], log.append) == []
    assert len(log) == 1


def test_program_text_that_is_no_valid_unicode_arrives_escaped() -> None:
    beat = Heartbeat(step=1, place="\ud800", where=dataclasses.replace(WHERE, function="a\0\ud800"))

    found = learner_message(to_line(beat))

    assert isinstance(found, Heartbeat)
    assert found.where is not None
    assert found.where.function == "a\\x00\\ud800"
