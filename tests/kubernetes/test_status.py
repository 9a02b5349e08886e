"""The status that process nodes report, checked against the rules of the kubelet. No cluster is needed."""

from __future__ import annotations

from typing import Any

import pytest

from tests.kubernetes.nodes.status import CREATING, ContainerRecord, Verdict, pod_status

RUNNING = {"running": {"startedAt": "2026-01-01T00:00:00Z"}}
CRASHED = {"waiting": {"reason": "CrashLoopBackOff"}}


def ended(code: int) -> dict[str, Any]:
    return {"terminated": {"exitCode": code}}


def record(state: dict[str, Any], last_state: dict[str, Any] | None = None) -> ContainerRecord:
    return ContainerRecord("main", "image", state=state, last_state=last_state or {})


def status_of(policy: str, *states: dict[str, Any], init: list[dict[str, Any]] | None = None, **more: Any) -> Any:
    pod = {"spec": {"restartPolicy": policy}}
    main = [record(state) for state in states]
    first = [record(state) for state in init or []]
    now = "2026-01-01T00:00:01Z"
    return pod_status(pod, first, main, host_ip="127.0.0.1", pod_ip="127.0.0.2", started=now, now=now, **more)


@pytest.mark.parametrize(("policy", "states", "phase"), [
    ("Never", [CREATING], "Pending"),
    ("Never", [RUNNING], "Running"),
    ("Never", [RUNNING, ended(1)], "Running"),
    ("Never", [ended(0)], "Succeeded"),
    ("Never", [ended(0), ended(1)], "Failed"),
    ("OnFailure", [ended(0)], "Succeeded"),
    ("OnFailure", [ended(1)], "Running"),
    ("Always", [ended(0)], "Running"),
])  # fmt: skip
def test_the_phase_follows_from_containers_and_restart_policy(policy: str, states: list[Any], phase: str) -> None:
    assert status_of(policy, *states)["phase"] == phase


def test_a_container_between_restarts_is_not_pending() -> None:
    pod = {"spec": {"restartPolicy": "Always"}}
    status = pod_status(pod, [], [record(CRASHED, ended(1))], host_ip="h", pod_ip="p", started="", now="", verdict=None)
    assert status["phase"] == "Running"


@pytest.mark.parametrize(("init", "phase"), [(RUNNING, "Pending"), (ended(0), "Running"), (ended(1), "Failed")])
def test_init_containers_come_first(init: dict[str, Any], phase: str) -> None:
    assert status_of("Never", RUNNING, init=[init])["phase"] == phase


@pytest.mark.parametrize(("state", "phase", "reason"), [(RUNNING, "Running", None), (ended(143), "Failed", "Evicted")])
def test_an_eviction_is_final_when_no_container_runs(state: dict[str, Any], phase: str, reason: str | None) -> None:
    verdict = Verdict(phase="Failed", reason="Evicted", message="low on memory", is_disruption=True)
    status = status_of("Never", state, verdict=verdict)

    assert (status["phase"], status.get("reason")) == (phase, reason)
    assert "DisruptionTarget" in {condition["type"] for condition in status["conditions"]}
