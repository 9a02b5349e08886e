"""What was set at run time by who looks after the pool: it goes before the configuration, and outlives the engine."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from dlaas_server.core.model.cluster import Node
from dlaas_server.core.model.job import Job
from dlaas_server.core.model.phrases import count
from dlaas_server.core.model.pool import Pool
from dlaas_server.core.planning.suspect_devices import Suspect, out_of_service
from dlaas_server.core.scheduling.scheduler import Policy, Share
from jupyter_dlaas.wire.protocol import NotAllowed, NotFound, PoolOrder, PoolPlacement, Refused

__all__ = [
    "QUEUES_MOST",
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

QUEUES_MOST = 1000
DEFAULT_QUEUE = "default"


@dataclass(frozen=True, slots=True, kw_only=True)
class Cordon:
    """A node that takes no new learners. `drains`: those that are there leave, too."""

    by: str
    at_s: float
    drains: bool = False

    @property
    def reason(self) -> str:
        """Why nothing is placed there, in words."""
        return f"being drained by {self.by}" if self.drains else f"cordoned by {self.by}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """The whole of it, kept as one record. A field that is None, or a name that is missing: as configured."""

    order: PoolOrder | None = None
    preemption: bool | None = None
    placement: PoolPlacement | None = None
    spot_price: float | None = None
    spot_notice_s: float | None = None
    queues: Mapping[str, Share] = field(default_factory=dict)
    cordons: Mapping[str, Cordon] = field(default_factory=dict)
    suspects: Mapping[str, Suspect] = field(default_factory=dict)
    """What failed under jobs, by node and device."""

    def with_policy(
        self,
        *,
        order: PoolOrder | None,
        preemption: bool | None,
        placement: PoolPlacement | None,
        spot_price: float | None,
        spot_notice_s: float | None,
    ) -> Settings:
        """Another order, placement, price or notice of spot jobs, or (not) preempting; what is None stays."""
        return replace(
            self,
            order=self.order if order is None else order,
            preemption=self.preemption if preemption is None else preemption,
            placement=self.placement if placement is None else placement,
            spot_price=self.spot_price if spot_price is None else spot_price,
            spot_notice_s=self.spot_notice_s if spot_notice_s is None else spot_notice_s,
        )

    def with_queue(self, name: str, share: Share) -> Settings:
        """A queue, new or with another share. Raises Refused beyond the bound."""
        if name not in self.queues and len(self.queues) >= QUEUES_MOST:
            raise Refused(f"queue: there are {QUEUES_MOST} queues already; set the share of one of them")
        return replace(self, queues={**self.queues, name: share})

    def without_queue(self, name: str) -> Settings:
        """The queue as if it had never been set."""
        return replace(self, queues={queue: share for queue, share in self.queues.items() if queue != name})

    def with_cordon(self, node: str, cordon: Cordon) -> Settings:
        """The node takes nothing new; a drain stays one until it is taken back."""
        before = self.cordons.get(node)
        if before is not None and (before.drains or not cordon.drains):
            return self
        return replace(self, cordons={**self.cordons, node: cordon})

    def without_cordon(self, node: str) -> Settings:
        """The node takes learners again, and what failed there is trusted again."""
        cordons = {name: c for name, c in self.cordons.items() if name != node}
        suspects = {key: one for key, one in self.suspects.items() if one.node != node}
        if (len(cordons), len(suspects)) == (len(self.cordons), len(self.suspects)):
            return self
        return replace(self, cordons=cordons, suspects=suspects)


def policy_in_force(configured: Policy, settings: Settings) -> Policy:
    """How the pool is shared: as configured, but for what was set."""
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
    """The nodes as the pool sees them, but for what was cordoned, or failed."""
    nodes = out_of_service(nodes, settings.suspects)
    if not settings.cordons:
        return tuple(nodes)
    out: list[Node] = []
    for node in nodes:
        cordon = settings.cordons.get(node.name)
        out.append(node if cordon is None else replace(node, cordoned=cordon.reason, drains=cordon.drains))
    return tuple(out)


def queues_of(policy: Policy) -> dict[str, Share]:
    """Every queue with its share; `default` is always there, and first."""
    rest = sorted(policy.shares.keys() - {DEFAULT_QUEUE})
    return {name: policy.shares.get(name, Share()) for name in (DEFAULT_QUEUE, *rest)}


def held_by_queue(pool: Pool) -> Mapping[str, int]:
    """Devices that each queue's ordinary jobs hold."""
    held = Counter[str]()
    for job in pool.jobs.values():
        if not job.spec.spot:
            held[job.spec.queue] += sum(len(member.seat.devices) for member in job.gang)
    return held


def is_entitled(job: Job, held: Mapping[str, int], shares: Mapping[str, Share]) -> bool:
    """With it, its queue still holds no more than it is guaranteed."""
    queue, weight = job.spec.queue, job.spec.learners_min * max(job.spec.gpus_per_learner, 1)
    return held.get(queue, 0) + weight <= shares.get(queue, Share()).guaranteed


def check_queue(name: str, policy: Policy) -> None:
    """Raise Refused, with the sentence for the user, where there is no such queue."""
    if name not in queues_of(policy):
        raise Refused(f"{_no_queue(name, policy)}. Choose one of them, or have it made: jupyter dlaas queue set {name}")


def _no_queue(name: str, policy: Policy) -> str:
    queues = list(queues_of(policy))
    return f"there is no queue '{name[:80]}'; the pool has {', '.join(queues[:8])}{', …' if len(queues) > 8 else ''}"


def check_removable(name: str, configured: Policy, settings: Settings, jobs: Iterable[Job]) -> None:
    """Raise NotFound or NotAllowed, with the sentence for the user, where the queue cannot be taken back."""
    if name == DEFAULT_QUEUE:
        raise NotAllowed(f"the queue {DEFAULT_QUEUE} is always there; it cannot be removed")
    if name in configured.shares:
        raise NotAllowed(f"the queue {name} is made by the pool's config.toml; take it out there")
    if name not in settings.queues:
        raise NotFound(_no_queue(name, policy_in_force(configured, settings)))
    there = sorted((job for job in jobs if job.spec.queue == name and not job.state.is_final), key=lambda j: j.number)
    if there:
        shown = ", ".join(job.id for job in there[:3]) + (", …" if len(there) > 3 else "")
        has = "has" if len(there) == 1 else "have"
        raise NotAllowed(
            f"the queue {name} is in use: {count(len(there), 'job')} of it {has} not ended ({shown}). "
            "Wait for them, or cancel them"
        )


def node_named(name: str, nodes: Sequence[Node]) -> Node:
    """The node of this name. Raises NotFound that says which there are."""
    for node in nodes:
        if node.name == name:
            return node
    shown = ", ".join(node.name for node in nodes[:8]) + (", …" if len(nodes) > 8 else "")
    raise NotFound(f"there is no node '{name[:80]}'; the pool has {shown or 'none'}")
