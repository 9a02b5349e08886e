"""The parts of the learner by themselves."""

from __future__ import annotations

import math
import operator
import pickle
import random
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import jupyter_dlaas as dlaas
from jupyter_dlaas.learner.checkpoint import checkpoint_files, user_state
from jupyter_dlaas.learner.data import batch_policy, sharding, sources
from jupyter_dlaas.learner.data.position import Position, cut, permutation
from jupyter_dlaas.learner.data.sharding import Place
from jupyter_dlaas.learner.data.shards import add_up, nodes_of_all
from jupyter_dlaas.learner.log_capture import metric_regex
from jupyter_dlaas.learner.reporting.metrics import Metrics
from jupyter_dlaas.transfer import plain_values, results
from jupyter_dlaas.wire.codec import DlaasError
from jupyter_dlaas.wire.learner_messages import CheckpointWritten

# -- exactly once


@given(
    samples=st.integers(1, 200),
    batch=st.integers(1, 70),
    sizes=st.lists(st.tuples(st.integers(1, 7), st.integers(0, 40)), min_size=1, max_size=6),
    seed=st.integers(0, 2**48),
    drop_last=st.booleans(),
)
def test_each_sample_is_taken_once_at_any_sizes(
    samples: int, batch: int, sizes: list[tuple[int, int]], seed: int, drop_last: bool
) -> None:
    source = sources.source_of(np.arange(samples), batch, shuffle=True, drop_last=drop_last, options={})
    todo = sources.plan(source, seed)
    taken: Counter[int] = Counter()
    sample = step = 0
    for learners, steps in [*sizes, (2, samples)]:
        feeds = [sharding.feed(source, seed, 0) for _ in range(learners)]
        while feeds[0].has(sample, batch) and (steps := steps - 1) >= 0:
            shares = [
                one.share(Place(sample=sample, size=batch, rank=rank, learners=learners))
                for rank, one in enumerate(feeds)
            ]
            counted = [int(number) for share in shares if share.count for number in share.batch]
            assert counted == list(todo.batch(step))
            assert {share.total for share in shares} == {len(counted)}
            taken.update(counted)
            sample, step = sample + len(counted), step + 1

    whole = samples - samples % batch if drop_last else samples
    assert set(taken.values()) <= {1}
    assert len(taken) == whole
    assert sources.length(source) == todo.steps == step


@given(
    samples=st.integers(1, 150),
    batch=st.integers(1, 40),
    cuts=st.integers(1, 40),
    learners=st.integers(1, 7),
    seed=st.integers(0, 2**48),
)
def test_shards_depend_only_on_the_batch_and_are_complete(
    samples: int, batch: int, cuts: int, learners: int, seed: int
) -> None:
    source = sources.source_of(np.arange(samples), batch, shuffle=True, drop_last=None, options={})
    todo = sources.plan(source, seed)
    for step in range(todo.steps):
        found: dict[int, list[int]] = {}
        for rank in range(learners):
            one = sharding.feed(source, seed, cuts)
            share = one.share(Place(sample=step * batch, size=batch, rank=rank, learners=learners))
            assert not found.keys() & {number for number, _, _ in share.own}
            found |= {number: part.tolist() for number, part, _ in share.own}
        alone = sharding.feed(source, seed, cuts).share(Place(sample=step * batch, size=batch, rank=0, learners=1))
        assert found == {number: part.tolist() for number, part, _ in alone.own}
        assert [n for number in sorted(found) for n in found[number]] == list(todo.batch(step))


@given(shards=st.integers(1, 70), learners=st.integers(1, 9), seed=st.integers(0, 2**32))
def test_shard_sums_are_bitwise_equal_for_any_size(shards: int, learners: int, seed: int) -> None:
    chance = random.Random(seed)
    leaves = [chance.uniform(-1, 1) * 10 ** chance.randint(-9, 9) for _ in range(shards)]
    alone = add_up((0, shards), leaves.__getitem__, operator.add, {})
    nodes = nodes_of_all(shards, learners)
    parts = {node: add_up(node, leaves.__getitem__, operator.add, {}) for own in nodes for node in own}

    def unknown(number: int) -> float:
        raise AssertionError(f"no learner computed shard {number}")

    assert add_up((0, shards), unknown, operator.add, parts) == alone
    assert alone == pytest.approx(math.fsum(leaves), abs=1e-3)


@given(st.lists(st.integers(), max_size=60), st.integers(1, 9))
def test_shares_are_the_batch_in_rank_order_and_nearly_equal(batch: list[int], learners: int) -> None:
    shares = [cut(batch, rank, learners) for rank in range(learners)]

    assert [one for share in shares for one in share] == batch
    assert max(map(len, shares)) - min(map(len, shares)) <= 1


def test_an_order_is_the_same_in_every_process() -> None:
    program = "from jupyter_dlaas.learner.data.position import permutation; print(permutation(12, 7))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)

    assert done.stdout.strip() == str(permutation(12, 7))


# -- user state


def test_only_changed_state_travels_and_lists_stay() -> None:
    script: dict[str, Any] = {"world": 4, "losses": [], "best": 0, "table": {}, "thing": object(), "data": [object()]}
    base = user_state.base(script)
    script["losses"].append(1.5)
    script["best"] = 3
    script["new"] = "x"
    script["data"].append(object())
    own, left_out = user_state.changed(script, base)
    losses: list[float] = []
    again: dict[str, Any] = {"world": 2, "losses": losses, "best": 0, "table": {}}
    user_state.put_back(again, pickle.loads(pickle.dumps(own)))

    assert own == {"losses": [1.5], "best": 3, "new": "x"}
    assert left_out == ["data"]
    assert again == {"world": 2, "losses": [1.5], "best": 3, "table": {}, "new": "x"}
    assert again["losses"] is losses


def test_too_large_state_stays_and_is_reported() -> None:
    own, left_out = user_state.changed({"text": "x" * (2 << 20), "n": 1}, {})

    assert (own, left_out) == ({"n": 1}, ["text"])


def test_tensors_are_not_plain_values() -> None:
    import torch

    assert plain_values.is_plain([1, "a", {"b": (2.5, None)}, np.float32(1)])
    assert not plain_values.is_plain([torch.tensor(1.0)])
    assert not plain_values.is_plain({"a": np.zeros(3)})


# -- checkpoints beside the training


def snapshot(folder: Path, step: int, content: dict[str, Any]) -> Any:
    return checkpoint_files.take(folder, Position(epoch=0, step=step), content, generation=1, learners=1, trained=())


def test_snapshot_holds_the_state_at_its_time(tmp_path: Path) -> None:
    import torch

    weights, losses = torch.zeros(3), [1.0]
    write = snapshot(tmp_path, 5, {"weights": weights, "losses": losses})
    weights += 1
    losses.append(2.0)
    checkpoint_files.write_later(write, 5, lambda _: None)
    checkpoint_files.settle()

    found = checkpoint_files.load(tmp_path, may_tidy=False)
    assert found is not None
    assert found[1]["losses"] == [1.0]
    assert found[1]["weights"].tolist() == [0.0, 0.0, 0.0]


def test_failed_snapshot_leaves_the_one_before(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sent: list[CheckpointWritten] = []
    writes = [(step, snapshot(tmp_path, step, {"at": step})) for step in (1, 2, 3)]
    for part in (tmp_path / "checkpoints").glob(".part-*-3"):
        part.rename(tmp_path / "away")  # as good as a disk that is gone
    for step, write in writes:
        checkpoint_files.write_later(write, step, sent.append)
    checkpoint_files.settle()

    assert [message.step for message in sent] == [1, 2]
    assert "cannot write the checkpoint at step 3" in capsys.readouterr().err
    found = checkpoint_files.load(tmp_path, may_tidy=False)
    assert found is not None
    assert found[1]["at"] == 2
    assert not checkpoint_files.is_busy()


# -- metrics


def test_restart_rewinds_metrics_of_later_steps(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    first = Metrics(path, None)
    first.open()
    for step in range(1, 5):
        first.log({"loss": 1 / step}, step=step, epoch=0, source="run")
    with path.open("ab") as file:
        file.write(b'{"t": 1, "st')
    first.close()
    second = Metrics(path, 2)
    second.open()
    second.log({"loss": 9.0}, step=3, epoch=0, source="run")
    third = Metrics(path, 3)

    assert second.history == third.history == {"loss": [1.0, 0.5, 9.0]}
    assert len(path.read_bytes().splitlines()) == 6


def test_infinity_and_nan_survive_json(tmp_path: Path) -> None:
    metrics = Metrics(tmp_path / "metrics.jsonl", None)
    metrics.open()
    for value in (math.nan, math.inf, -math.inf):
        metrics.log({"loss": value}, step=1, epoch=0, source="run")

    said = (tmp_path / "metrics.jsonl").read_text()
    assert re.findall('"loss":([^}]+)', said) == ['"NaN"', '"Infinity"', '"-Infinity"']
    found = Metrics(tmp_path / "metrics.jsonl", 1).history["loss"]
    assert math.isnan(found[0])
    assert found[1:] == [math.inf, -math.inf]


def test_patterns_name_metrics_by_group_or_preceding_word(capsys: pytest.CaptureFixture[str]) -> None:
    patterns = [re.compile(one) for one in (r"loss: ([0-9.]+)", r"(?P<acc>\d+)%", r"step (\d+)", r"([a-z]+)!")]

    assert metric_regex.find(patterns, "step 3 loss: 0.5 acc 97% done!") == {"step": 3.0, "loss": 0.5, "acc": 97.0}


# -- data


def batches(source: sources.Source, seed: int = 0) -> list[Any]:
    one, sample, found = sharding.feed(source, seed, 0), 0, []
    while one.has(sample, source.batch_size):
        share = one.share(Place(sample=sample, size=source.batch_size, rank=0, learners=1))
        found.append(share.batch)
        sample += share.total
    return found


def test_dataloader_keeps_batch_size_order_and_collation() -> None:
    import torch
    from torch.utils.data import DataLoader, TensorDataset, WeightedRandomSampler

    points = TensorDataset(torch.arange(10))
    plain = sources.source_of(DataLoader(points, 4), None, shuffle=None, drop_last=None, options={})
    assert [x.tolist() for (x,) in batches(plain)] == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]
    mixed = sources.source_of(DataLoader(points, 4, shuffle=True), None, shuffle=None, drop_last=None, options={})
    assert sorted(n for (x,) in batches(mixed, 3) for n in x.tolist()) == list(range(10))
    assert [x.tolist() for (x,) in batches(mixed, 3)] != [x.tolist() for (x,) in batches(mixed, 4)]
    short = DataLoader(points, 4, drop_last=True, collate_fn=len)
    assert batches(sources.source_of(short, None, shuffle=None, drop_last=None, options={})) == [4, 4]
    weighted = DataLoader(points, 5, sampler=WeightedRandomSampler([0.0] * 9 + [1.0], 10))
    source = sources.source_of(weighted, None, shuffle=None, drop_last=None, options={})
    assert [x.tolist() for (x,) in batches(source, 1)] == [[9] * 5, [9] * 5]
    own = DataLoader(points, batch_sampler=[[1, 2, 3], [7]])
    assert [x.tolist() for (x,) in batches(sources.source_of(own, None, shuffle=None, drop_last=None, options={}))] == [
        [1, 2, 3],
        [7],
    ]


def test_arrays_and_tensors_are_cut_like_datasets() -> None:
    import torch

    x, y = np.arange(6) * 10, torch.arange(6)
    pair = sources.source_of((x, y), 4, shuffle=False, drop_last=None, options={})
    assert [(a.tolist(), b.tolist()) for a, b in batches(pair)] == [([0, 10, 20, 30], [0, 1, 2, 3]), ([40, 50], [4, 5])]
    assert [a.tolist() for a in batches(sources.source_of(x, 6, shuffle=False, drop_last=None, options={}))] == [
        x.tolist()
    ]


def test_unsplittable_data_is_refused_with_advice() -> None:
    with pytest.raises(DlaasError, match="a generator has no random access to its samples"):
        sources.source_of((n for n in range(3)), 2, shuffle=None, drop_last=None, options={})
    with pytest.raises(DlaasError, match="pass the batch size over all learners"):
        sources.source_of([1, 2], None, shuffle=None, drop_last=None, options={})
    with pytest.raises(DlaasError, match="different lengths: 2, 3"):
        sources.source_of((np.zeros(2), np.zeros(3)), 1, shuffle=None, drop_last=None, options={})


# -- results


def test_results_without_tensors_load_without_torch() -> None:
    program = (
        "import sys; from jupyter_dlaas.transfer import results; data = results.dump({'a': [1, 2]});"
        "assert results.load(data) == {'a': [1, 2]}; assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", program], check=True)


def test_tensors_and_modules_travel_and_nonsense_is_refused() -> None:
    import torch

    found = results.load(results.dump({"weights": torch.ones(2), "model": torch.nn.Linear(2, 1)}))

    assert found["weights"].tolist() == [1, 1]
    assert isinstance(found["model"], torch.nn.Linear)
    with pytest.raises(ValueError, match="not a result file"):
        results.load(b"hello")


def test_model_with_a_lambda_hook_is_restored() -> None:
    import torch

    model, factor = torch.nn.Linear(2, 1), 3
    model.register_forward_hook(lambda module, args, out: out * factor)
    x = torch.ones(1, 2)

    found = results.load(results.dump(model))

    assert found(x).item() == model(x).item()
    assert results.load(results.dump({"key": [lambda n: n + factor]}))["key"][0](1) == 4


def test_unstorable_value_gives_the_reason(tmp_path: Path) -> None:
    stored, errors = results.store(tmp_path / "results", ["file", "good"], {"file": sys.stdout, "good": 1})

    assert stored == ["good"]
    assert "cannot be stored (TypeError" in errors["file"]


# -- outside of a job


def test_program_runs_outside_a_job_without_touching_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    from jupyter_dlaas import run as begin

    monkeypatch.chdir(tmp_path)
    run = begin()
    model = torch.nn.Linear(2, 1)
    opt = torch.optim.SGD(model.parameters(), lr=0.1)
    assert run.prepare(model, opt) == (model, opt)
    assert run.prepare(model) is model
    seen = []
    for epoch in run.epochs(2):
        for batch in run.batches(list(range(5)), 2):
            seen += list(batch)
        run.log(n=epoch)

    assert sorted(map(int, seen)) == sorted([*range(5)] * 2)
    assert run.history == {"n": [0.0, 1.0]}
    assert (run.rank, run.world_size, run.is_main, run.should_stop) == (0, 1, True, False)
    assert list(tmp_path.iterdir()) == []
    assert begin() is not run
    run.checkpoint()
    for _ in run.batches(list(range(2)), 2):
        pass
    monkeypatch.chdir(tmp_path.parent)  # while it is being written, maybe
    checkpoint_files.settle()
    assert [path.name for path in tmp_path.iterdir()] == ["dlaas-checkpoints"]
    assert len(list(tmp_path.glob("dlaas-checkpoints/checkpoints/step-*"))) == 1


def test_missing_or_invalid_use_is_refused_with_a_message() -> None:
    from jupyter_dlaas import pushed
    from jupyter_dlaas import run as begin

    run = begin()
    with pytest.raises(DlaasError, match="a list cannot be prepared: give data to run"):
        run.prepare([1, 2])
    with pytest.raises(DlaasError, match=r"run\.epochs needs the number of epochs"):
        next(run.epochs())
    with pytest.raises(DlaasError, match='reduce must be "mean" or None'):
        run.log(reduce="max", x=1)
    with pytest.raises(DlaasError, match="nothing was pushed with this job"):
        pushed("model")


# -- the model of a gang


def test_wrapped_model_looks_like_the_users_model() -> None:
    """In a process of its own: a process group is for a whole process."""
    program = """
import copy, io, os, pickle, torch
from torch import nn
os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT="0")
from jupyter_dlaas.learner.elastic.data_parallel import Gang
from jupyter_dlaas.learner.elastic.step_gate import Gate
gang = Gang(torch.device("cpu"), 0, 1, Gate())
model = nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3), nn.Linear(3, 1))
keys = list(model.state_dict())
same = gang.wrap(model, {})
assert same is model and isinstance(model, nn.Sequential) and type(model).__name__ == "Sequential"
assert list(model.state_dict()) == keys and len(list(model.children())) == 3 and model[0].in_features == 2
x = torch.randn(4, 2)
for _ in range(3):
    model.zero_grad(); model(x).sum().backward()
assert all(p.grad is not None for p in model.parameters())
with torch.no_grad():
    model.eval(); y = model(x)
for twin in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
    assert type(twin) is nn.Sequential and torch.equal(twin(x), y)
file = io.BytesIO(); torch.save(model, file); file.seek(0)
assert type(torch.load(file, weights_only=False)) is nn.Sequential
gang.share_buffers()
assert gang.mean([2.0], 3.0) == [2.0]
print("all good")
"""
    command = [sys.executable, "-W", "error", "-c", program]
    done = subprocess.run(command, capture_output=True, text=True, check=False)

    assert done.stdout.strip() == "all good", done.stderr[-3000:]


# -- batches that grow


@given(
    own=st.integers(1, 64),
    more=st.integers(0, 200),
    sizes=st.lists(st.integers(1, 9), min_size=1, max_size=6),
    rule=st.sampled_from(["linear", "sqrt", "none"]),
    warmup=st.integers(0, 50),
)
def test_learning_rates_follow_the_batch_between_its_limits(
    own: int, more: int, sizes: list[int], rule: str, warmup: int
) -> None:
    growth = batch_policy.growth_of("grow", own, own + more, rule, warmup)
    assert growth is not None
    step = 0
    for learners in sizes:
        samples = growth.batch(learners)
        assert own <= samples <= max(own, min(own * learners, own + more))
        for _ in range(warmup + 1):
            growth.begin(step, samples)
            assert 1.0 <= growth.factor() <= growth.batch(9) / own
            step += 1
        growth.begin(step, samples)
        expected = {"linear": samples / own, "sqrt": math.sqrt(samples / own), "none": 1.0}[rule]
        assert growth.factor() == pytest.approx(expected)


@given(st.integers(2, 16), st.floats(0.01, 100.0), st.floats(0.01, 100.0))
def test_adascale_estimates_the_gain_of_a_larger_batch(learners: int, variance: float, square: float) -> None:
    """Fed with the expectations of its estimators, it gives the gain of the paper's formula."""
    growth = batch_policy.growth_of("grow", 8, 8 * learners, "adascale", 0)
    assert growth is not None
    growth.begin(0, 8 * learners)
    growth.learn(variance + square, variance / learners + square, learners, 8 * learners)

    assert growth.factor() == pytest.approx((variance + square) / (variance / learners + square), rel=1e-6)
    assert 1.0 <= growth.factor() <= learners


def test_batch_policies_that_there_are_not_are_refused_in_words() -> None:
    for batch, most, rate, words in [
        ("grows", None, None, 'use "fixed" or "grow"'),
        ("fixed", 128, None, "require batch="),
        ("grow", None, "sqrt", "set max_batch="),
        ("grow", 128, "cubic", "one of linear, sqrt, adascale, none"),
    ]:
        with pytest.raises(DlaasError, match=words):
            batch_policy.growth_of(batch, 16, most, rate, 100)


# -- exact mode


def exact(**options: Any) -> Any:
    import torch

    model = torch.nn.Sequential(torch.nn.Linear(3, 2), *options.pop("layers", []))
    opt = options.pop("optimizer", torch.optim.SGD)(model.parameters(), lr=0.1)
    one = dlaas.run()
    one.prepare(model, opt, **options)
    return one, model, opt


def test_unsupported_exact_mode_is_refused_before_training() -> None:
    import torch

    cases: list[tuple[dict[str, Any], str]] = [
        ({"shards": 0}, "pass the number of shards"),
        ({"shards": True}, "pass the number of shards"),
        ({"shards": 4, "ddp": {"find_unused_parameters": True}}, "omit ddp="),
        ({"shards": 4, "layers": [torch.nn.SyncBatchNorm(2)]}, "use BatchNorm itself"),
        ({"shards": 4, "layers": [torch.nn.Embedding(4, 2, sparse=True)]}, "sparse=False"),
        ({"shards": 4, "layers": [torch.nn.LazyLinear(4)]}, "gets its shape in the first step"),
        ({"shards": 4, "optimizer": torch.optim.LBFGS}, "LBFGS"),
    ]
    for options, words in cases:
        with pytest.raises(DlaasError, match=words):
            exact(**options)
    run, model, opt = exact(shards=4)
    before = [one.clone() for one in model.parameters()]
    x = torch.zeros(8, 3)
    with pytest.raises(DlaasError, match="a batch of 2 cannot be divided into 4 shards"):
        run.batches(x, 2)
    with pytest.raises(DlaasError, match="is not exact"):
        run.batches(x, 4, batch="grow", max_batch=8, rate="none")
    batch = next(iter(run.batches(x, 8)))
    with pytest.raises(DlaasError, match="Pass it to "):
        list(batch)
    with pytest.raises(DlaasError, match="mean loss over the samples"):
        run.train_step(lambda part: 1.0, batch)
    with pytest.raises(DlaasError, match="runs the optimiser's step itself"):
        opt.step()
    assert all(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))
    with pytest.raises(DlaasError, match="requires exact mode"):
        dlaas.run().train_step(lambda part: part.sum(), x)


@pytest.fixture(autouse=True)
def _as_before() -> Iterator[None]:
    """Exact mode switches deterministic kernels on, for good; not for other tests."""
    yield
    torch = sys.modules.get("torch")
    if torch is not None:
        torch.use_deterministic_algorithms(False)
