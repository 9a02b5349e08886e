"""Grouping of Muri: jobs that take turns on the same GPUs, and their speed.

While one job of a group loads data, another computes, a third synchronises. Groups are of gangs of one size and hold up
to four jobs. Pairs are matched so that the resources are used best (maximum-weight matching), pairs of groups again,
until all that was chosen fits the pool.
Source: Zhao et al., SIGCOMM 2022, section 4, and the simulator published with it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache, lru_cache
from itertools import permutations
from math import isclose
from typing import Final

from dlaas_server.sim.muri.blossom import maximum_matching
from dlaas_server.sim.muri.jobs import ALONE, StagedJob, Stages

__all__ = ["MOST", "Group", "efficiency", "grouped", "kind_of", "period_s"]

MOST: Final = 4
"""Jobs in a group."""
RESOURCES: Final = 4
"""Storage, CPUs, GPUs, network."""
SLOWED: Final = (1.0, 1.33 / ALONE, 1.5 / ALONE, 1.37 / ALONE)
"""Slowdown of a group of one to four over the time of its stages, measured by the authors."""

Kind = tuple[Stages, ...]
"""The stages of a group's jobs."""
Group = tuple[StagedJob, ...]


@cache
def period_s(kind: Kind) -> float:
    """Return the seconds in which each job of a group does one iteration, in the best order of turns."""
    if len(kind) == 1:
        return kind[0].alone_s
    best = min(_turns_s(order) for order in permutations(kind))
    if len(kind) == 2:
        a, b = kind
        best = min(best, max(a.load_s, b.compute_s + b.sync_s) + max(b.load_s, a.compute_s + a.sync_s))
    return best * SLOWED[len(kind) - 1]


def _turns_s(order: Sequence[Stages]) -> float:
    """Return the length of a round of four steps in which the jobs are one step behind each other.

    A job synchronises in one step, computes in one, and loads in two (storage, then CPUs). A step ends when all
    its work has ended; rounds are repeated in pairs until the length no longer changes.
    """
    ends_s = [0.0]
    for step in range(2 * RESOURCES):
        syncs, computes, loads = ((step + ahead) % RESOURCES for ahead in (1, 2, 3))
        end_s = 0.0
        if syncs < len(order):
            end_s = max(end_s, ends_s[step] + order[syncs].sync_s)
        if computes < len(order):
            end_s = max(end_s, ends_s[step] + order[computes].compute_s)
        if step and loads < len(order):
            end_s = max(end_s, ends_s[step - 1] + order[loads].load_s)
        ends_s.append(end_s)
        if step >= RESOURCES:
            round_s = ends_s[-1] - ends_s[-1 - RESOURCES]
            if isclose(round_s, ends_s[-2] - ends_s[-2 - RESOURCES], rel_tol=1e-3):
                return round_s
    return ends_s[-1] - ends_s[-1 - RESOURCES]


@cache
def efficiency(kind: Kind) -> float:
    """Return the mean utilisation of the four resources."""
    used_s = 0.0  # one by one: sum() may round otherwise
    for stages in kind:
        used_s += stages.used_s
    return used_s / (period_s(kind) * RESOURCES)


def kind_of(group: Group) -> Kind:
    """Return the stages that determine the speed of a group."""
    return tuple(job.stages for job in group)


def grouped(chosen: Mapping[int, Sequence[StagedJob]], gpus: int) -> list[Group]:
    """Return groups of the chosen jobs (size -> jobs, in order), no larger than the pool's GPUs require."""
    lines: dict[int, list[Group]] = {size: [(job,) for job in jobs] for size, jobs in chosen.items() if jobs}
    needed = sum(size * len(line) for size, line in lines.items())
    for _ in range(MOST):
        if needed <= gpus:
            break
        paired = {size: _paired(tuple(kind_of(group) for group in line)) for size, line in lines.items()}
        joined: dict[int, list[Group]] = {}
        for size, line in lines.items():
            joined[size] = []
            for pair in paired[size]:
                if len(pair) == 2 and needed > gpus:
                    joined[size].append(line[pair[0]] + line[pair[1]])
                    needed -= size
                else:
                    joined[size] += [line[place] for place in pair]
        lines = joined
    return [group for line in lines.values() for group in line]


@lru_cache(maxsize=1 << 14)
def _paired(line: tuple[Kind, ...]) -> list[tuple[int, ...]]:
    """Return pairs of positions and single positions, in the order of the later one of a pair."""
    mates = maximum_matching(
        [[_worth(a, b) if i != j else 0.0 for j, b in enumerate(line)] for i, a in enumerate(line)]
    )
    pairs: list[tuple[int, ...]] = []
    for place, mate in enumerate(mates):
        if mate is None:
            pairs.append((place,))
        elif mate < place:
            pairs.append((mate, place))
    return pairs


@cache
def _worth(a: Kind, b: Kind) -> float:
    """Return the gain of joining two groups; 0 if the result is too large."""
    return efficiency(a + b) if len(a) + len(b) <= MOST else 0.0
