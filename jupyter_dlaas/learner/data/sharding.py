"""One learner's share of each batch of a pass, prefetched where possible."""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from jupyter_dlaas.learner.data import shards
from jupyter_dlaas.learner.data.position import cut
from jupyter_dlaas.learner.data.sample_reader import Bad, Found
from jupyter_dlaas.learner.data.sources import Source, plan
from jupyter_dlaas.learner.environment.seeds import derive, seed_all
from jupyter_dlaas.transfer import rng_state

__all__ = ["Feed", "Place", "Share", "feed"]


class Place(NamedTuple):
    """The requested share: `sample` is the first of the batch, which has `size` samples for `learners` learners."""

    sample: int
    size: int
    rank: int
    learners: int


@dataclass(slots=True)
class Share:
    """The data that one learner trains on in one step."""

    batch: Any
    count: int
    """The samples that count: 0 if a short last batch left none for this learner, which still takes part."""
    total: int
    """The samples of all learners together, including those that cannot be read."""
    shards: int = 1
    """The number of shards of the whole batch (exact mode)."""
    own: tuple[tuple[int, Any, int], ...] = ()
    """This learner's shards: number, part, and how many samples count."""
    bad: tuple[Bad, ...] = ()


class Feed(Protocol):
    """The batches of one pass."""

    steps: int
    """The number of batches, as far as known, if their size is constant; 0 if unknown."""

    def has(self, sample: int, size: int) -> bool:
        """Return whether there is a batch at this position."""
        ...

    def close(self) -> None:
        """Stop reading and end data workers now.

        The garbage collector would take five seconds per worker, since it closes their queues before the loader can
        stop them.
        """

    def share(self, place: Place) -> Share:
        """Return this learner's share of the batch."""
        ...


def feed(source: Source, seed: int, cuts: int) -> Feed:
    """Return the batches of one pass, identical in all learners for a seed. `cuts`: shards of exact mode, or 0."""
    return _Stream(source, seed, cuts) if source.stream is not None else _Listed(source, seed, cuts)


class _Listed:
    """Batches of data with random access."""

    def __init__(self, source: Source, seed: int, cuts: int) -> None:
        self._source, self._seed, self._cuts = source, seed, cuts
        self._plan = plan(source, seed)
        self.steps = self._plan.steps
        self._iterator: Generator[Share, None, None] | None = None
        self._next = -1
        """The first sample of the iterator's next batch."""
        self._among = (0, 0, 0)
        """The size, rank and number of learners that the iterator was created for."""
        groups = self._plan.groups
        self._starts: dict[int, int] | None = None
        if groups is not None:
            ends = [0]
            for group in groups:
                ends.append(ends[-1] + len(group))
            self._starts = {start: number for number, start in enumerate(ends[:-1])}
        rest = self._plan.steps * source.batch_size if groups is None else 0
        self._end = min(len(self._plan.order), rest) if source.drop_last else len(self._plan.order)

    def has(self, sample: int, size: int) -> bool:
        if self._starts is not None:
            return sample in self._starts
        return sample < self._end

    def _batches(self, place: Place) -> list[Sequence[int]]:
        """Return the batches from this position on, if the size is constant."""
        if self._starts is not None:
            assert self._plan.groups is not None
            return list(self._plan.groups[self._starts[place.sample] :])
        return [
            self._plan.order[first : min(first + place.size, self._end)]
            for first in range(place.sample, self._end, place.size)
        ]

    def share(self, place: Place) -> Share:
        if place.sample != self._next or place[1:] != self._among:
            batches = self._batches(place)
            self._iterator = self._cut(place, batches) if self._cuts else self._shares(place, batches)
            self._among = place[1:]
        assert self._iterator is not None
        found = next(self._iterator)
        self._next = place.sample + found.total
        return found

    def close(self) -> None:
        if self._iterator is not None:
            self._iterator.close()

    def _shares(self, place: Place, batches: Sequence[Sequence[int]]) -> Generator[Share, None, None]:
        """Yield this learner's shares of the batches.

        A learner without a sample in a short batch gets its last batch again, or at first another learner's sample.
        """
        mine = [cut(batch, place.rank, place.learners) for batch in batches]
        first = batches[0][:1] if batches and not mine[0] else None
        seed = derive(self._seed, place.rank, place.sample)
        fetched = self._source.fetch([*([first] if first else ()), *(share for share in mine if share)], seed)
        last: Any = None
        if first:
            last = next(fetched)
            last = last.batch if isinstance(last, Found) else last
        for share, batch in zip(mine, batches, strict=True):
            count = len(share)
            bad: tuple[Bad, ...] = ()
            if count:
                found = next(fetched)
                if isinstance(found, Found):
                    last = found.batch if found.count else last
                    count, bad = min(count, found.count), found.bad
                else:
                    last = found
            yield Share(last, count, len(batch), 1, (), bad)

    def _cut(self, place: Place, batches: Sequence[Sequence[int]]) -> Generator[Share, None, None]:
        """Yield shares in exact mode, with a list of samples for each shard of this learner."""
        lists: list[list[tuple[int, Sequence[int]]]] = []
        numbers = [shards.number_of_shards(len(one), place.size or len(one), self._cuts) for one in batches]
        for batch, number in zip(batches, numbers, strict=True):
            own = shards.owned(number, place.rank, place.learners)
            lists.append([(shard, cut(batch, shard, number)) for shard in own])
        fetched = self._source.fetch([part for parts in lists for _, part in parts], self._seed)
        for batch, number, parts in zip(batches, numbers, lists, strict=True):
            own_parts: list[tuple[int, Any, int]] = []
            bad: tuple[Bad, ...] = ()
            for shard, part in parts:
                found = next(fetched)
                if isinstance(found, Found):
                    own_parts.append((shard, found.batch, found.count))
                    bad += found.bad
                else:
                    own_parts.append((shard, found, len(part)))
            yield Share(
                batch=None,
                count=sum(count for _, _, count in own_parts),
                total=len(batch),
                shards=number,
                own=tuple(own_parts),
                bad=bad,
            )


class _Stream:
    """Batches of data without random access: every learner reads all of it and keeps its share."""

    def __init__(self, source: Source, seed: int, cuts: int) -> None:
        self._source, self._seed, self._cuts = source, seed, cuts
        self.steps = -(-source.samples // source.batch_size) if source.samples > 0 else 0
        self._open()

    def close(self) -> None:
        self._open()

    def _open(self) -> None:
        self._iterator: Iterator[Any] | None = None
        self._chance: dict[str, Any] | None = None
        self._first = 0
        """The index of the first sample in `_held`."""
        self._held: list[Any] = []

    def _read(self, sample: int, size: int) -> list[Any]:
        """Return the batch at this position; it is shorter at the end."""
        if sample < self._first:
            self._open()
        drop = min(sample - self._first, len(self._held))
        self._held = self._held[drop:]
        self._first += drop
        if self._first < sample or len(self._held) < size:
            # The dataset draws the same random numbers in every learner, and the program's random state is unchanged.
            outside = rng_state.snapshot()
            if self._chance is None:
                seed_all(self._seed)
            else:
                rng_state.put_back(self._chance)
            try:
                self._advance(sample, size)
            finally:
                self._chance = rng_state.snapshot()
                rng_state.put_back(outside)
        return self._held[:size]

    def _advance(self, sample: int, size: int) -> None:
        if self._iterator is None:
            assert self._source.stream is not None
            self._iterator = self._source.stream(self._seed)
        nothing = object()
        while self._first < sample:
            if next(self._iterator, nothing) is nothing:
                return
            self._first += 1
        while len(self._held) < size and (one := next(self._iterator, nothing)) is not nothing:
            self._held.append(one)

    def has(self, sample: int, size: int) -> bool:
        found = self._read(sample, size)
        return self._first == sample and len(found) >= (size if self._source.drop_last else 1)

    def share(self, place: Place) -> Share:
        whole, collate = self._read(place.sample, place.size), self._source.collate
        if self._cuts:
            number = shards.number_of_shards(len(whole), place.size, self._cuts)
            parts = [(shard, cut(whole, shard, number)) for shard in shards.owned(number, place.rank, place.learners)]
            own = tuple((shard, collate(list(part)), len(part)) for shard, part in parts)
            count = sum(len(part) for _, part in parts)
            return Share(batch=None, count=count, total=len(whole), shards=number, own=own)
        mine = cut(whole, place.rank, place.learners)
        return Share(batch=collate(list(mine) or whole[:1]), count=len(mine), total=len(whole))
