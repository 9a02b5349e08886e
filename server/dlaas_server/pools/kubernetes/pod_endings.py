"""Ends of pods: cause, object and fix, from a pod's status and its containers' states. Pure.

The causes are those of the table of known failures. Missing pods are an end only where their deletion was seen.
"""

from __future__ import annotations

import re
import signal
from dataclasses import dataclass
from typing import Final

from dlaas_server.pools.kubernetes.manifests.bootstrap import WRONG_PYTHON
from dlaas_server.pools.kubernetes.manifests.names import Json, described
from dlaas_server.pools.kubernetes.pod_fields import condition, sentence
from jupyter_dlaas.runtime.hosts.agent_settings import NOT_COLLECTED
from jupyter_dlaas.wire.protocol import Cause, Failure

__all__ = ["PodEnd", "end_of_pod", "ending_of_pod", "without_node"]


@dataclass(frozen=True, slots=True, kw_only=True)
class PodEnd:
    """End of a pod. `cause` None: it ended as it should."""

    code: str
    cause: Cause | None
    object: str
    what: str
    advice: str = ""
    exit_code: int | None = None
    is_seat_refused: bool = False
    """True if no process ran: the node or the cluster did not take the pod."""

    @property
    def failure(self) -> Failure | None:
        """The end as a failure of its job; None if it is none."""
        if self.cause is None:
            return None
        return Failure(cause=self.cause, code=self.code, what=self.what, advice=self.advice)


NODE_DELETED: Final = "the node was deleted from the cluster"
_ADMISSION: Final = (
    r"UnexpectedAdmissionError|OutOf\S+|NodeAffinity|NodePorts|TaintToleration|Sysctl\w*|AppArmor|.*Admission.*"
)
_DISRUPTIONS: Final = {
    "PreemptionByScheduler": ("preempted", "{object} was preempted by a pod of higher priority: {message}"),
    "DeletionByTaintManager": (
        "node_taint",
        "{object} was removed from node {node}, which is no longer usable: {message}",
    ),
    "EvictionByEvictionAPI": ("drained", "{object} was evicted from node {node}, as in a drain: {message}"),
    "DeletionByPodGC": ("node_gone", "Node {node} is gone, and {object} with it: {message}"),
    "TerminationByKubelet": ("evicted", "Node {node} ended {object}: {message}"),
}
"""Reasons of the condition DisruptionTarget. Source: kubernetes.io, "Pod disruption conditions"."""


def end_of_pod(pod: Json, *, is_deleted: bool = False) -> PodEnd | None:
    """Return how a pod ended; None while it may still run. `is_deleted`: its deletion was seen."""
    status, name = pod.get("status", {}), described(pod)
    if status.get("phase") not in ("Succeeded", "Failed") and not is_deleted:
        return None
    node = str(pod.get("spec", {}).get("nodeName", ""))
    finished = _terminated(pod)
    if by_node := _by_the_node(status, name, node):
        return by_node
    is_deleted = is_deleted or "deletionTimestamp" in pod["metadata"]
    disruption = condition(pod, "DisruptionTarget")
    # A learner that saves and leaves in time ends its pod with exit code 0.
    if disruption.get("status") == "True" and (is_deleted or status.get("phase") != "Succeeded"):
        return _disrupted(disruption, name, node)
    if finished is None:
        return _without_containers(pod, status, name, node, is_deleted=is_deleted)
    return _of_container(finished, name, node, is_deleted=is_deleted)


def ending_of_pod(pod: Json) -> PodEnd | None:
    """Return why a pod that still runs is being ended by the cluster or an administrator; None if it is not."""
    if end_of_pod(pod) is not None:
        return None
    name, node = described(pod), str(pod.get("spec", {}).get("nodeName", ""))
    disruption = condition(pod, "DisruptionTarget")
    if disruption.get("status") == "True":
        return _disrupted(disruption, name, node)
    if pod["metadata"].get("deletionTimestamp"):
        return _without_containers(pod, {}, name, node, is_deleted=True)
    return None


def without_node(pod: Json) -> Json:
    """Return a pod whose node was deleted from the cluster, as pod garbage collection records it up to 60 s later."""
    if end_of_pod(pod) is not None:
        return pod
    status = pod.get("status", {})
    others = [found for found in status.get("conditions") or [] if found.get("type") != "DisruptionTarget"]
    gone = {"type": "DisruptionTarget", "status": "True", "reason": "DeletionByPodGC", "message": NODE_DELETED}
    return {**pod, "status": {**status, "phase": "Failed", "conditions": [*others, gone]}}


def _by_the_node(status: Json, name: str, node: str) -> PodEnd | None:
    """Return an end that the kubelet decided on: eviction, shutdown, a refused pod, a deadline."""
    reason, message = str(status.get("reason", "")), sentence(str(status.get("message", "")))
    if reason == "Evicted":
        code, advice = "evicted", "Request more with --memory; the job continues on another node."
        if "ephemeral" in message or "emptyDir" in message or "disk" in message.lower():
            code, advice = "evicted_disk", "Write less to the pod's disk, or raise `ephemeral_storage` of the pool."
        return PodEnd(
            code=code, cause=Cause.EVICTED, object=name, what=f"Node {node} evicted {name}: {message}", advice=advice
        )
    if reason in ("Terminated", "NodeShutdown", "Shutdown"):
        what = f"Node {node} was shut down while {name} ran: {message}"
        advice = "The job continues on another node."
        return PodEnd(code="node_shutdown", cause=Cause.EVICTED, object=name, what=what, advice=advice)
    if reason == "DeadlineExceeded":
        what = f"{name} exceeded the time that the cluster allows: {message}"
        advice = "A policy of the cluster limits the run time of pods; use checkpoints, and resume the job."
        return PodEnd(code="deadline", cause=Cause.PLATFORM, object=name, what=what, advice=advice)
    if reason == "NodeLost":
        return _gone(name, node)
    if re.fullmatch(_ADMISSION, reason):
        what = f"Node {node} refused {name} ({reason}): {message}"
        why = "The node does not meet the pod's conditions any more"
        if reason.startswith("OutOf"):
            why = "Another pod took the resources first"
        elif reason == "UnexpectedAdmissionError":
            why = f"A device of the node may be broken (kubectl describe node {node})"
        advice = f"{why}; the learner gets another place."
        return PodEnd(
            code="seat_refused", cause=Cause.PLATFORM, object=name, what=what, advice=advice, is_seat_refused=True
        )
    return None


def _disrupted(disruption: Json, name: str, node: str) -> PodEnd:
    code, text = _DISRUPTIONS.get(
        str(disruption.get("reason")), ("disrupted", "The cluster ended {object} on node {node}: {message}")
    )
    message = sentence(str(disruption.get("message", "")))
    what = text.format(object=name, node=node or "?", message=message)
    return PodEnd(code=code, cause=Cause.EVICTED, object=name, what=what, advice="The job continues on another node.")


def _without_containers(pod: Json, status: Json, name: str, node: str, *, is_deleted: bool) -> PodEnd:
    if is_deleted and not node:
        what = f"{name} was deleted before it had a node."
        return PodEnd(
            code="deleted",
            cause=Cause.EVICTED,
            object=name,
            what=what,
            advice=_deleted_advice(),
            is_seat_refused=True,
        )
    if is_deleted:
        what = f"{name} was deleted on node {node}."
        return PodEnd(code="deleted", cause=Cause.EVICTED, object=name, what=what, advice=_deleted_advice())
    message = sentence(str(status.get("message", "")))
    what = f"{name} failed before its container ran ({status.get('reason') or 'no reason'}): {message}"
    advice = "The learner gets another place; events of the pod have the details."
    return PodEnd(code="not_started", cause=Cause.PLATFORM, object=name, what=what, advice=advice, is_seat_refused=True)


def _of_container(finished: Json, name: str, node: str, *, is_deleted: bool) -> PodEnd:
    code, reason = int(finished.get("exitCode", 0)), str(finished.get("reason", ""))
    message = sentence(str(finished.get("message", "")))
    if reason == "OOMKilled":
        what = f"The kernel killed {name} on node {node}, because it reached its memory limit."
        advice = "Request more with --memory, or use a smaller batch. Shared memory counts against the limit."
        return PodEnd(code="host_memory", cause=Cause.RESOURCES, object=name, what=what, advice=advice, exit_code=code)
    if reason == "StartError" or (reason == "ContainerCannotRun" and code in (126, 127, 128)):
        what = f"The container of {name} cannot start: {message}"
        advice = "The image needs `python3` on its PATH: choose another `image` in the pool's config.toml."
        return PodEnd(
            code="image_without_python", cause=Cause.PLATFORM, object=name, what=what, advice=advice, exit_code=code
        )
    if code == WRONG_PYTHON and "Python" in message:
        advice = "Choose an `image` with the notebook's minor version of Python in the pool's config.toml."
        what = f"{name} cannot run the job: {message}"
        return PodEnd(code="wrong_python", cause=Cause.PLATFORM, object=name, what=what, advice=advice, exit_code=code)
    if code == NOT_COLLECTED:
        what = f"{name} on node {node} ended with its learner's result not collected: it reached no guardian."
        advice = "Start Jupyter again: the job continues from its last checkpoint. `keep_results_s` sets the time."
        return PodEnd(
            code="result_not_collected", cause=Cause.PLATFORM, object=name, what=what, advice=advice, exit_code=code
        )
    if reason == "ContainerStatusUnknown":
        return _gone(name, node)
    if is_deleted:
        what = f"{name} was deleted on node {node} and ended with exit code {code}."
        return PodEnd(
            code="deleted", cause=Cause.EVICTED, object=name, what=what, advice=_deleted_advice(), exit_code=code
        )
    if code == 0:
        return PodEnd(code="completed", cause=None, object=name, what=f"{name} completed.", exit_code=0)
    number = int(finished.get("signal") or (code - 128 if 128 < code <= 128 + signal.SIGRTMAX else 0))
    if number:
        what = f"{name} was killed by signal {number} ({_signal_name(number)}) on node {node}."
        advice = "The node or an administrator killed it; the job continues from its last checkpoint."
        return PodEnd(code="killed", cause=Cause.UNKNOWN, object=name, what=what, advice=advice, exit_code=code)
    what = f"{name} ended with exit code {code}: {message}"
    advice = "Read the learner's log on the card, or with `jupyter dlaas logs`."
    return PodEnd(code="agent_failed", cause=Cause.UNKNOWN, object=name, what=what, advice=advice, exit_code=code)


def _gone(name: str, node: str) -> PodEnd:
    what = f"Node {node or '?'} is gone, and {name} with it."
    advice = "The job continues on another node."
    return PodEnd(code="node_gone", cause=Cause.HARDWARE, object=name, what=what, advice=advice)


def _deleted_advice() -> str:
    return "The learner is replaced. To end a job, use `jupyter dlaas cancel`."


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"SIG{number}"


def _terminated(pod: Json) -> Json | None:
    """Return the end of the pod's main container, also if its node has reported it only as the previous state."""
    for entry in pod.get("status", {}).get("containerStatuses") or []:
        for state in (entry.get("state") or {}, entry.get("lastState") or {}):
            if finished := state.get("terminated"):
                return dict(finished)
    return None
