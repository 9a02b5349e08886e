"""Nodes and devices of the pool, from nodes and pods of the cluster or from the namespace's quota. Pure.

GPUs of a node are counted, not named: the device plugin chooses one when a pod starts. So the ids "0", "1" … of a
node's devices stand for a number. GPUs that others use are the last ones that no job of the pool holds, so that the
devices which are left are never more than what others leave. A pod that outlives its closed job keeps the ids that the
job has in the ledger, since other jobs hold the other ones.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from fractions import Fraction
from typing import Final

from dlaas_server.core.model.cluster import Device, Node
from dlaas_server.pools.kubernetes.manifests.names import (
    ANNOTATION_JOB,
    LABEL_ROLE,
    MANAGED_BY,
    ROLE_LEARNER,
    Json,
    described,
)
from dlaas_server.pools.kubernetes.manifests.settings import KubernetesSection, TolerationEntry
from dlaas_server.pools.kubernetes.pod_fields import condition

__all__ = ["cluster_nodes", "has_gpus", "less_leaving", "namespace_node", "no_devices_text", "quantity"]

IsOwn = Callable[[str], bool]
_FACTORS: Final[Mapping[str, Fraction]] = {
    "n": Fraction(1, 10**9),
    "u": Fraction(1, 10**6),
    "m": Fraction(1, 1000),
    "": Fraction(1),
    **{unit: Fraction(10 ** (3 * n)) for n, unit in enumerate(("k", "M", "G", "T", "P", "E"), 1)},
    **{unit: Fraction(2 ** (10 * n)) for n, unit in enumerate(("Ki", "Mi", "Gi", "Ti", "Pi", "Ei"), 1)},
}
_QUANTITY: Final = re.compile(r"([+-]?[\d.]+(?:[eE][+-]?\d+)?)(n|u|m|k|M|G|T|P|E|Ki|Mi|Gi|Ti|Pi|Ei)?")
_ENDED: Final = frozenset({"Succeeded", "Failed"})
_OF_KUBERNETES: Final = ("node.kubernetes.io/", "node.cloudprovider.kubernetes.io/")
"""Taints that a node has because of its state, not because it is reserved for some pods."""


def quantity(text: object) -> Fraction:
    """Return the value of a quantity, such as "1500m", "4Gi" or "1e3". Raises ValueError."""
    found = _QUANTITY.fullmatch(str(text))
    if found is None:
        raise ValueError(f"{text!r} is not a quantity")
    return Fraction(found[1]) * _FACTORS[found[2] or ""]


def has_gpus(nodes: Iterable[Json], settings: KubernetesSection) -> bool:
    """Return whether a node of the cluster offers GPUs."""
    return any(_allocatable(node, settings.gpu_resource) > 0 for node in nodes)


def cluster_nodes(
    nodes: Sequence[Json],
    pods: Iterable[Json],
    settings: KubernetesSection,
    *,
    is_own: IsOwn = lambda job: True,
    held: Collection[str] = (),
    former: Iterable[Node] = (),
) -> tuple[Node, ...]:
    """Return the nodes on which learners may be placed, less what pods of others use.

    `is_own`: whether a job with learners in the namespace is the pool's; those of another engine's pool use capacity.
    `held`: devices of the pool's jobs. `former`: the nodes as last returned: pods of others keep their devices.

    With GPUs in the cluster, only nodes that have some; without any, CPU slots.
    """
    foreign: dict[str, list[Json]] = {}
    for pod in pods:
        node = pod.get("spec", {}).get("nodeName")
        if node and not _is_learner(pod, settings, is_own) and pod.get("status", {}).get("phase") not in _ENDED:
            foreign.setdefault(node, []).append(pod)
    by_gpu = has_gpus(nodes, settings)
    used = {device.id for node in former for device in node.devices if device.out_of_service is not None}
    found = []
    for node in sorted(nodes, key=lambda item: str(item["metadata"]["name"])):
        if _has_labels(node, settings) and (not by_gpu or _allocatable(node, settings.gpu_resource) > 0):
            others = foreign.get(str(node["metadata"]["name"]), ())
            found.append(_node(node, others, settings, by_gpu=by_gpu, held=held, used=used))
    return tuple(found)


def namespace_node(
    quotas: Iterable[Json],
    pods: Iterable[Json],
    settings: KubernetesSection,
    *,
    is_own: IsOwn = lambda job: True,
    held: Collection[str] = (),
) -> Node:
    """Return one node that stands for the namespace: its quota, or the configured number of GPUs or learners.

    Of several quotas the one counts that leaves least. Use by pods of others in the namespace is subtracted. `held`:
    devices of the pool's jobs, which are among those of the node.
    """
    others = [
        p for p in pods if not _is_learner(p, settings, is_own) and p.get("status", {}).get("phase") not in _ENDED
    ]
    resource = settings.gpu_resource
    limits = {name: _quota(quotas, name) for name in (resource, "cpu", "memory", "pods")}
    used = {name: sum((_requested(pod, name) for pod in others), Fraction(0)) for name in (resource, "cpu", "memory")}
    gpus = settings.gpus if settings.gpus is not None else limits[resource]
    cpus, memory = limits["cpu"], limits["memory"]
    free_cpus = None if cpus is None else max(Fraction(0), cpus - used["cpu"])
    if gpus:
        count = max(0, int(gpus - (used[resource] if settings.gpus is None else 0)))
        kind = "GPU"
    else:
        count, kind = _slots(settings, free_cpus), "CPU"
    return Node(
        name=settings.namespace,
        devices=tuple(
            Device(id=f"{settings.namespace}/{n}", index=n, kind=kind)
            for n in _numbers(settings.namespace, count, held)
        ),
        cpus=float(free_cpus) if free_cpus is not None else count * max(settings.cpus, 1.0) * _UNBOUNDED,
        memory_bytes=int(memory - used["memory"]) if memory is not None else 2**50,
    )


def no_devices_text(quotas: Sequence[Json], settings: KubernetesSection, *, sees_cluster: bool) -> str:
    """Return why a pool has no devices in the cluster, and what to do, in sentences."""
    resource, cpus = settings.gpu_resource, f"{settings.cpus:g} free {'CPU' if settings.cpus == 1 else 'CPUs'}"
    section = "in section [kubernetes] of the pool's config.toml, and restart the engine (jupyter dlaas engine stop)"
    if sees_cluster:
        chosen = "with the labels of `node_selector` " if settings.node_selector else ""
        missing = f"No node of the cluster {chosen}has {resource} or {cpus}."
        return f"{missing} Add nodes, or correct `gpu_resource`, `cpus` and `node_selector` {section}."
    namespace, limits = settings.namespace, {name: _quota(quotas, name) for name in (resource, "cpu")}
    hard = ", ".join(f"{name} {float(limit):g}" for name, limit in limits.items() if limit is not None)
    if hard:
        return (
            f"The quota of namespace {namespace} ({hard}) leaves no {resource} and less than {cpus}: pods use it, "
            "or it is too small. Wait for them, or ask the cluster's administrator for a larger quota."
        )
    return (
        f"Namespace {namespace} has no quota for {resource} or CPUs, and nodes are not readable, so the pool does not "
        f"know what it may use. Set `gpus` or `learners` {section}. Or ask the cluster's administrator for a "
        f"ResourceQuota with requests.{resource}, or for readable nodes: jupyter dlaas k8s manifests --cluster-view."
    )


def less_leaving(nodes: Iterable[Node], leaving: Iterable[tuple[Json, Collection[str]]]) -> tuple[Node, ...]:
    """Return the nodes less the devices, CPUs and memory of pods that have not ended yet although their job is closed.

    `leaving`: pods with the devices that their jobs hold in the ledger. A kubelet takes up to 30 s to end a pod.
    """
    by_node: dict[str, list[tuple[Json, Collection[str]]]] = {}
    for pod, devices in leaving:
        by_node.setdefault(str(pod["spec"].get("nodeName", "")), []).append((pod, devices))
    return tuple(_less(node, by_node[node.name]) if node.name in by_node else node for node in nodes)


def _less(node: Node, leaving: Sequence[tuple[Json, Collection[str]]]) -> Node:
    reasons = {
        device: f"{described(pod)} of an ended job is still being removed" for pod, ids in leaving for device in ids
    }
    devices = tuple(
        replace(device, out_of_service=device.out_of_service or reasons.get(device.id)) for device in node.devices
    )
    cpus = sum((_requested(pod, "cpu") for pod, _ in leaving), Fraction(0))
    memory = sum((_requested(pod, "memory") for pod, _ in leaving), Fraction(0))
    return replace(
        node,
        devices=devices,
        cpus=max(0.0, node.cpus - float(cpus)),
        memory_bytes=max(0, node.memory_bytes - int(memory)),
    )


_UNBOUNDED: Final = 1024.0
"""CPUs per device where no quota limits them: the cluster decides."""


def _slots(settings: KubernetesSection, free_cpus: Fraction | None) -> int:
    if settings.learners is not None:
        return settings.learners
    return 0 if free_cpus is None else int(free_cpus / Fraction(settings.cpus))


def _numbers(node: str, count: int, held: Collection[str]) -> list[int]:
    """Return the numbers of `count` devices of a node, those of held ones among them; more only if more are held.

    A node may have fewer devices than when a job was placed on the last ones.
    """
    prefix = f"{node}/"
    taken = {int(device.removeprefix(prefix)) for device in held if device.startswith(prefix)}
    free = [number for number in range(count) if number not in taken]
    return sorted([*taken, *free[: max(0, count - len(taken))]])


def _node(
    node: Json,
    pods: Sequence[Json],
    settings: KubernetesSection,
    *,
    by_gpu: bool,
    held: Collection[str],
    used: Collection[str],
) -> Node:
    name, labels = str(node["metadata"]["name"]), node["metadata"].get("labels") or {}
    free_cpus = max(Fraction(0), _allocatable(node, "cpu") - sum(_requested(pod, "cpu") for pod in pods))
    memory = max(Fraction(0), _allocatable(node, "memory") - sum(_requested(pod, "memory") for pod in pods))
    if by_gpu:
        kind = str(labels.get("nvidia.com/gpu.product") or labels.get("gpu.product") or "GPU")
        gpu_memory = int(quantity(labels.get("nvidia.com/gpu.memory") or 0) * 2**20)
        numbers = _numbers(name, int(_allocatable(node, settings.gpu_resource)), held)
        gpus = [Device(id=f"{name}/{n}", index=n, kind=kind, memory_bytes=gpu_memory) for n in numbers]
        holders = [pod for pod in pods for _ in range(int(_requested(pod, settings.gpu_resource)))]
        devices = _less_foreign(gpus, holders, held, used)
    else:
        numbers = _numbers(name, int(free_cpus / Fraction(settings.cpus)), held)
        devices = tuple(Device(id=f"{name}/{n}", index=n, kind="CPU") for n in numbers)
    return Node(
        name=name,
        devices=devices,
        cpus=float(free_cpus),
        memory_bytes=int(memory),
        area=str(labels.get("topology.kubernetes.io/region", "")),
        rack=str(labels.get("topology.kubernetes.io/zone", "")),
        cordoned=_cordoned(node, settings),
    )


def _less_foreign(
    devices: Sequence[Device], holders: Sequence[Json], held: Collection[str], used: Collection[str]
) -> tuple[Device, ...]:
    """Return the devices with one out of service for each that a pod of others holds (`holders`: the pod of each).

    Devices that were so before come first, then the last ones; those of the pool's jobs only if no other is left.
    """
    order = sorted(devices, key=lambda device: (device.id in held, device.id not in used, -device.index))
    reasons = {device.id: f"used by {described(pod)}" for device, pod in zip(order, holders, strict=False)}
    return tuple(replace(device, out_of_service=reasons.get(device.id)) for device in devices)


def _cordoned(node: Json, settings: KubernetesSection) -> str | None:
    """Return why no new learners may be placed on a node, in words that follow "NODE is"; None if they may."""
    name = node["metadata"]["name"]
    if node.get("spec", {}).get("unschedulable"):
        return f"cordoned in the cluster: kubectl uncordon {name}"
    ready = condition(node, "Ready")
    if ready.get("status") != "True":
        said = str(ready.get("message") or ready.get("reason") or "it has not reported yet")
        return f"not ready: {said.rstrip('.')}"
    for taint in node.get("spec", {}).get("taints") or []:
        if taint.get("effect") == "PreferNoSchedule" or any(_tolerates(t, taint) for t in settings.tolerations):
            continue
        key = str(taint.get("key", ""))
        if key.startswith(_OF_KUBERNETES):
            return f"tainted by the cluster: {key.split('/', 1)[1]}"
        return f"tainted with {key}; tolerate it with [[kubernetes.tolerations]]"
    return None


def _tolerates(toleration: TolerationEntry, taint: Json) -> bool:
    if toleration.effect is not None and toleration.effect != taint.get("effect"):
        return False
    if toleration.key != taint.get("key"):
        return False
    return toleration.value is None or toleration.value == (taint.get("value") or "")


def _has_labels(node: Json, settings: KubernetesSection) -> bool:
    labels = node["metadata"].get("labels") or {}
    return all(labels.get(key) == value for key, _, value in (s.partition("=") for s in settings.node_selector))


def _allocatable(node: Json, resource: str) -> Fraction:
    return quantity((node.get("status", {}).get("allocatable") or {}).get(resource, 0))


def _is_learner(pod: Json, settings: KubernetesSection, is_own: IsOwn) -> bool:
    metadata = pod["metadata"]
    labels = metadata.get("labels") or {}
    is_managed = all(labels.get(key) == value for key, value in MANAGED_BY.items())
    is_here = is_managed and metadata.get("namespace") == settings.namespace and labels.get(LABEL_ROLE) == ROLE_LEARNER
    return is_here and is_own(str((metadata.get("annotations") or {}).get(ANNOTATION_JOB, "")))


def _requested(pod: Json, resource: str) -> Fraction:
    """Return what the scheduler counts for a pod: its containers, or its largest init container, plus overhead."""
    spec = pod.get("spec", {})
    main = sum((_request(container, resource) for container in spec.get("containers") or []), Fraction(0))
    inits = [_request(container, resource) for container in spec.get("initContainers") or []]
    return max([main, *inits]) + quantity((spec.get("overhead") or {}).get(resource, 0))


def _request(container: Json, resource: str) -> Fraction:
    resources = container.get("resources") or {}
    for kind in ("requests", "limits"):
        if resource in (resources.get(kind) or {}):
            return quantity(resources[kind][resource])
    return Fraction(0)


def _quota(quotas: Iterable[Json], resource: str) -> Fraction | None:
    """Return the smallest quota for a resource; None without one."""
    found = []
    for quota in quotas:
        hard = quota.get("status", {}).get("hard") or quota.get("spec", {}).get("hard") or {}
        for key in (f"requests.{resource}", f"limits.{resource}", resource):
            if key in hard:
                found.append(quantity(hard[key]))
    return min(found, default=None)
