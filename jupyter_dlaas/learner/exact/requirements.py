"""Requirements of exact mode, checked before training starts."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from jupyter_dlaas.learner.data.sources import Source
from jupyter_dlaas.learner.environment.seeds import derive
from jupyter_dlaas.wire.codec import DlaasError

if TYPE_CHECKING:
    from jupyter_dlaas.learner.training_run.state import RunState

__all__ = ["NotExact", "begin", "check", "check_data"]

_COMMUNICATING = ("SyncBatchNorm", "DistributedDataParallel", "FullyShardedDataParallel", "DataParallel")


class NotExact(DlaasError):
    """A request that exact mode does not support."""

    code = "not_exact"


def begin(run: RunState, shards: int | None, ddp: dict[str, Any] | None, given: list[Any]) -> None:
    """Enable exact mode for a run. Raises NotExact."""
    most = max(run.context.spec.learners_max or 1, run.world_size) if run.context else 1
    check(shards, given, is_first=run.exact is None, ddp=ddp, learners=most)
    exact = importlib.import_module("jupyter_dlaas.learner.exact.exact_step")
    # The program's own seed is used if it sets one, so that two jobs with one seed are one training; else the job's.
    run.seed = derive("exact", sys.modules["torch"].initial_seed())
    run.exact = exact.Exact(shards, run.objects, run.seed)


def check(
    shards: int | None, given: Sequence[Any], *, is_first: bool, ddp: dict[str, Any] | None, learners: int
) -> None:
    """Raise NotExact if the arguments of `run.prepare` cannot be trained in exact mode."""
    torch = sys.modules.get("torch")
    if not is_first:
        raise NotExact("exact mode: pass everything to a single run.prepare(model, opt, …, shards=…)")
    if not isinstance(shards, int) or isinstance(shards, bool) or shards < 1:
        raise NotExact("run.prepare(shards=…): pass the number of shards of each batch, for example shards=8")
    if torch is None:
        raise NotExact("run.prepare(shards=…): exact mode requires PyTorch, which this program does not use")
    if learners > shards:
        raise NotExact(
            f"run.prepare(shards={shards}): this job may get {learners} learners, and those beyond {shards} would have "
            f"no work. Use at least shards={learners}, or fewer learners"
        )
    if ddp:
        raise NotExact("run.prepare(ddp=…, shards=…): exact mode does not use DistributedDataParallel; omit ddp=")
    models = [one for one in given if isinstance(one, torch.nn.Module)]
    optimizers = [one for one in given if isinstance(one, torch.optim.Optimizer)]
    if not models or not optimizers:
        raise NotExact("run.prepare(shards=…): exact mode needs a model and an optimiser")
    for optimizer in optimizers:
        if isinstance(optimizer, torch.optim.LBFGS):
            raise NotExact("exact mode: LBFGS runs several backward passes per step; use another optimiser")
    for model in models:
        _check_model(torch, model)


def _check_model(torch: Any, model: Any) -> None:
    for name, module in model.named_modules():
        kind, where = type(module).__name__, name or "the model itself"
        if kind in _COMMUNICATING:
            what = "BatchNorm itself" if kind == "SyncBatchNorm" else "the plain model"
            raise NotExact(f"exact mode: {where} is a {kind}, which communicates with the other learners; use {what}")
        if getattr(module, "sparse", False) and isinstance(module, torch.nn.Embedding | torch.nn.EmbeddingBag):
            raise NotExact(f"exact mode: {where} has sparse gradients; create it with sparse=False")
    for name, one in [*model.named_parameters(), *model.named_buffers()]:
        if isinstance(one, torch.nn.parameter.UninitializedTensorMixin):
            raise NotExact(
                f"exact mode: {name} gets its shape in the first step; specify its size, or call the model once"
            )
        if one.is_complex() or one.is_quantized or one.is_meta:
            raise NotExact(f"exact mode: {name} does not contain plain real numbers")


def check_data(source: Source, shards: int, *, grows: bool) -> None:
    """Raise NotExact if these batches cannot be divided into shards that depend on nothing else."""
    if grows:
        raise NotExact('run.batches(batch="grow"): a batch that depends on the number of learners is not exact')
    if source.groups is None and source.batch_size < shards:
        raise NotExact(f"exact mode: a batch of {source.batch_size} cannot be divided into {shards} shards")
