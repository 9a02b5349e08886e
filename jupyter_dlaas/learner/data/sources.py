"""Conversion of data into batches: datasets, existing DataLoaders, arrays."""

from __future__ import annotations

import functools
import sys
from array import array
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from jupyter_dlaas.learner.data.position import permutation
from jupyter_dlaas.learner.data.sample_reader import Collate, Reader, read_all
from jupyter_dlaas.wire.codec import DlaasError

__all__ = ["BadData", "Plan", "Reading", "Source", "length", "plan", "source_of"]


class BadData(DlaasError):
    """Data given to `run.batches` that cannot be divided into batches."""

    code = "bad_data"


Fetch = Callable[[Sequence[Sequence[int]], int], Iterator[Any]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """Data, and the way in which its batches are made."""

    samples: int
    """-1 if unknown."""
    batch_size: int
    is_shuffled: bool
    drop_last: bool
    fetch: Fetch
    """Returns batches for lists of sample numbers, lazily; the seed is for data workers that draw random numbers."""
    order: Callable[[int], list[int]] | None = None
    """A sampler's own order for a seed, if it is not a plain permutation."""
    groups: Callable[[int], list[list[int]]] | None = None
    """A batch sampler's own batches for a seed."""
    stream: Callable[[int], Iterator[Any]] | None = None
    """Iterates over the samples of data without random access; reproducible for a seed."""
    collate: Callable[[list[Any]], Any] = list
    """Makes a batch from a stream's samples."""
    skips_bad: bool = False
    """True if batches are `sample_reader.Found` objects."""


@dataclass(frozen=True, slots=True)
class Plan:
    """The global batches of one pass."""

    order: Sequence[int]
    batch_size: int
    steps: int
    """The number of batches."""
    groups: Sequence[Sequence[int]] | None = None

    def batch(self, index: int) -> Sequence[int]:
        """Return the samples of global batch `index`."""
        if self.groups is not None:
            return self.groups[index]
        return self.order[index * self.batch_size : (index + 1) * self.batch_size]


def length(source: Source) -> int:
    """Return the number of batches of a pass. Raises TypeError for a stream of unknown length."""
    if source.stream is not None and source.samples < 0:
        raise TypeError("the number of samples in this data is unknown")
    if source.groups is not None or source.order is not None:
        return plan(source, 0).steps
    whole, rest = divmod(source.samples, source.batch_size)
    return whole + (rest > 0 and not source.drop_last)


def plan(source: Source, seed: int) -> Plan:
    """Return the batches of one pass, identical in all learners for a seed."""
    if source.groups is not None:
        groups = source.groups(seed)
        return Plan((), 0, len(groups), groups)
    if source.order is not None:
        order: Sequence[int] = source.order(seed)
    else:
        order = permutation(source.samples, seed) if source.is_shuffled else range(source.samples)
    whole, rest = divmod(len(order), source.batch_size)
    return Plan(order, source.batch_size, whole + (rest > 0 and not source.drop_last))


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """Options for reading samples."""

    skip_bad: bool = False
    is_exact: bool = False


def source_of(
    data: Any,
    batch_size: int | None,
    *,
    shuffle: bool | None,
    drop_last: bool | None,
    options: dict[str, Any],
    reading: Reading = Reading(),
) -> Source:
    """Return the source for the data.

    `options` are passed to torch's DataLoader (num_workers, collate_fn, …). Raises BadData.
    """
    torch_data = sys.modules.get("torch.utils.data")
    if torch_data is not None and isinstance(data, torch_data.DataLoader):
        found = _of_loader(data, torch_data, options, reading)
    elif torch_data is not None and isinstance(data, torch_data.IterableDataset):
        found = _of_stream(data, options, reading)
    elif _is_array(data):
        found = _of_arrays((data,), lambda parts: parts[0])
    elif isinstance(data, tuple | list) and data and all(_is_array(one) for one in data):
        lengths = {len(one) for one in data}
        if len(lengths) > 1:
            raise BadData(f"run.batches: the arrays have different lengths: {', '.join(map(str, sorted(lengths)))}")
        found = _of_arrays(tuple(data), tuple)
    elif hasattr(data, "__getitem__") and hasattr(data, "__len__"):
        fetch = _items(data, reading) if "torch" not in sys.modules else _by_loader(data, options, reading)
        found = Source(
            samples=len(data),
            batch_size=0,
            is_shuffled=True,
            drop_last=False,
            fetch=fetch,
            skips_bad=reading.skip_bad,
        )
    else:
        raise BadData(
            f"run.batches: a {type(data).__name__} has no random access to its samples, so they cannot be sharded "
            "exactly once. Pass a dataset with __len__ and __getitem__, a torch IterableDataset, a DataLoader over one "
            "of these, or arrays."
        )
    if batch_size is not None and found.groups is None:
        found = replace(found, batch_size=batch_size)
    if shuffle and found.stream is not None:
        raise BadData("run.batches: an IterableDataset determines its own order; shuffle inside the dataset")
    if shuffle is not None:
        found = replace(found, is_shuffled=shuffle, order=None)
    if drop_last is not None:
        found = replace(found, drop_last=drop_last)
    if found.groups is None and found.batch_size < 1:
        raise BadData("run.batches: pass the batch size over all learners, for example run.batches(data, 64)")
    return found


def _is_array(data: Any) -> bool:
    return hasattr(data, "shape") and hasattr(data, "__getitem__") and len(data.shape) > 0


def _of_arrays(arrays: tuple[Any, ...], join: Callable[[tuple[Any, ...]], Any]) -> Source:
    torch: Any = sys.modules.get("torch")
    # Convert the indices once for all tensors: torch takes longer to read a list than to fetch the rows.
    are_tensors = torch is not None and all(isinstance(one, torch.Tensor) for one in arrays)
    index_of = functools.partial(_index, torch) if are_tensors else list
    readers = [_reader(one, are_tensors=are_tensors) for one in arrays]

    def fetch(lists: Sequence[Sequence[int]], seed: int) -> Iterator[Any]:
        for numbers in lists:
            index = index_of(numbers)
            yield join(tuple([read(index) for read in readers]))

    return Source(samples=len(arrays[0]), batch_size=0, is_shuffled=True, drop_last=False, fetch=fetch)


def _reader(one: Any, *, are_tensors: bool) -> Callable[[Any], Any]:
    """Return a function that reads rows of an array, a frame or a tensor."""
    if are_tensors and one.device.type == "cpu":
        return functools.partial(one.index_select, 0)  # takes a quarter of the time of indexing
    if hasattr(one, "iloc"):  # a pandas frame takes row numbers by iloc only
        one = one.iloc
    read: Callable[[Any], Any] = one.__getitem__
    return read


def _index(torch: Any, numbers: Sequence[int]) -> Any:
    """Return these numbers as a tensor, without a copy if they are in an array."""
    if isinstance(numbers, array):
        return torch.frombuffer(numbers, dtype=torch.long)
    return torch.tensor(numbers, dtype=torch.long, device="cpu")  # whatever the default device is


def _items(data: Any, reading: Reading) -> Fetch:
    def fetch(lists: Sequence[Sequence[int]], seed: int) -> Iterator[Any]:
        reader = Reader(data, skip_bad=reading.skip_bad, seed=seed if reading.is_exact else None)
        for numbers in lists:
            yield read_all(reader, numbers)

    return fetch


def _by_loader(data: Any, options: dict[str, Any], reading: Reading) -> Fetch:
    """Read through torch's DataLoader, with its collating, workers and pinned memory."""

    def fetch(lists: Sequence[Sequence[int]], seed: int) -> Iterator[Any]:
        import torch
        from torch.utils.data import DataLoader, default_collate

        # A separate generator: otherwise each pass would draw a number from the user's random state.
        generator = torch.Generator()
        generator.manual_seed(seed)
        batches: Any = [list(numbers) for numbers in lists]
        read, given = data, dict(options)
        if reading.skip_bad or reading.is_exact:
            read = Reader(data, skip_bad=reading.skip_bad, seed=seed if reading.is_exact else None)
        if reading.skip_bad:
            given["collate_fn"] = Collate(given.get("collate_fn") or default_collate)
        return iter(DataLoader(read, batch_sampler=batches, generator=generator, **given)) if batches else iter(())

    return fetch


def _of_stream(data: Any, options: dict[str, Any], reading: Reading) -> Source:
    """Return a source in which every learner reads the whole stream and trains on its share of each batch."""
    from torch.utils.data import DataLoader, default_collate

    if reading.skip_bad:
        raise BadData(
            "run.batches(skip_bad=True): a stream cannot continue after an error; skip bad samples inside the dataset"
        )
    options = dict(options)
    collate = options.pop("collate_fn", None) or default_collate

    def stream(seed: int) -> Iterator[Any]:
        import torch

        generator = torch.Generator()
        generator.manual_seed(seed)
        # One sample at a time: torch would batch per worker, with a short batch at the end of each.
        return iter(DataLoader(data, batch_size=None, collate_fn=_as_it_is, generator=generator, **options))

    return Source(
        samples=len(data) if hasattr(data, "__len__") else -1,
        batch_size=0,
        is_shuffled=False,
        drop_last=False,
        fetch=lambda lists, seed: iter(()),
        stream=stream,
        collate=collate,
    )


def _as_it_is(sample: Any) -> Any:
    return sample


_TAKEN_OVER = (
    "collate_fn",
    "num_workers",
    "pin_memory",
    "timeout",
    "worker_init_fn",
    "multiprocessing_context",
    "prefetch_factor",
)


def _of_loader(loader: Any, torch_data: Any, options: dict[str, Any], reading: Reading) -> Source:
    taken = {name: getattr(loader, name) for name in _TAKEN_OVER if getattr(loader, name, None) is not None}
    if isinstance(loader.dataset, torch_data.IterableDataset):
        found = _of_stream(loader.dataset, taken | options, reading)
        return replace(found, batch_size=loader.batch_size or 0, drop_last=bool(loader.drop_last))
    if loader.batch_size is None and isinstance(loader.sampler, torch_data.Sampler) and loader.batch_sampler is None:
        raise BadData(
            "run.batches: this DataLoader has no batch size; pass its dataset and a batch size to run.batches"
        )
    sampler, batch_sampler = loader.sampler, loader.batch_sampler
    common = Source(
        samples=len(loader.dataset),
        batch_size=loader.batch_size or 0,
        is_shuffled=isinstance(sampler, torch_data.RandomSampler | torch_data.DistributedSampler)
        and getattr(sampler, "shuffle", True),
        drop_last=bool(loader.drop_last),
        fetch=_by_loader(loader.dataset, taken | options, reading),
        skips_bad=reading.skip_bad,
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
    """Return a sampler's own order for a seed, identical in all learners, without changing the random state."""
    import torch

    generator = getattr(sampler, "generator", None)
    if isinstance(generator, torch.Generator):
        generator.manual_seed(seed)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return list(sampler)
