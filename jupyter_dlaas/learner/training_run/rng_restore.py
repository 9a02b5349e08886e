"""Random number generators of a job: restored from the notebook, or seeded by the job."""

from __future__ import annotations

import functools
import json
import random

from jupyter_dlaas.learner.control.context import current
from jupyter_dlaas.learner.environment import import_hooks
from jupyter_dlaas.learner.environment.seeds import derive, seed_all
from jupyter_dlaas.transfer.rng_state import RESTORERS, read_state

__all__ = ["random_anew", "random_as_before"]


def random_as_before(cell: int) -> None:
    """Restore the random generators to their state in the notebook before this cell ran. Does nothing outside a job."""
    context = current()
    path = None if context is None else context.job_dir / "inputs" / "chance.json"
    if path is None or not path.exists():
        return
    found = json.loads(json.loads(path.read_text())[str(cell)])
    for name, act in RESTORERS.items():
        if name in found:
            import_hooks.after(name, functools.partial(act, found[name]))
    random.setstate(read_state(found["random"]))


def random_anew() -> None:
    """Seed the random generators from the job's own seed. Does nothing outside a job."""
    context = current()
    if context is not None:
        seed_all(derive(context.seed, "training"), later=True)
