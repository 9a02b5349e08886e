"""What was set at run time by who looks after the pool: it goes before the configuration, and outlives the engine."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from dlaas_server.core.model import Node
from dlaas_server.core.scheduler import Policy, Share
from jupyter_dlaas.protocol import NotFound, PoolOrder, Refused

__all__ = [
    "QUEUES_MOST",
    "Cordon",
    "Settings",
    "check_queue",
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
    queues: Mapping[str, Share] = field(default_factory=dict)
    cordons: Mapping[str, Cordon] = field(default_factory=dict)

    def with_order(self, order: PoolOrder | None, preemption: bool | None) -> Settings:
        """Another order, or (not) preempting."""
        return replace(
            self,
            order=self.order if order is None else order,
            preemption=self.preemption if preemption is None else preemption,
        )

    def with_queue(self, name: str, share: Share) -> Settings:
        """A queue, new or with another share. Raises Refused beyond the bound."""
        if name not in self.queues and len(self.queues) >= QUEUES_MOST:
            raise Refused(f"queue: there are {QUEUES_MOST} queues already; set the share of one of them")
        return replace(self, queues={**self.queues, name: share})

    def with_cordon(self, node: str, cordon: Cordon) -> Settings:
        """The node takes nothing new; a drain stays one until it is taken back."""
        before = self.cordons.get(node)
        if before is not None and (before.drains or not cordon.drains):
            return self
        return replace(self, cordons={**self.cordons, node: cordon})

    def without_cordon(self, node: str) -> Settings:
        """The node takes learners again."""
        if node not in self.cordons:
            return self
        return replace(self, cordons={name: c for name, c in self.cordons.items() if name != node})


def policy_in_force(configured: Policy, settings: Settings) -> Policy:
    """How the pool is shared: as configured, but for what was set."""
    return replace(
        configured,
        order=configured.order if settings.order is None else str(settings.order),
        preempts=configured.preempts if settings.preemption is None else settings.preemption,
        shares={**configured.shares, **settings.queues},
    )


def nodes_in_force(nodes: Sequence[Node], settings: Settings) -> tuple[Node, ...]:
    """The nodes as the pool sees them, but for what was cordoned."""
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


def check_queue(name: str, policy: Policy) -> None:
    """Raise Refused, with the sentence for the user, where there is no such queue."""
    queues = queues_of(policy)
    if name not in queues:
        known = ", ".join(list(queues)[:8]) + (", …" if len(queues) > 8 else "")
        raise Refused(
            f"there is no queue '{name}'; the pool has {known}. Choose one of them, or have it made: "
            f"jupyter dlaas queue set {name}"
        )


def node_named(name: str, nodes: Sequence[Node]) -> Node:
    """The node of this name. Raises NotFound that says which there are."""
    for node in nodes:
        if node.name == name:
            return node
    shown = ", ".join(node.name for node in nodes[:8]) + (", …" if len(nodes) > 8 else "")
    raise NotFound(f"there is no node '{name[:80]}'; the pool has {shown or 'none'}")
