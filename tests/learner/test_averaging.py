"""Gradients of loops that DistributedDataParallel does not follow: several learners train what one would train."""

from __future__ import annotations

import json
import textwrap
from typing import Any

import pytest
import torch

from tests.learner.gang_loops import LOOPS, shares
from tests.preloaded import run_script

_LEARNERS = """
import functools, json, multiprocessing, os, sys, traceback, types
import torch
import torch.distributed as dist
from torch.optim import optimizer
from jupyter_dlaas.learner.elastic import process_group as groups
from jupyter_dlaas.learner.training_run import preparation as preparing
from jupyter_dlaas.learner.elastic.data_parallel import Gang
from jupyter_dlaas.learner.elastic.step_gate import Gate
from tests.learner import fake_nccl
from tests.learner.gang_loops import LOOPS, shares

torch.set_num_threads(1)
backward = torch.autograd.backward
out, way, size = sys.argv[1], sys.argv[2], 2
may_change = way != "fixed"
if way == "like GPUs":
    fake_nccl.install()

def prepare(run, *objects, loss="mean"):
    run.loss_is_sum = loss == "sum"
    named = [(f"{len(run.objects) + n}:{type(one).__name__}", one) for n, one in enumerate(objects)]
    run.objects += named
    preparing.prepare(run, named, None, None, {})
    return objects

def batches(run, epoch):
    for batch, run.gang.weight in shares(epoch, run.rank, size):
        run.gate.begin()
        yield batch
        assert run.gate.end(), "no learner is lost"
        run.gang.compare_tags()
        assert run.gang.diverged is None
    run.gang.watch_passes()

def learner(rank, port):
    if not may_change:
        dist.init_process_group("gloo", store=dist.FileStore(out + "/store", size), rank=rank, world_size=size)
    found = {}
    for number, (name, loop) in enumerate(LOOPS.items()):
        gate = Gate()
        gang = Gang(torch.device("cpu"), rank, size, gate, may_change=may_change)
        if may_change:
            gang.enter(groups.build_group(("127.0.0.1", port), number + 1, rank, size), rank, size)
        run = types.SimpleNamespace(gang=gang, gate=gate, exact=None, objects=[], context=None, rank=rank)
        run.is_looping, run.world_size = False, size
        try:
            model = loop(functools.partial(prepare, run), functools.partial(batches, run))
            found[name] = torch.cat([one.detach().flatten() for one in model.parameters()]).tolist()
        except Exception:
            found[name] = traceback.format_exc()
            if rank == 0:
                traceback.print_exc()
            break
        finally:
            optimizer._global_optimizer_pre_hooks.clear()
            torch.autograd.backward = backward
    with open(f"{out}/{rank}.json", "w") as file:
        json.dump(found, file)

if __name__ == "__main__":
    fork = multiprocessing.get_context("fork")
    ports = [fork.SimpleQueue() for _ in range(size)]

    def begin(rank):
        learner(rank, ports[rank].get())
        os._exit(0)

    learners = [fork.Process(target=begin, args=(rank,)) for rank in range(size)]
    for one in learners:
        one.start()
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    for one in ports:
        one.put(store.port)
    for one in learners:
        one.join(60)
        if one.is_alive():
            print("killed: a learner still trains after 60 s", file=sys.stderr)
        one.kill()
"""


@pytest.fixture(scope="module", params=["live", "like GPUs", "fixed"])
def trained(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """Return what each of two learners trains, in a gang that may change and in one that never does."""
    folder = tmp_path_factory.mktemp("averaging")
    script = folder / "learners.py"
    script.write_text(textwrap.dedent(_LEARNERS))
    code, errors = run_script(script, [folder, request.param])
    assert code == 0, errors[-3000:]
    found = [folder / f"{rank}.json" for rank in range(2)]
    assert all(one.exists() for one in found), errors[-3000:]
    return [json.loads(one.read_text()) for one in found]


@pytest.mark.parametrize("name", LOOPS)
def test_two_learners_train_the_same_as_one(trained: list[dict[str, Any]], name: str) -> None:
    def batches(epoch: int) -> Any:
        return [batch for batch, _ in shares(epoch, 0, 1)]

    alone = LOOPS[name](lambda *objects, **_: objects, batches)

    first, second = (one.get(name, "it did not come so far") for one in trained)
    assert isinstance(first, list), first
    assert first == second, "the learners have the same weights to the last bit"
    expected = torch.cat([one.detach().flatten() for one in alone.parameters()])
    assert first == pytest.approx(expected.tolist(), abs=1e-9)
