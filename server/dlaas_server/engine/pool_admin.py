"""Operations on the pool: nodes, queues, order, placement. One method per operation.

A setting is durable before the request is answered, and overrides the configuration from then on.
"""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import dataclass, replace
from typing import Final

from dlaas_server.core.model.phrases import count
from dlaas_server.core.model.pool import Pool as Picture
from dlaas_server.core.planning.pool_settings import (
    Cordon,
    Settings,
    check_removable,
    node_named,
    nodes_in_force,
    policy_in_force,
    queues_of,
)
from dlaas_server.core.rebalancing.drain import Leave, Way, drain
from dlaas_server.core.scheduling.scheduler import Share
from dlaas_server.engine.lifecycle import Lifecycle
from dlaas_server.engine.reconciliation.transaction import Draft
from dlaas_server.rest.routes import DrainAsked, PoolChange, QueueChange
from jupyter_dlaas.wire.codec import Invalid, encode
from jupyter_dlaas.wire.protocol import NAME_PATTERN, DrainView, Forbidden, LeaveView, NotAllowed, PoolView

__all__ = ["Administration"]

_WORDS: Final[dict[Way, str]] = {
    Way.SHRINK: "{} shrinks",
    Way.MOVE: "{} moves",
    Way.PREEMPT: "{} is preempted",
    Way.STAY: "{} stays until it has a checkpoint or ends",
}
_WORDS_PLURAL: Final[dict[Way, str]] = {
    Way.SHRINK: "{} shrink",
    Way.MOVE: "{} move",
    Way.PREEMPT: "{} are preempted",
    Way.STAY: "{} stay until they have a checkpoint or end",
}


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

    async def cordon(self, user: str, node: str) -> PoolView:
        """Place no new learners on the node; running ones stay."""
        self._check(user, "cordon nodes")

        def change(draft: Draft) -> None:
            node_named(node, self.lifecycle.pool.nodes())
            cordon = Cordon(by=user, at_s=draft.now_s)
            draft.set(
                draft.settings.with_cordon(node, cordon), f"{user} cordoned {node}: no new learners are placed on it."
            )

        await self.lifecycle.post(change)
        return self.lifecycle.pool_view()

    async def uncordon(self, user: str, node: str) -> PoolView:
        """Allow new learners on the node again, and end a drain."""
        self._check(user, "uncordon nodes")

        def change(draft: Draft) -> None:
            found = next((n for n in self.lifecycle.pool.nodes() if n.name == node), None)
            if draft.settings.without_cordon(node) is draft.settings:
                node_named(node, self.lifecycle.pool.nodes())
                if found is not None and found.cordoned is not None:
                    raise NotAllowed(
                        f"{node} is cordoned by the pool's config.toml ({found.cordoned}); change it there"
                    )
            draft.set(draft.settings.without_cordon(node), f"{user} uncordoned {node}: it accepts learners again.")

        await self.lifecycle.post(change)
        return self.lifecycle.pool_view()

    def preview(self, user: str, node: str) -> DrainView:
        """Return what a drain of the node would do now. Changes nothing."""
        self._check(user, "drain nodes")
        node_named(node, self.lifecycle.pool.nodes())
        settings = self.lifecycle.settings
        wanted = settings.with_cordon(node, Cordon(by=user, at_s=self.lifecycle.clock(), drains=True))
        return self._drain_view(node, wanted, is_asked=False)

    async def drain(self, user: str, node: str, request: DrainAsked) -> DrainView:
        """Drain the node. With the plan of a preview: only if the plan is still the same. Raises NotAllowed."""
        self._check(user, "drain nodes")

        def change(draft: Draft) -> DrainView:
            node_named(node, self.lifecycle.pool.nodes())
            wanted = draft.settings.with_cordon(node, Cordon(by=user, at_s=draft.now_s, drains=True))
            view = self._drain_view(node, wanted, is_asked=True)
            if request.plan is not None and request.plan != view.plan:
                raise NotAllowed(
                    f"{node} has changed since this drain was planned; now: {view.gist} Review it and try again"
                )
            draft.set(wanted, f"{user} drains {node}. {view.gist}")
            return view

        return await self.lifecycle.post(change)

    def _drain_view(self, node: str, settings: Settings, *, is_asked: bool) -> DrainView:
        picture = self.lifecycle.picture()
        nodes = nodes_in_force(self.lifecycle.pool.nodes(), settings)
        leaves = drain(Picture(nodes=nodes, jobs=picture.jobs, known=picture.known), self.lifecycle.policy.placement)
        jobs = tuple(
            LeaveView(job=leave.job, way=str(leave.way), before=leave.before, after=leave.after, text=leave.text)
            for leave in leaves
            if node in leave.nodes
        )
        plan = hashlib.sha256(json.dumps([node, *map(encode, jobs)]).encode()).hexdigest()[:16]
        gist = _gist(node, [leave for leave in leaves if node in leave.nodes], is_asked=is_asked)
        return DrainView(node=node, is_asked=is_asked, plan=plan, gist=gist, jobs=jobs)

    async def set_queue(self, user: str, name: str, request: QueueChange) -> PoolView:
        """Create a queue or change its share. A field that is None keeps its value."""
        self._check(user, "set the shares of queues")
        if not _is_name(name):
            raise Invalid(
                f"queue: '{name[:80]}' is not a valid queue name: use letters, digits, _ and -, starting with a letter"
            )

        def change(draft: Draft) -> None:
            policy = policy_in_force(self.lifecycle.configured, draft.settings)
            share = policy.shares.get(name, Share())
            share = replace(
                share,
                weight=share.weight if request.weight is None else request.weight,
                guaranteed=share.guaranteed if request.guaranteed is None else request.guaranteed,
            )
            total = sum(len(node.devices) for node in self.lifecycle.pool.nodes())
            others = sum(s.guaranteed for q, s in queues_of(policy).items() if q != name)
            if share.guaranteed > 0 and share.guaranteed + others > total:
                unit = self.lifecycle.pool.unit
                raise NotAllowed(
                    f"queue {name}: {count(share.guaranteed, unit)} cannot be guaranteed; the pool has {total}, of "
                    f"which {others} are guaranteed to other queues. Guarantee at most {max(total - others, 0)}"
                )
            is_new = name not in queues_of(policy)
            terms = f"{count(share.guaranteed, self.lifecycle.pool.unit)} guaranteed, weight {share.weight:g}"
            draft.set(
                draft.settings.with_queue(name, share),
                f"{user} {'created' if is_new else 'changed'} the queue {name}: {terms}.",
            )

        await self.lifecycle.post(change)
        return self.lifecycle.pool_view()

    async def remove_queue(self, user: str, name: str) -> PoolView:
        """Remove the queue. Raises NotFound; NotAllowed for a queue that is in use or defined in the configuration."""
        self._check(user, "remove queues")

        def change(draft: Draft) -> None:
            jobs = {**draft.base, **draft.changed}
            check_removable(name, self.lifecycle.configured, draft.settings, jobs.values())
            draft.set(draft.settings.without_queue(name), f"{user} removed the queue {name}.")

        await self.lifecycle.post(change)
        return self.lifecycle.pool_view()

    async def change_pool(self, user: str, request: PoolChange) -> PoolView:
        """Change order, placement, preemption, or price and notice of spot jobs."""
        self._check(user, "change the settings of the pool")

        def change(draft: Draft) -> None:
            settings = draft.settings.with_policy(
                order=request.order,
                preemption=request.preemption,
                placement=request.placement,
                spot_price=request.spot_price,
                spot_notice_s=request.spot_notice_s,
            )
            policy = policy_in_force(self.lifecycle.configured, settings)
            preempts = "with preemption" if policy.preempts else "without preemption"
            spot = f"spot price {policy.spot_price:g}, notice {policy.spot_notice_s:g} s"
            text = f"{user} set the order: {policy.order}, {preempts}; placement {policy.placement}; {spot}."
            draft.set(settings, text)

        await self.lifecycle.post(change)
        return self.lifecycle.pool_view()


def _is_name(name: str) -> bool:
    return len(name) <= 80 and re.fullmatch(NAME_PATTERN, name) is not None


def _gist(node: str, leaves: list[Leave], *, is_asked: bool) -> str:
    if not leaves:
        return f"No job runs on {node}; no new learners {'are' if is_asked else 'would be'} placed there."
    parts: list[str] = []
    for way in Way:
        number = sum(leave.way is way for leave in leaves)
        if number:
            parts.append((_WORDS if number == 1 else _WORDS_PLURAL)[way].format(count(number, "job")))
    return f"{node}: {', '.join(parts)}."
