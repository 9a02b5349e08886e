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
    """Why nothing may be placed here, in words."""
    link: str = ""
    """Its group on the node: within one, devices talk to each other directly (NVLink). "": no group is known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """A machine of the pool. `cpus` and `memory_bytes` are what learners may ask for in all."""

    name: str
    devices: tuple[Device, ...] = ()
    cpus: float = 0.0
    memory_bytes: int = 0
    disk_mbps: float = 0.0
    net_mbps: float = 0.0
    area: str = ""
    rack: str = ""
    """Where it stands: pool > area > rack > node. "": all in one."""
    cordoned: str | None = None
    """Why no learner may be placed here, in words; those that run stay."""
    drains: bool = False
    """Those that run shall leave, too."""


@dataclass(frozen=True, slots=True)
class Seat:
    """Where one learner sits: a node and the ids of its devices there."""

    node: str
    devices: tuple[str, ...] = ()
