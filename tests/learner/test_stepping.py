"""Plain PyTorch loops that say nothing, in real jobs: their steps and their loss are seen all the same."""

from __future__ import annotations

import json
from itertools import pairwise
from textwrap import dedent
from typing import Any

from jupyter_dlaas.learner.log_capture.plain_loop import Loop
from tests.learner.test_watching import Build, curve, names, progress, ran, records

LONG_S = 150.0
"""PyTorch is loaded in each job, on a machine that may be busy."""

LOOP = """
    import torch
    torch.manual_seed(0)
    w = torch.zeros(3, requires_grad=True)
    opt = torch.optim.SGD([w], lr=0.1)
    for _ in range(30):
        cost = ((w - 1) ** 2).sum()
        opt.zero_grad()
        cost.backward()
        opt.step()
        {says}
"""


def test_silent_loop_shows_steps_and_its_loss(job: Build) -> None:
    one = ran(job, LOOP.format(says=""), deadline_s=LONG_S)

    assert names(one) == {"cost"}
    drawn = curve(one, "cost")
    assert len(drawn) == 30
    assert drawn[0][1] == 3.0
    assert drawn[-1][1] < 0.01
    assert [step for step, _ in drawn] == list(range(1, 31))
    assert progress(one)["step"] == 30


def test_held_losses_keep_their_time_and_epoch(job: Build) -> None:
    source = """
        import time, torch
        w = torch.zeros(3, requires_grad=True)
        opt = torch.optim.SGD([w], lr=0.1)
        for epoch in range(4):
            for _ in range(5):
                cost = ((w - 1) ** 2).sum()
                opt.zero_grad()
                cost.backward()
                opt.step()
                time.sleep(0.02)
            time.sleep(0.4)
    """
    found = records(ran(job, source, deadline_s=LONG_S))

    at_s, epochs = [one["t"] for one in found], [one["epoch"] for one in found]
    assert len(found) == 20
    assert all(later - earlier >= 0.02 for earlier, later in pairwise(at_s))
    assert at_s[-1] - at_s[0] >= 3 * 0.4 + 16 * 0.02
    assert epochs == sorted(epochs)
    assert epochs[0] == 0
    assert 1 <= epochs[-1] <= 3  # the loops' position is sampled twice a second


def test_a_loop_that_speaks_is_taken_at_its_word(job: Build) -> None:
    one = ran(job, LOOP.format(says="print(f'loss: {cost.item():.3f}')"), deadline_s=LONG_S)

    assert names(one) == {"loss"}
    assert progress(one)["step"] == 30


def test_accuracy_after_the_loop_does_not_hide_the_loss(job: Build) -> None:
    one = ran(job, LOOP.format(says="") + "\n    print('Test accuracy: 0.97')", deadline_s=LONG_S)

    assert names(one) == {"cost", "test_accuracy"}
    assert len(curve(one, "cost")) == 30


def test_lines_that_state_epochs_alone_have_the_counted_steps(job: Build) -> None:
    source = """
        import torch
        w = torch.zeros(3, requires_grad=True)
        opt = torch.optim.SGD([w], lr=0.1)
        for epoch in range(3):
            for _ in range(10):
                cost = ((w - 1) ** 2).sum()
                opt.zero_grad()
                cost.backward()
                opt.step()
            print(f"epoch {epoch}: loss {cost.item():.4f}")
    """
    one = ran(job, source, deadline_s=LONG_S)

    assert [step for step, _ in curve(one, "loss")] == [10, 20, 30]
    assert (progress(one)["epoch"], progress(one)["step"]) == (3, 30)


def test_loss_is_not_read_while_a_cuda_graph_is_recorded(job: Build) -> None:
    recorded = """
    class Recorded(torch.Tensor):
        is_cuda = True
        def item(self): raise RuntimeError("CUDA error: operation not permitted when stream is capturing")
    torch.cuda.is_current_stream_capturing = lambda: True
    """
    source = LOOP.format(says="").replace("torch.manual_seed(0)", recorded.strip())
    one = ran(job, source.replace(".sum()", ".sum().as_subclass(Recorded)"), deadline_s=LONG_S)

    assert names(one) == set()
    assert progress(one)["step"] == 30


def test_a_loop_without_an_optimiser_is_counted_by_its_gradients(job: Build) -> None:
    one = ran(
        job,
        """
        import torch
        w = torch.zeros(1, requires_grad=True)
        def train():
            for _ in range(100):
                (w - 1).pow(2).sum().backward()
                with torch.no_grad():
                    w.sub_(0.1 * w.grad)
                    w.grad = None
        train()
        """,
        deadline_s=LONG_S,
    )

    assert names(one) == {"loss"}
    assert progress(one)["step"] == 100


def test_nothing_is_watched_without_autolog(job: Build) -> None:
    one = ran(job, LOOP.format(says=""), deadline_s=LONG_S, autolog=False)

    assert names(one) == set()


def test_observation_does_not_change_gradients(job: Build) -> None:
    source = LOOP.format(says="") + "\n    print('weights', w.tolist())"
    one, other = ran(job, source, deadline_s=LONG_S), ran(job, source, deadline_s=LONG_S, autolog=False)

    assert _weights(one) == _weights(other)


def test_two_optimisers_of_one_step_are_counted_once() -> None:
    loop = Loop()
    generator, discriminator = object(), object()
    for _ in range(10):
        for _ in range(5):
            loop.stepped(discriminator)
        for _ in range(2):
            loop.stepped(generator)

    assert loop._steps == 50


def test_second_optimiser_continues_the_step_count() -> None:
    loop = Loop()
    first, second = object(), object()
    for optimizer in (first, second):
        for _ in range(20):
            loop.stepped(optimizer)

    assert loop._steps == 40


def _weights(job: Any) -> Any:
    line = next(line for line in job.log().splitlines() if line.startswith("weights"))
    return json.loads(dedent(line).removeprefix("weights "))
