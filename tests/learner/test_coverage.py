"""The checker itself: it finds what it is there to find."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jupyter_dlaas.learner.data.position import cut, permutation
from jupyter_dlaas.wire.journal import Fact, StepsCommitted
from tests.learner.coverage import Row, faults

SAMPLES, BATCH, EPOCHS = 23, 5, 3
STEPS = 5


def history(sizes: list[int], *, learners_lost: int = 0) -> tuple[list[Fact], list[Row]]:
    """Return a sound run: epoch after epoch, in gangs of these sizes in turn; some steps are begun twice."""
    rows: list[Row] = []
    for epoch in range(EPOCHS):
        order = permutation(SAMPLES, epoch)
        for index in range(STEPS):
            step = epoch * STEPS + index + 1
            number = step * len(sizes) // (EPOCHS * STEPS + 1)
            batch, size = order[index * BATCH : (index + 1) * BATCH], sizes[number]
            if step <= learners_lost:
                rows += [Row(0, 2 * number, step, epoch, size + 1, tuple(cut(batch, 0, size + 1)))]
            for rank in range(size):
                share = tuple(cut(batch, rank, size))
                rows += [Row(0, 2 * number + 1, step, epoch, size, share)] if share else []
    facts: list[Fact] = [
        StepsCommitted(
            n=epoch + 1, at_s=0.0, generation=1, first_step=epoch * STEPS, step=(epoch + 1) * STEPS, epoch=epoch
        )
        for epoch in range(EPOCHS)
    ]
    return facts, rows


@given(st.lists(st.integers(1, 6), min_size=1, max_size=5), st.integers(0, 15))
def test_sound_run_has_no_fault_at_any_size(sizes: list[int], lost: int) -> None:
    assert not faults(*history(sizes, learners_lost=lost), range(SAMPLES), EPOCHS)


@given(st.lists(st.integers(1, 6), min_size=1, max_size=5), st.data())
def test_a_share_that_is_missing_or_trained_twice_is_found(sizes: list[int], data: st.DataObject) -> None:
    facts, rows = history(sizes)
    at = data.draw(st.integers(0, len(rows) - 1))

    assert faults(facts, rows[:at] + rows[at + 1 :], range(SAMPLES), EPOCHS)
    assert faults(facts, [*rows, rows[at]], range(SAMPLES), EPOCHS)


@pytest.mark.parametrize(
    ("first", "end", "what"),
    [(5, 10, "step 6 was committed twice"), (9, 10, "step 10 was committed twice")],
)
def test_a_step_that_is_committed_twice_is_found(first: int, end: int, what: str) -> None:
    facts, rows = history([2])
    again = StepsCommitted(n=9, at_s=0.0, generation=2, first_step=first, step=end, epoch=1)

    assert what in faults([*facts, again], rows, range(SAMPLES), EPOCHS)


def test_hole_in_committed_steps_is_found() -> None:
    facts, rows = history([2])

    assert "step 6 was not committed" in faults([facts[0], facts[2]], rows, range(SAMPLES), EPOCHS)
