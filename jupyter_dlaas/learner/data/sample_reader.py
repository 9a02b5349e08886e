"""The reading of samples from a user's dataset: bad ones are skipped, and random ones are reproducible."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from jupyter_dlaas.learner.environment.seeds import derive, seed_all

__all__ = ["Bad", "Collate", "Found", "Reader", "read_all"]


@dataclass(frozen=True, slots=True)
class Bad:
    """A sample that cannot be read."""

    number: int
    why: str


@dataclass(frozen=True, slots=True)
class Found:
    """A batch without its bad samples."""

    batch: Any
    """The collated good samples; None if all are bad."""
    count: int
    """The number of good samples."""
    bad: tuple[Bad, ...]


class Reader:
    """A proxy of a dataset that handles errors and seeds. It can be pickled for data workers."""

    def __init__(self, data: Any, *, skip_bad: bool, seed: int | None) -> None:
        self.data = data
        self.skip_bad = skip_bad
        self.seed = seed
        """If set, random numbers depend on it and on the samples only, not on earlier reads."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name == "data":
            raise AttributeError(name)
        return getattr(self.data, name)

    def __len__(self) -> int:
        return len(self.data)

    def __getitem__(self, number: int) -> Any:
        return self.data[number]

    def __getitems__(self, numbers: Sequence[int]) -> list[Any]:
        """Return the samples of one batch. PyTorch's DataLoader requests a batch at once if it can."""
        if self.seed is not None and len(numbers):
            seed_all(derive(self.seed, numbers[0]))
        if self.skip_bad:
            return [self._try(number) for number in numbers]
        if hasattr(self.data, "__getitems__"):
            found: list[Any] = self.data.__getitems__(list(numbers))
            return found
        return [self.data[number] for number in numbers]

    def _try(self, number: int) -> Any:
        try:
            return self.data[number]
        except Exception as error:  # noqa: BLE001 - any error of the user's code means that the sample cannot be read
            return Bad(number, f"{type(error).__name__}: {error}")


class Collate:
    """A collate function that uses only the good samples."""

    def __init__(self, collate: Callable[[list[Any]], Any]) -> None:
        self.collate = collate

    def __call__(self, samples: list[Any]) -> Found:
        good = [one for one in samples if not isinstance(one, Bad)]
        bad = tuple(one for one in samples if isinstance(one, Bad))
        return Found(self.collate(good) if good else None, len(good), bad)


def read_all(reader: Reader, numbers: Sequence[int]) -> Any:
    """Return a list of samples, for data without PyTorch."""
    found = reader.__getitems__(numbers)
    return Collate(list)(found) if reader.skip_bad else found
