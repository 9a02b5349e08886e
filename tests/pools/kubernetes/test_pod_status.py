"""Reasons for waiting and ends of pods, in words, from the status that Kubernetes writes."""

from __future__ import annotations

from typing import Any

import pytest

from dlaas_server.pools.kubernetes.manifests.names import Json
from dlaas_server.pools.kubernetes.pod_endings import PodEnd, end_of_pod, ending_of_pod
from dlaas_server.pools.kubernetes.pod_waits import PodWait, wait_of_pod, wait_of_refusal
from jupyter_dlaas.runtime.hosts.agent_settings import NOT_COLLECTED
from jupyter_dlaas.wire.protocol import Cause

IMAGE = "registry.example.com/torch:2"


def pod(*, node: str = "node-1", gates: tuple[str, ...] = (), deleted: bool = False, **status: Any) -> Json:
    metadata: Json = {"name": "digits-1-m0", "namespace": "ml"}
    if deleted:
        metadata["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    spec: Json = {
        "containers": [{"name": "learner", "image": IMAGE}],
        "schedulingGates": [{"name": gate} for gate in gates],
    }
    if node:
        spec["nodeName"] = node
    return {"kind": "Pod", "metadata": metadata, "spec": spec, "status": {"phase": "Pending", **status}}


def unscheduled(reason: str, message: str, **fields: Any) -> Json:
    condition = {"type": "PodScheduled", "status": "False", "reason": reason, "message": message}
    return pod(node="", conditions=[condition], **fields)


def waiting(reason: str, message: str = "") -> Json:
    scheduled = {"type": "PodScheduled", "status": "True"}
    return pod(
        conditions=[scheduled], containerStatuses=[{"state": {"waiting": {"reason": reason, "message": message}}}]
    )


def event(reason: str, message: str) -> Json:
    return {"reason": reason, "message": message}


CREATING = waiting("ContainerCreating")
SILENT = {"type": "Ready", "status": "Unknown", "reason": "NodeStatusUnknown"}
UNREADY = [{"type": "Ready", "status": "False"}, {"type": "ContainersReady", "status": "True"}]
WAITS = [
    ("gang", unscheduled("SchedulingGated", "", gates=("jupyter-dlaas/gang",)), (), "other learners of its gang"),
    ("gated", unscheduled("SchedulingGated", "", gates=("kueue.x-k8s.io/admission",)), (), "kueue.x-k8s.io/admission"),
    ("no_capacity", unscheduled("Unschedulable", "0/2 nodes are available: 2 Insufficient nvidia.com/gpu."), (),
     "no node has room: 0/2 nodes are available: 2 Insufficient nvidia.com/gpu."),
    ("taint", unscheduled("Unschedulable", "0/1 nodes are available: 1 node(s) had untolerated taint {gpu: }."), (),
     "untolerated taint {gpu: }"),
    ("affinity", unscheduled("Unschedulable", "0/1 nodes are available: 1 node(s) didn't match Pod's node affinity."),
     (), "no permitted node is left"),
    ("affinity", unscheduled("Unschedulable", "0/1: 1 node(s) didn't satisfy plugin(s) [NodeAffinity]."),
     (), "no permitted node is left"),
    ("no_nodes", unscheduled("Unschedulable", "0/0 nodes are available."), (), "the cluster has no nodes"),
    ("volume_claim", unscheduled("Unschedulable", "pod has unbound immediate PersistentVolumeClaims."), (), "volume"),
    ("preempting", unscheduled("Unschedulable", "0/1", nominatedNodeName="node-2"), (), "pods on node node-2"),
    ("image_pull", waiting("ImagePullBackOff", "Back-off pulling image: not found"), (), IMAGE),
    ("image_credentials", waiting("ErrImagePull", "pull access denied, 401 Unauthorized"), (), "the registry refuses"),
    ("image_name", waiting("InvalidImageName", "must be lowercase"), (), "valid image name: must be lowercase."),
    ("image_absent", waiting("ErrImageNeverPull", "pull policy of Never"), (), f"does not have the image {IMAGE}"),
    ("container_config", waiting("CreateContainerConfigError", 'secret "a" not found'), (), 'secret "a" not found.'),
    ("container_create", waiting("RunContainerError", "no such file"), (), "create its container: no such file."),
    ("crash_loop", waiting("CrashLoopBackOff", "back-off 10s"), (), "again and again"),
    ("volume", CREATING, (event("FailedMount", 'configmap "x" not found'),), 'configmap "x" not found.'),
    ("sandbox", CREATING, (event("FailedCreatePodSandBox", "no address"),), "no address."),
    ("pulling", CREATING, (event("Scheduled", "ok"), event("Pulling", "Pulling image")), "is being pulled"),
    ("starting", CREATING, (event("Pulling", ""), event("Pulled", "")), "starts on node node-1"),
    ("terminating", pod(deleted=True), (), "is being deleted"),
    ("node_silent", pod(phase="Running", conditions=[SILENT]), (), "node node-1 does not answer"),
    ("node_silent", pod(phase="Running", conditions=UNREADY), (), "node node-1 does not answer"),
]  # fmt: skip


@pytest.mark.parametrize(("code", "found", "events", "words"), WAITS, ids=[row[0] for row in WAITS])
def test_waiting_pods_name_cause_object_and_fix(code: str, found: Json, events: tuple[Json, ...], words: str) -> None:
    reason = wait_of_pod(found, events)

    assert reason is not None
    assert (reason.code, words in reason.what) == (code, True), reason
    assert reason.object in ("pod ml/digits-1-m0", "node node-1")
    assert reason.object in reason.what
    is_patience_enough = code in ("gang", "preempting", "pulling", "starting", "terminating")
    assert bool(reason.advice) != is_patience_enough
    assert "{" not in reason.advice


REFUSALS = [
    ("quota", "Forbidden", 'pods "a" is forbidden: exceeded quota: gpus, requested: requests.nvidia.com/gpu=2', "gpus"),
    ("limit_range", "Forbidden", "maximum memory usage per Container is 1Gi, but limit is 4Gi", "1Gi"),
    ("pod_security", "Forbidden", 'pods "a" is forbidden: violates PodSecurity "restricted:latest"', "restricted"),
    ("forbidden", "Forbidden", 'pods is forbidden: User "ana" cannot create resource "pods"', "ana"),
    ("admission", "Forbidden", 'admission webhook "policy.example.com" denied the request', "policy.example.com"),
    ("namespace_ends", "Forbidden", "unable to create content in namespace ml because it is being terminated", "ml"),
    ("namespace_ends", "NotFound", 'namespaces "ml" not found', "ml"),
    ("refused", "Invalid", "spec.containers[0].image: Required value", "Required value"),
]  # fmt: skip


@pytest.mark.parametrize(("code", "reason", "message", "words"), REFUSALS)
def test_refused_pods_name_cause_object_and_fix(code: str, reason: str, message: str, words: str) -> None:
    found = wait_of_refusal(pod(node=""), reason, message)

    assert (found.code, found.object) == (code, "pod ml/digits-1-m0")
    assert "pod ml/digits-1-m0" in found.what
    assert words in found.what
    assert found.advice


def ended(code: int, reason: str = "Error", message: str = "", phase: str = "Failed", **fields: Any) -> Json:
    finished = {"exitCode": code, "reason": reason, "message": message}
    return pod(phase=phase, containerStatuses=[{"state": {"terminated": finished}}], **fields)


def disrupted(reason: str, code: int = 143, **fields: Any) -> Json:
    condition = {"type": "DisruptionTarget", "status": "True", "reason": reason, "message": "by the cluster"}
    return ended(code, conditions=[condition], **fields)


def by_node(reason: str, message: str) -> Json:
    return pod(phase="Failed", reason=reason, message=message)


DRAINED: Json = disrupted("EvictionByEvictionAPI")["status"]["conditions"][0]
ENDS = [
    ("completed", None, ended(0, "Completed", phase="Succeeded"), "completed"),
    ("agent_failed", Cause.UNKNOWN, ended(3, message="Traceback"), "exit code 3: Traceback."),
    ("host_memory", Cause.RESOURCES, ended(137, "OOMKilled"), "memory limit"),
    ("killed", Cause.UNKNOWN, ended(137), "signal 9 (SIGKILL)"),
    ("image_without_python", Cause.PLATFORM, ended(128, "StartError", "python3: not found"), "python3: not found"),
    ("wrong_python", Cause.PLATFORM, ended(41, message="The image has Python 3.9, but …"), "The image has Python 3.9"),
    ("result_not_collected", Cause.PLATFORM, ended(NOT_COLLECTED), "result not collected"),
    ("evicted", Cause.EVICTED, by_node("Evicted", "The node was low on resource: memory."), "low on resource: memory."),
    ("evicted_disk", Cause.EVICTED, by_node("Evicted", "Pod ephemeral local storage usage exceeds"), "ephemeral"),
    ("node_shutdown", Cause.EVICTED, by_node("Terminated", "Pod was terminated in response to imminent node shutdown."),
     "was shut down"),
    ("deadline", Cause.PLATFORM, by_node("DeadlineExceeded", "Pod was active on the node longer"), "exceeded the time"),
    ("seat_refused", Cause.PLATFORM, by_node("OutOfnvidia.com/gpu", "Node didn't have enough resource"), "refused"),
    ("seat_refused", Cause.PLATFORM, by_node("UnexpectedAdmissionError", "Allocate failed"), "Allocate failed."),
    ("preempted", Cause.EVICTED, disrupted("PreemptionByScheduler"), "pod of higher priority"),
    ("node_taint", Cause.EVICTED, disrupted("DeletionByTaintManager"), "no longer usable"),
    ("drained", Cause.EVICTED, disrupted("EvictionByEvictionAPI"), "as in a drain"),
    ("drained", Cause.EVICTED, disrupted("EvictionByEvictionAPI", 0, phase="Succeeded", deleted=True), "as in a drain"),
    ("node_gone", Cause.EVICTED, disrupted("DeletionByPodGC"), "is gone, and pod"),
    ("node_gone", Cause.HARDWARE, by_node("NodeLost", "Node is unresponsive"), "Node node-1 is gone"),
    ("node_gone", Cause.HARDWARE, ended(137, "ContainerStatusUnknown"), "Node node-1 is gone"),
    ("deleted", Cause.EVICTED, ended(143, deleted=True), "was deleted on node node-1"),
]  # fmt: skip


@pytest.mark.parametrize(("code", "cause", "found", "words"), ENDS, ids=[row[0] for row in ENDS])
def test_ended_pods_name_cause_object_and_fix(code: str, cause: Cause | None, found: Json, words: str) -> None:
    end = end_of_pod(found)

    assert end is not None
    assert (end.code, end.cause, words in end.what) == (code, cause, True), end
    assert "pod ml/digits-1-m0" in end.what
    assert (end.failure is None) == (cause is None)
    assert bool(end.advice) == (cause is not None)


@pytest.mark.parametrize("found", [pod(), pod(phase="Running"), pod(phase="Running", deleted=True), CREATING])
def test_pods_that_may_run_have_no_end(found: Json) -> None:
    assert end_of_pod(found) is None


@pytest.mark.parametrize(("found", "code"), [
    (pod(phase="Running"), None),
    (pod(phase="Running", deleted=True), "deleted"),
    (pod(phase="Running", deleted=True, conditions=[DRAINED]), "drained"),
    (pod(phase="Running", conditions=[DRAINED]), "drained"),
    (ended(143, deleted=True), None),
])  # fmt: skip
def test_a_pod_that_is_being_ended_says_why(found: Json, code: str | None) -> None:
    end = ending_of_pod(found)

    assert (None if end is None else end.code) == code
    assert end is None or ("pod ml/digits-1-m0" in end.what and end.failure is not None)


def test_a_pod_deleted_without_a_node_refuses_its_seat() -> None:
    before, after = end_of_pod(pod(node=""), is_deleted=True), end_of_pod(pod(phase="Running"), is_deleted=True)

    assert isinstance(before, PodEnd)
    assert isinstance(after, PodEnd)
    assert (before.is_seat_refused, after.is_seat_refused) == (True, False)


def test_a_restarted_container_shows_its_previous_end() -> None:
    finished = {"exitCode": 137, "reason": "OOMKilled"}
    found = pod(phase="Failed", containerStatuses=[{"state": {}, "lastState": {"terminated": finished}}])
    end = end_of_pod(found)

    assert end is not None
    assert end.code == "host_memory"


def test_running_pods_wait_for_nothing() -> None:
    assert wait_of_pod(pod(phase="Running")) is None
    assert isinstance(wait_of_pod(pod(node="")), PodWait)


def test_a_gang_of_one_waits_for_no_others() -> None:
    gated = unscheduled("SchedulingGated", "", gates=("jupyter-dlaas/gang",))
    alone, two = wait_of_pod(gated, learners=1), wait_of_pod(gated, learners=2)
    assert alone is not None
    assert two is not None
    assert "other learners" in two.what
    assert "other learners" not in alone.what
