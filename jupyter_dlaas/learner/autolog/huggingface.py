"""Hugging Face: a hook into `Trainer.train` and its subclasses. Halts at a step, with the Trainer's own checkpoint.

The checkpoint is written to the job's directory, not to `output_dir`, and nothing is uploaded.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from time import monotonic
from typing import Any, Final

from jupyter_dlaas.learner.autolog.batch_share import share_loader
from jupyter_dlaas.learner.autolog.deferred import held
from jupyter_dlaas.learner.autolog.fit_calls import Call, KeptCall, keeping
from jupyter_dlaas.learner.autolog.safe_callbacks import attempt, guarded, made_of
from jupyter_dlaas.learner.checkpoint import user_state

__all__ = ["hook"]

_SUMS: Final = ("_tr_loss", "_total_loss_scalar", "_globalstep_last_logged", "_initial_global_step")
"""Losses since the last log and since the beginning, which the Trainer's own checkpoint does not keep."""
_FSDP: Final = "ACCELERATE_USE_FSDP"
_NOT_CURVES: Final = ("epoch", "total_flos", "step")
_SPEEDS: Final = ("_runtime", "_per_second", "_time")


def hook(module: Any) -> None:
    """Wrap Trainer.train."""
    trainer_class = module.Trainer
    original = trainer_class.train
    watch_class = made_of(_Watch, module.TrainerCallback)

    @functools.wraps(original)
    def train(self: Any, resume_from_checkpoint: Any = None, *args: Any, **kwargs: Any) -> Any:
        with keeping("transformers", is_whole=not _is_parted(self)) as call:
            if call is None:
                return original(self, resume_from_checkpoint, *args, **kwargs)
            watch = attempt(lambda: watch_class(call, self))
            if watch is None:
                return original(self, resume_from_checkpoint, *args, **kwargs)
            if isinstance(call, KeptCall):
                if call.end is not None:
                    return _again(self, call)
                call.save = watch.state
                if call.folder is not None:
                    resume_from_checkpoint = str(call.folder / call.state["name"])
            self.add_callback(watch)
            try:
                with _shared_out(self, call):
                    output = original(self, resume_from_checkpoint, *args, **kwargs)
            finally:
                self.remove_callback(watch)
            if isinstance(call, KeptCall):
                call.close(lambda: _end(self, output), watch.epochs)
            return output

    trainer_class.train = train


def _is_parted(trainer: Any) -> bool:
    """Return whether several learners would shard the model. With one learner, no plugin is active yet."""
    args = trainer.args
    will_be = args.world_size == 1 and args.device.type != "cpu" and (args.fsdp or _FSDP in os.environ)
    return bool(trainer.is_fsdp_enabled or trainer.is_deepspeed_enabled or args.deepspeed or will_be)


@contextmanager
def _shared_out(trainer: Any, call: Call) -> Iterator[None]:
    """In an elastic job, give each learner its part of every batch."""
    each = trainer.args.gradient_accumulation_steps * trainer._train_batch_size
    if not isinstance(call, KeptCall) or call.shares is None:
        if isinstance(call, KeptCall):
            call.batch = each * trainer.args.world_size
        yield
        return
    call.batch, (rank, learners) = each, call.shares
    original = trainer.get_train_dataloader

    def get_train_dataloader() -> Any:
        return share_loader(original(), rank, learners)

    trainer.get_train_dataloader = get_train_dataloader
    try:
        yield
    finally:
        del trainer.get_train_dataloader


def _end(trainer: Any, output: Any) -> dict[str, Any]:
    weights = {name: one.detach().cpu() for name, one in trainer.model.state_dict().items()}
    own = [held(one) for one in trainer.callback_handler.callbacks]
    return {"model": weights, "state": trainer.state, "output": output, "callbacks": own}


def _again(trainer: Any, call: KeptCall) -> Any:
    """Restore the end of a training that was completed in an earlier run."""
    end = call.end["end"]
    if trainer.model is None or trainer.model_init is not None:
        trainer.model = trainer.model_wrapped = trainer.call_model_init()
    trainer.model.load_state_dict(end["model"])
    trainer.state = end["state"]
    for one, own in zip(trainer.callback_handler.callbacks, end["callbacks"], strict=False):
        user_state.put_back(vars(one), own)
    call.close(lambda: None, 0)
    return end["output"]


class _Watch:
    """The callback."""

    def __init__(self, call: Call, trainer: Any) -> None:
        super().__init__()
        self.call = call
        self.trainer = trainer
        self.epochs = 1
        self.epoch, self.index, self.per_epoch = 0, 0, 1
        self.is_fresh = False
        """True if an epoch has begun, but none of its steps."""

    @guarded
    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self.epochs = max(1, int(state.num_train_epochs))
        self.per_epoch = max(1, -(-int(state.max_steps) // self.epochs))
        self.call.expect(self.epochs, steps=int(state.max_steps))

    def on_epoch_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        kept = self._resumed
        self.is_fresh = kept is None or kept["index"] == 0
        if self.is_fresh:  # the random state is the one from which the order of this epoch will be drawn
            self._boundary()

    def on_step_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        # The step's batches and one more have been read, so the random state is the one after that, which the Trainer
        # itself also stores. If reading draws random numbers, these batches draw others after a restart.
        if not self.is_fresh and monotonic() < self.call.calm_s:
            self.call.passed()
            return
        if not self.is_fresh:
            self._boundary()
        self.is_fresh = False
        self._count()

    @guarded
    def _count(self) -> None:
        if isinstance(self.call, KeptCall):
            self.call.step(self.epoch, self.index)

    @guarded
    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **_: Any) -> None:
        found = {
            name: value
            for name, value in (logs or {}).items()
            if name not in _NOT_CURVES and not name.endswith(_SPEEDS) and not isinstance(value, str)
        }
        self.call.log(found, step=int(state.global_step), epoch=int(state.epoch or 0))

    @guarded
    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if not isinstance(self.call, KeptCall):
            self.call.at(int(state.epoch or 0), int(state.global_step))

    # -- boundaries

    @property
    def _resumed(self) -> Any:
        """The state still to be restored; None if there is none."""
        return self.call.state if isinstance(self.call, KeptCall) and self.call.is_replayed else None

    def _boundary(self) -> None:
        self.epoch, self.index = divmod(int(self.trainer.state.global_step), self.per_epoch)
        if isinstance(self.call, KeptCall):
            if self._resumed is not None:
                self._put_back(self._resumed)
                self.call.reach()
            self._pass(self.call)

    @guarded
    def _pass(self, call: KeptCall) -> None:
        call.boundary(self.epoch, self.index)

    def _own(self) -> list[Any]:
        return [one for one in self.trainer.callback_handler.callbacks if one is not self]

    def state(self, folder: Path) -> dict[str, Any]:
        trainer = self.trainer
        with _saving_into(trainer, folder):
            trainer._save_checkpoint(trainer.model, None)
        (checkpoint,) = folder.glob("checkpoint-*")
        return {
            "name": checkpoint.name,
            "index": self.index,
            "sums": {name: getattr(trainer, name) for name in _SUMS if hasattr(trainer, name)},
            "callbacks": [held(one) for one in self._own()],
        }

    def _put_back(self, kept: dict[str, Any]) -> None:
        for name, value in kept["sums"].items():
            setattr(self.trainer, name, value.to(self.trainer.args.device) if hasattr(value, "to") else value)
        for one, own in zip(self._own(), kept["callbacks"], strict=False):
            user_state.put_back(vars(one), own)


@contextmanager
def _saving_into(trainer: Any, folder: Path) -> Iterator[None]:
    """Write the Trainer's complete checkpoint into our directory, without uploading or deleting anything.

    The search for the best checkpoint is disabled, since it waits for all learners.
    """
    args = trainer.args
    if args.world_size > 1:
        trainer.store_flos = lambda: None  # it is a collective call
    wanted = {"push_to_hub": False, "save_total_limit": None, "save_only_model": False, "save_strategy": "no"}
    before = {name: getattr(args, name) for name in wanted}
    trainer._get_output_dir = lambda trial=None: str(folder)
    try:
        for name, value in wanted.items():
            object.__setattr__(args, name, value)
        yield
    finally:
        del trainer._get_output_dir
        vars(trainer).pop("store_flos", None)
        for name, value in before.items():
            object.__setattr__(args, name, value)
