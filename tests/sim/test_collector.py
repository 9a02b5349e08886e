"""Replays go without Python's cyclic collector: nothing is left for it, and it is put back as it was."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest

from dlaas_server.core.scheduling.ordering import ORDERS
from dlaas_server.core.scheduling.scheduler import Policy
from dlaas_server.sim.replay.event_loop import replay
from dlaas_server.sim.replay.gc_pause import collector_at_rest
from dlaas_server.sim.replay.production import ByCore
from dlaas_server.sim.trace.trace import NodeSpec
from tests.selection import each_nth
from tests.sim.builders import tjob, trace

NODES = tuple(NodeSpec(name=f"n{i}", gpus=4) for i in range(2))


@pytest.fixture(autouse=True)
def collecting() -> Iterator[None]:
    """As a process begins, whatever fails."""
    gc.enable()
    yield
    gc.enable()


def test_it_is_put_back_even_where_a_replay_fails() -> None:
    with pytest.raises(ZeroDivisionError), collector_at_rest():
        assert 1 / gc.isenabled()

    assert gc.isenabled()


def test_disabled_collector_stays_disabled() -> None:
    gc.disable()

    with collector_at_rest():
        pass

    assert not gc.isenabled()


@pytest.mark.parametrize("order", each_nth([*ORDERS], 3))
def test_a_replay_leaves_nothing_that_only_the_collector_could_free(order: str) -> None:
    busy = trace(*(tjob(f"j{i}", 7 * i, 1 + i % 5 % 4, 40 + 977 * i % 5000) for i in range(300)))
    policy = Policy(order=order, age_s=300.0)
    replay(busy, 8, ByCore(NODES, policy, restart_s=10, estimate_error=1.0))  # what is kept for good is made
    gc.collect()

    with collector_at_rest():
        replay(busy, 8, ByCore(NODES, policy, restart_s=10, estimate_error=1.0))
        assert gc.collect() == 0
