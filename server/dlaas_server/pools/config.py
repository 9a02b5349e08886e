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

[kubernetes]                  # learners run in pods of this cluster, instead of on this machine
namespace = "ml"
image = "registry.example.com/torch:2"
"""

from __future__ import annotations

import tomllib
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Final

from dlaas_server.core.scheduling.ordering import ORDERS
from dlaas_server.core.scheduling.scheduler import Policy, Share
from dlaas_server.pools.kubernetes.manifests.settings import KubernetesSection
from jupyter_dlaas.wire.codec import DlaasError, Invalid, decode, rule
from jupyter_dlaas.wire.protocol import NAME_PATTERN, NAME_RULE, PoolPlacement

__all__ = ["CONFIG_FILE", "ConfigError", "DeviceChoice", "PoolConfig", "PoolSection", "Retention", "load_config"]

CONFIG_FILE = "config.toml"


class ConfigError(DlaasError):
    """Invalid configuration. The message names file and key."""

    code = "config"


PLAIN_NAME: Final = r"[A-Za-z0-9][A-Za-z0-9_.-]{0,79}"
PLAIN_NAME_RULE: Final = "use letters, digits, _ . and -, starting with a letter or digit"


class DeviceChoice(StrEnum):
    """Kind of devices that a pool uses."""

    AUTO = "auto"
    GPUS = "gpus"
    CPUS = "cpus"


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolSection:
    """[pool]: name, devices and scheduling policy."""

    name: str | None = field(
        default=None, metadata=rule(pattern=PLAIN_NAME, says=f"is not a valid pool name: {PLAIN_NAME_RULE}")
    )
    """Name of the pool, as the panel shows it; unset: that of its directory, or `kubernetes` where jobs run on a
    cluster.
    """
    devices: DeviceChoice = DeviceChoice.AUTO
    """Devices that the pool offers. `auto`: GPUs if there are any, otherwise CPU slots."""
    cpu_slots: int | None = field(default=None, metadata=rule(least=1, most=4096))
    """Number of CPU slots; unset: one for each core."""
    memory_tolerance_mib: int = field(default=1024, metadata=rule(least=0, most=2**20))
    """A GPU on which processes outside of the pool hold more memory than this is not offered."""
    order: str = field(
        default="shortest",
        metadata=rule(pattern="|".join(ORDERS), says=f"is not a valid order; use one of {', '.join(ORDERS)}"),
    )
    """Order of waiting jobs of equal priority."""
    preemption: bool = True
    """`false`: running jobs are never preempted."""
    placement: PoolPlacement = PoolPlacement.PACK
    """Placement of learners on nodes, for jobs that do not request one."""
    spot_price: float = field(default=0.3, metadata=rule(least=0, most=1))
    """Weight of a spot job's device in its queue's share, with order `fair`."""
    spot_notice_s: float = field(default=30.0, metadata=rule(least=0, most=86_400))
    """Seconds that a spot job has to write a checkpoint before its devices are reclaimed."""
    admins: tuple[str, ...] = field(default=(), metadata=rule(longest=1000))
    """Users who may drain nodes, set queues and change the order, besides the pool's own user."""
    queued_per_user: int = field(default=10_000, metadata=rule(least=1, most=10**6))
    """Maximum number of waiting jobs per user. Administrators have no limit."""
    priority_max: int = field(default=100, metadata=rule(least=0, most=10**6))
    """Highest priority that users may request (`high` is 100). Administrators may request any."""


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueEntry:
    """[[queues]]: a queue and its share."""

    name: str = field(
        metadata=rule(
            pattern=NAME_PATTERN,
            longest=80,
            says=f"is not a valid queue name: {NAME_RULE}",
        )
    )
    """Name of the queue. `default` always exists."""
    guaranteed: int = field(default=0, metadata=rule(least=0, most=10**6))
    """Devices that the queue gets whenever it needs them. While they are idle, other queues borrow them."""
    weight: float = field(default=1.0, metadata=rule(least=0.001, most=10**6))
    """Weight for the devices that no queue is guaranteed. A queue with a guarantee is weighted by its guarantee."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Retention:
    """[retention]: how long ended jobs are kept."""

    days: float | None = field(default=30.0, metadata=rule(least=0, most=36_500))
    """Days after which ended jobs are removed."""
    jobs: int | None = field(default=1000, metadata=rule(least=0, most=1_000_000))
    """Number of ended jobs to keep; the oldest are removed first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceEntry:
    """[[nodes.devices]]: a device, described by hand."""

    id: str = field(
        metadata=rule(pattern=r"[^\s,/]{1,100}", says="is not a valid device id: use no blanks, commas or slashes")
    )
    """Identifier of the device, unique in the pool."""
    kind: str = "CPU"
    """Kind of the device, such as `NVIDIA A100`; `--gpu-kind` selects by it."""
    memory_gib: float = field(default=0.0, metadata=rule(least=0, most=10_000))
    """Memory of the device."""
    out_of_service: str | None = None
    """Reason for not using the device; unset: it is used."""
    link: str = field(default="", metadata=rule(longest=80))
    """Devices of a node with the same value are directly linked, for placement `topology`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeEntry:
    """[[nodes]]: a node, described by hand."""

    name: str = field(metadata=rule(pattern=PLAIN_NAME, says=f"is not a valid node name: {PLAIN_NAME_RULE}"))
    """Name of the node, unique in the pool."""
    cpus: float = field(default=0.0, metadata=rule(least=0, most=100_000))
    """CPUs that learners on the node may request in all."""
    memory_gib: float = field(default=0.0, metadata=rule(least=0, most=1_000_000))
    """Memory that learners on the node may request in all."""
    slots: int = field(default=0, metadata=rule(least=0, most=4096))
    """Number of devices of one kind. Alternatively, describe each under `[[nodes.devices]]`."""
    kind: str = "CPU"
    """Kind of the slots."""
    devices: tuple[DeviceEntry, ...] = ()
    cordoned: str | None = None
    """Reason for placing no new learners on the node; unset: they are placed."""
    area: str = field(default="", metadata=rule(longest=80))
    """Larger unit that contains the rack, for placement `topology`."""
    rack: str = field(default="", metadata=rule(longest=80))
    """Rack that contains the node, for placement `topology`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolConfig:
    """Contents of config.toml."""

    pool: PoolSection = PoolSection()
    retention: Retention = Retention()
    nodes: tuple[NodeEntry, ...] = ()
    queues: tuple[QueueEntry, ...] = ()
    kubernetes: KubernetesSection | None = None
    """Section about a cluster, which may be disabled."""

    @property
    def cluster(self) -> KubernetesSection | None:
        """Cluster on which learners run; None: they run on this machine."""
        return self.kubernetes if self.kubernetes is not None and self.kubernetes.enabled else None

    @property
    def runs_on(self) -> str:
        """Place where the pool's jobs run, in words."""
        cluster = self.cluster
        if cluster is None:
            return "this machine"
        context = f", context {cluster.context}" if cluster.context is not None else ""
        return f"Kubernetes: namespace {cluster.namespace}{context}, image {cluster.image}"

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
            raise ConfigError(f"{file}: nodes[{i}].slots: set either slots or devices, not both")
        for j, device in enumerate(node.devices):
            if device.id in seen:
                raise ConfigError(f"{file}: nodes[{i}].devices[{j}].id: duplicate device {device.id!r}")
            seen.add(device.id)
