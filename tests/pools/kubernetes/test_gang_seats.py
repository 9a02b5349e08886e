"""Seats of a gang: committed to the ledger before its pods exist, waited for, refused, and never used after a pause."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from dlaas_server.pools.kubernetes.gang import AGAIN_S, Gang, GangOutcome
from dlaas_server.pools.kubernetes.ledger import Fenced, Reservation, SeatTaken
from dlaas_server.pools.kubernetes.manifests.names import GATE, LABEL_MEMBER, Json
from dlaas_server.pools.kubernetes.manifests.settings import KubernetesSection
from jupyter_dlaas.wire.journal import Goal, MemberWanted, Wanted
from tests.pools.kubernetes.fake_objects import FakeObjects
from tests.pools.kubernetes.golden_manifests import job

BIND_S = 30.0


class Placed:
    """A gang of two whose pods a test shows, with a clock that it advances."""

    def __init__(self) -> None:
        self.server = FakeObjects()
        self.now_s = 0.0
        self.reserved: list[Reservation] = []
        self.problem: Exception | None = None
        self.fence: Exception | None = None
        described = job(KubernetesSection(namespace="ml", bind_timeout_s=BIND_S))
        self.gang = Gang(
            self.server.api(fence=self._check),
            replace(described, pods=replace(described.pods, guardian_address="127.0.0.1:1")),
            pins=True,
            now=lambda: self.now_s,
            reserve=self._reserve,
        )
        seats = tuple(MemberWanted(member=m, node="a", devices=(f"a/{m}",)) for m in range(2))
        self.gang.accept(Wanted(revision=1, goal=Goal.RUN, generation=1, members=seats))

    def _check(self) -> None:
        if self.fence is not None:
            raise self.fence

    def _reserve(self, reservation: Reservation) -> None:
        if self.problem is not None:
            raise self.problem
        assert self.pods() == 0 or self.reserved, "no pod is created before its seats are committed"
        self.reserved.append(reservation)

    def pods(self) -> int:
        return self.server.writes().count(("POST", "pods"))

    def step(self, *pods: Json, after_s: float = 0.0) -> GangOutcome:
        self.now_s += after_s
        return self.gang.step({pod["metadata"]["name"]: pod for pod in pods})


@pytest.fixture
def placed() -> Placed:
    return Placed()


def gated(member: int, **spec: Any) -> Json:
    metadata = {"name": f"digits-1-m{member}", "namespace": "ml", "uid": str(member)}
    return {
        "kind": "Pod",
        "metadata": {**metadata, "labels": {LABEL_MEMBER: str(member)}},
        "spec": {"containers": [{"image": "i"}], "schedulingGates": [{"name": GATE}], **spec},
        "status": {"phase": "Pending"},
    }


def test_seats_are_committed_before_pods_are_created(placed: Placed) -> None:
    placed.step()

    assert placed.reserved == [Reservation(generation=1, seats={"0": ("a", ("a/0",)), "1": ("a", ("a/1",))})]
    assert placed.pods() == 2


def test_a_gang_waits_for_seats_and_is_then_refused_whole(placed: Placed) -> None:
    placed.problem = SeatTaken("device a/1 of node a is held by job other-1")
    outcome = placed.step()

    assert outcome.blocked is not None
    assert "Device a/1 of node a is held by job other-1" in outcome.blocked.what
    assert outcome.due_s is not None
    assert placed.step(after_s=BIND_S - 1).refused == {}
    outcome = placed.step(after_s=1)
    assert outcome.refused.keys() == {0, 1}
    assert {wait.code for wait in outcome.refused.values()} == {"no_capacity"}
    assert placed.pods() == 0


def test_a_gang_starts_once_its_seats_are_free(placed: Placed) -> None:
    placed.problem = SeatTaken("device a/1 of node a is held by job other-1")
    placed.step()
    placed.problem = None
    outcome = placed.step(after_s=1)

    assert (outcome.blocked, outcome.refused) == (None, {})
    assert placed.pods() == 2


def test_an_engine_paused_after_its_commit_creates_nothing(placed: Placed) -> None:
    placed.fence = Fenced("another engine serves the namespace")
    with pytest.raises(Fenced):
        placed.step()

    assert placed.reserved
    assert placed.server.writes() == []


def test_an_engine_paused_before_the_release_releases_nothing(placed: Placed) -> None:
    placed.step()
    before = placed.server.writes()
    placed.fence = Fenced("another engine serves the namespace")
    with pytest.raises(Fenced):
        placed.step(gated(0), gated(1))

    assert placed.server.writes() == before


def test_an_older_picture_repeats_no_request_at_once(placed: Placed) -> None:
    placed.step()
    outcome = placed.step()
    assert placed.pods() == 2
    assert outcome.due_s == AGAIN_S
    for _ in range(2):
        placed.step(gated(0), gated(1), after_s=1)
    released = [name for method, name in placed.server.writes() if method == "PATCH" and "-m" in name]
    assert sorted(released) == ["digits-1-m0", "digits-1-m1"]

    placed.step(gated(0), gated(1), after_s=AGAIN_S)
    assert placed.server.writes().count(("PATCH", "digits-1-m0")) == 2, "the request had no effect"
