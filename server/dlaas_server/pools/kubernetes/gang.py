"""Pods of one job at the API server, kept as its document wants them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from math import inf
from typing import Final

from dlaas_server.pools.kubernetes.api import Api, ApiError
from dlaas_server.pools.kubernetes.gang_plan import GangPlan, GangState, is_condemned, members_of, plan_gang
from dlaas_server.pools.kubernetes.job_creation import (
    ObjectRefused,
    create_job,
    create_learners,
    delete_pods,
    release_gates,
    released_members,
    write_released,
)
from dlaas_server.pools.kubernetes.ledger import Reservation, SeatTaken
from dlaas_server.pools.kubernetes.manifests.job_manifests import JobObjects
from dlaas_server.pools.kubernetes.manifests.names import GATE, Json, learner_name
from dlaas_server.pools.kubernetes.manifests.pod_manifests import LearnerPod
from dlaas_server.pools.kubernetes.pod_endings import end_of_pod
from dlaas_server.pools.kubernetes.pod_fields import gates
from dlaas_server.pools.kubernetes.pod_waits import PodWait
from jupyter_dlaas.wire.journal import Wanted
from jupyter_dlaas.wire.protocol import Failure

__all__ = ["Gang", "GangOutcome"]

NOT_FOUND: Final = 404
AGAIN_S: Final = 5.0
"""Time after which a request is repeated if the picture does not show its effect."""
ABANDONED_S: Final = 10.0
"""Time after the end of its grace period in which the deletion of a pod is confirmed by a node that answers."""
SEATS_AGAIN_S: Final = 1.0
"""Time after which seats are reserved again that another job held."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GangOutcome:
    """Result of one step."""

    lost: Mapping[int, Failure] = field(default_factory=dict)
    """All members that are known to be lost."""
    ending: Mapping[int, Failure] = field(default_factory=dict)
    """Members whose pods are being ended by others."""
    refused: Mapping[int, PodWait] = field(default_factory=dict)
    """Seats of this generation that were given up."""
    blocked: PodWait | None = None
    """Reason for which seats cannot be reserved yet."""
    due_s: float | None = None


class Gang:
    """Pods of one job. `step` blocks and may be repeated at any point; it follows each change of the picture."""

    def __init__(
        self,
        api: Api,
        job: JobObjects,
        *,
        pins: bool,
        now: Callable[[], float],
        reserve: Callable[[Reservation], None],
    ) -> None:
        """Keep the pods of a job. `pins`: pods are pinned to the nodes that the document names.

        `reserve` commits the job's seats before its pods are created or released; it may raise SeatTaken and Fenced.
        """
        self._api, self._job, self._pins, self._now, self._reserve = api, job, pins, now, reserve
        self._owner: Json | None = None
        self._wanted: Wanted | None = None
        self._released: frozenset[int] = frozenset()
        self._released_s: float | None = None
        self._left_s: float | None = None
        """Last time at which a learner that is no longer wanted still held its seat."""
        self._last: dict[int, Json] = {}
        self._refused: dict[int, PodWait] = {}
        self._given_up: set[str] = set()
        # Times at which the API server accepted a request: the picture may be older.
        self._created_s: dict[int, float] = {}
        """Creation of a pod, by member, until the picture shows the pod."""
        self._ungated_s: dict[str, float] = {}
        """Removal of a pod's gate, by uid."""
        self._deleted_s: dict[str, float] = {}
        """Deletion of a pod, by uid."""
        self._condemned_s: dict[str, float] = {}
        """Time since which a pod is being deleted on a node that does not answer, by uid."""
        self._blocked_s: float | None = None
        """Time since which seats cannot be reserved."""
        self._is_closed = False
        self._has_read = False

    def accept(self, wanted: Wanted) -> None:
        """Take a document. Another generation or goal, or the same document again, tries refused seats again."""
        if self._wanted is not None and wanted.revision < self._wanted.revision:
            return
        self._wanted = wanted
        self._refused = {}
        self._blocked_s = None

    def close(self) -> None:
        """Let the next step delete all pods: the guardian has closed the job."""
        self._is_closed = True

    def step(self, pods: Mapping[str, Json]) -> GangOutcome:
        """Plan by the pods of the job as last seen, and carry the plan out.

        Raises ApiUnreachable, and ApiError for a refusal that is not about a pod.
        """
        if self._wanted is None:
            return GangOutcome()
        plan, blocked = self._plan(pods), None
        try:
            self._carry_out(plan, pods)
        except ObjectRefused as error:
            # The quota, or a policy, does not take one of the pods: the generation's gated pods go, too.
            self._give_up(dict.fromkeys((m.member for m in self._wanted.members), error.wait), pods)
            return GangOutcome(lost={}, refused=dict(self._refused))
        except SeatTaken as error:
            blocked = self._wait_for_seats(error, pods)
        lost, ending = dict(plan.lost or {}), dict(plan.ending or {})
        again_s = [] if blocked is None else [self._now() + SEATS_AGAIN_S]
        due_s = min([*self._due_s(pods), *again_s, *([] if plan.due_s is None else [plan.due_s])], default=None)
        return GangOutcome(lost=lost, ending=ending, refused=dict(self._refused), blocked=blocked, due_s=due_s)

    # ---- shell -----------------------------------------------------------------------------------------------------

    def _plan(self, pods: Mapping[str, Json]) -> GangPlan:
        assert self._wanted is not None
        self._read_anchor()
        found = {member: self._without_gate(pod) for member, pod in members_of(pods).items()}
        for member in found:
            self._created_s.pop(member, None)
        # Also those that an engine released which ended before it could record them; not those that were given up.
        self._released |= {m for m, pod in found.items() if GATE not in gates(pod) and not self._is_given_up(pod)}
        if self._released_s is None and self._released:
            self._released_s = self._now()
        self._last |= found
        condemned = {str(pod["metadata"]["uid"]) for pod in found.values() if is_condemned(pod)}
        self._condemned_s = {uid: self._condemned_s.get(uid, self._now()) for uid in condemned}
        state = GangState(
            pods=found,
            created=frozenset(member for member, at_s in self._created_s.items() if self._is_recent(at_s)),
            last=self._last,
            released=self._released,
            released_s=self._expected_s(found),
            refused=frozenset(self._refused),
            abandoned=frozenset(m for m, pod in found.items() if self._abandoned_s(pod) <= self._now()),
            is_closed=self._is_closed,
        )
        return plan_gang(self._wanted, state, self._now(), self._job.pods.settings.bind_timeout_s)

    def _expected_s(self, pods: Mapping[int, Json]) -> float | None:
        """Return the time since which the released pods can have nodes.

        They may need the seats of learners that leave, which have the document's grace period to save.
        """
        assert self._wanted is not None
        members = {member.member for member in self._wanted.members}
        if any(member not in members and end_of_pod(pod) is None for member, pod in pods.items()):
            self._left_s = self._now()
        if self._released_s is None or self._left_s is None:
            return self._released_s
        return min(max(self._released_s, self._left_s), self._released_s + self._wanted.grace_s)

    def _read_anchor(self) -> None:
        """Read which pods an earlier engine released, before anything is decided."""
        if self._has_read:
            return
        try:
            found = self._api.get("configmaps", self._job.pods.settings.namespace, self._job.pods.name)
            self._released = released_members(found)
        except ApiError as error:
            if error.status != NOT_FOUND:
                raise
        self._has_read = True

    def _carry_out(self, plan: GangPlan, pods: Mapping[str, Json]) -> None:
        assert self._wanted is not None
        settings, found = self._job.pods.settings, members_of(pods)
        if plan.refused:
            self._give_up(plan.refused, pods)
        elif plan.delete:
            self._delete([found[member] for member in plan.delete])
        if plan.create or plan.release:
            self._reserve(self._reservation())
            self._blocked_s = None
        if plan.create:
            self._create(plan.create)
        if plan.release:
            self._record(self._released | set(plan.release))
            names = [learner_name(self._job.pods.name, member) for member in plan.release]
            release_gates(self._api, settings.namespace, names)
            self._released_s = self._now()
            self._ungated_s |= {str(found[m]["metadata"]["uid"]): self._released_s for m in plan.release}

    def _reservation(self) -> Reservation:
        """Return the seats of the wanted learners. Without pins, the cluster chooses nodes and devices."""
        assert self._wanted is not None
        seats = {str(m.member): (m.node, m.devices) if self._pins else ("", ()) for m in self._wanted.members}
        return Reservation(generation=self._wanted.generation, seats=seats)

    def _wait_for_seats(self, error: SeatTaken, pods: Mapping[str, Json]) -> PodWait | None:
        """Return why seats cannot be had while other jobs hold them; give them up after the time for binding pods."""
        assert self._wanted is not None
        settings, now_s = self._job.pods.settings, self._now()
        wait = PodWait(
            code="no_capacity",
            object=f"job {self._job.pods.job}",
            what=f"{str(error)[0].upper()}{str(error)[1:]}, whose pods still run.",
            advice="It starts as soon as they have ended.",
        )
        if self._blocked_s is None:
            self._blocked_s = now_s
        if now_s < self._blocked_s + settings.bind_timeout_s:
            return wait
        new = [member.member for member in self._wanted.members if member.member not in self._released]
        self._give_up(dict.fromkeys(new, replace(wait, advice="")), pods)
        return None

    def _create(self, members: tuple[int, ...]) -> None:
        assert self._wanted is not None
        nodes = {member.member: member.node for member in self._wanted.members}
        learners = tuple(LearnerPod(member=m, node=nodes[m] if self._pins else None) for m in members)
        pods = replace(self._job.pods, generation=self._wanted.generation)
        job = replace(self._job, pods=pods, learners=learners)
        if self._owner is not None:
            create_learners(self._api, job, self._owner, learners)
        else:
            self._owner = create_job(self._api, job)  # also completes a creation that an earlier engine began
        self._created_s |= dict.fromkeys(members, self._now())

    def _record(self, released: frozenset[int]) -> None:
        """Record releases before they happen, so that a pod that has run is never created a second time."""
        write_released(self._api, self._job.pods.settings.namespace, self._job.pods.name, released)
        self._released = released

    def _give_up(self, refused: Mapping[int, PodWait], pods: Mapping[str, Json]) -> None:
        """Delete the pods of refused seats. No process of theirs has run, so they may be created again."""
        found = members_of(pods)
        going = [found[member] for member in refused if member in found and _has_not_run(found[member])]
        ran = {member for member in refused if member in found and not _has_not_run(found[member])}
        kept = {member: wait for member, wait in refused.items() if member not in ran}
        self._given_up |= {str(pod["metadata"]["uid"]) for pod in going}
        self._delete(going)
        if self._released & kept.keys():
            self._record(self._released - kept.keys())
        self._refused = kept

    def _delete(self, pods: Iterable[Json]) -> None:
        """Delete pods, but those whose deletion was just accepted: the next picture shows them leave."""
        by_uid = {str(pod["metadata"]["uid"]): pod for pod in pods}
        due = {uid: pod for uid, pod in by_uid.items() if not self._is_recent(self._deleted_s.get(uid, -inf))}
        delete_pods(self._api, self._job.pods.settings.namespace, due.values())
        self._deleted_s |= dict.fromkeys(due, self._now())

    # ---- requests whose effect the picture does not show yet -----------------------------------------------------

    def _is_recent(self, accepted_s: float) -> bool:
        return self._now() - accepted_s < AGAIN_S

    def _without_gate(self, pod: Json) -> Json:
        """Return a pod as the API server has it, if its gate was just removed."""
        if GATE not in gates(pod) or not self._is_recent(self._ungated_s.get(str(pod["metadata"]["uid"]), -inf)):
            return pod
        others = [gate for gate in pod["spec"]["schedulingGates"] if gate.get("name") != GATE]
        return {**pod, "spec": {**pod["spec"], "schedulingGates": others}}

    def _due_s(self, pods: Mapping[str, Json]) -> Iterator[float]:
        """Yield the times at which creations are repeated (a pod that came and went between two steps is not seen).

        Also those at which pods on silent nodes count as lost.
        """
        yield from (at_s + AGAIN_S for at_s in self._created_s.values() if self._is_recent(at_s))
        yield from (at_s for pod in pods.values() if self._now() < (at_s := self._abandoned_s(pod)) < inf)

    def _abandoned_s(self, pod: Json) -> float:
        """Return the time from which a pod that is being deleted on a silent node counts as lost; inf for others.

        A node that answers kills its processes after the grace period.
        """
        grace_s = float(pod["metadata"].get("deletionGracePeriodSeconds") or 0)
        return self._condemned_s.get(str(pod["metadata"]["uid"]), inf) + grace_s + ABANDONED_S

    def _is_given_up(self, pod: Json) -> bool:
        """Return whether a pod belongs to a refused seat. Its agent may still start before the pod is gone."""
        return pod["metadata"]["uid"] in self._given_up


def _has_not_run(pod: Json) -> bool:
    """Return whether no process of a pod can have run: it waits, or its node refused it."""
    status = pod.get("status", {})
    return not any(
        (entry.get("state") or {}).keys() & {"running", "terminated"} for entry in status.get("containerStatuses") or []
    ) and status.get("phase", "Pending") in ("Pending", "Failed")
