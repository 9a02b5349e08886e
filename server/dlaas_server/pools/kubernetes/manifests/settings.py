"""Section [kubernetes] of the pool's configuration file."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from jupyter_dlaas.wire.codec import rule

__all__ = ["DEFAULT_IMAGE", "CapacityView", "KubernetesSection", "TolerationEntry"]

DEFAULT_IMAGE: Final = "python:3.11-slim"
_LABEL: Final = r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?"
_QUANTITY: Final = r"\d+(\.\d+)?([kMGTPE]i?|m)?"


class CapacityView(StrEnum):
    """Source of the pool's capacity."""

    AUTO = "auto"
    """`cluster` if nodes and pods of all namespaces are readable, otherwise `namespace`."""
    CLUSTER = "cluster"
    """Nodes and pods are readable: learners are placed on nodes, and pods are pinned there."""
    NAMESPACE = "namespace"
    """Only the namespace is readable: its quota, or `gpus`, is the capacity; the cluster places the pods."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TolerationEntry:
    """[[kubernetes.tolerations]]: a taint of nodes that learners tolerate."""

    key: str = field(metadata=rule(longest=317))
    """Key of the taint."""
    value: str | None = None
    """Unset: any value."""
    effect: str | None = field(default=None, metadata=rule(pattern="NoSchedule|PreferNoSchedule|NoExecute"))
    """Unset: all effects."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KubernetesSection:
    """[kubernetes]: cluster, namespace and defaults of pods. With this section, jobs run on the cluster."""

    enabled: bool = True
    """`false`: jobs run on this machine; the section is kept for `jupyter dlaas pool use kubernetes`."""
    namespace: str = field(
        default="dlaas",
        metadata=rule(pattern=_LABEL, says="is not a valid namespace: use lower-case letters, digits, -"),
    )
    """Namespace of all objects, used by this pool alone."""
    context: str | None = field(default=None, metadata=rule(longest=1000))
    """Context of the kubeconfig; unset: its current context. Inside a cluster the pod's service account is used."""
    kubeconfig: str | None = field(default=None, metadata=rule(longest=4096))
    """Kubeconfig file; unset: `KUBECONFIG`, or `~/.kube/config`."""
    engine_address: str | None = field(default=None, metadata=rule(pattern=r"[\w.:-]{1,253}"))
    """Address at which pods reach this machine; unset: the one from which it reaches the API server."""
    image: str = field(default=DEFAULT_IMAGE, metadata=rule(pattern=r"\S{1,1000}", says="is not a valid image"))
    """Image of learners: Python 3.11 or newer as `python3`, and the frameworks of the jobs."""
    guardian_image: str | None = field(default=None, metadata=rule(pattern=r"\S{1,1000}", says="is not a valid image"))
    """Image of guardians; unset: `image`."""
    image_pull_secrets: tuple[str, ...] = field(default=(), metadata=rule(longest=20))
    """Secrets of the namespace with credentials for the image's registry."""
    gpu_resource: str = field(default="nvidia.com/gpu", metadata=rule(pattern=r"[\w./-]{1,300}"))
    """Resource name of GPUs."""
    view: CapacityView = CapacityView.AUTO
    """Source of the pool's capacity."""
    gpus: int | None = field(default=None, metadata=rule(least=0, most=100_000))
    """Number of GPUs of the pool with view `namespace`; unset: what the namespace's quota allows."""
    learners: int | None = field(default=None, metadata=rule(least=1, most=100_000))
    """Number of learners without GPUs that run at once, with view `namespace`."""
    cpus: float = field(default=1.0, metadata=rule(least=0.1, most=10_000))
    """CPUs of a learner that requests none."""
    memory: str = field(default="4Gi", metadata=rule(pattern=_QUANTITY, says="is not a valid quantity, such as 4Gi"))
    """Memory of a learner that requests none. Shared memory counts against it."""
    ephemeral_storage: str = field(default="10Gi", metadata=rule(pattern=_QUANTITY, says="is not a valid quantity"))
    """Limit of a pod's files on its node."""
    storage: str | None = field(default=None, metadata=rule(pattern=_QUANTITY, says="is not a valid quantity"))
    """Size of a persistent volume for each job's checkpoints; unset: the engine's copy is the only one."""
    storage_class: str | None = field(default=None, metadata=rule(longest=253))
    """Storage class of these volumes; unset: the cluster's default."""
    egress: tuple[str, ...] = field(default=(), metadata=rule(longest=100))
    """Networks that learners may reach, such as `10.0.0.0/8` or `0.0.0.0/0`, besides their own job and DNS."""
    node_selector: tuple[str, ...] = field(default=(), metadata=rule(longest=20))
    """Labels that nodes must have, as `key=value`."""
    tolerations: tuple[TolerationEntry, ...] = ()
    """Taints of nodes that learners tolerate."""
    user_namespaces: bool = False
    """`true`: pods run in user namespaces of their own (`hostUsers: false`)."""
    keep_results_s: float = field(default=6 * 3600.0, metadata=rule(least=60, most=30 * 86_400))
    """Seconds for which an ended learner's pod keeps its result, and its GPUs, while it reaches no guardian."""
    lease_s: int = field(default=15, metadata=rule(least=3, most=600))
    """Seconds after which another engine may take over the namespace from one that has ended without notice."""
    bind_timeout_s: float = field(default=30.0, metadata=rule(least=1, most=86_400))
    """Seconds in which all pods of a gang must get their nodes; set more where nodes are added on demand."""
