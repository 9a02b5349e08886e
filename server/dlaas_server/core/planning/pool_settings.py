"""Pool settings changed at run time by an administrator. They override the configuration and survive restarts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from dlaas_server.core.model.cluster import Node
from dlaas_server.core.model.job import Job
from dlaas_server.core.model.phrases import count
from dlaas_server.core.model.pool import Pool
from dlaas_server.core.planning.refused_seats import RefusedSeat, left_out
from dlaas_server.core.planning.suspect_devices import Suspect, out_of_service
from dlaas_server.core.scheduling.scheduler import Policy, Share
from jupyter_dlaas.wire.protocol import NotAllowed, NotFound, PoolOrder, PoolPlacement, Refused

__all__ = [
    "QUEUES_MAX",
    "Cordon",
    "Settings",
    "check_queue",
    "check_removable",
    "held_by_queue",
    "is_entitled",
    "node_named",
    "nodes_in_force",
    "policy_in_force",
    "queues_of",
]

QUEUES_MAX = 1000
DEFAULT_QUEUE = "default"


@dataclass(frozen=True, slots=True, kw_only=True)
class Cordon:
    """Node that takes no new learners. `drains`: running learners leave, too."""

    by: str
    at_s: float
    drains: bool = False

    @property
    def reason(self) -> str:
        """Reason shown for not placing learners on the node."""
        return f"being drained by {self.by}" if self.drains else f"cordoned by {self.by}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """All run-time settings, stored as one record. None, or a missing name, means: as configured."""

    order: PoolOrder | None = None
    preemption: bool | None = None
    placement: PoolPlacement | None = None
    spot_price: float | None = None
    spot_notice_s: float | None = None
    queues: Mapping[str, Share] = field(default_factory=dict)
    cordons: Mapping[str, Cordon] = field(default_factory=dict)
    suspects: Mapping[str, Suspect] = field(default_factory=dict)
    """Failed devices and nodes, by "node/device"."""
    refused: Mapping[str, RefusedSeat] = field(default_factory=dict)
    """Devices and nodes that could not take a learner, by "node/device"."""

    def with_policy(
        self,
        *,
        order: PoolOrder | None,
        preemption: bool | None,
        placement: PoolPlacement | None,
        spot_price: float | None,
        spot_notice_s: float | None,
    ) -> Settings:
        """Return the settings with these values replaced; None keeps the present value."""
        return replace(
            self,
            order=self.order if order is None else order,
            preemption=self.preemption if preemption is None else preemption,
            placement=self.placement if placement is None else placement,
            spot_price=self.spot_price if spot_price is None else spot_price,
            spot_notice_s=self.spot_notice_s if spot_notice_s is None else spot_notice_s,
        )

    def with_queue(self, name: str, share: Share) -> Settings:
        """Return the settings with this queue added or its share replaced. Raises Refused above QUEUES_MAX."""
        if name not in self.queues and len(self.queues) >= QUEUES_MAX:
            raise Refused(f"queue: the pool has the maximum of {QUEUES_MAX} queues; change or remove one of them")
        return replace(self, queues={**self.queues, name: share})

    def without_queue(self, name: str) -> Settings:
        """Return the settings without this queue."""
        return replace(self, queues={queue: share for queue, share in self.queues.items() if queue != name})

    def with_cordon(self, node: str, cordon: Cordon) -> Settings:
        """Return the settings with this node cordoned. A drain stays one until the node is uncordoned."""
        before = self.cordons.get(node)
        if before is not None and (before.drains or not cordon.drains):
            return self
        return replace(self, cordons={**self.cordons, node: cordon})

    def without_cordon(self, node: str) -> Settings:
        """Return the settings with this node uncordoned, and its failures and refusals cleared."""
        cordons = {name: c for name, c in self.cordons.items() if name != node}
        suspects = {key: suspect for key, suspect in self.suspects.items() if suspect.node != node}
        refused = {key: seat for key, seat in self.refused.items() if seat.node != node}
        if (len(cordons), len(suspects), len(refused)) == (len(self.cordons), len(self.suspects), len(self.refused)):
            return self
        return replace(self, cordons=cordons, suspects=suspects, refused=refused)


def policy_in_force(configured: Policy, settings: Settings) -> Policy:
    """Return the policy in force: the configuration, overridden by the settings."""
    return replace(
        configured,
        order=configured.order if settings.order is None else str(settings.order),
        preempts=configured.preempts if settings.preemption is None else settings.preemption,
        placement=configured.placement if settings.placement is None else settings.placement,
        spot_price=configured.spot_price if settings.spot_price is None else settings.spot_price,
        spot_notice_s=configured.spot_notice_s if settings.spot_notice_s is None else settings.spot_notice_s,
        shares={**configured.shares, **settings.queues},
    )


def nodes_in_force(nodes: Sequence[Node], settings: Settings) -> tuple[Node, ...]:
    """Return the nodes with suspects and refused seats out of service and cordons applied."""
    nodes = left_out(out_of_service(nodes, settings.suspects), settings.refused)
    if not settings.cordons:
        return tuple(nodes)
    out: list[Node] = []
    for node in nodes:
        cordon = settings.cordons.get(node.name)
        out.append(node if cordon is None else replace(node, cordoned=cordon.reason, drains=cordon.drains))
    return tuple(out)


def queues_of(policy: Policy) -> dict[str, Share]:
    """Return all queues with their shares; `default` always exists and comes first."""
    rest = sorted(policy.shares.keys() - {DEFAULT_QUEUE})
    return {name: policy.shares.get(name, Share()) for name in (DEFAULT_QUEUE, *rest)}


def held_by_queue(pool: Pool) -> Mapping[str, int]:
    """Return the number of devices that each queue's ordinary jobs hold."""
    held = Counter[str]()
    for job in pool.jobs.values():
        if not job.spec.spot:
            held[job.spec.queue] += sum(len(member.seat.devices) for member in job.gang)
    return held


def is_entitled(job: Job, held: Mapping[str, int], shares: Mapping[str, Share]) -> bool:
    """Return whether the queue stays within its guarantee if this job starts at its least size."""
    queue, weight = job.spec.queue, job.spec.learners_min * max(job.spec.gpus_per_learner, 1)
    return held.get(queue, 0) + weight <= shares.get(queue, Share()).guaranteed


def check_queue(name: str, policy: Policy) -> None:
    """Raise Refused, with the message for the user, if there is no such queue."""
    if name not in queues_of(policy):
        raise Refused(f"{_no_queue(name, policy)}. Choose one of them, or create it: jupyter dlaas queue set {name}")


def _no_queue(name: str, policy: Policy) -> str:
    queues = list(queues_of(policy))
    return (
        f"there is no queue '{name[:80]}'; the pool's queues: {', '.join(queues[:8])}{', …' if len(queues) > 8 else ''}"
    )


def check_removable(name: str, configured: Policy, settings: Settings, jobs: Iterable[Job]) -> None:
    """Raise NotFound or NotAllowed, with the message for the user, if the queue cannot be removed."""
    if name == DEFAULT_QUEUE:
        raise NotAllowed(f"the queue {DEFAULT_QUEUE} cannot be removed")
    if name in configured.shares:
        raise NotAllowed(f"the queue {name} is defined in the pool's config.toml; remove it there")
    if name not in settings.queues:
        raise NotFound(_no_queue(name, policy_in_force(configured, settings)))
    unfinished = sorted(
        (job for job in jobs if job.spec.queue == name and not job.state.is_final), key=lambda j: j.number
    )
    if unfinished:
        shown = ", ".join(job.id for job in unfinished[:3]) + (", …" if len(unfinished) > 3 else "")
        has = "has" if len(unfinished) == 1 else "have"
        raise NotAllowed(
            f"the queue {name} is in use: {count(len(unfinished), 'job')} in it {has} not ended ({shown}). "
            "Wait for them, or cancel them"
        )


def node_named(name: str, nodes: Sequence[Node]) -> Node:
    """Return the node of this name. Raises NotFound, which lists the nodes."""
    for node in nodes:
        if node.name == name:
            return node
    shown = ", ".join(node.name for node in nodes[:8]) + (", …" if len(nodes) > 8 else "")
    raise NotFound(f"there is no node '{name[:80]}'; the pool's nodes: {shown or 'none'}")
