"""State of a run: plain data on which loops, checkpoints, membership changes and framework calls work.

`Run` is the user's interface to it.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jupyter_dlaas.learner.checkpoint import user_state
from jupyter_dlaas.learner.checkpoint.trained_steps import Trained
from jupyter_dlaas.learner.control.boundaries import Boundaries
from jupyter_dlaas.learner.control.context import Context
from jupyter_dlaas.learner.data.position import Position
from jupyter_dlaas.learner.elastic.step_gate import Gate
from jupyter_dlaas.learner.reporting.metrics import Metrics
from jupyter_dlaas.learner.reporting.progress import Meter

if TYPE_CHECKING:
    from jupyter_dlaas.learner.data.batch_policy import Growth

__all__ = ["RunState"]


@dataclass(kw_only=True, eq=False, repr=False)
class RunState:
    """Position, flags, counters and parts of one training program."""

    context: Context | None
    """The learner of a job; None outside a job."""
    rank: int = 0
    world_size: int = 1
    seed: int
    user_values: dict[str, Any] = field(default_factory=dict)
    """`run.state`: values that every checkpoint includes."""

    # -- position
    epoch: int = 0
    step: int = 0
    """Steps that the job has begun, over all epochs, restarts and sizes."""
    call: int = 0
    """Number of passes over data begun in this epoch."""
    epochs: Callable[[], object | None] = lambda: None
    """Weak reference to the iterator of the last loop over `epochs`."""
    is_epoch_over: bool = True
    trained: Trained = field(default_factory=Trained)
    """Steps trained in the current generation."""

    # -- phase
    has_begun: bool = False
    """True once training began: `begin` ran."""
    is_looping: bool = False
    """True once the program has entered a loop over `epochs` or `batches`, which then define its position."""
    is_joining: bool = False
    """True until a joining learner has received the gang's state. Until then it rehearses, and no effect counts."""
    goes_back: bool = False
    """True if this joining learner rehearsed in a later epoch than the one the gang is in."""
    resume: Position | None = None
    """Position of the checkpoint, until the program reaches it; until then no effect counts."""
    restored: dict[str, Any] | None = None
    """Content of the checkpoint, until all of it is restored."""
    restores_late: bool = False
    """True if the checkpoint is restored when the program's loop begins, not before."""
    saw_stop: bool = False
    """True once `run.should_stop` was true when the program read it."""
    is_leaving: bool = False

    # -- checkpoints
    wants_checkpoint: bool = False
    """True if the program asked for a checkpoint at the next boundary."""
    has_checkpoint: bool = False
    saved_s: float = field(default_factory=time.monotonic)
    """Time of the last checkpoint."""
    passed_s: float = 0.0
    """Time of the last boundary."""
    last_step_s: float | None = None
    """Uptime of the machine at which the learner stopped."""
    halt_hooks: list[Callable[[], object]] = field(default_factory=list)
    checkpoint_hooks: list[Callable[[], object]] = field(default_factory=list)
    reported: set[str] = field(default_factory=set)
    """Objects that were reported as left out of checkpoints."""
    looked_at: set[object] = field(default_factory=set)
    """Places of loops over `batches` before which the program was searched for iterators."""

    # -- the program's objects
    objects: list[tuple[str, Any]] = field(default_factory=list)
    """Prepared objects by name."""
    base: user_state.Base = field(default_factory=dict)
    """Plain values of the script before training."""
    namespace: Any = None
    """The program's objects as they were when its loop over `epochs` or `batches` began."""
    counts_epochs: bool = False
    """True if the program has no loop over `batches`, so that each epoch is one step."""

    # -- the gang
    gang: Any = None
    gate: Gate = field(default_factory=Gate)
    accumulated: Any = None
    """Gradients and statistics of the prepared models to which later steps add."""
    sharded: Any = None
    """Watch over the gradients of sharded parameters, until it has reported; None if there are none."""
    membership: Any = None
    """This learner's membership, in a gang whose membership may change."""
    exact: Any = None
    """The executor of steps in exact mode."""
    growth: Growth | None = None
    share: int = 1
    """Number of this learner's samples in the current step."""
    loss_is_sum: bool = False
    """True if the loss is a sum over samples."""

    # -- connections
    boundaries: Boundaries
    meter: Meter
    metrics: Metrics

    @property
    def device(self) -> Any:
        """The device for tensors: a `torch.device` if torch is loaded, else its name."""
        torch = sys.modules.get("torch")
        if torch is None:
            return "cpu"
        return torch.device("cuda", torch.cuda.current_device()) if torch.cuda.is_available() else torch.device("cpu")

    @property
    def output_dir(self) -> Path:
        """The directory for the program's own files."""
        if self.context is not None:
            return self.context.output_dir
        folder = Path("dlaas-output")
        folder.mkdir(exist_ok=True)
        return folder

    @property
    def counts(self) -> bool:
        """True if effects count: the program neither rehearses nor only leads to the position of its checkpoint."""
        return self.resume is None and not self.is_joining
