"""Reasons for which a pod does not run yet: derived from the pod, its events and refusals of the API. Pure.

Each reason names the object and the fix. The texts of scheduler, kubelet and admission are quoted, never replaced.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from dlaas_server.pools.kubernetes.manifests.names import GATE, Json, described
from dlaas_server.pools.kubernetes.pod_fields import condition, gates, pinned_node, sentence

__all__ = ["NODE_SILENT", "PodWait", "wait_of_pod", "wait_of_refusal"]


@dataclass(frozen=True, slots=True, kw_only=True)
class PodWait:
    """Reason why a pod does not run yet."""

    code: str
    """Stable code, such as "image_pull"."""
    object: str
    """Kind and name of the object that waits or blocks: "pod ml/digits-1-m0"."""
    what: str
    """Sentence that says what it waits for."""
    advice: str = ""
    """Sentence that says what to do; empty if waiting is enough."""
    is_moving: bool = False
    """True while the cluster works on it, as in an image pull: this time does not count against a gang."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Row:
    """Row of a table: a reason of Kubernetes and a pattern of its message, and the words for it."""

    code: str
    reason: str
    message: str = ""
    what: str
    advice: str = ""
    is_moving: bool = False


NODE_SILENT: Final = "node_silent"
"""Code of the reason that a pod's node does not answer."""
_DESCRIBE: Final = "For details: kubectl describe {object}."
_CONTAINER: Final[tuple[_Row, ...]] = (
    _Row(
        code="image_name",
        reason="InvalidImageName",
        what="{object}: {image} is not a valid image name: {message}",
        advice="Correct `image` in section [kubernetes] of the pool's config.toml.",
    ),
    _Row(
        code="image_credentials",
        reason="ErrImagePull|ImagePullBackOff",
        message=r"\b(401|403)\b|[Uu]nauthorized|authorization failed|[Dd]enied|pull access",
        what="{object}: the registry refuses the image {image}: {message}",
        advice="Name a Secret with the registry's credentials under `image_pull_secrets`, or correct `image`.",
    ),
    _Row(
        code="image_absent",
        reason="ErrImageNeverPull",
        what="{object}: its node does not have the image {image}, and may not pull it: {message}",
        advice="Load the image onto the nodes; a policy of the cluster sets `imagePullPolicy: Never`.",
    ),
    _Row(
        code="image_pull",
        reason="ErrImagePull|ImagePullBackOff|RegistryUnavailable|SignatureValidationFailed",
        what="{object}: the image {image} cannot be pulled: {message}",
        advice="Check that the image exists and that nodes reach its registry; `image` is in the pool's config.toml.",
    ),
    _Row(
        code="container_config",
        reason="CreateContainerConfigError",
        what="{object}: its container cannot be configured: {message}",
        advice="Create the missing object, or cancel and resubmit the job.",
    ),
    _Row(
        code="container_create",
        reason="CreateContainerError|RunContainerError|PreCreateHookError|PreStartHookError|PostStartHookError",
        what="{object}: the node cannot create its container: {message}",
        advice="Check that the image has `python3` on its PATH. " + _DESCRIBE,
    ),
    _Row(
        code="crash_loop",
        reason="CrashLoopBackOff",
        what="{object}: its container ends again and again: {message}",
        advice="Read its log: kubectl logs {object} --previous.",
    ),
)
_EVENTS: Final[tuple[_Row, ...]] = (
    _Row(
        code="volume_claim",
        reason="FailedAttachVolume|ProvisioningFailed",
        what="{object}: a volume cannot be attached: {message}",
        advice="Check the storage class, and whether another node still holds the volume.",
    ),
    _Row(
        code="volume",
        reason="FailedMount",
        what="{object}: a volume cannot be mounted: {message}",
        advice="Create the missing object, or cancel and resubmit the job.",
    ),
    _Row(
        code="sandbox",
        reason="FailedCreatePodSandBox",
        what="{object}: the node cannot set up the pod's network or sandbox: {message}",
        advice="The node may be broken: cordon it with kubectl, then delete the pod.",
    ),
    _Row(
        code="pulling",
        reason="Pulling",
        what="{object}: the image {image} is being pulled.",
        is_moving=True,
    ),
)
_UNSCHEDULABLE: Final[tuple[_Row, ...]] = (
    _Row(
        code="volume_claim",
        reason="Unschedulable",
        message=r"unbound immediate PersistentVolumeClaims|persistentvolumeclaim .* not found|volume node affinity",
        what="{object}: its volume is not available: {message}",
        advice="Check `storage_class` in the pool's config.toml and the claim: kubectl get pvc.",
    ),
    _Row(
        code="no_nodes",
        reason="Unschedulable",
        message=r"^0/0 nodes|no nodes available",
        what="{object}: the cluster has no nodes: {message}",
        advice="Add nodes to the cluster; the pod starts by itself then.",
    ),
    _Row(
        code="no_capacity",
        reason="Unschedulable",
        message=r"Insufficient |Too many pods",
        what="{object}: no node has room: {message}",
        advice="Wait until other pods end, add nodes, or request less.",
    ),
    _Row(
        code="taint",
        reason="Unschedulable",
        message=r"untolerated taint|node\(s\) were unschedulable",
        what="{object}: its nodes take no pods: {message}",
        advice="Uncordon the nodes, or add [[kubernetes.tolerations]] to the pool's config.toml.",
    ),
    _Row(
        code="affinity",
        reason="Unschedulable",
        message=r"node affinity|NodeAffinity|node selector|topology spread|pod (anti-)?affinity",
        what="{object}: no permitted node is left: {message}",
        advice="Check `node_selector` in the pool's config.toml. A node that has gone is replaced at the next attempt.",
    ),
    _Row(
        code="unschedulable",
        reason="Unschedulable|SchedulerError",
        what="{object}: the scheduler finds no node: {message}",
        advice=_DESCRIBE,
    ),
)
_REFUSALS: Final[tuple[_Row, ...]] = (
    _Row(
        code="quota",
        reason="Forbidden",
        message=r"exceeded quota: (?P<name>[\w.-]+)|failed quota",
        what="{object} exceeds a quota of the namespace: {message}",
        advice="Wait until other pods end, request less, or ask the cluster's administrators for a larger quota.",
    ),
    _Row(
        code="limit_range",
        reason="Forbidden",
        message=r"(maximum|minimum) .* usage per (Container|Pod)",
        what="{object} violates a LimitRange of the namespace: {message}",
        advice="Request an amount within the limits with --cpus and --memory.",
    ),
    _Row(
        code="pod_security",
        reason="Forbidden",
        message=r"violates PodSecurity",
        what="The namespace's Pod Security standard refuses {object}: {message}",
        advice="The pool's pods follow the restricted standard; a policy of the cluster is stricter or changes pods.",
    ),
    _Row(
        code="forbidden",
        reason="Forbidden",
        message=r"User .* cannot ",
        what="The pool may not create {object}: {message}",
        advice="Apply the pool's Role again: jupyter dlaas k8s manifests | kubectl apply -f -",
    ),
    _Row(
        code="admission",
        reason="Forbidden|Invalid|BadRequest|InternalError|AdmissionRefused",
        message=r"admission webhook|denied the request|ValidatingAdmissionPolicy",
        what="An admission policy of the cluster refuses {object}: {message}",
        advice="Ask the cluster's administrators which settings the policy requires.",
    ),
    _Row(
        code="namespace_ends",
        reason="Forbidden|NotFound",
        message=r"being terminated|namespaces \"[^\"]+\" not found",
        what="{object} cannot be created, because its namespace is missing or is being deleted: {message}",
        advice="Create the namespace: jupyter dlaas k8s manifests | kubectl apply -f -",
    ),
    _Row(
        code="refused",
        reason=".*",
        what="The API server refuses {object}: {message}",
        advice="This is a fault of the pool if its version of Kubernetes is 1.30 or newer; please report it.",
    ),
)


def wait_of_refusal(item: Json, reason: str, message: str) -> PodWait:
    """Return why the API server does not accept an object, from the reason and the message of its answer."""
    return _first(_REFUSALS, item, reason, message, "")


def wait_of_pod(pod: Json, events: Sequence[Json] = (), *, learners: int = 0) -> PodWait | None:
    """Return what a pod waits for; None if its containers run or have ended. `events` are the pod's, oldest first.

    `learners`: size of the pod's gang, if it is known.
    """
    status, name = pod.get("status", {}), described(pod)
    lost = _lost_node(pod)
    if lost is not None:
        return lost
    if status.get("phase", "Pending") != "Pending":
        return None
    if pod["metadata"].get("deletionTimestamp"):
        return PodWait(code="terminating", object=name, what=f"{name} is being deleted.", is_moving=True)
    container = _first_container(pod)
    image = str(container.get("image", ""))
    for state in _container_states(pod):
        waiting = state.get("waiting", {})
        if row := _match(_CONTAINER, str(waiting.get("reason", "")), str(waiting.get("message", ""))):
            return _filled(row, name, str(waiting.get("message", "")), image)
    scheduled = condition(pod, "PodScheduled")
    if scheduled.get("status") == "True":
        return _of_events(name, image, events, pod)
    reason = str(scheduled.get("reason", ""))
    if reason == "SchedulingGated" or gates(pod):
        return _gated(pod, name, learners)
    if status.get("nominatedNodeName"):
        what = f"{name} waits until lower-priority pods on node {status['nominatedNodeName']} have ended."
        return PodWait(code="preempting", object=name, what=what, is_moving=True)
    if reason:
        found = _first(_UNSCHEDULABLE, pod, reason, str(scheduled.get("message", "")), image)
        node = pinned_node(pod)  # the scheduler counts nodes and names none
        return found if node is None else replace(found, what=f"{found.what} It is planned on node {node}.")
    return PodWait(code="scheduling", object=name, what=f"{name} waits for the cluster's scheduler.")


def _gated(pod: Json, name: str, learners: int) -> PodWait:
    others = [gate for gate in gates(pod) if gate != GATE]
    if others:
        what = f"{name} is held by the scheduling gate {others[0]}."
        return PodWait(code="gated", object=name, what=what, advice="The gate's owner, such as Kueue, must admit it.")
    what = f"{name} waits for the other learners of its gang."
    if learners == 1:
        what = f"{name} was created and is about to be released to the cluster's scheduler."
    return PodWait(code="gang", object=name, what=what)


def _lost_node(pod: Json) -> PodWait | None:
    """Return that the pod's node does not answer: the pod may still run, so nothing is known about its end."""
    ready, containers = condition(pod, "Ready").get("status"), condition(pod, "ContainersReady").get("status")
    # The node controller sets Ready alone to False; a kubelet sets both conditions.
    is_silent = ready == "Unknown" or (ready == "False" and containers == "True")
    if not is_silent and pod.get("status", {}).get("reason") != "NodeLost":
        return None
    node = pod.get("spec", {}).get("nodeName", "?")
    what = f"{described(pod)}: node {node} does not answer. The pod may still run there."
    advice = f"If the machine is gone for good: kubectl delete node {node}."
    return PodWait(code=NODE_SILENT, object=f"node {node}", what=what, advice=advice)


def _of_events(name: str, image: str, events: Sequence[Json], pod: Json) -> PodWait:
    """Return what a pod on its node waits for, by its newest event that says so."""
    for event in reversed(events):
        reason, message = str(event.get("reason", "")), str(event.get("message", ""))
        if reason in ("Pulled", "Created", "Started"):
            break
        if row := _match(_EVENTS, reason, message):
            return _filled(row, name, message, image)
    node = pod.get("spec", {}).get("nodeName", "?")
    return PodWait(code="starting", object=name, what=f"{name} starts on node {node}.", is_moving=True)


def _first(rows: Sequence[_Row], item: Json, reason: str, message: str, image: str) -> PodWait:
    row = _match(rows, reason, message)
    assert row is not None, "the last row of the table matches everything"
    return _filled(row, described(item), message, image)


def _match(rows: Sequence[_Row], reason: str, message: str) -> _Row | None:
    for row in rows:
        if re.fullmatch(row.reason, reason) and re.search(row.message, message):
            return row
    return None


def _filled(row: _Row, name: str, message: str, image: str) -> PodWait:
    words = {"object": name, "message": sentence(message), "image": image}
    return PodWait(
        code=row.code,
        object=name,
        what=row.what.format(**words),
        advice=row.advice.replace("{object}", _for_kubectl(name)),
        is_moving=row.is_moving,
    )


def _for_kubectl(name: str) -> str:
    """Return "pod ml/a" as kubectl takes it: "pod a -n ml"."""
    kind, _, place = name.partition(" ")
    namespace, _, own = place.rpartition("/")
    return f"{kind} {own} -n {namespace}" if namespace else name


def _first_container(pod: Json) -> Json:
    containers: list[Json] = pod.get("spec", {}).get("containers") or [{}]
    return containers[0]


def _container_states(pod: Json) -> list[Json]:
    status = pod.get("status", {})
    kinds = ("initContainerStatuses", "containerStatuses")
    return [entry.get("state") or {} for kind in kinds for entry in status.get(kind) or []]
