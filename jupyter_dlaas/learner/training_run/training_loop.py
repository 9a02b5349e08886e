"""The steps of a training loop: begin, boundary, restored position, step count and gradient weight.

Loops of `run` and of frameworks call these functions.
"""

from __future__ import annotations

import importlib
import os
import signal
import sys
import threading
import time
from typing import NoReturn

from jupyter_dlaas.learner.checkpoint import checkpoint_files, user_state
from jupyter_dlaas.learner.control.boundaries import Verdict
from jupyter_dlaas.learner.control.context import Context, Leave
from jupyter_dlaas.learner.data.position import Position
from jupyter_dlaas.learner.data.sample_reader import Bad
from jupyter_dlaas.learner.data.sharding import Share
from jupyter_dlaas.learner.environment.seeds import derive, seed_all
from jupyter_dlaas.learner.reporting.notes import REPEATED, report
from jupyter_dlaas.learner.training_run import checkpoint_policy, checkpoint_state, independence_check
from jupyter_dlaas.learner.training_run.state import RunState
from jupyter_dlaas.runtime.system.process import uptime_s
from jupyter_dlaas.transfer import rng_state

__all__ = [
    "begin",
    "boundary",
    "count",
    "form_gang",
    "leave",
    "may_change",
    "may_lose",
    "reach",
    "report_bad_sample",
    "restore_early",
    "uncount",
    "weigh",
]


def begin(run: RunState) -> None:
    """Begin training: restore the checkpoint or seed this learner, and start to report progress. Runs once."""
    if run.has_begun:
        return
    run.has_begun = True
    context = run.context
    if context is None:
        return
    if not independence_check.has_own_loop(context):
        run.base = user_state.base(context.script)
    if run.world_size > 1 and "torch" in sys.modules and run.objects:
        form_gang(run)
    if run.is_joining:
        return
    if run.resume is None:
        if run.rank and run.exact is None:
            seed_all(derive(run.seed, run.step, run.rank))
    elif run.restored is not None and "call" not in run.restored and not run.restores_late:
        # (A checkpoint from a framework's own loop is restored there: the code before it runs again with its own
        # values.)
        checkpoint_state.put_back(run, reverts=False)
    run.boundaries.begin()
    run.saved_s = time.monotonic()
    if run.restored is None or ("call" not in run.restored and not run.restores_late):
        checkpoint_state.report_first_step(run)


def restore_early(run: RunState) -> None:
    """Restore the checkpoint now: a custom loop has no position at which to wait for it."""
    if run.restores_late and run.namespace is None:
        run.restores_late = False
        checkpoint_state.put_back(run, reverts=False)
        checkpoint_state.report_first_step(run)


def boundary(run: RunState, position: Position, add: checkpoint_policy.Add | None = None) -> Position:
    """Stop, change the gang's membership or write a checkpoint, if due. Called between two steps.

    Returns `position` itself, or the position at which this learner continues with the other learners' state.
    """
    run.is_looping = True
    if run.context is not None and run.context.has_left:
        run.context.end_now()
    if run.sharded is not None:
        checkpoint_state.report_pending(run)
    arrived_s = time.monotonic()
    found: Position | None
    membership = run.membership
    while (verdict := membership.ask(position.step) if membership else run.boundaries.ask()) is Verdict.SWITCH:
        found = membership.change(position, arrived_s)
        if found is not None and found is not position:
            return found
    if verdict is Verdict.STOP:
        run.last_step_s = uptime_s()
        for hook in (*run.halt_hooks, *run.checkpoint_hooks):
            hook()
        if run.rank == 0 and (run.trained or run.resume is None):
            checkpoint_policy.save(run, position, add)
        checkpoint_files.settle()
        run.is_leaving = True
        leave(run.context)
    run.passed_s = arrived_s
    if run.resume is None and checkpoint_policy.is_due(run):
        for hook in run.checkpoint_hooks:
            hook()
        run.wants_checkpoint = False
        if run.rank == 0:
            checkpoint_policy.save(run, position, add)
    return position


def leave(context: Context | None) -> NoReturn:
    """End the program by an exception. Training in another thread also ends the main thread, which waits for it."""
    if context is not None:
        context.has_left = True
        context.on_leave()
    if threading.current_thread() is threading.main_thread():
        raise Leave("requested")
    os.kill(os.getpid(), signal.SIGTERM)
    raise SystemExit(0)


def reach(run: RunState) -> None:
    """Restore the checkpoint's state when the program reaches the position at which it was taken."""
    if run.resume is None:
        return
    run.resume = None
    assert run.restored is not None
    if "call" in run.restored:
        checkpoint_state.put_back_values(run)
    else:
        checkpoint_state.put_back(run, reverts=True)  # the code before this position has run a second time
        checkpoint_state.report_not_entered(run)
    checkpoint_state.put_back_step(run, run.restored)
    if run.rank == 0 or run.exact is not None:
        rng_state.put_back(run.restored["streams"])
    else:
        seed_all(derive(run.seed, run.step, run.rank))
    if "call" in run.restored:  # the code before it only led to this position
        checkpoint_state.report_first_step(run)
    run.restored = None


def count(run: RunState, samples: int = 0, *, reports: bool = True) -> None:
    """Begin a step: values logged from now on belong to it."""
    run.step += 1
    run.trained.add(run.epoch, run.step - 1)
    if reports:
        run.meter.step(run.epoch, run.step, samples)


def uncount(run: RunState, samples: int) -> None:
    """Undo a step that failed, so that it can be repeated."""
    if run.gang is not None and run.gang.killed_worker:
        lost, run.gang.killed_worker = run.gang.killed_worker, ""
        report(
            REPEATED,
            f"Learner {run.rank} lost a data worker while gradients were exchanged: {lost} The step is repeated.",
        )
    run.step -= 1
    run.trained.undo()
    run.meter.step(run.epoch, run.step, -samples)


def weigh(run: RunState, share: Share | None, *, is_counted: bool = False, size: int = 0) -> None:
    """Set the weight of this learner's gradients in the next step. `is_counted`: some samples may be missing."""
    if run.growth is not None and share is not None:
        run.growth.begin(run.step, size)
    gang = run.gang
    if gang is None or run.exact is not None:
        run.share = share.count if share is not None else 1
    elif share is None:
        gang.weight = 1.0 / run.world_size
    else:
        run.share = share.count
        total = gang.total(share.count) if is_counted else share.total
        gang.weight = share.count / total if total else 0.0


def may_lose(run: RunState) -> bool:
    """Return whether other learners may be lost in the next step, so that the step would be repeated."""
    return run.gang is not None and run.gang.may_change and run.world_size > 1


def form_gang(run: RunState) -> None:
    """Enter the gang's first process group, once."""
    if run.gang is not None:
        return
    module = importlib.import_module("jupyter_dlaas.learner.elastic.data_parallel")
    is_elastic = may_change(run)
    run.gang = gang = module.Gang(run.device, run.rank, run.world_size, run.gate, may_change=is_elastic)
    if run.context is not None:
        run.context.control.beats.collectives_started = gang.collectives_started
    if is_elastic and run.context is not None:
        module = importlib.import_module("jupyter_dlaas.learner.training_run.membership")
        run.membership = module.LearnerMembership(run, run.context, gang)
        if run.is_joining:
            gang.enter(None, run.rank, 1)
        elif run.world_size > 1:
            gang.rendezvous(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]))
    if not run.is_joining:
        gang.check_step(run.step)
    if run.exact is not None:
        run.exact.gang = gang
        if not run.is_joining:
            run.exact.share()


def may_change(run: RunState) -> bool:
    """Return whether this gang's membership may change while it trains."""
    if run.context is None or not run.context.may_change:
        return False
    return run.device.type == "cpu" or bool(
        importlib.import_module("jupyter_dlaas.learner.elastic.nccl_group").is_able()
    )


def report_bad_sample(run: RunState, one: Bad) -> None:
    """List a sample that could not be read."""
    print(f"[sample {one.number} cannot be read and is skipped: {one.why}]", flush=True)
    with (run.output_dir / "bad-samples.txt").open("a", encoding="utf-8") as file:
        print(one.number, one.why.replace("\n", " "), file=file)
