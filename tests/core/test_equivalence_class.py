"""Equivalence classes of waiting jobs: head, and first job of each expected length, whenever they are queried."""

from __future__ import annotations

from random import Random

import pytest

from dlaas_server.core.model.resources import Shape
from dlaas_server.core.placement.shape import Layout
from dlaas_server.core.scheduling import equivalence_class
from dlaas_server.core.scheduling.equivalence_class import EquivalenceClass
from dlaas_server.core.scheduling.gang_request import GangRequest, Key, level

SHAPE = Shape(1, 0.0, 0, None, Layout.PACK)


def key_of(request: GangRequest) -> Key:
    return (-request.priority, 0, 0, request.submitted_s, request.number)


def firsts(waiting: list[GangRequest]) -> list[GangRequest]:
    """Plainly: who is first of all that are as long."""
    found: dict[int, GangRequest] = {}
    for request in sorted(waiting, key=key_of):
        found.setdefault(0 if request.estimate_s is None else level(request.estimate_s), request)
    return sorted(found.values(), key=key_of)


@pytest.mark.parametrize("few", [0, 5, 1024])
@pytest.mark.parametrize("seed", range(20))
def test_first_job_of_each_length_does_not_depend_on_queries(
    seed: int, few: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(equivalence_class, "MAX_SORTED_ON_DEMAND", few)
    chance, group, waiting = Random(seed), EquivalenceClass(SHAPE, 1), list[GangRequest]()
    for number in range(300):
        if chance.random() < 0.55:
            length_s = chance.choice([None, 3.0, 50.0, 900.0, 9e4])
            request = GangRequest(
                number, SHAPE, 1, chance.choice([0.0, 10.0 * number]), length_s, priority=chance.randrange(2)
            )
            waiting.append(request)
            is_first = group.push(key_of(request), request)
            assert is_first or request is not group.head
        elif waiting:
            request = group.head if chance.random() < 0.7 and group.head else chance.choice(waiting)
            waiting.remove(request)
            request.version += 1
            if group.head is request:
                group.refresh()
        if chance.random() < 0.1:
            assert group.heads() == firsts(waiting)
        assert group.head is min(waiting, key=key_of, default=None)
