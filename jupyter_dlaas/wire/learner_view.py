"""View of a job's learner, and the places of a gang as text. Standard library only."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

__all__ = ["LearnerView", "places_text"]

PLACES_MAX: Final = 8
_UUID: Final = re.compile(r"((?:GPU|MIG)-[0-9a-f]{8})-[0-9a-f-]+")


@dataclass(frozen=True, slots=True, kw_only=True)
class LearnerView:
    """Training process. `state`: Starting, Joining, Training, Leaving, Lost, Ended."""

    member: int
    generation: int
    rank: int
    node: str
    devices: tuple[str, ...]
    state: str
    pod: str = ""
    """Pod in which it runs; empty if it runs in none."""


def places_text(learners: Sequence[LearnerView], limit: int = PLACES_MAX) -> str:
    """Return the nodes of learners with their pods, or else devices: "node-1 (digits-1-m0), node-2 (digits-1-m1)".

    Names those of the first `limit` learners, and the number of the others. GPUs' UUIDs are shortened.
    """
    placed = [learner for learner in learners if learner.node]
    nodes: dict[str, dict[str, None]] = {}
    for learner in placed[:limit]:
        names = [learner.pod] if learner.pod else [_UUID.sub(r"\1", device) for device in learner.devices]
        nodes.setdefault(learner.node, {}).update(dict.fromkeys(names))
    shown = [f"{node} ({', '.join(names)})" if names else node for node, names in nodes.items()]
    return ", ".join([*shown, *([f"{len(placed) - limit} more"] if len(placed) > limit else [])])
