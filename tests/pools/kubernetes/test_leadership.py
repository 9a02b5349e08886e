"""Leadership of a namespace: election, words about the holder, takeover, and fencing of a former leader."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from dlaas_server.pools.kubernetes.api import Answer, Api, ApiUnreachable
from dlaas_server.pools.kubernetes.leadership import Leadership, own_holder, pool_id
from dlaas_server.pools.kubernetes.ledger import Fenced, Reservation, parse_ledger
from dlaas_server.pools.kubernetes.manifests.lease import Holder
from jupyter_dlaas.runtime.system.process import identity
from tests.pools.kubernetes.fake_objects import FakeObjects
from tests.pools.kubernetes.fake_server import refusal

DURATION_S = 15
CONFIG_MAP = {"metadata": {"name": "digits-1"}}
LEASE = "/apis/coordination.k8s.io/v1/namespaces/ml/leases/jupyter-dlaas-engine"
LEDGER = "/api/v1/namespaces/ml/configmaps/jupyter-dlaas-ledger"


class Engine:
    """An engine with a clock of its own, which a test advances."""

    def __init__(self, server: FakeObjects, holder: Holder) -> None:
        self.now_s = 1000.0
        self.terms = 0
        self.problem: Exception | None = None
        self.leadership = Leadership(
            server.api(), "ml", holder, duration_s=DURATION_S, elected=self._elected, now=lambda: self.now_s
        )
        self.api = server.api(fence=self.leadership.check, sleep=self._pass)

    def _pass(self, seconds: float) -> None:
        self.now_s += seconds

    def _elected(self) -> None:
        if self.problem is not None:
            raise self.problem
        self.terms += 1

    def after(self, seconds: float) -> str | None:
        """Let time pass and the engine ask for its Lease; return why it may not write."""
        self.now_s += seconds
        self.leadership.step()
        return self.leadership.problem()


@pytest.fixture
def server() -> FakeObjects:
    return FakeObjects()


@pytest.fixture
def holder(tmp_path: Path) -> Holder:
    return own_holder(tmp_path)


@pytest.fixture
def first(server: FakeObjects, holder: Holder) -> Engine:
    engine = Engine(server, holder)
    assert engine.after(0) is None
    return engine


@pytest.fixture
def second(server: FakeObjects, tmp_path: Path) -> Engine:
    (tmp_path / "other").mkdir()
    return Engine(server, replace(own_holder(tmp_path / "other"), host="ws-4"))


def reserve(api: Api, engine: Engine, job: str) -> None:
    """Place a job, as its gang does."""
    engine.leadership.commit(lambda ledger: ledger.reserve(job, Reservation(generation=1)))
    api.create("configmaps", "ml", {"metadata": {"name": job}})


# ---- election --------------------------------------------------------------------------------------------------------


def test_a_second_engine_is_refused_and_the_holder_named(first: Engine, second: Engine, holder: Holder) -> None:
    problem = second.after(0) or ""

    assert (
        f"process {os.getpid()} on host {holder.host} (pool {holder.directory} of {holder.user}), since 20" in problem
    )
    assert f"jupyter dlaas engine stop --pool {holder.directory}" in problem
    assert "pool use kubernetes --namespace NAME" in problem
    with pytest.raises(Fenced, match="Another engine serves namespace ml"):
        second.api.create("configmaps", "ml", CONFIG_MAP)
    assert second.terms == 0


def test_an_engine_in_a_pod_is_named_by_its_pod(server: FakeObjects, holder: Holder, second: Engine) -> None:
    Engine(server, replace(holder, host="engine-0", is_pod=True)).after(0)

    assert f"in pod engine-0 (pool {holder.directory} of" in (second.after(0) or "")


def test_renewals_keep_a_second_engine_waiting(first: Engine, second: Engine) -> None:
    for _ in range(20):
        assert second.after(2) is not None
        assert first.after(2) is None

    assert first.terms == 1


def test_an_expired_lease_is_taken_over_by_the_own_clock(server: FakeObjects, first: Engine, second: Engine) -> None:
    server.objects[LEASE]["spec"]["renewTime"] = "2001-01-01T00:00:00.000000Z"  # the clocks of both machines differ
    assert second.after(0) is not None
    assert second.after(DURATION_S - 1) is not None
    assert second.after(1) is None

    assert server.objects[LEASE]["spec"]["leaseTransitions"] == 1
    assert parse_ledger(server.objects[LEDGER]["data"]["ledger.json"]).term == 2


def test_a_released_lease_is_taken_at_once(first: Engine, second: Engine) -> None:
    assert second.after(0) is not None
    first.leadership.close()

    assert second.after(0) is None
    with pytest.raises(Fenced):
        first.api.create("configmaps", "ml", CONFIG_MAP)


def test_a_closed_follower_releases_nothing(server: FakeObjects, first: Engine, second: Engine) -> None:
    second.after(0)
    second.leadership.close()

    assert first.after(2) is None
    assert server.objects[LEASE]["spec"]["leaseTransitions"] == 0


@pytest.fixture
def process() -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen([sys.executable, "-S", "-c", "input()"], stdin=subprocess.PIPE) as started:
        yield started
        started.kill()


def test_an_engine_takes_over_from_its_dead_predecessor_at_once(
    server: FakeObjects, holder: Holder, process: subprocess.Popen[bytes]
) -> None:
    found = identity(process.pid)
    assert found is not None
    former = replace(holder, pid=found.pid, start=found.start)
    assert Engine(server, former).after(0) is None
    successor, copy = Engine(server, holder), Engine(server, replace(holder, pool="a copy"))
    elsewhere = Engine(server, replace(holder, host="engine-1"))
    assert successor.after(0) is not None, "the former process is alive"
    process.kill()
    process.wait()

    assert copy.after(0) is not None, "this is another pool"
    assert elsewhere.after(0) is not None, "a pod on the same node, which cannot see the process"
    assert successor.after(0) is None
    assert server.objects[LEASE]["spec"]["holderIdentity"] == holder.identity


def test_a_pools_directory_keeps_its_id(tmp_path: Path) -> None:
    assert pool_id(tmp_path) is None
    first, again = own_holder(tmp_path), own_holder(tmp_path)

    assert first == again
    assert pool_id(tmp_path) == first.pool


# ---- fencing ---------------------------------------------------------------------------------------------------------


def test_an_engine_that_was_paused_sends_no_write(server: FakeObjects, first: Engine, second: Engine) -> None:
    reserve(first.api, first, "digits-1")
    second.after(0)
    assert second.after(DURATION_S) is None
    first.now_s += DURATION_S  # it wakes up, and did not ask for its Lease yet
    sent = list(server.sent)
    for write in (
        lambda: first.api.create("pods", "ml", {"metadata": {"name": "digits-1-m0"}}),
        lambda: first.api.patch("pods", "ml", "digits-1-m0", {}),
        lambda: first.api.delete("configmaps", "ml", "digits-1"),
        lambda: first.leadership.commit(lambda ledger: ledger.release("digits-1")),
    ):
        with pytest.raises(Fenced):
            write()
    assert server.sent == sent

    assert "on host ws-4" in (first.after(0) or "")
    assert server.writes()[len([m for m, _ in sent if m != "GET"]) :] == [("PUT", "jupyter-dlaas-engine")]
    assert server.objects[LEASE]["spec"]["leaseTransitions"] == 1


def test_a_former_leader_with_a_slow_clock_commits_nothing(server: FakeObjects, first: Engine, second: Engine) -> None:
    second.after(0)
    second.after(DURATION_S)
    ledger = server.objects[LEDGER]
    with pytest.raises(Fenced, match="ws-4"):
        reserve(first.api, first, "digits-1")

    assert server.objects[LEDGER] == ledger
    assert server.objects.keys() == {LEASE, LEDGER}
    with pytest.raises(Fenced):
        first.api.create("configmaps", "ml", CONFIG_MAP)


def test_a_request_that_waits_is_not_repeated_after_the_deadline(server: FakeObjects, first: Engine) -> None:
    server.before = lambda method, path: refusal(429, Retry_After="100") if method == "POST" else None
    with pytest.raises(Fenced):
        first.api.create("configmaps", "ml", CONFIG_MAP)

    assert server.writes()[-1] == ("POST", "configmaps")
    assert server.writes().count(("POST", "configmaps")) == 2, "the ledger, and one attempt"


def test_a_leader_without_renewals_stops_before_its_lease_expires(server: FakeObjects, first: Engine) -> None:
    def cut(method: str, path: str) -> Answer | None:
        raise OSError("no route to host")

    server.before = cut
    assert first.after(DURATION_S * 0.6) is None
    problem = first.after(DURATION_S * 0.1)
    assert problem is not None
    assert "no route to host" in problem
    server.before = lambda method, path: None

    assert first.after(2) is None
    assert first.terms == 1, "its term continues: no other engine was the leader"


def test_a_renewal_whose_answer_is_lost_is_repeated(server: FakeObjects, first: Engine) -> None:
    def cut(method: str, path: str) -> None:
        raise OSError("the connection broke")

    server.after = cut
    first.after(2)
    server.after = lambda method, path: None

    assert first.after(2) is None
    assert (first.terms, server.objects[LEASE]["spec"]["leaseTransitions"]) == (1, 0)


def test_a_leader_returns_with_a_new_term(server: FakeObjects, first: Engine, second: Engine) -> None:
    second.after(0)
    second.after(DURATION_S)
    assert first.after(DURATION_S) is not None
    second.leadership.close()

    assert first.after(2) is None
    assert first.terms == 2
    reserve(first.api, first, "digits-1")
    assert parse_ledger(server.objects[LEDGER]["data"]["ledger.json"]).term == 3


def test_what_began_in_a_former_term_stays_fenced(server: FakeObjects, first: Engine, second: Engine) -> None:
    begun = server.api(fence=first.leadership.fence())
    begun.create("configmaps", "ml", {"metadata": {"name": "digits-1"}})
    second.after(0)
    second.after(DURATION_S)
    second.leadership.close()
    assert first.after(DURATION_S) is None

    with pytest.raises(Fenced, match="term"):
        begun.create("configmaps", "ml", {"metadata": {"name": "digits-2"}})
    server.api(fence=first.leadership.fence()).create("configmaps", "ml", {"metadata": {"name": "digits-2"}})


def test_the_namespace_is_prepared_before_the_pool_is_used(server: FakeObjects, second: Engine) -> None:
    second.problem = ApiUnreachable("the package cannot be stored")
    assert "the package cannot be stored" in (second.after(0) or "")
    second.problem = None

    assert second.after(2) is None
    assert second.terms == 1


def test_a_commit_that_changes_nothing_sends_nothing(server: FakeObjects, first: Engine) -> None:
    sent = len(server.sent)
    first.leadership.commit(lambda ledger: ledger.release("digits-1"))

    assert len(server.sent) == sent
