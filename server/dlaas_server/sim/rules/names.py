"""The rules by the name that the command line knows them by."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

from dlaas_server.sim.formats import read_gpu_seconds
from dlaas_server.sim.loop import Rule
from dlaas_server.sim.rules.attained import Attained, Gittins, GittinsIndex
from dlaas_server.sim.rules.tiresias import FirstIn, Sorted, remaining_gpu_s, remaining_s, size

__all__ = ["RULES"]

DISTRIBUTION: Final = Path(__file__).parent.parent / "traces" / "tiresias_gputime_distribution.csv"


def _index() -> GittinsIndex:
    return GittinsIndex(read_gpu_seconds(DISTRIBUTION))


RULES: Final[Mapping[str, Callable[[int], Rule]]] = {
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
"""Name -> the rule for a pool of so many GPUs."""
