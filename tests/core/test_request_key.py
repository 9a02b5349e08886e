"""Request key: each field of a job's specification is either part of it or cannot affect the job's start."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any, Final

import pytest

from dlaas_server.core.model.request_key import IRRELEVANT_FIELDS, RELEVANT_FIELDS, request_key
from dlaas_server.core.planning.phases import schedule
from dlaas_server.core.planning.plan_state import PlanState
from dlaas_server.core.planning.scheduler_snapshot import request_of
from dlaas_server.core.scheduling.policy import Policy
from jupyter_dlaas.wire.protocol import JobSpec, Placement
from tests.core.builders import job, node, pool

OTHER: Final[dict[str, Any]] = {
    "gpus_per_learner": 2,
    "learners_min": 3,
    "queue": "other",
    "spot": True,
    "cpus_per_learner": 2.5,
    "memory_bytes_per_learner": 1024,
    "gpu_kind": "H100",
    "placement": Placement.SPREAD,
}
NOT_READ: Final = "a field that is not in the request key was read"


class _Watched:
    """Specification that raises an error where a field outside of the request key is read."""

    def __init__(self, spec: JobSpec) -> None:
        self._spec = spec

    def __getattr__(self, name: str) -> object:
        assert name not in IRRELEVANT_FIELDS, f"{NOT_READ}: {name}"
        return getattr(self._spec, name)


def test_each_field_of_a_specification_is_relevant_or_irrelevant() -> None:
    assert {field.name for field in fields(JobSpec)} == {*RELEVANT_FIELDS} | IRRELEVANT_FIELDS
    assert IRRELEVANT_FIELDS.isdisjoint(RELEVANT_FIELDS)


@pytest.mark.parametrize("name", RELEVANT_FIELDS)
def test_each_relevant_field_changes_the_key(name: str) -> None:
    one = job(1)

    assert request_key(replace(one, spec=replace(one.spec, **{name: OTHER[name]}))) != request_key(one)


def test_priority_and_retry_delay_change_the_key() -> None:
    others = (job(2), job(3, priority=1), replace(job(4), not_before_s=9.0))

    assert [request_key(other) == request_key(job(1)) for other in others] == [True, False, False]


def test_request_of_a_waiting_job_reads_only_relevant_fields() -> None:
    watched = replace(job(1), spec=_Watched(job(1).spec))  # type: ignore[arg-type]

    assert request_of(watched, pool([node()]), Policy(), 1.0).learners == 1


def test_scheduling_a_waiting_job_reads_only_relevant_fields() -> None:
    watched = replace(job(1), spec=_Watched(job(1).spec))  # type: ignore[arg-type]
    state = PlanState.of(pool([node()], watched), 1.0, Policy(), None)

    schedule(state)

    assert [request.id for request in state.result.starts] == ["job-1"]
