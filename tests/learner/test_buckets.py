"""Gradients travel in buckets: those of a gang that may change are the same in every learner from the start."""

from __future__ import annotations

import weakref
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from jupyter_dlaas.learner.elastic import process_group
from jupyter_dlaas.learner.elastic.data_parallel import Gang, NotShareable, _settle
from jupyter_dlaas.learner.elastic.gradient_snapshot import Accumulated
from jupyter_dlaas.learner.elastic.step_gate import Gate


def _model() -> nn.Sequential:
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(32, 1000), nn.Linear(1000, 1000), nn.Linear(1000, 10))


def _watched(model: nn.Module, *, settles: bool) -> tuple[DistributedDataParallel, list[int]]:
    """Return the model in a group of one, and the sizes of its gradient buckets in order of their arrival."""
    seen: list[int] = []

    def note(bucket: Any) -> torch.futures.Future[torch.Tensor]:
        seen.append(bucket.buffer().numel())
        future: torch.futures.Future[torch.Tensor] = torch.futures.Future()
        future.set_result(bucket.buffer())
        return future

    ddp = DistributedDataParallel(model, process_group=process_group.single_learner_group(), forward_sync_buffers=False)
    if settles:
        _settle(ddp)
    ddp.register_comm_hook(None, lambda _, bucket: note(bucket))
    return ddp, seen


def _pass(ddp: DistributedDataParallel, seen: list[int]) -> list[int]:
    seen.clear()
    ddp(torch.ones(4, 32)).square().mean().backward()
    return list(seen)


def test_ddp_buckets_are_settled_before_the_first_step() -> None:
    settled, seen = _watched(_model(), settles=True)
    native, others = _watched(_model(), settles=False)

    first = _pass(settled, seen)

    assert first == _pass(settled, seen)
    assert first != _pass(native, others)
    assert first == _pass(native, others)
    assert len(first) == 2


def test_settling_leaves_no_trace_in_the_model() -> None:
    model, plain = _model(), _model()
    called: list[object] = []
    first, second, *_ = (one for name, one in model.named_parameters() if "weight" in name)
    gradient = first.grad = torch.ones_like(first)
    first.register_hook(called.append)
    second.register_post_accumulate_grad_hook(called.append)

    ddp, seen = _watched(model, settles=True)

    assert not called
    assert first.grad is gradient
    assert torch.equal(gradient, torch.ones_like(gradient))
    assert second.grad is None
    _pass(ddp, seen)
    assert len(called) == 2
    plain(torch.ones(4, 32)).square().mean().backward()
    for one, other in zip(list(model.parameters())[-2:], list(plain.parameters())[-2:], strict=True):
        assert one.grad is not None
        assert other.grad is not None
        assert torch.equal(one.grad, other.grad)


def test_ddp_keeps_no_book_of_later_steps() -> None:
    """It would note each parameter of each step for an order of buckets that it never makes."""
    ddp, seen = _watched(_model(), settles=True)
    _pass(ddp, seen)

    assert not ddp.reducer._rebuild_buckets()


@pytest.mark.parametrize(
    ("model", "options", "named"),
    [
        (nn.Linear(2, 1), {"static_graph": True}, "static_graph"),
        (nn.Sequential(nn.EmbeddingBag(4, 2, sparse=True)), {}, "sparse=True"),
    ],
)
def test_feature_for_fixed_gangs_is_refused_in_elastic_ones(
    model: nn.Module, options: dict[str, Any], named: str
) -> None:
    gang = Gang(torch.device("cpu"), 0, 1, Gate(), may_change=True)

    with pytest.raises(NotShareable, match=rf"{named}.*--elastic off"):
        gang.wrap(model, options)


def test_buckets_stay_as_they_are_over_changes_of_the_gang() -> None:
    gang = Gang(torch.device("cpu"), 0, 1, Gate(), may_change=True)
    model = gang.wrap(_model(), {})
    (ddp,) = gang._wrappers
    for _ in range(2):
        gang._put(ddp, process_group.single_learner_group())
        ddp(torch.ones(4, 32)).square().mean().backward()

        assert not ddp.reducer._rebuild_buckets()
    gradients = [one.grad for one in model.parameters() if one.grad is not None]
    assert len(gradients) == 6
    assert len({one.untyped_storage().data_ptr() for one in gradients}) == 2, "they lie in the two buckets, not beside"


def test_gradients_about_to_be_cleared_are_not_held() -> None:
    model, steps = _model(), [0]
    opt = torch.optim.SGD(model.parameters(), lr=0.1)
    accumulated = Accumulated([("model", model), ("opt", opt)], lambda: steps[0])
    for _ in range(4):  # what the program clears is known by then
        accumulated.keep(may_lose=True)
        steps[0] += 1
        opt.zero_grad()
        model(torch.ones(4, 32)).square().mean().backward()
        opt.step()
    gradients = [weakref.ref(one.grad) for one in model.parameters() if one.grad is not None]

    accumulated.keep(may_lose=True)
    model.zero_grad()

    assert [one() for one in gradients] == [None] * 6
    accumulated.undo()
    assert all(one.grad is None for one in model.parameters())
    assert accumulated.snapshot() is None
