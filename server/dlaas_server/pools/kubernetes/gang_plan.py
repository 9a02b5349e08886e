"""Pods of a job: which to create, release and delete, and which members and seats are lost. Pure.

A member's pod is created once, because members are never reused. The pods of a generation are released together when
all of them exist, and given up together when one of them gets no node in time. A pod that is missing has ended only if
the picture is known and the pod was released before.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from dlaas_server.pools.kubernetes.manifests.names import GATE, LABEL_MEMBER, Json, described
from dlaas_server.pools.kubernetes.pod_endings import end_of_pod, ending_of_pod
from dlaas_server.pools.kubernetes.pod_fields import gates
from dlaas_server.pools.kubernetes.pod_waits import NODE_SILENT, PodWait, wait_of_pod
from jupyter_dlaas.wire.journal import Goal, Wanted
from jupyter_dlaas.wire.protocol import Cause, Failure

__all__ = ["GangPlan", "GangState", "grows", "has_seats", "is_condemned", "members_of", "plan_gang", "refused_wait"]

DELETED: Final = Failure(
    cause=Cause.EVICTED,
    code="deleted",
    what="Its pod was deleted.",
    advice="The learner is replaced. To end a job, use `jupyter dlaas cancel`.",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class GangState:
    """Job's pods as last seen, and what the pool has done so far."""

    pods: Mapping[int, Json]
    """Pods of learners by member."""
    created: frozenset[int] = frozenset()
    """Members whose pods were just created, and are not in the picture yet."""
    last: Mapping[int, Json] = field(default_factory=dict)
    """Pods as last seen by this engine, also those that are gone."""
    released: frozenset[int] = frozenset()
    """Members whose pods were released; kept at the job's anchor, so that it outlives the engine."""
    released_s: float | None = None
    """Time of the last release; None: before this engine was started."""
    refused: frozenset[int] = frozenset()
    """Members of this generation whose seats were given up."""
    abandoned: frozenset[int] = frozenset()
    """Members whose pods are overdue to be deleted on a node that does not answer."""
    is_closed: bool = False
    """True once the guardian has closed the job: no learner is left."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GangPlan:
    """Steps towards the wanted pods. Each is repeatable."""

    create: tuple[int, ...] = ()
    release: tuple[int, ...] = ()
    delete: tuple[int, ...] = ()
    lost: Mapping[int, Failure] | None = None
    """Members whose pods have ended without their agent's word."""
    ending: Mapping[int, Failure] | None = None
    """Wanted members whose pods are being ended by others, each with the reason."""
    refused: Mapping[int, PodWait] | None = None
    """Members whose seats are given up, each with the reason of the one that blocked the gang."""
    due_s: float | None = None
    """Time at which to plan again, even if nothing changes."""


def plan_gang(wanted: Wanted, state: GangState, now_s: float, bind_timeout_s: float) -> GangPlan:
    """Return the next steps for the pods of a job. The picture of its pods must be known."""
    members = [member.member for member in wanted.members] if wanted.goal is Goal.RUN else []
    if state.is_closed:
        return GangPlan(delete=tuple(m for m, pod in sorted(state.pods.items()) if not _is_leaving(pod)))
    lost = _lost(state)
    surplus = [m for m, pod in state.pods.items() if m not in members and _may_go(pod, m, state)]
    given_up = [m for m in state.pods if m in state.refused]
    delete = tuple(m for m in sorted({*surplus, *given_up}) if not _is_leaving(state.pods[m]))
    if any(member in state.refused for member in members):
        return GangPlan(delete=delete, lost=lost)
    refused = _refused(members, state, now_s, bind_timeout_s)
    if refused:
        return GangPlan(
            delete=tuple(sorted({*delete, *(refused.keys() & state.pods.keys())})), lost=lost, refused=refused
        )
    missing = [m for m in members if m not in state.pods and m not in state.released]
    create = tuple(m for m in missing if m not in state.created)
    gated = [m for m in members if m in state.pods and GATE in gates(state.pods[m])]
    is_whole = not missing and not any(_is_leaving(state.pods[m]) for m in gated)
    unbound = [m for m in members if m in state.released and m in state.pods and not _is_bound(state.pods[m])]
    due_s = state.released_s + bind_timeout_s if unbound and state.released_s is not None else None
    return GangPlan(
        create=create,
        release=tuple(gated) if is_whole else (),
        delete=delete,
        lost=lost,
        ending=_ending(members, state),
        due_s=due_s,
    )


def grows(before: Wanted | None, wanted: Wanted) -> bool:
    """Return whether a document adds learners to running ones, which continue if the seats cannot be had."""
    if before is None or not before.goal is wanted.goal is Goal.RUN:
        return False
    old, new = ({member.member for member in document.members} for document in (before, wanted))
    return bool(old & new) and bool(new - old)


def has_seats(wanted: Wanted, pods: Mapping[int, Json]) -> bool:
    """Return whether all wanted pods have their nodes."""
    return all(member.member in pods and _is_bound(pods[member.member]) for member in wanted.members)


def refused_wait(pod: Json, events: Sequence[Json] = ()) -> PodWait:
    """Return why a pod got no node, for the record of its refused seat."""
    end = end_of_pod(pod)
    if end is not None and end.is_seat_refused:
        return PodWait(code=end.code, object=end.object, what=end.what, advice=end.advice)
    wait = wait_of_pod(pod, events)
    assert wait is not None, "a pod without a node waits"
    return wait


def _lost(state: GangState) -> dict[int, Failure]:
    """Return the members that can send no more word: their pods ended badly, or are gone after their release."""
    found = {}
    for member in sorted(state.released - state.refused):
        pod = state.pods.get(member)
        if pod is None:
            last = end_of_pod(state.last[member], is_deleted=True) if member in state.last else None
            found[member] = (None if last is None else last.failure) or DELETED
            continue
        end = end_of_pod(pod)
        failure = None if end is None or end.is_seat_refused else end.failure
        if member in state.abandoned:
            failure = failure or _abandoned(pod)
        if failure is not None:
            found[member] = failure
    return found


def _abandoned(pod: Json) -> Failure:
    """Return the failure of a pod that may still run, but was to end: its seat is free only when it is gone."""
    node = pod["spec"].get("nodeName", "?")
    what = f"Node {node} does not answer, and has not confirmed the deletion of {described(pod)}."
    advice = f"The job continues on another node. If the machine is gone for good: kubectl delete node {node}."
    return Failure(cause=Cause.EVICTED, code="node_silent", what=what, advice=advice)


def is_condemned(pod: Json) -> bool:
    """Return whether a pod is being deleted on a node that does not answer."""
    wait = wait_of_pod(pod)
    return _is_leaving(pod) and wait is not None and wait.code == NODE_SILENT


def _ending(members: Sequence[int], state: GangState) -> dict[int, Failure]:
    found = {}
    for member in members:
        end = ending_of_pod(state.pods[member]) if member in state.pods and member in state.released else None
        if end is not None and end.failure is not None:
            found[member] = end.failure
    return found


def _refused(members: Sequence[int], state: GangState, now_s: float, bind_timeout_s: float) -> dict[int, PodWait]:
    """Return the seats to give up: all members that this generation added, once one of them is refused."""
    new = [m for m in members if m in state.released and m in state.pods]
    blocked = [m for m in new if (end := end_of_pod(state.pods[m])) is not None and end.is_seat_refused]
    is_late = state.released_s is not None and now_s >= state.released_s + bind_timeout_s
    unbound = [m for m in new if not _is_bound(state.pods[m])]
    if not blocked and is_late:
        blocked = [m for m in unbound if not refused_wait(state.pods[m]).is_moving]
    if not blocked:
        return {}
    reason = refused_wait(state.pods[blocked[0]])
    starting = [m for m in new if _has_not_run(state.pods[m])]
    return dict.fromkeys(sorted({*blocked, *starting}), reason)


def _may_go(pod: Json, member: int, state: GangState) -> bool:
    """Return whether a pod that is not wanted may be deleted: its learner has left, or never ran."""
    return member not in state.released or end_of_pod(pod) is not None or not _is_bound(pod)


def _is_leaving(pod: Json) -> bool:
    """Return whether a pod is being deleted. Its name is free again when it is gone."""
    return bool(pod["metadata"].get("deletionTimestamp"))


def _is_bound(pod: Json) -> bool:
    return bool(pod.get("spec", {}).get("nodeName"))


def _has_not_run(pod: Json) -> bool:
    return bool(pod.get("status", {}).get("phase", "Pending") == "Pending")


def members_of(pods: Mapping[str, Json]) -> dict[int, Json]:
    """Return learner pods by member, from pods by name."""
    found = {}
    for pod in pods.values():
        label = (pod["metadata"].get("labels") or {}).get(LABEL_MEMBER, "")
        if label.isdigit():
            found[int(label)] = pod
    return found
