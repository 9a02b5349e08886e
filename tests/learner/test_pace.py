"""The middle of step times."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jupyter_dlaas.pace import middle


def test_a_step_that_wrote_a_checkpoint_does_not_count() -> None:
    assert middle([0.1] * 10 + [0.1001] * 10 + [5.0])[0] == pytest.approx(0.1, rel=0.01)


@given(st.lists(st.floats(1e-5, 1e3), min_size=1, max_size=50))
def test_the_middle_lies_among_the_steps(times_s: list[float]) -> None:
    found, spread = middle(times_s)

    assert min(times_s) * (1 - 1e-9) <= found <= max(times_s) * (1 + 1e-9)
    assert spread >= 0
