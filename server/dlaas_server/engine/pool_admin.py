"""Operations on the pool: nodes, queues, order, placement. One method per operation.

A setting is durable before the request is answered, and overrides the configuration from then on.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from dlaas_server.core.lifecycle.requests import (
    ChangePool,
    CordonNode,
    DrainNode,
    RemoveQueue,
    SetQueue,
    UncordonNode,
)
from dlaas_server.core.planning.pool_settings import Cordon, node_named
from dlaas_server.engine.lifecycle import Lifecycle
from dlaas_server.engine.reconciliation.transaction import POOL
from dlaas_server.engine.request_handlers import drain_view
from dlaas_server.rest.routes import DrainAsked, PoolChange, QueueChange
from jupyter_dlaas.wire.codec import Invalid, Json
from jupyter_dlaas.wire.protocol import NAME_PATTERN, DrainView, Forbidden, PoolView

__all__ = ["Administration"]


@dataclass(slots=True)
class Administration:
    """Operations on the pool. `user` is the caller, known from the socket or a trusted relay, not from the request."""

    lifecycle: Lifecycle

    def _check(self, user: str, what: str) -> None:
        owner = self.lifecycle.user
        if not self.lifecycle.is_admin(user):
            raise Forbidden(
                f"{user} may not {what}: only {owner} and the admins in the pool's config.toml may "
                f'([pool] admins = ["{user}"])'
            )

    async def events(self, user: str) -> list[dict[str, Json]]:
        """Return what administrators requested and which devices failed, oldest first."""
        self._check(user, "read the events of the pool")
        rows, drift_s = await self.lifecycle.store.history(POOL), self.lifecycle.drift()
        return [{"row": e.row, "at_s": e.at_s + drift_s, "kind": e.kind, "text": e.text} for e in rows]

    async def cordon(self, user: str, node: str) -> PoolView:
        """Place no new learners on the node; running ones stay."""
        self._check(user, "cordon nodes")
        await self.lifecycle.post(CordonNode(by=user, node=node))
        return self.lifecycle.pool_view()

    async def uncordon(self, user: str, node: str) -> PoolView:
        """Allow new learners on the node again, and end a drain."""
        self._check(user, "uncordon nodes")
        await self.lifecycle.post(UncordonNode(by=user, node=node))
        return self.lifecycle.pool_view()

    def preview(self, user: str, node: str) -> DrainView:
        """Return what a drain of the node would do now. Changes nothing."""
        self._check(user, "drain nodes")
        lifecycle, nodes = self.lifecycle, self.lifecycle.pool.nodes()
        node_named(node, nodes)
        wanted = lifecycle.settings.with_cordon(node, Cordon(by=user, at_s=lifecycle.clock(), drains=True))
        return drain_view(node, nodes, wanted, lifecycle.picture(), lifecycle.configured, is_asked=False)

    async def drain(self, user: str, node: str, request: DrainAsked) -> DrainView:
        """Drain the node. With the plan of a preview: only if the plan is still the same. Raises NotAllowed."""
        self._check(user, "drain nodes")
        return await self.lifecycle.post(DrainNode(by=user, node=node, plan=request.plan))

    async def set_queue(self, user: str, name: str, request: QueueChange) -> PoolView:
        """Create a queue or change its share. A field that is None keeps its value."""
        self._check(user, "set the shares of queues")
        if not _is_name(name):
            raise Invalid(
                f"queue: '{name[:80]}' is not a valid queue name: use letters, digits, _ and -, starting with a letter"
            )
        await self.lifecycle.post(SetQueue(by=user, queue=name, weight=request.weight, guaranteed=request.guaranteed))
        return self.lifecycle.pool_view()

    async def remove_queue(self, user: str, name: str) -> PoolView:
        """Remove the queue. Raises NotFound; NotAllowed for a queue that is in use or defined in the configuration."""
        self._check(user, "remove queues")
        await self.lifecycle.post(RemoveQueue(by=user, queue=name))
        return self.lifecycle.pool_view()

    async def change_pool(self, user: str, request: PoolChange) -> PoolView:
        """Change order, placement, preemption, or price and notice of spot jobs."""
        self._check(user, "change the settings of the pool")
        await self.lifecycle.post(
            ChangePool(
                by=user,
                order=request.order,
                preemption=request.preemption,
                placement=request.placement,
                spot_price=request.spot_price,
                spot_notice_s=request.spot_notice_s,
            )
        )
        return self.lifecycle.pool_view()


def _is_name(name: str) -> bool:
    return len(name) <= 80 and re.fullmatch(NAME_PATTERN, name) is not None
