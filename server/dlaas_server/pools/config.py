"""The pool's configuration: one file, `config.toml` in the pool's directory, parsed once into a record.

[pool]
name = "local"
devices = "auto"              # "gpus" or "cpus" to insist
cpu_slots = 8                 # instead of one per core
memory_tolerance_mib = 1024   # a GPU on which others hold more is not lent
order = "shortest"            # or fifo, fifo-skip, srtf, las, gittins, time-slice, fair, fair-finish
preemption = true             # false: nobody who runs makes room for others
placement = "pack"            # or spread, tetris, fgd, topology: how learners are laid over nodes
spot_price = 0.3              # what a device of a spot job counts in its queue's share, in order fair
spot_notice_s = 30            # how long a spot job may take for a checkpoint when its devices are taken back
admins = ["ana"]              # who may drain nodes and set queues and order, beside the pool's own user
queued_per_user = 10000       # so many jobs of one user may wait (admins and the pool's own user: any number)
priority_max = 100            # the highest priority that users may give ("high"); admins may give any

[[queues]]                    # for order "fair"; beside `default`, which is always there
name = "research"
guaranteed = 6                # devices; what is idle of them is lent, and taken back from the youngest
weight = 1.0                  # how idle devices are divided among queues without a guarantee

[retention]
days = 30                     # ended jobs are removed after that
jobs = 1000                   # and when there are more

[[nodes]]                     # instead of what is found on this machine
name = "left"
cpus = 4
memory_gib = 16
slots = 4                     # so many devices of one kind, or each by itself under [[nodes.devices]]
kind = "CPU"
rack = "r1"                   # where it stands, for placement "topology"; area = "hall 2" above it
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
    """The configuration cannot be used. The message names file and key."""

    code = "config"


class DeviceChoice(StrEnum):
    """Which devices a pool lends."""

    AUTO = "auto"
    GPUS = "gpus"
    CPUS = "cpus"


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolSection:
    """[pool]: what it is called, which devices it lends, and to whom first."""

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
    """Who may drain nodes and set shares, beside the pool's own user."""
    queued_per_user: int = field(default=10_000, metadata=rule(least=1, most=10**6))
    priority_max: int = field(default=100, metadata=rule(least=0, most=10**6))
    """Of users who are no admins."""


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueEntry:
    """[[queues]]: a queue and its share."""

    name: str = field(metadata=rule(pattern=NAME_PATTERN, longest=80, says="is not a valid queue name"))
    guaranteed: int = field(default=0, metadata=rule(least=0, most=10**6))
    weight: float = field(default=1.0, metadata=rule(least=0.001, most=10**6))


@dataclass(frozen=True, slots=True, kw_only=True)
class Retention:
    """[retention]: how long ended jobs are kept. None: for ever."""

    days: float | None = field(default=30.0, metadata=rule(least=0, most=36_500))
    jobs: int | None = field(default=1000, metadata=rule(least=0, most=1_000_000))


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceEntry:
    """[[nodes.devices]]: one device, described by hand."""

    id: str = field(
        metadata=rule(pattern=r"[^\s,/]{1,100}", says="is not a valid device id: use no blanks, commas or slashes")
    )
    kind: str = "CPU"
    memory_gib: float = field(default=0.0, metadata=rule(least=0, most=10_000))
    out_of_service: str | None = None
    link: str = field(default="", metadata=rule(longest=80))
    """Devices of a node with the same one are linked directly."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeEntry:
    """[[nodes]]: one node, described by hand."""

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
    """All of config.toml."""

    pool: PoolSection = PoolSection()
    retention: Retention = Retention()
    nodes: tuple[NodeEntry, ...] = ()
    queues: tuple[QueueEntry, ...] = ()

    @property
    def policy(self) -> Policy:
        """How the pool is shared."""
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
    """The configuration of the pool in `directory`; without a file, the defaults.

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
