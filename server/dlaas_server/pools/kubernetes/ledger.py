"""Ledger of the pool: seats of all jobs and the leader's term, in one ConfigMap. Pure.

An update of the ConfigMap with a compare-and-swap on its resource version is the point where a placement is committed.
A leader whose term is lower than the ledger's has lost its office: its writes are refused here, and by the swap.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from dlaas_server.pools.kubernetes.api import ApiUnreachable
from jupyter_dlaas.wire.codec import DlaasError

__all__ = ["Fenced", "Ledger", "LedgerDamaged", "Reservation", "SeatTaken", "parse_ledger"]

FORMAT: Final = 1
PlacedSeat = tuple[str, tuple[str, ...]]
"""Node and devices of a learner. The node is "" where the cluster chooses it."""


class Fenced(ApiUnreachable):
    """Write that was not sent because this engine is not the pool's leader. It may be repeated once it is."""

    code = "fenced"


class SeatTaken(DlaasError):
    """Reservation of a device that another job holds."""

    code = "seat_taken"


class LedgerDamaged(DlaasError):
    """Ledger that cannot be read; nothing may be placed until it is repaired."""

    code = "ledger_damaged"


@dataclass(frozen=True, slots=True, kw_only=True)
class Reservation:
    """Seats of one job in one generation, by member number in text form."""

    generation: int
    seats: Mapping[str, PlacedSeat] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Ledger:
    """All reservations, and who may change them."""

    term: int = 0
    """Number of the leader: each new leader raises it."""
    holder: str = ""
    jobs: Mapping[str, Reservation] = field(default_factory=dict)

    def take_over(self, holder: str) -> Ledger:
        """Return the ledger with another leader, whose term is higher."""
        return replace(self, term=self.term + 1, holder=holder)

    def check_term(self, term: int) -> None:
        """Raise Fenced if another leader has taken over since `term`."""
        if term != self.term:
            raise Fenced(f"another engine ({self.holder}) has taken over the pool: term {self.term}, not {term}")

    def reserve(self, job: str, reservation: Reservation) -> Ledger:
        """Return the ledger with a job's seats, in place of its former ones. Raises SeatTaken."""
        wanted = {(node, device) for node, devices in reservation.seats.values() for device in devices if node}
        for other, held in self.jobs.items():
            if other == job:
                continue
            for node, devices in held.seats.values():
                for device in devices:
                    if (node, device) in wanted:
                        raise SeatTaken(f"device {device} of node {node} is held by job {other}")
        return replace(self, jobs={**self.jobs, job: reservation})

    def place(self, job: str, reservation: Reservation, live: Mapping[str, Collection[str]]) -> Ledger:
        """Return the ledger with the seats of a generation, beside those where its predecessors still save.

        `live`: members of all jobs that are wanted or run; seats of others are dropped. Raises SeatTaken.
        """
        held = self.jobs.get(job)
        is_same = held is not None and held.generation == reservation.generation
        if held is not None and is_same and reservation.seats.items() <= held.seats.items():
            return self
        kept = self.kept(live)
        saving = kept.jobs[job].seats if job in kept.jobs else {}
        return kept.reserve(job, replace(reservation, seats={**saving, **reservation.seats}))

    def kept(self, live: Mapping[str, Collection[str]]) -> Ledger:
        """Return the ledger with the seats of these members only, by job. Others have ended, or never began."""
        jobs = {
            job: replace(held, seats={m: seat for m, seat in held.seats.items() if m in live[job]})
            for job, held in self.jobs.items()
            if job in live
        }
        return replace(self, jobs=jobs)

    def release(self, job: str) -> Ledger:
        """Return the ledger without a job's seats."""
        return replace(self, jobs={name: held for name, held in self.jobs.items() if name != job})

    def to_text(self) -> str:
        """Return the ledger as JSON. Equal ledgers give equal texts."""
        jobs = {
            name: {
                "generation": held.generation,
                "seats": {member: [node, list(devices)] for member, (node, devices) in sorted(held.seats.items())},
            }
            for name, held in sorted(self.jobs.items())
        }
        return json.dumps({"format": FORMAT, "term": self.term, "holder": self.holder, "jobs": jobs})


def parse_ledger(text: str) -> Ledger:
    """Return the ledger from its JSON. Raises LedgerDamaged: an unreadable ledger is not an empty one."""
    try:
        found = json.loads(text)
        if found["format"] > FORMAT:
            raise LedgerDamaged(f"the ledger has format {found['format']}; update jupyter_dlaas to read it")
        jobs = {
            str(name): Reservation(
                generation=int(held["generation"]),
                seats={str(m): (str(node), tuple(map(str, devices))) for m, (node, devices) in held["seats"].items()},
            )
            for name, held in found["jobs"].items()
        }
        return Ledger(term=int(found["term"]), holder=str(found["holder"]), jobs=jobs)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise LedgerDamaged(
            f"the pool's ledger is not readable ({error}); restore its ConfigMap from a backup"
        ) from None
