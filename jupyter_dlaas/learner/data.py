"""Batches out of whatever training code has: datasets, existing DataLoaders, arrays."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from jupyter_dlaas.learner.position import cut, permutation
from jupyter_dlaas.wire import DlaasError

__all__ = ["BadData", "Plan", "Source", "length", "plan", "shares", "source_of"]


class BadData(DlaasError):
    """What was given to run.batches cannot be cut into batches."""

    code = "bad_data"


Fetch = Callable[[Sequence[Sequence[int]], int], Iterator[Any]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """Data that can be asked for any sample, and how its batches are made."""

    samples: int
    batch_size: int
    is_shuffled: bool
    drop_last: bool
    fetch: Fetch
    """Batches for lists of sample numbers, lazily; the seed is for data workers that draw random numbers."""
    order: Callable[[int], list[int]] | None = None
    """A sampler's own order for a seed, where it is not a plain permutation."""
    groups: Callable[[int], list[list[int]]] | None = None
    """A batch sampler's own batches for a seed."""


@dataclass(frozen=True, slots=True)
class Plan:
    """The global batches of one pass."""

    order: Sequence[int]
    batch_size: int
    steps: int
    """How many there are."""
    groups: Sequence[Sequence[int]] | None = None

    def batch(self, index: int) -> Sequence[int]:
        """The samples of global batch `index`."""
        if self.groups is not None:
            return self.groups[index]
        return self.order[index * self.batch_size : (index + 1) * self.batch_size]


def length(source: Source) -> int:
    """The number of batches of a pass."""
    if source.groups is not None or source.order is not None:
        return plan(source, 0).steps
    whole, rest = divmod(source.samples, source.batch_size)
    return whole + (rest > 0 and not source.drop_last)


def plan(source: Source, seed: int) -> Plan:
    """The batches of one pass: the same list for the same seed, in every learner."""
    if source.groups is not None:
        groups = source.groups(seed)
        return Plan((), 0, len(groups), groups)
    if source.order is not None:
        order: Sequence[int] = source.order(seed)
    else:
        order = permutation(source.samples, seed) if source.is_shuffled else range(source.samples)
    whole, rest = divmod(len(order), source.batch_size)
    return Plan(order, source.batch_size, whole + (rest > 0 and not source.drop_last))


def shares(
    source: Source, todo: Plan, first: int, rank: int, learners: int, seed: int
) -> Iterator[tuple[Any, int, int]]:
    """From batch `first` on, one learner's share of each: (batch, samples of mine that count, samples in all).

    A tail shorter than the gang leaves nothing for some learners; they must still take part in the step, so they get
    a batch that they had (or, in the very first step, somebody else's sample) that counts as nothing.
    """
    mine: list[tuple[Sequence[int], int, int]] = []
    for index in range(first, todo.steps):
        batch = todo.batch(index)
        share = cut(batch, rank, learners)
        if not share and not mine:
            mine.append((batch[:1], 0, len(batch)))
        else:
            mine.append((share, len(share), len(batch)))
    fetched = source.fetch([share for share, _, _ in mine if share], seed)
    last: Any = None
    for share, count, total in mine:
        if share:
            last = next(fetched)
        yield last, count, total


def source_of(
    data: Any, batch_size: int | None, *, shuffle: bool | None, drop_last: bool | None, options: dict[str, Any]
) -> Source:
    """Understand what was given. `options` go to torch's DataLoader (num_workers, collate_fn, …). Raises BadData."""
    torch_data = sys.modules.get("torch.utils.data")
    if torch_data is not None and isinstance(data, torch_data.DataLoader):
        found = _of_loader(data, torch_data, options)
    elif _is_array(data):
        found = _of_arrays((data,), lambda parts: parts[0])
    elif isinstance(data, tuple | list) and data and all(_is_array(one) for one in data):
        lengths = {len(one) for one in data}
        if len(lengths) > 1:
            raise BadData(f"run.batches: the arrays have different lengths: {', '.join(map(str, sorted(lengths)))}")
        found = _of_arrays(tuple(data), tuple)
    elif hasattr(data, "__getitem__") and hasattr(data, "__len__"):
        fetch = _items(data) if "torch" not in sys.modules else _by_loader(data, options)
        found = Source(samples=len(data), batch_size=0, is_shuffled=True, drop_last=False, fetch=fetch)
    else:
        raise BadData(
            f"run.batches: a {type(data).__name__} cannot be asked for its n-th sample, so they cannot be shared "
            "out exactly once. Give a dataset with __len__ and __getitem__, a DataLoader over one, or arrays."
        )
    if batch_size is not None and found.groups is None:
        found = replace(found, batch_size=batch_size)
    if shuffle is not None:
        found = replace(found, is_shuffled=shuffle, order=None)
    if drop_last is not None:
        found = replace(found, drop_last=drop_last)
    if found.groups is None and found.batch_size < 1:
        raise BadData("run.batches: say how many samples a batch has, over all learners: run.batches(data, 64)")
    return found


def _is_array(data: Any) -> bool:
    return hasattr(data, "shape") and hasattr(data, "__getitem__") and len(data.shape) > 0


def _of_arrays(arrays: tuple[Any, ...], join: Callable[[tuple[Any, ...]], Any]) -> Source:
    def fetch(lists: Sequence[Sequence[int]], seed: int) -> Iterator[Any]:
        for numbers in lists:
            index = list(numbers)
            # A pandas frame takes row numbers by iloc only.
            yield join(tuple((one.iloc if hasattr(one, "iloc") else one)[index] for one in arrays))

    return Source(samples=len(arrays[0]), batch_size=0, is_shuffled=True, drop_last=False, fetch=fetch)


def _items(data: Any) -> Fetch:
    def fetch(lists: Sequence[Sequence[int]], seed: int) -> Iterator[Any]:
        for numbers in lists:
            yield [data[number] for number in numbers]

    return fetch


def _by_loader(data: Any, options: dict[str, Any]) -> Fetch:
    """Through torch's DataLoader: collating, workers and pinned memory as its users know them."""

    def fetch(lists: Sequence[Sequence[int]], seed: int) -> Iterator[Any]:
        import torch
        from torch.utils.data import DataLoader

        # A generator of its own: otherwise each pass would take a number from the user's random stream.
        generator = torch.Generator()
        generator.manual_seed(seed)
        batches: Any = [list(numbers) for numbers in lists]
        return iter(DataLoader(data, batch_sampler=batches, generator=generator, **options)) if batches else iter(())

    return fetch


_TAKEN_OVER = (
    "collate_fn",
    "num_workers",
    "pin_memory",
    "timeout",
    "worker_init_fn",
    "multiprocessing_context",
    "prefetch_factor",
)


def _of_loader(loader: Any, torch_data: Any, options: dict[str, Any]) -> Source:
    if isinstance(loader.dataset, torch_data.IterableDataset):
        raise BadData(
            "run.batches: this DataLoader reads an IterableDataset, whose samples cannot be shared out exactly once. "
            "Give a dataset with __len__ and __getitem__, or iterate over the DataLoader itself with one learner."
        )
    if loader.batch_size is None and isinstance(loader.sampler, torch_data.Sampler) and loader.batch_sampler is None:
        raise BadData("run.batches: this DataLoader has no batch size; give run.batches its dataset and one")
    taken = {name: getattr(loader, name) for name in _TAKEN_OVER if getattr(loader, name, None) is not None}
    sampler, batch_sampler = loader.sampler, loader.batch_sampler
    common = Source(
        samples=len(loader.dataset),
        batch_size=loader.batch_size or 0,
        is_shuffled=isinstance(sampler, torch_data.RandomSampler | torch_data.DistributedSampler)
        and getattr(sampler, "shuffle", True),
        drop_last=bool(loader.drop_last),
        fetch=_by_loader(loader.dataset, taken | options),
    )
    if type(batch_sampler) is not torch_data.BatchSampler:
        return replace(common, groups=lambda seed: [list(group) for group in _seeded(batch_sampler, seed)])
    kind = type(sampler)
    if kind in (torch_data.SequentialSampler, torch_data.DistributedSampler):
        return common
    if kind is torch_data.RandomSampler and not sampler.replacement and sampler.num_samples == len(loader.dataset):
        return common
    return replace(common, order=lambda seed: [int(number) for number in _seeded(sampler, seed)])


def _seeded(sampler: Any, seed: int) -> list[Any]:
    """A sampler's own choice, the same in every learner: drawn with the seed, the random stream untouched."""
    import torch

    generator = getattr(sampler, "generator", None)
    if isinstance(generator, torch.Generator):
        generator.manual_seed(seed)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return list(sampler)
