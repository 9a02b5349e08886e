"""The status of a pod as a kubelet writes it: pure functions of the pod's spec and the states of its containers.

Source: Kubernetes 1.37, pkg/kubelet/kubelet_pods.go (getPhase) and pkg/kubelet/status/generate.go. Restartable init
containers (sidecars), probes and readiness gates are not modelled: a container that runs is ready.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

__all__ = ["CREATING", "INITIALIZING", "ContainerRecord", "Verdict", "container_status", "pod_status", "restarts"]

Json = dict[str, Any]
CREATING: Final[Json] = {"waiting": {"reason": "ContainerCreating"}}
INITIALIZING: Final[Json] = {"waiting": {"reason": "PodInitializing"}}


@dataclass(slots=True)
class ContainerRecord:
    """State of one container, in the form of the API."""

    name: str
    image: str
    state: Json = field(default_factory=lambda: dict(CREATING))
    last_state: Json = field(default_factory=dict)
    restarts: int = 0
    container_id: str = ""
    is_pulled: bool = False

    @property
    def exit_code(self) -> int | None:
        ended = self.state.get("terminated")
        return None if ended is None else int(ended["exitCode"])


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """A decision of the node about a whole pod: evicted, shut down, past its deadline, or deleted."""

    phase: str | None = None
    reason: str = ""
    message: str = ""
    is_disruption: bool = False


def restarts(policy: str, exit_code: int) -> bool:
    return policy == "Always" or (policy == "OnFailure" and exit_code != 0)


def container_status(record: ContainerRecord) -> Json:
    is_running = "running" in record.state
    return {
        "name": record.name,
        "image": record.image,
        "imageID": f"tests/{record.image}" if record.is_pulled else "",
        "containerID": record.container_id,
        "state": record.state,
        "lastState": record.last_state,
        "restartCount": record.restarts,
        "ready": is_running,
        "started": is_running,
    }


def phase(
    policy: str, init: Sequence[ContainerRecord], main: Sequence[ContainerRecord], *, is_terminal: bool = False
) -> str:
    for record in init:
        if record.exit_code not in (None, 0) and policy == "Never":
            return "Failed"
    if any(record.exit_code != 0 for record in init):
        return "Failed" if is_terminal else "Pending"
    if any("waiting" in record.state and "terminated" not in record.last_state for record in main):
        return "Pending"
    if any("running" in record.state for record in main):
        return "Running"
    codes = [record.exit_code for record in main]
    if not is_terminal and any(code is None or restarts(policy, code) for code in codes):
        return "Running"
    return "Succeeded" if all(code == 0 for code in codes) else "Failed"


def pod_status(
    pod: Json,
    init: Sequence[ContainerRecord],
    main: Sequence[ContainerRecord],
    *,
    host_ip: str,
    pod_ip: str | None,
    started: str,
    now: str,
    verdict: Verdict | None = None,
    is_terminal: bool = False,
) -> Json:
    """Return the status of a pod as a patch: conditions that others write are left alone."""
    policy = pod["spec"].get("restartPolicy", "Always")
    computed = phase(policy, init, main, is_terminal=is_terminal)
    # As the kubelet's status manager does: a pod reaches a final phase only when none of its containers runs.
    is_running = any("running" in record.state for record in (*init, *main))
    if verdict is not None and verdict.phase is not None and not is_running:
        computed = verdict.phase
    is_initialized = all(record.exit_code == 0 for record in init)
    unready = [record.name for record in main if "running" not in record.state]
    reason, message = "", ""
    if computed == "Succeeded":
        reason = "PodCompleted"
    elif computed == "Failed":
        reason = "PodFailed"
    elif unready:
        reason, message = "ContainersNotReady", f"containers with unready status: [{' '.join(unready)}]"
    incomplete = [record.name for record in init if record.exit_code != 0]
    initialized = (
        ("", "")
        if is_initialized
        else (
            "ContainersNotInitialized",
            f"containers with incomplete status: [{' '.join(incomplete)}]",
        )
    )
    has_sandbox = pod_ip is not None and computed not in ("Succeeded", "Failed")
    conditions = [
        _condition("PodReadyToStartContainers", has_sandbox, now),
        _condition("Initialized", is_initialized, now, *initialized),
        _condition("Ready", not reason, now, reason, message),
        _condition("ContainersReady", not reason, now, reason, message),
    ]
    if verdict is not None and verdict.is_disruption:
        conditions.append(_condition("DisruptionTarget", True, now, "TerminationByKubelet", verdict.message))
    status: Json = {
        "phase": computed,
        "conditions": conditions,
        "hostIP": host_ip,
        "hostIPs": [{"ip": host_ip}],
        "startTime": started,
        "initContainerStatuses": [container_status(record) for record in init],
        "containerStatuses": [container_status(record) for record in main],
    }
    if pod_ip is not None:
        status |= {"podIP": pod_ip, "podIPs": [{"ip": pod_ip}]}
    if verdict is not None and verdict.reason and not is_running:
        status |= {"reason": verdict.reason, "message": verdict.message}
    return status


def _condition(kind: str, is_true: bool, now: str, reason: str = "", message: str = "") -> Json:
    return {
        "type": kind,
        "status": "True" if is_true else "False",
        "lastTransitionTime": now,
        "reason": reason or None,
        "message": message or None,
    }
