"""Ledger of the pool: exclusive devices, terms of leaders, stored text."""

from __future__ import annotations

from contextlib import suppress

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dlaas_server.pools.kubernetes.ledger import Fenced, Ledger, LedgerDamaged, Reservation, SeatTaken, parse_ledger

NODES = st.sampled_from(["", "a", "b"])
SEATS = st.dictionaries(
    st.integers(0, 3).map(str), st.tuples(NODES, st.lists(st.sampled_from(["0", "1"]), unique=True).map(tuple))
)


def held(*devices: str, node: str = "a", generation: int = 1) -> Reservation:
    return Reservation(generation=generation, seats={"0": (node, devices)})


def test_a_device_is_reserved_for_one_job_only() -> None:
    ledger = Ledger().reserve("x", held("0"))

    with pytest.raises(SeatTaken, match="device 0 of node a is held by job x"):
        ledger.reserve("y", held("1", "0"))
    assert ledger.reserve("y", held("1")).jobs.keys() == {"x", "y"}
    assert ledger.reserve("x", held("0", "1", generation=2)).jobs["x"].generation == 2
    assert ledger.release("x").reserve("y", held("0")).jobs.keys() == {"y"}


def seats(*devices: str, first: int = 0, generation: int = 1) -> Reservation:
    """Return a reservation with one device for each member."""
    return Reservation(
        generation=generation, seats={str(n): ("a", (device,)) for n, device in enumerate(devices, first)}
    )


def test_seats_of_former_engines_block_no_device() -> None:
    ledger = Ledger().reserve("gone", seats("0")).reserve("shrunk", seats("1", "2")).reserve("runs", seats("3"))
    live = {"shrunk": {"0"}, "runs": {"0"}}
    placed = ledger.place("new", seats("0", "2"), live)

    assert placed.jobs.keys() == {"shrunk", "runs", "new"}
    assert placed.jobs["shrunk"].seats.keys() == {"0"}
    for device in ("1", "3"):
        with pytest.raises(SeatTaken):
            ledger.place("new", seats(device), live)


def test_successors_are_placed_while_their_predecessors_save() -> None:
    first = Ledger().place("x", seats("0", "1"), {})
    both = first.place("x", seats("0", "1", first=2, generation=2), {"x": {"0", "2", "3"}})

    assert both.jobs["x"].seats.keys() == {"0", "2", "3"}
    with pytest.raises(SeatTaken):
        both.place("y", seats("0"), {"x": {"0"}})
    assert both.place("x", seats("0", "1", first=2, generation=2), {"x": {"2", "3"}}) is both


@settings(max_examples=50)
@given(
    st.lists(st.tuples(st.sampled_from("xyz"), SEATS, st.dictionaries(st.sampled_from("xyz"), st.just(set("0123")))))
)
def test_no_device_is_ever_placed_for_two_jobs(placements: list) -> None:
    ledger = Ledger()
    for generation, (job, wanted, live) in enumerate(placements):
        with suppress(SeatTaken):
            ledger = ledger.place(job, Reservation(generation=generation, seats=wanted), live)
        found = {name: {(node, d) for node, devices in held.seats.values() for d in devices if node}
                 for name, held in ledger.jobs.items()}  # fmt: skip
        assert sum(map(len, found.values())) == len(set().union(*found.values()))


def test_a_former_leader_is_fenced() -> None:
    ledger = Ledger().take_over("first")
    term = ledger.term
    ledger.check_term(term)

    with pytest.raises(Fenced, match="second"):
        ledger.take_over("second").check_term(term)


@settings(max_examples=50)
@given(st.dictionaries(st.text(max_size=8), SEATS, max_size=4), st.integers(0, 9), st.text(max_size=8))
def test_a_stored_ledger_is_read_back_equal(jobs: dict[str, dict], term: int, holder: str) -> None:
    reserved = {name: Reservation(generation=1, seats=seats) for name, seats in jobs.items()}
    ledger = Ledger(term=term, holder=holder, jobs=reserved)

    assert parse_ledger(ledger.to_text()) == ledger


@pytest.mark.parametrize("text", ["", "{}", "[]", '{"format": 9, "jobs": {}}', '{"format": 1, "term": 1, "jobs": 3}'])
def test_an_unreadable_ledger_is_not_an_empty_one(text: str) -> None:
    with pytest.raises(LedgerDamaged):
        parse_ledger(text)
