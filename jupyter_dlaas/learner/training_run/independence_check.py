"""Detection of programs whose learners would train independently: reported once, and kept at minimum size.

If several learners share nothing, only rank 0's model is kept, and the work of the others is lost without an error.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from jupyter_dlaas.learner.control.context import Context, current
from jupyter_dlaas.learner.environment.program_identifiers import Words, words_in
from jupyter_dlaas.wire.learner_messages import Independence
from jupyter_dlaas.wire.protocol import STARTS_WITH_ONE, Elastic

if TYPE_CHECKING:
    from jupyter_dlaas.learner.training_run.state import RunState

__all__ = ["alone", "has_own_loop", "has_roles", "look", "look_at_loop", "look_at_parts", "look_at_steps"]

_KNOWS_OTHERS: Final = re.compile(
    r"distribut(ed|e|ion)\b|DistributedDataParallel|fully_shard|WORLD_SIZE|process_count|mpi4py|horovod"
    r"|Accelerator\b|MultiWorkerMirrored|\bcollective\b"
)
"""Names found in a program that connects its learners or splits the work itself."""
_LOOPS: Final = frozenset({"epochs", "batches"})
_ROLES: Final = frozenset({"RANK", "rank"})
"""Names found in a program whose learners may each be meant to train something different."""
_MESSAGE_LIBRARIES: Final = ("mpi4py.MPI", "horovod")
"""Modules that are only imported to run several processes."""
_looked: Final[list[str]] = []
"""The first finding; later ones would repeat it."""
_KEPT: Final = "and only rank 0's model is kept"


def look_at_loop(run: RunState, *, parts: bool) -> None:
    """Check the program when a loop of `run` begins. `parts`: each learner gets a part of the data, not all of it."""
    context = run.context
    if _looked or context is None or run.exact is not None or not _may_have_others(context):
        return
    torch = sys.modules.get("torch")
    if torch is not None and (
        any(isinstance(one, torch.nn.Module) for _, one in run.objects) or not torch.is_grad_enabled()
    ):
        return
    data = "run.batches gives each a part of the data" if parts else "each trains on all of the data"
    instead = "Add model, opt = run.prepare(model, opt), or use" if torch is not None else "Use"
    look(
        context, f"The learners of this program train independently: {data}, {_KEPT}. {instead} one learner: --gpus 1."
    )


def look_at_steps() -> None:
    """Check a custom training loop, whose optimisers step outside `run` and any framework.

    Only programs that call `backward` themselves are checked. If only an installed package does so, that package may
    connect the learners once there are several.
    """
    context = current()
    if _looked or context is None or not _may_have_others(context) or has_own_loop(context):
        return
    programs = _programs(context.job_dir)
    goes_back = any("backward" in words.methods for words in programs)
    if goes_back and all(words.names.isdisjoint(_ROLES) for words in programs):
        why = f"The learners of this program train independently: each trains on all of the data, {_KEPT}."
        look(context, f"{why} Share the work with run.prepare and run.batches, or use one learner: --gpus 1.")


def has_own_loop(context: Context) -> bool:
    """Return whether the program trains in loops of `run`, which then define its position and its checkpoints."""
    words = words_in(context.job_dir / "train.py")
    return "jupyter_dlaas" in words.modules and not words.methods.isdisjoint(_LOOPS)


def has_roles(context: Context) -> bool:
    """Return whether each learner may be meant to train something different."""
    return any(not words.names.isdisjoint({*_ROLES, "is_main"}) for words in _programs(context.job_dir))


def look(context: Context, why: str) -> None:
    """Report `why`, unless the job always has one learner, its program connects the learners, or a report was made."""
    if _looked or context.rank or not _may_have_others(context):
        return
    _looked.append(why)
    if not (_has_foreign_process_group() or _knows(context.job_dir)):
        _report(context, why)


def look_at_parts(context: Context) -> None:
    """Report that a framework shards the model, and that its checkpoints only fit the same number of learners."""
    if context.rank == 0 and _may_have_others(context):
        size = context.world_size
        _report(
            context,
            "Each learner of this training holds a part of the model, so that a checkpoint only fits the number of "
            f"learners that wrote it. The job stays at {size}; to train with another number, submit it again with "
            "--gpus N.",
            size,
        )


def _report(context: Context, why: str, stays: int | None = None) -> None:
    context.control.update_state(independence=Independence(why, stays))
    print(f"[{why}]", file=sys.stderr, flush=True)


def alone(framework: str, *, instead: str = "") -> str:
    """Describe a framework's loop that supports only one process. `instead`: what trains on several."""
    return (
        f"{framework} trains in a single process: each of several learners would train on all of the data, {_KEPT}. "
        f"{instead}Use one learner: --gpus 1."
    )


def _may_have_others(context: Context) -> bool:
    spec = context.spec
    if context.world_size == 1 and any(note.code == STARTS_WITH_ONE for note in spec.notes):
        return False  # the user already knows
    return context.world_size > 1 or (spec.learners_max > 1 and spec.elastic is not Elastic.OFF)


def _has_foreign_process_group() -> bool:
    """Return whether this process belongs to a process group that is not ours."""
    dist: Any = sys.modules.get("torch.distributed")
    if dist is not None and dist.is_available() and dist.is_initialized():
        return True
    jax: Any = sys.modules.get("jax._src.distributed")
    if jax is not None and getattr(jax.global_state, "client", None) is not None:
        return True
    return any(name in sys.modules for name in _MESSAGE_LIBRARIES)


def _knows(job_dir: Path) -> bool:
    return any(_KNOWS_OTHERS.search(name) for words in _programs(job_dir) for name in words.names)


def _programs(job_dir: Path) -> list[Words]:
    """Return the identifiers used in the program and in the user's own modules."""
    return [words_in(path) for path in (job_dir / "train.py", *sorted((job_dir / "files").rglob("*.py")))]
