"""Rehearsal of a learner's start in a process that was forked ahead and waits for its job.

A fork shares the memory of its parent until it writes to it, and Python writes to every object that it uses: into its
reference count. So the first use of a module in a fork copies its pages, at some microseconds each. That was half of
the time from a job's start to its first line. A process that waits has the time to do it before.
"""

from __future__ import annotations

import gc
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from jupyter_dlaas.failures.cell_map import CellMap
from jupyter_dlaas.learner.checkpoint import checkpoint_files
from jupyter_dlaas.learner.checkpoint.namespace import Namespace
from jupyter_dlaas.learner.control.context import Context
from jupyter_dlaas.learner.control.guardian_channel import Control
from jupyter_dlaas.learner.environment import seeds
from jupyter_dlaas.learner.process import prelude
from jupyter_dlaas.objects.process_settings import SETTINGS
from jupyter_dlaas.runtime.spawn import after_fork, launch
from jupyter_dlaas.runtime.spawn.launch import Order
from jupyter_dlaas.transfer import results, rng_state
from jupyter_dlaas.wire.codec import decode, encode
from jupyter_dlaas.wire.learner_messages import LearnerState, to_line
from jupyter_dlaas.wire.protocol import JobSpec
from jupyter_dlaas.wire.secret_masking import mask_of

__all__ = ["rehearse"]

_NOWHERE: Final = Path(os.devnull) / "job"
_CELLS: Final = {"1": "cell 1"}
_PROGRAM: Final = 'import os\n\nif __name__ == "__main__":\n    print(os.name)\n    os.name\n'


def rehearse(is_ordered: Callable[[float], bool], quiet_s: float) -> None:
    """Use what the start of a learner uses, without an effect on the job to come; return once its order is there.

    `is_ordered` waits some seconds for the order. The last part is long, and would slow down the starts of other jobs:
    it waits for `quiet_s` seconds without an order.
    """
    if not any(_is_over(act, is_ordered, 0.0) for act in (_take_order, _enter_job, _read_program, _end)):
        _is_over(_begin_loop, is_ordered, quiet_s)
    gc.disable()  # until the order is there


def _is_over(act: Callable[[], object], is_ordered: Callable[[float], bool], within_s: float) -> bool:
    """Carry out a part unless the order is there. An error is logged: if it matters, the start raises it again."""
    if is_ordered(within_s):
        return True
    try:
        act()
    except Exception as error:  # noqa: BLE001 - a start that was not rehearsed only takes longer
        print(f"rehearsal: {act.__name__}: {error!r}", file=sys.stderr, flush=True)
    return False


def _take_order() -> None:
    environment = dict(os.environ)
    order = Order(module=__name__, arguments=("", "0"), environment=environment, log=os.devnull)
    decode(Order, json.loads(json.dumps(encode(order))))
    launch.put_on({**environment, "REHEARSAL": "1"})
    launch.put_on(environment)
    after_fork.wake(environment)


def _enter_job() -> None:
    spec = decode(JobSpec, json.loads(json.dumps(encode(JobSpec(cells=_CELLS)))), unknown="ignore")
    control = Control(_NOWHERE, 0)
    control.update_state(is_storing=True)
    to_line(LearnerState(member=0))
    Context("job", _NOWHERE, spec, 0, 0, 0, 1, seeds.seed_of("job"), control, mask=mask_of(os.environ))


def _read_program() -> None:
    CellMap(_NOWHERE / "train.py", _CELLS)
    parts = prelude.parts_of(_PROGRAM, _NOWHERE / "train.py", _CELLS)
    assert parts is not None
    exec(parts[0], {})  # noqa: S102 - imports what is imported


def _end() -> None:
    rng_state.written()
    results.dump([0.5])


def _begin_loop() -> None:
    """Record the objects of a small program, store their changes and restore them, as loops of `run` do.

    Only where PyTorch is loaded: without it, most programs have no such loop.
    """
    torch: Any = sys.modules.get("torch")
    if torch is None:
        return
    model = torch.nn.Sequential(torch.nn.Linear(1, 1), torch.nn.ReLU())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    names = {"model": model, "optimizer": optimizer, "losses": [0.5], "best": {"loss": 0.5}, "x": torch.zeros(2)}
    namespace = Namespace(names, (Path(__file__),), [model, optimizer], 0, {"process": SETTINGS})
    undone = namespace.revert_ahead()
    loaded = namespace.load(namespace.store({}).data)
    namespace.put_back(loaded, reverts=True, seed=0, undone=undone)
    checkpoint_files.from_bytes(checkpoint_files.to_bytes(rng_state.snapshot()))
