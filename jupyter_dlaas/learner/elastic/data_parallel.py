"""Data-parallel training in PyTorch: gradients averaged by sample weight, without replacing the user's model.

Imported only in a gang whose program uses torch.
"""

from __future__ import annotations

import functools
import inspect
import itertools
import re
import sys
from collections.abc import Callable, Sequence
from typing import Any, Final

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from jupyter_dlaas.learner.checkpoint import checkpoint_files
from jupyter_dlaas.learner.elastic import nccl_group, process_group, shm_allreduce
from jupyter_dlaas.learner.elastic.collective_tag import Kind, kind_of, tag_of
from jupyter_dlaas.learner.elastic.gradient_averaging import Averager, count_registrations
from jupyter_dlaas.learner.elastic.non_raising_group import QuietGroup
from jupyter_dlaas.learner.elastic.shared_model import SharedModel, attach
from jupyter_dlaas.learner.elastic.shm_allreduce import AllReduce, Diverged, SharedSegment
from jupyter_dlaas.learner.elastic.state_transfer import allocated_for, put_together, take_apart, to_bytes
from jupyter_dlaas.learner.elastic.step_gate import Gate
from jupyter_dlaas.learner.elastic.step_timing import Work
from jupyter_dlaas.wire.codec import DlaasError

__all__ = ["Gang", "NotShareable"]

_HEAVY: Final = "_dlaas_heavy"
_c10d: Final[Any] = dist
_gangs: Final = itertools.count()
_KILLED_WORKER: Final = re.compile(r"DataLoader worker \(pid.*(is killed by signal|exited unexpectedly)")
_PARAMETERS: Final = inspect.signature(DistributedDataParallel.__init__).parameters
_SYNC_BUFFERS: Final = "forward_sync_buffers" if "forward_sync_buffers" in _PARAMETERS else "broadcast_buffers"
"""The name of this option in newer versions of torch, which warn about the old name."""


class NotShareable(DlaasError):
    """An option or a layer that DistributedDataParallel supports only in a gang of fixed membership."""

    code = "not_shareable"


class Gang:
    """The learners that train together, in one process group after another.

    A gang that `may_change` creates its own groups and does not use the default group of torch.distributed. If a
    learner is lost, no exception reaches the user's loop. Instead `is_stranded` is set, the optimiser does not step,
    and this learner takes part in a membership change at the next boundary.
    """

    def __init__(self, device: torch.device, rank: int, size: int, gate: Gate, *, may_change: bool = False) -> None:
        self.rank, self.size, self.device = rank, size, device
        self.weight = 1.0 / size
        """The weight of this learner's gradients in the current step: its share of the samples."""
        self.may_change = may_change
        self.is_stranded = False
        self.step = 0
        """The number of the step in flight, identical in all learners."""
        self.diverged: Diverged | None = None
        """The error of learners that reached different points of their program."""
        self.killed_worker = ""
        """Error of a data worker that was killed during a collective; "" if there was none."""
        self.work: Work | None = None
        """The step timing to notify when this learner's gradients are computed; None if nothing records it."""
        self._gate = gate
        """The gate to notify when the gradients of a step are not averaged over all learners."""
        self._squares: list[torch.Tensor] | None = None
        """Squared norms of this learner's own gradients, in a step that records them."""
        self._models: list[torch.nn.Module] = []
        self._wrappers: list[DistributedDataParallel] = []
        self._shared: list[SharedModel] = []
        self._loose = Averager(self)
        """The averager of optimisers' parameters that belong to no prepared model."""
        count_registrations()
        self._group: Any = None
        self._segment: SharedSegment | None = None
        self._sums_in_segment = False
        """True if gradients are summed in shared memory, too."""
        if may_change and device.type == "cuda":
            nccl_group.without_watchdog()
        self._single_group: Any = process_group.single_learner_group(device) if may_change else None
        """A group of one, in which DDP wraps models and which they use while this learner trains alone."""
        if not may_change:
            self._segment = process_group.interruptible(self._rendezvous_in_default_group)
            self._group = dist.group.WORLD

    @property
    def is_alone(self) -> bool:
        """True while the gang has one learner. Collectives are skipped then, since they would only cost time."""
        return self.may_change and self.size == 1

    def enter(self, group: Any, rank: int, size: int) -> None:
        """Use this group from now on; None for one learner alone."""
        old = [self._group]
        self._group, self._segment, self.rank, self.size = group, process_group.segment_of(group), rank, size
        on_cpu = self.device.type == "cpu" and not process_group.is_apart(group)
        self._sums_in_segment = self._segment is not None and on_cpu
        self.weight = 1.0 / size
        self.is_stranded = False
        if self.work is not None:
            self.work.reset()
        for ddp in self._wrappers:
            self._put(ddp, self._single_group if group is None else group)
        self.watch_passes()
        if old[0] is not None:
            process_group.drop(old)

    def watch_passes(self) -> None:
        """Check each parameter in the next few backward passes, to verify that DDP averages all that they reach."""
        for shared in self._shared:
            shared.watch(is_close=not self.is_alone)

    def rendezvous(self, host: str, port: int) -> None:
        """Enter the first group, by rendezvous through the store at `host`. Raises RuntimeError on a timeout."""
        group = process_group.interruptible(lambda: self.build((host, port), 0, self.rank, self.size))
        self.enter(group, self.rank, self.size)

    def _rendezvous_in_default_group(self) -> SharedSegment | None:
        """Initialise the default group, unless the program has done so. Return the learners' shared memory, if any."""
        if not dist.is_initialized():
            backend = "cpu:gloo,cuda:nccl" if self.device.type == "cuda" else "gloo"
            dist.init_process_group(backend, rank=self.rank, world_size=self.size, timeout=process_group.NEVER)
        store = _c10d.PrefixStore(f"words-{next(_gangs)}", _c10d.distributed_c10d._get_default_store())
        return shm_allreduce.rendezvous(store, self.rank, self.size)

    def build(self, where: tuple[str, int], number: int, rank: int, size: int) -> Any:
        """Build another group beside the current one. Callable from any thread. Raises RuntimeError."""
        return process_group.build_group(where, number, rank, size, self.device)

    def _put(self, ddp: Any, group: Any) -> None:
        if ddp.find_unused_parameters:
            # With this option the reducer also starts collectives itself, not only through our hook.
            ddp._update_process_group(QuietGroup(group, self))
        else:
            # The same as `_update_process_group`, but it keeps the buckets marked as rebuilt.
            ddp.process_group = group
            ddp.reducer._update_process_group(group)

    def collectives_started(self) -> int:
        """Return the number of collectives started in the current group. Raises RuntimeError if the group is lost."""
        group, segment = self._group, self._segment
        begun = 0 if group is None else process_group.collectives_started(group)
        return begun if segment is None else begun + segment.started

    def leave(self) -> Any:
        """Mark the current group as lost, from another thread. Return the group, which is to be cut, or None."""
        self.is_stranded = True
        return self._group

    def wrap(self, model: torch.nn.Module, options: dict[str, Any]) -> torch.nn.Module:
        """Average the gradients of a model over the gang in its backward pass. Returns the model itself.

        Raises NotShareable for options that a gang of changing membership does not support.
        """
        ddp = None
        hook = Averaging(self)
        if any(parameter.requires_grad for parameter in model.parameters()):
            ddp = self._ddp(model, options, hook)
            self._wrappers.append(ddp)
        if self._group is not None and (self.may_change or ddp is None):
            self.share([*model.parameters(), *model.buffers()])
        shared = SharedModel(self, model, ddp, hook)
        attach(model, shared, self)
        self._models.append(model)
        self._shared.append(shared)
        shared.watch(is_close=not self.is_alone)
        return model

    def _ddp(self, model: torch.nn.Module, options: dict[str, Any], hook: Averaging) -> DistributedDataParallel:
        on_gpu = self.device.type == "cuda"
        # Buffers are not broadcast in each forward pass, so that rank 0 can validate without the others.
        options = {_SYNC_BUFFERS: False, "device_ids": [self.device] if on_gpu else None} | options
        if self.may_change:
            # Avoids a second copy of all gradients, and copying them back in each step.
            options = {"gradient_as_bucket_view": True} | options
            _check(model, options)
            options["process_group"] = self._single_group
        ddp = DistributedDataParallel(model, **options)
        if self.may_change:
            _settle(ddp)
        # A lambda, since torch rejects annotations other than its own here.
        ddp.register_comm_hook(hook, lambda averaging, bucket: averaging.begin(bucket))
        if self.may_change and self._group is not None:
            self._put(ddp, self._group)
        return ddp

    def let_go(self, ddp: DistributedDataParallel) -> None:
        """Stop averaging this model's gradients through DDP."""
        self._wrappers.remove(ddp)
        del ddp.reducer, ddp.logger  # this also removes the reducer's hooks

    def cover(self, loose: Sequence[torch.nn.Parameter]) -> None:
        """Average these parameters, which belong to no model, from now on."""
        before = {id(one) for one in self._loose.parameters}
        if before != {id(one) for one in loose}:
            self.share([one for one in loose if id(one) not in before])
            self._loose.take(loose)

    def check_gradients(self, optimizer: torch.optim.Optimizer) -> None:
        """Average gradients that no backward pass has averaged since this optimiser's last step.

        Called before the optimiser steps.
        """
        if not self.is_alone and not self.is_stranded:
            for shared in self._shared:
                shared.check_step(optimizer)

    def shares(self, parameters: Sequence[torch.nn.Parameter]) -> bool:
        """Return whether at least one of these parameters is averaged."""
        known = {id(one) for shared in self._shared for one in shared.parameters}
        known |= {id(one) for one in self._loose.parameters}
        return any(id(one) in known for one in parameters)

    @property
    def modes(self) -> list[bool]:
        """For each model, whether DDP averages its gradients. Identical in all learners."""
        return [shared.ddp is not None for shared in self._shared]

    def take_modes(self, modes: Sequence[bool]) -> None:
        """Adopt the averaging modes of the other learners."""
        for shared, has_ddp in zip(self._shared, modes, strict=False):
            if not has_ddp:
                shared.average_late()

    def skew(self) -> float | None:
        """Return the largest parameter's share of all gradient bytes; None without trainable parameters."""
        sizes = [p.numel() * p.element_size() for model in self._models for p in model.parameters() if p.requires_grad]
        return max(sizes) / sum(sizes) if sum(sizes) else None

    def share_buffers(self) -> None:
        """Broadcast rank 0's running statistics, the ones that checkpoints hold, to all learners."""
        for model in self._models:
            self.share(list(model.buffers()))

    def share(self, tensors: Sequence[torch.Tensor]) -> None:
        """Broadcast these tensors from rank 0 to all learners."""
        if self.is_alone or self.is_stranded:
            return
        with torch.no_grad():
            for tensor in tensors:
                self._try(functools.partial(process_group.broadcast, self._group, tensor, 0))

    def mean(self, values: list[float], weight: float) -> list[float]:
        """Return each value's weighted mean over the gang. A collective call."""
        table = torch.tensor(
            [*(value * weight if weight else 0.0 for value in values), weight],
            dtype=torch.float64,
            device=process_group.CPU,
        )
        if not self.is_alone and not self.is_stranded:
            self._try(lambda: process_group.AllReduce(self._group, table).wait())
        total = table[-1].item()
        return [value / total if total else float("nan") for value in table[:-1].tolist()]

    def watch(self) -> Callable[[], tuple[float, float]]:
        """Record gradients in the next step; return a function to call once they are averaged.

        It returns the mean of the learners' squared gradient norms, and the squared norm of the mean gradient.
        """
        self._squares = []

        def found() -> tuple[float, float]:
            squares, self._squares = self._squares or [], None
            local = self.mean([sum(float(one) for one in squares)], 1.0)[0]
            gradients = [p.grad for model in self._models for p in model.parameters() if p.grad is not None]
            return local, sum(float(one.square().sum()) for one in gradients)

        return found

    def total(self, count: int) -> int:
        """Return the sum of `count` over the gang; if learners are lost, `count` itself. A collective call."""
        table = torch.tensor([count], dtype=torch.int64, device=process_group.CPU)
        if not self.is_alone and not self.is_stranded:
            self._try(lambda: process_group.AllReduce(self._group, table).wait())
        return int(table.item())

    def steps(self, step: int) -> list[int]:
        """Return the step of each learner, in rank order. Raises RuntimeError if the group is lost."""
        found = [torch.zeros(1, dtype=torch.int64, device=process_group.CPU) for _ in range(self.size)]
        if not self.is_alone:
            mine = torch.tensor([step], dtype=torch.int64, device=process_group.CPU)
            process_group.finish(self._group, self._group.allgather([found], [mine]))
        else:
            found[0][0] = step
        return [int(one.item()) for one in found]

    def check_step(self, step: int) -> None:
        """Raise RuntimeError unless all learners are at the same step; otherwise two models would mix."""
        seen = sorted(set(self.steps(step)))
        if len(seen) > 1:
            raise RuntimeError(f"the learners loaded checkpoints of different steps: {seen}")

    def send(self, data: bytes | None, source: int) -> bytes:
        """Send bytes from one learner to all, and return them. Raises RuntimeError if the group is lost."""
        size = torch.tensor([len(data) if data is not None else 0], dtype=torch.int64, device=process_group.CPU)
        self._broadcast(size, source)
        if data is None:
            content = torch.empty(int(size.item()), dtype=torch.uint8, device=process_group.CPU)
        else:
            content = torch.frombuffer(bytearray(data), dtype=torch.uint8)
        self._broadcast(content, source)
        return content.numpy().tobytes() if data is None else data

    def _broadcast(self, tensor: torch.Tensor, source: int) -> None:
        """Broadcast one learner's tensor on the CPU. Raises RuntimeError if the group is lost."""
        if self._segment is not None:
            self._segment.broadcast(tensor, source)
        else:
            bits = tensor.view(-1).view(torch.uint8)  # gloo does not support all dtypes
            process_group.broadcast(self._group, bits, source)

    def hand(self, light: dict[str, Any] | None, heavy: dict[str, Any] | None, source: int) -> dict[str, Any]:
        """Send a state from one learner to all, and return it. Raises RuntimeError if the group is lost.

        Receivers pass None. Large tensors in `heavy` are sent directly from memory, while no learner trains.
        """
        if light is not None:
            rest, large = take_apart(heavy)
            self.send(to_bytes(light | {_HEAVY: rest}), source)
            found = light | (heavy or {})
        else:
            arrived = checkpoint_files.from_bytes(self.send(None, source))
            rest = arrived.pop(_HEAVY)
            large = allocated_for(rest)
            found = arrived | put_together(rest, large)
        for one in large:
            self._broadcast(one, source)
        return found

    def exchange(self, given: torch.Tensor, sizes: Sequence[int]) -> torch.Tensor:
        """Exchange parts all-to-all: `given` holds parts of equal size, one per learner, in rank order.

        `sizes`: the number of elements of each part received. Raises RuntimeError if the group is lost.
        """
        out = torch.empty(sum(sizes), dtype=given.dtype, device=given.device)
        own = [given.numel() // self.size] * self.size
        process_group.finish(self._group, self._group.alltoall_base(out, given, list(sizes), own), given.device)
        return out

    def gather(self, part: torch.Tensor) -> torch.Tensor:
        """Return the parts of all learners, equally long, in rank order. Raises RuntimeError if the group is lost."""
        out = torch.empty(part.numel() * self.size, dtype=part.dtype, device=part.device)
        process_group.finish(self._group, self._group._allgather_base(out, part), part.device)
        return out

    def weigh(self, gradients: torch.Tensor) -> None:
        """Multiply this learner's gradients by its share of the samples, in place."""
        if self.work is not None and self.device.type == "cpu":
            self.work.done()
        if self._squares is not None:
            self._squares.append(gradients.square().sum())
        if self.weight == 0.0:
            gradients.zero_()  # not multiplied by 0: the values may be infinite
        else:
            gradients.mul_(self.weight)

    def all_reduce(self, tensor: torch.Tensor, kind: Kind = Kind.GRADIENTS) -> AllReduce | process_group.AllReduce:
        """Start an all-reduce (sum) of a tensor, in place. Raises RuntimeError if the group is lost.

        `wait()` on the result may also raise Diverged.
        """
        begun = None
        if self._sums_in_segment and self._segment is not None:
            begun = self._segment.all_reduce(tensor, tag_of(self.step, kind))
        return begun or process_group.AllReduce(self._group, tensor)

    def compute(self) -> None:
        """Wait until this learner's own backward computation on the GPU is complete, and record its time."""
        if self.work is not None and self.device.type == "cuda":
            with nccl_group.aloud():
                torch.cuda.current_stream(self.device).synchronize()
            self.work.done()

    def discard(self) -> None:
        """Discard collectives whose result is no longer needed. Raises RuntimeError if the group is lost."""
        if self._segment is not None:
            self._segment.discard()

    def reduced(self, tensor: torch.Tensor) -> torch.futures.Future[list[torch.Tensor]]:
        """Start an all-reduce of gradients on the device, in a gang of fixed membership."""
        future: torch.futures.Future[list[torch.Tensor]] = self._group.allreduce([tensor]).get_future()
        return future

    def agree(self, line: int = 0) -> list[int]:
        """Exchange the lines at which learners leave the loop over epochs; 0 for those that continue.

        A collective call at the end of an epoch; returns one line per rank. Returns zeros if learners are lost or have
        diverged.
        """
        lines = torch.zeros(self.size, dtype=torch.float64, device=process_group.CPU)
        lines[self.rank] = line
        self.compare_tags()
        if not self.is_alone and not self.is_stranded and self.diverged is None:
            segment, tag = self._segment, tag_of(self.step, Kind.EPOCH)
            group = self._group
            try:
                if segment is not None:
                    self._try(lambda: segment.all_reduce_now(lines, tag))
                else:
                    self._try(lambda: process_group.AllReduce(group, lines).wait())
            except Diverged as error:
                self.part(error)
        if self.is_stranded or self.diverged is not None:
            return [0] * self.size
        return [int(one) for one in lines.tolist()]

    def begin(self, kind: Kind) -> None:
        """Send the tag of the next all-reduce, unless that carries it. Raises RuntimeError if learners are lost."""
        if self._segment is not None and not self._sums_in_segment:
            self._segment.begin(tag_of(self.step, kind))

    def compare_tags(self) -> None:
        """Compare the tags of all learners, and record a divergence. Raises RuntimeError if the group is lost."""
        if self._segment is not None and not self._sums_in_segment and self.diverged is None and not self.is_stranded:
            try:
                self._try(self._segment.discard)
            except Diverged as error:
                self.part(error)

    def leave_pass(self, line: int) -> None:
        """Report that this learner leaves the loop over batches at this line, and check that all learners do."""
        segment = self._segment
        if segment is None or self.is_stranded or self.diverged is not None:
            return
        self.compare_tags()
        note = torch.tensor([line], dtype=torch.float64, device=process_group.CPU)
        try:
            self._try(lambda: segment.all_reduce_now(note, tag_of(self.step, Kind.LEFT)))
        except Diverged as error:
            self.part(error)

    def lines(self) -> list[int]:
        """Return, by rank, the lines at which learners left a loop, if that is how they diverged; otherwise zeros."""
        if self._segment is None or self.diverged is None:
            return [0] * self.size
        has_left = [kind_of(tag) is Kind.LEFT for tag in self.diverged.tags]
        return [int(self._segment.first_value_of(rank)) if left else 0 for rank, left in enumerate(has_left)]

    def part(self, error: Diverged) -> None:
        """Record that learners diverged: the step in flight does not count."""
        self.diverged = error
        self._gate.fail()

    def lost(self) -> None:
        """Record that a collective of the step in flight failed."""
        self.is_stranded = True
        self._gate.fail()
        self._note_killed_worker()

    def _note_killed_worker(self) -> None:
        """Keep the error being handled if a data loader raised it: its worker may end at any line of the learner."""
        error = sys.exception()
        if error is not None and _KILLED_WORKER.search(str(error)):
            self.killed_worker = str(error)

    def _try(self, act: Callable[[], object]) -> None:
        """Run a collective. If it fails and the membership may change, mark the group as lost instead of raising."""
        try:
            act()
        except RuntimeError:
            if not self.may_change:
                raise
            self.is_stranded = True
            self._note_killed_worker()


class Averaging:
    """The averaging of one model's gradients, bucket by bucket, during its backward pass.

    In a gang of changing membership, DDP is given a completed future for each bucket, and the last bucket waits for
    all. A callback per bucket would run Python in gloo's own thread, which costs more than everything else.
    """

    def __init__(self, gang: Gang) -> None:
        self._gang = gang
        self._begun: list[Any] = []
        self.passes = 0
        """The number of backward passes that were averaged completely."""
        self._ready: dict[int, tuple[torch.Tensor, torch.futures.Future[torch.Tensor]]] = {}
        """Per bucket, its buffer and a completed future, which are the same in each step."""

    def begin(self, bucket: Any) -> torch.futures.Future[torch.Tensor]:
        """Start to average this bucket; return a future of it, which is averaged after the backward pass."""
        gang, buffer, number = self._gang, bucket.buffer(), bucket.index()
        if gang.is_alone:
            return self._now(number, buffer)
        gang.weigh(buffer)
        is_last = bucket.is_last()
        self.passes += is_last
        if gang.may_change:
            self._start_all_reduce(buffer, is_first=number == 0, is_last=is_last)
            return self._now(number, buffer)
        if number == 0:
            gang.begin(Kind.GRADIENTS)
        begun = gang.reduced(buffer)
        self._begun = [] if is_last else [*self._begun, begun]
        averaged: torch.futures.Future[torch.Tensor]
        averaged = begun.then(lambda done: done.value()[0])
        return averaged

    def finish(self) -> None:
        """Wait for the buckets of a pass that did not reach its last bucket."""
        begun, self._begun = self._begun, []
        try:
            for one in begun:
                one.wait()
        except Diverged as error:
            self._gang.part(error)
        except RuntimeError:
            if not self._gang.may_change:
                raise
            self._gang.lost()

    def _start_all_reduce(self, buffer: torch.Tensor, *, is_first: bool, is_last: bool) -> None:
        gang = self._gang
        try:
            if gang.is_stranded:
                raise RuntimeError
            if gang.diverged is not None:
                raise gang.diverged
            if is_first and self._begun:  # all learners aborted the previous pass
                self._begun.clear()
                gang.discard()
            if is_first:
                gang.begin(Kind.GRADIENTS)
            self._begun.append(gang.all_reduce(buffer))
            if is_last:
                gang.compute()
                for one in self._begun:
                    one.wait()
                if gang.work is not None:
                    gang.work.summed()
        except RuntimeError:
            gang.lost()
        except Diverged as error:
            gang.part(error)
        if is_last:
            self._begun.clear()

    def _now(self, number: int, buffer: torch.Tensor) -> torch.futures.Future[torch.Tensor]:
        kept, ready = self._ready.get(number, (None, None))
        if ready is None or kept is not buffer:
            ready = torch.futures.Future(devices=[buffer.device] if buffer.is_cuda else None)
            ready.set_result(buffer)
            self._ready[number] = buffer, ready
        return ready


def _check(model: torch.nn.Module, options: dict[str, Any]) -> None:
    """Raise NotShareable for what works only in a gang of fixed membership."""
    what, why = "", ""
    if options.get("static_graph"):
        what, why = 'ddp={"static_graph": True}', "a learner that joins later does not know the graph"
    elif any(getattr(one, "sparse", False) is True for one in model.modules()):
        what, why = (
            "an embedding with sparse=True",
            ("sparse gradients can be averaged only by a fixed number of learners"),
        )
    if what:
        hint = "Omit it, or fix the number of learners: %%train --elastic off."
        raise NotShareable(f"run.prepare: {what}: {why}. {hint}")


def _settle(ddp: Any) -> None:
    """Let DDP rebuild its bucket order now, in a group of one.

    DDP otherwise rebuilds it after the first backward pass, in all learners at once, which a learner that joins later
    cannot do. Here a backward pass of zeros runs from the last parameter to the first, so that all learners get the
    same order.
    """
    if ddp.find_unused_parameters:
        return  # DDP does not rebuild buckets with this option
    reducer = ddp.reducer
    parameters, _ = ddp._build_params_for_reducer()
    gradients = [(one, one.grad) for one in parameters]
    hooks = [one for p in parameters for one in (p._backward_hooks, p._post_accumulate_grad_hooks) if one]
    users = [(one, dict(one)) for one in hooks]
    for one in hooks:
        one.clear()
    reducer.prepare_for_forward()
    reducer.prepare_for_backward([])
    for parameter in reversed(parameters):
        parameter.grad = None
        parameter.backward(torch.zeros_like(parameter))
    for parameter, gradient in gradients:
        parameter.grad = gradient
    for one, own in users:
        one.update(own)
    reducer._rebuild_buckets()
