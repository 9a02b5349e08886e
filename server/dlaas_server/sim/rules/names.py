"""Rules by their name on the command line."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Final

from dlaas_server.sim.replay.event_loop import Rule
from dlaas_server.sim.rules.attained import Attained, Gittins, GittinsIndex
from dlaas_server.sim.rules.packspread import PackSpread
from dlaas_server.sim.rules.tiresias import FirstIn, Sorted, remaining_gpu_s, remaining_s, size
from dlaas_server.sim.trace.formats import read_gpu_seconds
from dlaas_server.sim.trace.trace import NodeSpec

__all__ = ["COUNTING", "PLACING", "RULES", "pool_rule"]

DISTRIBUTION: Final = Path(__file__).parent.parent / "traces" / "tiresias_gputime_distribution.csv"


def _index() -> GittinsIndex:
    return GittinsIndex(read_gpu_seconds(DISTRIBUTION))


COUNTING: Final[Mapping[str, Callable[[int], Rule]]] = {
    "tiresias:fifo": lambda gpus: FirstIn(gpus, skips=False),
    "tiresias:fjf": lambda gpus: FirstIn(gpus, skips=True),
    "tiresias:sjf": lambda gpus: Sorted(gpus, size),
    "tiresias:shortest": lambda gpus: Sorted(gpus, remaining_s),
    "tiresias:shortest-gpu": lambda gpus: Sorted(gpus, remaining_gpu_s),
    "tiresias:dlas": lambda gpus: Attained(gpus, is_by_gpu=False),
    "tiresias:dlas-gpu": lambda gpus: Attained(gpus, is_by_gpu=True),
    "tiresias:dlas-gpu-gittins": lambda gpus: Attained(gpus, is_by_gpu=True, index=_index()),
    "tiresias:gittins": lambda gpus: Gittins(gpus, _index()),
}
"""Name -> rule for a pool with a number of GPUs, wherever they are."""

PLACING: Final[Mapping[str, Callable[[Sequence[NodeSpec]], Rule]]] = {
    f"ffdl:{placement}-{queue}": partial(PackSpread, is_pack=placement == "pack", skips=queue == "skip")
    for placement in ("pack", "spread")
    for queue in ("fifo", "skip")
}
"""Name -> rule for a pool of these nodes."""

RULES: Final = frozenset(COUNTING) | frozenset(PLACING)


def pool_rule(name: str, nodes: Sequence[NodeSpec]) -> Rule:
    """Return the rule of this name for a pool of these nodes."""
    if name in COUNTING:
        return COUNTING[name](sum(node.gpus for node in nodes))
    return PLACING[name](nodes)
