"""Record of trained steps, counted step by step."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from jupyter_dlaas.learner.checkpoint.trained_steps import Trained


@given(
    st.lists(
        st.one_of(
            st.tuples(st.just("next"), st.integers(0, 2)),
            st.tuples(st.just("from"), st.integers(0, 5)),
            st.tuples(st.just("undo"), st.just(0)),
        ),
        max_size=30,
    )
)
def test_step_ranges_keep_the_order_of_training(moves: list[tuple[str, int]]) -> None:
    """ "next": a step of this epoch or one of the next; "from": the step to come is another one, as after a restart."""
    found, steps, step, epoch = Trained(), [], 0, 0
    for move, number in moves:
        if move == "next":
            epoch += number
            found.add(epoch, step)
            steps.append((epoch, step))
            step += 1
        elif move == "from":
            step = number
        elif steps:
            found.undo()
            _, step = steps.pop()
    assert [(one.epoch, step) for one in found for step in range(one.first, one.end)] == steps
    assert bool(found) == bool(steps)


def test_a_step_more_in_the_same_epoch_is_one_addition() -> None:
    found = Trained()
    found.add(1, 7)
    found.end += 2
    found.add(1, 10)
    assert [(one.epoch, one.first, one.end) for one in found] == [(1, 7, 11)]
