"""Programs whose learners would all do the same. Such a job starts with one learner on one device. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any, Final

from jupyter_dlaas.suggest import advice_text
from jupyter_dlaas.wire.protocol import STARTS_WITH_ONE, Note

__all__ = ["note", "options", "trains_alone"]

_MAY_SHARE: Final = re.compile(
    r"distribut|distrib_|\bidist\b|horovod|mpi4py|collective|MirroredStrategy|accelerat|torchrun|deepspeed|fsdp|fabric"
    r"|Trainer\b|\blaunch|process_(index|count)|(local|world|global)_?(rank|size)|DLAAS_|\bray\b|\bdask\b",
    re.IGNORECASE,
)
"""Words of a program that may connect its learners or divide the work among them."""


def trains_alone(texts: Iterable[str]) -> bool:
    """Return whether nothing in a program and its own modules refers to other learners."""
    return all(advice_text.trains_alone(text) and _MAY_SHARE.search(text) is None for text in texts)


def options(given: Mapping[str, Any], learners_max: int) -> dict[str, Any]:
    """Return the options of such a program: a minimum of one learner, with which it starts. A schedule is kept."""
    if given.get("schedule"):
        return dict(given)
    found = {name: value for name, value in given.items() if name not in ("gpus", "learners")}
    if str(found.get("elastic", "")).startswith("auto"):
        found["elastic"] = "manual"
    return found | {"learners": (1, learners_max), "start_with": 1}


def note(learners_max: int) -> Note:
    """Return the first note of the job."""
    text = (
        f"starts with 1 learner, not {learners_max}: nothing in this program connects learners, so each would "
        "train the same on all of the data. Use dlaas.run() to share the work (see %%train --suggest), or "
        f"--learners {learners_max} to start all of them."
    )
    return Note(code=STARTS_WITH_ONE, text=text)
