"""Several learners as one, in PyTorch: gradients averaged by sample weight, the user's model still the user's model.

Loaded by `running` only in a gang whose program uses torch.
"""

from __future__ import annotations

import copyreg
import inspect
from datetime import timedelta
from typing import Any, Final

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

__all__ = ["Gang", "to_device"]

_NEVER: Final = timedelta(days=7)
"""Others may wait while rank 0 validates or saves, however long: a peer that is lost is noticed otherwise."""
_SLOT: Final = "_dlaas_ddp"
_new_object: Final[Any] = vars(copyreg)["__newobj__"]
_reconstructor: Final[Any] = vars(copyreg)["_reconstructor"]
_PARAMETERS: Final = inspect.signature(DistributedDataParallel.__init__).parameters
_SYNC_BUFFERS: Final = "forward_sync_buffers" if "forward_sync_buffers" in _PARAMETERS else "broadcast_buffers"
"""Newer versions of torch call it by the first name, and warn at the second."""


class Gang:
    """The learners of this generation, met through the store that the guardian holds."""

    def __init__(self, device: torch.device, rank: int, size: int) -> None:
        self.rank, self.size, self.device = rank, size, device
        self.weight = 1.0 / size
        """What this learner's gradients count in the present step: its share of the samples."""
        self._models: list[torch.nn.Module] = []
        if not dist.is_initialized():
            backend = "cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo"
            dist.init_process_group(backend, rank=rank, world_size=size, timeout=_NEVER)

    def wrap(self, model: torch.nn.Module, options: dict[str, Any]) -> torch.nn.Module:
        """Let a model's backward pass average gradients over the gang. Returns the model itself."""
        if not any(parameter.requires_grad for parameter in model.parameters()):
            return model
        on_gpu = self.device.type == "cuda"
        # Buffers are not sent in each forward pass: rank 0 alone may then validate without the others.
        options = {_SYNC_BUFFERS: False, "device_ids": [self.device] if on_gpu else None} | options
        ddp = DistributedDataParallel(model, **options)
        # A lambda, since torch refuses annotations other than its own here.
        ddp.register_comm_hook(self, lambda gang, bucket: _average(gang, bucket.buffer()))
        _attach(model, ddp)
        self._models.append(model)
        return model

    def share_buffers(self) -> None:
        """Give all learners rank 0's running statistics, as they would be saved."""
        with torch.no_grad():
            for model in self._models:
                for buffer in model.buffers():
                    dist.broadcast(buffer, 0)

    def mean(self, values: list[float], weight: float) -> list[float]:
        """Each value averaged over the gang by weight. All learners must call it."""
        table = torch.tensor([*(value * weight if weight else 0.0 for value in values), weight], dtype=torch.float64)
        dist.all_reduce(table)
        total = table[-1].item()
        return [value / total if total else float("nan") for value in table[:-1].tolist()]

    def check_step(self, step: int) -> None:
        """All must go on from the same checkpoint; anything else would mix two models in silence."""
        steps = [torch.zeros(1, dtype=torch.int64) for _ in range(self.size)]
        dist.all_gather(steps, torch.tensor([step], dtype=torch.int64))
        seen = sorted({int(one.item()) for one in steps})
        if len(seen) > 1:
            raise RuntimeError(f"the learners read checkpoints of different steps: {seen}")


def _average(gang: Gang, buffer: torch.Tensor) -> torch.futures.Future[torch.Tensor]:
    if gang.weight == 0.0:
        buffer.zero_()  # not times 0: what does not count may be infinite
    else:
        buffer.mul_(gang.weight)
    future = dist.all_reduce(buffer, async_op=True).get_future()
    return future.then(lambda done: done.value()[0])


def _attach(model: torch.nn.Module, ddp: DistributedDataParallel) -> None:
    """Route calls of the model through DDP, and nothing else: attributes, state_dict and pickles stay the model's own.

    Its class becomes a subclass of the same name; only an instance's own class can change what calling it does.
    """
    plain = type(model)

    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        wrapper = self.__dict__.get(_SLOT)
        if wrapper is None or wrapper.is_inside or not torch.is_grad_enabled():
            return plain.__call__(self, *args, **kwargs)
        wrapper.is_inside = True
        try:
            return wrapper.ddp(*args, **kwargs)
        finally:
            wrapper.is_inside = False

    def reduce_ex(self: Any, protocol: Any) -> Any:
        twin = plain.__new__(plain)
        twin.__dict__.update({name: value for name, value in self.__dict__.items() if name != _SLOT})
        reduced: Any = twin.__reduce_ex__(protocol)
        how, arguments, *rest = reduced
        if how is _new_object and arguments == (plain,):
            # pickle compares that one's class with the class of the object, which only looks like it
            how, arguments = _reconstructor, (plain, object, None)
        return (how, arguments, *rest)

    body = {
        "__call__": call,
        "__reduce_ex__": reduce_ex,
        "__module__": plain.__module__,
        "__qualname__": plain.__qualname__,
        "__doc__": plain.__doc__,
    }
    metaclass: Any = type(plain)
    model.__class__ = metaclass(plain.__name__, (plain,), body)
    # Past the module's own __setattr__, which would make DDP a part of the model that it holds.
    model.__dict__[_SLOT] = _Wrapper(ddp)


class _Wrapper:
    """Not a module, so that nothing that walks over modules sees it."""

    __slots__ = ("ddp", "is_inside")

    def __init__(self, ddp: DistributedDataParallel) -> None:
        self.ddp = ddp
        self.is_inside = False


def to_device(batch: Any, device: torch.device) -> Any:
    """A batch with its tensors on a device."""
    if isinstance(batch, torch.Tensor):
        return batch.to(device, non_blocking=True)
    if isinstance(batch, dict):
        return type(batch)({key: to_device(value, device) for key, value in batch.items()})
    if isinstance(batch, tuple) and hasattr(batch, "_fields"):
        return type(batch)(*(to_device(value, device) for value in batch))
    if isinstance(batch, list | tuple):
        return type(batch)(to_device(value, device) for value in batch)
    return batch
