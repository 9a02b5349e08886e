"""Reservations: when a gang that waits will fit, and who may pass it without delaying that.

Source: Lifka, "The ANL/IBM SP scheduling system", 1995 (EASY backfilling), with places instead of counts.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from dlaas_server.core.asks import Ask
from dlaas_server.core.model import Seat
from dlaas_server.core.place import Free, Frees

__all__ = ["Reservation", "reserve"]


@dataclass(slots=True)
class Reservation:
    """A gang is promised to start at `at_s`; `spare`: how many learners more than it has would fit then."""

    ask: Ask
    at_s: float
    spare: int
    then: dict[str, Free] = field(default_factory=dict)
    """The nodes on which more will be free then than now."""
    is_late: bool = False
    """The promise was broken already: only what takes nothing from it may pass."""

    def admits(self, ask: Ask, seats: Sequence[Seat], frees: Frees, now_s: float) -> bool:
        """Whether a job may start on these seats, which it has taken: it ends before, or leaves enough."""
        end_s = ask.end_s(now_s)
        if end_s is not None and end_s <= self.at_s and not self.is_late:
            return True
        shape, most = self.ask.shape, self.ask.learners
        before = after = 0
        touched: dict[str, Free] = {}
        for name in {seat.node for seat in seats}:
            mine = [seat for seat in seats if seat.node == name]
            node = self.then.get(name) or _as_before(frees, name, ask, mine)
            if node is None:
                continue
            before += node.fits(shape, most + self.spare + 1)
            touched[name] = node = node.copy()
            taken = {device for seat in mine for device in seat.devices}
            node.devices = [device for device in node.devices if device[1] not in taken]
            node.cpus -= ask.shape.cpus * len(mine)
            node.memory_bytes -= ask.shape.memory_bytes * len(mine)
            after += node.fits(shape, most + self.spare + 1)
        if before - after > self.spare:
            return False
        self.spare -= before - after
        self.then.update(touched)
        return True


def _as_before(frees: Frees, name: str, ask: Ask, mine: Sequence[Seat]) -> Free | None:
    """The node as it was before these seats were taken."""
    node = frees.named(name)
    if node is None:
        return None
    node = node.copy()
    node.devices += [(node.order[device][1], device) for seat in mine for device in seat.devices]
    node.cpus += ask.shape.cpus * len(mine)
    node.memory_bytes += ask.shape.memory_bytes * len(mine)
    return node


def reserve(ask: Ask, frees: Frees, releases: Iterable[tuple[float, Ask]], now_s: float) -> Reservation:
    """When this gang will fit, if nobody else starts and running jobs end as expected."""
    shape = ask.shape
    most = 1 << 30
    fits = frees.room(shape, ask.learners)
    then: dict[str, Free] = {}
    at_s = now_s
    for end_s, running in releases:
        if fits >= ask.learners and end_s > at_s:
            break
        at_s = end_s
        for seat in running.seats:
            node = then.get(seat.node)
            if node is None:
                now = frees.named(seat.node)
                if now is None:
                    continue
                node = then[seat.node] = now.copy()
            before = node.fits(shape, most) if shape.gpus or shape.cpus or shape.memory_bytes else 0
            node.devices += [(node.order[d][1], d) for d in seat.devices if d in node.order]
            node.cpus += running.shape.cpus
            node.memory_bytes += running.shape.memory_bytes
            fits += (node.fits(shape, most) if shape.gpus or shape.cpus or shape.memory_bytes else 0) - before
    return Reservation(ask, at_s, max(fits - ask.learners, 0), then)
