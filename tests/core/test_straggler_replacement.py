"""Replacement of a straggler on a free seat, while the others continue to train."""

from __future__ import annotations

from dataclasses import replace

import pytest

from dlaas_server.core.lifecycle.plan_outcomes import resized
from dlaas_server.core.model.job import Job, Slow
from dlaas_server.core.model.pool import Pool
from dlaas_server.core.planning.decisions import Resized
from dlaas_server.core.planning.plan import plan
from dlaas_server.core.rebalancing.migration import AGAIN_S
from dlaas_server.core.scheduling.policy import Policy
from jupyter_dlaas.wire.journal import FactKind
from jupyter_dlaas.wire.protocol import Elastic
from tests.core.builders import job, node, pool, seats, training, with_fact

NOW_S = 1000.0
GANG = replace(training(job(1, (1, 3)), *seats("a", 3)), is_live=True)
FIRST = GANG.gang[0].member


def slowed(gang: Job, member: int) -> Job:
    return with_fact(gang, FactKind.SLOW, member=member, rate=0.5)


def changes(on: Pool) -> tuple[Resized, ...]:
    return plan(on, NOW_S, Policy()).resizes


@pytest.mark.parametrize("rank", [0, 1, 2])
def test_straggler_of_any_rank_is_replaced_with_a_reason(rank: int) -> None:
    late = GANG.gang[rank]
    on = pool([node("a", 4)], slowed(GANG, late.member))

    (change,) = changes(on)
    assert len(change.seats) == 3
    assert late.seat not in change.seats
    assert {m.seat for m in GANG.gang if m is not late} < set(change.seats)
    assert (
        change.why == f"Learner {late.member} on a runs at 50% of the others' speed; it is replaced by another learner."
    )
    after, _ = resized(on.jobs["job-1"], change.seats, change.by, NOW_S, change.why)
    assert late.member not in {m.member for m in after.gang}
    assert {m.member for m in GANG.gang} - {late.member} < {m.member for m in after.gang}
    assert after.moved_s == NOW_S


@pytest.mark.parametrize(
    "gang",
    [
        GANG,
        replace(GANG, slow=Slow(77, 0.5)),
        replace(slowed(GANG, FIRST), elastic=Elastic.OFF),
        replace(slowed(GANG, FIRST), is_live=False, checkpoint_step=5),
        replace(slowed(GANG, FIRST), moved_s=NOW_S - AGAIN_S + 1),
        with_fact(slowed(GANG, FIRST), FactKind.SLOW),
        with_fact(slowed(GANG, FIRST), FactKind.GUARDIAN_UP),
    ],
    ids=[
        "no straggler",
        "one that left",
        "never to change",
        "only by a restart",
        "just moved",
        "no longer",
        "a new guardian",
    ],
)
def test_no_replacement_without_a_benefit(gang: Job) -> None:
    assert changes(pool([node("a", 4)], gang)) == ()


def test_straggler_stays_only_without_a_free_device() -> None:
    slow = slowed(GANG, FIRST)

    assert changes(pool([node("a", 3)], slow)) == ()
    large = job(2, (4, 4))
    assert [one.job for one in changes(pool([node("a", 4), node("b", 2)], slow, large))] == ["job-1"]
