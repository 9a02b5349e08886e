"""Exact mode: bitwise identical weights for any number of learners, whatever happens meanwhile.

The shards of a batch depend only on its length. Each shard has its own random numbers (from seed, step and shard) and
starts with the buffers of the beginning of the step. Gradients, weighted by samples, and buffers (the running
statistics of BatchNorm) are summed in a fixed binary tree over the shards. So the result does not depend on which
learner computes which shard. This holds for one type of device, one version of PyTorch, and deterministic kernels,
which are enabled here.

Imported only if exact mode is requested.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, NoReturn

import torch

from jupyter_dlaas import stored
from jupyter_dlaas.learner.data import shards as cuts
from jupyter_dlaas.learner.elastic.gradient_averaging import count_registrations, registrations
from jupyter_dlaas.learner.environment.seeds import derive, seed_all
from jupyter_dlaas.learner.exact.requirements import NotExact

__all__ = ["Exact", "Parts"]

THREADS: Final = 1
"""The number of threads per learner, which affects the last bit of a sum. Its default depends on the number of
learners.
"""


class Parts:
    """Shards of a batch that one learner computes in exact mode. Only `run.train_step(fn, batch)` accepts it."""

    def __init__(self, shards: int, own: Sequence[tuple[int, Any, int]]) -> None:
        self.shards = shards
        self.own = {number: (part, count) for number, part, count in own}
        """By shard number: the argument of the user's function, and how many samples count."""

    def __reduce__(self) -> tuple[Any, ...]:
        return stored.exact_batch, (self.shards, [(number, *parts) for number, parts in self.own.items()])

    def _refuse(self) -> NoReturn:
        raise NotExact(
            "exact mode (run.prepare(…, shards=…)): a batch consists of several shards. Pass it to "
            "run.train_step(fn, batch), where fn(part) returns the mean loss over one shard"
        )

    def __iter__(self) -> Iterator[Any]:
        self._refuse()

    def __getitem__(self, key: object) -> Any:
        self._refuse()

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        self._refuse()


@dataclass(slots=True)
class _Sum:
    """The terms of the summation: one vector per dtype, and some numbers in float64."""

    vectors: dict[torch.dtype, torch.Tensor]
    numbers: torch.Tensor
    """Samples, loss × samples, per parameter whether it has a gradient, and integer buffers of shard 0."""

    def __add__(self, other: _Sum) -> _Sum:
        vectors = {kind: one + other.vectors[kind] for kind, one in self.vectors.items()}
        return _Sum(vectors, self.numbers + other.numbers)


class Exact:
    """The executor of a run's steps in exact mode."""

    def __init__(self, shards: int, objects: Sequence[tuple[str, Any]], seed: int) -> None:
        self.shards = shards
        self.seed = seed
        self.gang: Any = None
        """None if the job always has one learner."""
        self._models = [one for _, one in objects if isinstance(one, torch.nn.Module)]
        self._optimizers = [one for _, one in objects if isinstance(one, torch.optim.Optimizer)]
        self._scaler = next((one for _, one in objects if isinstance(one, torch.amp.GradScaler)), None)
        self._is_stepping = False
        count_registrations()
        self._list()
        torch.set_num_threads(THREADS)
        torch.use_deterministic_algorithms(True)
        torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]  # a property
        if torch.cuda.is_available():
            torch.backends.cudnn.benchmark = False
        for one in self._optimizers:
            one.register_step_pre_hook(self._check_step)

    def _list(self) -> None:
        self._registrations = registrations()
        self._of_models = [one for model in self._models for one in model.parameters()]
        self._flags = [one.requires_grad for one in self._of_models]
        self._parameters = self._all_parameters()
        self._buffers = self._all_buffers()

    def _follow(self) -> None:
        """Update the lists before a step if parameters were frozen, unfrozen or added, and broadcast new ones."""
        if self._registrations == registrations() and [one.requires_grad for one in self._of_models] == self._flags:
            return
        known = {id(one) for one in (*self._of_models, *self._parameters, *self._buffers)}
        self._list()
        fresh = [one for one in (*self._parameters, *self._buffers) if id(one) not in known]
        if fresh and self.gang is not None:
            self.gang.share(fresh)

    def _all_parameters(self) -> list[torch.nn.Parameter]:
        found: dict[int, torch.nn.Parameter] = {}
        for model in self._models:
            found.update((id(one), one) for one in model.parameters() if one.requires_grad)
        for optimizer in self._optimizers:
            found.update((id(one), one) for group in optimizer.param_groups for one in group["params"])
        return list(found.values())

    def _all_buffers(self) -> list[torch.Tensor]:
        """Return the persistent buffers. Others are constants that each learner computes itself."""
        found: dict[int, torch.Tensor] = {}
        for model in self._models:
            for module in model.modules():
                left_out = module._non_persistent_buffers_set
                found.update(
                    (id(one), one) for name, one in module._buffers.items() if one is not None and name not in left_out
                )
        return list(found.values())

    def share(self) -> None:
        """Broadcast rank 0's weights and buffers."""
        self.gang.share([*self._parameters, *self._buffers])

    def _check_step(self, *_: object) -> None:
        if not self._is_stepping:
            raise NotExact(
                "exact mode: run.train_step(fn, batch) runs the optimiser's step itself; omit opt.step(), "
                "or pass a custom update: run.train_step(fn, batch, update=lambda: …)"
            )

    # -- a step

    def step(
        self, fn: Callable[[Any], Any], batch: Any, update: Callable[[], object] | None, step: int
    ) -> torch.Tensor:
        """Run one step and return the mean loss; NaN if learners were lost, so that the step will be repeated."""
        if not isinstance(batch, Parts):
            raise NotExact("run.train_step: pass a batch of run.batches unchanged")
        self._follow()
        before = [one.clone() for one in self._buffers]
        gang = self.gang
        alone = gang is None or gang.size == 1

        def leaf(number: int) -> _Sum:
            return self._leaf(fn, batch, number, before, step)

        nodes = [[(0, batch.shards)]] if alone else cuts.nodes_of_all(batch.shards, gang.size)
        mine = {node: cuts.add_up(node, leaf, _Sum.__add__, {}) for node in nodes[0 if alone else gang.rank]}
        try:
            total = mine[0, batch.shards] if alone else self._summed_over_shards(mine, nodes, batch.shards)
        except RuntimeError:
            if gang is None or not gang.may_change:
                raise
            gang.lost()
            total = None
        if total is None:
            self._put_buffers(before)
            seed_all(derive(self.seed, step))
            return torch.tensor(float("nan"), device="cpu")
        seed_all(derive(self.seed, step))
        if not total.numbers[0].item():
            self._put_buffers(before)  # no sample of this batch could be read
            return torch.tensor(float("nan"), device="cpu")
        self._put(total)
        self._is_stepping = True
        try:
            (update or self._update)()
        finally:
            self._is_stepping = False
        return (total.numbers[1] / total.numbers[0]).detach()

    def _update(self) -> None:
        for one in self._optimizers:
            if self._scaler is None:
                one.step()
            else:
                self._scaler.step(one)
        if self._scaler is not None:
            self._scaler.update()

    def _leaf(self, fn: Callable[[Any], Any], batch: Parts, number: int, before: list[Any], step: int) -> _Sum:
        part, count = batch.own[number]
        self._put_buffers(before)
        for one in self._parameters:
            one.grad = None
        loss = torch.zeros((), dtype=torch.float64, device="cpu")
        if count:
            seed_all(derive(self.seed, step, number))
            loss = fn(part)
            if not isinstance(loss, torch.Tensor) or loss.numel() != 1 or not loss.requires_grad:
                raise NotExact(
                    "run.train_step(fn, batch): fn(part) must give the mean loss over the samples of its part: a "
                    "tensor with one number, on which backward() was not called yet"
                )
            (loss if self._scaler is None else self._scaler.scale(loss)).backward()
        kinds: dict[torch.dtype, list[torch.Tensor]] = {}
        for one in self._parameters:
            grad = one.grad if one.grad is not None else torch.zeros_like(one)
            kinds.setdefault(one.dtype, []).append(grad.reshape(-1))
        whole: list[float] = []
        for buffer in self._buffers:
            if buffer.is_floating_point():
                kinds.setdefault(buffer.dtype, []).append(buffer.reshape(-1))
            else:
                found = buffer.reshape(-1).to(torch.float64)
                whole += (found if number == 0 else torch.zeros_like(found)).tolist()
        has = [float(one.grad is not None) for one in self._parameters]
        numbers = [float(count), float(loss.detach()) * count, *has, *whole]
        with torch.no_grad():
            vectors = {kind: torch.cat(parts) for kind, parts in kinds.items()}
            for vector in vectors.values():
                vector.mul_(count) if count else vector.zero_()  # samples that do not count may be infinite
        return _Sum(vectors, torch.tensor(numbers, dtype=torch.float64, device="cpu"))

    def _put_buffers(self, values: Sequence[torch.Tensor]) -> None:
        with torch.no_grad():
            for buffer, value in zip(self._buffers, values, strict=True):
                buffer.copy_(value)

    @torch.no_grad()
    def _put(self, total: _Sum) -> None:
        """Set gradients and buffers to those of the whole batch."""
        samples = total.numbers[0].item()
        for vector in total.vectors.values():
            vector.div_(samples)
        at = dict.fromkeys(total.vectors, 0)
        has = total.numbers[2 : 2 + len(self._parameters)].tolist()
        for one, is_there in zip(self._parameters, has, strict=True):
            first, at[one.dtype] = at[one.dtype], at[one.dtype] + one.numel()
            one.grad = total.vectors[one.dtype][first : at[one.dtype]].view_as(one) if is_there else None
        whole = total.numbers[2 + len(self._parameters) :]
        for buffer in self._buffers:
            if buffer.is_floating_point():
                first, at[buffer.dtype] = at[buffer.dtype], at[buffer.dtype] + buffer.numel()
                buffer.copy_(total.vectors[buffer.dtype][first : at[buffer.dtype]].view_as(buffer))
            else:
                found, whole = whole[: buffer.numel()], whole[buffer.numel() :]
                buffer.copy_(found.view_as(buffer))

    # -- collectives

    def _summed_over_shards(self, mine: dict[cuts.Node, _Sum], nodes: Sequence[list[cuts.Node]], shards: int) -> _Sum:
        """Return the sum over all shards. Raises RuntimeError if the group is lost."""
        if self.gang.is_stranded:
            raise RuntimeError("the process group is lost")
        gang, vectors = self.gang, {}
        for kind, length in self._shapes().items():
            given = {node: one.vectors[kind] for node, one in mine.items()}
            whole = torch.zeros(len(given), gang.size * -(-length // gang.size), dtype=kind, device=gang.device)
            vectors[kind] = self._tree(given, nodes, shards, length, whole)
        length = 2 + len(self._parameters) + sum(one.numel() for one in self._buffers if not one.is_floating_point())
        given = {node: one.numbers for node, one in mine.items()}
        whole = torch.zeros(len(given), gang.size * -(-length // gang.size), dtype=torch.float64, device="cpu")
        return _Sum(vectors, self._tree(given, nodes, shards, length, whole))

    def _shapes(self) -> dict[torch.dtype, int]:
        found: dict[torch.dtype, int] = {}
        floating = [one for one in self._buffers if one.is_floating_point()]
        for one in [*self._parameters, *floating]:
            found[one.dtype] = found.get(one.dtype, 0) + one.numel()
        return found

    def _tree(
        self,
        given: dict[cuts.Node, torch.Tensor],
        nodes: Sequence[list[cuts.Node]],
        shards: int,
        length: int,
        whole: torch.Tensor,
    ) -> torch.Tensor:
        """Sum one stretch of the vector per learner over all shards, in tree order; then gather all stretches.

        `whole`: zeros, with a row per node of this learner and equally many columns per learner.
        """
        gang, stretch = self.gang, whole.shape[1] // self.gang.size
        for row, node in enumerate(nodes[gang.rank]):
            whole[row, :length] = given[node]
        parts = whole.view(len(given), gang.size, stretch).transpose(0, 1).reshape(-1)
        found = gang.exchange(parts, [len(one) * stretch for one in nodes]).view(-1, stretch)
        known = dict(zip((node for one in nodes for node in one), found, strict=True))
        total: torch.Tensor = cuts.add_up((0, shards), lambda number: known[number, number + 1], torch.add, known)
        gathered: torch.Tensor = gang.gather(total.contiguous())
        return gathered[:length]
