"""Device discovery: GPUs through NVML, CPU slots, or the configured nodes."""

from __future__ import annotations

import logging
import os
import platform
import re
import socket
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from enum import Enum
from pathlib import Path
from typing import Any, Final, Protocol

from dlaas_server.core.model.cluster import Device, Node
from dlaas_server.pools.config import DeviceChoice, PoolConfig

__all__ = ["CpuSlots", "Holder", "NvmlProbe", "Probe", "StaticNodes", "choose_probe", "cores", "seat_environment"]

log = logging.getLogger(__name__)
GPU: Final = "GPU"
CPU_SLOT: Final = "CPU slot"


class Holder(Enum):
    """Process that holds memory of a GPU."""

    JOB = "a job of this pool"
    NOTEBOOK = "a notebook of this account"
    UNSEEN = "a process outside this container"
    OTHER = "any other process"


class Probe(Protocol):
    """Source of nodes and devices. May block for milliseconds: call it in a thread."""

    unit: str
    """"GPU" or "CPU slot"."""

    def nodes(self, lent: Mapping[str, str]) -> tuple[Node, ...]:
        """Return the present nodes, in stable order. `lent`: devices in use by the pool -> the job."""

    def close(self) -> None:
        """Release the driver."""


# ---- the machine -----------------------------------------------------------------------------------------------------


def cores() -> int:
    """Return the number of cores that this process may use: its affinity, limited by its cgroup's quota."""
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    quota = _cpu_quota()
    return max(1, min(allowed, int(quota)) if quota else allowed)


def _cpu_quota(root: Path = Path("/sys/fs/cgroup")) -> float | None:
    try:
        limit, period = (root / "cpu.max").read_text().split()
        return None if limit == "max" else int(limit) / int(period)
    except (OSError, ValueError):
        log.debug("no cgroup 2 quota")
    try:
        limit = (root / "cpu" / "cpu.cfs_quota_us").read_text()
        period = (root / "cpu" / "cpu.cfs_period_us").read_text()
        return int(limit) / int(period) if int(limit) > 0 else None
    except (OSError, ValueError):
        return None


def _memory_bytes(root: Path = Path("/sys/fs/cgroup")) -> int:
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    for file in (root / "memory.max", root / "memory" / "memory.limit_in_bytes"):
        try:
            total = min(total, int(file.read_text()))
        except (OSError, ValueError):
            continue
    return total


def _cpu_kind(cpuinfo: Path = Path("/proc/cpuinfo")) -> str:
    try:
        found = re.search(r"^(?:model name|Model|cpu model)\s*:\s*(.+)$", cpuinfo.read_text(errors="replace"), re.M)
    except OSError:
        found = None
    return "CPU: " + (found.group(1).strip() if found else platform.machine() or "unknown")


# ---- environment of a seat -------------------------------------------------------------------------------------------


def seat_environment(
    devices: Sequence[str], *, cores_of_node: float, slots_of_node: int, cpus: float = 0.0
) -> dict[str, str]:
    """Return the variables that make only these devices visible to a learner, and limit its threads.

    GPUs go by UUID, since their numbers differ between CUDA and NVML. Threads: the CPUs that were asked for per
    learner, else the node's cores in equal parts per device, at least one: more threads than cores make steps slower.
    """
    gpus = [d for d in devices if d.startswith(("GPU-", "MIG-"))]
    share = int(cores_of_node) // max(1, slots_of_node) * max(1, len(devices))
    threads = str(max(1, int(cpus) if cpus >= 1 else share))
    names = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
    return {"CUDA_VISIBLE_DEVICES": ",".join(gpus)} | dict.fromkeys(names, threads)


# ---- probes ----------------------------------------------------------------------------------------------------------


class CpuSlots:
    """CPU slots: one device per core, or the configured number."""

    unit = CPU_SLOT

    def __init__(self, slots: int | None = None) -> None:
        self._slots = slots

    def nodes(self, lent: Mapping[str, str]) -> tuple[Node, ...]:
        """Return this machine with its slots."""
        kind, count = _cpu_kind(), self._slots or cores()
        devices = tuple(Device(id=f"cpu-{i}", index=i, kind=kind) for i in range(count))
        return (_this_node(devices),)

    def close(self) -> None:
        """Do nothing: there is no driver."""


class StaticNodes:
    """Nodes of the configuration."""

    def __init__(self, config: PoolConfig) -> None:
        self._nodes = tuple(
            Node(
                name=node.name,
                cpus=node.cpus or float(cores()),
                memory_bytes=int(node.memory_gib * 2**30) or _memory_bytes(),
                area=node.area,
                rack=node.rack,
                cordoned=node.cordoned,
                devices=tuple(
                    Device(
                        id=device.id,
                        index=i,
                        kind=device.kind,
                        memory_bytes=int(device.memory_gib * 2**30),
                        out_of_service=device.out_of_service,
                        link=device.link,
                    )
                    for i, device in enumerate(node.devices)
                )
                or tuple(Device(id=f"{node.name}-{i}", index=i, kind=node.kind) for i in range(node.slots)),
            )
            for node in config.nodes
        )
        ids = [device.id for node in self._nodes for device in node.devices]
        self.unit = GPU if ids and all(i.startswith(("GPU-", "MIG-")) for i in ids) else CPU_SLOT

    def nodes(self, lent: Mapping[str, str]) -> tuple[Node, ...]:
        """Return the configured nodes."""
        return self._nodes

    def close(self) -> None:
        """Do nothing: there is no driver."""


def _this_node(devices: tuple[Device, ...]) -> Node:
    return Node(name=socket.gethostname(), devices=devices, cpus=float(cores()), memory_bytes=_memory_bytes())


def _load_pynvml() -> Any:
    import pynvml  # 50-75 ms, so only here

    return pynvml


# Application errors, not the device's: a learner that reads out of bounds must not take a GPU out of service.
# Source: NVIDIA k8s-device-plugin, internal/rm/health.go, list of ignored Xids.
_XIDS_OF_PROGRAMS: Final = frozenset({13, 31, 43, 45, 68, 109})
_ECC_UNCORRECTED, _ECC_VOLATILE = 1, 0


class NvmlProbe:
    """NVIDIA GPUs and MIG slices. Without driver or library it finds no device and raises nothing.

    Each value of each device is queried separately: a failing query (GPU lost, not supported, not permitted, a symbol
    that an old driver lacks) affects no other. `problem` explains an unexpected lack of devices.
    """

    unit = GPU

    def __init__(
        self,
        *,
        memory_tolerance_bytes: int = 2**30,
        visible: str | None = None,
        holder_of: Callable[[int], Holder] = lambda pid: Holder.OTHER,
        load: Callable[[], Any] = _load_pynvml,
    ) -> None:
        self.problem: str | None = None
        self._tolerance = memory_tolerance_bytes
        self._visible = visible
        self._holder_of = holder_of
        self._load = load
        self._nvml: Any = None
        self._events: Any = None
        self._broken: dict[str, str] = {}
        self._by_index: dict[int, Device] = {}
        self._whole: dict[str, Any] = {}
        """UUID -> handle of the GPUs that are used as a whole."""
        self._shareable: set[str] = set()
        """Ids of the devices whose memory only notebooks or unseen processes hold, and of which a quarter is free."""

    def nodes(self, lent: Mapping[str, str]) -> tuple[Node, ...]:
        """Return this machine with the present state of its GPUs."""
        return (_this_node(self.devices(lent)),)

    def devices(self, lent: Mapping[str, str]) -> tuple[Device, ...]:
        """Return the present state of the GPUs and MIG slices."""
        if not self._begin():
            return ()
        n = self._nvml
        self._take_events()
        self._whole = {}
        self._shareable.clear()
        found: list[Device] = []
        for i in range(self._ask(n.nvmlDeviceGetCount) or 0):
            found += self._gpu(i, len(found), lent)
        if all(device.out_of_service for device in found):  # then also GPUs that only notebooks use
            found = [replace(one, out_of_service=None) if one.id in self._shareable else one for one in found]
        groups = self._link_groups()
        return tuple(replace(device, link=groups.get(device.id, "")) for device in found)

    def close(self) -> None:
        """Release the driver."""
        if self._nvml is not None:
            if self._events is not None:
                self._ask(self._nvml.nvmlEventSetFree, self._events)
            self._ask(self._nvml.nvmlShutdown)
            self._nvml = self._events = None

    # ---- internals -------------------------------------------------------------------------------------------

    def _begin(self) -> bool:
        if self._nvml is not None:
            return True
        try:
            nvml = self._load()
        except ImportError:
            return False
        try:
            nvml.nvmlInit()
        except nvml.NVMLError as error:
            quiet = (nvml.NVML_ERROR_LIBRARY_NOT_FOUND, nvml.NVML_ERROR_DRIVER_NOT_LOADED)
            if error.value not in quiet and self.problem is None:
                self.problem = f"the NVIDIA driver does not answer: {error}"
                log.warning("GPUs are not used: %s", self.problem)
            return False
        self._nvml, self.problem = nvml, None
        self._register()
        return True

    def _ask(self, question: Callable[..., Any], *args: object) -> Any:
        """Return the answer of a query; None if device, driver or permissions do not allow it."""
        try:
            return question(*args)
        except self._nvml.NVMLError as error:
            log.debug("%s: %s", getattr(question, "__name__", question), error)
            return None

    def _register(self) -> None:
        """Register for critical events of the driver; each probe fetches them without waiting."""
        n = self._nvml
        self._events = self._ask(n.nvmlEventSetCreate)
        if self._events is None:
            return
        for i in range(self._ask(n.nvmlDeviceGetCount) or 0):
            handle = self._ask(n.nvmlDeviceGetHandleByIndex, i)
            kinds = n.nvmlEventTypeXidCriticalError | n.nvmlEventTypeDoubleBitEccError
            if handle is not None:
                self._ask(n.nvmlDeviceRegisterEvents, handle, kinds, self._events)

    def _take_events(self) -> None:
        n = self._nvml
        for _ in range(100 if self._events is not None else 0):
            event = self._ask(n.nvmlEventSetWait, self._events, 0)
            if event is None:
                return
            uuid = _text(self._ask(n.nvmlDeviceGetUUID, event.device)) or "?"
            if event.eventType == n.nvmlEventTypeDoubleBitEccError:
                self._broken[uuid] = "a double-bit memory error; reset the GPU"
            elif event.eventData not in _XIDS_OF_PROGRAMS:
                self._broken[uuid] = f"Xid {event.eventData}, a device error; see the kernel log"

    def _gpu(self, number: int, index: int, lent: Mapping[str, str]) -> list[Device]:
        n = self._nvml
        try:
            handle = n.nvmlDeviceGetHandleByIndex(number)
            uuid = _text(n.nvmlDeviceGetUUID(handle))
        except n.NVMLError as error:
            known = self._by_index.get(number)
            lost = Device(
                id=known.id if known else f"gpu-{number}",
                index=index,
                kind=known.kind if known else "unknown GPU",
                memory_bytes=known.memory_bytes if known else 0,
                out_of_service=f"does not answer: {error}",
            )
            return [lost]
        if not _is_visible(self._visible, number, uuid):
            return []
        fault = self._gpu_fault(handle, uuid)
        mode = self._ask(n.nvmlDeviceGetMigMode, handle)
        if mode is not None and mode[0] == 1:
            return self._slices(handle, index, fault, lent)
        device = self._describe(handle, uuid, index, fault, lent)
        self._whole[uuid] = handle
        self._by_index[number] = device
        return [device]

    def _link_groups(self) -> dict[str, str]:
        """Return UUID -> group of GPUs that are all linked with each other by NVLink.

        If not all GPUs are linked (two quads, pairs on bridges), a GPU joins the first group, in the driver's order,
        with all of whose members it is linked.
        """
        groups: list[list[str]] = []
        for uuid in self._whole:
            group = next((members for members in groups if all(self._are_linked(uuid, m) for m in members)), None)
            if group is None:
                groups.append([uuid])
            else:
                group.append(uuid)
        linked = [group for group in groups if len(group) > 1]
        return {uuid: f"nvlink-{i}" for i, group in enumerate(linked) for uuid in group}

    def _are_linked(self, first: str, second: str) -> bool:
        n, handles = self._nvml, (self._whole[first], self._whole[second])
        status = self._ask(n.nvmlDeviceGetP2PStatus, *handles, n.NVML_P2P_CAPS_INDEX_NVLINK)
        return bool(status == n.NVML_P2P_STATUS_OK)

    def _slices(self, gpu: Any, index: int, fault: str | None, lent: Mapping[str, str]) -> list[Device]:
        n, found = self._nvml, list[Device]()
        for j in range(self._ask(n.nvmlDeviceGetMaxMigDeviceCount, gpu) or 0):
            handle = self._ask(n.nvmlDeviceGetMigDeviceHandleByIndex, gpu, j)
            uuid = _text(self._ask(n.nvmlDeviceGetUUID, handle)) if handle is not None else ""
            if uuid:
                found.append(self._describe(handle, uuid, index + len(found), fault, lent))
        return found

    def _describe(self, handle: Any, uuid: str, index: int, fault: str | None, lent: Mapping[str, str]) -> Device:
        n = self._nvml
        name = _text(self._ask(n.nvmlDeviceGetName, handle)) or "unknown GPU"
        try:
            memory = n.nvmlDeviceGetMemoryInfo(handle)
        except n.NVMLError as error:
            memory = None
            if error.value in (n.NVML_ERROR_GPU_IS_LOST, n.NVML_ERROR_RESET_REQUIRED):
                fault = fault or f"does not answer: {error}"
        if fault is None and uuid not in lent:  # a lent device is in use by a known job
            fault = self._occupied(handle, uuid, memory)
        total = int(memory.total) if memory is not None else 0
        return Device(id=uuid, index=index, kind=name, memory_bytes=total, out_of_service=fault)

    def _gpu_fault(self, handle: Any, uuid: str) -> str | None:
        """Return the fault of the whole GPU; None if it is healthy."""
        n = self._nvml
        if uuid in self._broken:
            return self._broken[uuid]
        rows = self._ask(n.nvmlDeviceGetRemappedRows, handle)
        if rows is not None and rows[3]:
            return "its memory has more faulty rows than it can remap"
        errors = self._ask(n.nvmlDeviceGetTotalEccErrors, handle, _ECC_UNCORRECTED, _ECC_VOLATILE)
        if errors:
            return f"{errors} uncorrected memory errors since its last reset; reset the GPU"
        return None

    def _occupied(self, handle: Any, uuid: str, memory: Any) -> str | None:
        """Return which processes other than jobs hold memory of an unused device; None if none do."""
        running = self._ask(self._nvml.nvmlDeviceGetComputeRunningProcesses, handle)
        if running is None or memory is None:
            return None
        by: dict[Holder, list[Any]] = {}
        for process in running:
            by.setdefault(self._holder_of(process.pid), []).append(process)
        others, notebooks = by.get(Holder.OTHER, []), by.get(Holder.NOTEBOOK, [])
        if others and (held := _held(others, memory)) > self._tolerance:
            return f"{_gib(held)} of its memory is used by {_names(others)}, outside this pool"
        if int(memory.free) >= int(memory.total) / 4:
            self._shareable.add(uuid)
        if notebooks and (held := _held(notebooks, memory)) > self._tolerance:
            return (
                f"{_gib(held)} of its memory is used by the notebook kernel {_names(notebooks)}; "
                "restart that kernel to free it"
            )
        is_unseen = not running or by.keys() == {Holder.UNSEEN}
        if is_unseen and int(memory.used) > self._tolerance:
            return f"{_gib(memory.used)} of its memory is held by no visible process; not used until it is free"
        return None


def _is_visible(visible: str | None, number: int, uuid: str) -> bool:
    """Return whether the engine's own CUDA_VISIBLE_DEVICES allows the GPU."""
    if visible is None:
        return True
    names = [name.strip() for name in visible.split(",")]
    return any(name == str(number) or (len(name) > 4 and uuid.startswith(name)) for name in names)


def _held(processes: Sequence[Any], memory: Any) -> int:
    """Return the bytes that processes hold; all that is used if the driver reports only the sum."""
    if any(process.usedGpuMemory is None for process in processes):
        return int(memory.used)
    return sum(int(process.usedGpuMemory) for process in processes)


def _names(processes: Sequence[Any]) -> str:
    return ", ".join(_process_name(process.pid) for process in processes[:3])


def _process_name(pid: int) -> str:
    import psutil  # needed for this name only, and the engine must start fast

    try:
        return f"{psutil.Process(pid).name()} (process {pid})"
    except psutil.Error:
        return f"process {pid}"


def _gib(size: int) -> str:
    return f"{int(size) / 2**30:.1f} GiB"


def _text(value: object) -> str:
    """Return NVML text as str; bindings before 11.5 return bytes."""
    return value.decode(errors="replace") if isinstance(value, bytes) else str(value or "")


# ---- choice ----------------------------------------------------------------------------------------------------------


def choose_probe(
    config: PoolConfig,
    *,
    holder_of: Callable[[int], Holder] = lambda pid: Holder.OTHER,
    environment: Mapping[str, str] = os.environ,
) -> Probe:
    """Return the probe for the configured nodes, else for GPUs if there are any, else for CPU slots."""
    if config.nodes:
        return StaticNodes(config)
    if config.pool.devices != DeviceChoice.CPUS:
        nvml = NvmlProbe(
            memory_tolerance_bytes=config.pool.memory_tolerance_mib * 2**20,
            visible=environment.get("CUDA_VISIBLE_DEVICES"),
            holder_of=holder_of,
        )
        if config.pool.devices == DeviceChoice.GPUS or nvml.devices({}):
            return nvml
        nvml.close()
    return CpuSlots(config.pool.cpu_slots)
