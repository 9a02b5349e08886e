"""Several learners as one, in PyTorch: gradients averaged by sample weight, the user's model still the user's model.

Loaded by `running` only in a gang whose program uses torch.
"""

from __future__ import annotations

import copyreg
import functools
import inspect
from collections.abc import Callable, Sequence
from typing import Any, Final

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from jupyter_dlaas.learner import checkpoints, groups
from jupyter_dlaas.learner.carrying import put_together, room_for, take_apart
from jupyter_dlaas.learner.gating import Gate
from jupyter_dlaas.learner.working import Work

__all__ = ["Gang", "to_device"]

_SLOT: Final = "_dlaas_ddp"
_HEAVY: Final = "_dlaas_heavy"
_c10d: Final[Any] = dist
_new_object: Final[Any] = vars(copyreg)["__newobj__"]
_reconstructor: Final[Any] = vars(copyreg)["_reconstructor"]
_PARAMETERS: Final = inspect.signature(DistributedDataParallel.__init__).parameters
_SYNC_BUFFERS: Final = "forward_sync_buffers" if "forward_sync_buffers" in _PARAMETERS else "broadcast_buffers"
"""Newer versions of torch call it by the first name, and warn at the second."""


class Gang:
    """The learners that train together, in the group of this generation or in one after the other.

    A gang that `may_change` has groups of its own, none of torch.distributed's default. A loss then raises nothing in
    the user's loop: it leaves `is_stranded`, the optimiser does not step, and the learner changes over at the boundary.
    """

    def __init__(self, device: torch.device, rank: int, size: int, gate: Gate, *, may_change: bool = False) -> None:
        self.rank, self.size, self.device = rank, size, device
        self.weight = 1.0 / size
        """What this learner's gradients count in the present step: its share of the samples."""
        self.may_change = may_change
        self.is_stranded = False
        self.work: Work | None = None
        """Is told when this learner's gradients are there; None where nobody wants to know."""
        self._gate = gate
        """Is told when the gradients of a step are not everybody's."""
        self._squares: list[torch.Tensor] | None = None
        """Squared norms of this learner's own gradients, in a step in which they are watched."""
        self._models: list[torch.nn.Module] = []
        self._wrappers: list[DistributedDataParallel] = []
        self._group: Any = None
        self._lonely: Any = groups.lonely_group() if may_change else None
        """A group of one: models are made in it, and rest in it while this learner is alone."""
        if not may_change:
            if not dist.is_initialized():
                backend = "cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo"
                dist.init_process_group(backend, rank=rank, world_size=size, timeout=groups.NEVER)
            self._group = dist.group.WORLD

    @property
    def is_alone(self) -> bool:
        """One learner for the time being: a group of one would cost it much and give it nothing."""
        return self.may_change and self.size == 1

    def enter(self, group: Any, rank: int, size: int) -> None:
        """Train in this group from now on; None for one learner alone."""
        old = [self._group]
        self._group, self.rank, self.size = group, rank, size
        self.weight = 1.0 / size
        self.is_stranded = False
        if self.work is not None:
            self.work.reset()
        for ddp in self._wrappers:
            self._put(ddp, self._lonely if group is None else group)
        if old[0] is not None:
            groups.drop(old)

    def meet(self, host: str, port: int) -> None:
        """Train in the first group of all, met through the store there. Raises RuntimeError when others do not come."""
        self.enter(groups.build_group((host, port), 0, self.rank, self.size), self.rank, self.size)

    def _put(self, ddp: DistributedDataParallel, group: Any) -> None:
        # Where it looks for unused parameters it talks to the others by itself, not only through our hook.
        ddp._update_process_group(_Quiet(group, self) if ddp.find_unused_parameters else group)

    def talks(self) -> int:
        """How many talks with the others were begun in the group in use. Raises RuntimeError when it is lost."""
        group = self._group
        return 0 if group is None else int(group._get_sequence_number_for_group())

    def leave(self) -> Any:
        """Count the group in use as lost. Returns it, to be cut; None for one learner alone. From another thread."""
        self.is_stranded = True
        return self._group

    def wrap(self, model: torch.nn.Module, options: dict[str, Any]) -> torch.nn.Module:
        """Let a model's backward pass average gradients over the gang. Returns the model itself."""
        if not any(parameter.requires_grad for parameter in model.parameters()):
            return model
        on_gpu = self.device.type == "cuda"
        # Buffers are not sent in each forward pass: rank 0 alone may then validate without the others.
        options = {_SYNC_BUFFERS: False, "device_ids": [self.device] if on_gpu else None} | options
        if self.may_change:
            options["process_group"] = self._lonely
        ddp = DistributedDataParallel(model, **options)
        # A lambda, since torch refuses annotations other than its own here.
        ddp.register_comm_hook(_Averaging(self), lambda averaging, bucket: averaging.begin(bucket))
        if self.may_change:
            buckets: Any = _Buckets(ddp.reducer)
            ddp.reducer = buckets
            if self._group is not None:
                self._put(ddp, self._group)
                self.share([*model.parameters(), *model.buffers()])
        _attach(model, ddp, self)
        self._models.append(model)
        self._wrappers.append(ddp)
        return model

    def share_buffers(self) -> None:
        """Give all learners rank 0's running statistics, as they would be saved."""
        for model in self._models:
            self.share(list(model.buffers()))

    def share(self, tensors: Sequence[torch.Tensor]) -> None:
        """Give all learners rank 0's."""
        if self.is_alone or self.is_stranded:
            return
        with torch.no_grad():
            for tensor in tensors:
                self._try(functools.partial(groups.broadcast, self._group, tensor, 0))

    def mean(self, values: list[float], weight: float) -> list[float]:
        """Each value averaged over the gang by weight. All learners must call it."""
        table = torch.tensor([*(value * weight if weight else 0.0 for value in values), weight], dtype=torch.float64)
        if not self.is_alone and not self.is_stranded:
            self._try(lambda: groups.Sum(self._group, table).wait())
        total = table[-1].item()
        return [value / total if total else float("nan") for value in table[:-1].tolist()]

    def watch(self) -> Callable[[], tuple[float, float]]:
        """Watch the gradients of the step to come. What is returned is to be called when they are everybody's.

        It gives the mean of the learners' squared norms, and the squared norm of the gradients' mean.
        """
        self._squares = []

        def found() -> tuple[float, float]:
            squares, self._squares = self._squares or [], None
            local = self.mean([sum(float(one) for one in squares)], 1.0)[0]
            gradients = [p.grad for model in self._models for p in model.parameters() if p.grad is not None]
            return local, sum(float(one.square().sum()) for one in gradients)

        return found

    def total(self, count: int) -> int:
        """The sum over the gang; what all of them have to call. This learner's own where others are lost."""
        table = torch.tensor([count], dtype=torch.int64)
        if not self.is_alone and not self.is_stranded:
            self._try(lambda: groups.Sum(self._group, table).wait())
        return int(table.item())

    def steps(self, step: int) -> list[int]:
        """At which step each learner is, in rank order. Raises RuntimeError when the group is lost."""
        found = [torch.zeros(1, dtype=torch.int64) for _ in range(self.size)]
        if not self.is_alone:
            groups.finish(self._group, self._group.allgather([found], [torch.tensor([step], dtype=torch.int64)]))
        else:
            found[0][0] = step
        return [int(one.item()) for one in found]

    def check_step(self, step: int) -> None:
        """All must go on from the same checkpoint; anything else would mix two models in silence."""
        seen = sorted(set(self.steps(step)))
        if len(seen) > 1:
            raise RuntimeError(f"the learners read checkpoints of different steps: {seen}")

    def send(self, data: bytes | None, source: int) -> bytes:
        """Bytes of one learner to all. Raises RuntimeError when the group is lost."""
        size = torch.tensor([len(data) if data is not None else 0], dtype=torch.int64)
        groups.broadcast(self._group, size, source)
        if data is None:
            content = torch.empty(int(size.item()), dtype=torch.uint8)
        else:
            content = torch.frombuffer(bytearray(data), dtype=torch.uint8)
        groups.broadcast(self._group, content, source)
        return content.numpy().tobytes() if data is None else data

    def hand(self, light: dict[str, Any] | None, heavy: dict[str, Any] | None, source: int) -> dict[str, Any]:
        """What one learner gives, to all; None for the others. Raises RuntimeError when the group is lost.

        The large tensors in what is `heavy` go as they lie in memory; nobody trains meanwhile.
        """
        if light is not None:
            rest, large = take_apart(heavy)
            self.send(checkpoints.to_bytes(light | {_HEAVY: rest}), source)
            found = light | (heavy or {})
        else:
            arrived = checkpoints.from_bytes(self.send(None, source))
            rest = arrived.pop(_HEAVY)
            large = room_for(rest)
            found = arrived | put_together(rest, large)
        for one in large:
            bits = one.view(-1).view(torch.uint8)  # gloo does not know all kinds of numbers
            groups.broadcast(self._group, bits, source)
        return found

    def exchange(self, given: torch.Tensor, sizes: Sequence[int]) -> torch.Tensor:
        """All learners' parts for this one: `given` is cut evenly, a part for each, in rank order.

        `sizes`: how long the part of each of them is that comes back. Raises RuntimeError when the group is lost.
        """
        out = torch.empty(sum(sizes), dtype=given.dtype, device=given.device)
        own = [given.numel() // self.size] * self.size
        groups.finish(self._group, self._group.alltoall_base(out, given, list(sizes), own))
        return out

    def gather(self, part: torch.Tensor) -> torch.Tensor:
        """The parts of all learners, equally long, in rank order. Raises RuntimeError when the group is lost."""
        out = torch.empty(part.numel() * self.size, dtype=part.dtype, device=part.device)
        groups.finish(self._group, self._group._allgather_base(out, part))
        return out

    def weigh(self, gradients: torch.Tensor) -> None:
        """This learner's gradients are there: let them count by its share of the samples, in place."""
        if self.work is not None:
            self.work.done()
        if self._squares is not None:
            self._squares.append(gradients.square().sum())
        if self.weight == 0.0:
            gradients.zero_()  # not times 0: what does not count may be infinite
        else:
            gradients.mul_(self.weight)

    def add_up(self, tensor: torch.Tensor) -> groups.Sum:
        """Begin to add a tensor up over the gang, in place. Raises RuntimeError when the group is lost."""
        return groups.Sum(self._group, tensor)

    def reduced(self, tensor: torch.Tensor) -> torch.futures.Future[list[torch.Tensor]]:
        """The same in a gang that never changes, on its devices."""
        future: torch.futures.Future[list[torch.Tensor]] = self._group.allreduce([tensor]).get_future()
        return future

    def lost(self) -> None:
        """A talk with the others failed in the step in flight."""
        self.is_stranded = self._gate.has_failed = True

    def _try(self, act: Callable[[], object]) -> None:
        """Talk to the others; that they are lost is noted, where the gang can go on without them."""
        try:
            act()
        except RuntimeError:
            if not self.may_change:
                raise
            self.is_stranded = True


class _Averaging:
    """The averaging of one model's gradients, bucket by bucket, while its backward pass goes on.

    In a gang that may change, DDP is told of each bucket that it is done already, and the last one waits for all: what
    would come after a bucket by itself runs Python in gloo's own thread, which costs more than the rest of it.
    """

    def __init__(self, gang: Gang) -> None:
        self._gang = gang
        self._begun: list[Any] = []

    def begin(self, bucket: Any) -> torch.futures.Future[torch.Tensor]:
        """Average this bucket. What is returned holds it, averaged once the backward pass has ended."""
        gang, buffer = self._gang, bucket.buffer()
        if gang.is_alone:
            return _now(buffer)
        if bucket.index() == 0:
            self._begun.clear()  # of a pass that was broken off
        gang.weigh(buffer)
        if gang.may_change:
            self._talk(buffer, is_last=bucket.is_last())
            return _now(buffer)
        averaged: torch.futures.Future[torch.Tensor]
        averaged = gang.reduced(buffer).then(lambda done: done.value()[0])
        return averaged

    def _talk(self, buffer: torch.Tensor, *, is_last: bool) -> None:
        gang = self._gang
        try:
            if gang.is_stranded:
                raise RuntimeError
            self._begun.append(gang.add_up(buffer))
            if is_last:
                for work in self._begun:
                    work.wait()
        except RuntimeError:
            gang.lost()
        if is_last:
            self._begun.clear()


def _now(buffer: torch.Tensor) -> torch.futures.Future[torch.Tensor]:
    future: torch.futures.Future[torch.Tensor] = torch.futures.Future()
    future.set_result(buffer)
    return future


class _Quiet(dist.ProcessGroup):
    """A gang's group as DDP's reducer sees it: that it is lost is told to the gang, and raises nothing in backward."""

    def __init__(self, group: Any, gang: Gang) -> None:
        super().__init__(group.rank(), group.size())
        self._group, self._gang = group, gang

    def getBackendName(self) -> str:  # noqa: N802 - torch's name
        return "gloo"

    def allreduce(self, tensors: Any, *_: Any) -> Any:
        work = None
        if not self._gang.is_stranded:
            try:
                work = self._group.allreduce(tensors)
            except RuntimeError:
                self._gang.lost()
        self._attempt = _Attempt(work, self._gang)  # kept: older versions of torch hold its C++ half only
        return self._attempt


class _Attempt(_c10d._Work):  # type: ignore[misc]  # torch's own, untyped
    """Something said in a group that may be lost meanwhile."""

    def __init__(self, work: Any, gang: Gang) -> None:
        super().__init__()
        self._work, self._gang = work, gang

    def wait(self, *_: Any) -> bool:
        if self._work is not None:
            try:
                groups.finish(self._gang._group, self._work)
            except RuntimeError:
                self._gang.lost()
        return True


class _Buckets:
    """DDP's reducer, less its second thoughts about the order of buckets.

    It takes them when a learner has made its first step, and all must take them at once; who joins later cannot.
    """

    def __init__(self, reducer: Any) -> None:
        self._reducer = reducer

    def _rebuild_buckets(self) -> bool:
        self._reducer._check_reducer_finalized()  # as the whole of it does: raises where parameters took no part
        return False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._reducer, name)


def _attach(model: torch.nn.Module, ddp: DistributedDataParallel, gang: Gang) -> None:
    """Route calls of the model through DDP, and nothing else: attributes, state_dict and pickles stay the model's own.

    Its class becomes a subclass of the same name; only an instance's own class can change what calling it does.
    """
    plain = type(model)

    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        wrapper = self.__dict__.get(_SLOT)
        if wrapper is None or wrapper.is_inside or gang.is_alone or not torch.is_grad_enabled():
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
