"""Throughput of a framework's own loop, of which only some steps are sampled."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jupyter_dlaas.learner.control import throughput_report
from jupyter_dlaas.learner.control.throughput_report import Pacing
from jupyter_dlaas.wire.learner_messages import Throughput
from jupyter_dlaas.wire.protocol import Elastic, JobSpec


class Watched:
    """Pacing of a job with one of two learners, on a clock of its own."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, elastic: Elastic = Elastic.MANUAL) -> None:
        self.now_s, self.sent, self.step = 100.0, list[Throughput](), 0
        monkeypatch.setattr(throughput_report, "time", SimpleNamespace(monotonic=lambda: self.now_s))
        control = SimpleNamespace(send=self.sent.append)
        context: Any = SimpleNamespace(
            spec=JobSpec(learners_max=2, elastic=elastic), generation=1, world_size=1, control=control
        )
        self.pacing = Pacing(context)

    def train(self, steps: int, step_s: float, left: int | None = None) -> None:
        """So many steps, then a look."""
        self.step += steps
        self.now_s += steps * step_s
        self.pacing.look(self.step, 8, left)


@given(looks=st.lists(st.integers(1, 400), min_size=30, max_size=60), step_s=st.sampled_from([0.0005, 0.01, 0.3]))
def test_rate_does_not_depend_on_the_sampling_interval(looks: list[int], step_s: float) -> None:
    with pytest.MonkeyPatch.context() as monkeypatch:
        one = Watched(monkeypatch)
        for steps in looks:
            one.train(steps, step_s)

    assert all(message.rate == pytest.approx(8 / step_s) for message in one.sent)
    assert all(message.steps >= 20 for message in one.sent)
    assert one.sent or sum(looks) * step_s < 3.0


def test_a_stretch_with_a_checkpoint_in_it_does_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    one = Watched(monkeypatch)
    for _ in range(3):
        one.train(100, 0.0025)
    one.now_s += 5.0
    for _ in range(3):
        one.train(100, 0.0025, left=1000)

    assert one.sent[0].rate == pytest.approx(8 / 0.0025)
    assert one.sent[0].left_s == pytest.approx(2.5)


def test_batched_samples_do_not_reduce_the_spread(monkeypatch: pytest.MonkeyPatch) -> None:
    """A mean over 100 steps spreads a tenth of what they do: the report is the spread of single steps."""
    one = Watched(monkeypatch)
    for number in range(40):
        one.train(100, 0.0025 * (1.02 if number % 2 else 0.98))

    assert one.sent[-1].spread > 0.1


def test_a_size_that_never_changes_is_not_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    one = Watched(monkeypatch, Elastic.OFF)
    for _ in range(40):
        one.train(100, 0.01)

    assert one.sent == []
