"""Nodes of a cluster, their devices, and seats on them."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Device", "Node", "Seat"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """A GPU, a MIG slice, or a CPU slot. `id` is unique in the pool and stable over restarts (a GPU's UUID)."""

    id: str
    index: int
    kind: str
    memory_bytes: int = 0
    out_of_service: str | None = None
    """Reason shown for not placing learners here."""
    link: str = ""
    """Link group on the node: devices of a group communicate directly (NVLink). "": no group is known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """A machine of the pool. `cpus` and `memory_bytes` are the amounts available to learners."""

    name: str
    devices: tuple[Device, ...] = ()
    cpus: float = 0.0
    memory_bytes: int = 0
    disk_mbps: float = 0.0
    net_mbps: float = 0.0
    area: str = ""
    rack: str = ""
    """Position in the hierarchy pool > area > rack > node. "": all nodes share one."""
    cordoned: str | None = None
    """Reason shown for not placing new learners here; running ones stay."""
    drains: bool = False
    """True if running learners must leave, too."""


@dataclass(frozen=True, slots=True)
class Seat:
    """Placement of one learner: a node and the ids of its devices there."""

    node: str
    devices: tuple[str, ...] = ()
