"""The state of a run: the content of a checkpoint, and its restoration in a restarted, resumed or joining learner.

A program that trains in a loop of `run` executes its code up to that loop as in the first run, with the objects that
its cells create. State is restored only when the loop begins. So values that the program derives from these objects
before the loop are unchanged, too.
"""

from __future__ import annotations

import copy
import importlib
import io
import sys
import time
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from jupyter_dlaas.learner.checkpoint import checkpoint_files, parameter_state, surrounding_iterators, user_state
from jupyter_dlaas.learner.control.context import Context
from jupyter_dlaas.learner.environment.seeds import derive
from jupyter_dlaas.learner.reporting.metrics import Metrics
from jupyter_dlaas.learner.reporting.notes import NOT_KEPT, NOT_LOADED, report
from jupyter_dlaas.learner.training_run import independence_check
from jupyter_dlaas.objects.object_kinds import is_readable_file
from jupyter_dlaas.objects.process_settings import SETTINGS
from jupyter_dlaas.objects.special_objects import is_lost
from jupyter_dlaas.runtime.system.process import uptime_s
from jupyter_dlaas.transfer import rng_state
from jupyter_dlaas.transfer.torch_layers import has_cudnn_dropout
from jupyter_dlaas.wire.secret_masking import without_secrets

if TYPE_CHECKING:
    from jupyter_dlaas.learner.training_run.state import RunState

__all__ = [
    "begin_loop",
    "content_of",
    "load",
    "put_back",
    "put_back_objects",
    "put_back_step",
    "put_back_values",
    "report_first_step",
    "report_inner",
    "report_not_entered",
    "report_pending",
    "report_surrounding",
]

SETTINGS.without_secrets = without_secrets
_LISTED: Final = 8
_NO_ITERATOR: Final = (
    "would restart from its first item after a halt, a preemption or a move: the position of a running iterator "
    "cannot be saved. Take the batches from run.batches(…), or keep the items in a list above the loop and read them "
    "by index: for index, batch in enumerate(run.batches(…))."
)
_BY_LINE: Final = (
    "is read by a loop or by next(), so that checkpoints do not know its position: after a halt, a preemption or a "
    "move it would be read from its first line. Read it with readline()."
)
_SURROUNDING: Final = (
    "around {loop} would count from its first item after a halt, a preemption or a move, and pair, skip or repeat the "
    "wrong ones: "
)

_EMPTIED: Final = (
    'is open for writing, and opening it again after a halt, a preemption or a move empties it: open it with mode "a".'
)


_NOT_ENTERED: Final = (
    "was not entered again before this step, so that its former values are not restored: what is entered instead ends "
    "with values of the checkpoint. Keep the values that its end restores in variables of the loop."
)
_LOST: Final = (
    "cannot be kept in checkpoints: after a halt, a preemption or a move it is as the program creates it "
    "again. Keep values in lists or arrays, and files in run.output_dir."
)
_IN_PARTS: Final = (
    "are sharded over the learners, and checkpoints of this job cannot keep them: after a halt or a move they start "
    "from their initial values. Gather them in a function below @run.on_checkpoint, and restore them above the loop."
)
_DRAWN: Final = (
    "draws dropout between its recurrent layers from a state of cuDNN that cannot be read: after a halt, a preemption "
    "or a move, other units are dropped than in a job that runs through. To keep them, use dropout=0 there and "
    "nn.Dropout between layers with num_layers=1."
)
_PENDING: Final = (
    "This loop accumulates gradients of sharded parameters over several steps, and a checkpoint between these steps "
    "cannot keep them: after a halt or a move, one update lacks the gradients of its first steps. Take all of their "
    "samples from run.batches at once, and split them within the step."
)


def content_of(run: RunState, *, is_framework: bool = False) -> tuple[dict[str, Any], list[str]]:
    """Return the state at a boundary, and the names of changed values that cannot be kept."""
    own: dict[str, Any] = {}
    left_out: list[str] = []
    namespace = b""
    if run.namespace is not None and not is_framework:
        stored = run.namespace.store(run.user_values)
        namespace, left_out = stored.data, sorted(stored.left_out)
        _report_left_out(run, stored.left_out)
    else:
        own, left_out = user_state.changed(run.context.script if run.context else {}, run.base)
    content = {
        "objects": {name: one.state_dict() for name, one in run.objects},
        "parameters": parameter_state.snapshot(run.objects),
        "modes": run.gang.modes if run.gang is not None else [],
        "state": run.user_values,
        "values": own,
        "namespace": namespace,
        "streams": rng_state.snapshot(),
        "done": run.gate.done,
        "gradients": run.accumulated.snapshot() if run.accumulated is not None and run.exact is None else None,
        "growth": run.growth.state if run.growth is not None else None,
    }
    if run.namespace is not None and run.namespace.gradients is not None:
        content["unprepared_gradients"] = run.namespace.gradients.snapshot()
    return content, left_out


def _report_left_out(run: RunState, left_out: dict[str, str]) -> None:
    new = {path: why for path, why in left_out.items() if path.replace(" .", " ") not in run.reported}
    run.reported.update(new)
    if new and run.rank == 0:
        said = "; ".join(f"`{path or 'what the loop has changed'}` ({why})" for path, why in [*new.items()][:_LISTED])
        report(
            NOT_KEPT,
            f"Checkpoints of this job cannot keep {said}. "
            "After a halt or a move, the job continues with the values from before the loop. Change them above the "
            "loop, or keep what they need in run.state.",
        )


def load(run: RunState, context: Context, without: list[Path]) -> int | None:
    """Read the last checkpoint that is not in `without`; return its step, or None if there is none."""
    found = checkpoint_files.load(context.job_dir, may_tidy=run.rank == 0 and not without, without=without)
    if found is None:
        return None
    manifest, content = found
    run.restored, run.has_checkpoint = content, True
    run.resume = position = content["position"]
    run.epoch, run.step = position.epoch, position.step
    run.user_values.clear()
    run.user_values.update(content["state"])
    run.restores_late = "call" not in content and independence_check.has_own_loop(context)
    if manifest.left_out and run.rank == 0 and "call" not in content:
        names = ", ".join(manifest.left_out)
        print(f"[changed by the loop, but not stored in the checkpoint and so not restored: {names}]", flush=True)
    return manifest.step


def begin_loop(run: RunState) -> None:
    """Record the program's objects when a loop of `run` begins, and restore the checkpoint."""
    context = run.context
    if run.namespace is not None or context is None:
        return
    module = importlib.import_module("jupyter_dlaas.learner.checkpoint.namespace")
    files = (context.job_dir / "train.py", context.job_dir / "files")
    given = [one for _, one in run.objects]
    SETTINGS.at_epoch = None
    run.namespace = module.Namespace(context.script, files, given, run.rank, {"process": SETTINGS})
    run.saved_s = time.monotonic()
    if run.is_joining:
        return
    _watch_gradients(run)
    if run.restored is not None and "call" not in run.restored:
        reported = None if run.restores_late else run.step
        _put_back_or_before(run, context)
        run.restores_late = False
        if run.step != reported:
            report_first_step(run)
    if run.rank == 0:
        _report_in_progress(run, run.namespace.in_progress())
        if names := _names(type(one).__name__ for _, one in run.objects if has_cudnn_dropout(one)):
            report(NOT_KEPT, f"{names} {_DRAWN}")


def report_not_entered(run: RunState) -> None:
    """Report the context managers that the checkpoint holds and that the program has not entered again."""
    if run.namespace is not None and run.namespace.not_entered and run.rank == 0:
        names = ", ".join(f"`{one}`" for one in run.namespace.not_entered[:_LISTED])
        report(NOT_LOADED, f"{names} {_NOT_ENTERED}")


def report_first_step(run: RunState) -> None:
    """Report the step from which this learner trains. The restored checkpoint may be older than the newest one."""
    if run.context is not None:
        run.context.control.update_state(step=run.step, up_s=uptime_s())


def _watch_gradients(run: RunState) -> None:
    """Watch the gradients of models that are not prepared: in a lone learner, and those of sharded parameters."""
    tensors, optimizers = run.namespace.trained_with([one for _, one in run.objects])
    sharded = parameter_state.sharded(tensors)
    if not sharded and (run.world_size > 1 or not tensors):
        return  # in a gang, each learner has its own gradients
    module = importlib.import_module("jupyter_dlaas.learner.elastic.gradient_snapshot")
    if sharded:
        run.sharded = module.ShardedGradients(sharded.values(), optimizers)
        if run.rank == 0 and not run.checkpoint_hooks:
            report(NOT_KEPT, f"The parameters of {_names(sharded)} {_IN_PARTS}")
    if run.world_size == 1:
        run.namespace.gradients = module.UnpreparedGradients(tensors, optimizers, lambda: run.step)


def report_pending(run: RunState) -> None:
    """Report, once, that the loop accumulates gradients that checkpoints cannot keep. Called at each boundary."""
    if run.sharded is not None and run.sharded.are_pending():
        run.sharded = None
        if run.rank == 0:
            report(NOT_KEPT, _PENDING)


def _name(path: str) -> str:
    """Return the variable or the `with` statement through which the object of a path is found."""
    if path.startswith("with "):
        return path.partition(")")[0] + ")"
    return path.replace(" .", " ").partition(".")[0].partition("[")[0].rpartition(" ")[2]


def _names(paths: Iterable[str]) -> str:
    """Return the variables in which objects of these paths are found."""
    names = sorted({*map(_name, paths)})
    return ", ".join(f"`{name}`" for name in names[:_LISTED])


def report_inner(run: RunState, iterator: object, *, item: str, loop: str) -> None:
    """Report what the body of an epoch has begun before a pass, and what a halt within the pass would reset."""
    if run.namespace is None or run.rank or run.is_joining or (line := run.namespace.line()) in run.looked_at:
        return
    run.looked_at.add(line)
    if run.resume is None:  # else reported before the checkpoint in this pass was written
        _report_in_progress(run, run.namespace.begun_inside())
    report_surrounding(run, iterator, item=item, loop=loop)


def report_surrounding(run: RunState, iterator: object, *, item: str, loop: str) -> None:
    """Report the iterators around a loop of `run` that count by themselves: `zip`, `islice`."""
    if run.namespace is None or run.rank or run.is_joining:
        return
    found = surrounding_iterators.surrounding(iterator)
    run.namespace.surrounding |= set(map(id, found))
    for name, remedy in surrounding_iterators.remedies_of(found, item=item, loop=loop).items():
        report(NOT_KEPT, f"`{name}` {_SURROUNDING.format(loop=loop)}{remedy}.")


def _report_in_progress(run: RunState, found: dict[str, object]) -> None:
    known = set(map(_name, run.reported))
    first = {id(one): path for path, one in reversed(found.items())}
    new = {path: one for path, one in found.items() if first[id(one)] == path and _name(path) not in known}
    run.reported.update(found, (path.partition(".")[0].partition("[")[0] for path in found))
    kinds = ((_is_iterator, _NO_ITERATOR), (_is_emptied, _EMPTIED), (_is_by_line, _BY_LINE), (_is_made_again, _LOST))
    for is_meant, why in kinds:
        if names := _names(_shown(path, one) for path, one in new.items() if is_meant(one)):
            report(NOT_KEPT, f"{names} {why}")


def _shown(path: str, value: object) -> str:
    """Return a path, or the class of an object that is known to its own method only."""
    return type(value).__name__ if path.endswith(" self") else path


def _is_iterator(value: object) -> bool:
    return hasattr(type(value), "__next__") and not (isinstance(value, io.IOBase) or is_lost(value))


def _is_made_again(value: object) -> bool:
    return is_lost(value) or not (hasattr(type(value), "__next__") or isinstance(value, io.IOBase))


def _is_emptied(value: object) -> bool:
    return isinstance(value, io.IOBase) and not (is_lost(value) or is_readable_file(value))


def _is_by_line(value: object) -> bool:
    return isinstance(value, io.IOBase) and is_readable_file(value)


def _put_back_or_before(run: RunState, context: Context) -> None:
    """Restore the newest checkpoint that can be loaded completely, or the newest one without its namespace."""
    tried: list[Path] = []
    first = run.restored
    assert first is not None
    why = ""
    while run.restored is not None:
        try:
            put_back(run, reverts=bool(tried))
        except Exception as error:  # noqa: BLE001 - restoring objects runs the user's own classes
            why = why or f"{type(error).__name__}: {error}"
            step = run.restored["position"].step
            tried.append(run.restored["folder"])
            run.restored = run.resume = None
            earlier = load(run, context, tried)
            if earlier is not None:
                report(
                    NOT_LOADED,
                    f"The checkpoint of step {step} cannot be loaded ({why}); that of step {earlier} is used.",
                )
        else:
            break
    if run.restored is None:
        run.restored, run.resume = first | {"namespace": b""}, first["position"]
        run.epoch, run.step = run.resume.epoch, run.resume.step
        run.user_values.update(first["state"])
        put_back(run, reverts=True)
        report(
            NOT_LOADED,
            f"Objects that the loop changed and that were not prepared could not be restored ({why}): they start "
            "from their initial values. Give models, optimisers and schedules to run.prepare, and other values to "
            "run.state.",
        )
    if tried:
        run.metrics.close()
        run.metrics = Metrics(context.job_dir / "metrics.jsonl", run.step)
        if run.rank == 0:
            run.metrics.open()


def put_back(run: RunState, *, reverts: bool, undone: Any = None) -> None:
    """Restore the state of the checkpoint. `reverts`: also undo changes that this process has made since.

    `undone`: what `Namespace.revert_ahead` has undone already.
    """
    content, context = run.restored, run.context
    if content is None or context is None:
        return
    if run.namespace is not None and content.get("namespace"):
        loaded = run.namespace.load(content["namespace"])
        seed = derive(run.seed, run.step, run.rank)
        state = run.namespace.put_back(loaded, reverts=reverts, seed=seed, undone=undone)
        run.user_values.clear()
        run.user_values.update(state)
        if run.namespace.gradients is not None and "unprepared_gradients" in content:
            run.namespace.gradients.put_back(content["unprepared_gradients"])
    else:
        put_back_values(run)
    put_back_objects(run)


def put_back_objects(run: RunState) -> None:
    """Load the states of the prepared objects."""
    if run.restored is None:
        return
    kept = run.restored["objects"]
    torch: Any = sys.modules.get("torch")
    for name, one in run.objects:
        if name not in kept:
            continue
        if torch is not None and isinstance(one, torch.nn.Module):
            one.load_state_dict(kept[name])
        elif torch is not None and isinstance(one, torch.optim.Optimizer):
            _load_optimizer(one, kept[name])
        else:
            # the object may keep references to it, and it is loaded twice
            one.load_state_dict(copy.deepcopy(kept[name]))
    parameter_state.put_back(run.objects, run.restored.get("parameters", {}))


def _load_optimizer(optimizer: Any, state: Any) -> None:
    """Load a state in place, so that schedulers and other holders of the optimiser's groups stay attached."""
    groups, states = optimizer.param_groups, optimizer.state
    optimizer.load_state_dict(state)
    if len(groups) == len(optimizer.param_groups) and type(states) is type(optimizer.state):
        for old, new in zip(groups, optimizer.param_groups, strict=True):
            old.clear()
            old.update(new)
        loaded = dict(optimizer.state)
        states.clear()
        states.update(loaded)
        optimizer.param_groups, optimizer.state = groups, states


def put_back_values(run: RunState) -> None:
    """Bind plain values again, in programs that train in a framework's loop or a custom loop."""
    if run.restored is None or run.context is None:
        return
    user_state.put_back(run.context.script, run.restored["values"])


def put_back_step(run: RunState, content: dict[str, Any]) -> None:
    """Restore state that spans several steps or lies within one: gate, pending gradients and batch growth."""
    run.gate.take(content.get("done", {}))
    if run.accumulated is not None:
        run.accumulated.put_back(content.get("gradients") or content.get("pending"))  # the latter: former versions
    if run.growth is not None and content.get("growth") is not None:
        run.growth.state = content["growth"]
