"""Fragmentation: free capacity that usual requests cannot use, and the placement that increases it least.

Source: Weng et al., "Beware of fragmentation: scheduling GPU-sharing workloads with fragmentation gradient descent",
USENIX ATC 2023, section 3. Amounts are thousandths of a device.
"""

from __future__ import annotations

from typing import Final

from dlaas_server.core.model.resources import WHOLE, Shape, is_kind

__all__ = ["Option", "State", "Usual", "Way", "free_milli", "ways"]

State = tuple[float, int, tuple[tuple[str, int, tuple[int, ...]], ...]]
"""Free capacity of a node: CPUs, bytes of memory, and per kind the whole devices and free parts of others."""

Way = tuple[str | None, int, State]
"""Way to place a learner on a node: device kind (None: several), free part of the shared device, state after it.

The part is WHOLE if the device is not shared yet.
"""

Option = tuple[tuple[int, int, float], str | None, int]
"""Best way: (growth in STEPs, free thousandths before, CPUs before), smallest first; then kind and part."""

STEP: Final = 40
"""Resolution of the growth, 1/25 device as in the reference, which uses whole percents of a sigmoid.

Equal growth is decided by tightness.
"""
NEWS: Final = 1.25
"""Growth of the number of noted requests after which the statistics are recomputed; results are cached in between."""


class Usual:
    """Frequency of requests by shape."""

    def __init__(self) -> None:
        self._counts: dict[Shape, int] = {}
        self._noted = 0
        self._counted = 0
        self._demands: list[tuple[str | None, int, int, list[tuple[float, int, float]]]] = []
        """Device kind, devices, thousandths of each; and the requests: CPUs, memory, share of all learners."""
        self._lost: dict[State, float] = {}
        self._options: dict[Shape, dict[State, Option | None]] = {}

    def note(self, shape: Shape, learners: int = 1) -> None:
        """Record a request of this shape for `learners` learners."""
        self._counts[shape] = self._counts.get(shape, 0) + learners
        self._noted += learners

    def _recount(self) -> None:
        if self._noted <= NEWS * self._counted:
            return
        self._counted = self._noted
        demands: dict[tuple[str | None, int, int], list[tuple[float, int, float]]] = {}
        for shape, count in self._counts.items():
            if shape.gpus:
                asked = (shape.cpus, shape.memory_bytes, count / self._noted)
                demands.setdefault((shape.gpu_kind, shape.gpus, shape.milli), []).append(asked)
        self._demands = [(*named, asked) for named, asked in demands.items()]
        self._lost.clear()
        self._options.clear()

    def lost(self, state: State) -> float:
        """Return the free thousandths of this node that are of no use, on average over usual requests.

        All of it is lost for requests that do not fit; for the others, the parts that are too small.
        """
        self._recount()
        found = self._lost.get(state)
        if found is None:
            cpus, memory_bytes, held = max(state[0], 0.0), max(state[1], 0), state[2]
            found = float(free_milli(state))
            for kind, gpus, milli, asked in self._demands:
                usable = _usable(held, kind, gpus, milli)
                if usable:
                    for needs_cpus, needs_bytes, share in asked:
                        if needs_cpus <= cpus + 1e-9 and needs_bytes <= memory_bytes:
                            found -= usable * share
            self._lost[state] = found
        return found

    def options(self, shape: Shape) -> dict[State, Option | None]:
        """Return the cached options for this shape; valid until the next `note`."""
        self._recount()
        return self._options.setdefault(shape, {})

    def option(self, state: State, shape: Shape) -> Option | None:
        """Return the best way to place one learner on a node in this state; None if it does not fit."""
        before, free = self.lost(state), free_milli(state)
        found: Option | None = None
        for kind, part, after in ways(state, shape):
            option = ((round((self.lost(after) - before) / STEP), free, state[0]), kind, part)
            if found is None or option[0] < found[0]:
                found = option
        return found


def free_milli(state: State) -> int:
    """Return the free thousandths of devices."""
    return sum(whole * WHOLE + sum(parts) for _, whole, parts in state[2])


_Held = tuple[tuple[str, int, tuple[int, ...]], ...]


def _usable(held: _Held, kind: str | None, gpus: int, milli: int) -> int:
    usable = most = 0
    for name, whole, parts in held:
        if kind is None or is_kind(name, kind):
            most += whole
            if milli < WHOLE:
                for part in parts:
                    if part >= milli:
                        usable += part
    return usable + most * WHOLE if milli < WHOLE or most >= gpus else 0


def ways(state: State, shape: Shape) -> list[Way]:
    """Return the kinds and parts that a learner could take on a node, tightest part first; [] if it does not fit."""
    cpus, memory_bytes, held = state
    left = (cpus - shape.cpus, memory_bytes - shape.memory_bytes)
    if (shape.cpus and left[0] < -1e-9) or (shape.memory_bytes and left[1] < 0):
        return []
    if not shape.gpus:
        return [(None, WHOLE, (*left, held))]
    found: list[Way] = []
    for i, (name, whole, parts) in enumerate(held):
        if shape.gpu_kind is not None and not is_kind(name, shape.gpu_kind):
            continue
        taken: list[tuple[int, int, tuple[int, ...]]] = []
        if shape.milli == WHOLE:
            taken += [(WHOLE, whole - shape.gpus, parts)] if whole >= shape.gpus else []
        else:
            for part in sorted(set(parts)):
                if part >= shape.milli:
                    at = parts.index(part)
                    taken.append((part, whole, _sorted(*parts[:at], part - shape.milli, *parts[at + 1 :])))
            taken += [(WHOLE, whole - 1, _sorted(*parts, WHOLE - shape.milli))] if whole else []
        for part, kept, rest in taken:
            found.append((name, part, (*left, (*held[:i], (name, kept, rest), *held[i + 1 :]))))
    if not found and shape.milli == WHOLE:
        found += _mixed(left, held, shape)
    return found


def _mixed(left: tuple[float, int], held: _Held, shape: Shape) -> list[Way]:
    """Return the way that mixes device kinds for one learner; used only if no single kind suffices."""
    missing, after = shape.gpus, list(held)
    for i, (name, whole, parts) in enumerate(held):
        if shape.gpu_kind is None or is_kind(name, shape.gpu_kind):
            after[i] = (name, whole - min(whole, missing), parts)
            missing -= min(whole, missing)
    return [] if missing else [(None, WHOLE, (*left, tuple(after)))]


def _sorted(*parts: int) -> tuple[int, ...]:
    return tuple(sorted(parts))
