"""Configuration of the pool: `config.toml` in the pool's directory, parsed once into a record.

[pool]
name = "local"
devices = "auto"              # or "gpus", "cpus" to require one of them
cpu_slots = 8                 # instead of one per core
memory_tolerance_mib = 1024   # a GPU is not used if other processes hold more of its memory
order = "shortest"            # or fifo, fifo-skip, srtf, las, gittins, time-slice, fair, fair-finish
preemption = true             # false: never preempt running jobs
placement = "pack"            # or spread, tetris, fgd, topology: placement of learners on nodes
spot_price = 0.3              # weight of a spot job's device in its queue's share, in order fair
spot_notice_s = 30            # time for a checkpoint before a spot job's devices are reclaimed
admins = ["ana"]              # users who may drain nodes and change queues and order, besides the pool's own user
queued_per_user = 10000       # maximum number of waiting jobs per user (no limit for admins and the pool's own user)
priority_max = 100            # maximum priority for users ("high"); no limit for admins

[[queues]]                    # for order "fair"; the queue `default` always exists
name = "research"
guaranteed = 6                # devices; idle ones are lent, and reclaimed from the youngest job
weight = 1.0                  # weight for the idle devices that are not guaranteed to any queue

[retention]
days = 30                     # ended jobs are removed after that
jobs = 1000                   # maximum number of ended jobs

[[nodes]]                     # instead of the devices detected on this machine
name = "left"
cpus = 4
memory_gib = 16
slots = 4                     # number of devices of one kind, or list each under [[nodes.devices]]
kind = "CPU"
rack = "r1"                   # location, for placement "topology"; area = "hall 2" is the level above
"""

from __future__ import annotations

import tomllib
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path

from dlaas_server.core.scheduling.ordering import ORDERS
from dlaas_server.core.scheduling.scheduler import Policy, Share
from jupyter_dlaas.wire.codec import DlaasError, Invalid, decode, rule
from jupyter_dlaas.wire.protocol import NAME_PATTERN, PoolPlacement

__all__ = ["CONFIG_FILE", "ConfigError", "DeviceChoice", "PoolConfig", "PoolSection", "Retention", "load_config"]

CONFIG_FILE = "config.toml"


class ConfigError(DlaasError):
    """Invalid configuration. The message names file and key."""

    code = "config"


class DeviceChoice(StrEnum):
    """Kind of devices that a pool uses."""

    AUTO = "auto"
    GPUS = "gpus"
    CPUS = "cpus"


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolSection:
    """[pool]: name, devices and scheduling policy."""

    name: str = field(
        default="local", metadata=rule(pattern=r"[A-Za-z0-9][A-Za-z0-9_.-]{0,79}", says="is not a valid pool name")
    )
    devices: DeviceChoice = DeviceChoice.AUTO
    cpu_slots: int | None = field(default=None, metadata=rule(least=1, most=4096))
    memory_tolerance_mib: int = field(default=1024, metadata=rule(least=0, most=2**20))
    order: str = field(
        default="shortest",
        metadata=rule(pattern="|".join(ORDERS), says=f"is not a valid order; use one of {', '.join(ORDERS)}"),
    )
    preemption: bool = True
    placement: PoolPlacement = PoolPlacement.PACK
    spot_price: float = field(default=0.3, metadata=rule(least=0, most=1))
    spot_notice_s: float = field(default=30.0, metadata=rule(least=0, most=86_400))
    admins: tuple[str, ...] = field(default=(), metadata=rule(longest=1000))
    """Users who may drain nodes and set shares, besides the pool's own user."""
    queued_per_user: int = field(default=10_000, metadata=rule(least=1, most=10**6))
    priority_max: int = field(default=100, metadata=rule(least=0, most=10**6))
    """Maximum priority of users who are not admins."""


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueEntry:
    """[[queues]]: a queue and its share."""

    name: str = field(metadata=rule(pattern=NAME_PATTERN, longest=80, says="is not a valid queue name"))
    guaranteed: int = field(default=0, metadata=rule(least=0, most=10**6))
    weight: float = field(default=1.0, metadata=rule(least=0.001, most=10**6))


@dataclass(frozen=True, slots=True, kw_only=True)
class Retention:
    """[retention]: limits for ended jobs. None: no limit."""

    days: float | None = field(default=30.0, metadata=rule(least=0, most=36_500))
    jobs: int | None = field(default=1000, metadata=rule(least=0, most=1_000_000))


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceEntry:
    """[[nodes.devices]]: a device, described by hand."""

    id: str = field(
        metadata=rule(pattern=r"[^\s,/]{1,100}", says="is not a valid device id: use no blanks, commas or slashes")
    )
    kind: str = "CPU"
    memory_gib: float = field(default=0.0, metadata=rule(least=0, most=10_000))
    out_of_service: str | None = None
    link: str = field(default="", metadata=rule(longest=80))
    """Link group: devices of a node with the same value are linked directly."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeEntry:
    """[[nodes]]: a node, described by hand."""

    name: str = field(metadata=rule(pattern=r"[A-Za-z0-9][A-Za-z0-9_.-]{0,79}", says="is not a valid node name"))
    cpus: float = field(default=0.0, metadata=rule(least=0, most=100_000))
    memory_gib: float = field(default=0.0, metadata=rule(least=0, most=1_000_000))
    slots: int = field(default=0, metadata=rule(least=0, most=4096))
    kind: str = "CPU"
    devices: tuple[DeviceEntry, ...] = ()
    cordoned: str | None = None
    area: str = field(default="", metadata=rule(longest=80))
    rack: str = field(default="", metadata=rule(longest=80))


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolConfig:
    """Contents of config.toml."""

    pool: PoolSection = PoolSection()
    retention: Retention = Retention()
    nodes: tuple[NodeEntry, ...] = ()
    queues: tuple[QueueEntry, ...] = ()

    @property
    def policy(self) -> Policy:
        """Scheduling policy of the configuration."""
        shares = {queue.name: Share(guaranteed=queue.guaranteed, weight=queue.weight) for queue in self.queues}
        return Policy(
            order=self.pool.order,
            preempts=self.pool.preemption,
            placement=self.pool.placement,
            shares=shares,
            spot_price=self.pool.spot_price,
            spot_notice_s=self.pool.spot_notice_s,
        )


def load_config(directory: Path) -> PoolConfig:
    """Return the configuration of the pool in `directory`; the defaults without a file.

    Raises ConfigError, naming file and key.
    """
    file = directory / CONFIG_FILE
    try:
        text = file.read_text(encoding="utf-8")
    except FileNotFoundError:
        return PoolConfig()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{file} cannot be read: {error}") from error
    try:
        config = decode(PoolConfig, tomllib.loads(text))
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{file} is not valid TOML: {error}") from error
    except Invalid as error:
        raise ConfigError(f"{file}: {error}") from error
    _check_unique(file, config)
    return config


def _check_unique(file: Path, config: PoolConfig) -> None:
    names = [node.name for node in config.nodes]
    for i, name in enumerate(names):
        if name in names[:i]:
            raise ConfigError(f"{file}: nodes[{i}].name: duplicate node {name!r}")
    queues = [queue.name for queue in config.queues]
    for i, name in enumerate(queues):
        if name in queues[:i]:
            raise ConfigError(f"{file}: queues[{i}].name: duplicate queue {name!r}")
    seen: set[str] = set()
    for i, node in enumerate(config.nodes):
        if node.slots and node.devices:
            raise ConfigError(f"{file}: nodes[{i}].slots: give either slots or devices")
        for j, device in enumerate(node.devices):
            if device.id in seen:
                raise ConfigError(f"{file}: nodes[{i}].devices[{j}].id: duplicate device {device.id!r}")
            seen.add(device.id)
