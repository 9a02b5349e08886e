"""Pods of a gang: created once, released together, given up together, and lost only where that is proven."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, cast

import pytest

from dlaas_server.pools.kubernetes.api import Api, ApiError
from dlaas_server.pools.kubernetes.gang import ABANDONED_S, Gang, GangOutcome
from dlaas_server.pools.kubernetes.gang_plan import GangPlan, GangState, grows, has_seats, members_of, plan_gang
from dlaas_server.pools.kubernetes.manifests.job_manifests import JobObjects
from dlaas_server.pools.kubernetes.manifests.names import GATE, LABEL_MEMBER, Json
from dlaas_server.pools.kubernetes.manifests.pod_manifests import JobPods, Resources
from dlaas_server.pools.kubernetes.manifests.settings import KubernetesSection
from dlaas_server.pools.kubernetes.pod_endings import end_of_pod
from jupyter_dlaas.wire.journal import Goal, MemberWanted, Wanted, is_retried

BIND_S = 30.0
RELEASED = frozenset({0, 1})


def wanted(*members: int, goal: Goal = Goal.RUN) -> Wanted:
    seats = tuple(MemberWanted(member=member, node="a") for member in members)
    return Wanted(revision=1, goal=goal, generation=1, members=seats)


def pod(member: int, *, node: str = "", gated: bool = False, phase: str = "Pending", **status: Any) -> Json:
    spec: Json = {"containers": [{"image": "i"}], "schedulingGates": [{"name": GATE}] if gated else []}
    spec |= {"nodeName": node} if node else {}
    metadata = {"name": f"a-1-m{member}", "namespace": "ml", "labels": {LABEL_MEMBER: str(member)}}
    return {"kind": "Pod", "metadata": metadata, "spec": spec, "status": {"phase": phase, **status}}


def running(member: int) -> Json:
    return pod(member, node="a", phase="Running")


def unschedulable(member: int) -> Json:
    message = "0/1 nodes are available: 1 Insufficient nvidia.com/gpu."
    condition = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": message}
    return pod(member, conditions=[condition])


def plan(doc: Wanted, *pods: Json, now_s: float = 0.0, **state: Any) -> GangPlan:
    found = members_of({item["metadata"]["name"]: item for item in pods})
    return plan_gang(doc, GangState(pods=found, **state), now_s, BIND_S)


def test_pods_are_released_only_when_all_exist() -> None:
    first = plan(wanted(0, 1))
    half = plan(wanted(0, 1), pod(0, gated=True))
    whole = plan(wanted(0, 1), pod(0, gated=True), pod(1, gated=True))

    assert (first.create, first.release) == ((0, 1), ())
    assert (half.create, half.release) == ((1,), ())
    assert (whole.create, whole.release) == ((), (0, 1))


def test_a_gang_waits_until_the_picture_shows_its_pods() -> None:
    found = plan(wanted(0, 1), pod(0, gated=True), created=frozenset({1}))

    assert (found.create, found.release) == ((), ())


def test_a_release_that_was_interrupted_is_completed() -> None:
    found = plan(wanted(0, 1), running(0), pod(1, gated=True), released=RELEASED, released_s=0.0)

    assert (found.create, found.release) == ((), (1,))


def test_a_running_gang_grows_by_new_pods_only() -> None:
    found = plan(wanted(0, 1, 2), running(0), running(1), released=RELEASED)
    joined = plan(wanted(0, 1, 2), running(0), running(1), pod(2, gated=True), released=RELEASED)

    assert (found.create, found.release, found.delete) == ((2,), (), ())
    assert (joined.create, joined.release, joined.delete) == ((), (2,), ())


def test_a_gang_without_nodes_is_given_up_whole() -> None:
    pods = (pod(0, node="a"), unschedulable(1))
    early = plan(wanted(0, 1), *pods, released=RELEASED, released_s=0.0, now_s=BIND_S - 1)
    late = plan(wanted(0, 1), *pods, released=RELEASED, released_s=0.0, now_s=BIND_S)

    assert (early.refused, early.due_s) == (None, BIND_S)
    assert late.refused is not None
    assert late.refused.keys() == {0, 1}
    assert {wait.code for wait in late.refused.values()} == {"no_capacity"}
    assert (late.delete, late.create) == ((0, 1), ())


def test_a_refused_joiner_leaves_running_learners_alone() -> None:
    found = plan(wanted(0, 1), running(0), unschedulable(1), released=RELEASED, released_s=0.0, now_s=BIND_S)

    assert found.refused is not None
    assert found.refused.keys() == {1}
    assert found.delete == (1,)
    after = plan(wanted(0, 1), running(0), released=RELEASED, refused=frozenset({1}), now_s=BIND_S)
    assert (after.create, after.lost, after.delete) == ((), {}, ())


def test_a_seat_refused_by_a_node_is_given_up() -> None:
    refused = pod(1, node="a", phase="Failed", reason="OutOfnvidia.com/gpu", message="taken")
    found = plan(wanted(0, 1), running(0), refused, released=RELEASED, released_s=0.0)

    assert found.refused is not None
    assert {member: wait.code for member, wait in found.refused.items()} == {1: "seat_refused"}
    assert found.lost == {}


@pytest.mark.parametrize(("item", "words"), [
    (pod(1, node="a", phase="Failed", reason="Evicted", message="low on memory."), "low on memory"),
    (None, "was deleted"),
])  # fmt: skip
def test_a_lost_pod_is_not_created_again(item: Json | None, words: str) -> None:
    found = plan(wanted(0, 1), running(0), *([item] if item else []), released=RELEASED)

    assert found.lost is not None
    assert list(found.lost) == [1]
    assert words in found.lost[1].what
    assert found.create == ()


def test_a_missing_pod_is_lost_as_last_seen() -> None:
    gone = {"type": "DisruptionTarget", "status": "True", "reason": "DeletionByPodGC", "message": "node not found"}
    last = {1: pod(1, node="a", phase="Running", conditions=[gone])}
    found = plan(wanted(0, 1), running(0), released=RELEASED, last=last)

    assert found.lost is not None
    assert (found.lost[1].code, "Node a is gone, and pod ml/a-1-m1 with it" in found.lost[1].what) == (
        "node_gone",
        True,
    )


def test_only_wanted_members_have_a_reason_to_end() -> None:
    leaving = [running(0), running(1)]
    for item in leaving:
        item["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    found = plan(wanted(0), *leaving, released=RELEASED)

    assert found.ending is not None
    assert {member: failure.code for member, failure in found.ending.items()} == {0: "deleted"}


def test_a_silent_node_loses_no_member() -> None:
    silent = {"type": "Ready", "status": "Unknown"}
    found = plan(wanted(0), pod(0, node="a", phase="Running", conditions=[silent]), released=frozenset({0}))

    assert (found.lost, found.delete, found.create) == ({}, (), ())


def test_a_completed_pod_stays_while_its_member_is_wanted() -> None:
    done = pod(1, node="a", phase="Succeeded", containerStatuses=[{"state": {"terminated": {"exitCode": 0}}}])
    assert plan(wanted(0, 1), running(0), done, released=RELEASED) == GangPlan(lost={}, ending={})

    assert plan(wanted(0), running(0), done, released=RELEASED).delete == (1,)
    assert plan(wanted(0), running(0), running(1), released=RELEASED).delete == ()  # the guardian lets it leave first


@pytest.mark.parametrize("goal", [Goal.HALT, Goal.STOP])
def test_pods_that_never_ran_go_when_the_job_ends(goal: Goal) -> None:
    found = plan(
        wanted(0, 1, 2, goal=goal), pod(0, gated=True), unschedulable(1), running(2), released=frozenset({1, 2})
    )

    assert (found.create, found.release, found.delete) == ((), (), (0, 1))


def test_a_closed_job_keeps_no_pods() -> None:
    assert plan(wanted(0, 1), running(0), running(1), released=RELEASED, is_closed=True).delete == (0, 1)
    leaving = running(0)
    leaving["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    assert plan(wanted(0, 1), leaving, running(1), released=RELEASED, is_closed=True).delete == (1,)


class NoAnchor:
    """API server that has no anchor of the job and accepts all changes, with the pods that it was asked for."""

    def __init__(self) -> None:
        self.sent: list[str] = []

    def get(self, *_: object) -> Json:
        raise ApiError(404, "NotFound", "none")

    def create(self, resource: str, namespace: str, body: Json) -> Json:
        if resource == "pods":
            self.sent.append(f"create {body['metadata']['name']}")
        return {**body, "metadata": {**body["metadata"], "uid": "1"}}

    def patch(self, resource: str, namespace: str, name: str, body: Json) -> Json:
        if resource == "pods":
            self.sent.append(f"release {name}")
        return {}

    def delete(self, *_: object, uid: str | None = None) -> None:
        assert uid is not None


def gang_of(api: NoAnchor, now_s: list[float]) -> Gang:
    settings = KubernetesSection(bind_timeout_s=BIND_S)
    pods = JobPods(
        job="a-1", settings=settings, package="p", resources=Resources(), grace_s=100.0, guardian_address="127.0.0.1:1"
    )
    job = JobObjects(pods=pods, learners=(), spec_sha256="", wanted="{}", token=b"")
    return Gang(cast(Api, api), job, pins=True, now=lambda: now_s[0], reserve=lambda reservation: None)


def step(gang: Gang, *pods: Json) -> GangOutcome:
    for item in pods:
        item["metadata"]["uid"] = item["metadata"]["name"]
    return gang.step({item["metadata"]["name"]: item for item in pods})


def test_no_request_is_repeated_while_the_picture_is_older() -> None:
    api, now_s, gated = NoAnchor(), [0.0], (pod(0, gated=True), pod(1, gated=True))
    gang = gang_of(api, now_s)
    gang.accept(wanted(0, 1))
    for seen in ((), gated[:1], gated, (pod(0), gated[1]), (running(0), pod(1))):
        step(gang, *seen)

    assert sorted(api.sent) == ["create a-1-m0", "create a-1-m1", "release a-1-m0", "release a-1-m1"]


def test_requests_without_a_visible_effect_are_repeated() -> None:
    api, now_s, gated = NoAnchor(), [0.0], (pod(0, gated=True), pod(1, gated=True))
    gang = gang_of(api, now_s)
    gang.accept(wanted(0, 1))
    step(gang)
    due_s = step(gang, gated[0]).due_s
    assert due_s is not None
    now_s[0] = due_s
    step(gang, gated[0])
    assert api.sent.count("create a-1-m1") == 2
    step(gang, *gated)
    now_s[0] += 2 * due_s
    step(gang, *gated)

    assert api.sent.count("release a-1-m0") == api.sent.count("release a-1-m1") == 2


def test_time_to_bind_begins_when_predecessors_have_ended() -> None:
    now_s = [0.0]
    gang = gang_of(NoAnchor(), now_s)
    gang.accept(replace(wanted(2), grace_s=100.0))

    def refused_at(at_s: float, before: Json) -> bool:
        now_s[0] = at_s
        return bool(step(gang, before, unschedulable(2)).refused)

    leaving, ended = running(0), pod(0, node="a", phase="Succeeded")
    assert not refused_at(0.0, leaving)
    assert not refused_at(90.0, leaving)
    assert not refused_at(90.0 + BIND_S - 1, ended)
    assert refused_at(90.0 + BIND_S, ended)


def test_an_unconfirmed_deletion_on_a_silent_node_loses_its_member() -> None:
    now_s = [0.0]
    gang = gang_of(NoAnchor(), now_s)
    gang.accept(wanted(0, 1))
    silent = pod(1, node="a", phase="Running", conditions=[{"type": "Ready", "status": "Unknown"}])
    assert step(gang, running(0), silent).due_s is None, "it may run, and is not being deleted"
    silent["metadata"] |= {"deletionTimestamp": "2026-01-01T00:00:00Z", "deletionGracePeriodSeconds": 45}
    condemned = step(gang, running(0), silent)
    assert (condemned.lost, condemned.due_s) == ({}, 45.0 + ABANDONED_S)
    now_s[0] = 45.0 + ABANDONED_S
    late = step(gang, running(0), silent)

    assert {member: failure.code for member, failure in late.lost.items()} == {1: "node_silent"}
    assert late.lost[1].what == "Node a does not answer, and has not confirmed the deletion of pod ml/a-1-m1."
    assert is_retried(late.lost[1])
    assert end_of_pod(silent) is None, "its seat stays taken"


def test_growth_is_a_document_that_keeps_and_adds_learners() -> None:
    assert grows(wanted(0, 1), wanted(0, 1, 2))
    for before, after in ((None, wanted(0)), (wanted(0, 1), wanted(1)), (wanted(0), wanted(1)), (wanted(0), wanted(0))):
        assert not grows(before, after)
    assert not grows(wanted(0), wanted(0, 1, goal=Goal.STOP))
    assert has_seats(wanted(0, 1), {0: running(0), 1: pod(1, node="a")})
    assert not has_seats(wanted(0, 1), {0: running(0), 1: unschedulable(1)})
    assert not has_seats(wanted(0, 1), {0: running(0)})
