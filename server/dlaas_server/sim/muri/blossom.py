"""Maximum-weight matching in a general graph: Edmonds' blossom algorithm with dual labels.

Source: Edmonds, "Maximum matching and a polyhedron with 0,1-vertices", 1965; Galil, "Efficient algorithms for finding
maximum matching in graphs", ACM Computing Surveys 18, 1986: n stages, each grows trees of alternating paths from all
free vertices over tight edges, and O(n) changes of labels of O(n) steps each, so O(n³) in all.

Vertices are looked at by number, first come first served, which decides between matchings of one weight: as in Muri's
published simulator (Rivendile/Muri, Apache-2.0), so that a replay is the same to the last digit. For
that reason weights are floats.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import inf, isclose
from typing import Final

__all__ = ["maximum_matching"]

NONE: Final = 0
FREE: Final = -1  # in no tree
OUTER: Final = 0  # at an even distance from a root
INNER: Final = 1

End = tuple[int, int]
"""Vertices of the best edge between two blossoms."""


def maximum_matching(weights: Sequence[Sequence[float]]) -> list[int | None]:
    """Return the partner of each vertex, or None. `weights[u][v]`: weight of the pair; 0 means no edge.

    The matrix is symmetric, but for the last bits. Weights are not negative.
    """
    found = _Matching(weights)
    if found.top > 0:
        while found.augmented():
            pass
    return [mate - 1 if mate else None for mate in found.mate[1 : found.count + 1]]


class _Matching:
    """State of the matching. Vertices are 1 to `count`; blossoms have higher numbers, reused after expansion."""

    def __init__(self, weights: Sequence[Sequence[float]]) -> None:
        count = self.count = len(weights)
        self.twice = [[0.0] * (count + 1), *([0.0, *(2.0 * weight for weight in row)] for row in weights)]
        """Weights times two: an edge is tight where the labels of its ends add up to that."""
        self.top = max((max(row, default=0.0) for row in weights), default=0.0)
        self.label = [self.top] * (count + 1)
        self.mate = [NONE] * (count + 1)
        self.outermost = [*range(count + 1)]
        """Outermost blossom of a vertex; NONE for a blossom number that is not in use."""
        self.petals: list[list[int]] = [[] for _ in range(count + 1)]
        self.petal_of = [[v if u == v else NONE for v in range(count + 1)] for u in range(count + 1)]
        """[blossom][vertex]: petal with that vertex."""
        self.ends: list[list[End | None]] = [[(u, v) for v in range(count + 1)] for u in range(count + 1)]
        self.parent = [NONE] * (count + 1)
        self.state = [FREE] * (count + 1)
        self.nearest = [NONE] * (count + 1)
        """Outer vertex with the least slack to a blossom."""
        self.seen = [0] * (count + 1)
        self.searches = 0
        self.line: list[int] = []

    def slack(self, end: End | None) -> float:
        """Return the slack of an edge: 0 if it is tight."""
        assert end is not None
        return self.label[end[0]] + self.label[end[1]] - self.twice[end[0]][end[1]]

    def augmented(self) -> bool:
        """Run one stage. Return whether the matching gained a pair."""
        size = len(self.mate)
        self.state, self.nearest, self.line = [FREE] * size, [NONE] * size, []
        for x in range(1, size):
            if self.outermost[x] == x and not self.mate[x]:
                self.parent[x], self.state[x] = NONE, OUTER
                self._enter(x)
        if not self.line:
            return False
        while True:
            if self._grown():
                return True
            if not self._relabelled():
                return False
            if self._joined():
                return True
            for b in range(self.count + 1, len(self.mate)):
                if self.outermost[b] == b and self.state[b] == INNER and self.label[b] <= 0:
                    self._expand(b)

    def _grown(self) -> bool:
        """Follow tight edges from outer vertices; True if a path between two free vertices was found and turned."""
        label, place = self.label, 0
        while place < len(self.line):
            u = self.line[place]
            place += 1
            if self.state[self.outermost[u]] == INNER:
                continue
            row, own = self.twice[u], label[u]
            for v in range(1, self.count + 1):
                weight = row[v]
                x = self.outermost[v]
                if weight <= 0 or self.outermost[u] == x:
                    continue
                slack = own + label[v] - weight
                if slack <= 0:
                    if self._follow((u, v)):
                        return True
                else:
                    best = self.nearest[x]
                    if not best or (slack if x == v else self.slack(self.ends[u][x])) < self.slack(self.ends[best][x]):
                        self.nearest[x] = u
        self.line = []
        return False

    def _relabelled(self) -> bool:
        """Change labels as far as they stay valid. Return False if no label of an outer vertex can decrease."""
        step, size = inf, len(self.mate)
        for x in range(1, size):
            if self.outermost[x] != x:
                continue
            state = self.state[x]
            if x > self.count and state == INNER:
                step = min(step, self.label[x] / 2.0)
            if self.nearest[x] and state != INNER:
                slack = self.slack(self.ends[self.nearest[x]][x])
                step = min(step, slack if state == FREE else slack / 2.0)
        for u in range(1, self.count + 1):
            state = self.state[self.outermost[u]]
            if state == OUTER:
                if self.label[u] <= step or isclose(self.label[u], step, rel_tol=1e-5):
                    return False
                self.label[u] -= step
            elif state == INNER:
                self.label[u] += step
        for b in range(self.count + 1, size):
            if self.outermost[b] == b and self.state[b] != FREE:
                self.label[b] += step * 2 if self.state[b] == OUTER else -step * 2
        return True

    def _joined(self) -> bool:
        """Follow the edges that became tight."""
        self.line = []
        for x in range(1, len(self.mate)):
            u = self.nearest[x]
            if self.outermost[x] == x and u and self.outermost[u] != x:
                end = self.ends[u][x]
                if self.slack(end) <= 0 and end is not None and self._follow(end):
                    return True
        return False

    def _follow(self, end: End) -> bool:
        """Use a tight edge: to a free blossom the tree grows, to an outer one it closes a path or a cycle."""
        u, v = self.outermost[end[0]], self.outermost[end[1]]
        if self.state[v] == FREE:
            self.parent[v], self.state[v] = end[0], INNER
            mate = self.outermost[self.mate[v]]
            self.nearest[v] = self.nearest[mate] = NONE
            self.state[mate] = OUTER
            self._enter(mate)
        elif self.state[v] == OUTER:
            top = self._common(u, v)
            if not top:
                self._turn(u, v)
                self._turn(v, u)
                return True
            self._shrink(u, top, v)
        return False

    def _enter(self, x: int) -> None:
        """Append the vertices of a blossom to the search queue, those of outer petals first."""
        waiting = [x]
        for y in waiting:
            if y <= self.count:
                self.line.append(y)
            else:
                waiting += self.petals[y]

    def _common(self, u: int, v: int) -> int:
        """Return the lowest common ancestor of two vertices; NONE if they have different roots."""
        self.searches += 1
        while u or v:
            if u:
                if self.seen[u] == self.searches:
                    return u
                self.seen[u] = self.searches
                u = self.outermost[self.mate[u]]
                if u:
                    u = self.outermost[self.parent[u]]
            u, v = v, u
        return NONE

    def _turn(self, u: int, v: int) -> None:
        """Match u with v, and all the way to the root the other way round."""
        while True:
            next_v = self.outermost[self.mate[u]]
            self._match(u, v)
            if not next_v:
                return
            next_u = self.outermost[self.parent[next_v]]
            self._match(next_v, next_u)
            u, v = next_u, next_v

    def _match(self, u: int, v: int) -> None:
        """Match blossom u with blossom v, and the petals inside with each other."""
        for inside, other in (pairs := [(u, v)]):
            end = self.ends[inside][other]
            assert end is not None
            self.mate[inside] = end[1]
            if inside <= self.count:
                continue
            base = self.petal_of[inside][end[0]]
            place = self._even_place(inside, base)
            petals = self.petals[inside]
            pairs += [(petals[i], petals[i ^ 1]) for i in range(place)]
            pairs.append((base, other))
            self.petals[inside] = petals[place:] + petals[:place]

    def _even_place(self, b: int, petal: int) -> int:
        """Return the position of a petal in its blossom; reverse the cycle if that is odd."""
        place = self.petals[b].index(petal)
        if place % 2:
            self.petals[b][1:] = self.petals[b][:0:-1]
            return len(self.petals[b]) - place
        return place

    def _contains(self, x: int, b: int) -> None:
        """Record that blossom x lies in b, with all its vertices."""
        for y in (inside := [x]):
            self.outermost[y] = b
            inside += self.petals[y]

    def _shrink(self, u: int, top: int, v: int) -> None:
        """Shrink a cycle of odd length to one outer blossom."""
        b = next((x for x in range(self.count + 1, len(self.mate)) if not self.outermost[x]), NONE) or self._number()
        self.label[b], self.state[b], self.mate[b] = 0.0, OUTER, self.mate[top]
        sides: list[list[int]] = []
        for start in (u, v):
            side: list[int] = []
            x = start
            while x != top:
                mate = self.outermost[self.mate[x]]
                side += [x, mate]
                self._enter(mate)
                x = self.outermost[self.parent[mate]]
            sides.append(side)
        self.petals[b] = [top, *reversed(sides[0]), *sides[1]]
        self._contains(b, b)
        size = len(self.mate)
        for x in range(1, size):
            self.ends[b][x] = self.ends[x][b] = None
        own = self.petal_of[b] = [NONE] * (self.count + 1)
        for petal in self.petals[b]:
            for x in range(1, size):
                end, known = self.ends[petal][x], self.ends[b][x]
                if known is None or self.twice[known[0]][known[1]] <= 0 or self.slack(end) < self.slack(known):
                    self.ends[b][x], self.ends[x][b] = end, self.ends[x][petal]
            for vertex in range(1, self.count + 1):
                if self.petal_of[petal][vertex]:
                    own[vertex] = petal
        self._look(b)

    def _number(self) -> int:
        """Return an unused number for a blossom."""
        for column in (self.mate, self.outermost, self.parent, self.state, self.nearest, self.seen):
            column.append(0)
        self.label.append(0.0)
        self.petals.append([])
        self.petal_of.append([])
        for row in self.ends:
            row.append(None)
        self.ends.append([None] * len(self.mate))
        return len(self.mate) - 1

    def _look(self, x: int) -> None:
        """Find the outer vertex with the least slack to x."""
        self.nearest[x], least = NONE, inf
        for u in range(1, self.count + 1):
            end = self.ends[u][x]
            if end is None or self.twice[end[0]][end[1]] <= 0 or self.outermost[u] == x:
                continue
            if self.state[self.outermost[u]] == OUTER and self.slack(end) < least:
                self.nearest[x], least = u, self.slack(end)

    def _expand(self, b: int) -> None:
        """Expand an inner blossom whose label fell to 0."""
        for petal in self.petals[b]:
            self._contains(petal, petal)
        end = self.ends[b][self.parent[b]]
        assert end is not None
        base = self.petal_of[b][end[0]]
        place = self._even_place(b, base)
        petals = self.petals[b]
        for inner, outer in zip(petals[:place:2], petals[1 : place + 1 : 2], strict=True):
            back = self.ends[outer][inner]
            assert back is not None
            self.parent[inner] = back[0]
            self.state[inner], self.state[outer] = INNER, OUTER
            self.nearest[inner] = NONE
            self._look(outer)
            self._enter(outer)
        self.state[base], self.parent[base] = INNER, self.parent[b]
        for petal in petals[place + 1 :]:
            self.state[petal] = FREE
            self._look(petal)
        self.outermost[b] = NONE
